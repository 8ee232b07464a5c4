"""Ax experiments over a private objective. Ax is imported here without its warnings about its own
deprecated imports.
"""

import importlib
import warnings

import lazy_loader

from dpbo.extras import needs

with needs("ax"), warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    importlib.import_module("ax.api.client")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
