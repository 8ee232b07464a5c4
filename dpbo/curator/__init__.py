"""The private records, the noise and the ledger; `dpbo.Curator` is the class to start with."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
