from .choose import adaptive_points as adaptive_points
from .choose import choose_points as choose_points
from .gradient_information import GradientInformation as GradientInformation
