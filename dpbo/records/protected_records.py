"""Which records the ledgers of this process protect, so that two budgets over the same people, and
records of two roles, are found.

Whether something is refused because two tables share records, or warned of, depends on the records,
and no budget covers it: it is for the operator alone.
"""

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from dpbo.accounting.calibration import budget_in_words
from dpbo.errors import InputError, UsageError
from dpbo.events import Event
from dpbo.queries.ball import LARGEST_CHUNK, Ball
from dpbo.records import charged_tables
from dpbo.records.containers import is_dense, leaves
from dpbo.records.digests import RowDigests, RowSet, table_digest
from dpbo.records.named_tables import named_tables
from dpbo.records.opaque import Opaque
from dpbo.records.scaled_tables import ScaledRowsWarning, scaled_column
from dpbo.records.view import PrivateView
from dpbo.validation import Name, checked, warn

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger

_LOG = logging.getLogger(__name__)
_TABLES = 64
# of numpy's search for a cell that two arrays have in common
_WORK = 10_000
_NOT_COMPARED = (
    "%s records are not compared with others, because single records cannot be read alike twice"
)
_SCALED = (
    "column {column!r} of the protected records, alone or with the public ones, has mean 0 and"
    " deviation 1, or the ends 0 and 1, as a scaler writes them. If one was fitted to these rows,"
    " each row depends on the others, and the guarantee does not hold (assumption"
    " `rows-stand-alone`). Give the rows as they were, and put the scaler into a Pipeline, given as"
    " the estimator; or fit it to public rows alone. If the column's ends are published constants,"
    " all is well. Tell only those who may see the records."
)
_CLIPPED = (
    "more than half of the protected rows lie further than radius={radius:g} from center (0 where"
    " it is omitted), and are clipped to that distance: what is released will tell of the radius"
    " rather than of the rows. Give bounds=, one (lower, upper) a column in the columns' own units,"
    " or a larger radius; take both from what is known of the columns without these rows. Tell only"
    " those who may see the records."
)
_REPEATED = (
    "this process has already released results about some of these records under another Curator,"
    " such as each search and each `tune` makes. The total privacy loss is larger than either"
    " statement says, because neither ledger knows of the other. Give both the same dataset=, or"
    " one Curator; a ledger that is new then takes allow_repeated=True the first time, so that its"
    " statement mentions what was spent before. allow_repeated=True alone accepts the larger loss."
)
# The budget of all that no ledger of this process is known to pay for.
_TRAININGS = "trainings"


class ClippedRowsWarning(UserWarning):
    """Most protected rows lie beyond the ball that they are clipped to. It depends on the records:
    a radius that is chosen because of it is no longer public.
    """


class RepeatedRecordsWarning(UserWarning):
    """Records are used under one budget after they were used under another one, or in two roles: no
    statement adds both up."""


class ProtectedTables:
    """Digests of the newest tables that a budget of this process protects and was charged for: the
    last 64."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: collections.deque[tuple[list[RowSet], str]] = collections.deque(
            maxlen=_TABLES
        )

    def add(self, table: list[RowSet], budget: str) -> None:
        """Note a table of at least one row.

        Args:
            budget: the same for the same budget alone, such as `Ledger.id`.
        """
        with self._lock:
            known = {(other[0].whole, owner) for other, owner in self._tables}
            if (table[0].whole, budget) not in known:
                self._tables.append((table, budget))

    def now(self) -> list[tuple[list[RowSet], str]]:
        """What is noted, for `put_back`."""
        with self._lock:
            return list(self._tables)

    def put_back(self, noted: list[tuple[list[RowSet], str]]) -> None:
        """Hidden runs leave nothing here: it would tell how many there were."""
        with self._lock:
            self._tables = collections.deque(noted, maxlen=_TABLES)

    def hold(self, table: list[RowSet], *, but_for: str = "") -> bool:
        """Whether a budget other than `but_for` protects some of these records."""
        return any(budget != but_for and _share_rows(known, table) for known, budget in self.now())


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
        public: public records of the same form, such as examples of them.
    """

    def __init__(
        self,
        own: PrivateView,
        role: str,
        ledger: "Ledger",
        *,
        repetition_allowed: bool,
        public: Any = None,
    ) -> None:
        self.__own = own
        self._public = public
        # whether the own records were searched for columns that a scaler wrote
        self._searched = False
        self._role = role
        self._ledger = ledger
        self._repetition_allowed = repetition_allowed
        # how many of the tables this process and the user's folder know as protected
        self._remembered = 0
        # whether the operator was warned of other ledgers
        self._told = False
        self._own_noted = False
        # What this process compares, and `charged_tables`: of each role's records.
        self._tables: list[list[RowSet]] = []
        self._sums: list[Tensor] = []

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
        self._note(role, records)

    def require_apart(self, name: str, records: Any, why: str) -> None:
        """Raises InputError where some of these are the curator's own records, as
        `require_other_rows` says.

        Args:
            name: the argument that holds the records.
            why: what is wrong with records of two roles.
        """
        require_other_rows(name, records, self.__own, self._role, why)

    def require_unnamed(self, name: str, function: Any) -> None:
        """Raises InputError where the code of a function names a table with some of the curator's
        own records, as `require_unnamed` says; not for a void ledger, such as a rehearsal's, which
        guarantees nothing.
        """
        if not self._ledger.void:
            require_unnamed(name, function, self.__own, self._role)

    def warn_if_scaled(self, public: Any = None) -> None:
        """Warns (`ScaledRowsWarning`) where a scaler seems to have been fitted to the own records,
        alone or together with public ones; not for a void ledger.

        Args:
            public: training records; omitted, those that the curator has, if this was not asked
                before.
        """
        if self._ledger.void or (public is None and self._searched):
            return
        self._searched = True
        beside = self._public if public is None else public
        own, other = (
            leaves(getattr(each, "tensors", each)) for each in (self.__own.records, beside)
        )
        column = scaled_column(own, other)
        if column is not None:
            warn(_SCALED.format(column=column), ScaledRowsWarning)

    def warn_if_clipped(self, ball: Ball, d: int) -> None:
        """Warns (`ClippedRowsWarning`) where the own records are one table of d columns of numbers,
        and more than half of its finite rows lie beyond a ball.
        """
        rows = self.__own.records
        if hasattr(rows, "iloc"):
            rows = rows.to_numpy()
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "biuf":
            rows = torch.from_numpy(rows.astype(np.float64))
        if not isinstance(rows, Tensor) or not is_dense(rows) or rows.shape[1:] != (d,):
            return
        order = torch.inf if ball.norm == "linf" else 2
        lengths = torch.cat(
            [
                torch.linalg.vector_norm(ball.inward(part.double()), order, dim=1)
                for part in torch.split(rows.detach(), LARGEST_CHUNK)
            ]
        )
        if int((lengths[lengths.isfinite()] > 1.0).sum()) > int(lengths.isfinite().sum()) / 2:
            warn(_CLIPPED.format(radius=ball.radius), ClippedRowsWarning)

    def are(self, records: Any) -> bool:
        """Whether these are the curator's own records, each as often, in any order.

        False where single records cannot be read and they are others.
        """
        if records is self.__own.container:
            return True
        digest = table_digest(records, b"")
        return digest is not None and digest == table_digest(self.__own, b"")

    def are_repeated(self) -> bool:
        """Whether the ledger is in memory and another one of this process protects some of the same
        records."""
        ledger = self._ledger
        if ledger.storage.persistent or self._knows_all or ledger.void:
            return False
        self._note_own()
        return self._others_protect()

    def compare(self, event: Event) -> None:
        """Before an event is reserved or charged: warns, once, where a scaler seems to have been
        fitted to the records, and where another ledger of this process was charged for some of
        them, or one that ended for the same table.

        Raises:
            UsageError: this ledger outlives the process, and is a second one over that table.
        """
        if self._knows_all or event.free or self._ledger.void:
            return
        self.warn_if_scaled()
        self._note_own()
        if not (self._repetition_allowed or self._told):
            self._tell_of_others()
        # A run that is resumed may charge nothing more.
        if self._ledger.has_charges():
            self._remember()

    def _remember(self) -> None:
        """From here on this process and the user's folder know the records as protected."""
        for table in self._tables[self._remembered :]:
            protected_tables.add(table, self._ledger.id)
        charged_tables.note(self._sums[self._remembered :], self._charged())
        self._remembered = len(self._tables)

    @contextlib.contextmanager
    def charging(
        self,
        event: Event,
        is_charged: Callable[[], bool] = lambda: False,
        *,
        compared: bool = False,
    ) -> Iterator[None]:
        """Within it an event is charged, after `compare`. After the ledger's first one, this
        process and the user's folder know the records as protected. Not of a void ledger, nor for
        what is free: neither guarantees.

        Args:
            is_charged: whether it was charged, although what is within raised.
            compared: whether what is within calls `compare` itself.
        """
        ledger = self._ledger
        if self._knows_all or event.free or ledger.void:
            yield
            return
        if not compared:
            self.compare(event)
        done = False
        try:
            yield
            done = True
        finally:
            if done or is_charged():
                self._remember()
                # Another thread may have been charged since this one compared.
                if self._others_protect() and not (self._repetition_allowed or self._told):
                    self._told = True
                    warn(_REPEATED, RepeatedRecordsWarning)

    def _tell_of_others(self) -> None:
        """Warn of other ledgers over these records, or refuse."""
        repeated = self._others_protect()
        elsewhere = self._charged_elsewhere()
        if repeated:
            warn(_REPEATED, RepeatedRecordsWarning)
        elif elsewhere:
            warn(elsewhere, RepeatedRecordsWarning)
        self._told = bool(repeated or elsewhere)

    def _charged(self) -> charged_tables.Charged:
        ledger = self._ledger
        which = place = charged_tables.MEMORY
        if ledger.storage.persistent:
            which = ledger.id
            place = ledger.storage.identity
        budget = budget_in_words(ledger.budget)
        return charged_tables.Charged(which, place, ledger.birth.dataset, budget)

    def _note(self, role: str, records: Any) -> None:
        """Keep the digests of a table."""
        rows = RowDigests.of(records)
        if rows is None:
            _LOG.warning(_NOT_COMPARED, role)
            return
        sets = rows.sets()
        # Each engine of a curator notes its loader's records.
        known = any(sets and table[0].whole == sets[0].whole for table in self._tables)
        if sets and not known:
            self._tables.append(sets)
            self._sums.append(rows.sums())
            self._told = False

    @property
    def _knows_all(self) -> bool:
        """Whether each table of this ledger is known as protected."""
        return self._own_noted and self._remembered == len(self._tables)

    def _note_own(self) -> None:
        if not self._own_noted:
            self._own_noted = True
            self._note(self._role, self.__own)

    def _charged_elsewhere(self) -> str:
        """Which ledgers of earlier programs were charged for the same tables, as a warning; "" for
        none. Raises UsageError where this one outlives the process and is new: it would start the
        budget again.
        """
        own = self._charged()
        persistent = own.ledger != charged_tables.MEMORY
        # Not of those that this ledger itself was charged for.
        found = charged_tables.charged(self._sums[self._remembered :])
        earlier = [each for each in found if not (persistent and each.has_moved_to(own))]
        if not earlier:
            return ""
        resumed = len(earlier) < len(found)
        kept = [each for each in earlier if each.ledger != charged_tables.MEMORY]
        if resumed:
            remedy = (
                "Go on with this ledger alone; allow_repeated=True has its statement mention the"
                " others."
            )
        elif kept:
            remedy = (
                f"Go on with the ledger of {kept[-1].dataset!r}: give that dataset=, and in ledger="
                " its file or URL, wherever it lies now; if it was deleted, put it back. To accept"
                " the larger loss, pass allow_repeated=True; the statement will mention it."
            )
        else:
            remedy = (
                "Give every later run the same dataset=, and the first of them allow_repeated=True,"
                " too, so that its statement mentions what was spent before."
            )
        text = (
            "this machine has already released results about these records:"
            f" {'; '.join(map(str, earlier))}. The total privacy loss is larger than any of their"
            f" statements says, because no ledger knows of another one. {remedy} Tell only those"
            " who may see the records."
        )
        if persistent and not resumed:
            raise UsageError(f"Nothing was charged: {text}")
        return text

    def _others_protect(self) -> bool:
        """Whether another budget of this process protects some of these records."""
        budget = self._ledger.id
        return any(protected_tables.hold(table, but_for=budget) for table in self._tables)


def note_trained(records: Any) -> None:
    """Note records of a private training that charges no ledger by itself, and warn where a ledger
    of this process protects some of them: its statement does not count the training."""
    table = _sets_of(records)
    if protected_tables.hold(table, but_for=_TRAININGS):
        text = (
            "this process has already released results about some of these records under a Curator,"
            " and a session by itself is charged to no ledger. The total privacy loss is larger"
            " than that statement says, unless a private_selection under that Curator is charged"
            " for these records, too."
        )
        warn(text, RepeatedRecordsWarning)
    if table:
        protected_tables.add(table, _TRAININGS)


def holds_protected(records: Any) -> bool:
    """Whether a budget of this process protects some of these records; False where their form
    cannot be compared."""
    return protected_tables.hold(_sets_of(records))


def require_unprotected(name: str, *tables: Any) -> None:
    """Raises InputError where a ledger of this process protects some of these rows: for one exact
    number of all of them, such as a score, which no budget covers. Rows whose form cannot be
    compared pass, and so do those that were computed from protected ones.

    Args:
        name: the argument that holds the rows.
        tables: their parts, such as features and labels, each None where there is none.
    """
    if holds_protected(tuple(map(_comparable, tables))):
        raise InputError(
            name,
            type(tables[0]).__name__,
            "free of records that a ledger of this process protects",
            "A score on them is exact, and no budget covers it: use what was released of them, such"
            " as a search's best_score_ or a ClippedMean of each record's score, or give rows that"
            " nothing protects.",
        )


def _comparable(table: Any) -> Any:
    """The table in a form whose rows can be compared with other tables' rows."""
    if isinstance(table, (list, tuple)) and not isinstance(table[0] if table else "", str):
        return np.asarray(table)
    return table.tocsr() if hasattr(table, "tocsr") else table


def require_other_rows(name: str, records: Any, own: Any, role: str, why: str) -> None:
    """Raises InputError where some records are those of another role. That depends on the records,
    so it is for the operator alone: call it before a ledger is made, and charge and note nothing.

    A few equal rows may be chance where rows have few words or bits. A row that no table holds
    twice, and both hold, gives a warning (`RepeatedRecordsWarning`).

    Args:
        name: the argument that holds the records.
        own, role: records of the other role, and what they are for.
        why: what is wrong with records of two roles, and what to do.
    """
    first = _sets_of(own)
    second = _sets_of(records)
    if not first or not second:
        return
    if _share_rows(first, second):
        text = f"Nothing was charged. {why} Tell only those who may see the records."
        raise InputError(
            name, type(records).__name__, f"of other records than the {role} records", text
        )
    if not (first[0].repeated or second[0].repeated) and first[0].shared(second[0]):
        warn(
            f"{name} and the {role} records have equal rows, perhaps by chance. {why}",
            RepeatedRecordsWarning,
        )


def require_unnamed(
    name: str, function: Any, records: Any, role: str, remedy: str | None = None
) -> None:
    """Raises InputError where the code of a function that trains or scores takes some of these
    records beside its arguments: what it does with them gets no noise. That depends on the records,
    so it is for the operator alone.

    Tables in memory are compared part by part, features apart from labels. Parts of one number a
    row, those with few different rows, and Datasets that may read files are known by identity
    alone, or where arrays or tensors share memory, as a slice does with its table.

    Args:
        name: the argument that holds the function, or an estimator or container with functions.
        records, role: protected records, and what they are for.
        remedy: what to do.
    """
    remedy = remedy or f"Split the table first, and let {name} name its public part alone."
    container = records.container if isinstance(records, PrivateView) else records
    own = leaves(container)
    own_sets: list[RowSet] | None = None
    for variable, table in named_tables(function, own):
        same = any(
            _share_samples(part, each) or _share_memory(part, each)
            for part in leaves(table)
            for each in own
        )
        held = None if same else _in_memory(table)
        if held is not None and own_sets is None:
            own_sets = _sets_of(records, parts_alone=True)
        if same or _share_rows(_sets_of(held, parts_alone=True), own_sets or []):
            raise InputError(
                name,
                getattr(function, "__name__", type(function).__name__),
                f"of code that names none of the {role} records, but {variable!r} has some",
                f"{remedy} Nothing was charged. Tell only those who may see the records.",
            )


def _base(records: Any) -> tuple[Any, Any]:
    """What a Subset takes its samples from, and their places there; None for all of them."""
    places = None
    while type(records) is Subset:
        given = records.indices
        places = given if places is None else [given[place] for place in places]
        records = records.dataset
    return records, places


def _share_samples(first: Any, second: Any) -> bool:
    """Whether both are one object, or have samples of one Dataset in common."""
    (first, places), (second, others) = _base(first), _base(second)
    if first is not second:
        return False
    return places is None or others is None or not {*places}.isdisjoint(others)


def _share_memory(first: Any, second: Any) -> bool:
    """Whether two arrays, or tensors on the CPU, have a cell in common."""
    one, other = _array_of(first), _array_of(second)
    if one is None or other is None:
        return False
    # mypy knows no other number of steps than none
    shares: Any = np.shares_memory
    try:
        return bool(shares(one, other, max_work=_WORK))
    except np.exceptions.TooHardError:
        return np.may_share_memory(one, other)


def _array_of(part: Any) -> Any:
    """The array that has this part's memory; None for other parts than arrays and tensors."""
    if isinstance(part, Tensor):
        # Others than dense ones on the CPU, and dtypes that numpy lacks.
        with contextlib.suppress(TypeError, RuntimeError):
            return part.detach().numpy()
    return part if isinstance(part, np.ndarray) else None


def _in_memory(table: Any) -> Any:
    """A table whose rows can be compared; None of a Dataset that may read files."""
    base, places = _base(table)
    if type(base) is TensorDataset:
        return base.tensors if places is None else base[places]
    return None if isinstance(base, Dataset) else table


def _sets_of(records: Any, *, parts_alone: bool = False) -> list[RowSet]:
    rows = RowDigests.of(records)
    return [] if rows is None else rows.sets(parts_alone=parts_alone)


def _share_rows(first: list[RowSet], second: list[RowSet]) -> bool:
    """Whether two tables, or parts of them, have more rows in common than chance explains."""
    return any(one.shares_rows_with(other) for one in first for other in second)
