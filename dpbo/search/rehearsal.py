"""Rehearsal: how a private search would go, simulated on the public training records, so that the
choice of method costs nothing.

    print(dpbo.rehearse(estimator, space, X_train, y_train, units=300, budget=Budget(1.0, 1e-6)))

Every candidate is scored out of fold on the training records: a public matrix of scores, candidates
x records. On it each method is simulated with the real number of units, budget and noise, and its
mean gain over the default configuration is compared with the free choice, the candidate with the
best cross-validated score.

Simulated shift. If the protected records were drawn like the public ones, the free choice would be
hard to beat. So the simulated populations are the public records with weights exp(s z): z is a
random direction in the label, the default model's predictions and the candidates' scores (standard
deviation 1), and s is log-uniform from a tenth of `shift` to `shift`. At s = 0.5 a typical share of
50 % becomes 62 %, at s = 1 73 %. The range of s is an assumption, which the public records cannot
test, and so are the directions: the simulated people are the public ones with other weights, along
the label and the predictions, which is what the cells of weighted_cv are made of. People of kinds
that the public records lack are not simulated. So the gains are optimistic, most of all that of
weighted_cv. The public records are themselves a sample: every population draws its training side,
from which the free choice, the order and the cells' means come, from them with replacement.

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
rests on the release of the shares. The weighted score is public, so a Bayesian optimisation on it,
half as many configurations again, costs fits but no privacy.

A private choice ("choice"). The candidates are ordered by the public score, the default second; one
choice mechanism chooses among the first ones, on exact mean scores, plain or paired with the
default (`ClippedScores`, largest_difference).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from dpbo.models.builders import default_gp, mute_optimizer_warnings
from dpbo.search.public_scores import Array, PublicScores, ordered
from dpbo.space import Space

if TYPE_CHECKING:
    from dpbo.search.strategies import Strategy

POPULATIONS, DRAWS = 60, 10


@dataclass(frozen=True)
class Method:
    """One strategy, and what the rehearsal found.

    Attributes:
        strategy: with its settings.
        gain: simulated mean gain over the default configuration, on populations that differ from
            the public one as `shift` says.
        gain_alike: the same on populations that do not differ.
        error: standard error of `gain` minus that of the free choice, from the simulation.
    """

    strategy: "Strategy"
    gain: float
    gain_alike: float
    error: float


@dataclass(frozen=True)
class Rehearsal:
    """The methods in the order of their simulated gain; `str()` is a table.

    Attributes:
        methods: the one with the largest simulated gain first.
        units: number of protected units that was simulated.
        shift: largest simulated shift.
        close: "weighted_cv" is preferred to a choice or a search if its gain is below the largest
            by at most this share of it.
    """

    methods: tuple[Method, ...]
    units: int
    shift: float
    close: float = 0.0

    @property
    def best(self) -> Method:
        """The method to take: that with the largest simulated gain, or a "weighted_cv" close to it
        instead of a choice or a search, because its own free search comes on top of what is
        simulated.
        """
        first = self.methods[0]
        if first.strategy.name == "free":
            return first
        least = (1 - self.close) * first.gain
        close = (
            one for one in self.methods if one.strategy.name == "weighted_cv" and one.gain >= least
        )
        return next(close, first)

    def __str__(self) -> str:
        lines = [f"{'method':46s} {'gain':>8s} {'alike':>8s} {'error':>8s}"]
        for method in self.methods:
            numbers = f"{method.gain:8.4f} {method.gain_alike:8.4f} {method.error:8.4f}"
            lines.append(f"{method.strategy!s:46s} {numbers}")
        if self.best.strategy.name == "free":
            lines.append(
                "The free choice is expected to win: cross-validate on the public records. Nothing"
                " needs to be released."
            )
        elif self.best is not self.methods[0]:
            lines.append(
                "weighted_cv is taken: it is close to the best, and its free search comes on top of"
                " what is simulated."
            )
        lines += [
            (
                f"gain: simulated mean gain over the default configuration with {self.units}"
                " protected units, drawn from populations that"
            ),
            (
                f"differ from the public one by up to {self.shift:g} standard deviations. alike:"
                " the same, drawn from the public one. error:"
            ),
            (
                "standard error of the gain minus the free choice's, from the simulation alone."
                " People of kinds that the public records lack"
            ),
            "are not simulated, so the gains are optimistic.",
        ]
        return "\n".join(lines)


class Noise(NamedTuple):
    """What the simulation needs to know of the budget.

    Attributes:
        cells: standard deviation of one released share.
        choice: scale of the noise of a private choice among mean scores of range 1.
        gumbel: whether that noise is Gumbel (exponential mechanism) or exponential
            (permute-and-flip).
        search: standard deviation of one evaluation in a search with as many evaluations as
            candidates.
        smoother: `candidates x candidates`: from a search's noised scores, centred, to posterior
            means.
    """

    cells: float
    choice: float
    gumbel: bool
    search: float
    smoother: Array


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
        random: where the simulated noise comes from.
    """

    public: PublicScores
    truth: Array
    counts: Array
    training: Array
    units: int
    width: float
    random: np.random.Generator
    _noised: dict[float | None, Array] = field(default_factory=dict)

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
        return cls(public, public.gains @ weights, counts, training, units, width, random)

    @functools.cached_property
    def order(self) -> list[int]:
        """The candidates as the training side orders them."""
        return ordered(self.public.gains @ self.training)

    def means(self, largest_difference: float | None = None) -> Array:
        """Mean gains on the protected draws, `DRAWS x candidates`, clipped to the largest
        difference."""
        gains = self.public.gains
        if largest_difference is not None:
            gains = np.clip(gains, -largest_difference, largest_difference)
        return np.asarray(self.counts @ gains.T / self.units)

    def noised_means(self, noise: Noise, largest_difference: float | None) -> Array:
        """The same with the noise of a private choice: one draw for all numbers of candidates."""
        if largest_difference not in self._noised:
            means = self.means(largest_difference)
            reach = self.width if largest_difference is None else 2 * largest_difference
            draw = self.random.gumbel if noise.gumbel else self.random.exponential
            self._noised[largest_difference] = means + noise.choice * reach * draw(size=means.shape)
        return self._noised[largest_difference]


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
    gains = np.empty((len(strengths), len(strategies)))
    for row, strength in enumerate(strengths):
        population = Population.drawn(public, strength, units, width, random)
        for column, strategy in enumerate(strategies):
            gains[row, column] = population.truth[strategy.rehearse(population, noise)].mean()
    same = gains[:alike]
    shifted = gains[alike:] if shift > 0 else same
    errors = np.std(shifted - shifted[:, :1], axis=0, ddof=1) / math.sqrt(len(shifted))
    figures = zip(strategies, shifted.mean(0), same.mean(0), errors, strict=True)
    methods = [
        Method(one, float(gain), float(gain_alike), float(error))
        for one, gain, gain_alike, error in figures
    ]
    return Rehearsal(tuple(sorted(methods, key=lambda method: -method.gain)), units, shift)


def smoother(space: Space, public: PublicScores, noise_std: float) -> Array:
    """From noised scores at the points to posterior means of a Gaussian process fitted to the
    public mean gains."""
    Y = torch.as_tensor(public.gains[1:].mean(1), dtype=torch.float64).reshape(-1, 1)
    with mute_optimizer_warnings(), torch.no_grad():
        gp = default_gp(space, public.points, Y, torch.full_like(Y, 1e-12))
        prior = gp.covar_module(gp.transform_inputs(public.points)).to_dense()
    noise = noise_std**2 / float(Y.var().clamp_min(1e-12)) * torch.eye(len(Y), dtype=torch.float64)
    return torch.linalg.solve(prior + noise, prior).T.numpy()


def _weights(public: PublicScores, strength: float, random: np.random.Generator) -> Array:
    """Weights of the public records, with sum 1, for one simulated population."""
    codes = np.eye(public.labels.max() + 1)[public.labels]
    parts = [codes, public.described, public.gains.T]
    sides = [
        _standardised(_standardised(part) @ random.standard_normal(part.shape[1])) for part in parts
    ]
    logits = strength * _standardised(np.sum(sides, 0))
    logits = np.minimum(logits, np.quantile(logits, 0.99))
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _standardised(table: Array) -> Array:
    spread = table.std(0)
    return (table - table.mean(0)) / np.where(spread > 0, spread, 1.0)
