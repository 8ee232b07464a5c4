"""Unit labels: two records belong to one unit if and only if their labels are equal as values.

Whole numbers, bools, text, bytes, dates, tuples of these, and arrays, tensors and Series of them
are values. A 0-d tensor or array counts as the value in it, a float as the whole number that it
stores exactly. Other objects may compare by identity, which would make every record a unit of its
own, so they are refused by name. Labels of different kinds are refused too: 1 and "1" would be two
units.
"""

import collections
import datetime
import functools
import hashlib
import itertools
import math
import numbers
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Set
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.errors import InputError, UsageError

ALLOWED = (
    "one label a record: whole numbers, text, bytes, dates, or tuples of them, all of one kind"
)
_REMEDY = "Convert all labels, in all tables, in one way: numbers by int, anything else by str."
LOOKALIKES = (
    "some labels differ only in case, spaces or the form of letters, and are protected as different"
    " units. Make them alike if they are the same unit."
)
# By its bytes, below which number a float stores every whole number; other floats: 2^53.
_EXACT = {2: 2**11, 4: 2**24}


# of each record's label among the distinct ones
Places = NDArray[np.int64]
# Types whose equal labels are equal values.
_PLAIN = {str, bytes, int, bool}


class _Date(str):
    """A date or time without a zone, as text of one resolution."""


class _Instant(str):
    """A time with a zone, as text in UTC."""


def numbered(name: str, labels: Any) -> tuple[list[Any], Places]:
    """The distinct labels, as values, and the place among them of each record's label.

    Missing labels (None, NaN, NaT) are kept, as None or NaN. Numbers and arrays of text or bytes
    are sorted; others come in the order in which they first occur.

    Raises:
        InputError: labels that do not compare by value, or of different kinds. It names types and
            shows no label.
    """
    array = _array(labels)
    if array is None or array.ndim != 1:
        raise InputError(name, type(labels).__name__, ALLOWED)
    if array.dtype.kind == "f":
        given = array[~np.isnan(array)]
        if not bool(
            (
                (given == np.floor(given))
                & (np.abs(given) < _EXACT.get(array.dtype.itemsize, 2**53))
            ).all()
        ):
            raise UsageError(
                f"{name} must be {ALLOWED}, but has floats that are not exact whole numbers."
                f" {_REMEDY}"
            )
        array = array.astype(np.float64)
    if array.dtype.kind in "biuf":
        return _sorted_numbers(array)
    parts = array.tolist() if array.dtype.kind in "OUS" else list(array)
    kinds = {*map(type, parts)}
    # 1, 1.0 and True are equal, and not all of them are allowed wherever one is.
    if len(kinds) != 1 or not kinds <= _PLAIN:
        parts = _values(name, parts)
    distinct, places = _places(parts)
    if len(set(_all_folded(distinct))) < len(distinct):
        warnings.warn(f"{name}: {LOOKALIKES}", UserWarning, stacklevel=2)
    if array.dtype.kind in "US":
        order = sorted(range(len(distinct)), key=distinct.__getitem__)
        distinct = [distinct[place] for place in order]
        places = np.argsort(order)[places]
    return distinct, places


def _values(name: str, parts: list[Any]) -> list[Any]:
    """Labels of any types as values. Raises as `numbered`."""
    values = list[Any]()
    refused = set[str]()
    for part in parts:
        try:
            values.append(_value(part))
        except Exception:
            # Its text may show the label.
            refused.add(type(part).__name__)
    if refused:
        raise InputError(name, min(refused), ALLOWED, _REMEDY)
    # Also of equal values: a date is kept as text.
    if of_several_kinds(values):
        raise UsageError(f"{name} must be {ALLOWED}, but has labels of different kinds. {_REMEDY}")
    return values


def _sorted_numbers(array: NDArray[Any]) -> tuple[list[Any], Places]:
    """`np.unique` with places, by counting where integers lie close together."""
    if array.dtype.kind in "iu" and len(array):
        low = int(array.min())
        if int(array.max()) - low < 4 * len(array):
            # Differences from the least one, also of 64 bits without a sign.
            offsets = (array.astype(np.uint64) - np.uint64(low % 2**64)).astype(np.int64)
            present = np.bincount(offsets) > 0
            return [low + int(k) for k in np.flatnonzero(present)], (present.cumsum() - 1)[offsets]
    distinct, places = np.unique(array, return_inverse=True)
    return distinct.tolist(), places.astype(np.int64)


def _places(labels: list[Any]) -> tuple[list[Any], Places]:
    """The different labels in the order in which they first occur, and the place of each label.

    Sorting Python's hashes is twice as fast as a dict; every label is then compared with the one
    that it is taken for.
    """
    hashes = np.fromiter(map(hash, labels), np.int64, len(labels))
    _, first, places = np.unique(hashes, return_index=True, return_inverse=True)
    order = first.argsort()
    given = _listed(labels)
    distinct = given[first[order]]
    places = order.argsort()[places]
    if bool((distinct[places] == given).all()):
        return distinct.tolist(), places
    # Different labels of one hash, such as -1 and -2.
    found = collections.defaultdict[Any, int](itertools.count().__next__)
    places = np.fromiter(map(found.__getitem__, labels), np.int64, len(labels))
    return list(found), places


def kind_of(value: Any) -> tuple[Any, ...]:
    """What kind of value a label is; only labels of one kind can be compared."""
    if isinstance(value, tuple):
        return ("tuple", *map(kind_of, value))
    # The quick tests first; a date is a text of its own kind.
    # mypy does not know that types are hashable.
    return (_kind_of_type(type(value)),)  # type: ignore[arg-type]


def of_several_kinds(labels: Iterable[Any]) -> bool:
    """Whether labels cannot be compared; a missing one counts as of any kind."""
    return len({kind_of(label) for label in labels if not is_missing(label)}) > 1


@functools.cache
def _kind_of_type(given: type) -> str:
    kinds = (
        (numbers.Real, "number"),
        (_Date, "date"),
        (_Instant, "instant"),
        (str, "text"),
        (bytes, "bytes"),
    )
    return next((kind for type_, kind in kinds if issubclass(given, type_)), "missing")


def is_missing(value: Any) -> bool:
    """None or NaN, or a tuple with such a part."""
    if isinstance(value, tuple):
        return any(map(is_missing, value))
    return value is None or (isinstance(value, float) and math.isnan(value))


def _all_folded(labels: list[Any]) -> list[Any]:
    """`folded` of each, and of plain text of all at once."""
    if {*map(type, labels)} == {str}:
        text = "".join(labels)
        if text.isascii() and text.isprintable():
            return "\n".join(labels).lower().replace(" ", "").split("\n")
    return list(map(folded, labels))


def folded(value: Any) -> Any:
    """The label without case, spaces and the form of letters: what a reader would take for the same
    label.
    """
    if isinstance(value, tuple):
        return tuple(map(folded, value))
    if not isinstance(value, str):
        return value
    if value.isascii() and value.isprintable():
        return value.lower().replace(" ", "")
    plain = unicodedata.normalize("NFKC", value).casefold()
    return "".join(
        letter for letter in plain if unicodedata.category(letter) not in ("Cf", "Zs", "Cc")
    )


def hash_labels(labels: Any, key: bytes, *, as_read: bool = False) -> tuple[Tensor, bytes]:
    """Keyed 128-bit hashes of the distinct labels, `labels x 2` int64, and a hash of their kind,
    zeros without labels.

    Args:
        key: secret bytes.
        as_read: hash what a reader takes for the same label (`folded`), each once.

    Raises:
        InputError: labels that cannot be compared between processes.
    """
    distinct, _ = numbered("groups", labels)
    if as_read:
        distinct = list(dict.fromkeys(map(folded, distinct)))
    hashed = b"".join(
        hashlib.blake2b(_label_bytes(label), digest_size=16, key=key).digest() for label in distinct
    )
    if distinct:
        kind = hashlib.blake2b(repr(kind_of(distinct[0])).encode(), digest_size=8).digest()
    else:
        kind = bytes(8)
    return torch.from_numpy(np.frombuffer(bytearray(hashed), dtype="<i8").reshape(-1, 2)), kind


def _label_bytes(label: Any) -> bytes:
    """Bytes that equal labels of one kind have in common, and different labels do not."""
    if isinstance(label, numbers.Integral):
        return f"n{int(label)}".encode()
    if isinstance(label, numbers.Real):
        if isinstance(label, Fraction) or not math.isfinite(label):
            number = label
        else:
            number = Fraction(float(label))
        return f"n{number}".encode()
    if isinstance(label, str):
        return b"s" + label.encode("utf-8", "surrogatepass")
    if isinstance(label, bytes):
        return b"b" + label
    found = b"t"
    for part in label:
        content = b"" if part is None else _label_bytes(part)
        found += len(content).to_bytes(8, "little") + content
    return found


def _array(labels: Any) -> NDArray[Any] | None:
    """The labels as an array; None where they have no order, are one text, or raise: an error's
    text may show some of them.
    """
    if isinstance(labels, (str, bytes, Set, Mapping, np.ma.MaskedArray)) or hasattr(
        labels, "columns"
    ):
        return None
    try:
        raw = on_host(labels)
        return np.asarray(raw if hasattr(raw, "dtype") else _listed(raw))
    except Exception:
        return None


def on_host(part: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    if isinstance(part, Tensor):
        return part.detach().cpu().numpy()
    return part


def _listed(labels: Any) -> NDArray[Any]:
    """A 1-d array of objects; tuples stay whole."""
    return np.fromiter(labels, dtype=object)


def _value(label: Any) -> Any:
    """The label as one of Python's own types, equal for equal labels alone. Raises TypeError for
    what may compare by identity.
    """
    if type(label) in _PLAIN:
        return label
    if isinstance(label, (Tensor, np.ndarray)) and label.ndim == 0:
        label = on_host(label)[()]
    if isinstance(label, np.datetime64):
        if np.isnat(label):
            return None
        return _Date(np.datetime_as_string(label, unit="as"))
    if label is None or type(label).__name__ in ("NaTType", "NAType"):
        # The missing values of pandas.
        return None
    if isinstance(label, datetime.date):
        zone = label.utcoffset() if isinstance(label, datetime.datetime) else None
        if zone is None:
            return _value(
                label.to_datetime64()
                if hasattr(label, "to_datetime64")
                else np.datetime64(label.isoformat())
            )
        # In the years 1 and 9999, used for "never", UTC may be out of range.
        assert isinstance(label, datetime.datetime)
        moment = label if label.year in (1, 9999) else label.astimezone(datetime.UTC)
        return _Instant(_value(moment.replace(tzinfo=None)))
    if isinstance(label, (bool, np.bool_)):
        return bool(label)
    if isinstance(label, numbers.Integral):
        return int(label)
    if isinstance(label, (float, np.floating)):
        number = float(label)
        exact = _EXACT.get(getattr(label, "itemsize", 8), 2**53)
        if math.isnan(number):
            return None
        if not number.is_integer() or abs(number) >= exact:
            raise TypeError
        return number
    if isinstance(label, str):
        return str.__str__(label)
    if isinstance(label, bytes):
        return bytes(label)
    if isinstance(label, tuple):
        return tuple(map(_value, label))
    raise TypeError
