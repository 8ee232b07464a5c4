"""Everything public that can be reached from a result: what a replay compares to see that no side
output carries the records.

Public attributes, properties and elements, as deep as they go, of dpbo's and scikit-learn's
objects; tensors and arrays by their bits; models by their state; statements by their text, without
hashes. What is the curator's own (its ledger has a comparison of its own) is left out.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.ledger.ledger import Ledger
from dpbo.statement import Statement

_DEEP = 6
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, np.ndarray, np.generic)
_HASH = re.compile(r"[0-9a-f]{12,}")


def public(thing: Any, depth: int = _DEEP) -> Any:
    if isinstance(thing, Statement):
        return _HASH.sub("#", str(thing) + thing.to_json())
    if isinstance(thing, (Curator, Ledger, Handle, type)) or depth == 0:
        return type(thing).__name__
    if isinstance(thing, _PLAIN):
        return thing
    if isinstance(thing, torch.nn.Module):
        return {name: value.clone() for name, value in thing.state_dict().items()}
    if isinstance(thing, Mapping):
        return {str(key): public(value, depth - 1) for key, value in thing.items()}
    if isinstance(thing, (list, tuple, set, frozenset)):
        return [
            public(part, depth - 1)
            for part in (sorted(thing) if isinstance(thing, (set, frozenset)) else thing)
        ]
    known = {kind.__module__.split(".")[0] for kind in type(thing).__mro__} & {"dpbo", "sklearn"}
    if callable(thing) and not known:
        return getattr(thing, "__qualname__", type(thing).__qualname__)
    if known or dataclasses.is_dataclass(thing):
        return {
            "repr": _HASH.sub("#", repr(thing)),
            **{name: public(_read(thing, name), depth - 1) for name in _names(thing)},
        }
    return type(thing).__qualname__


def _names(thing: Any) -> list[str]:
    """Public attributes and properties; of methods only `statement`, which is what a reader
    calls.
    """
    names = [name for name in dir(thing) if not name.startswith("_")]
    return [
        name
        for name in names
        if name == "statement" or not inspect.isroutine(inspect.getattr_static(thing, name, None))
    ]


def _read(thing: Any, name: str) -> Any:
    try:
        value = getattr(thing, name)
        return value() if name == "statement" and callable(value) else value
    except Exception as error:
        # A property that is not there yet.
        return type(error).__name__
