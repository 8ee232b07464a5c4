"""GaussianMechanism under the mechanism contract."""

from scipy.stats import norm

from dpbo.mechanisms import GaussianMechanism
from dpbo.testing import MechanismContract


class TestGaussian(MechanismContract):
    covers = GaussianMechanism

    def mechanism(self):
        return GaussianMechanism(3.0)

    def cdf(self, noise, std):
        return norm.cdf(noise, scale=std)
