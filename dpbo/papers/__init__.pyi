from . import em as em
from . import kusner as kusner
from . import po_gp_ucb as po_gp_ucb
