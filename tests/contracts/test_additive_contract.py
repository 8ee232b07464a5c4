"""Gaussian and Laplace noise, alone and in shares, under the mechanism contract."""

import dataclasses
import math

import numpy as np
from scipy.stats import laplace, norm

from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.mechanisms.shares import GaussianShare, LaplaceShare
from tests.attacks.marks import attack
from tests.contracts.mechanism_contract import MechanismContract


@attack("A1", "A2")
class TestGaussian(MechanismContract):
    covers = GaussianMechanism
    norm = "l2"

    def mechanism(self):
        return GaussianMechanism(3.0)

    def cdf(self, noise, scale):
        return norm.cdf(noise, scale=scale)


def in_three(numerators):
    """Parts of a sum."""
    whole = np.asarray(numerators)
    return whole // 3 + 12_345, whole // 7, whole - whole // 3 - whole // 7 - 12_345


class HonestShares(GaussianMechanism):
    """What ranks release of five, of which two add nothing: three shares, each with a part of the
    sum.
    """

    share = GaussianShare(3.0, ranks=5, tolerate=2)

    def distribution(self, sensitivity, quanta):
        law = self.share.distribution(sensitivity, quanta)
        return dataclasses.replace(law, scale=tuple(math.sqrt(3) * s for s in law.scale))

    def _sample(self, numerators, quanta, distribution, entropy):
        law = dataclasses.replace(
            distribution, scale=tuple(s / math.sqrt(3) for s in distribution.scale)
        )
        return sum(self.share._sample(part, quanta, law, entropy) for part in in_three(numerators))


@attack("A1", "A2")
class TestShares(MechanismContract):
    covers = GaussianShare
    norm = "l2"

    def mechanism(self):
        return HonestShares(3.0)

    def cdf(self, noise, scale):
        return norm.cdf(noise, scale=scale)


@attack("A1", "A2")
class TestLaplace(MechanismContract):
    covers = LaplaceMechanism
    norm = "l1"

    def mechanism(self):
        return LaplaceMechanism(3.0)

    def cdf(self, noise, scale):
        return laplace.cdf(noise, scale=scale)


class HonestLaplaceShares(LaplaceShare):
    """The same of Laplace noise, whose shares have the scale of their total."""

    def _sample(self, numerators, quanta, distribution, entropy):
        return sum(
            LaplaceShare._sample(self, part, quanta, distribution, entropy)
            for part in in_three(numerators)
        )


@attack("A1", "A2")
class TestLaplaceShares(MechanismContract):
    covers = LaplaceShare
    norm = "l1"

    def mechanism(self):
        return HonestLaplaceShares(3.0, ranks=5, tolerate=2)

    def cdf(self, noise, scale):
        return laplace.cdf(noise, scale=scale)
