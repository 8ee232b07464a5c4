"""Whether two public things are the same: models, points, functions with what they close over, results."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import types
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch


def fingerprint(thing: Any) -> str:
    """A digest of the content, as far as it can be reached: code, closures and defaults of functions, bytes of tensors and arrays.

    What can neither be pickled nor taken apart counts by its type.
    """
    return hashlib.sha256(_bytes(thing)).hexdigest()


def _bytes(thing: Any) -> bytes:
    if isinstance(thing, torch.Tensor):
        thing = thing.detach().cpu().contiguous().numpy()
    if isinstance(thing, np.ndarray) and thing.dtype.kind != "O":
        return repr((thing.dtype.str, thing.shape)).encode() + thing.tobytes()
    if isinstance(thing, types.MethodType):
        return _joined("method", thing.__func__, thing.__self__)
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return _joined("function", thing.__code__, thing.__defaults__, thing.__kwdefaults__, *cells)
    if isinstance(thing, types.CodeType):
        return _joined("code", thing.co_code, thing.co_names, *(part for part in thing.co_consts if not isinstance(part, str)))
    if isinstance(thing, partial):
        return _joined("partial", thing.func, thing.args, thing.keywords)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return _joined(type(thing).__qualname__, *(getattr(thing, field.name) for field in dataclasses.fields(thing)))
    if isinstance(thing, Mapping):
        return _joined("mapping", *(part for item in thing.items() for part in item))
    if isinstance(thing, (tuple, list)):
        return _joined(type(thing).__name__, *thing)
    try:
        return _pickled(thing)
    except Exception:
        return f"{type(thing).__module__}.{type(thing).__qualname__}".encode()


class _Pickler(pickle.Pickler):
    """Tensors by their content: torch's own pickle of a storage is another one every time."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor) and thing.dtype is not torch.bfloat16 and thing.layout is torch.strided:
            return torch.from_numpy, (thing.detach().cpu().contiguous().numpy(),)
        return NotImplemented


def _pickled(thing: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(thing)
    return buffer.getvalue()


def _joined(*parts: Any) -> bytes:
    return b"".join(hashlib.sha256(part.encode() if isinstance(part, str) else _bytes(part)).digest() for part in parts)
