"""Rehearsal: how a private search would go, simulated on the public training records, before
anything is released.

    print(dpbo.rehearse(estimator, space, X_train, y_train, units=300, budget=Budget(1.0, 1e-6)))

Every candidate is scored out of fold on the training records: a public matrix of scores, candidates
x records. On it each method is simulated with the real number of units, budget and noise. Its gain
over the default configuration is shown as the range of eight simulated searches of ten.

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
drawn alike (`python -m benchmarks.ranges`).

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

A private choice ("choice"). The candidates are ordered by the public score, the default second; one
choice mechanism chooses among the first ones, on exact mean scores, plain or paired with the
default (`CandidateScores`, largest_difference).

The default ("auto") takes both in turn: strategies.py.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpbo.search.public_scores import Array, PublicScores, ordered

if TYPE_CHECKING:
    from dpbo.search.strategies import Strategy

POPULATIONS = 60
# Of protected records, from each population.
DRAWS = 10
# Eight of ten normal numbers are within so many standard deviations.
_NORMAL = 1.2816
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
        error: standard error of the mean gain minus that of the free choice, from the simulation.
    """

    strategy: "Strategy"
    gain: Range
    alike: Range
    error: float


@dataclass(frozen=True)
class Rehearsal:
    """The methods in the order of their simulated gain; `str()` is a table.

    Attributes:
        methods: the one with the largest simulated mean gain first.
        units: number of protected units that was simulated.
        shift: largest simulated shift.
        populations: of each simulated population, the weights of the public records, `p x records`.
    """

    methods: tuple[Method, ...]
    units: int
    shift: float
    populations: Array = field(repr=False, compare=False)

    def method(self, name: str) -> Method:
        """The method whose strategy has this name."""
        return next(method for method in self.methods if method.strategy.name == name)

    @property
    def free_wins(self) -> bool:
        """Whether the records are drawn alike, and the default strategy is expected to gain no more
        than the free choice."""
        gains = {method.strategy.name: method.gain.mean for method in self.methods}
        return not self.shift and gains["free"] >= gains["auto"]

    def range_after(self, differences: Array, released: float, noise_std: float) -> Range:
        """Where the gain of one configuration lies, after its gain was released: a normal posterior
        whose prior has the mean of the simulated populations and `_SPREAD` times their spread.

        Args:
            differences: its score differences to the default on the public records.
            released, noise_std: the released gain, and the standard deviation of its noise.
        """
        truth = self.populations @ differences
        sampling = float(differences.var()) / self.units
        of_release = noise_std**2 + sampling
        of_simulation = (_SPREAD * float(truth.std())) ** 2
        if not of_release + of_simulation:
            return Range(released, released, released)
        weight = of_simulation / (of_release + of_simulation)
        mean = weight * released + (1 - weight) * float(truth.mean())
        reach = _NORMAL * math.sqrt(weight * of_release)
        return Range(mean - reach, mean + reach, mean)

    def __str__(self) -> str:
        titles = ["if they are drawn alike"]
        if self.shift:
            titles.insert(0, f"if they differ by up to {self.shift:g} sd")
        lines = [
            f"Gain over the default model with {self.units} protected units, as simulated on the "
            "public records",
            "(8 of 10 searches; the mean), where the protected people and the public ones",
            f"{'':24s}" + "".join(f" {title:>30s}" for title in titles),
        ]
        for method in self.methods:
            ranges = (method.gain, method.alike)[: len(titles)]
            shown = (f"{one} ({one.mean:+.4f})" for one in ranges)
            lines.append(f"{method.strategy!s:24s}" + "".join(f" {one:>30s}" for one in shown))
        if self.free_wins:
            lines.append(
                "The free choice is expected to win: cross-validate on the public records. Nothing"
                " needs to be released."
            )
        return "\n".join(lines)


class Noise(NamedTuple):
    """What the simulation needs to know of the budget.

    Attributes:
        cells: standard deviation of one released share.
        choice: scale of the noise of a private choice among mean scores of range 1.
        gumbel: whether that noise is Gumbel (exponential mechanism) or exponential
            (permute-and-flip).
        first_cells, second_choice: the same where `Auto` divides the budget between them.
        paired: whether scores can be paired with the default model's.
    """

    cells: float
    choice: float
    gumbel: bool
    first_cells: float
    second_choice: float
    paired: bool


# Clips that are tried, as shares of the width of the score's range. A choice among plain scores has
# as little noise as one by differences up to .5.
_CLIPS = np.array([0.02, 0.05, 0.1, 0.25, 0.5, 1.0])


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared with the default configuration in one private choice.

    Attributes:
        largest_difference: of paired scores; None: plain scores.
        stds: of each candidate's mean difference, the standard deviation from the choice's noise
            and from n protected records being a sample.
    """

    largest_difference: float | None
    stds: Array

    @classmethod
    def of(
        cls, gains: Array, units: float, scale: float, width: float, *, paired: bool
    ) -> "Comparison":
        """By public score differences (`candidates x records`, the default in row 0).

        A clip c moves the mean of candidate j by b_j, and the noise is 2 c `scale`; plain scores
        have no bias and the noise `width scale`. The least mean of b_j^2 + noise^2 decides.

        Args:
            units: public number of protected units.
            scale: of the noise on means of a score of range 1.
            width: of the score's range.
            paired: whether scores can be paired.
        """
        options: list[tuple[float | None, Array, float]] = [(None, gains, width)]
        if paired:
            options += [(c, np.clip(gains, -c, c), 2 * c) for c in width * _CLIPS[:-2]]
        means = gains[1:].mean(1)

        def error(option: tuple[float | None, Array, float]) -> float:
            _, kept, reach = option
            bias = kept[1:].mean(1) - means
            return float((bias**2).mean() + (scale * reach) ** 2)

        largest_difference, kept, reach = min(options, key=error)
        return cls(largest_difference, np.sqrt((scale * reach) ** 2 + kept.var(1) / units))


def gain_clip(gains: Array, scale: float, width: float, populations: Array | None) -> float:
    """The clip of one configuration's score differences, where their mean is released.

    Args:
        gains: the differences on the public records.
        scale, width: as in `Comparison.of`.
        populations: weights of the public records in each simulated population, over which the
            bias of a clip is bounded; None: the public one.
    """
    if populations is None:
        populations = np.full((1, len(gains)), 1 / len(gains))

    def error(c: float) -> float:
        bias = populations @ (np.clip(gains, -c, c) - gains)
        return float((bias**2).max() + (2 * c * scale) ** 2)

    return float(min(width * _CLIPS, key=error))


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
        width: of the score range.
        weights: of the public records, with sum 1.
        random: where the simulated noise comes from.
    """

    public: PublicScores
    truth: Array
    counts: Array
    training: Array
    units: int
    width: float
    weights: Array
    random: np.random.Generator

    @classmethod
    def drawn(
        cls,
        public: PublicScores,
        strength: float,
        units: int,
        width: float,
        random: np.random.Generator,
    ) -> "Population":
        """A population that differs by `strength` standard deviations from the public one."""
        weights = _weights(public, strength, random)
        counts = random.multinomial(units, weights, DRAWS).astype(np.float64)
        count = len(weights)
        training = random.multinomial(count, np.full(count, 1 / count)).astype(np.float64)
        truth = public.gains @ weights - public.optimism
        return cls(public, truth, counts, training, units, width, weights, random)

    @functools.cached_property
    def order(self) -> list[int]:
        """The candidates as the training side orders them."""
        return ordered(self.public.gains @ self.training)

    def noised_means(self, noise: Noise, largest_difference: float | None) -> Array:
        """Mean gains on the protected draws, `DRAWS x candidates`, clipped to the largest
        difference, with the noise of a private choice."""
        gains = self.public.gains
        reach = self.width
        if largest_difference is not None:
            gains = np.clip(gains, -largest_difference, largest_difference)
            reach = 2 * largest_difference
        means = self.counts @ gains.T / self.units
        draw = self.random.gumbel if noise.gumbel else self.random.exponential
        return np.asarray(means + noise.choice * reach * draw(size=means.shape))


def simulate(
    strategies: Sequence["Strategy"],
    public: PublicScores,
    noise: Noise,
    *,
    width: float,
    units: int,
    shift: float,
    seed: int,
) -> Rehearsal:
    """Compare strategies, the free choice first, on simulated populations. `width` is that of the
    score range."""
    random = np.random.default_rng(seed)
    alike = POPULATIONS // 3
    strengths = [0.0] * alike
    if shift > 0:
        strengths += np.exp(
            random.uniform(math.log(shift / 10), math.log(shift), POPULATIONS)
        ).tolist()
    gains = np.zeros((len(strengths), len(strategies), DRAWS))
    weights = np.zeros((len(strengths), public.scores.shape[1]))
    for row, strength in enumerate(strengths):
        population = Population.drawn(public, strength, units, width, random)
        weights[row] = population.weights
        for column, strategy in enumerate(strategies):
            gains[row, column] = population.truth[strategy.rehearse(population, noise)]
    same = gains[:alike]
    shifted = gains[alike:] if shift > 0 else same
    means = shifted.mean(2)
    errors = np.std(means - means[:, :1], axis=0, ddof=1) / math.sqrt(len(means))
    methods = []
    for place, one in enumerate(strategies):
        equal = Range.of(same[:, place], _SPREAD)
        wide = Range.of(shifted[:, place]).reaching(equal)
        methods.append(Method(one, wide, equal, float(errors[place])))
    methods.sort(key=lambda method: -method.gain.mean)
    return Rehearsal(tuple(methods), units, shift, weights)


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
