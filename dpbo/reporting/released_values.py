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
from dpbo.extras import needs
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
# Points that a model is fitted to, and whose values then stand for those of all points.
_MOST_FITTED = 500
# As a share of the values' variance.
_LEAST_NOISE = 1e-6
# Added to a prior's variances, as a share of these, so that its factor can be computed.
_JITTER = 1e-6
# Points whose covariance with others is in memory at once.
_BLOCK = 1024
_ALLOWED = (
    "a PrivateObjective, a search that has one, a fitted DPSearch, or an Optuna study of a"
    " TrialObjective"
)


# values, for importances
_FEWEST = 4


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
            return cls(search.name, space, X, Y.unsqueeze(1), std.unsqueeze(1) ** 2)
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
            best_is="recommended" if any(recommended) else "highest; the default is recommended",
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
    def _merged(self) -> tuple[torch.Tensor, ...]:
        """X, Y and Yvar with equal points as one, and the row in these of each point.

        The mean of a point's values, weighted by their precisions, tells a model of known noise as
        much as the values themselves.
        """
        X, rows = torch.unique(self.X, dim=0, return_inverse=True)
        # A model without noise could not be computed with.
        least = _LEAST_NOISE * float(self.Y.var(correction=0)) + 1e-18
        precision = self.Yvar.clamp_min(least).reciprocal()
        total = X.new_zeros(len(X), 1).index_add_(0, rows, precision)
        weighted = torch.zeros_like(total).index_add_(0, rows, precision * self.Y)
        return X, weighted / total, total.reciprocal(), rows

    @cached_property
    def model(self) -> SingleTaskGP:
        """The Gaussian process fitted to all values, or to `_MOST_FITTED` points drawn from more.
        Raises UsageError where there is a single point.
        """
        X, Y, Yvar, _ = self._merged
        if len(X) < 2:
            raise UsageError(
                f"{self.name!r} has values at one point only, and a model needs two or more."
            )
        with mute_optimizer_warnings(), seed_torch(0):
            drawn = torch.randperm(len(X), device="cpu")[:_MOST_FITTED].sort().values
            return self.builder(self.space, X[drawn], Y[drawn], Yvar[drawn])

    @cached_property
    def _conditioned(self) -> tuple[torch.Tensor, ...]:
        """What all values tell of those at the fitted points z, where there are more points, by
        Titsias 2009.

        With L the factor of the prior covariance at z and A the sum of a a' / variance over all x,
        a = L^-1 k(z, x), the values at z have posterior covariance L (I + A)^-1 L'; returned are L,
        the factor of I + A, and (I + A)^-1 applied to the sum of a (y - mean) / variance. No
        eigenvalue of I + A is below 1, however small the noise is. The sums need one block of
        points at once.
        """
        X, Y, Yvar, _ = self._merged
        gp = self.model
        (z,) = gp.train_inputs
        y, noise = gp.outcome_transform(Y, Yvar)
        if not self.released:
            # Its noise was fitted.
            noise = gp.likelihood.noise.expand_as(noise)
        prior = gp.covar_module(z).to_dense()
        prior.diagonal().add_(_JITTER * float(prior.diagonal().mean()))
        prior = torch.linalg.cholesky(prior)
        both = torch.eye(len(z), dtype=X.dtype, device=X.device)
        weighted = X.new_zeros(len(z), 1)
        for rows in torch.split(torch.arange(len(X), device="cpu"), _BLOCK):
            x = X[rows]
            std = noise[rows].sqrt()
            covariance = gp.covar_module(z, x).to_dense() / std.T
            scaled = torch.linalg.solve_triangular(prior, covariance, upper=False)
            both.addmm_(scaled, scaled.T)
            weighted.addmm_(scaled, (y[rows] - gp.mean_module(x).unsqueeze(1)) / std)
        both = torch.linalg.cholesky(both)
        return prior, both, torch.cholesky_solve(weighted, both)

    def posterior(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the score at points (`n x d`), `n` each; the noise of a
        release is not in it.
        """
        with torch.no_grad():
            blocks = [self._posterior(block) for block in torch.split(X, _BLOCK)]
        mean, variance = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return mean, variance.sqrt()

    def _posterior(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance at a block of points."""
        gp = self.model
        if len(self._merged[0]) <= _MOST_FITTED:
            found = gp.posterior(X)
            return found.mean[:, 0], found.variance[:, 0]
        prior, both, weights = self._conditioned
        covariance = gp.covar_module(*gp.train_inputs, X).to_dense()
        scaled = torch.linalg.solve_triangular(prior, covariance, upper=False)
        left = torch.linalg.solve_triangular(both, scaled, upper=False)
        mean = gp.mean_module(X) + (scaled.T @ weights)[:, 0]
        variance = gp.covar_module(X, diag=True) - scaled.square().sum(0) + left.square().sum(0)
        scale = gp.outcome_transform.stdvs[0]
        return gp.outcome_transform.means[0] + scale * mean, scale**2 * variance.clamp_min(0)

    @cached_property
    def mean(self) -> torch.Tensor:
        """Posterior mean at the points, `t`; at a single point, that of its values, and of what was
        not released, the values.
        """
        X, Y, _, rows = self._merged
        if not self.released:
            return self.Y[:, 0]
        if len(X) == 1:
            return Y[rows, 0]
        return self.posterior(X)[0][rows]

    @property
    def best_so_far(self) -> torch.Tensor:
        """The highest posterior mean of each point and those before it, `t`."""
        return self.mean.cummax(0).values

    @property
    def best(self) -> int:
        """Row of the point to recommend: that of the highest posterior mean, of those that meet a
        study's constraints. Raises UsageError where none does. Of values that were not released,
        that of the search's own recommendation; of the highest, where that lies outside the space.
        """
        return highest(self.mean, self.feasible)

    def importances(self) -> dict[str, float]:
        """How much of the scores' variation over the space each parameter explains by itself: the
        shares, highest first, sum to 1.

        Optuna's fANOVA (Hutter, Hoos & Leyton-Brown 2014) of the posterior means at the points, or
        of scores that were not released. Its trees split coordinates, on which the space is
        uniform.

        Raises:
            MissingLibrary: without Optuna.
            UsageError: fewer than four values, or values that are all equal.
        """
        with needs("optuna"):
            import optuna
            from optuna.distributions import CategoricalDistribution, FloatDistribution
        if len(self.X) < _FEWEST or bool((self.mean == self.mean[0]).all()):
            raise UsageError(
                f"importances need {_FEWEST} values or more that differ: {self.name!r} has"
                f" {len(self.X)}."
            )
        distributions: dict[str, Any] = {}
        bounds = self.space.bounds.T.tolist()
        for i, (name, (low, high)) in enumerate(zip(self.space.names, bounds, strict=True)):
            if i in self.space.cat_dims:
                distributions[name] = CategoricalDistribution(self.space.cat_dims[i])
            elif high > low:
                distributions[name] = FloatDistribution(low, high)
        verbosity = optuna.logging.get_verbosity()
        # It tells of every study that is made.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize")
        optuna.logging.set_verbosity(verbosity)
        for x, score in zip(self.X.tolist(), self.mean.tolist(), strict=True):
            point = dict(zip(self.space.names, x, strict=True))
            chosen = {name: point[name] for name in distributions}
            study.add_trial(
                optuna.create_trial(params=chosen, distributions=distributions, value=score)
            )
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}

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
