"""Contracts, audits and assertions for tests of your own queries, scores and algorithms."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
