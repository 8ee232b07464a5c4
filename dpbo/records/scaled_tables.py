"""Columns that show that a scaler was fitted to protected rows.

After `StandardScaler().fit_transform(X)` each row depends on all others, so a protected row changes
whatever is trained or scored on its neighbours, and the rows no longer stand alone. A column says
so itself: its mean is 0 and its deviation 1, or its ends are 0 and 1, over exactly the rows that
the scaler was fitted to. Columns of whole numbers, or of two different values, are left out.

Whether a column is found depends on the records: it is for the operator alone.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.records.containers import is_dense

Column = NDArray[np.floating[Any]]
# Rounding of what a scaler wrote, by the bytes of a number.
_NEAR = {8: 1e-9, 4: 1e-5}


class ScaledRowsWarning(UserWarning):
    """Protected rows look as if a scaler had been fitted to them."""


def scaled_column(protected: Sequence[Any], public: Sequence[Any]) -> Hashable | None:
    """The name or position of a column that a scaler was fitted to, by all protected rows or by
    these and the public ones; None if none is found.

    A scaler to 0 and 1 is told by one row at each end: in pixels over 255 or in ratios, whose range
    is public, many rows lie there. Where the public rows alone end at 0 and 1, a scaler of these
    alone may have been used, which is right, and the protected rows must say so by themselves.

    Args:
        protected, public: the tables that records consist of, in the same order: DataFrames,
            Series, and arrays and tensors of one or two dimensions. Others are passed over.
    """
    for place, table in enumerate(protected):
        beside = dict(_columns(public[place])) if place < len(public) else {}
        for name, column in _columns(table):
            if _is_scaled(column, beside.get(name)):
                return name
    return None


def _is_scaled(own: Column, public: Column | None) -> bool:
    """Of a protected column, and the public one if there is one."""
    near = _NEAR[own.itemsize]
    tables = [own]
    if public is not None:
        tables.append(np.concatenate((own, public)))
    whole = tables[-1]
    # A square beyond float64 is infinite, and then nothing is standard.
    with np.errstate(all="ignore"):
        if any(_is_standard(each, near) for each in tables):
            return bool(((whole > whole.min()) & (whole < whole.max())).any())
    if public is not None and _ends_at_0_and_1(public, near):
        tables.pop()
    return any(
        len(each) > 2
        and _ends_at_0_and_1(each, near)
        and all(np.count_nonzero(each == end) == 1 for end in (each.min(), each.max()))
        for each in tables
    )


def _is_standard(column: Column, near: float) -> bool:
    """Whether the mean is 0 and the deviation (by n or by n - 1) is 1."""
    wide = column.astype(np.float64, copy=False)
    deviations = [wide.std(ddof=less) for less in (0, 1) if len(wide) > less]
    return bool(abs(wide.mean()) <= near) and any(abs(each - 1) <= near for each in deviations)


def _ends_at_0_and_1(column: Column, near: float) -> bool:
    return bool(abs(column.min()) <= near and abs(column.max() - 1.0) <= near)


def _columns(table: Any) -> Iterator[tuple[Hashable, Column]]:
    """Each column of floats with its name or position, without missing numbers, if any are left."""
    if hasattr(table, "iloc"):
        frame = table.to_frame() if table.ndim == 1 else table
        named = [
            (name, frame.iloc[:, place].to_numpy(kind, na_value=np.nan))
            for place, name in enumerate(frame.columns)
            if (kind := str(frame.dtypes.iloc[place]).lower()) in ("float32", "float64")
        ]
    else:
        if isinstance(table, torch.Tensor) and is_dense(table):
            table = table.detach().cpu()
            table = table.numpy() if table.dtype in (torch.float32, torch.float64) else None
        if not isinstance(table, np.ndarray) or table.ndim not in (1, 2) or not len(table):
            return
        columns = table.reshape(len(table), -1).T
        named = [*enumerate(columns)]
    for name, column in named:
        if column.dtype.kind != "f" or column.itemsize not in _NEAR or not len(column):
            continue
        kept = np.ascontiguousarray(column)
        if np.isnan(kept).any():
            kept = kept[~np.isnan(kept)]
        if len(kept):
            yield name, kept
