"""The form of private records is that of public ones: dtypes, categories and their order, time
zones, missing values, columns.

pandas and numpy choose a column's dtype by all of its cells. One missing value makes whole numbers
floats, and one word makes them objects. Then "7" is "7.0" in the text of every record, and codes of
categories are others. So one record would move the scores of all, and no sensitivity would hold. A
`Form` is made of public records. It rewrites each private cell as the public column has its cells.

Theorem. Row i of `Form.cast(records)`, and whether record i is unfit, are functions of the cells of
row i and of the form alone. Proof: each cell is rewritten by itself, by a function that the form
fixes (`_number`, `_text`, `_moment`, a look-up in public categories or classes). What it is written
into is fixed by the form, too: the container, the dtypes, the names and the order of columns, and
an index that counts rows. No dtype is inferred from the rewritten cells.

The private cells themselves may have been changed by pandas or numpy before: whole numbers with a
missing one are floats by then. So numbers count as the float64 nearest to them, and become text as
Python's `str` of that whole number, or `repr` of that float. Hence a cell is rewritten in the same
way whether its column came as whole numbers, floats, complex numbers or objects. What a reader of
files made of cells is out of reach here: it may read "007" as 7 unless another cell is a word. Read
private files as text (`pd.read_csv(file, dtype=str)`).

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

import abc
import datetime
import decimal
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.curator.labels import on_host
from dpbo.curator.records import count_records, leaves, map_leaves
from dpbo.errors import InputError, Unshown, UsageError
from dpbo.fingerprint import columns_of

Cells = NDArray[Any]
# of some of the records
Marks = NDArray[np.bool_]
Path = tuple[Hashable, ...]
_NUMBERS = "biuf"
# 1 == 1.0 == True: categories of pandas keep whichever comes first, so it must not matter which
_EQUAL_ACROSS_TYPES = (bool, int, float, complex, decimal.Decimal)
_REMEDY = (
    "Convert the public table's column: to 'float64' where values may be missing, or to 'int64',"
    " 'str', 'category' or object."
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
        return cls({path: leaf_form(part, name) for path, part in _paths(public)}, public=name)

    @property
    def may_be_unfit(self) -> bool:
        """Whether a record can have a cell that is missing where the public column has no missing
        value."""
        return any(form.may_be_unfit for form in self.leaves.values())

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


class Leaf(abc.ABC):
    """The form of one part of the records."""

    @property
    def may_be_unfit(self) -> bool:
        """Whether a cell can have no value in this form."""
        return False

    @abc.abstractmethod
    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        """The private part in this form. Marks the records in `unfit` that have no value in it.
        `name` is for errors."""


def leaf_form(part: Any, name: str) -> Leaf:
    """The form of one public part."""
    if isinstance(part, Tensor):
        return TensorForm(part.dtype)
    if hasattr(part, "iloc"):
        if part.ndim == 1:
            return SeriesForm(part.name, column_form(part, name))
        if not part.columns.is_unique:
            raise InputError(name, part, "a table whose columns have different names")
        columns = (column_form(column, name) for column in columns_of(part))
        return TableForm(part.columns, tuple(columns))
    if isinstance(part, np.ndarray):
        return _array_form(part, name)
    if hasattr(part, "tocsr") and part.dtype.kind in _NUMBERS:
        return SparseForm(NumberForm(part.dtype, 0))
    if isinstance(part, list) or not _is_table(part):
        return AsItCame(list if isinstance(part, list) else None)
    raise InputError(
        name,
        Unshown(part),
        "a pandas DataFrame, an array, a tensor or a list",
        "Convert it, such as by to_pandas().",
    )


@dataclass(frozen=True, eq=False)
class AsItCame(Leaf):
    """Samples of a list, which have no dtype in common, and containers of the caller's own, of
    which dpbo knows nothing."""

    kind: type | None

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        if (
            isinstance(part, list) != (self.kind is list)
            or _is_table(part)
            or isinstance(part, (np.ndarray, Tensor))
        ):
            raise InputError(name, type(part).__name__, "of the public records' type", _NEEDED)
        return part


@dataclass(frozen=True, eq=False)
class TensorForm(Leaf):
    """A tensor of this dtype."""

    dtype: torch.dtype

    @property
    def may_be_unfit(self) -> bool:
        return not (self.dtype.is_floating_point or self.dtype.is_complex)

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        if not isinstance(part, Tensor):
            raise InputError(name, type(part).__name__, "a tensor, as the public records are")
        if part.dtype == self.dtype:
            return part
        if part.is_complex() != self.dtype.is_complex:
            raise InputError(
                name, str(part.dtype), f"of dtype {self.dtype}, as the public records are"
            )
        if not self.may_be_unfit:
            return part.to(self.dtype)
        whole = ArrayForm(
            NumberForm(torch.zeros(0, dtype=self.dtype, device="cpu").numpy().dtype, 0)
        )
        return torch.from_numpy(whole.cast(part.detach().double().cpu().numpy(), unfit, name)).to(
            part.device
        )


class AlikeForm(Leaf):
    """A part whose cells all have one form."""

    column: Column

    @property
    def may_be_unfit(self) -> bool:
        return self.column.may_be_unfit


@dataclass(frozen=True, eq=False)
class ArrayForm(AlikeForm):
    """An array of one dtype, of any width."""

    column: Column

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        cells = _as_array(part, name)
        wide = np.zeros(cells.size, dtype=bool)
        found = np.asarray(self.column.cast(cells.reshape(-1), wide)).reshape(cells.shape)
        unfit |= wide.reshape(len(cells), -1).any(1)
        return found


@dataclass(frozen=True, eq=False)
class ObjectArrayForm(Leaf):
    """An array of objects, each column of which has its own kinds of values."""

    columns: tuple[Column, ...]

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        cells = _as_array(part, name)
        flat = cells.reshape(len(cells), -1)
        if flat.shape[1] != len(self.columns):
            raise InputError(
                name,
                Unshown(part),
                f"of {len(self.columns)} cells a row, as the public records are",
            )
        found = np.full(flat.shape, None)
        for place, column in enumerate(self.columns):
            found[:, place] = column.cast(flat[:, place], unfit)
        return found.reshape(cells.shape)


@dataclass(frozen=True, eq=False)
class StructuredForm(Leaf):
    """An array whose rows have named fields."""

    dtype: np.dtype[Any]
    columns: Mapping[str, Column]

    may_be_unfit = True

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        names = getattr(getattr(part, "dtype", None), "names", None) or ()
        if not isinstance(part, np.ndarray) or not set(self.columns) <= set(names):
            raise InputError(
                name, type(part).__name__, "a structured array with the public records' fields"
            )
        found = np.zeros(part.shape, self.dtype)
        for field_name, column in self.columns.items():
            found[field_name] = column.cast(part[field_name], unfit)
        return found


@dataclass(frozen=True, eq=False)
class SparseForm(AlikeForm):
    """A sparse matrix of numbers, as CSR."""

    column: NumberForm

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        if not hasattr(part, "tocsr"):
            raise InputError(
                name, type(part).__name__, "a sparse matrix, as the public records are"
            )
        rows = part.tocsr()
        wrong = np.zeros(len(rows.data), dtype=bool)
        data = self.column.cast(rows.data, wrong)
        unfit[np.repeat(np.arange(len(unfit)), np.diff(rows.indptr))[wrong]] = True
        return type(rows)((data, rows.indices, rows.indptr), shape=rows.shape)


@dataclass(frozen=True, eq=False)
class SeriesForm(AlikeForm):
    """A pandas Series."""

    label: Hashable
    column: Column

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        cast = _series(self.column, _one_column(part, name), unfit)
        cast.name = self.label
        return cast


@dataclass(frozen=True, eq=False)
class TableForm(Leaf):
    """A pandas DataFrame."""

    names: Any
    columns: tuple[Column, ...]

    @property
    def may_be_unfit(self) -> bool:
        return any(column.may_be_unfit for column in self.columns)

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        import pandas as pd

        if not hasattr(part, "iloc") or part.ndim != 2:
            raise InputError(name, type(part).__name__, "a DataFrame, as the public records are")
        if not part.columns.equals(self.names):
            part = part.iloc[:, self._places_in(part, name)]
        index = pd.RangeIndex(len(unfit))
        if (numbers := self._as_floats(part)) is not None:
            return pd.DataFrame(numbers, index=index, columns=self.names)
        made = {
            place: _series(column, part.iloc[:, place], unfit)
            for place, column in enumerate(self.columns)
        }
        table = pd.DataFrame(made, index=index, columns=pd.RangeIndex(len(made)))
        table.columns = self.names
        return table

    def _places_in(self, part: Any, name: str) -> list[int]:
        """Where a table has the public columns. Raises InputError where it lacks one."""
        places = []
        for label in self.names:
            found = part.columns.get_indexer_for([label])
            if len(found) != 1 or found[0] < 0:
                remedy = "Columns may come in any order, and further ones are left out."
                raise InputError(
                    name, part, f"a table with one column {label!r}, as the public one has", remedy
                )
            places.append(int(found[0]))
        return places

    def _as_floats(self, part: Any) -> NDArray[Any] | None:
        """All cells at once, where the public columns are floats of one dtype: a wide table's
        columns would take longer one by one than its score. None for other tables.
        """
        dtypes = {column.dtype for column in self.columns}
        kinds = {dtype.kind if isinstance(dtype, np.dtype) else "" for dtype in part.dtypes}
        if len(dtypes) != 1 or not all(
            isinstance(column, NumberForm) and not column.may_be_unfit for column in self.columns
        ):
            return None
        if kinds <= set(_NUMBERS):
            numbers = part.to_numpy(dtype=np.float64).T
        elif kinds == {"O"}:
            cells = part.to_numpy().T
            numbers = _numbers(cells.reshape(-1)).reshape(cells.shape)
        else:
            return None
        # Each column's cells side by side, as a table that is made of columns has them.
        with np.errstate(all="ignore"):
            return numbers.astype(dtypes.pop(), order="C").T


class Column(abc.ABC):
    """The form of one column's cells."""

    dtype: Any

    @property
    def may_be_unfit(self) -> bool:
        """Whether a cell can have no value in this form."""
        return False

    @abc.abstractmethod
    def cast(self, column: Any, unfit: Marks) -> Any:
        """A column's cells, each by itself, in this form. Marks in `unfit` those that have no value
        in it."""


def _series(column: Column, cells: Any, unfit: Marks) -> Any:
    """The cells in a column's form, as a Series whose index counts rows."""
    import pandas as pd

    return pd.Series(
        column.cast(cells, unfit), index=pd.RangeIndex(len(unfit)), dtype=column.dtype, copy=False
    )


def column_form(series: Any, name: str) -> Column:
    """The form of a public column of pandas."""
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in _NUMBERS:
        return NumberForm(dtype, series.iloc[0] if len(series) else 0)
    if isinstance(dtype, pd.StringDtype):
        return TextForm(dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        values = column_form(pd.Series(dtype.categories, name=series.name), name)
        if values.may_be_unfit and bool(series.isna().any()):
            raise UsageError(
                f"{name} has a column {series.name!r} of categories that are whole numbers or"
                " bools, with missing values: make the categories text or floats."
            )
        return CategoryForm(dtype, values)
    if isinstance(dtype, pd.DatetimeTZDtype) or getattr(dtype, "kind", "") in "Mm":
        return MomentForm(dtype)
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return ObjectForm.of(series)
    raise InputError(
        f"{name}[{series.name!r}]",
        str(dtype),
        "a column of numpy's numbers, dates, text, categories or objects",
        _REMEDY,
    )


@dataclass(frozen=True, eq=False)
class NumberForm(Column):
    """Numbers of a numpy dtype. Whole numbers and bools have no missing value; `fill` stands where
    one is missing."""

    dtype: np.dtype[Any]
    fill: Any

    @property
    def may_be_unfit(self) -> bool:
        return self.dtype.kind in "biu"

    def cast(self, column: Any, unfit: Marks) -> Any:
        numbers = _numbers(_cells(column))
        with np.errstate(all="ignore"):
            if not self.may_be_unfit:
                return numbers.astype(self.dtype, copy=False)
            lower, upper = _ends(self.dtype)
            fits = (numbers == np.floor(numbers)) & (numbers >= lower) & (numbers < upper)
            found = np.where(fits, numbers, 0.0).astype(self.dtype)
        found[~fits] = self.fill
        unfit |= ~fits
        return found


@dataclass(frozen=True, eq=False)
class TextForm(Column):
    """Text of pandas."""

    dtype: Any

    def cast(self, column: Any, unfit: Marks) -> Any:
        import pandas as pd

        if getattr(column, "dtype", None) == self.dtype:
            return column.array
        return pd.array(list(map(_text, _cells(column))), dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class FixedTextForm(Column):
    """Text or bytes of at most a public length: it has no missing value."""

    dtype: np.dtype[Any]
    fill: Any

    may_be_unfit = True

    def cast(self, column: Any, unfit: Marks) -> Any:
        kind = str if self.dtype.kind == "U" else bytes
        found = np.full(len(column), self.fill, dtype=self.dtype)
        for place, cell in enumerate(_cells(column)):
            value = _text(cell) if kind is str else cell
            fits = isinstance(value, kind) and np.array(value).itemsize <= self.dtype.itemsize
            if fits:
                found[place] = value
            unfit[place] |= not fits
        return found


@dataclass(frozen=True, eq=False)
class CategoryForm(Column):
    """Categories: the public set in the public order. Another value is missing."""

    dtype: Any
    values: Column

    @property
    def may_be_unfit(self) -> bool:
        return self.values.may_be_unfit

    def cast(self, column: Any, unfit: Marks) -> Any:
        import pandas as pd

        if isinstance(getattr(column, "dtype", None), pd.CategoricalDtype):
            # each private category is looked up once; code -1 takes the last place, which is
            # missing
            known = np.append(self._codes(pd.Series(column.dtype.categories)), -1)
            codes = known[column.array.codes]
        else:
            codes = self._codes(column)
        if self.may_be_unfit:
            unfit |= codes < 0
            codes = codes.clip(0)
        return pd.Categorical.from_codes(codes, dtype=self.dtype)

    def _codes(self, column: Any) -> NDArray[np.int64]:
        """The public code of each cell, -1 where there is none."""
        import pandas as pd

        none = np.zeros(len(column), dtype=bool)
        values = pd.Index(self.values.cast(column, none), dtype=self.dtype.categories.dtype)
        return np.where(none, -1, self.dtype.categories.get_indexer(values))


@dataclass(frozen=True, eq=False)
class MomentForm(Column):
    """Dates or durations of one unit and, for dates, of one time zone or none. A date without a
    zone is missing where others have one."""

    dtype: Any

    def cast(self, column: Any, unfit: Marks) -> Any:
        if getattr(column, "dtype", None) == self.dtype:
            return getattr(column, "array", column)
        zone = getattr(self.dtype, "tz", None)
        plain = self.dtype if zone is None else self.dtype.base
        whole = np.array([_moment(cell, plain, zone) for cell in _cells(column)], dtype=plain)
        if zone is None:
            return whole
        import pandas as pd

        return pd.DatetimeIndex(whole).tz_localize("UTC").tz_convert(zone).array


@dataclass(frozen=True, eq=False)
class ObjectForm(Column):
    """Objects of the public column's types. A number becomes the first of whole number, float or
    text that is among them.

    Attributes:
        types: the types of the public cells, numpy's scalars as Python's.
        missing: the public column's first missing value, or NaN.
    """

    types: frozenset[type]
    missing: Any
    dtype: Any = object

    @classmethod
    def of(cls, public: Iterable[Any]) -> ObjectForm:
        """The form of these cells."""
        types = set[type]()
        missing = []
        for cell in map(_plain, public):
            if is_missing(cell):
                missing.append(cell)
            else:
                types.add(type(cell))
        return cls(frozenset(types), [*missing, math.nan][0])

    def cast(self, column: Any, unfit: Marks) -> Any:
        return np.fromiter(map(self._cell, _cells(column)), dtype=object, count=len(column))

    def _cell(self, cell: Any) -> Any:
        cell = _plain(cell)
        if is_missing(cell):
            return self.missing
        if type(cell) in self.types and not isinstance(cell, _EQUAL_ACROSS_TYPES):
            return cell
        number = _number(cell)
        if int in self.types and number.is_integer():
            return int(number)
        if float in self.types and not math.isnan(number):
            return number
        if type(cell) in self.types:
            return cell
        text = _text(cell)
        if str in self.types and text is not None:
            return text
        return self.missing


@dataclass(frozen=True, eq=False)
class ClassForm(Leaf):
    """Labels that are among public classes, in their dtype. A record with another label, or with
    none, is unfit: no prediction is right.

    Attributes:
        classes: the different public labels.
        series: the name of the pandas Series that public labels came as, in a tuple of one; None
            where they came as an array.
    """

    classes: NDArray[Any]
    series: tuple[Hashable] | None = None

    may_be_unfit = True

    def cast(self, part: Any, unfit: Marks, name: str) -> Any:
        words = self.classes.dtype.kind in "US" or any(
            isinstance(label, str) for label in self.classes.tolist()
        )
        key: Callable[[Any], Any] = _text if words else _number
        places = {key(label): place for place, label in enumerate(self.classes.tolist())}
        cells = _one_column(part, name)
        found = np.array([places.get(key(cell), -1) for cell in _cells(cells)], dtype=np.int64)
        unfit |= found < 0
        labels = self.classes[found.clip(0)]
        if self.series is None:
            return labels
        import pandas as pd

        return pd.Series(labels, index=pd.RangeIndex(len(labels)), name=self.series[0])


def _array_form(part: Cells, name: str) -> Leaf:
    kind = part.dtype.kind
    flat = part.reshape(-1)
    if kind == "V" and part.dtype.names and part.ndim == 1:
        columns = {
            field_name: _field_form(part[field_name], name) for field_name in part.dtype.names
        }
        return StructuredForm(part.dtype, columns)
    if kind in _NUMBERS:
        return ArrayForm(NumberForm(part.dtype, flat[0] if len(flat) else 0))
    if kind in "Mm":
        return ArrayForm(MomentForm(part.dtype))
    if kind in "UST":
        return ArrayForm(ObjectForm(frozenset({bytes if kind == "S" else str}), math.nan))
    if kind == "O":
        table = part.reshape(len(part), math.prod(part.shape[1:]))
        return ObjectArrayForm(tuple(map(ObjectForm.of, table.T)))
    raise InputError(name, part, "of numbers, text, dates, objects, or named fields of these")


def _field_form(values: Cells, name: str) -> Column:
    fill = values[0] if len(values) else np.zeros(1, values.dtype)[0]
    kind = values.dtype.kind if values.ndim == 1 else "V"
    if kind in _NUMBERS:
        return NumberForm(values.dtype, fill)
    if kind in "US":
        return FixedTextForm(values.dtype, fill)
    if kind in "Mm":
        return MomentForm(values.dtype)
    if kind == "O":
        return ObjectForm.of(values)
    raise InputError(name, values, "of fields of numbers, text, dates or objects, one a record")


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


def _as_array(part: Any, name: str) -> Cells:
    if isinstance(part, np.ndarray) and part.ndim:
        return part
    if (hasattr(part, "iloc") and part.ndim == 1) or isinstance(part, list):
        return _cells(part)
    raise InputError(name, type(part).__name__, "an array, as the public records are")


def _one_column(part: Any, name: str) -> Any:
    """Labels as something whose cells can be taken one by one."""
    part = on_host(part)
    if isinstance(part, (list, tuple)) or getattr(part, "ndim", 0) == 1:
        return part
    raise InputError(name, type(part).__name__, "one label for each record, in the records' order")


def _cells(column: Any) -> Cells:
    """A column's cells: as numbers where it has a numpy dtype of numbers, else each as it is."""
    dtype = getattr(column, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in _NUMBERS:
        return np.asarray(column)
    return np.fromiter(column, dtype=object, count=len(column))


def _plain(cell: Any) -> Any:
    """Scalars of numpy and pandas as Python's: whether a cell is one or the other depends on the
    other cells."""
    if isinstance(cell, np.generic) and cell.dtype.kind in f"{_NUMBERS}cUS":
        return cell.item()
    if isinstance(cell, (datetime.datetime, datetime.timedelta)) and not is_missing(cell):
        if hasattr(cell, "to_pydatetime"):
            return cell.to_pydatetime(warn=False)
        if hasattr(cell, "to_pytimedelta"):
            return cell.to_pytimedelta()
    return cell


def is_missing(cell: Any) -> bool:
    """Whether a cell stands for a missing value, in any of the ways of Python and pandas."""
    if cell is None or type(cell).__name__ in ("NaTType", "NAType"):
        # The missing values of pandas.
        return True
    if isinstance(cell, decimal.Decimal):
        return cell.is_nan()
    return isinstance(cell, float) and math.isnan(cell)


def _numbers(cells: Any) -> NDArray[np.float64]:
    if isinstance(cells, np.ndarray) and cells.dtype.kind in _NUMBERS:
        with np.errstate(all="ignore"):
            return cells.astype(np.float64, copy=False)
    return np.fromiter(map(_number, cells), np.float64, len(cells))


def _number(cell: Any) -> float:
    """The float64 nearest to a number, or to what a text says in Python's notation; NaN for
    anything else."""
    cell = _plain(cell)
    if isinstance(cell, complex) and not cell.imag:
        # One complex cell makes all of them complex.
        cell = cell.real
    if not isinstance(cell, (bool, int, float, str, decimal.Decimal)):
        return math.nan
    try:
        return float(cell)
    except (ValueError, ArithmeticError):
        return math.nan


def _text(cell: Any) -> str | None:
    """A text as it is, a number in the one notation that does not depend on its dtype; None for
    anything else."""
    cell = _plain(cell)
    if isinstance(cell, (str, bool)):
        return str(cell)
    number = _number(cell)
    if math.isnan(number):
        return None
    if number.is_integer():
        return str(int(number))
    return repr(number)


def _moment(cell: Any, dtype: np.dtype[Any], zone: Any) -> Any:
    """numpy's date or duration of this dtype, in UTC where there is a zone; NaT for anything else,
    and for what the dtype cannot hold."""
    dates = dtype.kind == "M"
    unit = np.datetime_data(dtype)[0]
    kind: Any = np.datetime64 if dates else np.timedelta64
    none = kind("NaT", unit)
    try:
        if isinstance(cell, str) and dates:
            cell = datetime.datetime.fromisoformat(cell)
        if isinstance(cell, datetime.datetime):
            if (cell.tzinfo is None) != (zone is None):
                return none
            cell = cell if zone is None else cell.astimezone(datetime.UTC).replace(tzinfo=None)
            cell = cell.to_datetime64() if hasattr(cell, "to_datetime64") else np.datetime64(cell)
        elif zone is not None:
            return none
        elif isinstance(cell, datetime.date):
            cell = np.datetime64(cell)
        elif isinstance(cell, datetime.timedelta):
            if hasattr(cell, "to_timedelta64"):
                cell = cell.to_timedelta64()
            else:
                cell = np.timedelta64(cell)
        if not isinstance(cell, np.datetime64 if dates else np.timedelta64):
            return none
        cast = cell.astype(dtype)
        days = f"{dtype.kind}8[D]"
        # Else it overflowed.
        if cast.astype(days) == cell.astype(days):
            return cast
        return none
    except Exception:
        # A value that its own type cannot convert.
        return none


def _ends(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Least value, and the one after the largest, both exact as float64."""
    if dtype.kind == "b":
        return 0.0, 2.0
    ends = np.iinfo(dtype)
    return float(ends.min), float(int(ends.max) + 1)


def form_of(schema: Any, example: Any) -> Form | None:
    """The form of the public records, or the one that was given; None without either."""
    if isinstance(schema, Form):
        return schema
    if schema is not None:
        return Form.of(schema, "schema")
    if example is None:
        return None
    return Form.of(example)
