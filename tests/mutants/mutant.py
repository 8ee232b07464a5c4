"""One sabotage: a piece of one file of the package, and what stands there instead."""

from __future__ import annotations

import hashlib
import pathlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]


class Sabotage(ABC):
    """Some text of dpbo/`file` becomes `new`."""

    name: str
    file: str
    new: str

    @abstractmethod
    def span(self, text: str) -> tuple[int, int]:
        """Where the changed piece begins and ends in the file's text."""

    @abstractmethod
    def within(self) -> str:
        """A digest by which it is known."""

    def source(self) -> str:
        """The file's text with the change in it."""
        text = (ROOT / "dpbo" / self.file).read_text()
        start, stop = self.span(text)
        return text[:start] + self.new + text[stop:]

    def lines(self) -> set[int]:
        """The numbers of the lines it touches, from one."""
        text = (ROOT / "dpbo" / self.file).read_text()
        start, stop = self.span(text)
        return set(range(text.count("\n", 0, start) + 1, text.count("\n", 0, stop) + 2))


@dataclass(frozen=True)
class Mutant(Sabotage):
    """`old`, which occurs once in dpbo/`file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    def span(self, text: str) -> tuple[int, int]:
        """Raises ValueError where `old` does not occur exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {text.count(self.old)} times in {self.file}, not once")
        return text.index(self.old), text.index(self.old) + len(self.old)

    def within(self) -> str:
        """Of name and content: what is known of it holds for this text alone."""
        return hashlib.sha256("\0".join((self.name, self.file, self.old, self.new)).encode()).hexdigest()[:12]
