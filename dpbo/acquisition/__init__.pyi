from .choose import adaptive_points as adaptive_points
from .choose import choose_points as choose_points
from .gradient_information import GradientInformation as GradientInformation
from .ucb import GPUCB as GPUCB
from .ucb import SrinivasCompact as SrinivasCompact
from .ucb import SrinivasFinite as SrinivasFinite
from .ucb import argmax_ucb as argmax_ucb
from .ucb import kusner_beta as kusner_beta
