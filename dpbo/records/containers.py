"""The containers that records come in: tensors, arrays, DataFrames and (nested) tuples or dicts of
them, and lists of samples.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpbo.errors import InputError, Unshown
from dpbo.isolation import mute_warnings

T = TypeVar("T")
# Rows of an array, to see whether it was changed.
_LOOKED_AT = 32
_MOST_PARTS = 4  # features, labels, groups, weights
_PLAIN = {int, float, bool, str, bytes, type(None)}


def count_records(records: Any) -> int:
    """Number of records. Raises InputError where the parts of a nested container have different
    lengths, or none.
    """
    _require_no_parts(records)
    lengths = set(map(_length, leaves(records)))
    if len(lengths) != 1:
        raise InputError(
            "records",
            type(records).__name__,
            "made of parts of one length",
            "Each part needs one row a record.",
        )
    return lengths.pop()


def require_converted(name: str, records: Any) -> None:
    """Refuse tables of other libraries than pandas, such as polars and arrow, by the call that
    converts them: a score, or an estimator, would see another table than it was given.

    Raises:
        InputError: names the argument.
    """
    for part in leaves(records):
        kind = type(part)
        lazy = hasattr(kind, "collect") and not hasattr(kind, "__len__")
        if hasattr(kind, "iloc") or not (lazy or hasattr(kind, "to_pandas")):
            continue
        call = "collect().to_pandas" if lazy else "to_pandas"
        shown = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        raise InputError(
            name,
            shown,
            "a pandas DataFrame, an array, a tensor or a list",
            f"Convert it by .{call}(), here and in the other tables.",
        )


def _require_no_parts(records: Any) -> None:
    """Refuse a list of tables that belong together, such as [X, y]: a list is one of samples, and
    these would be two records."""
    if not isinstance(records, list) or not 2 <= len(records) <= _MOST_PARTS:
        return
    shapes = [tuple(getattr(part, "shape", ())) for part in records]
    # Samples of one kind, such as pictures of several sizes, have as many dimensions each.
    if () not in shapes and len(set(map(len, shapes))) > 1 and len({one[0] for one in shapes}) == 1:
        raise InputError(
            "records",
            Unshown(records),
            "a tuple where features and labels are tables of their own",
            "Give (X, y). A list has one sample a record, so [X, y] would be two records.",
        )


def read_only(records: Any) -> Any:
    """The same records with arrays read-only, so that most scores that write fail on public records
    already (tensors: see `versions`).

    Memory can be reached around it, so it is part of the assumption `score-per-record` that the
    score writes nowhere.
    """
    use_up_warning()
    return map_leaves(records, read_only_part)


def versions(records: Any) -> tuple[int, ...]:
    """Numbers that show in-place changes: torch's counters, one a tensor (inference tensors have
    none), summed over a list of samples and what these are made of; of an array and of the numbers
    of a table or sparse matrix a digest of some rows: `torch.from_numpy` makes a read-only array
    writable, and pandas 2 writes to a table by any of its views.
    """

    def version(part: Any) -> int:
        if isinstance(part, list):
            if _are_plain(part):
                return 0
            return sum(map(version, leaves(tuple(part))))
        if _is_data(part):
            return sum(map(version, leaves(_fields_of(part))))
        if isinstance(part, Tensor) and not part.is_inference():
            return part._version
        return 0

    def digest(part: Any) -> int:
        of_table = hasattr(part, "iloc")
        if not (of_table or _is_csr(part) or (isinstance(part, np.ndarray) and part.ndim)):
            return version(part)
        steps = slice(None, None, max(part.shape[0] // _LOOKED_AT, 1))
        if of_table:
            rows = part.iloc[steps]
            return _digest_of_table(rows if rows.ndim == 2 else rows.to_frame())
        rows = part[steps]
        if _is_csr(part):
            rows = rows.copy()
            # In this form whatever a library sorts in place.
            rows.sum_duplicates()
            rows.eliminate_zeros()
            rows = rows.data
        return hash((rows.tobytes(), _in_cells(rows)))

    return tuple(map(digest, leaves(records)))


def _digest_of_table(rows: Any) -> int:
    """Of its numbers, dates and arrays, dtype by dtype: several together would make an array of
    objects, whose bytes are addresses, and differ from one copy to the next.
    """
    digested = []
    dtypes = rows.dtypes
    for dtype in dict.fromkeys(dtypes):
        if isinstance(dtype, np.dtype):
            part = rows.loc[:, (dtypes == dtype).to_numpy()].to_numpy()
            digested.append(part.tobytes() if dtype.kind in "biufcmM" else _in_cells(part))
    return hash(tuple(digested))


def _in_cells(rows: Any) -> bytes:
    """The numbers of arrays that cells hold, such as embeddings."""
    if rows.dtype.kind != "O":
        return b""
    return b"".join(cell.tobytes() for cell in rows.flat if isinstance(cell, np.ndarray))


def leaves(records: Any) -> list[Any]:
    """The tensors, arrays and so on that a nested container is made of."""
    if isinstance(records, Mapping):
        records = tuple(records.values())
    if isinstance(records, tuple):
        return list(itertools.chain.from_iterable(map(leaves, records)))
    return [records]


def map_leaves(records: Any, change: Callable[[Any], Any]) -> Any:
    """The container with every leaf changed; a mapping stays of its kind where it can be copied and
    filled.
    """
    if isinstance(records, tuple):
        parts = [map_leaves(part, change) for part in records]
        if hasattr(records, "_fields"):
            return type(records)(*parts)
        return tuple(parts)
    if not isinstance(records, Mapping):
        return change(records)
    changed = {key: map_leaves(part, change) for key, part in records.items()}
    if type(records) is dict or not isinstance(records, MutableMapping):
        return changed
    filled = copy.copy(records)
    filled.update(changed)
    return filled


def read_only_part(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        view = part.view()
        view.flags.writeable = False
        return view
    if hasattr(part, "iloc"):
        return part.copy(deep=False)
    if isinstance(part, list):
        if _are_plain(part):
            return part.copy()
        return [map_leaves(sample, read_only_part) for sample in part]
    if _is_data(part):
        copied = copy.copy(part)
        for name, value in _fields_of(part).items():
            object.__setattr__(copied, name, map_leaves(value, read_only_part))
        return copied
    return part


def _are_plain(parts: list[Any]) -> bool:
    """Whether these are numbers or texts alone, such as a sample's tokens."""
    return {*map(type, parts)} <= _PLAIN


def _is_data(part: Any) -> bool:
    """Whether it is of a data class of the caller's, such as one sample of a list."""
    return dataclasses.is_dataclass(part) and not isinstance(part, (type, torch.nn.Module))


def _fields_of(sample: Any) -> dict[str, Any]:
    """What a data class's object has in its fields."""
    found = {}
    for each in dataclasses.fields(sample):
        if hasattr(sample, each.name):
            found[each.name] = getattr(sample, each.name)
    return found


@functools.cache
def use_up_warning() -> None:
    """Torch warns, once a process, when it makes a tensor of a read-only array. A score that does
    so would show it, or fail by it.
    """
    array = np.zeros(1)
    array.flags.writeable = False
    with mute_warnings(UserWarning):
        torch.from_numpy(array)


def can_be_taken(part: Any) -> bool:
    """Whether single records of this part can be taken."""
    return is_array(part) or hasattr(part, "iloc") or _is_csr(part) or isinstance(part, list)


def is_dense(part: Any) -> bool:
    return isinstance(part, Tensor) and part.layout is torch.strided


def is_array(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray)) and part.ndim > 0


def _is_csr(part: Any) -> bool:
    """Whether it is scipy's sparse matrix whose rows can be taken."""
    return getattr(part, "format", None) == "csr" and hasattr(part, "tocsr")


def rows_at(part: Any, positions: Tensor | slice) -> Any:
    if isinstance(positions, slice):
        if hasattr(part, "iloc"):
            return part.iloc[positions].reset_index(drop=True)
        return part[positions]
    if isinstance(part, Tensor):
        return part[positions.to(part.device)]
    if isinstance(part, list):
        return [part[i] for i in positions.tolist()]
    places = positions.cpu().numpy()
    if hasattr(part, "iloc"):
        return part.iloc[places].reset_index(drop=True)
    return part[places]


def _length(part: Any) -> int:
    length = none_if_raised(
        lambda: int(part.shape[0]) if hasattr(part, "shape") and len(part.shape) else len(part)
    )
    if length is None:
        remedy = "Wrap a loader in dpbo.Source."
        raise InputError(
            "records",
            type(part).__name__,
            "a tensor, array, DataFrame, or anything with a length",
            remedy,
        )
    if hasattr(type(part), "__iter__") and not hasattr(type(part), "__getitem__"):
        # The length of a DataLoader counts its batches, each of which would be taken for a record.
        raise InputError(
            "records",
            type(part).__name__,
            "a container that gives its records by their places, records[0] and so on",
            "Give the data set of a loader, loader.dataset, or wrap what loads it in dpbo.Source.",
        )
    return length


def none_if_raised(work: Callable[[], T]) -> T | None:
    """What `work` returns, or None where it raised: an error that the records raise may show some
    of them.
    """
    try:
        return work()
    except Exception:
        return None
