"""What the output of a hidden run may hold, and its copy.

- numbers, text and bytes, of Python and NumPy; arrays of these
- dates, times and durations; paths, as text: what lies there does not leave with them
- torch's tensors and parameters, and what else `torch.load(weights_only=True)` reads
- lists, tuples, named tuples, sets, dicts and data classes of these; of a data class its fields;
  of a defaultdict its factory where that is a class
- tables and columns of pandas: their cells, categories as what they stand for
- modules that a session released
- estimators of scikit-learn and of its kind: with what they keep if that is of these kinds, else
  as they were before `fit`, with their parameters

Nothing else leaves, such as a trained module, a function or an optimizer. A copy shares nothing
with its original, and has no attributes, gradients or further memory of a tensor's.
"""

import collections
import dataclasses
import datetime
import functools
import io
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbo.dpsgd.rebuilding import copied_module
from dpbo.dpsgd.trained import is_rebuilt
from dpbo.errors import InputError

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_TIMES = (datetime.date, datetime.time, datetime.timedelta)
_SEQUENCES = (list, tuple, set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


def copied_output(output: Any, unfitted: list[str]) -> Any:
    """A copy of an output. Estimators that are copied without what `fit` made are named in
    `unfitted`.

    Raises:
        InputError: it holds what may not leave. Another error comes of the output's own code.
    """
    copied = functools.partial(copied_output, unfitted=unfitted)
    kind = type(output)
    if kind in _PLAIN or isinstance(output, _TIMES):
        return output
    if isinstance(output, pathlib.PurePath):
        return kind(str(output))
    if kind in _SEQUENCES:
        return kind(map(copied, output))
    if isinstance(output, tuple) and hasattr(kind, "_make"):
        return kind._make(map(copied, output))
    if kind in _MAPPINGS:
        filled: Any = kind()
        filled.update({copied(key): copied(part) for key, part in output.items()})
        # a class such as int; a function could hold records
        if isinstance(output, collections.defaultdict) and isinstance(output.default_factory, type):
            filled.default_factory = output.default_factory
        return filled
    if isinstance(output, (np.ndarray, np.generic)) and not output.dtype.hasobject:
        # `subok` is False: a subclass's attributes stay.
        return np.array(output)[()] if isinstance(output, np.generic) else np.array(output)
    if kind in (torch.Tensor, nn.Parameter):
        # A view would save its whole storage.
        alone = output.detach().clone(memory_format=torch.contiguous_format)
        return nn.Parameter(alone, output.requires_grad) if kind is nn.Parameter else alone
    if isinstance(output, nn.Module) and is_rebuilt(output):
        return copied_module(output)
    if isinstance(output, (type, nn.Module)):
        return _read_back(output)
    if hasattr(output, "get_params"):
        return _copied_estimator(output, unfitted)
    if hasattr(output, "iloc"):
        return _copied_table(output, copied)
    if dataclasses.is_dataclass(output):
        rebuilt = object.__new__(kind)
        for field in dataclasses.fields(output):
            object.__setattr__(rebuilt, field.name, copied(getattr(output, field.name)))
        return rebuilt
    return _read_back(output)


def _copied_estimator(estimator: Any, unfitted: list[str]) -> Any:
    kept = object.__new__(type(estimator))
    lost = list[str]()
    try:
        vars(kept).update(copied_output(vars(estimator), lost))
    # A fitted tree, for example, holds memory of its own.
    except InputError:
        lost.append("")
    if not lost:
        return kept
    # A forest of unfitted trees is none.
    unfitted.append(type(estimator).__name__)
    return type(estimator)(**copied_output(estimator.get_params(deep=False), []))


def _copied_table(table: Any, copied: Callable[[Any], Any]) -> Any:
    import pandas as pd

    frame = table.to_frame() if table.ndim == 1 else table
    # pandas' own missing value is of no kind that may leave
    cells = frame.astype(object).where(frame.notna(), None).to_dict(orient="tight")
    plain = {name: dtype for name, dtype in frame.dtypes.items() if isinstance(dtype, np.dtype)}
    rebuilt = pd.DataFrame.from_dict(copied(cells), orient="tight").astype(plain)
    return rebuilt.iloc[:, 0].rename(copied(table.name)) if table.ndim == 1 else rebuilt


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
