"""Releases between their charge and the caller: delivered once, drawn but not yet stored, or lost.
Nothing is ever drawn twice.
"""

import dataclasses
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dpbo.curator.handle import Handle
from dpbo.errors import ReleaseLost
from dpbo.release import Release

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger

DrawnReleases = Sequence[tuple[Handle, Release]]


class PendingReleases:
    """What became of each handle that was charged.

    Args:
        ledger: where values are stored.
    """

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        # None until it is stored.
        self._charged = weakref.WeakKeyDictionary[Handle, Release | None]()
        self._drawn: list[tuple[int, str, DrawnReleases]] = []

    def uncharged(self, handles: Iterable[Handle]) -> list[Handle]:
        """Those that were never charged, each once. Raises ReleaseLost where another one's value is
        lost: then none is charged.
        """
        distinct = list(dict.fromkeys(handles))
        # For an error alone.
        for handle in distinct:
            if handle in self._charged:
                self.value(handle)
        return [handle for handle in distinct if handle not in self._charged]

    def is_charged(self, handle: Handle) -> bool:
        return handle in self._charged

    def mark_charged(self, handles: Iterable[Handle]) -> None:
        """From here on each is delivered once, or lost."""
        self._charged.update(dict.fromkeys(handles))

    def mark_uncharged(self, handles: Iterable[Handle]) -> None:
        """They were not charged after all, and may be another time."""
        for handle in handles:
            del self._charged[handle]

    def add(self, entry: int, name: str, drawn: DrawnReleases) -> None:
        """Keep what was drawn until the ledger has it."""
        self._drawn.append((entry, name, drawn))

    def store(self) -> None:
        """Store what was drawn. If the ledger cannot be written, it stays here until the next
        release.
        """
        while self._drawn:
            entry, name, drawn = self._drawn[0]
            self._ledger.store(entry, name, list(itertools.starmap(_row, drawn)))
            self._charged.update(drawn)
            self._drawn.pop(0)

    def value(self, handle: Handle) -> Release:
        """Its one value, in tensors that the caller may change. Raises ReleaseLost where it was
        charged but never delivered.
        """
        release = self._charged[handle]
        if release is None:
            raise ReleaseLost(
                "this handle was charged but its value was never delivered, and it is never drawn"
                " twice. Evaluate again: a new handle is a new release with a charge of its own."
            )
        return dataclasses.replace(
            release, value=release.value.clone(), variance=release.variance.clone()
        )


def _row(handle: Handle, release: Release) -> dict[str, Any]:
    """A value as the ledger keeps it."""
    return {
        "handle": handle.id,
        "value": _listed(release.value),
        "variance": _listed(release.variance),
        "distribution": release.distribution.to_json(),
        "lattice": list(map(str, release.lattice)),
        "details": handle.details,
    }


def _listed(numbers: Tensor) -> list[Any]:
    """Numbers as the ledger keeps them, also a single one in a list."""
    listed: list[Any] = numbers.reshape(numbers.shape or (1,)).tolist()
    return listed
