"""Reads a table of numbers from a file: csv, csv.gz, npz or parquet. Non-numeric cells become NaN.
Errors never contain cell values.
"""

import csv
import gzip
import importlib
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dpbo.errors import InputError, MissingLibrary
from dpbo.extras import needs


def read_columns(path: str | os.PathLike[str], columns: Sequence[str]) -> torch.Tensor:
    """The named columns, `n x len(columns)`, float64.

    In an npz file, `columns` name arrays of shape `n` or `n x k`.

    Raises:
        InputError: the file or a column does not exist, or its format is not supported.
        MissingLibrary: what reads parquet is not installed.
    """
    file = pathlib.Path(path)
    reader = next((read for ending, read in _READERS.items() if file.name.endswith(ending)), None)
    if reader is None:
        raise InputError("DATA", file.name, f"a file that ends in {', '.join(_READERS)}")
    if not file.is_file():
        raise InputError("DATA", str(file), "a file that exists")
    try:
        return torch.from_numpy(reader(file, list(columns)))
    except KeyError as missing:
        raise InputError("columns", str(missing.args[0]), "a column of the table") from None
    except MissingLibrary:
        raise
    except Exception as error:  # its text may show a record
        raise InputError(
            "DATA",
            file.name,
            f"a table that can be read (reading it failed: {type(error).__name__})",
        ) from None


def _csv(file: pathlib.Path, columns: list[str]) -> Any:
    opened: Callable[..., Any] = gzip.open if file.name.endswith(".gz") else open
    with opened(file, "rt", newline="") as lines:
        reader = csv.DictReader(lines)
        _require(columns, reader.fieldnames or [])
        rows = []
        for row in reader:
            rows.append([_number(row[name]) for name in columns])
    return np.array(rows, dtype=np.float64).reshape(-1, len(columns))


def _npz(file: pathlib.Path, columns: list[str]) -> Any:
    with np.load(file, allow_pickle=False) as arrays:
        _require(columns, arrays.files)
        parts = []
        for name in columns:
            part = np.asarray(arrays[name], dtype=np.float64)
            parts.append(part.reshape(len(part), -1))
    return np.concatenate(parts, axis=1)


def _parquet(file: pathlib.Path, columns: list[str]) -> Any:
    with needs("parquet"):
        import pandas as pd

        importlib.import_module("pyarrow")
    table = pd.read_parquet(file)
    _require(columns, table.columns)
    return table[columns].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)


def _require(columns: Sequence[str], known: Any) -> None:
    for name in columns:
        if name not in list(known):
            raise KeyError(name)


def _number(text: str | None) -> float:
    try:
        return float(text or math.nan)
    except ValueError:
        return math.nan


_READERS: dict[str, Callable[[pathlib.Path, list[str]], Any]] = {
    ".csv": _csv,
    ".csv.gz": _csv,
    ".npz": _npz,
    ".parquet": _parquet,
}
