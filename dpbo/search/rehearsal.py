"""Rehearsal: how a private search would go, simulated on the public training records, before
anything is released.

    print(dpbo.rehearse(estimator, space, X_train, y_train, units=300, budget=Budget(1.0, 1e-6)))

Every candidate is scored out of fold on the training records: a public matrix of scores, candidates
x records. On it each method is simulated with the real number of units, budget and noise. Its gain
over the default configuration is shown as the range of eight simulated searches of ten, and with it
the gain that the default method's test finds with probability .8.

Simulated shift. The simulated populations are the public records with weights e exp(s z). z is a
random direction in the label, the default model's predictions and the candidates' scores (standard
deviation 1), and s is log-uniform from a tenth of `shift` to `shift`, or 0 for populations that are
alike. At s = 0.5 a typical share of 50 % becomes 62 %, at s = 1 73 %. e is exponential: the public
records are a sample themselves (Bayesian bootstrap). The range of s is an assumption, which the
public records cannot test, and so are the directions: the simulated people are the public ones with
other weights. People of kinds that the public records lack, and labels that depend on the features
in another way, are not simulated. Every population draws its training side, from which the free
choice, the order and the cells' means come, from the public records with replacement.

From a population's gains is taken what chance gave the candidates that look best
(`PublicScores.optimism`). The range of populations that are alike has twice the simulated spread:
no model is fitted anew, and a new fit moves a gain about as much as the records do. The other range
reaches over it. So made, the first held the gain in nine of ten searches on made records that were
drawn alike (benchmarks/results/ranges.json).

Weighted cross-validation ("weighted_cv"). A tree splits the public records by label and the default
model's predictions into cells within which the candidates' score differences vary little. The
shares of the protected records in these cells are released once, with noise. Public scores,
weighted by released share over public share, then estimate each candidate's score on the protected
population (Sugiyama, Krauledat & Mueller 2007, with the density ratio constant in a cell). The
released shares are shrunk toward the public ones: share + t * (released - share) with t the
posterior mean of v / (v + noise variance + sampling variance), where v = (s share)^2 is the shift
that is typical. Its size s, from none to 140 % of a share, is learned from the same released shares
(equal prior weights, normal likelihood): after the release this costs nothing. The estimate is
biased where a cell's records differ between the populations; this does not touch the privacy, which
rests on the release of the shares.

A private choice ("choice"). One mechanism chooses among the candidates on exact mean scores, paired
with the default's (`CandidateScores`, largest_difference), or keeps the default.

The default ("auto") lets one of these two propose a candidate, and tests it: recommendation.py.
"""

import decimal
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbo.planning import two_digits
from dpbo.search.public_scores import Array, PublicScores, ordered

if TYPE_CHECKING:
    from dpbo.search.strategies import Strategy

POPULATIONS = 60
# Of protected records, from each population.
DRAWS = 10
# No simulation fits a model anew, which moves a gain about as much as the records do.
_SPREAD = 2.0


@dataclass(frozen=True)
class Range:
    """Where a simulated gain lies.

    Attributes:
        low, high: a tenth of the simulated searches gained less, and a tenth more.
        mean: of all.
    """

    low: float
    high: float
    mean: float

    @classmethod
    def of(cls, gains: Array, spread: float = 1.0) -> "Range":
        """Of simulated gains, all alike likely, with so many times their spread."""
        mean = float(gains.mean())
        low, high = map(float, np.quantile(gains, (0.1, 0.9)))
        return cls(
            min(low, mean + spread * (low - mean)), max(high, mean + spread * (high - mean)), mean
        )

    def reaching(self, other: "Range") -> "Range":
        """The same, wide enough to hold the other one."""
        return Range(min(self.low, other.low), max(self.high, other.high), self.mean)

    def __str__(self) -> str:
        return f"{self.low:+.4f} to {self.high:+.4f}"


@dataclass(frozen=True)
class Method:
    """One strategy, and its simulated gain over the default configuration.

    Attributes:
        strategy: with its settings.
        gain: on populations that differ from the public one by anything up to `shift`.
        alike: on populations that do not differ.
    """

    strategy: "Strategy"
    gain: Range
    alike: Range


@dataclass(frozen=True)
class Rehearsal:
    """The methods in the order of their simulated gain; `str()` is a table.

    Attributes:
        methods: the one with the largest simulated mean gain first.
        units: number of protected units that was simulated.
        shift: largest simulated shift.
        detectable: the gain over the default model, by differences clipped as most candidates'
            are, that the test of the default method finds with probability .8.
    """

    methods: tuple[Method, ...]
    units: int
    shift: float
    detectable: float

    def method(self, name: str) -> Method:
        """The method whose strategy has this name; of two the one with the larger gain."""
        return next(method for method in self.methods if method.strategy.name == name)

    @property
    def free_wins(self) -> bool:
        """Whether the records are drawn alike, and the default strategy is expected to gain no more
        than the free choice."""
        free, auto = (self.method(name).gain.mean for name in ("free", "auto"))
        return not self.shift and free >= auto

    def __str__(self) -> str:
        titles = ["if they are drawn alike"]
        if self.shift:
            titles.insert(0, f"if they differ by up to {self.shift:g} sd")
        lines = [
            f"Gain over the default model with {self.units} protected units, as simulated on the "
            "public records",
            "(8 of 10 searches; the mean), where the protected people and the public ones",
            f"{'':26s}" + "".join(f" {title:>30s}" for title in titles),
        ]
        for method in self.methods:
            ranges = (method.gain, method.alike)[: len(titles)]
            shown = (f"{one} ({one.mean:+.4f})" for one in ranges)
            lines.append(f"{method.strategy!s:26s}" + "".join(f" {one:>30s}" for one in shown))
        lines.append(
            f"The test finds a gain of {two_digits(self.detectable, decimal.ROUND_UP)} with"
            " probability .8; half of it needs"
            f" {2 * self.units} units."
        )
        if self.free_wins:
            lines.append(
                "The free choice is expected to win: cross-validate on the public records. Nothing"
                " needs to be released."
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Population:
    """One simulated population: the public side as it would have been seen, and draws of protected
    records.

    Attributes:
        public: public scores.
        truth: the gain of each candidate on the population.
        counts: how often each record is drawn as a protected one, `DRAWS x records`.
        training: how often it is drawn as a public one.
        units: number of protected units.
        random: where the simulated noise comes from.
    """

    public: PublicScores
    truth: Array
    counts: Array
    training: Array
    units: int
    random: np.random.Generator

    @classmethod
    def drawn(
        cls,
        public: PublicScores,
        strength: float,
        units: int,
        random: np.random.Generator,
    ) -> "Population":
        """A population that differs by `strength` standard deviations from the public one."""
        weights = _weights(public, strength, random)
        counts = random.multinomial(units, weights, DRAWS).astype(np.float64)
        count = len(weights)
        training = random.multinomial(count, np.full(count, 1 / count)).astype(np.float64)
        truth = public.gains @ weights - public.optimism
        return cls(public, truth, counts, training, units, random)

    @functools.cached_property
    def order(self) -> list[int]:
        """The candidates as the training side orders them."""
        return ordered(self.public.gains @ self.training)

    def means(self, gains: Array) -> Array:
        """Means of score differences (`candidates x records`) on the protected draws, `DRAWS x
        candidates`."""
        return np.asarray(self.counts @ gains.T / self.units)


# From a population to the rows of the candidates that a method recommends, one a draw.
Simulated = Callable[[Population], Any]


def simulate(
    strategies: Sequence[tuple["Strategy", Simulated]],
    public: PublicScores,
    *,
    units: int,
    shift: float,
    seed: int,
    detectable: float,
) -> Rehearsal:
    """Compare strategies on simulated populations."""
    random = np.random.default_rng(seed)
    alike = POPULATIONS // 3
    strengths = [0.0] * alike
    if shift > 0:
        strengths += np.exp(
            random.uniform(math.log(shift / 10), math.log(shift), POPULATIONS)
        ).tolist()
    gains = np.zeros((len(strengths), len(strategies), DRAWS))
    for row, strength in enumerate(strengths):
        population = Population.drawn(public, strength, units, random)
        for column, (_, rows) in enumerate(strategies):
            gains[row, column] = population.truth[rows(population)]
    same = gains[:alike]
    shifted = gains[alike:] if shift > 0 else same
    methods = []
    for place, (one, _) in enumerate(strategies):
        equal = Range.of(same[:, place], _SPREAD)
        wide = Range.of(shifted[:, place]).reaching(equal)
        methods.append(Method(one, wide, equal))
    methods.sort(key=lambda method: -method.gain.mean)
    return Rehearsal(tuple(methods), units, shift, detectable)


def _weights(public: PublicScores, strength: float, random: np.random.Generator) -> Array:
    """Weights of the public records, with sum 1, for one simulated population."""
    codes = np.eye(public.labels.max() + 1)[public.labels]
    parts = [codes, public.described, public.gains.T]
    sides = [
        _standardised(_standardised(part) @ random.standard_normal(part.shape[1])) for part in parts
    ]
    logits = strength * _standardised(np.sum(sides, 0))
    logits = np.minimum(logits, np.quantile(logits, 0.99))
    # The public records are a sample themselves: a Bayesian bootstrap.
    weights = np.exp(logits - logits.max()) * random.exponential(size=len(logits))
    return np.asarray(weights / weights.sum())


def _standardised(table: Array) -> Array:
    spread = table.std(0)
    return (table - table.mean(0)) / np.where(spread > 0, spread, 1.0)
