"""The form of private records is that of public ones: dtypes, categories and their order, time
zones, missing values, columns.

pandas and numpy choose a column's dtype by all of its cells. One missing value makes whole numbers
floats, and one word makes them objects. Then "7" is "7.0" in the text of every record, and codes of
categories are others. So one record would move the scores of all, and no sensitivity would hold. A
`Form` is made of public records. It rewrites each private cell as the public column has its cells.

Theorem. Row i of `Form.cast(records)`, and whether record i is unfit, are functions of the cells of
row i and of the form alone. Proof: each cell is rewritten by itself, by `_cell` with a kind that
the form fixes, and then looked up among public categories or classes, or compared with the ends of
the public dtype. What it is written into is fixed by the form, too: the container, the dtypes, the
names and the order of columns, and an index that counts rows. No dtype is inferred from the
rewritten cells.

The private cells themselves may have been changed by pandas or numpy before: whole numbers with a
missing one are floats by then. So numbers count as the float64 nearest to them, and become text as
Python's `str` of that whole number, or `repr` of that float. Hence a cell is rewritten in the same
way whether its column came as whole numbers, floats, complex numbers or objects; in a column of
whole numbers it becomes the nearest of these. What a reader of files made of cells is out of reach
here: it may read "007" as 7 unless another cell is a word. Read private files as text
(`pd.read_csv(file, dtype=str)`).

Missing values. A cell that is missing, or has no counterpart in the public column, becomes that
column's missing value: NaN, NaT, None, or a category's code -1. A public column of whole numbers,
bools, or categories of these has none: to give it one, its dtype would have to change, and with it
that of every record. There the record is unfit: it counts as the worst score, without the score
being asked (`View.unfit`). Its cell is filled with a public one, which only stands in its place.

What is refused is refused by the container, the names of columns and the dtypes of public records,
and by the container and the names of columns of private ones. These are declared public, as the
number of columns of an array is. No cell is ever a reason to refuse.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.errors import InputError, Unshown, UsageError
from dpbo.fingerprint import columns_of
from dpbo.records.containers import count_records, leaves, map_leaves
from dpbo.records.labels import is_missing, on_host

Cells = NDArray[Any]
# of some of the records
Marks = NDArray[np.bool_]
Path = tuple[Hashable, ...]
_NUMBERS = "biuf"
_FLOATS = [np.dtype(kind) for kind in np.typecodes["Float"]]
_NUMERIC = [np.dtype(kind) for kind in f"?{np.typecodes['AllInteger']}{np.typecodes['Float']}"]
_REMEDY = (
    "Convert the public table's column: to 'float64' where values may be missing, or to 'int64',"
    " 'str', 'category' or object. Give an array of several types, or one with named fields, as a"
    " DataFrame."
)
_NEEDED = (
    "pandas and numpy choose a dtype by all cells, so one record's cell would change the form, and"
    " so the score, of all others. Give a few public records of the same form: Curator(...,"
    " example=), or Curator(..., schema=) where the score is not to be tried on them."
)


@dataclass(frozen=True, eq=False)
class Form:
    """The form of public records, to which private ones are cast.

    Attributes:
        leaves: form of each tensor, array or table, by its place in the nested container.
        names: the argument that a private part came as, by the same place; for errors.
        public: the argument that the public records came as. It is named where no part is.
    """

    leaves: Mapping[Path, Leaf]
    names: Mapping[Path, str] = field(default_factory=dict)
    public: str = "example"

    @classmethod
    def of(cls, public: Any, name: str = "example") -> Self:
        """The form of public records. `name` is the argument that they came as.

        Raises:
            InputError: a part or a column of a form to which cells cannot be cast one by one.
        """
        return cls({path: Leaf.of(part, name) for path, part in _paths(public)}, public=name)

    @property
    def may_be_unfit(self) -> bool:
        """Whether a record can have a cell that is missing where the public column has no missing
        value."""
        return any(column.may_be_unfit for leaf in self.leaves.values() for column in leaf.columns)

    def cast(self, records: Any) -> tuple[Any, Marks]:
        """The records in this form, and which of them are unfit.

        Raises:
            InputError: another container, or a table that lacks a public column.
        """
        found = dict(_paths(records))
        if found.keys() != self.leaves.keys():
            raise UsageError(
                f"{self.public} must be a container of the same parts as the records, for example"
                " both a tuple (features, labels)."
            )
        unfit = np.zeros(count_records(records), dtype=bool)
        cast = []
        for path, part in found.items():
            try:
                cast.append(self.leaves[path].cast(part, unfit, self.names.get(path, "records")))
            except InputError as refused:
                if path in self.names:
                    raise
                raise UsageError(
                    f"{self.public} must have the form of the records, but by it the"
                    f" {refused.parameter} must be {refused.allowed}. {refused.remedy}".rstrip()
                ) from None
        changed = iter(cast)
        return map_leaves(records, lambda _: next(changed)), unfit


def require_known_form(records: Any) -> None:
    """Raises InputError where no public records tell the form of private ones and it could depend
    on their cells.

    The dtype of tensors and of numbers in an array is the caller's own choice, and so declared
    public. The samples of a list have no dtype in common.
    """
    for part in leaves(records):
        numeric = isinstance(part, (np.ndarray, Tensor)) or hasattr(part, "tocsr")
        kind = getattr(getattr(part, "dtype", None), "kind", "f")
        if _is_table(part) or (numeric and kind not in f"{_NUMBERS}c"):
            allowed = (
                "numbers in a tensor or an array, or a list of samples, where no example= is given"
            )
            raise InputError("records", Unshown(part), allowed, _NEEDED)


@dataclass(frozen=True, eq=False)
class Leaf:
    """The form of one part of the records.

    Attributes:
        container: "tensor", "table", "series", "array", "sparse" or "list"; "other" for a container
            of the caller's own, of which dpbo knows nothing.
        columns: those of a table; one for all cells of another container.
        label: the names of a table's columns, the name of a Series, or the dtype of a tensor.
    """

    container: str
    columns: tuple[Column, ...] = ()
    label: Any = None

    @classmethod
    def of(cls, part: Any, name: str) -> Self:
        """The form of one public part, which came as the argument `name`.

        Raises:
            InputError: a part or a column to whose form cells cannot be cast one by one.
        """
        if isinstance(part, Tensor):
            if part.is_floating_point() or part.is_complex():
                return cls("tensor", label=part.dtype)
            whole = part.new_zeros(0, device="cpu").numpy()
            return cls("tensor", (Column.of(whole, name),), part.dtype)
        if hasattr(part, "iloc") and part.ndim == 1:
            return cls("series", (Column.of(part, f"{name}[{part.name!r}]"),), part.name)
        if hasattr(part, "iloc"):
            if not part.columns.is_unique:
                raise InputError(name, part, "a table whose columns have different names")
            parts = columns_of(part)
            columns = tuple(Column.of(column, f"{name}[{column.name!r}]") for column in parts)
            return cls("table", columns, part.columns)
        if isinstance(part, np.ndarray):
            return cls("array", (Column.of(part.reshape(-1), name),))
        if hasattr(part, "tocsr") and part.dtype.kind in _NUMBERS:
            return cls("sparse", (Column.of(np.zeros(0, part.dtype), name),))
        if isinstance(part, list):
            return cls("list")
        if not _is_table(part):
            return cls("other")
        raise InputError(
            name,
            Unshown(part),
            "a pandas DataFrame, an array, a tensor or a list",
            "Convert it, such as by to_pandas().",
        )

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        """The private part in this form. Marks the records in `unfit` that have no value in it.
        `name` is for errors."""
        cast = {
            "tensor": self._tensor,
            "table": self._table,
            "series": self._series,
            "array": self._array,
            "sparse": self._sparse,
        }
        if self.container in cast:
            return cast[self.container](part, unfit, name)
        known = _is_table(part) or isinstance(part, (np.ndarray, Tensor))
        if known or isinstance(part, list) != (self.container == "list"):
            raise InputError(name, type(part).__name__, "of the public records' type", _NEEDED)
        return part

    def _tensor(self, part: Any, unfit: Marks, name: str) -> Any:
        if not isinstance(part, Tensor):
            raise InputError(name, type(part).__name__, "a tensor, as the public records are")
        if part.dtype == self.label:
            return part
        if part.is_complex() != self.label.is_complex:
            allowed = f"of dtype {self.label}, as the public records are"
            raise InputError(name, str(part.dtype), allowed)
        if not self.columns:
            return part.to(self.label)
        whole = self._array(part.detach().double().cpu().numpy(), unfit, name)
        return torch.from_numpy(whole).to(part.device)

    def _array(self, part: Any, unfit: Marks, name: str) -> Any:
        column = self.columns[0]
        part = on_host(part)
        if hasattr(part, "iloc") or isinstance(part, (list, tuple)):
            part = np.fromiter(part, dtype=object, count=len(part))
        if not isinstance(part, np.ndarray) or part.ndim == 0 or hasattr(part, "columns"):
            raise InputError(name, type(part).__name__, "an array, as the public records are")
        if column.values is not None and part.ndim != 1:
            raise InputError(name, part.shape, "one label for each record")
        wide = np.zeros(part.size, dtype=bool)
        found = np.asarray(column.cast(part.reshape(-1), wide)).reshape(part.shape)
        unfit |= wide.reshape(part.shape).any(axis=tuple(range(1, part.ndim)))
        return found

    def _series(self, part: Any, unfit: Marks, name: str) -> Any:
        part = on_host(part)
        if not isinstance(part, (list, tuple)) and getattr(part, "ndim", 0) != 1:
            allowed = "one label for each record, in the records' order"
            raise InputError(name, type(part).__name__, allowed)
        return self.columns[0].series(part, unfit).rename(self.label)

    def _sparse(self, part: Any, unfit: Marks, name: str) -> Any:
        if not hasattr(part, "tocsr"):
            raise InputError(
                name, type(part).__name__, "a sparse matrix, as the public records are"
            )
        rows = part.tocsr()
        wrong = np.zeros(len(rows.data), dtype=bool)
        data = self.columns[0].cast(rows.data, wrong)
        unfit[np.repeat(np.arange(len(unfit)), np.diff(rows.indptr))[wrong]] = True
        return type(rows)((data, rows.indices, rows.indptr), shape=rows.shape)

    def _table(self, part: Any, unfit: Marks, name: str) -> Any:
        import pandas as pd

        if not hasattr(part, "iloc") or part.ndim != 2:
            raise InputError(name, type(part).__name__, "a DataFrame, as the public records are")
        if not part.columns.equals(self.label):
            for label in self.label:
                if (part.columns == label).sum() != 1:
                    remedy = "Columns may come in any order, and further ones are left out."
                    allowed = f"a table with one column {label!r}, as the public one has"
                    raise InputError(name, part, allowed, remedy)
            part = part.iloc[:, part.columns.get_indexer_for(self.label)]
        index = pd.RangeIndex(len(unfit))
        dtypes = {column.dtype for column in self.columns}
        alike = len(dtypes) == 1 and self.columns[0].dtype in _FLOATS
        if alike and all(dtype in _NUMERIC for dtype in part.dtypes):
            # All cells at once: a wide table's columns would take longer one by one than its score.
            floats = part.to_numpy(dtype=np.float64).T
            with np.errstate(all="ignore"):
                # Each column's cells side by side, as a table that is made of columns has them.
                return pd.DataFrame(
                    floats.astype(dtypes.pop(), order="C").T, index=index, columns=self.label
                )
        made = {
            place: column.series(part.iloc[:, place], unfit)
            for place, column in enumerate(self.columns)
        }
        table = pd.DataFrame(made, index=index, columns=pd.RangeIndex(len(made)))
        table.columns = self.label
        return table


@dataclass(frozen=True, eq=False)
class Column:
    """The form of one column's cells.

    Attributes:
        cell: the kind of value that `_cell` makes of each: `float` for numbers of any dtype, `str`,
            another type of objects, or a dtype of dates or durations.
        dtype: of the column.
        fill: what stands in place of a cell without a value: the missing value of the dtype, or a
            public cell where it has none.
        may_be_unfit: whether the dtype has no missing value.
        values: the public categories or classes, one of which each cell must be; None where a cell
            may have any value.
    """

    cell: Any
    dtype: Any
    fill: Any = None
    may_be_unfit: bool = False
    values: Any = None

    @classmethod
    def of(cls, public: Any, name: str) -> Self:
        """The form of an array or a Series of public cells. `name` is for errors."""
        dtype = public.dtype
        kind = getattr(dtype, "kind", "")
        if isinstance(dtype, np.dtype) and kind in _NUMBERS:
            return cls(float, dtype, [*public[:1], 0][0], kind in "biu")
        if isinstance(dtype, np.dtype) and kind == "O":
            return cls._of_objects(public, name)
        if isinstance(dtype, np.dtype) and kind in "UST":
            return cls(bytes if kind == "S" else str, np.dtype(object), math.nan)
        if type(dtype).__name__ == "StringDtype":
            return cls(str, dtype)
        if kind in "Mm" and kind:
            return cls(dtype, dtype)
        if hasattr(dtype, "categories"):
            values = cls.of(dtype.categories, name)
            if values.may_be_unfit and bool(public.isna().any()):
                raise UsageError(
                    f"{name} has categories that are whole numbers or bools, with missing values:"
                    " make the categories text or floats."
                )
            return cls(values.cell, dtype, -1, values.may_be_unfit, dtype.categories)
        allowed = "of numpy's numbers, dates, text, categories or objects"
        if isinstance(dtype, np.dtype) and dtype.kind == "c":
            remedy = "Complex data not supported: give columns of real and imaginary parts."
            raise InputError(name, str(dtype), allowed, remedy)
        raise InputError(name, str(dtype), allowed, _REMEDY)

    @classmethod
    def _of_objects(cls, public: Any, name: str) -> Self:
        """The form of objects, which are all of one type or missing."""
        given = [*map(_plain, public)]
        missing = [cell for cell in given if is_missing(cell)]
        kinds = {type(cell) for cell in given if not is_missing(cell)}
        if len(kinds) > 1:
            found = f"objects of types {', '.join(sorted(kind.__name__ for kind in kinds))}"
            raise InputError(name, found, "of objects of one type, such as text alone", _REMEDY)
        return cls([*kinds, str][0], np.dtype(object), [*missing, math.nan][0])

    @classmethod
    def of_classes(cls, labels: Any) -> Self:
        """The form of labels that are among public classes, in their dtype: a record with another
        label, or with none, is unfit, because no prediction is right."""
        classes = np.unique(np.asarray(labels))
        words = any(isinstance(label, str) for label in classes.tolist())
        return cls(str if words else float, classes.dtype, 0, True, classes)

    def cast(self, cells: Any, unfit: Marks) -> Any:
        """Cells, each by itself, in this form. Marks in `unfit` those that have no value in it."""
        if self.values is not None:
            codes = self._codes(cells)
            if self.may_be_unfit:
                unfit |= codes < 0
                codes = codes.clip(0)
            if isinstance(self.values, np.ndarray):
                return self.values[codes]
            import pandas as pd

            return pd.Categorical.from_codes(codes, dtype=self.dtype)
        if self.cell is float and self.dtype.kind in _NUMBERS:
            return self._numbers(cells, unfit)
        if getattr(cells, "dtype", None) == self.dtype and self.dtype != object:
            return getattr(cells, "array", cells)
        values = (_cell(cell, self.cell) for cell in cells)
        found = [self.fill if value is None else value for value in values]
        if self.dtype == object:
            return np.fromiter(found, dtype=object, count=len(found))
        if isinstance(self.dtype, np.dtype):
            return np.array(found, dtype=self.dtype)
        import pandas as pd

        if hasattr(self.dtype, "tz"):
            moments = pd.DatetimeIndex(np.array(found, dtype=self.dtype.base))
            return moments.tz_localize("UTC").tz_convert(self.dtype.tz).array
        return pd.array(found, dtype=self.dtype)

    def series(self, cells: Any, unfit: Marks) -> Any:
        """`cast`, as a pandas Series whose index counts rows."""
        import pandas as pd

        index = pd.RangeIndex(len(unfit))
        return pd.Series(self.cast(cells, unfit), index=index, dtype=self.dtype, copy=False)

    def _codes(self, cells: Any) -> NDArray[np.int64]:
        """The place of each cell among the public values, -1 where there is none."""
        if hasattr(getattr(cells, "dtype", None), "categories"):
            # Each private category is looked up once. Code -1 takes the last place.
            return np.append(self._codes(cells.dtype.categories), -1)[cells.array.codes]
        places = {_cell(value, self.cell): place for place, value in enumerate(self.values)}
        places.pop(None, None)
        found = (places.get(_cell(cell, self.cell), -1) for cell in cells)
        return np.fromiter(found, np.int64, len(cells))

    def _numbers(self, cells: Any, unfit: Marks) -> Cells:
        numbers = _floats(cells)
        with np.errstate(all="ignore"):
            if self.dtype.kind == "f":
                return numbers.astype(self.dtype, copy=False)
            if self.dtype == bool:
                fits = (numbers == 0.0) | (numbers == 1.0)
            else:
                # A few public measurements may all be whole.
                numbers = np.rint(numbers)
                # The least value, and the one after the largest, are exact as float64.
                ends = np.iinfo(self.dtype)
                fits = (numbers >= float(ends.min)) & (numbers < float(int(ends.max) + 1))
            found = np.where(fits, numbers, 0.0).astype(self.dtype)
        found[~fits] = self.fill
        unfit |= ~fits
        return found


def _paths(records: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each part with its place, in the order of `leaves`."""
    if isinstance(records, (Mapping, tuple)):
        for key, part in records.items() if isinstance(records, Mapping) else enumerate(records):
            yield from _paths(part, (*at, key))
    else:
        yield at, records


def _is_table(part: Any) -> bool:
    """Whether it says what its columns hold, as DataFrames, Series and other libraries' tables do;
    arrays and tensors do not count."""
    if isinstance(part, (np.ndarray, Tensor)) or hasattr(part, "tocsr"):
        return False
    return any(hasattr(part, name) for name in ("iloc", "columns", "dtypes", "dtype", "schema"))


def _floats(cells: Any) -> NDArray[np.float64]:
    """Numbers as the nearest float64, NaN for what is none."""
    dtype = getattr(cells, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in _NUMBERS:
        return np.asarray(cells, dtype=np.float64)
    values = (_cell(cell, float) for cell in cells)
    return np.fromiter((math.nan if v is None else v for v in values), np.float64, len(cells))


def _plain(cell: Any) -> Any:
    """Scalars of numpy and pandas as Python's: whether a cell is one or the other depends on the
    other cells. A complex number on the real line is that number: one complex cell makes all of
    them complex."""
    if isinstance(cell, np.generic) and cell.dtype.kind in f"{_NUMBERS}cUS":
        cell = cell.item()
    if isinstance(cell, complex) and not cell.imag:
        return cell.real
    if isinstance(cell, (datetime.datetime, datetime.timedelta)) and not is_missing(cell):
        if hasattr(cell, "to_pydatetime"):
            return cell.to_pydatetime(warn=False)
        if hasattr(cell, "to_pytimedelta"):
            return cell.to_pytimedelta()
    return cell


def _cell(value: Any, kind: Any) -> Any:
    """One cell as a value of a kind: `float`, `str` or another type, or a dtype of dates or
    durations. None where it is missing, or has no value of that kind.

    A number is the float64 nearest to it, or to what a text says in Python's notation. As text it
    has the one notation that does not depend on its dtype.
    """
    if getattr(kind, "kind", "") in ("M", "m"):
        return _moment(value, kind)
    value = _plain(value)
    if is_missing(value):
        return None
    if type(value) is kind and kind not in (bool, int, float):
        return value
    if kind is str and isinstance(value, (str, bool)):
        return str(value)
    if kind not in (bool, int, float, str):
        return None
    if not isinstance(value, (bool, int, float, str, decimal.Decimal)):
        return None
    try:
        number = float(value)
    except (ValueError, ArithmeticError):
        return None
    if math.isnan(number):
        return None
    if kind is float:
        return number
    if kind is bool:
        return bool(number) if number in (0.0, 1.0) else None
    if number.is_integer():
        return kind(int(number))
    return repr(number) if kind is str else None


def _moment(cell: Any, dtype: Any) -> Any:
    """numpy's date or duration of this dtype, in UTC where it has a zone. None for anything else,
    for what the dtype cannot hold, and for a date without a zone where others have one."""
    zone = getattr(dtype, "tz", None)
    plain = dtype if zone is None else dtype.base
    try:
        if isinstance(cell, str) and plain.kind == "M":
            cell = datetime.datetime.fromisoformat(cell)
        zoned = getattr(cell, "tzinfo", None) is not None
        if zoned != (zone is not None):
            return None
        if zoned:
            cell = cell.astimezone(datetime.UTC).replace(tzinfo=None)
        if hasattr(cell, "to_numpy"):
            cell = cell.to_numpy()
        elif isinstance(cell, datetime.date):
            cell = np.datetime64(cell)
        elif isinstance(cell, datetime.timedelta):
            cell = np.timedelta64(cell)
        if not isinstance(cell, np.generic) or cell.dtype.kind != plain.kind:
            return None
        cast = cell.astype(plain)
        days = f"{plain.kind}8[D]"
        # Else it overflowed, or is NaT.
        return cast if cast.astype(days) == cell.astype(days) else None
    except Exception:
        # A value that its own type cannot convert.
        return None


def form_of(schema: Any, example: Any) -> Form | None:
    """The form of the public records, or the one that was given; None without either."""
    if isinstance(schema, Form):
        return schema
    if schema is not None:
        return Form.of(schema, "schema")
    if example is None:
        return None
    return Form.of(example)
