from .asynchronous import AsynchronousBO as AsynchronousBO
from .gibo import DPGIBO as DPGIBO
from .gibo import choose_clip as choose_clip
from .gibo import choose_start as choose_start
from .gibo_design import GIBOSettings as GIBOSettings
from .selection import NoisedScore as NoisedScore
from .selection import private_selection as private_selection
from .two_stage_search import search_then_choose as search_then_choose
