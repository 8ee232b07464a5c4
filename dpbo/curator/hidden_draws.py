"""Noised answers within the hidden runs of a private selection, which releases at most one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from dpbo.curator.releasing import conditions_of, noised
from dpbo.errors import InputError, UsageError
from dpbo.events import RolesEvent, SelectionEvent
from dpbo.hidden_run import in_hidden_run
from dpbo.mechanisms.mechanism import Entropy, Mechanism
from dpbo.mechanisms.shares import whole
from dpbo.queries.query import Failure, Outcome, Query
from dpbo.records.opaque import Opaque

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger


class HiddenDraws(Opaque):
    """What `Curator.hidden_draws` makes. It charges, stores and notes nothing, and touches no
    ledger: who watches the ledger's storage must not learn how many runs there are.

    Args:
        ledger: what the selection was charged in.
        reservation: the selection's: charged, and without a value yet.
        answer: answers a question on the records.
        entropy: source of noise.

    Raises:
        InputError: there is no such selection under way.
    """

    def __init__(
        self,
        ledger: "Ledger",
        reservation: str,
        answer: Callable[[Query], Outcome],
        entropy: Entropy,
    ) -> None:
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
        self._birth = ledger.birth
        self._answer = answer
        self._entropy = entropy

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
        mechanism = whole(mechanism)
        birth = self._birth
        event = query.release_event(mechanism.event(), birth.adjacency)
        if conditions_of(query) or event.free:
            allowed = "one whose sensitivity holds for all data, with noise"
            remedy = "Release it outside the selection, where the statement tells of it."
            raise InputError("query", type(query).__name__, allowed, remedy)
        outcome = self._answer(query)
        if isinstance(outcome, Failure):
            if outcome.interruption is not None:
                raise outcome.interruption
            return None
        distribution = mechanism.distribution(query.sensitivity(birth.adjacency), outcome.quanta)
        return noised(query, outcome, distribution, mechanism, self._entropy, units=birth.units)
