from . import bounds as bounds
from .regularised import AdaptiveLipschitz as AdaptiveLipschitz
from .regularised import RegularisedBest as RegularisedBest
from .search import KusnerSearch as KusnerSearch
from .search import grid_of_box as grid_of_box
