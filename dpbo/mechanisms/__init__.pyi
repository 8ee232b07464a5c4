from .exponential import ExponentialMechanism as ExponentialMechanism
from .gaussian import GaussianMechanism as GaussianMechanism
from .l2_laplace import L2LaplaceMechanism as L2LaplaceMechanism
from .laplace import LaplaceMechanism as LaplaceMechanism
from .no_noise import NoNoise as NoNoise
from .permute_and_flip import PermuteAndFlipMechanism as PermuteAndFlipMechanism
from .thresholded_exponential import (
    ThresholdedExponentialMechanism as ThresholdedExponentialMechanism,
)
