"""Which records the ledgers of this process protect, so that two budgets over the same people, and
records of two roles, are found.

Whether something is refused because two tables share records, or warned of, depends on the records,
and no budget covers it: it is for the operator alone.
"""

import collections
import logging
import threading
from typing import TYPE_CHECKING, Any

from dpbo.curator.handle import Opaque
from dpbo.curator.record_fingerprints import PROCESS_KEY, Rows, Sketch, rows_of, table_digest
from dpbo.curator.records import PrivateView
from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.validation import Name, checked, warn

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger

_LOG = logging.getLogger(__name__)
_TABLES = 64
_NOT_COMPARED = (
    "%s records are not compared with others, because single records cannot be read alike twice"
)
# The budget of all that no ledger of this process is known to pay for.
_TRAININGS = "trainings"


class RepeatedRecordsWarning(UserWarning):
    """Records are used under one budget after they were used under another one, or in two roles: no
    statement adds both up."""


class ProtectedTables:
    """Fingerprints of the newest tables that a budget of this process protects and was charged for:
    the last 64."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: collections.deque[tuple[Sketch, str]] = collections.deque(maxlen=_TABLES)

    def add(self, sketch: Sketch, budget: str) -> None:
        """Note a table.

        Args:
            budget: the same for the same budget alone, such as `Storage.identity`.
        """
        with self._lock:
            known = {(table.whole, other) for table, other in self._tables}
            if (sketch.whole, budget) not in known:
                self._tables.append((sketch, budget))

    def now(self) -> list[tuple[Sketch, str]]:
        """What is noted, for `put_back`."""
        with self._lock:
            return list(self._tables)

    def put_back(self, noted: list[tuple[Sketch, str]]) -> None:
        """Hidden runs leave nothing here: it would tell how many there were."""
        with self._lock:
            self._tables = collections.deque(noted, maxlen=_TABLES)

    def hold(self, sketch: Sketch | None, *, but_for: str = "") -> bool:
        """Whether a budget other than `but_for` protects some of these records."""
        with self._lock:
            others = [table for table, budget in self._tables if budget != but_for]
        return sketch is not None and any(table.is_of_people_of(sketch) for table in others)


protected_tables = ProtectedTables()
"""Of this process: ledgers know nothing of one another."""


class ProtectedRecords(Opaque):
    """The records of all roles that one ledger pays for.

    What its methods answer depends on the records, and is for the operator alone.

    Args:
        own: the curator's records.
        role: what they are for.
        ledger: which pays for them.
        repetition_allowed: whether it is accepted that another ledger protects some of them, too.
    """

    def __init__(
        self, own: PrivateView, role: str, ledger: "Ledger", *, repetition_allowed: bool
    ) -> None:
        self.__own = own
        self._role = role
        self._ledger = ledger
        self._repetition_allowed = repetition_allowed
        self._remembered = False
        # that the own records are not compared
        self._told = False
        # By role.
        self._others: dict[str, Sketch] = {}

    @checked
    def add(self, records: Any, *, role: Name) -> None:
        """Note that the ledger pays for records of another role, too, such as those that a private
        training takes. From the next charge on, `Curator`, `tune` and `DPSearch` of this process
        know them as protected.

        Args:
            records: as in `Curator`, or a torch Dataset. Samples that it changes at random are not
                known again.
            role: such as "training".
        """
        sketch = Sketch.of(rows_of(records))
        if sketch is None:
            _LOG.warning(_NOT_COMPARED, role)
            return
        self._others[role] = sketch
        self._remembered = False

    def require_apart(self, name: str, records: Any, why: str) -> None:
        """Raises InputError where some of these are the curator's own records, as
        `require_other_rows` says.

        Args:
            name: the argument that holds the records.
            why: what is wrong with records of two roles.
        """
        require_other_rows(name, records, rows_of(self.__own), self._role, why)

    def are(self, records: Any) -> bool:
        """Whether these are the curator's own records, each as often, in any order.

        False where single records cannot be read and they are others.
        """
        if records is self.__own.container:
            return True
        digest = table_digest(rows_of(records), PROCESS_KEY)
        return digest is not None and digest == table_digest(rows_of(self.__own), PROCESS_KEY)

    def are_repeated(self) -> bool:
        """Whether the ledger is in memory and another one of this process protects some of the same
        records."""
        ledger = self._ledger
        if ledger.storage.persistent or self._remembered or ledger.void:
            return False
        return self._others_protect(self._sketches())

    def before_charge(self, event: Event) -> list[Sketch]:
        """Fingerprints to `remember` once the ledger's first event is charged. None for a void
        ledger and for what is free: neither guarantees. Warns where another ledger protects some of
        the records."""
        ledger = self._ledger
        if self._remembered or event.free or ledger.void:
            return []
        sketches = self._sketches()
        if self._others_protect(sketches) and not self._repetition_allowed:
            text = (
                "this process has already released results about some of these records under"
                " another Curator, such as each search and each `tune` makes. The total privacy"
                " loss is larger than either statement says, because neither ledger knows of the"
                " other. Pass the same dataset= and ledger= to both. To accept the larger loss,"
                " pass allow_repeated=True; the statement will mention it."
            )
            warn(text, RepeatedRecordsWarning)
        return sketches

    def remember(self, sketches: list[Sketch]) -> None:
        """The event was charged: this process knows the records as protected."""
        for sketch in sketches:
            protected_tables.add(sketch, self._ledger.storage.identity)
            self._remembered = True

    def _others_protect(self, sketches: list[Sketch]) -> bool:
        """Whether another budget of this process protects some of these records."""
        budget = self._ledger.storage.identity
        return any(protected_tables.hold(sketch, but_for=budget) for sketch in sketches)

    def _sketches(self) -> list[Sketch]:
        own = Sketch.of(rows_of(self.__own))
        if own is None and self.__own.count and not self._told:
            self._told = True
            _LOG.warning(_NOT_COMPARED, self._role)
        return [*([] if own is None else [own]), *self._others.values()]


def note_trained(records: Any) -> None:
    """Note records of a private training that charges no ledger by itself, and warn where a ledger
    of this process protects some of them: its statement does not count the training."""
    sketch = Sketch.of(rows_of(records))
    if protected_tables.hold(sketch, but_for=_TRAININGS):
        text = (
            "this process has already released results about some of these records under a Curator,"
            " and a session by itself is charged to no ledger. The total privacy loss is larger"
            " than that statement says, unless a private_selection under that Curator is charged"
            " for these records, too."
        )
        warn(text, RepeatedRecordsWarning)
    if sketch is not None:
        protected_tables.add(sketch, _TRAININGS)


def holds_protected(records: Any) -> bool:
    """Whether a budget of this process protects some of these records; False where their form
    cannot be compared."""
    return protected_tables.hold(Sketch.of(rows_of(records)))


def require_other_rows(name: str, records: Any, own: Rows | None, role: str, why: str) -> None:
    """Raises InputError where some records are those of another role. That depends on the records,
    so it is for the operator alone: call it before a ledger is made, and charge and note nothing.

    A few equal rows may be chance where rows have few words or bits. A row that no table holds
    twice, and both hold, gives a warning (`RepeatedRecordsWarning`).

    Args:
        name: the argument that holds the records.
        own, role: records of the other role, and what they are for.
        why: what is wrong with records of two roles, and what to do.
    """
    first = Sketch.of(own)
    second = Sketch.of(rows_of(records))
    if first is None or second is None:
        return
    if first.is_of_people_of(second) or second.is_of_people_of(first):
        text = f"Nothing was charged. {why} Tell only those who may see the records."
        raise InputError(
            name, type(records).__name__, f"of other records than the {role} records", text
        )
    if first.has_rows_of(second):
        warn(
            f"{name} and the {role} records have equal rows, perhaps by chance. {why}",
            RepeatedRecordsWarning,
        )
