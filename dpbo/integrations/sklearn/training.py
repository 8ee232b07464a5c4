"""The public side of the search: configurations are fitted to the training records alone.

A fit that fails is public, too: nothing private was near it. It is raised, or the configuration counts as worst on every record.
A model that has predicted may remember for what, so what scores private records is a copy, and is never handed on.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import train_test_split

from dpbo.curator.curator import Curator
from dpbo.curator.records import count_records, require_disjoint
from dpbo.errors import InputError
from dpbo.privacy import Adjacency
from dpbo.space import Space

# ========== MERGED Which records train and which are protected: two tables, or one that is split once, by position.


def split_once(X: Any, y: Any, test_size: Any, seed: int, adjacency: Adjacency) -> tuple[Any, Any, Any, Any]:
    """(X_train, y_train, X_val, y_val) of one table. Which row goes where follows from its position, the number of rows and the seed.

    So a neighbour under REPLACE_ONE, whose rows are as many, is split alike: it differs in one training row, which is not protected, or in
    one validation row.
    """
    if test_size is None:
        remedy = "Or give test_size: then one table is split once, and only its validation part is protected."
        raise InputError("X_val", None, "the validation records, with y_val, or a Curator", remedy)
    if not adjacency.replaces:
        raise InputError("adjacency", adjacency, "REPLACE_ONE to split one table", "The split would show how many rows there are.")
    if y is None:
        raise InputError("y_train", None, "the labels of the table that is split")
    trained, held, trained_y, held_y = train_test_split(X, y, test_size=test_size, random_state=seed)
    return trained, trained_y, held, held_y


def require_apart(X: Any, X_val: Any, groups: Any, groups_train: Any) -> None:
    """Raises InputError where training and validation are one table, or share a unit whose labels are known on both sides."""
    if X is X_val:
        remedy = "Give one table and test_size, or two tables."
        raise InputError("X_val", type(X_val).__name__, "other records than X_train", remedy)
    if groups_train is None:
        return
    if groups is None:
        remedy = "Those of a Curator or of one table are not looked at here: compare them where both are known."
        raise InputError("groups_train", type(groups_train).__name__, "left out without `groups`", remedy)
    require_disjoint(groups, groups_train, count_records(X))


def require_alike(X: Any, y: Any, X_val: Any, y_val: Any) -> None:
    """Raises InputError where the validation table's form, which is public, is not that of the training table: no score could work."""
    if isinstance(X_val, Curator):
        if y_val is not None:
            raise InputError("y_val", type(y_val).__name__, "left out with a Curator", "It holds the labels already.")
        return
    if isinstance(X_val, (list, tuple)) and not (isinstance(X, (list, tuple)) and all(isinstance(sample, str) for sample in X)):
        remedy = "Made an array as a whole, one record's odd value would change the type, and so the score, of all others."
        raise InputError("X_val", type(X_val).__name__, "an array or a DataFrame, or a list where training records are texts", remedy)
    if hasattr(X, "columns") and hasattr(X_val, "columns") and [*X.columns] != [*X_val.columns]:
        raise InputError("X_val", "with other columns", "of the training table's columns, in their order")
    for name, own, other in (("X_val", X_val, X), ("y_val", y_val, y)):
        if own is not None and other is not None and (shape := _of_a_row(own)) != (expected := _of_a_row(other)):
            raise InputError(name, f"rows of shape {shape}", f"rows of the training records' shape, {expected}")

    if {_kind(y), _kind(y_val)} == {"words", "numbers"}:
        raise InputError("y_val", _kind(y_val), f"{_kind(y)}, as the training labels are", "No prediction would ever be right.")


def _kind(labels: Any) -> str | None:
    """Of an array's type, which is public; None for lists and arrays of anything."""
    letter = getattr(getattr(labels, "dtype", None), "kind", "O")
    return "numbers" if letter in "biuf" else "words" if letter in "US" else None


def _of_a_row(table: Any) -> tuple[int, ...]:
    return tuple(getattr(table, "shape", (0,)))[1:]


def sliced(table: Any) -> Any:
    """The table in a form that rows can be taken from: sparse ones compressed by rows."""
    return table.tocsr() if hasattr(table, "tocsr") else table


def readable(table: Any) -> Any:
    """The caller's own table in a form whose rows can be compared with others'."""
    return np.asarray(table) if isinstance(table, (list, tuple)) and not isinstance(table[0] if table else "", str) else sliced(table)


def first_rows(X: Any, y: Any, most: int = 5) -> tuple[Any, Any]:
    """A few training records, on which a score is tried first."""
    count = min(most, count_records(X if hasattr(X, "shape") else list(X)))
    return (X.iloc[:count] if hasattr(X, "iloc") else X[:count]), (y.iloc[:count] if hasattr(y, "iloc") else y[:count])


class Trainer:
    """`trainer(x)` is the estimator at point x, fitted, to score with; None where that failed and `error_score` is "worst"."""

    def __init__(self, estimator: Any, space: Space, X: Any, y: Any, error_score: str) -> None:
        if error_score not in ("raise", "worst"):
            raise InputError("error_score", error_score, "'raise' or 'worst'")
        self._estimator, self._space, self._X, self._y = estimator, space, X, y
        self._tolerant = error_score == "worst"
        self._newest: tuple[list[float], Any] = ([], None)

    def __call__(self, x: torch.Tensor) -> Any:
        model = self.untouched(x)
        twin = _twin(model)
        if twin is model:
            self._newest = ([], None)  # there is but one, so the next is fitted anew
        return twin

    def untouched(self, x: torch.Tensor) -> Any:
        """A model that no record but the training ones was shown to. The newest is kept."""
        key = x.tolist()
        if self._newest[0] != key:
            self._newest = (key, self._fitted(self.configured(x)))
        return self._newest[1]

    def example(self) -> tuple[Any, Any] | None:
        """A few training records; None without labels."""
        return None if self._y is None else first_rows(self._X, self._y)

    def table(self) -> Any:
        """All training records."""
        return self._X if self._y is None else (self._X, self._y)

    def configured(self, x: torch.Tensor) -> Any:
        """The estimator at x, unfitted."""
        parameters = {name: clone(value, safe=False) for name, value in self._space.decode(x).items()}
        return clone(self._estimator).set_params(**parameters)

    def _fitted(self, estimator: Any) -> Any:
        try:
            return estimator.fit(self._X) if self._y is None else estimator.fit(self._X, self._y)
        except Exception as error:
            if not self._tolerant:
                raise
            warnings.warn(f"a configuration could not be fitted and counts as worst: {error!r}", FitFailedWarning, stacklevel=2)
            return None


def _twin(model: Any) -> Any:
    """A copy; the model itself where it cannot be copied."""
    try:
        return copy.deepcopy(model)
    except Exception:  # a lock, a handle of a library
        return model
