"""Opacus, loaded without letting it touch the application's logging.

Importing opacus configures the root logger (a handler and a level). Everything in dpbo that needs opacus gets it from here.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType


def load_opacus(module: str = "opacus") -> ModuleType:
    """`module` of opacus, with the root logger's handlers and level as they were before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return importlib.import_module(module)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
