from .rehearsal import Rehearsal as Rehearsal
from .search import DPSearch as DPSearch
from .search import rehearse as rehearse
