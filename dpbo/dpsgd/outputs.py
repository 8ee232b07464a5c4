"""What the output of a hidden run may hold, and its copy.

- numbers, text and bytes, of Python and NumPy; arrays of these
- torch's tensors and parameters, and what else `torch.load(weights_only=True)` reads
- lists, tuples, sets and dicts of these
- modules that a session released
- estimators of scikit-learn and of its kind: with what they keep if that is of these kinds, else
  as they were before `fit`, with their parameters

Nothing else leaves, such as a trained module, a function or an optimizer. A copy shares nothing
with its original, and has no attributes, gradients or further memory of a tensor's.
"""

import collections
import io
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbo.dpsgd.rebuilding import copied_module
from dpbo.dpsgd.trained import is_rebuilt
from dpbo.errors import InputError

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict)


def copied_output(output: Any) -> Any:
    """A copy of an output.

    Raises:
        InputError: it holds what may not leave. Another error comes of the output's own code.
    """
    kind = type(output)
    if kind in _PLAIN:
        return output
    if kind in _SEQUENCES:
        return kind(map(copied_output, output))
    if kind in _MAPPINGS:
        return kind((copied_output(key), copied_output(part)) for key, part in output.items())
    if isinstance(output, (np.ndarray, np.generic)) and not output.dtype.hasobject:
        # `subok` is False: a subclass's attributes stay.
        return np.array(output)[()] if isinstance(output, np.generic) else np.array(output)
    if kind in (torch.Tensor, nn.Parameter):
        # A view would save its whole storage.
        alone = output.detach().clone(memory_format=torch.contiguous_format)
        return nn.Parameter(alone, output.requires_grad) if kind is nn.Parameter else alone
    if isinstance(output, nn.Module) and is_rebuilt(output):
        return copied_module(output)
    if not isinstance(output, (type, nn.Module)) and hasattr(output, "get_params"):
        return _copied_estimator(output)
    return _read_back(output)


def _copied_estimator(estimator: Any) -> Any:
    kept = object.__new__(type(estimator))
    try:
        vars(kept).update(copied_output(vars(estimator)))
    # A fitted tree, for example, holds memory of its own.
    except InputError:
        return type(estimator)(**copied_output(estimator.get_params(deep=False)))
    return kept


def _read_back(thing: Any) -> Any:
    buffer = io.BytesIO()
    try:
        torch.save(thing, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)
    # Which one depends on where pickling ends.
    except Exception:
        remedy = (
            "Numbers, text, arrays, tensors, containers of these and estimators may. Of a module"
            " that was trained, return session.released()."
        )
        raise InputError("output", type(thing).__name__, "of what may leave", remedy) from None
