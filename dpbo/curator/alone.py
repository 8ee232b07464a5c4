"""What a curator does with others that hold shards of the same records, and the case that there are none.

Every process calls the same code with records of its own and gets the same released values. What crosses between them:
    `sum`: exact int64 partial sums of clipped contributions, to the first rank alone; whole numbers add up to the same bits in any order.
    `first`: what the first rank alone does (charge, draw, store), its value or its error given to all, so that nobody waits for ever.
    `whole`: the number of units where it is public, and keyed hashes of labels, so that no unit stands on two ranks.
Quanta, bounds and chunk shapes come from the public number of all units, never from a shard's. Before each of them the ranks compare a
digest of the public question, so that ranks that went apart are refused before anything is charged.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from dpbo.curator.records import PrivateView
from dpbo.queries.query import Failure, IntegerSum

T = TypeVar("T")
Asked = Iterable[Any]


class Together(Protocol):
    """The ranks as their curators see them. `title` names a step in errors; `asked` is what must be the same on every rank, public.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def together(self, title: str, asked: Asked, work: Callable[[], T]) -> T: ...
    def first(self, title: str, asked: Asked, work: Callable[[], T]) -> T: ...
    def sum(self, title: str, asked: Asked, work: Callable[[], IntegerSum | Failure]) -> IntegerSum | Failure: ...
    def whole(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView: ...
    def name(self) -> str: ...


class Alone:
    """One process with all records: everything is simply done."""

    rank, size = 0, 1

    def together(self, title: str, asked: Asked, work: Callable[[], T]) -> T:
        """`work()`."""
        return work()

    def first(self, title: str, asked: Asked, work: Callable[[], T]) -> T:
        """`work()`."""
        return work()

    def sum(self, title: str, asked: Asked, work: Callable[[], IntegerSum | Failure]) -> IntegerSum | Failure:
        """`work()`."""
        return work()

    def whole(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView:
        """The view as it is."""
        return view

    def name(self) -> str:
        """Random, for a handle."""
        return uuid.uuid4().hex
