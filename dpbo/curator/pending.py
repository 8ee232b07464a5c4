"""What became of each charged handle: delivered once, drawn but not yet stored, or lost. Nothing is ever drawn twice."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from dpbo.curator.handle import Handle
from dpbo.curator.ledger import Ledger
from dpbo.errors import ReleaseLost
from dpbo.release import Release

Drawn = Sequence[tuple[Handle, Release]]


class Deliveries:
    """Between the charge and the caller."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._given: weakref.WeakKeyDictionary[Handle, Release | None] = weakref.WeakKeyDictionary()
        self._waiting: list[tuple[int, str, Drawn]] = []

    def fresh(self, handles: Iterable[Handle]) -> list[Handle]:
        """Those that were never charged, each once. Raises ReleaseLost where another one's value is lost: then none is charged."""
        every = list(dict.fromkeys(handles))
        for handle in every:
            if handle in self._given:
                self.of(handle)
        return [handle for handle in every if handle not in self._given]

    def charged(self, handles: Iterable[Handle]) -> None:
        """From here on each is delivered once, or lost."""
        self._given.update(dict.fromkeys(handles))

    def refused(self, handles: Iterable[Handle]) -> None:
        """They were not charged after all, and may be another time."""
        for handle in handles:
            del self._given[handle]

    def drawn(self, entry: int, name: str, pairs: Drawn) -> None:
        """Keep what was drawn until the ledger has it."""
        self._waiting.append((entry, name, pairs))

    def store(self) -> None:
        """Store what was drawn and hand it over. If the ledger cannot be written, it stays here until the next release."""
        while self._waiting:
            entry, name, pairs = self._waiting[0]
            self._ledger.store(entry, name, [_stored(*pair) for pair in pairs])
            self._given.update(pairs)
            self._waiting.pop(0)

    def of(self, handle: Handle) -> Release:
        """Its one value, in tensors that the caller may change. Raises ReleaseLost where it was charged but never delivered."""
        release = self._given[handle]
        if release is None:
            raise ReleaseLost("this handle was charged but its value was never delivered, and it is never drawn twice. Evaluate again: "
                              "a new handle is a new release with a charge of its own.")  # fmt: skip
        return dataclasses.replace(release, value=release.value.clone(), variance=release.variance.clone())


def _stored(handle: Handle, release: Release) -> dict[str, Any]:
    numbers = {"value": release.value.tolist(), "variance": release.variance.tolist()}
    lattice = [str(k) for k in release.lattice]
    return {"handle": handle.id, **numbers, "law": release.law.to_json(), "lattice": lattice, "details": handle.details}
