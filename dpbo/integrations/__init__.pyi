from . import ax as ax
from . import optuna as optuna
from .recommendation import recommended as recommended
