"""What goes from the curator to the modeler: a folder with the released table and its statement, and answers about single rows.

    write_release("release", rows, facts, statement)          # the curator
    rows, facts = read_release("release")                     # the modeler; nothing here knows a curator

rows.npz holds Z (and A, where rows were projected), release.json the law of the noise and whatever public facts the curator adds,
statement.json and statement.txt what is guaranteed. Files are replaced whole, so a curator that is stopped leaves no half of one.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpbo.checking import checked, require_json
from dpbo.errors import InputError
from dpbo.statement import Statement

FORMAT = 1


@checked
@dataclass(frozen=True, eq=False)
class ReleasedRows:
    """A released table; public.

    Attributes:
        Z: `n x k`, float64.
        variance: of the noise of each released coordinate, the same for all.
        law: of the noise, as the ledger has it.
        projection: A, `d x k`, where rows were projected.
    """

    Z: torch.Tensor
    variance: float
    law: dict[str, Any]
    projection: torch.Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """One outcome; public. `variance` is that of the noise alone."""

    row: int
    value: float
    variance: float


@checked
def write_release(folder: str | os.PathLike[str], rows: ReleasedRows, facts: Mapping[str, Any], statement: Statement) -> None:
    """Write or replace the folder's files. `facts` are JSON values. Raises InputError where they are not, or the folder cannot be made."""
    require_json("facts", facts)
    place = pathlib.Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError("folder", str(place), "a folder, or where one can be made") from error
    arrays = {"Z": rows.Z.numpy()} | ({} if rows.projection is None else {"projection": rows.projection.numpy()})
    table = io.BytesIO()
    np.savez_compressed(table, **arrays)  # type: ignore[arg-type]
    told = {"format": FORMAT, "rows": list(rows.Z.shape), "variance": rows.variance, "law": rows.law, **facts}
    _replace(place / "rows.npz", table.getvalue())
    _replace(place / "release.json", json.dumps(told, indent=2).encode())
    _replace(place / "statement.json", statement.to_json().encode())
    _replace(place / "statement.txt", f"{statement}\n".encode())


@checked
def read_release(folder: str | os.PathLike[str]) -> tuple[ReleasedRows, dict[str, Any]]:
    """The table and the facts. Raises InputError where the folder holds no release of this format."""
    place = pathlib.Path(folder)
    try:
        facts = json.loads((place / "release.json").read_text())
        with np.load(place / "rows.npz", allow_pickle=False) as arrays:
            Z, A = torch.from_numpy(arrays["Z"]), torch.from_numpy(arrays["projection"]) if "projection" in arrays else None
        if facts["format"] != FORMAT or list(Z.shape) != facts["rows"]:
            raise ValueError("another format")
        return ReleasedRows(Z, float(facts["variance"]), facts["law"], A), facts
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "`python -m dpbo curate` writes one."
        raise InputError("folder", str(place), f"a folder with a release of format {FORMAT}", remedy) from error


def _replace(path: pathlib.Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
