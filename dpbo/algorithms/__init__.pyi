from .gibo import DPGIBO as DPGIBO
from .gibo import GIBOResult as GIBOResult
from .gibo_options import choose_clip as choose_clip
from .gibo_options import choose_start as choose_start
from .gibo_settings import PAPER as PAPER
from .gibo_settings import RECOMMENDED as RECOMMENDED
from .gibo_settings import GIBOSettings as GIBOSettings
