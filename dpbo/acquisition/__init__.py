"""Which point to evaluate next: acquisition functions and closed-form designs. Public, free, and
repeatable.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
