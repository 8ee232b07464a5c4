"""Optuna studies over a private objective."""

import lazy_loader

from dpbo.integrations.extras import require_extra

require_extra("optuna", "optuna")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
