from .experiments import ClientObjective as ClientObjective
from .strategies import gp_ucb as gp_ucb
from .strategies import gradient_information as gradient_information
from .strategies import noisy_improvement as noisy_improvement
