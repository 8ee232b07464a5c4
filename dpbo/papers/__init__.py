"""The published algorithms whose guarantee is conditional or broken, or that stand beside the main road."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
