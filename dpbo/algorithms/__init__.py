"""Algorithms over the private objective, one file each: where the public and the private side
meet.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
