from .training import DPSGD as DPSGD
from .training import Fit as Fit
from .training import Session as Session
