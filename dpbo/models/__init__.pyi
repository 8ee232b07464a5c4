from .derivatives import Derivatives as Derivatives
from .gradient_gp import GradientGP as GradientGP
from .gradient_posterior import GradientPosterior as GradientPosterior
from .kernels import derivatives as derivatives
