"""What earlier hunts found: the test that killed each mutant, and why some made by rule live on."""

from __future__ import annotations

import json
import pathlib
from functools import cache
from typing import Any

from tests.mutants.generic import Generic

HERE = pathlib.Path(__file__).parent
KILLERS, SURVIVORS = HERE / "killers.json", HERE / "survivors.json"


def read(path: pathlib.Path) -> dict[str, Any]:
    """What the file holds; nothing where there is none."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Sorted, one line each, so that changes read well."""
    path.write_text(json.dumps(content, indent=0, sort_keys=True) + "\n")


def explained(mutant: Generic) -> str | None:
    """Why this one may live, if there is a reason."""
    return reasons().get(mutant.name)


@cache
def reasons() -> dict[str, str]:
    """By name; survivors.json holds the names of each reason."""
    return {name: why for why, names in read(SURVIVORS).items() for name in names}
