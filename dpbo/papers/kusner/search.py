"""Kusner et al.'s Algorithms 1 and 2: Bayesian optimisation inside the curator, of which only the
result is released.

    search = KusnerSearch(
        gain, candidates, kernel=k2, noise=0.01, evaluations=30,
        kappa=0.9, delta=0.01, value_range=(-3.0, 3.0),
    )
    # Algorithm 1's candidate
    x = candidates[int(curator.release(search.best(), ExponentialMechanism.of(50.0)).value)]
    # its value, from a search of its own
    v = curator.release(search.value(), LaplaceMechanism(1 / 50.0)).value
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel

from dpbo.acquisition.designs import midpoint_grid
from dpbo.acquisition.ucb import kusner_beta, suggest_ucb
from dpbo.errors import InputError, UsageError
from dpbo.isolation import INTERRUPTS
from dpbo.models.finite import FiniteGP, information_gain_bound
from dpbo.papers.kusner import bounds
from dpbo.papers.kusner.acquired import (
    Acquisition,
    Box,
    next_index,
    next_point,
    require_acquisition,
    require_box,
)
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import POINTS, Count, Positive, Probability, ScoreRange, checked

Gain = Callable[[torch.Tensor, Any], float]
_STEP = 2.0**-30
# variance of a noise-free evaluation, for the model's arithmetic
_EXACT = 1e-8
_MOST_CANDIDATES = 10**6
_LARGEST = "largest"
_LAST = "last"
_LARGEST_EXACT = "largest of a noise-free search"
_ALL = "largest of all candidates"


@checked
@dataclass(frozen=True, eq=False)
class KusnerSearch:
    """GP-UCB on exact private gains; each of its methods gives a query, which runs a whole search
    and releases one result.

    The paper's guarantee holds conditionally. Theorems 1, 3 and 5 bound the sensitivities with
    probability 1 - delta over the prior (Assumption 1: all data sets' functions are jointly a draw
    of GP(0, k1 (x) k2), and the evaluations carry N(0, noise)), not for every pair of data sets. So
    these releases carry the assumption `gp-prior` and need a curator with `allow_conditional=True`;
    the statement keeps them out of what holds unconditionally, and adds up their failure
    probabilities, as the paper does. The sound method beside it is `CandidateScores` with an
    exponential or permute-and-flip mechanism: it needs per-record scores in a public range and no
    prior, and is more accurate too. Where fits are dear, use `search_then_choose`; with 1,000
    records at epsilon 1 it shows no gain over a choice among random candidates.

    These releases are useful at a large epsilon only, and such add up best in a curator with
    `accounting=PureFilter()`: Gaussian DP, the default, refuses a candidate and a value of epsilon
    50 each in `Budget(200, 0.5)`.

    Trace and model of the search are discarded. Results are rounded to multiples of 2^-30, which
    the declared sensitivities include.

    Args:
        gain: `gain(x, records) -> float`, maximised, in units of the prior (mean 0, standard
            deviation 1); x is a candidate, shape `d`. NaN and failures count as the lower end of
            `value_range`.
        candidates: `n x d`, float64, public.
        kernel: k2 with k2(x, x) = 1, fixed: never fitted on the protected records.
        noise: variance of an evaluation.
        evaluations: T, private evaluations of the gain in one search.
        kappa: the least k1(V, V') of neighbouring data sets, a modelling constant in [0, 1].
        delta: probability, over the prior, with which the sensitivity may fail.
        value_range: public (lower, upper) that gains are clipped to.
        acquisition: a function that makes BoTorch's acquisition function of a BoTorch model; its
            maximiser is evaluated next, in the place of GP-UCB's. For `best` alone: its bound
            (Theorem 1) holds for any choice from the values before, those of `value` and `last`
            rest on the regret of their own searches.
        box: `2 x d`, lower and upper corner, with `acquisition`: what is evaluated is chosen in the
            whole box; what is released is still one of `candidates`, which the bound counts.

    Raises:
        InputError: an argument outside its range, a kernel whose variance is not 1, or a box
            without an acquisition.
    """

    gain: Gain
    candidates: Annotated[torch.Tensor, POINTS]
    _: KW_ONLY
    kernel: Kernel
    noise: Positive
    evaluations: Count
    kappa: bounds.Kappa
    delta: Probability
    value_range: ScoreRange
    acquisition: Acquisition | None = None
    box: Box | None = None

    def __post_init__(self) -> None:
        if self.box is not None:
            if self.acquisition is None:
                remedy = "GP-UCB chooses among `candidates`: give an acquisition, or leave it out."
                raise InputError("box", tuple(self.box.shape), "given with `acquisition`", remedy)
            require_box(self.box, self.candidates.shape[1])
            object.__setattr__(self, "box", self.box.detach().clone())
        object.__setattr__(self, "candidates", self.candidates.detach().clone())
        object.__setattr__(self, "kernel", copy.deepcopy(self.kernel))
        prior = FiniteGP(self.candidates, self.kernel, self.noise).variance
        if not bool(((prior - 1.0).abs() < 1e-9).all()):
            raise InputError(
                "kernel",
                type(self.kernel).__name__,
                "of variance 1 at every candidate",
                "Scale the gain instead.",
            )
        if self.acquisition is not None:
            require_acquisition(self.acquisition, self.candidates, self.kernel, self.noise)

    def best(self, *, public_design: bool = False) -> KusnerBest:
        """Algorithm 1's query for the best candidate: release it by ExponentialMechanism.

        Args:
            public_design: evaluate, instead of GP-UCB's points, those of largest posterior
                variance, which are the same for all data sets. The sensitivity is then about a
                tenth (`bounds.theorem_1_public_design`), and the candidate better at epsilon up to
                about 100. Above, GP-UCB knows the best region more exactly.

        Raises:
            UsageError: both a public design and an acquisition.
        """
        if public_design and self.acquisition is not None:
            raise UsageError(
                "a public design is chosen without values, and `acquisition` reads them: leave out"
                " one of the two."
            )
        return KusnerBest(self, public_design)

    def value(self) -> KusnerValue:
        """Algorithm 1's query for the best evaluation: release it by LaplaceMechanism.

        Raises:
            UsageError: a search by another acquisition, whose regret Theorem 3 does not bound.
        """
        self._require_own_search("value", "GP-UCB", 3)
        gamma = information_gain_bound(self.candidates, self.kernel, self.noise, self.evaluations)
        numbers = {**self._numbers(), "noise": self.noise, "gamma": gamma}
        return KusnerValue(self, bounds.theorem_3(evaluations=self.evaluations, **numbers))

    def last(self, *, amplitude: float, tau: float, largest: bool = False) -> KusnerValue:
        """Algorithm 2's query for the last value of a noise-free search: release it by
        LaplaceMechanism.

        The search is de Freitas et al.'s branch and bound (2012), whose regret the theorem's bound
        is about: it covers the candidates that can still be best ever more finely. With amplitude 0
        every candidate is evaluated, and the best value is released.

        Args:
            amplitude, tau: A and tau of the regret bound A exp(-T tau / (log T)^{d/4}); they must
                be known without the data and hold for neighbours. 0 only where `evaluations` is the
                number of candidates or more.
            largest: release the largest value instead, as the papers' text says, at the same
                sensitivity: it lies between the last value and f(x*).

        Raises:
            InputError: amplitude 0 with fewer evaluations than candidates: a search that misses
                some has a regret.
            UsageError: a search by another acquisition, whose regret Theorem 5 does not bound.
        """
        self._require_own_search("last", "de Freitas et al.'s branch and bound", 5)
        count = len(self.candidates)
        everything = amplitude == 0.0
        if everything and self.evaluations < count:
            remedy = f"Only after all {count} candidates were evaluated is the regret 0."
            raise InputError(
                "amplitude", amplitude, f"above 0 with {self.evaluations} evaluations", remedy
            )
        regret = bounds.noise_free_regret(
            evaluations=self.evaluations,
            dimension=self.candidates.shape[1],
            amplitude=amplitude,
            tau=tau,
        )
        bound = bounds.theorem_5(count=count, kappa=self.kappa, delta=self.delta, regret=regret)
        text = (
            f"the search misses the best value by at most {amplitude:g} exp(-T {tau:g} / (log"
            " T)^(d/4)), on every neighbouring data set"
        )
        if everything:
            return KusnerValue(self, bound, rule=_ALL)
        return KusnerValue(self, bound, rule=_LARGEST_EXACT if largest else _LAST, regret=text)

    def run(self, view: View) -> tuple[torch.Tensor, list[float]]:
        """GP-UCB on exact gains, or the search by `acquisition`: the posterior mean at the
        candidates, and the values. Private; for the queries below.
        """
        if self.acquisition is not None:
            return self._run_acquired(self.acquisition, view)
        model = self._model(self.noise)
        schedule = kusner_beta(len(self.candidates), self.delta)
        values = []
        for _ in range(self.evaluations):
            index = int(suggest_ucb(model, schedule))
            values.append(_gained(self, self.candidates[index], view))
            model.observe(index, values[-1])
        return model.mean, values

    def design(self) -> list[int]:
        """T candidates, each of the largest posterior variance after those before it. Public."""
        model = self._model(self.noise)
        chosen = []
        for _ in range(self.evaluations):
            chosen.append(int(model.variance.argmax()))
            # the variance depends on no value
            model.observe(chosen[-1], 0.0)
        return chosen

    def run_design(self, view: View) -> torch.Tensor:
        """The posterior mean at the candidates after the public design. Private; for the query
        below.
        """
        model = self._model(self.noise)
        for index in self.design():
            model.observe(index, _gained(self, self.candidates[index], view))
        return model.mean

    def spread(self) -> float:
        """The largest deviation, over the candidates, of the difference of two neighbours'
        posterior means after the public design: `bounds.theorem_1_public_design`.
        """
        inner, weights = self._weights(self.candidates[self.design()])
        apart = _with_noise(2.0 * (1.0 - self.kappa) * inner, 2.0 * self.noise)
        return float((weights * (apart @ weights)).sum(0).amax().sqrt())

    def _run_acquired(
        self, acquisition: Acquisition, view: View
    ) -> tuple[torch.Tensor, list[float]]:
        """As `run`. The bound of Theorem 1 holds for this search: each point depends on the values
        before it and on coins of its own, so given them f(x) ~ N(mu_T(x), sigma_T(x)^2) at every
        candidate, whichever points they are.
        """
        X = self.candidates
        model = (self.kernel, self.noise)
        indices = list[int]()
        points = list[torch.Tensor]()
        values = list[float]()
        for _ in range(self.evaluations):
            if self.box is None:
                indices.append(next_index(acquisition, X, indices, values, *model))
                points.append(X[indices[-1]])
            else:
                points.append(next_point(acquisition, self.box, points, values, *model))
            values.append(_gained(self, points[-1], view))
        _, weights = self._weights(torch.stack(points))
        return X.new_tensor(values) @ weights, values

    def _weights(self, evaluated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The evaluated points' prior covariance, and what each of their values adds to the
        posterior mean at each candidate.
        """
        with torch.no_grad():
            inner = self.kernel(evaluated, evaluated).to_dense()
            cross = self.kernel(evaluated, self.candidates).to_dense()
        return inner, torch.linalg.solve(_with_noise(inner, self.noise), cross)

    def _model(self, noise: float) -> FiniteGP:
        return FiniteGP(self.candidates, self.kernel, noise, capacity=self.evaluations)

    def _require_own_search(self, method: str, own: str, theorem: int) -> None:
        """Raises UsageError where the points are chosen by another acquisition."""
        if self.acquisition is not None:
            raise UsageError(
                f"{method}() needs {own}, by whose regret Theorem {theorem} bounds it. Leave out"
                " `acquisition`, or release best(), whose bound holds for any."
            )

    def run_branch_and_bound(self, view: View) -> list[float]:
        """The values of de Freitas et al.'s Algorithm 1, in order. Private; for the queries below.

        Rounds with half the radius each: candidates that can still be best are evaluated, largest
        upper bound first, until each has an evaluated one within the radius; then those are dropped
        whose upper bound is below another's lower bound.
        """
        X = self.candidates
        values = list[float]()
        model = self._model(_EXACT)
        schedule = kusner_beta(len(X), self.delta)
        nearest = torch.full_like(X[:, 0], math.inf)
        alive = torch.ones(len(X), dtype=torch.bool, device=X.device)
        radius = float((X - X.mean(0)).norm(dim=1).max())
        while len(values) < self.evaluations:
            width = math.sqrt(schedule(len(values) + 1)) * model.variance.clamp_min(0.0).sqrt()
            uncovered = alive & (nearest > radius)
            if not bool(uncovered.any()):
                alive &= model.mean + width >= (model.mean - width)[alive].max()
                # all evaluated: the best of them again and again
                radius = radius / 2.0 if bool((nearest[alive] > 0.0).any()) else -1.0
                continue
            index = int(torch.where(uncovered, model.mean + width, -math.inf).argmax())
            values.append(_gained(self, X[index], view))
            model.observe(index, values[-1])
            nearest = torch.minimum(nearest, (X - X[index]).norm(dim=1))
        return values

    def run_all(self, view: View) -> list[float]:
        """The values of all candidates. Private; for the queries below."""
        return [_gained(self, x, view) for x in self.candidates]

    def public_inputs(self) -> dict[str, Any]:
        """What is taken on trust, for the ledger."""
        return {
            **self._numbers(),
            "evaluations": self.evaluations,
            "noise": self.noise,
            "value_range": list(self.value_range),
            "candidates": len(self.candidates),
        }

    def _numbers(self) -> dict[str, Any]:
        return {"count": len(self.candidates), "kappa": self.kappa, "delta": self.delta}


@checked
def grid_of_box(*, points: Count, dimension: Count, side: Positive) -> torch.Tensor:
    """Candidates for a search over [0, side]^d: the middles of `points` equal parts a coordinate,
    `points^d x d`.

    The search over them keeps its theorems, with count = points^d. What the grid loses against the
    whole box is `bounds.grid_loss`.

    Raises:
        InputError: more than a million candidates.
    """
    if points**dimension > _MOST_CANDIDATES:
        raise InputError(
            "points", points, f"so many that points^dimension is at most {_MOST_CANDIDATES:,}"
        )
    return midpoint_grid(points, dimension, side)


def _with_noise(covariance: torch.Tensor, noise: float) -> torch.Tensor:
    """A covariance `t x t` of values that carry fresh noise of this variance."""
    unit = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return covariance + noise * unit


def _gained(search: KusnerSearch, x: torch.Tensor, view: View) -> float:
    """The clipped gain at x; NaN and a failure count as the lower end."""
    lower, upper = search.value_range
    try:
        value = float(search.gain(x.clone(), view.records))
    except INTERRUPTS:
        raise
    # whatever it is, it is private
    except BaseException:
        value = lower
    if math.isnan(value):
        return lower
    return min(max(value, lower), upper)


@dataclass(frozen=True, eq=False)
class _SearchQuery(Query):
    """A result of a search, with a sensitivity that rests on the prior."""

    search: KusnerSearch

    def data_assumptions(self) -> Mapping[str, str]:
        text = (
            "for the declared k1, k2 and noise, the gain's values on all neighbouring data sets"
            " are a draw of that Gaussian process inside value_range, and each evaluation carries"
            f" fresh noise; with probability {self.search.delta:g} a release over such draws, or"
            " for any other function, nothing is promised"
        )
        return {"gp-prior": text}

    def failure_probability(self) -> float:
        return self.search.delta

    def public_inputs(self) -> dict[str, Any]:
        return self.search.public_inputs()


@dataclass(frozen=True, eq=False)
class KusnerBest(_SearchQuery):
    """Utilities mu_T of all candidates after the search: they move by at most theorem_1, or
    theorem_1_public_design, under the prior.
    """

    # the prior is about the gain on neighbouring data sets, whatever a unit is
    per_unit = True
    public_design: bool = False

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        count = len(self.search.candidates)
        if self.public_design:
            moved = bounds.theorem_1_public_design(
                count=count, spread=self.search.spread(), delta=self.search.delta
            )
        else:
            moved = bounds.theorem_1(**self.search._numbers())
        return _sensitivity(moved, count, adjacency)

    def public_inputs(self) -> dict[str, Any]:
        return {**super().public_inputs(), "public design": self.public_design}

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,) * len(self.search.candidates), 1.0

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if self.public_design:
            return _on_lattice(lambda: self.search.run_design(view))
        return _on_lattice(lambda: self.search.run(view)[0])


@dataclass(frozen=True, eq=False)
class KusnerValue(_SearchQuery):
    """The largest evaluation of the search, or by another rule the last one: it moves by at most
    `bound`, under the prior.
    """

    # as for KusnerBest
    per_unit = True
    bound: float
    rule: str = _LARGEST
    regret: str | None = None

    def data_assumptions(self) -> Mapping[str, str]:
        own = {} if self.regret is None else {"regret-bound": self.regret}
        return {**super().data_assumptions(), **own}

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        return _sensitivity(self.bound, 1, adjacency)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,), 1.0

    def public_inputs(self) -> dict[str, Any]:
        return {**super().public_inputs(), "moves at most": self.bound}

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        def result() -> torch.Tensor:
            if self.rule == _LARGEST:
                value = max(self.search.run(view)[1])
            elif self.rule == _ALL:
                value = max(self.search.run_all(view))
            else:
                values = self.search.run_branch_and_bound(view)
                value = max(values) if self.rule == _LARGEST_EXACT else values[-1]
            return torch.tensor([value], dtype=torch.float64, device="cpu")

        return _on_lattice(result)


def _sensitivity(bound: float, count: int, adjacency: Adjacency) -> Sensitivity:
    """Each of `count` numbers moves by `bound` and one lattice step, when one record is replaced by
    another.
    """
    if adjacency is not Adjacency.REPLACE_ONE:
        raise InputError(
            "adjacency", adjacency, "REPLACE_ONE", "The theorems compare data sets of one size."
        )
    return Sensitivity.of_linf(bound + _STEP, count)


def _on_lattice(search: Callable[[], torch.Tensor]) -> IntegerSum | Failure:
    """The search's numbers rounded down to the lattice, at most 2^30 prior deviations. An error of
    the search stays here.
    """
    try:
        values = search()
    except INTERRUPTS:
        raise
    except BaseException:
        # whatever it is, it is private
        return Failure("exception")
    if not bool(values.isfinite().all()):
        return Failure("exception")
    numerators = (values / _STEP).floor().clamp(-(2.0**60), 2.0**60).to(torch.int64).cpu()
    return IntegerSum(numerators, (_STEP,) * len(numerators))
