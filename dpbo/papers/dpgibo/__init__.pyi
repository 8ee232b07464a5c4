from . import bounds as bounds
from .lattice import lattice_design as lattice_design
