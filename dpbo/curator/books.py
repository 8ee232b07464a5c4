"""The ledger behind a curator, written by the first rank alone and read alike on all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from dpbo.curator.alone import Together
from dpbo.curator.chain import Record
from dpbo.curator.ledger import Ledger
from dpbo.curator.mirror import Mirror
from dpbo.errors import LedgerUnavailable, PrivacyError

T = TypeVar("T")


class Books:
    """Opens the ledger at `url`, born with `born`, on the first rank; the others follow it in a Mirror.

    Attributes:
        own: what is written to; of use on the first rank alone.
        seen: what may be read: `own` itself, or of several ranks what all saw last.
    """

    def __init__(self, ranks: Together, url: str | None, born: Mapping[str, Any]) -> None:
        self._ranks = ranks
        opened: list[Ledger] = []

        def told() -> tuple[list[Record], bool] | None:
            opened.append(Ledger(url, born))
            return None if ranks.size == 1 else (opened[0].records(), opened[0].storage.persistent)

        first = ranks.first("open the ledger", (), told)
        self._mirror = None if first is None else Mirror(first[0], persistent=first[1])
        self.seen: Ledger = opened[0] if self._mirror is None else self._mirror
        self.own = opened[0] if opened else self.seen

    def by_first(self, title: str, asked: Iterable[Any], work: Callable[[], T]) -> T:
        """What only the first rank does: its value or error for all, with all that the ledger has gained since."""
        mirror = self._mirror
        if mirror is None:
            return work()
        last = mirror.head().seq

        def told() -> tuple[T | None, PrivacyError | None, list[Record]]:
            value, refused, news = None, None, list[Record]()
            try:
                value = work()
            except PrivacyError as error:
                refused = error
            with contextlib.suppress(LedgerUnavailable):
                news = self.own.records(after=last)
            return value, refused, news

        value, refused, news = self._ranks.first(title, asked, told)
        mirror.follow(news)
        if refused is not None:
            raise refused
        return cast(T, value)

    def note(self, kind: str, text: str) -> None:
        """Note something on all ranks' behalf, for every later statement."""
        self.by_first("note", (kind, text), lambda: self.own.note(kind, text))
