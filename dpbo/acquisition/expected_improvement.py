"""Where to evaluate next in a `Space`, from released values alone: log NEI for one objective,
qLogNEHVI for several.

    x = suggest(space, X, Y, Yvar, seed=7)                                  # 1 x d
    # P, `k x d`, is being evaluated by others
    x = suggest(space, X, Y, Yvar, seed=7, pending=P)
    # 4 x d, all with x_0 + x_1 <= 1
    at_most_one = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0]), -1.0)
    x = suggest(space, X, Y, Yvar, seed=7, q=4, inequality_constraints=[at_most_one])
    best = X[posterior_mean(space, X, Y, Yvar).argmax()]

    # accuracy, released, and minus latency, public
    x = suggest_pareto(space, X, Y, Yvar, costs, reference=(0.8, -5.0), seed=7)
    front = pareto_front(space, X, Y, Yvar, costs)

Public objectives must come from public things: the model and public records, never the protected
ones. They cost no budget.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective import logei
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import InfeasibilityError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import draw_sobol_samples, get_polytope_samples

from dpbo.acquisition.noisy_improvement import NoisyImprovement
from dpbo.errors import InputError
from dpbo.isolation import seed_torch, without_default_device
from dpbo.models.builders import (
    ModelBuilder,
    default_gp,
    mute_optimizer_warnings,
    require_constant,
    require_values,
)
from dpbo.space import Space
from dpbo.validation import POINTS, Count, checked

_PublicValues = Annotated[torch.Tensor, POINTS]
# Indices of coordinates, their coefficients, and what the weighted sum is at least.
LinearConstraint = tuple[torch.Tensor, torch.Tensor, float]
# by which an optimizer's point may miss a constraint
_ROUNDING = 1e-6
# points that the search for an acquisition's maximum begins with, and along a number's coordinate
_RAW = 1024
_ALONG = 20
# of an acquisition's logarithm, for which the search goes on
_GAIN = 1e-3


@checked
def suggest(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    *,
    seed: int,
    q: Count = 1,
    pending: torch.Tensor | None = None,
    inequality_constraints: Sequence[LinearConstraint] | None = None,
    model: ModelBuilder = default_gp,
) -> torch.Tensor:
    """The next points, `q x d`, by noisy expected improvement: the same values give the same ones.

    With q > 1 points are chosen one after another, each as if those before it were pending, as in
    `optimize_acqf` with sequential=True. Where the model is a SingleTaskGP or MixedSingleTaskGP of
    these values, row by row, the improvement is computed in closed form (`NoisyImprovement`), else
    by qLogNEI.

    Args:
        X: `t x d`, t at least 2, on the device where the new points will lie, too.
        Y: `t x 1`, released values, which are maximised.
        Yvar: `t x 1`, the variance of their noise.

    Keyword args:
        seed: of the optimizer's starts and of the samples of the values at the points.
        q: how many points.
        pending: points that are being evaluated, `k x d`, so that others are proposed. None or `0 x
            d`: none.
        inequality_constraints: as in `optimize_acqf`, on coordinates: `(indices, coefficients,
            rhs)` for sum of coefficients times coordinates at least rhs; public. The coordinate of
            a distribution is its cdf, so of a log-uniform one it is linear in the logarithm. The
            improvement is over the best of the points that satisfy them.
        model: fits a model to the values, e.g. `sparse_gp` where few of many coordinates matter.

    Raises:
        InputError: fewer than two values, or shapes that do not fit.
        botorch.exceptions.errors.InfeasibilityError: no point of the space keeps the constraints.
    """
    require_history(space, X, Y, Yvar, least=2)
    require_pending(space, pending)
    constraints = [
        (indices.to(X.device), coefficients.to(X), float(rhs))
        for indices, coefficients, rhs in inequality_constraints or ()
    ]
    with mute_optimizer_warnings():
        # a fit that fails is tried again from a random start
        with seed_torch(seed):
            gp = model(space, X, Y, Yvar)

        def next_beside(points: torch.Tensor) -> torch.Tensor:
            return best_point(space, gp, X, points, seed=seed, constraints=constraints)

        return one_after_another(next_beside, q, X, pending)


@checked
def suggest_pareto(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    public: _PublicValues,
    *,
    reference: Sequence[float],
    seed: int,
    q: Count = 1,
    pending: torch.Tensor | None = None,
) -> torch.Tensor:
    """The next points, `q x d`, by qLogNEHVI on a private and one or more public objectives; with
    q > 1 one after another, as in `suggest`.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2: released.
        public: `t x k`, further objectives at the same points, without noise. Everything is
            maximised.
        reference: 1 + k values that a point of interest must exceed; public.
        seed, q, pending: as in `suggest`.

    Raises:
        InputError: fewer than two values, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=2)
    require_pending(space, pending)
    _require_public_values(X, public)
    if len(reference) != 1 + public.shape[1]:
        raise InputError(
            "reference",
            len(reference),
            f"of {1 + public.shape[1]} values, the released objective's first",
        )
    with mute_optimizer_warnings(), seed_torch(seed), without_default_device():
        public_models = [
            default_gp(space, X, public[:, k : k + 1], torch.zeros_like(Y))
            for k in range(public.shape[1])
        ]
        model = ModelListGP(default_gp(space, X, Y, Yvar), *public_models)

        def next_beside(points: torch.Tensor) -> torch.Tensor:
            sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
            with _without_compiler():
                acquisition = qLogNoisyExpectedHypervolumeImprovement(
                    model,
                    list(reference),
                    X,
                    sampler=sampler,
                    prune_baseline=True,
                    X_pending=points if len(points) else None,
                )
            return maximize(acquisition, space, space.bounds.to(X.device))

        return one_after_another(next_beside, q, X, pending)


@checked
def posterior_mean(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    *,
    model: ModelBuilder = default_gp,
) -> torch.Tensor:
    """The GP's posterior mean at the points of X, `t`. The highest noisy value is a lucky one; the
    highest of these is not.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 1; a single value is returned as it is.

    Raises:
        InputError: no value, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=1)
    if len(X) == 1:
        return Y[:, 0]
    with mute_optimizer_warnings(), torch.no_grad():
        mean = model(space, X, Y, Yvar).posterior(X).mean[..., 0]
    # a mixture of models has one a component
    if mean.ndim == 1:
        return mean
    return mean.mean(0)


@checked
def pareto_front(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, public: _PublicValues
) -> torch.Tensor:
    """Which rows of X no other row dominates, `t` bools, by posterior means and public values:
    noisy scores would keep the luckiest.

    Args:
        X, Y, Yvar, public: as in `suggest_pareto`, t at least 1.
    """
    require_history(space, X, Y, Yvar, least=1)
    _require_public_values(X, public)
    return is_non_dominated(torch.cat([posterior_mean(space, X, Y, Yvar).unsqueeze(1), public], 1))


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """BoTorch compiles a kernel of qLogNEHVI when it is first used: silently, for most of
    a minute, and waiting without end for a lock that a killed process left. Here it does not; what
    is loaded already is used.
    """
    before = getattr(logei, "_load_attempted", False)
    logei._load_attempted = True
    try:
        yield
    finally:
        logei._load_attempted = before


def one_after_another(
    next_beside: Callable[[torch.Tensor], torch.Tensor],
    q: int,
    X: torch.Tensor,
    pending: torch.Tensor | None,
) -> torch.Tensor:
    """q points, `q x d`, each chosen as if the pending ones (`k x d`) and those before it were
    being evaluated.

    Args:
        next_beside: a point, `1 x d`, beside others, `n x d`.
        X: `t x d`, which says where the points lie.
    """
    waiting = X[:0] if pending is None else pending.to(X.device)
    points = X[:0]
    for _ in range(q):
        points = torch.cat([points, next_beside(torch.cat([waiting, points]))])
    return points


def best_point(
    space: Space,
    gp: SingleTaskGP,
    X: torch.Tensor,
    waiting: torch.Tensor,
    *,
    seed: int,
    bounds: torch.Tensor | None = None,
    constraints: Sequence[LinearConstraint] = (),
) -> torch.Tensor:
    """Where the noisy expected improvement by this model is largest within bounds (`2 x d`; the
    space's own if None), beside points that are being evaluated (`k x d`), `1 x d`.
    """
    pending = waiting if len(waiting) else None
    if bounds is None:
        bounds = space.bounds.to(X.device)
    counted = _keep(X, constraints)
    if not counted.any():
        counted |= True
    acquisition: AcquisitionFunction
    with without_default_device():
        if NoisyImprovement.takes(gp, X):
            acquisition = NoisyImprovement(gp, X, pending, seed=seed, counted=counted)
        else:
            sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
            acquisition = qLogNoisyExpectedImprovement(
                gp, X[counted], sampler=sampler, X_pending=pending
            )
        with seed_torch(seed):
            return maximize(acquisition, space, bounds, constraints)


# BoTorch's L-BFGS needs gradients, also where the caller has turned them off
@torch.enable_grad()
def maximize(
    acquisition: AcquisitionFunction,
    space: Space,
    bounds: torch.Tensor,
    constraints: Sequence[LinearConstraint] = (),
) -> torch.Tensor:
    """A point where the acquisition, a logarithm, is large, `1 x d`, within bounds (`2 x d`) and
    constraints; steps and categories keep to the space's own.

    The best of many points is moved to where its numbers are best, and then along any one
    coordinate, until that gains nothing.

    Raises:
        InfeasibilityError: no point was found that keeps the constraints.
    """
    lower, upper = bounds
    shares = torch.linspace(0.0, 1.0, _ALONG, dtype=bounds.dtype, device=bounds.device)
    along = [*(lower + shares[:, None] * (upper - lower)).T]
    listed = {**space.discrete_dims, **space.cat_dims}
    for i, grid in listed.items():
        values = bounds.new_tensor(grid)
        along[i] = values[(lower[i] - 1e-9 <= values) & (values <= upper[i] + 1e-9)]
    points = draw_sobol_samples(bounds, 16 * _RAW if constraints else _RAW, 1)[:, 0]
    points = points[_keep(points, constraints)][:_RAW]
    if len(points) < _RAW:
        # starts may depend on each other: BoTorch's 10,000 and 32 take ten times as long
        steps = {"n_burnin": 1000, "n_thinning": 4}
        points = get_polytope_samples(_RAW, bounds, [*constraints], **steps)
    for i in listed:
        share = (points[:, i] - lower[i]) / (upper[i] - lower[i]).clamp_min(1e-9)
        places = (share * len(along[i])).long().clamp_max(len(along[i]) - 1)
        points[:, i] = along[i][places]

    def values_of(points: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            values = acquisition(points.unsqueeze(1))
        return values.where(_keep(points, constraints), -torch.inf)

    values = values_of(points)
    if values.isneginf().all():
        raise InfeasibilityError("no point was found that keeps the constraints")
    while True:
        x = points[values.argmax()][None]
        moved = x
        if len(listed) < len(along):
            moved, _ = optimize_acqf(
                acquisition,
                bounds,
                q=1,
                num_restarts=1,
                batch_initial_conditions=x.unsqueeze(1),
                fixed_features={i: float(x[0, i]) for i in listed} or None,
                inequality_constraints=[*constraints] or None,
                options={"maxiter": 50},
            )
        points = torch.cat([x, moved.detach()])
        for i, coordinates in enumerate(along):
            others = moved.detach().repeat(len(coordinates), 1)
            others[:, i] = coordinates
            points = torch.cat([points, others])
        values = values_of(points)
        if values[2:].max() <= values[:2].max() + _GAIN:
            return points[values[:2].argmax()][None]


def _keep(points: torch.Tensor, constraints: Sequence[LinearConstraint]) -> torch.Tensor:
    """Which rows keep the constraints, but for rounding."""
    kept = torch.ones_like(points[:, 0], dtype=torch.bool)
    for indices, coefficients, rhs in constraints:
        kept &= points[:, indices] @ coefficients >= rhs - _ROUNDING
    return kept


def require_history(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, least: int
) -> None:
    """Raises InputError unless X is `t x d` of the space, Y and Yvar are `t x 1`, all float64 and
    finite, and t is at least `least`.
    """
    require_values(space, X, Y, Yvar, least=least)
    if Y.shape[1] != 1:
        raise InputError(
            "Y", tuple(Y.shape), f"of shape ({len(X)}, 1), one released score for each point"
        )


def require_pending(space: Space, pending: torch.Tensor | None) -> None:
    """Raises InputError unless it is None or `k x d`, float64, points of the space."""
    if pending is None:
        return
    d = len(space.names)
    if pending.shape[1:] != (d,) or pending.dtype != torch.float64 or pending.isnan().any():
        raise InputError(
            "pending", tuple(pending.shape), f"float64, of shape k x {d}, points of the space"
        )
    space.require_inside("pending", pending)


def _require_public_values(X: torch.Tensor, public: torch.Tensor) -> None:
    if len(public) != len(X):
        raise InputError(
            "public", tuple(public.shape), f"of shape ({len(X)}, k), a row for each row of X"
        )
    require_constant("public", public)
