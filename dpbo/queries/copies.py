"""A question keeps what it was asked with: altered in place between evaluation and release, a list of the caller's would give the exact
answer of one question the noise of another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def own(value: Any) -> Any:
    """A copy of every tensor and array, and of the lists, tuples and dicts around them; anything else, such as a model, is itself."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(map(own, value))
    if type(value) is dict:
        return {name: own(part) for name, part in value.items()}
    return value
