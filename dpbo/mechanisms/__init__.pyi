from .additive import AdditiveMechanism as AdditiveMechanism
from .gaussian import GaussianMechanism as GaussianMechanism
from .laplace import LaplaceMechanism as LaplaceMechanism
from .mechanism import Mechanism as Mechanism
