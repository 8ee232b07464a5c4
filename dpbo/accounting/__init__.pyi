from .calibration import calibrate as calibrate
from .composition import compose as compose
from .filters import GDPFilter as GDPFilter
from .filters import PureFilter as PureFilter
from .filters import RDPFilter as RDPFilter
from .filters import ZCDPFilter as ZCDPFilter
from .planned import Planned as Planned
