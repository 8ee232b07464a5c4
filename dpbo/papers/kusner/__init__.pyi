from .regularised import AdaptiveLipschitz as AdaptiveLipschitz
from .regularised import RegularisedBest as RegularisedBest
from .search import KusnerSearch as KusnerSearch
