"""The values of a search, wherever they are kept: what pictures and reports read. They were
released, or are cross-validated scores of public records. Nothing here sees a record.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import scipy.stats
import torch
from botorch.models import SingleTaskGP

from dpbo.errors import InputError, UsageError
from dpbo.integrations.recommendation import highest
from dpbo.isolation import seed_torch
from dpbo.models.builders import (
    ModelBuilder,
    default_gp,
    gp_of_unknown_noise,
    mute_optimizer_warnings,
)
from dpbo.objective import PrivateObjective
from dpbo.search import DPSearch
from dpbo.space import Space

PUBLIC_SCORES = {
    "weighted_cv_score": "weighted cross-validated score",
    "cv_score": "cross-validated score on public records",
}
"""Columns of `DPSearch.results_` that rank configurations where no score was released, and what
they are.
"""
_KEPT = "highest; the default is recommended"
# values that a model sees
_MOST_FITTED = 500
# points whose covariance with others is in memory at once
_BLOCK = 256
_ALLOWED = (
    "a PrivateObjective, a search that has one, a fitted DPSearch, or an Optuna study of a"
    " TrialObjective"
)


@dataclass(frozen=True, eq=False)
class ReleasedValues:
    """Values in the order of release, with the variance of their noise, and the model of them.

    Attributes:
        name: of the search.
        what: what the values are.
        space: of the points. Where none is known, its parameters are x0, x1, ... over the unit
            cube, or over the range of the points.
        X: points, `t x d`.
        Y: values, `t x 1`, larger is better.
        Yvar: variance of their noise, `t x 1`.
        builder: makes the model.
        feasible: which points may be recommended, `t` bools; None: all.
        released: whether they were released; else their noise is not known, and the search may
            recommend another point than the highest.
        best_is: what the point at row `best` is.
    """

    name: str
    space: Space
    X: torch.Tensor
    Y: torch.Tensor
    Yvar: torch.Tensor
    builder: ModelBuilder = default_gp
    feasible: torch.Tensor | None = None
    what: str = "released value"
    released: bool = True
    best_is: str = "recommended"

    @classmethod
    def of(cls, source: Any, space: Space | None = None, metric: int = 0) -> Self:
        """The values of an objective, a search or an Optuna study. Raises InputError where there
        are none.
        """
        if isinstance(source, DPSearch):
            return cls._of_search(source)
        if hasattr(source, "get_trials"):
            return cls._of_study(source, space)
        objective = getattr(source, "objective", source)
        if not isinstance(objective, PrivateObjective):
            raise InputError("source", type(source).__name__, _ALLOWED)
        if metric >= objective.metrics:
            raise InputError("metric", metric, f"below the number of metrics, {objective.metrics}")
        X, Y, Yvar = objective.history()
        return cls.at(
            X,
            Y[:, [metric]],
            Yvar[:, [metric]],
            objective.name,
            getattr(source, "space", None) if space is None else space,
        )

    @classmethod
    def at(
        cls, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, name: str, space: Space | None
    ) -> Self:
        """Values at points (`t x d`) of a space, or of none that is known."""
        if not len(X):
            raise UsageError(f"{name!r} has released no value yet: evaluate some points first.")
        if space is not None:
            if X.shape[1] != len(space.names):
                raise InputError(
                    "space", space.names, f"of {X.shape[1]} parameters, as the points of {name!r}"
                )
            return cls(name, space, X, Y, Yvar)
        low = X.min(0).values
        high = X.max(0).values
        if bool((low >= 0).all() and (high <= 1).all()):
            low = torch.zeros_like(low)
            high = torch.ones_like(high)
        width = torch.where(high > low, high - low, 1.0)
        numbers = {
            f"x{i}": scipy.stats.uniform(float(low[i]), float(width[i])) for i in range(X.shape[1])
        }
        return cls(name, Space(**numbers), (X - low) / width, Y, Yvar)

    @classmethod
    def _of_search(cls, search: DPSearch) -> Self:
        columns = getattr(search, "results_", {})
        space = Space(**search.param_distributions)
        if "posterior_mean" in columns:
            X = torch.stack([space.encode(parameters) for parameters in columns["params"]])
            Y = torch.from_numpy(columns["mean_test_score"])
            std = torch.from_numpy(columns["std_test_score"])
            best_is = _KEPT if search.recommendation_.kept else "recommended"
            Yvar = std.unsqueeze(1) ** 2
            return cls(search.name, space, X, Y.unsqueeze(1), Yvar, best_is=best_is)
        column = public_column(columns)
        if column is None:
            raise UsageError(
                f"the DPSearch of strategy {search.strategy!r} is not fitted, or knows no score of"
                " its configurations: it neither released nor cross-validated any."
            )
        points = []
        scores = []
        recommended = []
        for parameters, score in zip(columns["params"], columns[column], strict=True):
            # The estimator's own parameters are a configuration, too, and may lie outside.
            with contextlib.suppress(InputError):
                points.append(space.encode(parameters))
                scores.append([score])
                recommended.append(repr(parameters) == repr(search.best_params_))
        Y = torch.tensor(scores, dtype=torch.float64, device="cpu")
        return cls(
            search.name,
            space,
            torch.stack(points),
            Y,
            torch.zeros_like(Y),
            builder=gp_of_unknown_noise,
            feasible=torch.tensor(recommended, device="cpu") if any(recommended) else None,
            best_is="recommended" if any(recommended) else _KEPT,
            what=PUBLIC_SCORES[column],
            released=False,
        )

    @classmethod
    def _of_study(cls, study: Any, space: Space | None) -> Self:
        from dpbo.integrations.optuna.sampling import columns_of, feasible_trials, released_trials
        from dpbo.integrations.optuna.trials import Suggestions

        trials = released_trials(study)
        if not trials:
            raise UsageError(
                "the study has no released value: give one whose TrialObjective has released a"
                " value."
            )
        if space is None:
            space = Space(**{name: _spec(one) for name, one in trials[0].distributions.items()})
        X, Y, Yvar = columns_of(trials, Suggestions(space))
        feasible = feasible_trials(study, trials)
        return cls(study.study_name, space, X, Y, Yvar, feasible=feasible)

    @cached_property
    def model(self) -> SingleTaskGP:
        """The Gaussian process of all values, or of 500 drawn from more. Raises UsageError where
        they are values of a single point.
        """
        if bool((self.X == self.X[0]).all()):
            raise UsageError(
                f"{self.name!r} has values at one point only, and a model needs two or more."
            )
        with mute_optimizer_warnings(), seed_torch(0):
            drawn = torch.randperm(len(self.X), device="cpu")[:_MOST_FITTED].sort().values
            return self.builder(self.space, self.X[drawn], self.Y[drawn], self.Yvar[drawn])

    def posterior(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the score at points (`n x d`), `n` each; the noise of a
        release is not in it.
        """
        means = []
        variances = []
        with torch.no_grad():
            for block in torch.split(X, _BLOCK):
                found = self.model.posterior(block)
                means.append(found.mean[:, 0])
                variances.append(found.variance[:, 0])
        return torch.cat(means), torch.cat(variances).sqrt()

    @cached_property
    def mean(self) -> torch.Tensor:
        """Posterior mean at the points, `t`; at a single point, that of its values, and of what was
        not released, the values.
        """
        if not self.released:
            return self.Y[:, 0]
        if bool((self.X == self.X[0]).all()):
            weights = self.Yvar.clamp_min(torch.finfo(self.Yvar.dtype).tiny).reciprocal()
            return (weights * self.Y).sum().div(weights.sum()).expand(len(self.X))
        return self.posterior(self.X)[0]

    @property
    def best(self) -> int:
        """Row of the point to recommend: that of the highest posterior mean, of those that meet a
        study's constraints. Raises UsageError where none does. Of values that were not released,
        that of the search's own recommendation; of the highest, where that lies outside the space.
        """
        return highest(self.mean, self.feasible)

    def parameters(self, row: int) -> Mapping[str, Any]:
        """The parameters of a point, by name."""
        return self.space.decode(self.X[row])


def public_column(results: Mapping[str, Any]) -> str | None:
    """The column of `PUBLIC_SCORES` that results of a `DPSearch` have, if any."""
    for column in PUBLIC_SCORES:
        if column in results:
            return column
    return None


def _spec(distribution: Any) -> Any:
    """An Optuna distribution as a Space takes it."""
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    low = distribution.low
    high = distribution.high
    if isinstance(low, int):
        return list(range(low, high + 1, distribution.step))
    if distribution.log:
        return scipy.stats.loguniform(low, high)
    return scipy.stats.uniform(low, high - low)
