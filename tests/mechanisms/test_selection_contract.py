"""The selection mechanisms under their contract, with laws written down independently of the code that draws."""

import functools

import numpy as np
import pytest

from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.testing import SelectionContract

_gauss = functools.cache(np.polynomial.legendre.leggauss)


@pytest.mark.attack("A10")
@pytest.mark.attack("A14")
class TestExponential(SelectionContract):
    covers = ExponentialMechanism

    def mechanism(self, epsilon):
        return ExponentialMechanism.of(epsilon)

    def probabilities(self, distances, rate):
        weights = np.exp(-rate * (distances - distances.min()))
        return weights / weights.sum()


@pytest.mark.attack("A10")
@pytest.mark.attack("A14")
class TestPermuteAndFlip(SelectionContract):
    covers = PermuteAndFlipMechanism

    def mechanism(self, epsilon):
        return PermuteAndFlipMechanism.of(epsilon)

    def probabilities(self, distances, rate):
        """In random order, each accepted with its chance: chance_j times the integral over [0, 1] of prod (1 - chance_i t), i not j."""
        accept = np.exp(-rate * (distances - distances.min()))
        nodes, weights = _gauss(400 if len(accept) > 10 else 40)
        factors = 1 - np.outer((nodes + 1) / 2, accept)
        return accept * (weights / 2 @ (factors.prod(1, keepdims=True) / factors))
