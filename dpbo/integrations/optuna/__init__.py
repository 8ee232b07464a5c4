"""Optuna studies over a private objective."""

import importlib

import lazy_loader

from dpbo.extras import needs

with needs("optuna"):
    importlib.import_module("optuna")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
