from .rehearsal import Rehearsal as Rehearsal
from .results import SearchRelease as SearchRelease
from .search import DPSearch as DPSearch
from .search import rehearse as rehearse
