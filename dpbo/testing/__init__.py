"""Contracts, audits and assertions with which users test their own queries, mechanisms and
scores.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
