from . import ax as ax
from . import http as http
from . import opacus as opacus
from . import optuna as optuna
from . import sklearn as sklearn
from .recommendation import recommended as recommended
