"""Unit labels: two records belong to one unit if and only if their labels are equal as values.

Whole numbers, text, bytes, bools, and dates and times without a zone are values. Other objects may
compare by identity, which would make every record a unit of its own, so they are refused by name.
Labels of different kinds are refused, too: 1 and "1" would be two units.
"""

import datetime
import decimal
import hashlib
import math
import re
import unicodedata
import warnings
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.errors import InputError, Unshown, UsageError
from dpbo.queries.integers import MOST_ROWS_PER_UNIT
from dpbo.records.containers import leaves
from dpbo.validation import warn

ALLOWED = "one label a record: whole numbers, text, bytes, dates or bools, all of one kind"
_REMEDY = "Convert all labels, in all tables, in one way: numbers by int, anything else by str."
LOOKALIKES = (
    "some labels differ only in case, spaces or the form of letters, and are protected as different"
    " units. Make them alike if they are the same unit."
)


# of each record's label among the distinct ones
Places = NDArray[np.int64]


class _Date(str):
    """A date or time without a zone, as text of one resolution."""


def warn_if_named(unit: str, records: Any) -> None:
    """Warn where records without labels have a column that names the unit, such as customer_id for
    "customer": each record is then a unit by itself. The names of columns are public.
    """

    def word(text: str) -> str:
        letters = re.sub(r"[\W_\d]", "", text).lower()
        return letters.removeprefix("id").removesuffix("id")

    for part in leaves(records):
        for column in getattr(part, "columns", ()):
            if isinstance(column, str) and word(column) and word(column) == word(unit):
                text = (
                    f"one record counts as one {unit}, and the table has a column {column!r}. To"
                    f" protect all records of a {unit} together, give its values as labels:"
                    f" unit=PrivacyUnit({unit!r}, groups=...) of a Curator, groups= of"
                    " DPSearch.fit. If each has one record, leave the column out."
                )
                warn(text, UserWarning)


def numbered(name: str, labels: Any) -> tuple[list[Any], Places]:
    """The distinct labels in order, as values, and the place among them of each record's label.

    Raises:
        InputError, UsageError: labels that do not compare by value, of different kinds, or missing.
            It names types and shows no label.
    """
    array = _array(labels)
    if array is None or array.ndim != 1:
        raise InputError(name, type(labels).__name__, ALLOWED)
    if array.dtype.kind == "M":
        array = array.astype(object) if len(array) == 0 else _listed(array)
    if array.dtype.kind == "O":
        array = _values(name, array)
    if array.dtype.kind == "f" and bool(np.isnan(array).any()):
        raise _missing(name, array)
    if array.dtype.kind not in "biuUSO":
        raise InputError(name, str(array.dtype), ALLOWED, _REMEDY)
    found, places = np.unique(array, return_inverse=True)
    distinct = found.tolist()
    if len(set(_all_folded(distinct))) < len(distinct):
        warnings.warn(f"{name}: {LOOKALIKES}", UserWarning, stacklevel=2)
    return distinct, places.astype(np.int64)


def _values(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Objects as values of Python's own types. Raises as `numbered`."""
    if any(map(is_missing, labels)):
        raise _missing(name, labels)
    kinds = {each: _kind_of_type(each) for each in {*map(type, labels)}}
    refused = sorted(each.__name__ for each, kind in kinds.items() if not kind)
    if refused:
        raise InputError(name, refused[0], ALLOWED, _REMEDY)
    if len({*kinds.values()}) > 1:
        raise UsageError(f"{name} must be {ALLOWED}, but has labels of different kinds. {_REMEDY}")
    made: dict[str, Any] = {
        "number": int,
        "bool": bool,
        "text": str.__str__,
        "bytes": bytes,
        "date": _date,
    }
    try:
        values = [made[kinds[type(label)]](label) for label in labels]
    # its text may show the label
    except Exception:
        remedy = f"A time with a zone is none. {_REMEDY}"
        raise InputError(name, "datetime", ALLOWED, remedy) from None
    return _listed(values)


def _missing(name: str, labels: Any) -> InputError:
    allowed = "present for every record, not None or NaN"
    return InputError(name, Unshown(labels), allowed, "Give each such record one of its own.")


def is_missing(cell: Any) -> bool:
    """Whether a label or a cell stands for a missing value, in any of the ways of Python, numpy and
    pandas."""
    if cell is None or type(cell).__name__ in ("NaTType", "NAType"):
        # The missing values of pandas.
        return True
    if isinstance(cell, decimal.Decimal):
        return cell.is_nan()
    if isinstance(cell, float):
        return math.isnan(cell)
    return isinstance(cell, np.datetime64) and bool(np.isnat(cell))


def kind_of(value: Any) -> str:
    """What kind of value a label is; only labels of one kind can be compared."""
    return _kind_of_type(type(value))


def _kind_of_type(given: type) -> str:
    """ "" for what is no label."""
    kinds = {
        "bool": (bool, np.bool_),
        "number": (int, np.integer),
        "date": (_Date, datetime.date, np.datetime64),
        "text": (str,),
        "bytes": (bytes,),
    }
    # numpy's durations are whole numbers, too
    if issubclass(given, np.timedelta64):
        return ""
    return next((kind for kind, types in kinds.items() if issubclass(given, types)), "")


def _date(label: Any) -> _Date:
    """Raises ValueError for a time with a zone, and for none."""
    if isinstance(label, datetime.datetime) and label.utcoffset() is not None:
        raise ValueError
    if hasattr(label, "to_datetime64"):
        label = label.to_datetime64()
    elif isinstance(label, datetime.date):
        label = np.datetime64(label.isoformat())
    return _Date(np.datetime_as_string(label, unit="as"))


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
        hashlib.blake2b(
            # Bytes that equal labels of one kind have in common, and different labels do not.
            label if isinstance(label, bytes) else str(label).encode("utf-8", "surrogatepass"),
            digest_size=16,
            key=key,
        ).digest()
        for label in distinct
    )
    if distinct:
        kind = hashlib.blake2b(kind_of(distinct[0]).encode(), digest_size=8).digest()
    else:
        kind = bytes(8)
    return torch.from_numpy(np.frombuffer(bytearray(hashed), dtype="<i8").reshape(-1, 2)), kind


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


def require_one_index(name: str, labels: Any, table_name: str, table: Any) -> None:
    """Raises UsageError where two pandas objects of one length have different indices: row by row,
    records would get the labels of others.
    """
    if not (hasattr(labels, "iloc") and hasattr(table, "iloc")):
        return
    if len(labels) == len(table) and not labels.index.equals(table.index):
        raise UsageError(
            f"the index of {name} is not that of {table_name}, so rows would get the labels of"
            " others. Join them by their index, as in groups.loc[X_val.index]; or where the rows of"
            " both are in one order, give arrays (groups.to_numpy())."
        )


def require_disjoint(groups: Any, groups_train: Any, trained: int) -> None:
    """Raises InputError where validation and training records share a label, or have labels of
    different kinds.

    Text that differs only in case, spaces or the form of letters is taken for the same label here.

    Args:
        groups, groups_train: labels of the validation and of the training records.
        trained: number of training records.
    """
    private, _ = numbered("groups", groups)
    public, places = numbered("groups_train", groups_train)
    if len(places) != trained:
        raise InputError(
            "groups_train",
            Unshown(groups_train),
            "one label for each training record, in the records' order",
        )
    if len({*map(kind_of, (*private, *public))}) > 1:
        remedy = "Convert both in one way: numbers by int, anything else by str."
        raise InputError(
            "groups_train", Unshown(groups_train), "of the same kind as `groups`", remedy
        )
    if not {folded(label) for label in private}.isdisjoint(map(folded, public)):
        remedy = "A unit whose other rows train the model is not protected. Split by group."
        raise InputError(
            "groups_train", type(groups_train).__name__, "without any label of `groups`", remedy
        )


def units_of(labels: Any, count: int) -> tuple[Tensor, Tensor]:
    """Unit index of each record, and number of records of each unit."""
    _, units = numbered("groups", labels)
    if len(units) != count:
        raise InputError(
            "groups", Unshown(labels), "one label for each record, in the records' order"
        )
    rows = np.bincount(units)
    if rows.max(initial=0) > MOST_ROWS_PER_UNIT:
        raise InputError(
            "groups", Unshown(labels), f"labels of at most {MOST_ROWS_PER_UNIT} records each"
        )
    return torch.from_numpy(units), torch.from_numpy(rows)
