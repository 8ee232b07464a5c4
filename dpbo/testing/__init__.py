"""Contracts, audits and assertions, shipped so that users test their own objectives and mechanisms with them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
