from .calibrate import calibrate as calibrate
from .filters import Filter as Filter
from .filters import GDPFilter as GDPFilter
from .filters import PureFilter as PureFilter
from .filters import RDPFilter as RDPFilter
from .filters import ZCDPFilter as ZCDPFilter
