"""Many runs of DP-GIBO at once, over records that need no protection: for benchmarks, planning and
papers.

    problems = [made_up(seed) for seed in range(50)]
    replicas = replicate(
        [problem.records for problem in problems], loss, bounds=bounds, budget=Budget.gdp(1.0),
        iterations=25, batch_size=11, clip=1.0, seeds=range(50), allow_not_private=True,
    )
    # `runs x d`
    replicas.x

Points, weights and clipped integer sums of all runs are computed in one pass; each run has its own
noise, drawn as a curator draws it, and its own steps. With one source of entropy a run, each
is the run that `DPGIBO` makes with that source: its released gradients are whole multiples of one
grid, and the same numbers. (On a GPU `DPGIBO` rounds losses to float32 first, and agrees to that.)

There is no curator and no ledger, so nothing is charged and no statement is made: R runs over the
same people spend the budget R times. Hence `allow_not_private`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.utils import _pytree as pytree

from dpbo.accounting.filters import GDPFilter
from dpbo.curator.releasing import noised
from dpbo.entropy import system_entropy
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.gibo.algorithm import kernel_on, recommended
from dpbo.gibo.design import BOUNDS, Frame, GIBODesign, GIBOSettings
from dpbo.gibo.gradient_posterior import GradientPosterior
from dpbo.gibo.gradient_query import ClippedGradient, Loss, clipped_sums
from dpbo.isolation import without_default_device
from dpbo.mechanisms.additive import LEAST_MULTIPLIER
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.mechanism import Entropy, Mechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import Adjacency, Budget
from dpbo.queries.query import IntegerSum
from dpbo.queries.score_evaluation import tensor_of
from dpbo.records.containers import count_records
from dpbo.validation import Count, Seed, checked


@dataclass(frozen=True, eq=False)
class Replicas:
    """The results of `replicate`: of each run what `GIBOResult` holds of one.

    Attributes:
        x: the recommended points, `runs x d`.
        last: the last iterates, `runs x d`.
        iterates: theta_0, theta_1, ..., `runs x T + 1 x d`.
        gradients: as released, `runs x T x d`, in the algorithm's coordinates.
        rho: length of one gradient's noise over the clip.
    """

    x: Tensor
    last: Tensor = field(repr=False)
    iterates: Tensor = field(repr=False)
    gradients: Tensor = field(repr=False)
    rho: float


@checked
def replicate(
    records: Sequence[Any],
    loss: Loss | Sequence[Loss],
    *,
    bounds: Annotated[Tensor, BOUNDS],
    budget: Budget | None = None,
    mechanism: NoNoise | None = None,
    iterations: Count,
    batch_size: Count,
    clip: float,
    kernel: Kernel | None = None,
    noise: float = 0.0,
    mean: float = 0.0,
    start: Tensor | None = None,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    divisor: float | None = None,
    settings: GIBOSettings | None = None,
    seeds: Sequence[Seed] | None = None,
    entropies: Sequence[Entropy] | None = None,
    vectorize: bool = False,
    allow_not_private: bool = False,
) -> Replicas:
    """Runs of DP-GIBO over public or made-up records, advanced together.

    Args:
        records: of each run, equally many; the same object again for runs over the same records.
        loss: as in `DPGIBO`, or one for each run.

    Keyword args:
        bounds, iterations, batch_size, clip, kernel, noise, mean, divisor, settings: as in
            `DPGIBO`, the same for all runs.
        budget: of each run.
        mechanism: `NoNoise(allow_not_private=True)`, in place of a budget.
        start: theta_0, `d` or `runs x d`; omitted, the centre of the box.
        adjacency: as in `Curator`.
        seeds: of each run's rotations of its designs; omitted, `settings.seed` in all.
        entropies: each run's source of noise; omitted, the operating system's.
        vectorize: whether the loss goes through `torch.func.vmap`, over all runs and points in one
            call, which takes memory for all of them; else it is called for each run and point.
        allow_not_private: must be True, which declares that these records need no protection.

    Raises:
        InputError: an argument outside its range, or not one for each run.
    """
    if not allow_not_private:
        remedy = "Each run spends the budget, and no ledger counts it: use DPGIBO for one run."
        raise InputError("allow_not_private", False, "True, for records that are public", remedy)
    units = _units(records)
    runs = len(records)
    settings = GIBOSettings.recommended() if settings is None else settings
    if settings.tolerance is not None:
        remedy = "Each run would take a number of points of its own."
        raise InputError("settings", settings, "without a tolerance", remedy)
    if budget is not None and mechanism is not None:
        raise InputError("budget", str(budget), "omitted where a mechanism is given")
    losses = list(loss) if isinstance(loss, Sequence) else [loss] * runs
    sources = [system_entropy] * runs if entropies is None else list(entropies)
    if seeds is None and settings.seed is not None:
        seeds = [settings.seed] * runs
    for name, given in (("loss", losses), ("entropies", sources), ("seeds", seeds)):
        if given is not None and len(given) != runs:
            raise InputError(name, len(given), f"one for each of the {runs} runs")
    frame = Frame(bounds, settings.unit_box)
    theta = frame.inward(_starts(frame, start, runs))
    kernel = kernel_on(bounds.device, kernel)
    posterior = GradientPosterior(kernel, noise, mean=mean, jitter=settings.jitter)
    design = GIBODesign(frame.box, batch_size, settings, seeds)
    released = _Noised(losses[0], theta.shape[1], clip, adjacency, divisor, units)
    rho = released.by(mechanism or _priced(budget, iterations), sources)
    own = [torch.nn.Parameter(one.clone()) for one in theta]
    with without_default_device():
        optimizer = settings.optimizer(own, lr=settings.step_size(rho))
    iterates = [theta]
    gradients = list[Tensor]()
    seen = list[Tensor]()
    for iteration in range(iterations):
        Z = design.points(posterior, theta, iteration)
        conditioned = posterior.conditioned_on(Z)
        X = frame.outward(Z)
        fresh = _losses_at(X, losses, records, units, vectorize=vectorize).sub_(mean)
        sums = clipped_sums([*seen, fresh], conditioned.weights(theta), clip, released.quanta[0])
        gradients.append(released(sums).to(theta.device))
        if settings.history:
            posterior = conditioned
            seen.append(fresh)
        for parameter, gradient in zip(own, gradients[-1], strict=True):
            parameter.grad = gradient.clone()
        with without_default_device(), torch.no_grad():
            optimizer.step()
            for parameter in own:
                parameter.clamp_(*frame.box)
        theta = torch.stack([parameter.detach() for parameter in own])
        iterates.append(theta)
    path = torch.stack(iterates)
    return Replicas(
        x=frame.outward(recommended(path, settings, rho)),
        last=frame.outward(theta),
        iterates=frame.outward(path).transpose(0, 1).contiguous(),
        gradients=torch.stack(gradients, dim=1),
        rho=rho,
    )


class _Noised:
    """Sums of clipped gradients to released ones, each run's with noise from its own source.

    Attributes:
        quanta: the quantum of each coordinate of a sum.
    """

    def __init__(
        self,
        loss: Loss,
        d: int,
        clip: float,
        adjacency: Adjacency | str,
        divisor: float | None,
        units: int,
    ) -> None:
        # sensitivity, quanta and divisor follow from these alone, whatever points and weights are
        point = torch.zeros(1, d, dtype=torch.float64, device="cpu")
        self._query = ClippedGradient(loss, point, weights=point.mT, clip=clip, divisor=divisor)
        self._adjacency = Adjacency.of(adjacency)
        self._query.require_public(self._adjacency)
        self._units = units
        self.quanta = self._query.quanta(units)

    def by(self, law: Mechanism, sources: Sequence[Entropy]) -> float:
        """Take this noise from these sources; returns its length over the clip."""
        self._law = law
        self._sources = sources
        sensitivity = self._query.sensitivity(self._adjacency)
        distribution: Any = law.distribution(sensitivity, self.quanta)
        self._distribution = distribution
        gain = self._query.affine(self._units)[1]
        return math.hypot(*distribution.std) * gain / self._query.clip

    def __call__(self, sums: Tensor) -> Tensor:
        """The released gradients, `runs x d`, of sums, `runs x d`."""
        values = []
        for total, entropy in zip(sums.cpu(), self._sources, strict=True):
            answer = IntegerSum(total, self.quanta)
            values.append(
                noised(
                    self._query,
                    answer,
                    self._distribution,
                    self._law,
                    entropy,
                    units=self._units,
                )
            )
        return torch.stack(values)


def _units(records: Sequence[Any]) -> int:
    """The number of records of each run. Raises InputError unless all have equally many."""
    if not isinstance(records, (list, tuple)):
        raise InputError("records", type(records).__name__, "a list, whose parts are each run's")
    counts = {count_records(own) for own in records}
    if len(counts) != 1 or 0 in counts:
        allowed = "of one run or more, one record or more and equally many of each"
        raise InputError("records", sorted(counts), allowed)
    return counts.pop()


def _starts(frame: Frame, start: Tensor | None, runs: int) -> Tensor:
    """theta_0 of each run in x, `runs x d`."""
    if start is None or start.dim() == 1:
        return frame.start(start).expand(runs, -1)
    if len(start) != runs:
        raise InputError("start", tuple(start.shape), f"of shape d, or {runs} x d")
    return torch.stack([frame.start(own) for own in start])


def _priced(budget: Budget | None, iterations: int) -> GaussianMechanism:
    """The least noise of each iteration that this budget pays for, as `DPGIBO` has it on a ledger
    with Gaussian differential privacy.
    """
    if budget is None:
        raise InputError("budget", None, "a Budget, or mechanism=NoNoise(allow_not_private=True)")
    accounting = GDPFilter()
    available = accounting.cap(budget)
    multiplier = accounting.multiplier(GaussianEvent, iterations, available)
    assert multiplier is not None, "a GDPFilter pays for Gaussian noise"
    return GaussianMechanism(max(multiplier, LEAST_MULTIPLIER))


def _losses_at(
    X: Tensor, losses: Sequence[Loss], records: Sequence[Any], units: int, *, vectorize: bool
) -> Tensor:
    """The loss of each run's `n` records at its points (`runs x b x d`), float64, `runs x b x
    n`.
    """
    if not vectorize:
        found = [
            torch.stack(
                [_of_each(loss(x.clone(), own), units).to(X.device, X.dtype) for x in points]
            )
            for points, loss, own in zip(X, losses, records, strict=True)
        ]
        return torch.stack(found)
    loss, *others = losses
    if any(other is not loss for other in others):
        raise InputError("vectorize", True, "False, where each run has a loss of its own")
    if not all(isinstance(part, Tensor) for part in pytree.tree_leaves(list(records))):
        raise InputError("vectorize", True, "False, where records are no tensors")

    def at(x: Tensor, own: Any) -> Tensor:
        return _of_each(loss(x, own), units)

    alike = all(own is records[0] for own in records)
    shared = records[0] if alike else pytree.tree_map(lambda *own: torch.stack(own), *records)
    over_points = torch.func.vmap(at, (0, None))
    over_runs = torch.func.vmap(over_points, (0, None if alike else 0))
    return over_runs(X, shared).to(X.device, X.dtype, copy=True)


def _of_each(losses: Any, units: int) -> Tensor:
    """The losses of one point, `n`. Raises InputError where they are not one a record."""
    found = tensor_of(losses)
    if found.shape not in ((units,), (units, 1)):
        allowed = f"a function that returns one number for each of the {units} records"
        raise InputError("loss", tuple(found.shape), allowed)
    return found.reshape(units)
