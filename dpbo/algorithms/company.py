"""Whether others release under the same plan meanwhile.

Where several workers, threads or processes each release when they are done, the order of their values, and every point that is proposed
from some values and not yet from others, follow from how long the scores took. That stands in the ledger for every reader.
"""

from __future__ import annotations

from dpbo.objective import PrivateObjective


def assume_durations_tell_nothing(objective: PrivateObjective) -> None:
    """Noted once in the ledger, for every later statement."""
    objective.curator.ledger.note("assume", "durations-tell-nothing")


class Company:
    """Notes the assumption as soon as somebody else's charge is found between one's own: look before and after each release."""

    def __init__(self, objective: PrivateObjective) -> None:
        self._objective, self._left = objective, objective.remaining

    def begin(self) -> None:
        """Whatever was charged so far came before."""
        self._left = self._objective.remaining

    def look(self, own: int = 0) -> None:
        """Note it if more was charged since the last look than one's own so many."""
        before, self._left = self._left, self._objective.remaining
        if before - self._left > own:
            assume_durations_tell_nothing(self._objective)
