"""What README.md prints as code, and what it says that this prints."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]


def blocks(page: str | pathlib.Path) -> list[str]:
    """The blocks of Python on a page of the repository."""
    return re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )


def examples() -> list[tuple[str, str]]:
    """Each block of the README, with fewer candidates, and what it prints by its last comments."""
    found = []
    for block in blocks("README.md"):
        printed = re.findall(r"^# (.*)$", block, flags=re.MULTILINE)
        found.append((block.replace("n_iter=24", "n_iter=6"), "\n".join(printed)))
    return found


def form(text: str) -> str:
    """A text whose numbers are all alike, however its lines are broken."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", " ".join(text.split()))
