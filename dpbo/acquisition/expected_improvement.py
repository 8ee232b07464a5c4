"""Where to look next in a `Space`, from released values alone: qLogNEI, over mixed coordinates where there are any.

x = suggest(space, X, Y, Yvar, seed=7)          # 1 x d
x = suggest(space, X, Y, Yvar, seed=7, pending=P)   # where P, `k x d`, is being evaluated by others
best = X[posterior_mean(space, X, Y, Yvar).argmax()]
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_mixed_alternating
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError

from dpbo.errors import InputError
from dpbo.isolation import seeded
from dpbo.models.builders import FARTHEST, ModelBuilder, default_gp, quiet, require_constant, require_observed, unfitted_gp
from dpbo.privacy import require_count, require_positive
from dpbo.space import Space
from dpbo.validation import POINTS, checked


@dataclass(frozen=True)
class Effort:
    """How hard to look for the largest acquisition value.

    Attributes:
        restarts, raw_samples: so many L-BFGS runs, started at the best of so many Sobol points.
        continuous, mixed: options of `optimize_acqf`, of `optimize_acqf_mixed_alternating`.
        again: whether BoTorch starts anew after a line search that stalled; in continuous spaces.
    """

    restarts: int = 4
    raw_samples: int = 64
    continuous: Mapping[str, Any] = field(default_factory=lambda: {"maxiter": 50})
    mixed: Mapping[str, Any] = field(default_factory=lambda: {"maxiter_continuous": 50})
    again: bool = True


_USUAL = Effort()


@checked
def suggest(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    *,
    seed: int,
    pending: torch.Tensor | None = None,
    model: ModelBuilder = default_gp,
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEI: the same values give the same point.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2; Y is maximised.

    Keyword args:
        seed: of the search's starts and of qLogNEI's samples.
        pending: points whose values are still to come, `k x d`; the point is the one that gains most beside them. None or `0 x d`: none.
        model: what is fitted to the values, e.g. `sparse_gp` where few of many coordinates matter.

    Raises:
        InputError: fewer than two values, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=2)
    require_pending(space, pending)
    with quiet(), seeded(seed):  # a fit that fails is tried again from a random start
        return best_point(space, model(space, X, Y, Yvar), X, pending, seed=seed)


def require_history(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, least: int) -> None:
    """Raises InputError unless X is `t x d` of the space, Y and Yvar are `t x 1`, all float64 and finite, and t is at least so many."""
    require_observed(space, X, Y, Yvar)
    if len(X) < least:
        raise InputError("X", tuple(X.shape), f"of {least} points or more", "Begin with space.sample(8, seed=0).")
    if Y.shape[1] != 1:
        raise InputError("Y", tuple(Y.shape), f"of shape ({len(X)}, 1), one released score for each point")


def require_pending(space: Space, pending: torch.Tensor | None) -> None:
    """Raises InputError unless it is None or `k x d`, float64, points of the space."""
    if pending is None:
        return
    d = len(space.names)
    if pending.shape[1:] != (d,) or pending.dtype != torch.float64 or not bool((pending.abs() <= FARTHEST).all()):
        raise InputError("pending", tuple(pending.shape), f"float64, of shape k x {d}, points of the space")


def best_point(
    space: Space,
    gp: SingleTaskGP,
    X: torch.Tensor,
    pending: torch.Tensor | None,
    *,
    seed: int,
    effort: Effort = _USUAL,
    bounds: torch.Tensor | None = None,
) -> torch.Tensor:
    """Where qLogNEI over this model is largest within bounds (`2 x d`; the space's own if None), `1 x d`."""
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
    expected = pending if pending is not None and len(pending) else None
    with seeded(seed):
        acquisition = qLogNoisyExpectedImprovement(gp, X, sampler=sampler, X_pending=expected)
        return maximised(acquisition, space, space.bounds if bounds is None else bounds, effort)


def maximised(acquisition: AcquisitionFunction, space: Space, bounds: torch.Tensor, effort: Effort = _USUAL) -> torch.Tensor:
    """The acquisition's best point, `1 x d`, within bounds (`2 x d`); steps and categories keep to the space's own.

    A coordinate with one value left is fixed: BoTorch looks for neighbours of each category, and fails where there is none.
    """
    steps = {i: _within(grid, *bounds[:, i].tolist()) for i, grid in space.discrete_dims.items()}
    bounds = bounds.clone()
    for i, allowed in steps.items():  # BoTorch wants these to end on steps
        bounds[:, i] = torch.tensor([allowed[0], allowed[-1]], dtype=torch.float64)
    fixed = {i: lower for i, (lower, upper) in enumerate(bounds.T.tolist()) if lower == upper}
    settings: dict[str, Any] = {"q": 1, "num_restarts": effort.restarts, "raw_samples": effort.raw_samples, "fixed_features": fixed or None}
    if {*steps, *space.cat_dims} <= fixed.keys():
        options = {**effort.continuous}
        x, _ = optimize_acqf(acquisition, bounds, **settings, options=options, retry_on_optimization_warning=effort.again)
    else:
        x, _ = optimize_acqf_mixed_alternating(acquisition, bounds, steps, space.cat_dims, **settings, options={**effort.mixed})
    return x.detach()


@checked
def posterior_mean(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, model: ModelBuilder = default_gp) -> torch.Tensor:
    """What the GP thinks of the points of X, `t`. The highest noisy value would be the luckiest; the highest of these is not.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 1; one value alone is returned as it is.

    Raises:
        InputError: no value, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=1)
    if len(X) == 1:
        return Y[:, 0]
    with quiet(), torch.no_grad():
        mean = model(space, X, Y, Yvar).posterior(X).mean[..., 0]
    return mean if mean.ndim == 1 else mean.mean(0)  # a mixture of models has one a component


def _within(grid: list[float], lower: float, upper: float) -> list[float]:
    """The steps inside an interval that holds one of them."""
    return [step for step in grid if lower - 1e-9 <= step <= upper + 1e-9]


# ========== MERGED Two objectives at once, one private and one public: qLogNEHVI on the released scores and the open costs.
#
# x = suggest_pareto(space, X, Y, Yvar, costs, reference=(0.8, -5.0), seed=7)  # e.g. accuracy, released, against minus latency
# front = pareto_front(space, X, Y, Yvar, costs)
#
# The second objective must come from public things: the model and public records, never the protected ones. It costs no budget.
#

_Costs = Annotated[torch.Tensor, POINTS]


@checked
def suggest_pareto(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, public: _Costs, *, reference: Sequence[float], seed: int
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEHVI.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2: released.
        public: `t x k`, further objectives at the same points, without noise. Everything is maximised.
        reference: 1 + k values that a point of interest must exceed; public.

    Raises:
        InputError: fewer than two values, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=2)
    _require_beside(X, public)
    if len(reference) != 1 + public.shape[1]:
        raise InputError("reference", len(reference), f"of {1 + public.shape[1]} values, the released objective's first")
    with quiet(), seeded(seed):
        open_models = [default_gp(space, X, public[:, k : k + 1], torch.zeros_like(Y)) for k in range(public.shape[1])]
        model = ModelListGP(default_gp(space, X, Y, Yvar), *open_models)
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
        acquisition = qLogNoisyExpectedHypervolumeImprovement(model, list(reference), X, sampler=sampler, prune_baseline=True)
        return maximised(acquisition, space, space.bounds)


@checked
def pareto_front(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, public: _Costs) -> torch.Tensor:
    """Which rows of X no other row beats, `t` bools, by posterior means and public values: noisy scores would keep the luckiest."""
    require_history(space, X, Y, Yvar, least=1)
    _require_beside(X, public)
    return is_non_dominated(torch.cat([posterior_mean(space, X, Y, Yvar).unsqueeze(1), public], 1))


def _require_beside(X: torch.Tensor, public: torch.Tensor) -> None:
    if len(public) != len(X):
        raise InputError("public", tuple(public.shape), f"of shape ({len(X)}, k), a row for each row of X")
    require_constant("public", public)


# ========== MERGED Where to look next, many times over: qLogNEI as in `suggest`, with lengths that are fitted anew only now and then.
#
# propose = Proposer(space)
# x = propose(X, Y, Yvar, pending, seed=7)           # 1 x d
#
# Between two fits the new values are conditioned on, under the lengths of the last fit. When to fit follows from the number of values
# alone, which is public. An asynchronous search proposes whenever a job is done, so a proposal must cost little beside an evaluation. Of
# `suggest`'s time at 60 values fitting is a third (in mixed spaces, two thirds); the rest is L-BFGS over qLogNEI, 2 to 3 ms a call in
# continuous spaces and some 25 to 60 calls, most of them in line searches where little is left to gain. Hence few fits, two starts, short
# line searches, and in mixed spaces one round between the discrete and the continuous coordinates.
#

_FIT = {"maxiter": 50, "ftol": 1e-6}  # of the likelihood: lengths to about a per cent
_MIXED = {"initialization_strategy": "random", "maxiter_alternating": 1}  # a third of the time, and the same acquisition values
_SEARCH = {"maxls": 5}  # where hardly anything is left to gain, line searches stall


class Proposes(Protocol):
    """What an asynchronous search asks for a point: X `t x d`, Y and Yvar `t x 1`, pending `k x d`; the answer is `1 x d`."""

    def __call__(self, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, pending: torch.Tensor, *, seed: int) -> torch.Tensor: ...


@checked
class Proposer:
    """`suggest` with a memory for its lengths.

    Args:
        space: where to look.

    Keyword args:
        growth: fit anew when there are by this share more values than at the last fit, or fewer than then; 0 fits each time.
        restarts, raw_samples, steps: L-BFGS runs over qLogNEI, Sobol points to start them from, most steps of each.

    Raises:
        InputError: an argument outside its range.
    """

    def __init__(self, space: Space, *, growth: float = 0.2, restarts: int = 2, raw_samples: int = 64, steps: int = 15) -> None:
        if growth != 0:
            require_positive("growth", growth, most=10.0)
        self._space, self._growth = space, growth
        require_count("steps", steps)
        self._effort = Effort(
            restarts=require_count("restarts", restarts),
            raw_samples=require_count("raw_samples", raw_samples, restarts),
            continuous={"maxiter": steps, **_SEARCH},
            mixed={"maxiter_continuous": steps, **_MIXED},
            again=False,
        )
        self._lengths: dict[str, Any] | None = None
        self._seen = 0

    def __call__(self, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, pending: torch.Tensor, *, seed: int) -> torch.Tensor:
        """The next point beside those pending (`k x d`), `1 x d`. InputError: fewer than two values, or shapes that do not fit."""
        require_history(self._space, X, Y, Yvar, least=2)
        require_pending(self._space, pending)
        with quiet():
            return best_point(self._space, self._model(X, Y, Yvar), X, pending, seed=seed, effort=self._effort)

    def _model(self, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
        gp = unfitted_gp(self._space, X, Y, Yvar)
        if self._lengths is None or not self._seen <= len(X) < (1.0 + self._growth) * self._seen:
            _fit(gp)
            self._lengths, self._seen = {name: value.clone() for name, value in _parameters(gp).items()}, len(X)
        gp.load_state_dict({**gp.state_dict(), **self._lengths})
        return gp.eval()


def _fit(gp: SingleTaskGP) -> None:
    """Maximise the likelihood from the prior's lengths; where that fails, they stay."""
    with torch.enable_grad(), contextlib.suppress(ModelFittingError, NanError, NotPSDError):
        fit_gpytorch_mll_scipy(ExactMarginalLogLikelihood(gp.likelihood, gp), options=_FIT)


def _parameters(gp: SingleTaskGP) -> dict[str, torch.Tensor]:
    """Of the kernel and the mean: neither the noise nor the scale of the values, which come with the values."""
    return {name: value.detach() for name, value in gp.named_parameters() if name.startswith(("covar_module", "mean_module"))}
