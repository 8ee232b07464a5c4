"""Which modules of this process were trained with DP-SGD. They hold records, so they are neither released nor trained again."""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from dpbo.errors import InputError

_layers: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()


def note_trained(layers: Iterable[nn.Module]) -> None:
    """Remember these layers."""
    _layers.update((id(layer), layer) for layer in layers)


def was_trained(module: nn.Module) -> bool:
    """Whether one of its layers was trained."""
    return any(_layers.get(id(layer)) is layer for layer in module.modules())


def require_rebuilt(output: Any) -> None:
    """Raise InputError for a trained module, also in a container, in place of the one that was rebuilt from it."""
    for module in _modules(output):
        if was_trained(module):
            remedy = "Return session.released(): the trained module holds records, and what was not noised."
            raise InputError("output", type(module).__name__, "one that was rebuilt", remedy)


def _modules(value: Any) -> list[nn.Module]:
    if isinstance(value, Mapping):
        return [module for part in value.values() for module in _modules(part)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [module for part in value for module in _modules(part)]
    return [value] if isinstance(value, nn.Module) else []
