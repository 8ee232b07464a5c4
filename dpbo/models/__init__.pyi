from .builders import default_gp as default_gp
from .builders import sparse_gp as sparse_gp
from .finite import FiniteGP as FiniteGP
from .gradient_gp import GradientGP as GradientGP
from .gradient_posterior import GradientPosterior as GradientPosterior
from .noisy_inputs import noisy_inputs as noisy_inputs
