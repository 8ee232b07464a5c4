"""Queries that users write: as the documentation teaches them they keep their bound, and what
nobody vouches for is refused on groups.
"""

import ast
import functools
import math
import re
import textwrap
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import dpbo.mechanisms
import dpbo.queries
import dpbo.testing
from dpbo import Adjacency, PrivacyUnit, PrivateObjective
from dpbo.errors import InputError, PrivateFailure, UsageError
from dpbo.mechanisms import PermuteAndFlipMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.queries import (
    CandidateScores,
    ClippedMean,
    ClippedSum,
    IntegerSum,
    Query,
    Sensitivity,
    UnitSum,
)
from dpbo.queries.query import declares_per_unit
from dpbo.testing import QueryContract, RowContract, replay
from tests.attacks.marks import attack
from tests.attacks.setups import NOISE, TERMS, first_column, owner
from tests.contracts.bases import tries
from tests.setups import DOUBLE, ROOT

CONTRACTS = (QueryContract, RowContract)


def code_blocks():
    """Every block of code in a docstring, and on a page."""
    for path in sorted((ROOT / "dpbo").rglob("*.py")):
        text = path.read_text()
        if not re.search(r"::\n\n +(@.*\n +)*class ", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                doc = ast.get_docstring(node) or ""
                for block in re.findall(r"::\n\n((?: {4}.*\n|\n)+)", doc + "\n"):
                    yield textwrap.dedent(block)
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        yield from re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def documented():
    """The classes that examples define as queries, mechanisms or their contracts."""
    known = {
        name: getattr(module, name)
        for module in (dpbo.mechanisms, dpbo.queries, dpbo.testing)
        for name in module.__all__
    }
    known |= {"dataclass": dataclass, "torch": torch, "np": np, "Mechanism": Mechanism}
    waiting = [
        node
        for code in code_blocks()
        for node in ast.parse(code).body
        if isinstance(node, ast.ClassDef)
    ]
    found: dict[str, Any] = {}
    # A contract comes after what it covers.
    for node in sorted(waiting, key=lambda node: node.name.startswith("Test")):
        if any(isinstance(known.get(getattr(base, "id", "")), type) for base in node.bases):
            exec(compile(ast.Module([node], []), node.name, "exec"), known)
            found[node.name] = known[node.name]
    return found


@attack("A36")
def test_every_documented_query_and_mechanism_passes_its_contract_beside_it():
    classes = documented().values()
    taught = {kind for kind in classes if issubclass(kind, (Query, Mechanism))}
    contracts = [kind for kind in classes if issubclass(kind, CONTRACTS)]
    assert {kind.__name__ for kind in taught} >= {
        "CountAbove",
        "CountBright",
        "UnitsAbove",
    }, "the search found too little"
    assert taught <= {contract.covers for contract in contracts}, (
        "show its contract beside the example"
    )
    for contract in contracts:
        if contract.covers in taught:
            tried = tries(8)(contract)()
            for name in dir(tried):
                if name.startswith("test_"):
                    getattr(tried, name)()


@attack("A9", "A20", "A36")
def test_every_documented_query_is_about_units_also_of_a_hundred_records():
    """Through a curator: one unit's records go from one end of the line to the other, or away."""
    contracts = [
        kind()
        for kind in documented().values()
        if issubclass(kind, QueryContract) and kind.covers.per_unit
    ]
    assert len(contracts) > 2
    for contract in contracts:
        query = contract.query(None)
        for rows, adjacency in (
            (1, Adjacency.REPLACE_ONE),
            (100, Adjacency.REPLACE_ONE),
            (100, Adjacency.ADD_OR_REMOVE_ONE),
        ):
            ends = torch.full((3 * rows, 1), 1e30, dtype=DOUBLE)
            ends[:rows] = -1e30
            moved = ends.abs()
            if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
                moved = ends[:-rows]
            unit, other = (
                PrivacyUnit("patient", groups=np.arange(len(part)) // rows)
                for part in (ends, moved)
            )
            settings = {**TERMS, "unit": unit, "adjacency": adjacency, "neighbour_unit": other}
            released = functools.partial(release_of, query)
            steps = replay(released, contract.records(ends), contract.records(moved), **settings)
            assert len(steps) == 1, type(query).__name__


def release_of(query, curator, _records):
    return curator.release(query, NOISE).value


@dataclass(frozen=True, eq=False)
class CountsRows(Query):
    """How many records exceed a threshold, with the sensitivity of one record: as a user writes it
    who thinks of no groups.
    """

    threshold: Any

    def sensitivity(self, adjacency):
        return Sensitivity(l1=1.0, l2=1.0, linf=1.0)

    def _evaluate(self, view, subject):
        return IntegerSum(
            (view.records > self.threshold).sum().reshape(1) << 30, quanta=(2.0**-30,)
        )

    def affine(self, units):
        return [0.0], 1.0

    def public_inputs(self):
        return {"threshold": self.threshold}


class Tails(CountsRows):
    """Two numbers under one scale: how many records exceed the threshold, and how many do not."""

    def sensitivity(self, adjacency):
        return Sensitivity(l1=2.0, l2=2.0**0.5, linf=1.0)

    def _evaluate(self, view, subject):
        above = (view.records > self.threshold).sum()
        return IntegerSum(torch.stack([above, view.count - above]) << 30, quanta=(2.0**-30,) * 2)

    def affine(self, units):
        return [0.0, 0.0], 1.0


def test_one_scale_serves_all_numbers_of_a_query():
    curator = owner(torch.arange(100.0))
    release = curator.release(Tails(50.0), NOISE)
    assert release.variance.shape == (2,)
    assert release.variance[0] == release.variance[1] > 0.0
    with pytest.raises(InputError, match=r"^score='Tails'.*For another query: curator\.reserve"):
        PrivateObjective(curator, Tails(50.0), evaluations=2)


class SummedRows(ClippedSum):
    def _evaluate(self, view, subject):
        return ClippedSum._evaluate(self, Ungrouped(view), subject)


class Ungrouped:
    """A view that hides which records belong together."""

    groups = rows = None

    def __init__(self, view):
        self._view = view

    def __getattr__(self, name):
        return getattr(self._view, name)


class SummedMean(ClippedMean):
    _evaluate = SummedRows._evaluate


class Wider(UnitSum):
    score_range = (0.0, 1.0)
    score = staticmethod(functools.partial(first_column, None))

    def sensitivity(self, adjacency):
        return Sensitivity(0.1, 0.1, 0.1)


class Vouched(Wider):
    per_unit = True


class Renamed(Vouched):
    def public_inputs(self):
        return {"name": "other"}


class Unvouched(Vouched):
    per_unit = False


PATIENTS = PrivacyUnit("patient", groups=torch.arange(300) // 100)


def patients(unit=PATIENTS):
    return owner(torch.ones(300, 1, dtype=DOUBLE), unit=unit, allow_repeated=True)


SUMMED: tuple[Any, ...] = tuple(
    kind(first_column, score_range=(0.0, 1.0)) for kind in (SummedRows, SummedMean)
)
UNVOUCHED = [CountsRows(0.5), *SUMMED, Wider(), Unvouched()]


@attack("A20", "A36")
@pytest.mark.parametrize("query", UNVOUCHED, ids=lambda query: type(query).__name__)
def test_a_query_that_nobody_vouches_for_is_refused_on_groups_before_a_charge(query):
    curator = patients()
    before = curator.ledger.head()
    with pytest.raises(InputError, match="must be made for units of several records") as refused:
        curator.release(query, NOISE)
    assert refused.value.parameter == "query"
    assert curator.ledger.head() == before
    patients("patient").evaluate(query)


@attack("A20", "A36")
@pytest.mark.parametrize("kind", [Vouched, Renamed])
def test_a_query_that_is_vouched_for_is_released_on_groups(kind):
    patients().release(kind(), NOISE)


class DividesByUnits(CountsRows):
    def affine(self, units):
        return [0.0], 1.0 / units


@attack("A8", "A36")
def test_a_query_that_needs_the_private_number_of_units_fails_before_it_is_charged():
    curator = owner(torch.ones(9, 1), adjacency="add-or-remove-one")
    handle = curator.evaluate(DividesByUnits(0.5))
    before = curator.ledger.head()
    with pytest.raises(TypeError):
        curator.release(handle, NOISE)
    assert curator.ledger.head() == before


class Fails(CountsRows):
    """Its code fails on one record, and says on which."""

    def _evaluate(self, view, subject):
        if float(view.records.max()) > 5.0:
            raise self.threshold(f"record {float(view.records.max())}")
        return super()._evaluate(view, subject)


@attack("A21", "A36")
@pytest.mark.parametrize("kind", [ValueError, AssertionError])
def test_an_error_of_a_users_query_shows_no_record(kind):
    records = torch.ones(9, 1)
    records[3] = 7.25
    curator = owner(records)
    with pytest.raises(PrivateFailure) as shown:
        curator.evaluate(Fails(kind))
    text = "".join(traceback.format_exception(shown.value))
    assert "7.25" not in text
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(shown.value.__traceback__)]
    assert not any("view" in names for names in frames)


class Spread(CountsRows):
    """The threshold stands for what `affine` gives."""

    def _evaluate(self, view, subject):
        return IntegerSum(torch.tensor([7 << 30]), quanta=(2.0**-30,))

    def affine(self, units):
        return self.threshold

    def public_inputs(self):
        return {}


UNFIT = {
    "NaN": ([math.nan], 1.0),
    "too large for a variance": ([0.0], 1e200),
    "too many": ([0.0, 1.0], 1.0),
}


@attack("A36")
@pytest.mark.parametrize("kind", UNFIT)
def test_a_value_that_no_ledger_keeps_is_refused_before_a_charge(kind):
    """It was charged, and hindered every later release of the curator."""
    curator = owner(torch.ones(9, 1))
    before = curator.ledger.head()
    with pytest.raises((UsageError, ValueError)):
        curator.release(Spread(UNFIT[kind]), NOISE)
    assert curator.ledger.head() == before
    curator.release(ClippedSum(first_column, score_range=(0.0, 1.0)), NOISE)


@attack("A36")
@pytest.mark.parametrize("offsets", [(0.0, -1e300), (1e9, 1e9)])
def test_offsets_beyond_whole_numbers_are_refused_before_a_charge(offsets):
    """One raised after its charge, the other made a coin of the choice."""
    curator = owner(torch.ones(9, 1))
    before = curator.ledger.head()
    query = CandidateScores(
        lambda x, rows: x * rows[:, 0], [0.2, 0.9], score_range=(0.0, 1.0), offsets=offsets
    )
    with pytest.raises(InputError, match=r"^offsets=.* is not allowed"):
        curator.release(query, PermuteAndFlipMechanism.of(1.0))
    assert curator.ledger.head() == before


def test_a_declaration_ends_where_code_is_replaced():
    moved = type("Moved", (ClippedSum,), {"origins": lambda self: (0.5,)})
    ranged = type("Ranged", (ClippedSum,), {"metrics": 7})
    named = type("Named", (ClippedSum,), {"a_name": 3, "helper": lambda self: 2})
    for kind in (UnitSum, Vouched, Renamed, named):
        assert declares_per_unit(kind), kind
    for kind in (CountsRows, SummedRows, Wider, Unvouched, moved, ranged):
        assert not declares_per_unit(kind), kind
