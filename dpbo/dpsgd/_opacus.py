"""Imports Opacus without changing the application's logging: by itself it gives the root logger a
handler and a level.
"""

import importlib
import logging
from types import ModuleType


def load_opacus(module: str = "opacus") -> ModuleType:
    """Import a module of Opacus and restore the root logger's handlers and level."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    try:
        return importlib.import_module(module)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
