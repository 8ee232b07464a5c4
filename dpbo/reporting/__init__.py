"""What was released, as a page, as pictures and as values; nothing here sees a record."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
