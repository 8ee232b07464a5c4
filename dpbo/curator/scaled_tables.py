"""Columns that show that a scaler was fitted to protected rows.

After `StandardScaler().fit_transform(X)` each row depends on all others, so a protected row changes
whatever is trained or scored on its neighbours, and the rows no longer stand alone. A column says
so itself: its mean is 0 and its deviation 1, or its ends are 0 and 1, over exactly the rows that
the scaler was fitted to. Columns of whole numbers, or of two different values, are left out.

Whether a column is found depends on the records: it is for the operator alone.
"""

import functools
import math
import operator
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.curator.records import is_dense

Column = NDArray[np.floating[Any]]
# Rounding of what a scaler wrote, by the bytes of a number.
_NEAR = {8: 1e-9, 4: 1e-5}


class ScaledRowsWarning(UserWarning):
    """Protected rows look as if a scaler had been fitted to them."""


@dataclass(frozen=True)
class _Moments:
    """Of some numbers: how many, their mean, their squared deviations from it in sum, both ends."""

    count: int
    mean: float
    squares: float
    low: float
    high: float

    @classmethod
    def of(cls, column: Column) -> Self:
        with np.errstate(all="ignore"):
            mean = column.mean(dtype=np.float64)
            apart = column - mean
            squares = float(np.dot(apart, apart))
        return cls(len(column), float(mean), squares, float(column.min()), float(column.max()))

    def __add__(self, other: Self) -> Self:
        """Of these numbers and the other ones together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        return type(self)(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    def is_standard(self, near: float) -> bool:
        """Whether the mean is 0 and the deviation (by n or by n - 1) is 1."""
        deviations = [
            math.sqrt(self.squares / (self.count - less)) for less in (0, 1) if self.count > less
        ]
        return abs(self.mean) <= near and any(abs(each - 1.0) <= near for each in deviations)

    def ends_at_0_and_1(self, near: float) -> bool:
        return abs(self.low) <= near and abs(self.high - 1.0) <= near


def scaled_column(protected: Sequence[Any], public: Sequence[Any]) -> Hashable | None:
    """The name or position of a column that a scaler was fitted to, by all protected rows or by
    these and the public ones; None if none is found.

    Where the public rows alone end at 0 and 1, a scaler of these alone may have been used, which is
    right. Then the protected rows are taken for scaled by themselves only where one row lies at
    each end: in a column of few values several do.

    Args:
        protected, public: the tables that records consist of, in the same order: DataFrames,
            Series, and arrays and tensors of one or two dimensions. Others are passed over.
    """
    for place, table in enumerate(protected):
        beside = dict(_columns(public[place])) if place < len(public) else {}
        for name, column in _columns(table):
            columns = [column]
            if name in beside:
                columns.append(beside[name])
            if _is_scaled(columns):
                return name
    return None


def _is_scaled(columns: Sequence[Column]) -> bool:
    """Of a protected column, and the public one if there is one."""
    own, *others = map(_Moments.of, columns)
    near = _NEAR[columns[0].itemsize]
    both = functools.reduce(operator.add, others, own)
    found = own.is_standard(near) or both.is_standard(near)
    if any(each.ends_at_0_and_1(near) for each in others):
        alone = [int((columns[0] == end).sum()) == 1 for end in (own.low, own.high)]
        found = found or (own.ends_at_0_and_1(near) and all(alone))
    else:
        found = found or own.ends_at_0_and_1(near) or both.ends_at_0_and_1(near)
    return found and any(bool(((each > both.low) & (each < both.high)).any()) for each in columns)


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
        if not isinstance(table, np.ndarray) or table.ndim not in (1, 2):
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
