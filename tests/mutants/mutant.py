"""One sabotage: a piece of one file of the package, and what stands there instead."""

from __future__ import annotations

import hashlib
import pathlib
from dataclasses import dataclass
from typing import Protocol

ROOT = pathlib.Path(__file__).parents[2]


class Sabotage(Protocol):
    """A changed text of one file of the package, dpbo/`file`."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> str: ...
    def source(self) -> str: ...
    def lines(self) -> set[int]: ...
    def within(self) -> str: ...


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs once in dpbo/`file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    def source(self) -> str:
        """The file's text with the sabotage in it. Raises ValueError where `old` does not occur exactly once."""
        text = (ROOT / "dpbo" / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)

    def lines(self) -> set[int]:
        """The numbers of the lines it touches, from one."""
        before = (ROOT / "dpbo" / self.file).read_text().split(self.old)[0].count("\n") + 1
        return set(range(before, before + self.old.count("\n") + 1))

    def within(self) -> str:
        """A digest of name and content: what is known of it holds for this text alone."""
        return hashlib.sha256("\0".join((self.name, self.file, self.old, self.new)).encode()).hexdigest()[:12]
