"""Noised answers within the hidden runs of a private selection, which releases at most one."""

from typing import TYPE_CHECKING

from torch import Tensor

from dpbo.curator.releasing import conditions_of, noised
from dpbo.errors import InputError, UsageError
from dpbo.events import RolesEvent, SelectionEvent
from dpbo.hidden_run import in_hidden_run
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.queries.query import Failure, Query
from dpbo.records.opaque import Opaque

if TYPE_CHECKING:
    from dpbo.curator.curator import Curator


class HiddenDraws(Opaque):
    """What `Curator.hidden_draws` makes. It charges, stores and notes nothing, and touches no
    ledger: who watches the ledger's storage must not learn how many runs there are.

    Args:
        reservation: the selection's: charged, and without a value yet.

    Raises:
        UsageError: the records are shared by several processes.
        InputError: there is no such selection under way.
    """

    def __init__(self, curator: "Curator", reservation: str) -> None:
        if curator.ranks > 1:
            raise UsageError(
                "each rank would noise its own shard for one charge: give a curator of one process."
            )
        ledger = curator.ledger
        reserved = ledger.reservation(reservation)
        selects = reserved is not None and isinstance(reserved.event, (SelectionEvent, RolesEvent))
        charged, released = ledger.counts(reservation)
        if not selects or not charged or released:
            raise InputError(
                "reservation",
                reservation,
                "that of a selection that was charged and has no value yet",
                "Use release() for others.",
            )
        self._curator = curator

    def __call__(self, query: Query, mechanism: Mechanism) -> Tensor | None:
        """The answer with the noise of a release, `m`; None if it fails, which is as private as the
        answer.

        Raises:
            UsageError: called outside a run, whose selection pays for it.
            InputError: the query rests on data assumptions, may fail with some probability, or is
                answered exactly. The statement would have to say so from the start, and no sum of
                the failure probabilities of so many runs is known. In a run this error counts as a
                failure of the run.
        """
        if in_hidden_run.get() is None:
            raise UsageError(
                "this draws within a run of a private selection alone: no other charge pays for it."
                " Use release() elsewhere."
            )
        curator = self._curator
        event = query.release_event(mechanism.event(), curator.adjacency)
        if conditions_of(query) or event.free:
            allowed = "one whose sensitivity holds for all data, with noise"
            remedy = "Release it outside the selection, where the statement tells of it."
            raise InputError("query", type(query).__name__, allowed, remedy)
        outcome = curator._job(query)()
        if isinstance(outcome, Failure):
            if outcome.interruption is not None:
                raise outcome.interruption
            return None
        distribution = mechanism.distribution(query.sensitivity(curator.adjacency), outcome.quanta)
        _, value, _ = noised(
            query, outcome, distribution, mechanism, curator.entropy, units=curator.units
        )
        return value
