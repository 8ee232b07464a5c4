"""The choice mechanisms under their contract, with laws written down independently of the code that
draws.
"""

import functools

import numpy as np

from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.mechanisms.choice import LEVELS, draw_below
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.contracts.choice_contract import ChoiceContract

_gauss = functools.cache(np.polynomial.legendre.leggauss)


class _CountedOnce(ChoiceContract):
    """Counts the candidates of each level once for all draws, which is nearly all of a draw's time;
    a few draws are the mechanism's own.
    """

    def _draw(self, epsilon, utilities, draws, seed):
        mechanism = self.mechanism(epsilon)
        law = self._law(epsilon)
        entropy = SeededEntropy(seed)
        levels = utilities // law.width
        rate = law.rate
        distances = np.minimum(levels.max() - levels, LEVELS - 1)
        counts = np.bincount(distances)
        members = {d: np.flatnonzero(distances == d) for d in set(distances.tolist())}
        chosen = (mechanism.choose(counts, rate, entropy) for _ in range(draws))
        drawn = np.array([int(members[d][draw_below(len(members[d]), entropy)]) for d in chosen])
        own = super()._draw(epsilon, utilities, min(draws, 200), seed)
        assert drawn[:200].tolist() == own.tolist()
        return drawn


@attack("A10", "A14")
class TestExponential(_CountedOnce):
    covers = ExponentialMechanism

    def mechanism(self, epsilon):
        return ExponentialMechanism.of(epsilon)

    def probabilities(self, distances, rate):
        weights = np.exp(-rate * (distances - distances.min()))
        return weights / weights.sum()


@attack("A10", "A14")
class TestPermuteAndFlip(_CountedOnce):
    covers = PermuteAndFlipMechanism

    def mechanism(self, epsilon):
        return PermuteAndFlipMechanism.of(epsilon)

    def probabilities(self, distances, rate):
        """In random order, each accepted with its chance: chance_j times the integral over [0, 1]
        of prod (1 - chance_i t), i not j.
        """
        accept = np.exp(-rate * (distances - distances.min()))
        nodes, weights = _gauss(400 if len(accept) > 10 else 40)
        factors = 1 - np.outer((nodes + 1) / 2, accept)
        return accept * (weights / 2 @ (factors.prod(1, keepdims=True) / factors))
