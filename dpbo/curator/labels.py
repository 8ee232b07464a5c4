"""Unit labels as values: two records belong to one unit if and only if their labels are equal as values.

Numbers, bools, text, bytes, dates, tuples of these, and arrays, tensors and Series of them are values; a 0-d tensor or array counts as what
it holds. Other objects may compare by identity, which would make every record a unit of its own, so they are refused by name. Labels of
different kinds are refused too: 1 and "1" would be two units.
"""

from __future__ import annotations

import datetime
import math
import numbers
import unicodedata
import warnings
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

from dpbo.errors import InputError

ALLOWED = "one label a record: numbers, text, bytes, dates, or tuples of them, all of one kind"
_REMEDY = "Convert every label to text or a whole number, for example by str or int."


class _Date(str):
    """A date or time without a zone, as text of one resolution."""


class _Instant(str):
    """A time with a zone, as text in UTC."""


def as_values(name: str, labels: Any) -> np.ndarray[Any, Any]:
    """The labels as a 1-d array that compares by value: of numbers, text or bytes in their own dtype, else of objects.

    Missing labels (None, NaN, NaT) are kept, as None or NaN.

    Raises:
        InputError: labels that do not compare by value, or of different kinds. It names types and shows no label.
    """
    array = _array(labels)
    if array is None or array.ndim != 1:
        raise InputError(name, type(labels).__name__, ALLOWED)
    if array.dtype.kind not in "biuf":
        values = [_value(name, label) for label in array]
        if len({kind_of(value) for value in values if not is_missing(value)}) > 1:
            raise InputError(name, "labels of different kinds", ALLOWED, _REMEDY)
        _warn_of_variants(name, values)
        if array.dtype.kind not in "US":
            array = _listed(values)
    return array


def kind_of(value: Any) -> tuple[Any, ...]:
    """What kind of value a label is; only labels of one kind can be compared."""
    if isinstance(value, tuple):
        return ("tuple", *map(kind_of, value))
    kinds = ((numbers.Real, "number"), (_Date, "date"), (_Instant, "instant"), (str, "text"), (bytes, "bytes"))
    return (next((kind for type_, kind in kinds if isinstance(value, type_)), "missing"),)


def is_missing(value: Any) -> bool:
    """None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _array(labels: Any) -> np.ndarray[Any, Any] | None:
    """As an array; None if they have no order, are one text, or fail, because what the labels raise may show some of them."""
    if isinstance(labels, (str, bytes, Set, Mapping)):
        return None
    try:
        held = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else labels
        return np.asarray(held if hasattr(held, "dtype") else _listed(held))
    except Exception:
        return None


def _listed(labels: Any) -> np.ndarray[Any, Any]:
    """A 1-d array of objects, also of tuples."""
    parts = list(labels)
    array = np.empty(len(parts), dtype=object)
    for i, part in enumerate(parts):
        array[i] = part
    return array


def _value(name: str, label: Any) -> Any:
    """What equal labels and no others share. Raises InputError for what compares by identity."""
    if isinstance(label, (torch.Tensor, np.ndarray)) and label.ndim == 0:
        label = label.detach().cpu().numpy()[()] if isinstance(label, torch.Tensor) else label[()]
    if isinstance(label, np.datetime64):
        return None if np.isnat(label) else _Date(np.datetime_as_string(label, unit="as"))
    if label is None or type(label).__name__ in ("NaTType", "NAType"):  # pandas' own
        return None
    if isinstance(label, datetime.date):
        if getattr(label, "tzinfo", None) is None:
            return _value(name, label.to_datetime64() if hasattr(label, "to_datetime64") else np.datetime64(label))
        assert isinstance(label, datetime.datetime)  # what has a zone has a time
        return _Instant(_value(name, label.astimezone(datetime.UTC).replace(tzinfo=None)))
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, tuple):
        return tuple(_value(name, part) for part in label)
    if isinstance(label, (numbers.Real, str, bytes)):
        return label
    raise InputError(name, type(label).__name__, ALLOWED, _REMEDY)


def _warn_of_variants(name: str, values: Sequence[Any]) -> None:
    """Warn where text labels are two units that a reader would take for one."""
    texts = {value for value in values if isinstance(value, str)}
    if len({unicodedata.normalize("NFC", text).strip() for text in texts}) < len(texts):
        told = "some labels differ only in spaces at their ends or in the form of accented letters, and are protected as different units"
        warnings.warn(f"{name}: {told}. Strip and normalise them if they are the same unit.", UserWarning, stacklevel=2)
