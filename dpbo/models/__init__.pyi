from .gradient_gp import GradientGP as GradientGP
from .gradient_posterior import GradientPosterior as GradientPosterior
from .kernel_derivatives import Derivatives as Derivatives
from .kernels import derivatives as derivatives
