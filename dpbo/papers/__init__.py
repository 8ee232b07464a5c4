"""Published algorithms. Each says whether its paper's guarantee holds, is conditional or is broken,
and which method is sound.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
