"""Replay: run a private algorithm on some records, then on neighbouring ones with every released value frozen to the first run's.

Whatever an honest algorithm does depends on the records through released values alone. So the second run must ask the same questions (the
same score, model and point, by their content) in the same order, leave the same ledger and return the same result, and its exact answers
may differ by the declared sensitivity at most. Anything else is a leak. What is printed, plotted or sent elsewhere is not seen.

    replay(tune, records, neighbour, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget(3.0, 1e-6))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpbo.curator.chain import Record
from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.events import Event
from dpbo.mechanisms.mechanism import Law, Mechanism
from dpbo.privacy import PrivacyUnit, Sensitivity
from dpbo.queries.query import Failure, IntegerSum, Query
from dpbo.release import Release
from dpbo.testing.fingerprints import fingerprint
from dpbo.testing.query_contract import require_within
from dpbo.validation import checked


@dataclass(frozen=True)
class Step:
    """One release as replay sees it: the question, in public, and the exact answer behind it."""

    asked: dict[str, Any]
    numerators: tuple[int, ...]
    quanta: tuple[float, ...]
    sensitivity: Sensitivity
    release: Release


class RecordingCurator(Curator):
    """A curator that notes every evaluation and release, and draws no noise where values are given to it."""

    def __init__(self, records: Any, *, frozen: tuple[Step, ...] = (), **settings: Any) -> None:
        self.steps: list[Step] = []
        self.evaluations: list[dict[str, Any]] = []
        self._frozen = frozen
        super().__init__(records, **settings)
        self.ledger.note("void", "a replay shows exact answers to the test that runs it")

    def _accept(self, query: Query, details: Mapping[str, Any], outcome: IntegerSum | Failure) -> Handle:
        self.evaluations.append({**_public(query), **details})
        return super()._accept(query, details, outcome)

    def _draw(self, handle: Handle, law: Law, mechanism: Mechanism, event: Event, entry: int) -> Release:
        query, answer = self._answer(handle)
        sensitivity = query.sensitivity(self.adjacency)
        asked = {**_public(query), **handle.details, "event": event, "law": law, "quanta": answer.quanta, "sensitivity": sensitivity}
        turn = len(self.steps)
        known = self._frozen[turn].release if turn < len(self._frozen) else super()._draw(handle, law, mechanism, event, entry)
        release = dataclasses.replace(known, entry=entry)
        exact = tuple(answer.numerators.tolist())
        self.steps.append(Step(asked, exact, answer.quanta, sensitivity, release))
        return release


@checked
def replay(
    run: Callable[[Curator, Any], Any], records: Any, neighbour: Any, *, neighbour_unit: PrivacyUnit | None = None, **settings: Any
) -> tuple[Step, ...]:
    """Run twice and compare. Returns the steps of the first run.

    Args:
        run: `run(curator, records)`, the algorithm. It gets the records beside the curator so that what it does with them in the open is
            tested too; fix its public randomness.
        records, neighbour: two data sets that differ in one unit.
        neighbour_unit: the neighbour's unit, where its group labels differ.
        settings: the curator's, without a ledger.

    Raises:
        AssertionError: names the first step where the second run asked something else, or an answer moved too far.
    """
    first = RecordingCurator(records, **settings)
    results = [fingerprint(run(first, records))]
    assert first.steps, "the run released nothing: there is nothing to compare"
    other = settings if neighbour_unit is None else {**settings, "unit": neighbour_unit}
    second = RecordingCurator(neighbour, frozen=tuple(first.steps), **other)
    results.append(fingerprint(run(second, neighbour)))
    _require_same("evaluation", first.evaluations, second.evaluations)
    _require_same("release", [step.asked for step in first.steps], [step.asked for step in second.steps])
    for turn, (a, b) in enumerate(zip(first.steps, second.steps, strict=True)):
        require_within(a.numerators, b.numerators, a.quanta, a.sensitivity, f"the exact answer of release {turn}")
    _require_same("ledger record", *([_without_names(record) for record in c.ledger.records()] for c in (first, second)))
    assert results[0] == results[1], "what the run returns depends on the records beyond what was released"
    return tuple(first.steps)


def _public(query: Query) -> dict[str, Any]:
    """A question's public content: its numbers, and fingerprints of what it holds."""
    held = {field.name: fingerprint(getattr(query, field.name)) for field in dataclasses.fields(query)}  # type: ignore[arg-type]
    return {"query": type(query).__name__, **held, **query.public_inputs()}


def _without_names(record: Record) -> dict[str, Any]:
    """A ledger record without what is random in it: handles and hashes."""
    body = dict(record.body)
    for key in ("slots", "values"):
        if isinstance(body.get(key), list):
            body[key] = [{**slot, "handle": ""} for slot in body[key]]
    return {"kind": record.kind, "name": record.name, **body}


def _require_same(what: str, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    for turn, (a, b) in enumerate(zip(first, second, strict=False)):
        changed = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        assert not changed, f"{what} {turn} depends on the records beyond what was released: {', '.join(changed)} changed"
    assert len(first) == len(second), f"the number of {what}s depends on the records: {len(first)} and {len(second)}"
