"""The ledger as all ranks saw it last: a copy in memory of the first rank's chain, which is public.

Algorithms read it to decide what to do next; as it is the same everywhere, every rank decides the same, and reading it needs no others.
It moves on when the ranks do something together. Only the first rank's own ledger is ever written to, and by the curator alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from dpbo.curator.chain import Record
from dpbo.curator.ledger import Ledger, insert
from dpbo.curator.storage import Storage
from dpbo.errors import LedgerError


class Mirror(Ledger):
    """Reads as the ledger does; refuses to be written to.

    Args:
        chain: its records from birth on.
        persistent: whether the first rank's own outlives its process.
    """

    def __init__(self, chain: Sequence[Record], *, persistent: bool) -> None:
        self.storage = _Copy(None)
        self.storage.persistent_elsewhere = persistent
        self.follow(chain)
        self._bind(chain[0])

    def follow(self, news: Sequence[Record]) -> None:
        """Take over what was added since."""
        if news:
            with self.storage.writing() as connection:
                for record in news:
                    insert(connection, record)

    def reserve(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()

    def charge(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()

    def store(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()

    def note(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()


class _Copy(Storage):
    persistent_elsewhere = False

    @property
    def persistent(self) -> bool:
        return self.persistent_elsewhere


def _refuse() -> NoReturn:
    raise LedgerError("the ledger of a curator on several ranks is written by the curator alone: use its reserve() and release().")
