"""Differentially private Bayesian optimisation for PyTorch, GPyTorch and BoTorch."""

import lazy_loader

from dpbo._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
