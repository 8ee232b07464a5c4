"""Columns that show that a scaler was fitted to protected rows.

After `StandardScaler().fit_transform(X)` each row depends on all others, so a protected row changes
whatever is trained or scored on its neighbours, and the rows no longer stand alone. A column says
so itself: its mean is 0 and its deviation 1, or its ends are 0 and 1, over exactly the rows that
the scaler was fitted to. Columns of whole numbers, or of two different values, are left out.

Whether a column is found depends on the records: it is for the operator alone.
"""

import functools
import operator
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.records.containers import is_dense

Column = NDArray[np.floating[Any]]
# Rounding of what a scaler wrote, by the bytes of a number.
_NEAR = {8: 1e-9, 4: 1e-5}


class ScaledRowsWarning(UserWarning):
    """Protected rows look as if a scaler had been fitted to them."""


@dataclass(frozen=True)
class _Moments:
    """Of some numbers: how many, their mean, their squared deviations from it in sum, both ends.

    All are numpy's: a square beyond float64 is infinite, and then nothing is standard.
    """

    count: int
    mean: Any
    squares: Any
    low: Any
    high: Any

    @classmethod
    def of(cls, column: Column) -> Self:
        mean = column.mean(dtype=np.float64)
        apart = column - mean
        return cls(len(column), mean, np.dot(apart, apart), column.min(), column.max())

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
            np.sqrt(self.squares / (self.count - less)) for less in (0, 1) if self.count > less
        ]
        return bool(abs(self.mean) <= near) and any(abs(each - 1) <= near for each in deviations)

    def ends_at_0_and_1(self, near: float) -> bool:
        return bool(abs(self.low) <= near and abs(self.high - 1.0) <= near)


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
            columns = [column]
            if name in beside:
                columns.append(beside[name])
            if _is_scaled(columns):
                return name
    return None


def _is_scaled(columns: Sequence[Column]) -> bool:
    """Of a protected column, and the public one if there is one."""
    with np.errstate(all="ignore"):
        own, *others = map(_Moments.of, columns)
        near = _NEAR[columns[0].itemsize]
        both = functools.reduce(operator.add, others, own)
        if own.is_standard(near) or both.is_standard(near):
            return any(bool(((each > both.low) & (each < both.high)).any()) for each in columns)
    tried = [(own, columns[:1])]
    if not any(each.ends_at_0_and_1(near) for each in others):
        tried.append((both, columns))
    return any(
        each.ends_at_0_and_1(near)
        and each.count > 2
        and all(
            sum(int((part == end).sum()) for part in seen) == 1 for end in (each.low, each.high)
        )
        for each, seen in tried
    )


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
