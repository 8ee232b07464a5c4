"""Differentially Private Bayesian Optimization (Kusner, Gardner, Garnett & Weinberger 2015): three
private searches, eight theorems.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
