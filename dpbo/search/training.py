"""The public side of a scikit-learn search: which records train, and the models that are fitted to them.

Training and validation records come as two tables, or as one table that is split once by position. Configurations are fitted to the
training records only, so an exception from a fit is public: it is raised, or the configuration counts as worst on every record.
A model may keep what it predicted on, so private records are scored with a copy that is never handed out.
"""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import joblib
import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.utils.parallel import Parallel, delayed

from dpbo.curator.curator import Curator
from dpbo.curator.public_form import ArrayForm, ClassForm, Form, Leaf, NumberForm, SeriesForm, leaf_form
from dpbo.curator.records import count_records, require_disjoint
from dpbo.errors import InputError
from dpbo.privacy import Adjacency
from dpbo.space import Space

T = TypeVar("T")
_DEFAULT = -1.0  # no coordinate of a space is negative


def split_once(X: Any, y: Any, test_size: Any, seed: int, adjacency: Adjacency) -> tuple[Any, Any, Any, Any]:
    """(X_train, y_train, X_val, y_val) of one table, by each row's position, the number of rows and the seed.

    A neighbour under REPLACE_ONE has as many rows, so it is split in the same way: it differs in one training row, which is not protected,
    or in one validation row.
    """
    if test_size is None:
        remedy = "Or give test_size: then one table is split once, and only its validation part is protected."
        raise InputError("X_val", None, "the validation records, with y_val, or a Curator", remedy)
    if not adjacency.replaces:
        raise InputError("adjacency", adjacency, "REPLACE_ONE to split one table", "The split would show how many rows there are.")
    if y is None:
        raise InputError("y_train", None, "the labels of the table that is split")
    for name, table in (("X_train", X), ("y_train", y)):
        if hasattr(table, "iloc") or getattr(getattr(table, "dtype", None), "kind", "f") == "O":
            remedy = (
                "The dtypes of one table follow from all of its cells, so those of the public rows would tell of protected ones. Read the "
                "two parts apart, and give X_val and y_val; or convert it, such as by to_numpy(dtype=float)."
            )
            raise InputError(name, type(table).__name__, "an array of numbers or words where one table is split", remedy)
    from sklearn.model_selection import train_test_split  # with all of scikit-learn's metrics

    train, validation, y_train, y_validation = train_test_split(X, y, test_size=test_size, random_state=seed)
    return train, y_train, validation, y_validation


def require_disjoint_tables(X: Any, X_val: Any, groups: Any, groups_train: Any) -> None:
    """Raises InputError if training and validation are one table, or share a unit whose labels are known on both sides."""
    if X is X_val:
        raise InputError("X_val", type(X_val).__name__, "other records than X_train", "Give one table and test_size, or two tables.")
    if groups_train is None:
        return
    if groups is None:
        remedy = "With a Curator or one table, labels cannot be compared here: compare them where both are known."
        raise InputError("groups_train", type(groups_train).__name__, "left out without `groups`", remedy)
    require_disjoint(groups, groups_train, count_records(X))


def require_labels(name: str, labels: Any, X: Any) -> Any:
    """The different labels. Raises InputError unless there is one label for each row of X."""
    try:
        count, found = count_records(X), np.asarray(labels)
        if found.shape == (count,):
            return np.unique(found)
    except Exception as cause:
        raise InputError(name, type(labels).__name__, "an array of one label a record of X") from cause
    raise InputError(name, found.shape, f"one label for each of the {count} records of X")


def public_form(X: Any, y: Any, *, classifier: bool) -> Form:
    """The form to which validation records are cast: that of the training records.

    Labels of a classifier are among the training labels, or the record counts as the worst score;
    other numbers are floats. To refuse a label, such as NaN, would tell of that record.
    """
    table = X if hasattr(X, "shape") or _are_texts(X) else np.asarray(X)
    leaves: dict[Any, Leaf] = {(0,): leaf_form(table, "X_train")}
    labels: Any = y
    if y is None:
        labels = np.zeros(0)
    elif not hasattr(y, "iloc"):
        labels = np.asarray(y)
    if classifier and y is not None and labels.ndim == 1:
        series = (labels.name,) if hasattr(labels, "iloc") else None
        leaves[1,] = ClassForm(np.unique(np.asarray(labels)), series)
    else:
        leaves[1,] = _with_floats(leaf_form(labels, "y_train"))
    return Form(leaves, {(0,): "X_val", (1,): "y_val"})


def _with_floats(form: Leaf) -> Leaf:
    """The form of labels with float64 in place of whole numbers, because an error is measured on a
    line."""
    floats = NumberForm(np.dtype(np.float64), 0.0)
    if isinstance(form, ArrayForm) and isinstance(form.column, NumberForm):
        return ArrayForm(floats)
    return SeriesForm(form.label, floats) if isinstance(form, SeriesForm) and isinstance(form.column, NumberForm) else form


def _are_texts(X: Any) -> bool:
    return isinstance(X, (list, tuple)) and all(isinstance(sample, str) for sample in X)


def require_same_form(X: Any, y: Any, X_val: Any, y_val: Any) -> None:
    """Raises InputError if the validation table is another kind of table than the training table,
    or has rows of another shape.

    Its dtypes do not matter: they follow from all of its cells, so a refusal would tell of one.
    """
    if isinstance(X_val, Curator):
        if y_val is not None:
            raise InputError("y_val", type(y_val).__name__, "left out with a Curator", "It holds the labels already.")
        return
    if isinstance(X_val, (list, tuple)) and not _are_texts(X):
        remedy = "In an array made from a list, one record's odd value changes the type, and so the score, of all others."
        raise InputError("X_val", type(X_val).__name__, "an array or a DataFrame, or a list where training records are texts", remedy)
    for name, validation, train in (("X_val", X_val, X), ("y_val", y_val, y)):
        if validation is not None and train is not None and not (hasattr(train, "columns") and hasattr(validation, "columns")):
            shape, expected = (tuple(getattr(table, "shape", (0,)))[1:] for table in (validation, train))
            if shape != expected:
                raise InputError(name, shape, f"rows of the training records' shape, {expected}")


def sliced(table: Any) -> Any:
    """The table in a form whose rows can be taken: sparse matrices become CSR."""
    return table.tocsr() if hasattr(table, "tocsr") else table


def first_rows(X: Any, y: Any, most: int = 5) -> tuple[Any, Any]:
    """A few training records, on which a score is tried first."""
    count = min(most, count_records(X if hasattr(X, "shape") else list(X)))
    return (X.iloc[:count] if hasattr(X, "iloc") else X[:count]), (y.iloc[:count] if hasattr(y, "iloc") else y[:count])


def in_parallel(n_jobs: int | None, work: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> list[T]:
    """`work(*task)` for each task, in their order, whatever the number of joblib's workers. Tasks hold public things only.

    What a worker warns of is warned of here, once its results are in: its own standard error may be shown nowhere.
    """
    if joblib.effective_n_jobs(n_jobs) == 1:
        return [work(*task) for task in tasks]
    results = []
    for result, caught in Parallel(n_jobs=n_jobs)(delayed(_with_warnings)(work, task) for task in tasks):
        for message, category in caught:
            warnings.warn(message, category, stacklevel=2)
        results.append(result)
    return results


def _with_warnings(work: Callable[..., T], task: tuple[Any, ...]) -> tuple[T, list[tuple[str, type[Warning]]]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(*task)
    return result, [(str(one.message), one.category) for one in caught]


class Trainer:
    """Fits the estimator to the training records. `trainer(x)` is a copy of the model at point x, to score private records with; None if
    the fit failed and `error_score` is "worst"."""

    def __init__(self, estimator: Any, space: Space, X: Any, y: Any, error_score: str) -> None:
        if error_score not in ("raise", "worst"):
            raise InputError("error_score", error_score, "'raise' or 'worst'")
        self.estimator, self._space, self._X, self._y = estimator, space, X, y
        self._error_score = error_score
        self._tolerant = error_score == "worst"
        self._newest: tuple[list[float], Any] = ([], None)
        self._ahead: dict[tuple[float, ...], Any] = {}  # models by point, each until it is asked for

    def __call__(self, x: torch.Tensor) -> Any:
        model = twin = self.unscored(x)
        with contextlib.suppress(Exception):  # it holds a lock or a library's handle
            twin = copy.deepcopy(model)
        if twin is model:
            self._newest = ([], None)  # private records are scored with the only copy: fit again for the next use
        return twin

    def unscored(self, x: torch.Tensor) -> Any:
        """A model at x that has seen the training records only. The newest one is kept."""
        key = x.tolist()
        if self._newest[0] != key:
            ahead = tuple(key) in self._ahead
            self._newest = (key, self._ahead.pop(tuple(key)) if ahead else self._fit(self.configured(x)))
        return self._newest[1]

    def fit_ahead(self, points: Iterable[torch.Tensor], n_jobs: int | None) -> None:
        """Fit at several points at once, where there are several workers; `trainer(x)` at each of them then takes the model."""
        self._ahead.clear()
        if joblib.effective_n_jobs(n_jobs) > 1:
            tasks = [(x,) for x in points]
            models = in_parallel(n_jobs, self.on(self._X, self._y).unscored, tasks)
            self._ahead.update((tuple(x.tolist()), model) for (x,), model in zip(tasks, models, strict=True))

    def on(self, X: Any, y: Any) -> "Trainer":
        """The same for other training records."""
        return Trainer(self.estimator, self._space, X, y, self._error_score)

    def example(self) -> tuple[Any, Any] | None:
        """A few training records, in the form of protected ones; None without labels."""
        if self._y is None:
            return None
        form = public_form(self._X, self._y, classifier=is_classifier(self.estimator))
        records: tuple[Any, Any] = form.cast(first_rows(self._X, self._y))[0]
        return records

    def table(self) -> Any:
        """All training records."""
        return self._X if self._y is None else (self._X, self._y)

    def default(self) -> torch.Tensor:
        """The point, outside the space, that stands for the estimator as it was given."""
        return torch.full((len(self._space.names),), _DEFAULT, dtype=torch.float64)

    def parameters(self, x: torch.Tensor) -> dict[str, Any]:
        """The parameters of x, by name; at `default()` those that the estimator was given with."""
        if bool((x == _DEFAULT).all()):
            given = self.estimator.get_params()
            return {name: given[name] for name in self._space.names}
        return self._space.decode(x)

    def configured(self, x: torch.Tensor) -> Any:
        """The estimator with the parameters of x, not fitted."""
        return clone(self.estimator).set_params(**{name: clone(value, safe=False) for name, value in self.parameters(x).items()})

    def _fit(self, estimator: Any) -> Any:
        try:
            return estimator.fit(self._X) if self._y is None else estimator.fit(self._X, self._y)
        except Exception as error:
            if not self._tolerant:
                raise
            warnings.warn(f"a configuration could not be fitted and counts as worst: {error!r}", FitFailedWarning, stacklevel=2)
            return None
