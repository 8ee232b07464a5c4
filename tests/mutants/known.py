"""What earlier hunts found: the test that killed each mutant, and why some made by rule live on."""

from __future__ import annotations

import json
import pathlib
import re
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
    """Why this one may live: the first reason of which a pattern matches its whole name."""
    return next((why for pattern, why in reasons() if pattern.fullmatch(mutant.name)), None)


@cache
def reasons() -> list[tuple[re.Pattern[str], str]]:
    """survivors.json holds the patterns of each reason."""
    return [(re.compile(pattern), why) for why, patterns in read(SURVIVORS).items() for pattern in patterns]
