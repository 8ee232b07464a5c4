"""DP-GIBO (Sopa, Marusic, Avella-Medina & Cunningham 2025): the algorithm, its model and designs,
and the paper's theorems.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
