from .loops import KusnerSearch as KusnerSearch
from .regularised import Adaptive as Adaptive
from .regularised import RegularisedBest as RegularisedBest
