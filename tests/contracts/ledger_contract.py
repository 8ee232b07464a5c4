"""The contract of every ledger storage: charges are durable, capped and chained; what was changed
behind its back is seen.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from dpbo.accounting.filters import GDPFilter
from dpbo.errors import BudgetExceeded, InputError, LedgerCorrupt, LedgerMismatch
from dpbo.events import GaussianEvent, PoissonGaussianEvent, RolesEvent
from dpbo.ledger.birth import Birth
from dpbo.ledger.entries import table
from dpbo.ledger.kept import file_of
from dpbo.ledger.ledger import Ledger
from dpbo.privacy import Adjacency, Budget

BIRTH = Birth(
    dataset="contract",
    unit="patient",
    grouped=True,
    adjacency=Adjacency.REPLACE_ONE,
    budget=Budget.gdp(1.0, delta=1e-5),
    accounting=GDPFilter(),
)
# mu^2 = 1/16
_TENTH = GaussianEvent(4.0)
# of the release that is rolled back to, below
_ENTRY = 6
_SEEN = "the operator saw the records"
_CALLS: tuple[Callable[[Ledger], Any], ...] = (
    lambda ledger: ledger.head(),
    lambda ledger: ledger.records(),
    lambda ledger: ledger.records(after=_ENTRY),
    lambda ledger: ledger.verify(),
    lambda ledger: ledger.values("objective"),
    lambda ledger: ledger.charges("objective"),
    lambda ledger: ledger.reservation("objective"),
    lambda ledger: ledger.charged("a handle"),
    lambda ledger: ledger.reserve("objective", _TENTH, 2, {}),
    lambda ledger: ledger.charge("release", _TENTH, {}),
    lambda ledger: ledger.store(_ENTRY, "release", [{"value": [0.1]}]),
    lambda ledger: ledger.note("void", _SEEN),
)
# how a ledger comes to know the newest record
_KNOWN: dict[str, Callable[[Ledger], Any]] = {
    "charge": lambda ledger: ledger.charge("release", _TENTH, {}),
    "value": lambda ledger: ledger.store(_ENTRY, "release", [{"value": [0.1]}]),
    "void": lambda ledger: ledger.note("void", _SEEN),
    "read": lambda ledger: ledger.head(),
    "verified": lambda ledger: ledger.verify(),
    "noted again": lambda ledger: ledger.note("void", _SEEN),
}


class LedgerContract(abc.ABC):
    """Inherit as a pytest class and give an empty ledger's `url`."""

    @abc.abstractmethod
    @pytest.fixture
    def url(self) -> Any:
        """Where an empty ledger may be born."""

    def test_charges_add_up_to_the_cap_and_not_beyond(self, url: str) -> None:
        ledger = Ledger(url, BIRTH)
        for _ in range(16):
            ledger.charge("release", _TENTH, {})
        with pytest.raises(BudgetExceeded) as refused:
            ledger.charge("release", GaussianEvent(1e6), {})
        assert refused.value.remaining == 0.0
        assert ledger.verify().seq == 16

    def test_a_reservation_takes_its_slots_from_the_budget_at_once(self, url: str) -> None:
        ledger = Ledger(url, BIRTH)
        ledger.reserve("objective", _TENTH, 12, {})
        with pytest.raises(BudgetExceeded):
            ledger.charge("release", _TENTH.repeated(5), {})
        ledger.charge("objective", _TENTH.repeated(12), {}, "objective")
        with pytest.raises(BudgetExceeded) as refused:
            ledger.charge("objective", _TENTH, {}, "objective")
        assert (refused.value.requested, refused.value.remaining) == (1, 0)

    def test_reopening_finds_everything_and_refuses_other_terms(self, url: str) -> None:
        first = Ledger(url, BIRTH)
        first.reserve("objective", _TENTH, 12, {"score_range": [0.0, 1.0]})
        entry = first.charge("release", _TENTH, {})
        first.store(entry, "release", [{"value": [0.1]}])
        again = Ledger(url, BIRTH)
        assert again.records() == first.records()
        again.reserve("objective", _TENTH, 12, {"score_range": [0.0, 1.0]})
        assert again.records() == first.records()
        with pytest.raises(LedgerMismatch, match="score_range"):
            again.reserve("objective", _TENTH, 12, {"score_range": [0.0, 2.0]})
        others: dict[str, Any] = {
            "dataset": "another",
            "unit": "record",
            "adjacency": Adjacency.ADD_OR_REMOVE_ONE,
        }
        for name, other in others.items():
            with pytest.raises(LedgerMismatch, match=name):
                Ledger(url, dataclasses.replace(BIRTH, **{name: other}))

    def test_a_reservation_pays_only_for_the_releases_it_was_made_for(self, url: str) -> None:
        ledger = Ledger(url, BIRTH)
        ledger.reserve("objective", _TENTH, 12, {})
        for event, reservation in ((GaussianEvent(1.0), "objective"), (_TENTH, "another")):
            with pytest.raises(InputError):
                ledger.charge("objective", event, {}, reservation)
        assert ledger.head().kind == "reserve"

    def test_a_part_that_is_asked_twice_at_once_takes_two_of_its_slots(self, url: str) -> None:
        ledger = Ledger(url, BIRTH)
        ledger.reserve("objective", _TENTH, 3, {"records": 5}, parallel=True)
        ledger.charge(
            "objective",
            _TENTH.repeated(2),
            {"units": 5, "slots": [{"part": 1}, {"part": 1}]},
            "objective",
        )
        assert ledger.used() == {"objective": 2}
        with pytest.raises(BudgetExceeded):
            ledger.charge(
                "objective",
                _TENTH.repeated(2),
                {"units": 5, "slots": [{"part": 1}, {"part": 1}]},
                "objective",
            )
        ledger.charge(
            "objective",
            _TENTH.repeated(3),
            {"units": 5, "slots": [{"part": 1}, {"part": 2}, {"part": 2}]},
            "objective",
        )
        assert ledger.facts().used == {"objective": 3}

    def test_what_is_counted_under_another_relation_is_not_charged(self, url: str) -> None:
        ledger = Ledger(url, BIRTH)
        for event in (
            PoissonGaussianEvent(4.0, rate=0.5, relation="add-or-remove-one"),
            RolesEvent(
                costs=(
                    (
                        "training",
                        (PoissonGaussianEvent(4.0, rate=0.5, relation="add-or-remove-one"),),
                    ),
                )
            ),
        ):
            with pytest.raises(InputError, match="relation"):
                ledger.charge("release", event, {})
            with pytest.raises(InputError, match="relation"):
                ledger.reserve("objective", event, 2, {})
        assert ledger.head().kind == "birth"

    def test_a_rollback_is_seen_against_a_head_kept_elsewhere(self, url: str) -> None:
        ledger = self._filled(url)
        head = ledger.head().hash
        assert ledger.verify(expect=head).hash == head
        with pytest.raises(LedgerCorrupt, match="rolled back"):
            ledger.verify(expect=head[:8] + "0" * 56)
        _altered(ledger, sa.delete(table).where(table.c.seq == ledger.head().seq))
        again = Ledger(url, BIRTH)
        again.verify()
        with pytest.raises(LedgerCorrupt, match="rolled back"):
            again.verify(expect=head)
        with pytest.raises(InputError, match="64 characters"):
            again.verify(expect=head[:16])

    @pytest.mark.parametrize("last", _KNOWN)
    def test_a_rollback_is_seen_by_whoever_knew_the_newest_record(
        self, url: str, last: str
    ) -> None:
        """Wrote, read or verified it: nothing is told or written any more as if it had never been.
        What others add is no rollback.
        """
        ledger = self._filled(url)
        ledger.reserve("objective", _TENTH, 2, {})
        assert ledger.charge("release", _TENTH, {}) == _ENTRY
        if last in ("read", "verified", "noted again"):
            Ledger.open(url).note("void", _SEEN)
        _KNOWN[last](ledger)
        Ledger.open(url).charge("objective", _TENTH, {}, "objective")
        assert len(ledger.charges("objective")) == 1
        _altered(ledger, sa.delete(table).where(table.c.seq > _ENTRY))
        for call in _CALLS:
            with pytest.raises(
                LedgerCorrupt, match=f"record {_ENTRY + 2} is not the one that this process saw"
            ):
                call(ledger)
        assert Ledger.open(url).verify().seq == _ENTRY

    def _filled(self, url: str) -> Ledger:
        ledger = Ledger(url, BIRTH)
        for _ in range(4):
            ledger.charge("release", _TENTH, {})
        return ledger


def _altered(ledger: Ledger, change: sa.Executable) -> None:
    """Changes the stored records behind the ledger's back, and forgets what the file beside it
    tells of the newest one.
    """
    with ledger.storage.writing() as connection:
        connection.execute(change)
    if (kept := file_of(ledger.storage)) is not None:
        kept.unlink(missing_ok=True)
