from .additive import AdditiveMechanism as AdditiveMechanism
from .exponential import ExponentialMechanism as ExponentialMechanism
from .gaussian import GaussianMechanism as GaussianMechanism
from .laplace import LaplaceMechanism as LaplaceMechanism
from .mechanism import Mechanism as Mechanism
from .permute_and_flip import PermuteAndFlipMechanism as PermuteAndFlipMechanism
from .selection import SelectionMechanism as SelectionMechanism
