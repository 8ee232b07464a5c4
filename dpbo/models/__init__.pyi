from .builders import default_gp as default_gp
from .builders import sparse_gp as sparse_gp
from .finite import FiniteGP as FiniteGP
from .noisy_inputs import noisy_inputs as noisy_inputs
