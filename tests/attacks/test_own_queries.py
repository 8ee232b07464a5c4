"""Queries that users write: as the documentation teaches them they keep their bound, and what
nobody vouches for is refused on groups.
"""

import ast
import functools
import pathlib
import re
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import dpbo.mechanisms
import dpbo.queries
import dpbo.testing
from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.queries import ClippedMean, ClippedSum, IntegerSum, PoissonSampled, Query, Sensitivity, UnitSum
from dpbo.queries.query import declares_per_unit
from dpbo.testing import ChoiceContract, MechanismContract, QueryContract, RowContract, VectorContract, replay
from tests.contracts.bases import tries

ROOT = pathlib.Path(__file__).parents[2]
CONTRACTS = (QueryContract, RowContract, MechanismContract, VectorContract, ChoiceContract)
GAUSSIAN = GaussianMechanism(10.0)


def code_blocks():
    """(file, code) of every block of code in a docstring, and on a page."""
    for path in sorted((ROOT / "dpbo").rglob("*.py")):
        text = path.read_text()
        if re.search(r"::\n\n +(@.*\n +)*class ", text):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            docs = (ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
            for block in re.findall(r"::\n\n((?: {4}.*\n|\n)+)", "\n\n".join(f"{doc}\n" for doc in docs if doc)):
                yield path, textwrap.dedent(block)
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        yield from ((page, block) for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))


def documented():
    """The classes that examples define as queries, mechanisms or their contracts."""
    known = {name: getattr(module, name) for module in (dpbo.mechanisms, dpbo.queries, dpbo.testing) for name in module.__all__}
    known |= {"dataclass": dataclass, "torch": torch, "np": np, "Mechanism": Mechanism}
    waiting = [node for _, code in code_blocks() for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
    found: dict[str, Any] = {}
    for node in sorted(waiting, key=lambda node: node.name.startswith("Test")):  # a contract after what it covers
        if any(isinstance(known.get(getattr(base, "id", "")), type) for base in node.bases):
            exec(compile(ast.Module([node], []), node.name, "exec"), known)
            found[node.name] = known[node.name]
    return found


@pytest.mark.attack("A36")
def test_every_documented_query_and_mechanism_passes_its_contract_beside_it():
    classes = documented().values()
    taught = {kind for kind in classes if issubclass(kind, (Query, Mechanism))}
    contracts = [kind for kind in classes if issubclass(kind, CONTRACTS)]
    assert {kind.__name__ for kind in taught} >= {"CountAbove", "CountBright", "UnitsAbove"}, "the search found too little"
    assert taught <= {contract.covers for contract in contracts}, "show its contract beside the example"
    for contract in contracts:
        if contract.covers in taught:
            tried = tries(8)(contract)()
            for name in dir(tried):
                if name.startswith("test_"):
                    getattr(tried, name)()


@pytest.mark.attack("A9", "A20", "A36")
def test_every_documented_query_is_about_units_also_of_a_hundred_records():
    """Through a curator: one unit's records go from one end of the line to the other, or away."""
    questions = [(kind.covers, kind()) for kind in documented().values() if issubclass(kind, QueryContract) and kind.covers.per_unit]
    assert len(questions) > 2
    for kind, contract in questions:
        query = contract.query(None)
        for rows, adjacency in ((1, Adjacency.REPLACE_ONE), (100, Adjacency.REPLACE_ONE), (100, Adjacency.ADD_OR_REMOVE_ONE)):
            ends = torch.full((3 * rows, 1), -1e30, dtype=torch.float64)
            ends[rows:] = 1e30
            moved = -ends
            moved[rows:] = ends[rows:]
            if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
                moved = ends[:-rows]
            units = [PrivacyUnit("patient", groups=np.arange(len(part)) // rows) for part in (ends, moved)]
            settings: dict[str, Any] = {"unit": units[0], "adjacency": adjacency, "budget": Budget(3.0, 1e-6), "neighbour_unit": units[1]}
            released = functools.partial(release_of, query)
            steps = replay(released, contract.records(ends), contract.records(moved), **settings)
            assert len(steps) == 1, kind.__name__


def release_of(query, curator, _records):
    return curator.release(query, GAUSSIAN).value


@dataclass(frozen=True, eq=False)
class CountsRows(Query):
    """How many records exceed a threshold, with the sensitivity of one record: as a user writes it
    who thinks of no groups.
    """

    threshold: float

    def sensitivity(self, adjacency):
        return Sensitivity(l1=1.0, l2=1.0, linf=1.0)

    def _evaluate(self, view, subject):
        return IntegerSum((view.records > self.threshold).sum().reshape(1) << 30, quanta=(2.0**-30,))

    def affine(self, units):
        return [0.0], 1.0

    def public_inputs(self):
        return {"threshold": self.threshold}


def own(records):
    return records[:, 0]


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
    score = staticmethod(own)

    def sensitivity(self, adjacency):
        return Sensitivity(0.1, 0.1, 0.1)


class Vouched(Wider):
    per_unit = True


class Renamed(Vouched):
    def public_inputs(self):
        return {"name": "other"}


class Unvouched(Vouched):
    per_unit = False


def patients(records, *, grouped=True):
    groups = torch.arange(len(records)) // 100 if grouped else None
    terms: dict[str, Any] = {"adjacency": Adjacency.REPLACE_ONE, "budget": Budget(3.0, 1e-6)}
    return Curator(records, unit=PrivacyUnit("patient", groups=groups), allow_repeated=True, **terms)


@pytest.mark.attack("A20", "A36")
def test_a_query_that_nobody_vouches_for_is_refused_on_groups_before_anything_is_charged():
    records = torch.ones(300, 1, dtype=torch.float64)
    score: dict[str, Any] = {"score": lambda _, r: own(r), "score_range": (0.0, 1.0)}
    sampled = PoissonSampled(SummedMean(**score), rate=0.5)
    for query in (CountsRows(0.5), SummedRows(**score), Wider(), Unvouched(), SummedMean(**score), sampled):
        curator = patients(records)
        before = curator.ledger.head().hash
        with pytest.raises(InputError, match="must be made for units of several records") as refused:
            curator.release(query, GAUSSIAN)
        assert refused.value.parameter == "query"
        assert curator.ledger.head().hash == before, type(query).__name__
        patients(records, grouped=False).evaluate(query)
    for trusted in (Vouched(), Renamed()):
        patients(records).release(trusted, GAUSSIAN)


class DividesByUnits(CountsRows):
    def affine(self, units):
        return [0.0], 1.0 / units


@pytest.mark.attack("A8", "A36")
def test_a_query_that_needs_the_private_number_of_units_fails_before_it_is_charged():
    terms: dict[str, Any] = {"adjacency": Adjacency.ADD_OR_REMOVE_ONE, "budget": Budget(3.0, 1e-6)}
    curator = Curator(torch.ones(9, 1), unit="record", **terms)
    handle = curator.evaluate(DividesByUnits(0.5))
    before = curator.ledger.head().hash
    with pytest.raises(TypeError):
        curator.release(handle, GAUSSIAN)
    assert curator.ledger.head().hash == before


def test_a_declaration_ends_where_code_is_replaced():
    told = {kind: declares_per_unit(kind) for kind in (UnitSum, CountsRows, SummedRows, Wider, Vouched, Renamed, Unvouched)}
    assert [kind for kind, says in told.items() if says] == [UnitSum, Vouched, Renamed]
    moved = type("Moved", (ClippedSum,), {"origins": lambda self: (0.5,)})
    ranged = type("Ranged", (ClippedSum,), {"metrics": 7})
    named = type("Named", (ClippedSum,), {"a_name": 3, "helper": lambda self: 2})
    assert [declares_per_unit(kind) for kind in (moved, ranged, named)] == [False, False, True]
