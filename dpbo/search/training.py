"""The public side of a scikit-learn search: which records train, and the models that are fitted to
them.

Training and validation records come as two tables, or as one table that is split once by position.
Configurations are fitted to the training records only, so an exception from a fit is public: it is
raised, or the configuration counts as worst on every record. A model may keep what it predicted on,
so private records are scored with a copy that is never handed out.
"""

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import joblib
import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed

from dpbo.curator.curator import Curator
from dpbo.errors import InputError
from dpbo.isolation import INTERRUPTS
from dpbo.privacy import Adjacency
from dpbo.records.containers import count_records
from dpbo.records.form import Column, Form, Leaf
from dpbo.records.labels import numbered, require_disjoint
from dpbo.search.listing import space_of
from dpbo.space import Space
from dpbo.validation import warn

if TYPE_CHECKING:
    from dpbo.search.search import DPSearch

T = TypeVar("T")
# Training records on which a score is tried first.
_EXAMPLES = 5
# A point of the space, or None: the estimator as it was given.
Configuration = torch.Tensor | None


def label_columns(name: str, labels: Any, *, several: bool, public: bool = True) -> Any:
    """Labels of one dimension, also of a table with one column, as scikit-learn takes them; or of
    several columns of numbers, where a score of the caller's own reads them.

    Args:
        public: whether their dtypes are. Those of protected labels follow from all of their cells:
            each is cast to the form of the public ones.

    Raises:
        InputError: `name` has several columns of other things, or where one is needed.
    """
    shape: tuple[int, ...] = tuple(getattr(labels, "shape", ()))
    if len(shape) != 2:
        return labels
    if shape[1] != 1 and several and not public:
        return labels
    if shape[1] != 1 and several:
        dtypes = labels.dtypes if hasattr(labels, "iloc") else [labels.dtype]
        if all(getattr(dtype, "kind", "") in "biuf" for dtype in dtypes):
            return labels
        remedy = "Encode each column by a public list of its classes."
        raise InputError(name, shape, "numbers where labels have several columns", remedy)
    if shape[1] != 1:
        remedy = (
            "Several are scored by a function: scoring=f, where f(model, X, y) returns one number a"
            " record; or tune one target at a time."
        )
        raise InputError(name, shape, "one label a record", remedy)
    return labels.iloc[:, 0] if hasattr(labels, "iloc") else labels[:, 0]


_NOT_COMPARED = (
    "groups_train= is not compared with the groups of the Curator that is X_val: a person in both"
    " tables is trained on in the open. Compare the labels where both are known."
)


class Tables(NamedTuple):
    """Training and validation records. `X_val` may be a Curator, which then holds the labels."""

    X_train: Any
    y_train: Any
    X_val: Any
    y_val: Any

    def require_apart(self, groups: Any, groups_train: Any) -> None:
        """Raises InputError if training and validation are one table, share a unit whose labels are
        known on both sides, or are tables of different kinds or with rows of different shapes.

        Their dtypes do not matter: they follow from all of a table's cells, so a refusal would tell
        of one.
        """
        kind = type(self.X_val).__name__
        if self.X_train is self.X_val:
            remedy = "Give one table and test_size, or two tables."
            raise InputError("X_val", kind, "other records than X_train", remedy)
        if groups_train is not None:
            if groups is None:
                require_labels("groups_train", groups_train, self.X_train)
                numbered("groups_train", groups_train)
                if isinstance(self.X_val, Curator) and self.X_val.ledger.birth.grouped:
                    warn(_NOT_COMPARED, UserWarning)
            else:
                require_disjoint(groups, groups_train, count_records(self.X_train))
        if isinstance(self.X_val, Curator):
            if self.y_val is not None:
                remedy = "It holds the labels already."
                raise InputError(
                    "y_val", type(self.y_val).__name__, "left out with a Curator", remedy
                )
            return
        if isinstance(self.X_val, (list, tuple)) and not _are_texts(self.X_train):
            allowed = "an array or a DataFrame, or a list where training records are texts"
            remedy = (
                "In an array made from a list, one record's odd value changes the type, and so the"
                " score, of all others."
            )
            raise InputError("X_val", kind, allowed, remedy)
        pairs = (("X_val", self.X_val, self.X_train), ("y_val", self.y_val, self.y_train))
        for name, validation, train in pairs:
            frames = hasattr(train, "columns") and hasattr(validation, "columns")
            if validation is None or train is None or frames:
                continue
            shape, expected = (
                tuple(getattr(table, "shape", (0,)))[1:] for table in (validation, train)
            )
            if shape != expected:
                raise InputError(name, shape, f"rows of the training records' shape, {expected}")


def split_once(
    table: Tables, groups: Any, groups_train: Any, test_size: Any, seed: int, adjacency: Adjacency
) -> Tables:
    """The training table in two parts, by each row's position, the number of rows and the seed.

    A neighbour under REPLACE_ONE has as many rows, so it is split in the same way: it differs in
    one training row, which is not protected, or in one validation row.
    """
    X, y = table.X_train, table.y_train
    for name, labels in (("groups", groups), ("groups_train", groups_train)):
        if labels is not None:
            remedy = (
                "A split by position would separate records of one unit. Split by group, and give"
                " X_val and y_val."
            )
            raise InputError(name, type(labels).__name__, "left out with one table", remedy)
    if test_size is None:
        remedy = (
            "Or give test_size: then one table is split once, and only its validation part is"
            " protected."
        )
        raise InputError("X_val", None, "the validation records, with y_val, or a Curator", remedy)
    if not adjacency.replaces:
        remedy = "The split would show how many rows there are."
        raise InputError("adjacency", adjacency, "REPLACE_ONE to split one table", remedy)
    if y is None:
        raise InputError("y_train", None, "the labels of the table that is split")
    for name, part in (("X_train", X), ("y_train", y)):
        if hasattr(part, "iloc") or getattr(getattr(part, "dtype", None), "kind", "f") == "O":
            remedy = (
                "The dtypes of one table follow from all of its cells, so those of the public "
                "rows would tell of protected ones. Read the two parts apart, and give X_val and "
                "y_val; or convert it, such as by to_numpy(dtype=float)."
            )
            raise InputError(
                name,
                type(part).__name__,
                "an array of numbers or words where one table is split",
                remedy,
            )
    # This loads all of scikit-learn's metrics.
    from sklearn.model_selection import train_test_split

    train, validation, y_train, y_validation = train_test_split(
        X, y, test_size=test_size, random_state=seed
    )
    return Tables(train, y_train, validation, y_validation)


def own_form(part: Any) -> Any:
    """Training rows in the dtypes that their own cells need, because those of the table that they
    were cut from follow from its other rows, too: one missing cell makes a column floats, and one
    long word widens an array.

    Words are as wide as the longest, float64 of whole numbers alone are int64, and columns of
    objects take the type of their cells. The places of a sparse matrix count as they are. A column
    of words stays one, though a single word may have made it one.
    """
    if hasattr(part, "tocsr"):
        rows = part.tocsr()
        return rows.astype(own_form(rows.data).dtype)
    if hasattr(part, "iloc"):
        table = part.infer_objects()
        if table.ndim == 1:
            return table.astype(np.int64) if _is_whole(table) else table
        whole = [_is_whole(table.iloc[:, place]) for place in range(table.shape[1])]
        return table.astype(dict.fromkeys(table.columns[whole], np.int64))
    if not isinstance(part, np.ndarray) or not part.size:
        return part
    if part.dtype.kind in "US":
        return part.astype(f"{part.dtype.kind}{max(np.char.str_len(part).max(), 1)}")
    return part.astype(np.int64) if _is_whole(part) else part


def _is_whole(numbers: Any) -> bool:
    """Whether they are float64, and whole numbers alone: beyond 2^53 not each of these is one."""
    if numbers.dtype != np.float64 or not len(numbers):
        return False
    cells = np.asarray(numbers)
    return bool((np.abs(cells) < 2**53).all() and (cells == np.rint(cells)).all())


def require_labels(name: str, labels: Any, X: Any) -> Any:
    """The different labels. Raises InputError unless there is one label for each row of X."""
    try:
        count = count_records(X)
        found = np.asarray(labels)
        if found.shape == (count,):
            return np.unique(found)
    except Exception as cause:
        raise InputError(
            name, type(labels).__name__, "an array of one label a record of X"
        ) from cause
    raise InputError(name, found.shape, f"one label for each of the {count} records of X")


def public_form(X: Any, y: Any, *, classifier: bool) -> Form:
    """The form to which validation records are cast: that of the training records.

    Labels of a classifier are among the training labels, or the record counts as the worst score;
    other numbers are floats. To refuse a label, such as NaN, would tell of that record.
    """
    table = X if hasattr(X, "shape") or _are_texts(X) else np.asarray(X)
    names: dict[Any, str] = {(0,): "X_val", (1,): "y_val"}
    if hasattr(y, "columns"):
        return Form({(0,): Leaf.of(table, "X_train"), (1,): Leaf.of(y, "y_train")}, names)
    labels: Any = y
    if y is None:
        labels = np.zeros(0)
    elif not hasattr(y, "iloc"):
        labels = np.asarray(y)
    container = "series" if hasattr(labels, "iloc") else "array"
    if classifier and y is not None:
        # Else measured numbers would be told as labels that the tables do not share.
        check_classification_targets(labels)
        column = Column.of_classes(labels)
    elif getattr(labels.dtype, "kind", "") in "biuf" and isinstance(labels.dtype, np.dtype):
        # An error is measured on a line.
        column = Column(float, np.dtype(np.float64))
    else:
        column = Column.of(labels, "y_train")
    form = Leaf(container, (column,), getattr(labels, "name", None))
    leaves: dict[Any, Leaf] = {(0,): Leaf.of(table, "X_train"), (1,): form}
    return Form(leaves, names)


def _are_texts(X: Any) -> bool:
    return isinstance(X, (list, tuple)) and all(isinstance(sample, str) for sample in X)


def sliced(table: Any) -> Any:
    """The table in a form whose rows can be taken: sparse matrices become CSR."""
    if hasattr(table, "tocsr"):
        return table.tocsr()
    return table


def rows_at(table: Any, places: Any) -> Any:
    """The rows of a table at these places."""
    if hasattr(table, "iloc"):
        return table.iloc[places]
    if hasattr(table, "shape"):
        return table[places]
    return [table[place] for place in places]


def in_parallel(
    n_jobs: int | None, work: Callable[..., T], tasks: Iterable[tuple[Any, ...]]
) -> list[T]:
    """`work(*task)` for each task, in their order, whatever the number of joblib's workers. Tasks
    hold public things only.

    What a worker warns of is warned of here, once its results are in: its own standard error may be
    shown nowhere.
    """
    if joblib.effective_n_jobs(n_jobs) == 1:
        return [work(*task) for task in tasks]
    results = []
    for result, caught in Parallel(n_jobs=n_jobs)(
        delayed(_with_warnings)(work, task) for task in tasks
    ):
        for message, category in caught:
            warnings.warn(message, category, stacklevel=2)
        results.append(result)
    return results


def _with_warnings(
    work: Callable[..., T], task: tuple[Any, ...]
) -> tuple[T, list[tuple[str, type[Warning]]]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(*task)
    return result, [(str(one.message), one.category) for one in caught]


class Trainer:
    """Fits the estimator to the training records.

    `trainer(x)` is a copy of the model of configuration x, to score private records with. It is
    None if the fit failed and `error_score` is "worst".
    """

    def __init__(self, estimator: Any, space: Space, X: Any, y: Any, error_score: str) -> None:
        self.estimator = estimator
        self.space = space
        self._X = X
        self._y = y
        self._error_score = error_score
        # The newest model, and those that were fitted ahead, each until it is asked for.
        self._newest: dict[Any, Any] = {}
        self._ahead: dict[Any, Any] = {}

    @classmethod
    def of(cls, search: "DPSearch", X: Any, y: Any) -> Self:
        """The trainer of a search's estimator and parameters, tried with one configuration.

        Raises:
            InputError: no estimator, or parameters of one value each.
        """
        estimator = search.estimator
        if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
            raise InputError("estimator", type(estimator).__name__, "a scikit-learn estimator")
        given = search.param_distributions
        space = space_of(given, int(search.n_iter), int(search.random_state))
        if bool((space.bounds[0] == space.bounds[1]).all()):
            allowed = "of two values or more, in one parameter at least"
            raise InputError("param_distributions", given, allowed)
        trainer = cls(estimator, space, X, y, search.error_score)
        # A parameter that the estimator lacks is found before anything is reserved.
        trainer.configured(space.sample(1, seed=0)[0])
        return trainer

    def __call__(self, x: Configuration) -> Any:
        model = self.public_model(x)
        try:
            twin = copy.deepcopy(model)
        except Exception:
            # One that holds a lock or a library's handle cannot be copied.
            twin = model
        if twin is model:
            # Private records are scored with the only copy: fit again for the next use.
            self._newest = {}
        return twin

    def public_model(self, x: Configuration) -> Any:
        """A model of x that has seen the training records only. The newest one is kept."""
        key = point_of(x)
        if key not in self._newest:
            model = self._ahead.pop(key) if key in self._ahead else self._fit(self.configured(x))
            self._newest = {key: model}
        return self._newest[key]

    def fit_ahead(self, configurations: Iterable[Configuration], n_jobs: int | None) -> None:
        """Fit several at once, where there are several workers; `trainer(x)` then takes the model
        of x."""
        self._ahead.clear()
        if joblib.effective_n_jobs(n_jobs) > 1:
            given = list(configurations)
            fit = self.on(self._X, self._y).public_model
            models = in_parallel(n_jobs, fit, [(x,) for x in given])
            self._ahead.update(zip(map(point_of, given), models, strict=True))

    def on(self, X: Any, y: Any) -> "Trainer":
        """The same for other training records."""
        return Trainer(self.estimator, self.space, X, y, self._error_score)

    def form(self) -> Form:
        """The form that protected records are cast to."""
        return public_form(self._X, self._y, classifier=self.classifies)

    @property
    def classifies(self) -> bool:
        """Whether labels are classes; those of several columns are numbers."""
        return is_classifier(self.estimator) and np.ndim(self._y) == 1

    def example(self) -> tuple[Any, Any] | None:
        """A few training records, in the form of protected ones; None without labels."""
        if self._y is None:
            return None
        X = self._X if hasattr(self._X, "shape") else list(self._X)
        places = np.arange(min(_EXAMPLES, count_records(X)))
        records: tuple[Any, Any] = self.form().cast((rows_at(X, places), rows_at(self._y, places)))[
            0
        ]
        return records

    def table(self) -> Any:
        """All training records."""
        if self._y is None:
            return self._X
        return (self._X, self._y)

    def labels(self) -> Any:
        """The labels of all training records."""
        return self._y

    def parameters(self, x: Configuration) -> dict[str, Any]:
        """The parameters of x, by name."""
        if x is not None:
            return self.space.decode(x)
        given = self.estimator.get_params()
        # In a list of dicts one may set what only the model of another one has.
        return {name: given[name] for name in self.space.parameters if name in given}

    def configured(self, x: Configuration) -> Any:
        """The estimator with the parameters of x, not fitted."""
        parameters = {name: clone(value, safe=False) for name, value in self.parameters(x).items()}
        return clone(self.estimator).set_params(**parameters)

    def _fit(self, estimator: Any) -> Any:
        try:
            if self._y is None:
                return estimator.fit(self._X)
            return estimator.fit(self._X, self._y)
        except Exception as error:
            if isinstance(error, INTERRUPTS):
                raise
            if self._error_score == "raise":
                error.add_note(_OF_FIT)
                raise
            told = f"a configuration could not be fitted and counts as worst: {error!r}"
            warnings.warn(told, FitFailedWarning, stacklevel=2)
            return None


_OF_FIT = (
    "Raised by a fit to the training records, before anything was charged for it. Leave such"
    " parameters out, or let DPSearch(error_score='worst') count the configuration as the worst."
)


def place_of(x: Configuration, configurations: Iterable[Configuration]) -> int | None:
    """The first place of x among these configurations; None if it is none of them."""
    points = list(map(point_of, configurations))
    if point_of(x) in points:
        return points.index(point_of(x))
    return None


def point_of(x: Configuration) -> tuple[float, ...] | None:
    """Its coordinates; None for the default configuration."""
    if x is None:
        return None
    return tuple(x.tolist())
