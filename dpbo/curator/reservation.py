"""A reservation: budget that is set aside under a name for releases with equal noise, by this
process and by later ones.

    reservation = curator.reserve(
        "search", GaussianMechanism, slots=40, budget=0.9, query=query, given={"score": score}
    )
    # charged to the next free slot
    (release,) = reservation.release_all([curator.evaluate(query)])
    # of the n-th call, slot n: from the ledger, or charged now
    row = reservation.release(query)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from dpbo.curator.handle import Handle
from dpbo.curator.pricing import noise_std
from dpbo.errors import LedgerMismatch, ReleaseLost, UsageError
from dpbo.events import Event
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.progress import progress_bar
from dpbo.queries.query import Query
from dpbo.release import Release

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger
    from dpbo.records.protected_records import ProtectedRecords


class Owner(Protocol):
    """What a reservation needs of its curator."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def units(self) -> int | None: ...
    @property
    def rank(self) -> int: ...
    @property
    def protected(self) -> ProtectedRecords: ...
    def evaluate(self, query: Query, **details: Any) -> Handle: ...
    def release_all(
        self,
        handles: Collection[Handle],
        mechanism: Mechanism,
        *,
        name: str,
        reservation: str | None,
        used: int | None,
    ) -> tuple[Release, ...]: ...
    def deliver(self) -> None: ...


class Reservation:
    """What `Curator.reserve` returns.

    Attributes:
        curator: owner of the records and of the ledger.
        name: under which the ledger knows it.
        event: what a slot costs, as the ledger holds it.
        slots: how many releases there may be; of a parallel reservation, for each part of the
            records.
        mechanism: the noise of each release.
        begun: whether an earlier session made it.
    """

    def __init__(
        self,
        curator: Owner,
        name: str,
        event: Event,
        slots: int,
        mechanism: Mechanism | None,
        query: Query | None,
        *,
        begun: bool,
    ) -> None:
        self.curator = curator
        self.name = name
        self.event = event
        self.slots = slots
        self.begun = begun
        if isinstance(mechanism, (AdditiveMechanism, ChoiceMechanism)):
            # The ledger's: recomputed on another machine it may differ in its last digits.
            mechanism = dataclasses.replace(mechanism, noise_multiplier=event.noise_multiplier)
        self._mechanism = mechanism
        self._query = query
        # Slots that `release` has answered in this process.
        self._turn = 0
        self._bar: Any = None

    @property
    def mechanism(self) -> Mechanism:
        """The noise of each release."""
        assert self._mechanism is not None, (
            "events without a mechanism are charged by those who reserve them"
        )
        return self._mechanism

    @property
    def used(self) -> int:
        """Slots that are charged, in this process or another; of a parallel reservation, those of
        the part that was charged most often.
        """
        return self.curator.ledger.counts(self.name)[0]

    @property
    def remaining(self) -> int:
        """Slots that are not charged."""
        return self.slots - self.used

    @property
    def values(self) -> list[dict[str, Any]]:
        """The ledger's row of each value that was released, in the order of release: `value`,
        `variance`, and what `evaluate` was told besides, in `details`.
        """
        return self.curator.ledger.values(self.name)

    @property
    def lost(self) -> int:
        """Slots that are charged, and whose values were never delivered. They are never drawn
        again.
        """
        # A value may wait here for the ledger.
        self.curator.deliver()
        used, delivered = self.curator.ledger.counts(self.name)
        # Of a parallel reservation more values are known than the busiest part has slots.
        return max(0, used - delivered)

    @property
    def query(self) -> Query:
        """The question that it was reserved for."""
        assert self._query is not None
        return self._query

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of a release of the question that it was reserved for, `m`."""
        return self.std_of(self.query)

    def std_of(self, query: Query) -> Tensor:
        """Standard deviation of a release of this question, `m`: one whose noise its public numbers
        tell.
        """
        std = noise_std(self.curator.ledger, self.mechanism, query)
        assert std is not None
        return std

    def show_progress(self) -> None:
        """Count releases in a bar, which appears on a terminal only and shows no times."""
        self._bar = progress_bar(self.name, self.slots, done=self.used, rank=self.curator.rank)

    def charge(self, details: Mapping[str, Any], *, count: int = 1, used: int | None = None) -> int:
        """Charge `count` slots for noise that others draw, such as that of DP-SGD's steps; returns
        the entry's number (`Ledger.charge`).
        """
        event = self.event.repeated(count)
        with self.curator.protected.charging(event):
            return self.curator.ledger.charge(self.name, event, details, self.name, used=used)

    def release(self, query: Query, **details: Any) -> dict[str, Any]:
        """The ledger's row of the next slot, which is charged, drawn and stored now unless an
        earlier session did.

        For runs in which every release builds on the last. The n-th call is for the n-th slot, in
        every session: a run that is resumed asks the same questions again, and gets the values that
        were paid for.

        Args:
            query: what the slot answers. It is evaluated only if the slot is free.
            details: as in `Curator.evaluate`; what tells this slot's question from others.

        Raises:
            LedgerMismatch: the slot was released with other details.
            ReleaseLost: a slot was charged earlier, but its value was never stored.
            BudgetExceeded: there are no more slots.
            LedgerError: another process released meanwhile; nothing was charged.
            UsageError: the reservation is a parallel one, whose slots have no order.
        """
        reserved = self.curator.ledger.reservation(self.name)
        if reserved is not None and reserved.parallel:
            raise UsageError(
                f"the slots of the parallel reservation {self.name!r} have no order: use"
                " release_all."
            )
        if self.used <= self._turn:
            self.release_all([self.curator.evaluate(query, **details)], used=self._turn)
        if self.lost:
            raise ReleaseLost(
                f"a release of {self.name!r} was charged but never delivered, and it is never drawn"
                " twice. The charge stays. Start again under another name, if the budget allows it."
                f" {self.curator.ledger.account()}"
            )
        row = self.curator.ledger.values(self.name, skip=self._turn)[0]
        # as the ledger keeps them
        asked = json.loads(json.dumps(details))
        if row["details"] != asked:
            raise LedgerMismatch(
                f"details of release {self._turn + 1} of {self.name!r}",
                row["details"],
                asked,
                "Ask again what was asked there, or begin under another name.",
            )
        self._turn += 1
        return row

    def release_all(
        self, handles: Collection[Handle], *, used: int | None = None
    ) -> tuple[Release, ...]:
        """`Curator.release_all` from this reservation, with its noise."""
        released = self.curator.release_all(
            handles, self.mechanism, name=self.name, reservation=self.name, used=used
        )
        if self._bar is not None and not self._bar.disable:
            self._bar.update(self.used - self._bar.n)
            if self._bar.n >= self.slots:
                self._bar.close()
        return released
