"""Kusner et al.'s private loops, each one question: the whole search runs inside the curator, on raw values, and leaves nothing behind.

    search = KusnerSearch(gain, candidates, kernel=k2, noise=0.01, observations=30, kappa=0.9, delta=0.01, value_range=(-3.0, 3.0))
    x = candidates[int(curator.release(search.best(), ExponentialMechanism.of(50.0)).value)]       # Algorithm 1's candidate
    v = curator.release(search.value(), LaplaceMechanism(1 / 50.0)).value                          # its value, a search of its own

What the guarantee says. The sensitivities are Theorems 1, 3 and 5: bounds that hold with probability 1 - delta over the prior
(`Assumption 1`: all data sets' functions are jointly a draw of GP(0, k1 (x) k2) and the observations carry N(0, noise)), not for every pair
of data sets. So these releases are conditional (assumption `gp-prior`), refused without `allow_conditional=True`, and the statement keeps
them out of what holds unconditionally and adds up the failure probabilities of all of them, as the paper does. For bounded per-record
scores, CandidateScores is better in every respect: see there.

Trace and model are discarded. What is released is put on a lattice of step 2^-30, which the declared sensitivities include; gains outside
`value_range`, NaN and failures count as its nearer end, or its lower.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel

from dpbo.acquisition.ucb import argmax_ucb, kusner_beta
from dpbo.errors import InputError
from dpbo.events import Event, NotPrivateEvent
from dpbo.isolation import ctrl_c_came
from dpbo.models.finite import FiniteGP, information_gain_bound
from dpbo.papers.kusner import bounds
from dpbo.privacy import Adjacency, Sensitivity, require_count, require_range
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import POINTS, checked

Gain = Callable[[torch.Tensor, Any], float]
_STEP = 2.0**-30


@checked
@dataclass(frozen=True, eq=False)
class KusnerSearch:
    """The public side of Algorithms 1 and 2.

    Args:
        gain: `gain(x, records) -> float`, maximised, in units of the prior (mean 0, standard deviation 1); x is a candidate, shape `d`.
        candidates: `n x d`, float64, public.
        kernel: k2 with k2(x, x) = 1, fixed: never fitted on the protected records.
        noise: variance of an observation.
        observations: T.
        kappa: the least k1(V, V') of neighbouring data sets, a modelling constant.
        delta: probability, over the prior, with which the sensitivity may fail.
        value_range: public (lower, upper) that gains are clipped to.
        constants: "corrected", or "paper" for what the ICML paper prints: some of its bounds fail more often than with `delta`.
        allow_not_private: must be True for the paper's constants: whoever writes it says that these records need no protection.
    """

    gain: Gain
    candidates: Annotated[torch.Tensor, POINTS]
    kernel: Kernel = field(kw_only=True)
    noise: float = field(kw_only=True)
    observations: int = field(kw_only=True)
    kappa: float = field(kw_only=True)
    delta: float = field(kw_only=True)
    value_range: tuple[float, float] = field(kw_only=True)
    constants: str = field(default="corrected", kw_only=True)
    allow_not_private: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.is_paper()
        object.__setattr__(self, "candidates", self.candidates.detach().clone())
        object.__setattr__(self, "kernel", copy.deepcopy(self.kernel))
        require_count("observations", self.observations)
        object.__setattr__(self, "value_range", require_range("value_range", self.value_range))
        bounds.theorem_1(**self._numbers())  # refuses what no theorem covers
        prior = FiniteGP(self.candidates, self.kernel, self.noise).variance
        if not bool(((prior - 1.0).abs() < 1e-9).all()):
            raise InputError("kernel", type(self.kernel).__name__, "of variance 1 at every candidate", "Scale the gain instead.")

    def best(self) -> KusnerBest:
        """Algorithm 1's question for x~: release it by ExponentialMechanism."""
        return KusnerBest(self)

    def value(self) -> KusnerValue:
        """Algorithm 1's question for the best observation: release it by LaplaceMechanism."""
        gamma = information_gain_bound(self.candidates, self.kernel, self.noise, self.observations)
        return KusnerValue(self, bounds.theorem_3(noise=self.noise, gamma=gamma, **self._numbers()))

    def last(self, *, amplitude: float, tau: float) -> KusnerValue:
        """Algorithm 2's question for the last value of a noise-free search: release it by LaplaceMechanism.

        amplitude, tau: of the regret bound A exp(-T tau / (log T)^{d/4}); they must be known without the data and hold for neighbours.
        """
        regret = bounds.noise_free_regret(observations=self.observations, dimension=self.candidates.shape[1], amplitude=amplitude, tau=tau)
        moved = bounds.theorem_5(count=len(self.candidates), kappa=self.kappa, delta=self.delta, regret=regret, constants=self.constants)
        return KusnerValue(self, moved, last=True)

    def run(self, view: View) -> tuple[FiniteGP, list[float]]:
        """GP-UCB on raw gains; private: for the questions below."""
        model = FiniteGP(self.candidates, self.kernel, self.noise, capacity=self.observations)
        schedule = kusner_beta(len(self.candidates), self.delta, constants=self.constants)
        values = []
        for _ in range(self.observations):
            index = int(argmax_ucb(model, schedule))
            values.append(self._gain(self.candidates[index].clone(), view.records))
            model.observe(index, values[-1])
        return model, values

    def is_paper(self) -> bool:
        """Whether this is a demonstration of the paper's constants."""
        return bounds.require_demonstration(self.constants, self.allow_not_private)

    def public_inputs(self) -> dict[str, Any]:
        """What is taken on trust, for the ledger."""
        return {**self._numbers(), "noise": self.noise, "value_range": list(self.value_range), "candidates": len(self.candidates)}

    def _numbers(self) -> dict[str, Any]:
        shared = {"observations": self.observations, "kappa": self.kappa, "delta": self.delta}
        return {"count": len(self.candidates), **shared, "constants": self.constants}

    def _gain(self, x: torch.Tensor, records: Any) -> float:
        lower, upper = self.value_range
        try:
            value = float(self.gain(x, records))
        except BaseException:  # whatever it is, it is private
            if ctrl_c_came():
                raise
            return lower
        return min(max(value, lower), upper) if not math.isnan(value) else lower


class _Conditional(Query):
    """A question whose sensitivity rests on the prior."""

    search: KusnerSearch

    def data_assumptions(self) -> Mapping[str, str]:
        text = (
            "for the declared k1, k2 and noise, the gain's values on all neighbouring data sets are a draw of that Gaussian process; "
            f"with probability {self.search.delta:g} a release over such draws, or for any other function, nothing is promised"
        )
        return {"gp-prior": text}

    def failure_probability(self) -> float:
        return self.search.delta

    def charged(self, event: Event, adjacency: Adjacency) -> Event:
        return NotPrivateEvent(slots=event.slots) if self.search.is_paper() else event

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,), 1.0


@dataclass(frozen=True, eq=False)
class KusnerBest(_Conditional):
    """Utilities mu_T of all candidates after the search: they move by at most theorem_1, under the prior."""

    search: KusnerSearch

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        return _moving(bounds.theorem_1(**self.search._numbers()), len(self.search.candidates), adjacency)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,) * len(self.search.candidates), 1.0

    def public_inputs(self) -> dict[str, Any]:
        return self.search.public_inputs()

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        return _confined(lambda: self.search.run(view)[0].mean)


@dataclass(frozen=True, eq=False)
class KusnerValue(_Conditional):
    """The largest (or last) observation of the search: it moves by at most `moved`, under the prior."""

    search: KusnerSearch
    moved: float
    last: bool = False

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        return _moving(self.moved, 1, adjacency)

    def public_inputs(self) -> dict[str, Any]:
        return {**self.search.public_inputs(), "moves at most": self.moved}

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        def released() -> torch.Tensor:
            _, values = self.search.run(view)
            return torch.tensor([values[-1] if self.last else max(values)], dtype=torch.float64)

        return _confined(released)


def _moving(bound: float, count: int, adjacency: Adjacency) -> Sensitivity:
    """Each of `count` numbers moves by `bound` and one lattice step, when one record is replaced by another."""
    if adjacency is not Adjacency.REPLACE_ONE:
        raise InputError("adjacency", adjacency, "REPLACE_ONE", "The theorems compare data sets of one size.")
    linf = bound + _STEP
    return Sensitivity(linf * count, linf * math.sqrt(count) * (1 + 1e-15), linf, (1.0,) * count)


def _confined(search: Callable[[], torch.Tensor]) -> IntegerSum | Failure:
    """The search's numbers on the lattice; whatever it raises stays inside, with its frames."""
    try:
        values = search()
    except BaseException:  # whatever it is, it is private
        return Failure("exception")
    return _on_lattice(values) if bool(values.isfinite().all()) else Failure("exception")


def _on_lattice(values: torch.Tensor) -> IntegerSum:
    """Rounded down to the lattice; beyond 2^30 prior deviations a value counts as that."""
    numerators = (values / _STEP).floor().clamp(-(2.0**60), 2.0**60).to(torch.int64).cpu()
    return IntegerSum(numerators, (_STEP,) * len(numerators))
