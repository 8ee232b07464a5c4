"""The public side of the search: configurations are fitted to the training records alone.

A fit that fails is public, too: nothing private was near it. It is raised, or the configuration counts as worst on every record.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning

from dpbo.errors import InputError
from dpbo.space import Space


class Trainer:
    """`trainer(x)` is the estimator at point x, fitted; None where that failed and `error_score` is "worst". Keeps the newest."""

    def __init__(self, estimator: Any, space: Space, X: Any, y: Any, error_score: str) -> None:
        if error_score not in ("raise", "worst"):
            raise InputError("error_score", error_score, "'raise' or 'worst'")
        self._estimator, self._space, self._X, self._y = estimator, space, X, y
        self._tolerant = error_score == "worst"
        self._newest: tuple[list[float], Any] = ([], None)

    def __call__(self, x: torch.Tensor) -> Any:
        key = x.tolist()
        if self._newest[0] != key:
            self._newest = (key, self._fitted(self.configured(x)))
        return self._newest[1]

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
