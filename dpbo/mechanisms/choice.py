"""Base of the mechanisms that select one of N candidates by their exact utilities: exponential,
permute-and-flip and thresholded exponential.

The query gives one integer utility for each candidate, all on one lattice; a neighbour moves each
by at most D quanta (its linf sensitivity). Candidate j has level L_j = floor(u_j / w), w a public
width of about D/64, so neighbours move levels by at most s = ceil(D / w); levels lower than the
best one by more than 2^16 - 1 count as that far, which moves no more than the best level does.
Noise of scale M s levels, M = noise_multiplier = 2 / epsilon, decides on d_j = L_best - L_j >= 0
alone, and a candidate is drawn uniformly within its level. All draws are exact: where 64 random
bits do not decide, mpmath does with more of them. Utilities are read in chunks, three times, on
their device: of 10^8 on a GPU only the counts of the levels leave it. The time of a draw depends on
N and on the number of non-empty levels. The levels make the noise larger than M D quanta: by up to
1.6 % for epsilon above 0.06, by 19 % at the least epsilon, 0.01.
"""

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dpbo.accounting.gdp import rounded_up
from dpbo.errors import UsageError
from dpbo.mechanisms.mechanism import (
    Affine,
    Entropy,
    Epsilon,
    Floats,
    Integers,
    Mechanism,
    Numerators,
    Published,
)
from dpbo.privacy import Sensitivity
from dpbo.validation import between, checked, checked_constructor

LEVELS = 1 << 16
# The index that is published where no candidate is chosen.
NONE = -1
_FINENESS = 64
_CHUNK = {"cpu": 1 << 18}
_DEVICE_CHUNK = 1 << 22
# Noise scales between the best and the farthest level, less what `moves` is rounded up.
_DEPTH = 65.0
# `linf` is a float.
_ROUND_UP = 1 + Fraction(1, 2**40)
_LARGEST = 1 << 61


@dataclass(frozen=True)
class ChoiceDistribution:
    """The public law of one choice: levels of `width` quanta, which neighbours move by at most
    `moves`; noise of scale M * moves.
    """

    name: str
    width: int
    moves: int
    noise_multiplier: float

    @property
    def rate(self) -> Fraction:
        """Decay of a level's weight: exp(-rate) a level."""
        return 1 / (Fraction(self.noise_multiplier) * self.moves)

    def to_json(self) -> dict[str, Any]:
        """For the ledger."""
        return dict(vars(self))


@checked_constructor
@dataclass(frozen=True)
class ChoiceMechanism(Mechanism):
    """A choice with noise of scale `noise_multiplier` times the utilities' linf sensitivity: pure
    epsilon = 2 / noise_multiplier.

    Args:
        noise_multiplier: from 0.01 to 200.
    """

    noise_multiplier: Annotated[float, between(0.01, 200.0)]
    # whether the published index may be NONE
    may_choose_none: ClassVar[bool] = False

    @classmethod
    @checked
    def of(cls, epsilon: Epsilon) -> Self:
        """The mechanism of this pure epsilon: noise_multiplier 2 / epsilon, rounded up."""
        return cls(rounded_up(2 / Fraction(epsilon)))

    @abc.abstractmethod
    def choose(self, counts: Integers, rate: Fraction, entropy: Entropy) -> int:
        """Draws the distance d below the best level, given the candidates at each distance."""

    @abc.abstractmethod
    def simulated(self, utilities: Floats, random: np.random.Generator) -> Integers:
        """Choices by this law, but for the rounding of floats: to simulate with public numbers,
        never to release.

        Args:
            utilities: of each draw's candidates, over the scale of the noise, `draws x N`.
        """

    def chooses(self, counts: Integers, best: int, rate: Fraction, entropy: Entropy) -> bool:
        """Whether any candidate is chosen, given how many there are at each distance below the
        best level, and that level."""
        return True

    def distribution(self, sensitivity: Sensitivity, quanta: Sequence[float]) -> ChoiceDistribution:
        scale = sensitivity.scale
        # A set of millions would take long.
        if scale[0] != 1.0 or any(each.count(each[0]) < len(each) for each in (scale, quanta)):
            raise UsageError("the query must have a single unit and range for all candidates.")
        most = math.ceil(Fraction(sensitivity.linf) * _ROUND_UP / Fraction(quanta[0]))
        reach = _DEPTH * self.noise_multiplier / LEVELS
        width = max(math.ceil(most * max(1 / _FINENESS, reach)), 1)
        return ChoiceDistribution(
            self.event().mechanism, width, math.ceil(Fraction(most, width)), self.noise_multiplier
        )

    def _sample(
        self, numerators: Numerators, quanta: Sequence[float], distribution: Any, entropy: Entropy
    ) -> Integers:
        if not isinstance(numerators, Tensor):
            numerators = torch.from_numpy(np.array(numerators, dtype=np.int64))
        utilities = numerators.to(torch.int64)
        best = max(int(chunk.max()) for _, chunk in _chunks(utilities)) // distribution.width
        counts = torch.zeros(LEVELS, dtype=torch.int64, device=utilities.device)
        for _, chunk in _chunks(utilities):
            counts += _counted(_distances(chunk, best, distribution.width))
        filled = counts.cpu().numpy()
        if not self.chooses(filled, best, distribution.rate, entropy):
            return np.array([NONE])
        distance = self.choose(filled, distribution.rate, entropy)
        nth = draw_below(int(filled[distance]), entropy)
        return np.array([_nth(utilities, best, distribution.width, distance, nth)])

    def publish(self, drawn: Integers, distribution: Any, affine: Affine) -> Published:
        return drawn.astype(np.float64), np.zeros(0)


def draw_below(count: int, entropy: Entropy) -> int:
    """One of 0 ... count - 1, each with the same probability: draws again where a draw would favour
    the low ones.
    """
    bits = 64 * math.ceil(count.bit_length() / 64)
    fair = (1 << bits) - (1 << bits) % count
    while (number := int.from_bytes(entropy(bits // 8), "little")) >= fair:
        pass
    return number % count


def _chunks(utilities: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The start of each chunk and a copy of its utilities. No query's sum is larger than the clamp,
    which keeps distances in int64.
    """
    size = _CHUNK.get(utilities.device.type, _DEVICE_CHUNK)
    for start in range(0, len(utilities), size):
        yield start, utilities[start : start + size].clamp(-_LARGEST, _LARGEST)


def _distances(chunk: Tensor, best: int, width: int) -> Tensor:
    """How many levels each utility lies below the best one, in the chunk's own memory."""
    # Torch divides whole numbers one at a time.
    if chunk.device.type == "cpu":
        np.floor_divide(chunk.numpy(), width, out=chunk.numpy())
    else:
        chunk.div_(width, rounding_mode="floor")
    return chunk.neg_().add_(best).clamp_(max=LEVELS - 1)


def _counted(distances: Tensor) -> Tensor:
    """How many utilities lie at each of the levels."""
    if distances.device.type == "cpu":
        return torch.bincount(distances, minlength=LEVELS)
    # On a GPU additions to one address wait for each other, and most lie at the last level.
    near = distances[distances < LEVELS - 1]
    counts = torch.bincount(near, minlength=LEVELS)
    counts[-1] = len(distances) - len(near)
    return counts


def _nth(utilities: Tensor, best: int, width: int, distance: int, nth: int) -> int:
    """Index of the nth candidate at this distance."""
    for start, chunk in _chunks(utilities):
        found = (_distances(chunk, best, width) == distance).nonzero()
        if nth < len(found):
            return start + int(found[nth])
        nth -= len(found)
    raise AssertionError("the counts promised one more candidate")
