"""A digest of what is asked, to the last bit, so that ranks can tell whether they ask the same. Of public things only.

Numbers, words, tensors and arrays count with every bit, containers and data classes with all their parts, handles by their names,
`functools.partial` with what it binds. Of another function only its name can be compared, of any other object its type: what a score or a
model does is each process's own.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dpbo.curator.handle import Handle
from dpbo.queries.query import Query

_PLAIN = (numbers.Number, str, bytes, type(None))


def digest_of(asked: Any) -> bytes:
    """32 bytes."""
    hashed = hashlib.sha256()
    for part in _parts(asked):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def _parts(value: Any) -> Iterator[bytes]:
    yield type(value).__qualname__.encode()
    if isinstance(value, Query):
        yield from _parts(value.public_inputs())
    if isinstance(value, enum.Enum):
        yield value.name.encode()
    elif isinstance(value, _PLAIN) and not isinstance(value, np.generic):
        yield repr(value).encode()
    elif isinstance(value, Handle):
        yield value.id.encode()
    elif isinstance(value, torch.Tensor):
        flat = value.detach().cpu().to_dense().resolve_conj().resolve_neg().reshape(-1)
        yield repr((value.dtype, tuple(value.shape))).encode() + flat.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, (np.ndarray, np.generic)):
        yield repr((value.dtype, value.shape)).encode() + (b"" if value.dtype.hasobject else value.tobytes())
        if value.dtype.hasobject:
            yield from _several(value.reshape(-1).tolist())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield from _several(sorted(value.items(), key=lambda item: str(item[0])))
    elif isinstance(value, (list, tuple, range)):
        yield from _several(value)
    elif isinstance(value, (set, frozenset)):
        yield from _several(sorted(map(digest_of, value)))
    elif isinstance(value, functools.partial):
        yield from _several((value.func, value.args, value.keywords))
    elif callable(value):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}".encode()


def _several(values: Any) -> Iterator[bytes]:
    yield str(len(values)).encode()
    for value in values:
        yield from _parts(value)
