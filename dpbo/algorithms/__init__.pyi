from .gibo import DPGIBO as DPGIBO
from .gibo import GIBOResult as GIBOResult
from .gibo_settings import PAPER as PAPER
from .gibo_settings import RECOMMENDED as RECOMMENDED
from .gibo_settings import GIBOSettings as GIBOSettings
