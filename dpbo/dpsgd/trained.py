"""Which modules were trained with DP-SGD, and which were rebuilt from these.

Trained ones hold records, so they are neither released nor trained again. Of rebuilt ones the mark
is an attribute, which their copies and files have as well.
"""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

_MARK = "rebuilt_by_dpbo"
_layers: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()


def note_trained(layers: Iterable[nn.Module]) -> None:
    """Remember these layers."""
    _layers.update((id(layer), layer) for layer in layers)


def was_trained(module: nn.Module) -> bool:
    """Whether one of its layers was trained."""
    return any(_layers.get(id(layer)) is layer for layer in module.modules())


def mark_rebuilt(things: Iterable[Any], *, rebuilt: bool = True) -> None:
    """Mark the modules among these as made of public things and noised numbers alone, or take the
    mark off them.
    """
    for thing in things:
        if isinstance(thing, nn.Module):
            vars(thing).pop(_MARK, None)
            if rebuilt:
                vars(thing)[_MARK] = True


def is_rebuilt(module: nn.Module) -> bool:
    """Whether it and all its layers have the mark. A copy has it, too."""
    return all(_MARK in vars(layer) for layer in module.modules())
