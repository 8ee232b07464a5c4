"""Gaussian and Laplace noise under the mechanism contract."""

from scipy.stats import laplace, norm

from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
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


@attack("A1", "A2")
class TestLaplace(MechanismContract):
    covers = LaplaceMechanism
    norm = "l1"

    def mechanism(self):
        return LaplaceMechanism(3.0)

    def cdf(self, noise, scale):
        return laplace.cdf(noise, scale=scale)
