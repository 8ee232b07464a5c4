from .gaussian import GaussianMechanism as GaussianMechanism
from .mechanism import Mechanism as Mechanism
