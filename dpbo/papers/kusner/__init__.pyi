from . import bounds as bounds
from .regularised import AdaptiveLipschitz as AdaptiveLipschitz
from .regularised import RegularisedBest as RegularisedBest
from .search import KusnerBoxSearch as KusnerBoxSearch
from .search import KusnerSearch as KusnerSearch
