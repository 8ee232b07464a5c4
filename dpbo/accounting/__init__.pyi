from .calibrate import calibrate as calibrate
from .filters import Filter as Filter
from .filters import GDPFilter as GDPFilter
