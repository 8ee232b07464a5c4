"""The public side of the search: configurations are fitted to the training records alone.

A fit that fails is public, too: nothing private was near it. It is raised, or the configuration counts as worst on every record.
A model that has predicted may remember for what, so what scores private records is a copy, and is never handed on.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning

from dpbo.errors import InputError
from dpbo.integrations.tuning.tables import first_rows
from dpbo.space import Space


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
