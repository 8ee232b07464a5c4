"""Replay: run a private algorithm on some records, then on neighbouring ones with every released
value frozen to the first run's.

An honest algorithm depends on the records through released values alone. So the second run must ask
the same questions (the same score, model and point, by their content) in the same order, leave the
same ledger and return the same result, and its exact answers may differ by at most the declared
sensitivity. Anything else is a leak. What is printed, plotted or sent elsewhere is not seen.

    replay(
        tune, records, neighbour,
        unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget(3.0, 1e-6),
    )
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.curator.releasing import Drawn
from dpbo.fingerprint import fingerprint
from dpbo.ledger.entries import Record
from dpbo.privacy import PrivacyUnit, Sensitivity
from dpbo.queries.query import Failure, IntegerSum, Query
from dpbo.release import Release
from dpbo.testing.query_contract import require_within
from dpbo.validation import checked


@dataclass(frozen=True)
class Step:
    """One release as replay sees it.

    Attributes:
        question: its public content.
        numerators, quanta: the exact answer behind it, `numerators * quanta`.
        sensitivity: the declared one.
        release: what was released.
    """

    question: dict[str, Any]
    numerators: tuple[int, ...]
    quanta: tuple[float, ...]
    sensitivity: Sensitivity
    release: Release


class RecordingCurator(Curator):
    """A curator that keeps every evaluation and release, and releases frozen values in place of
    what it draws.
    """

    def __init__(self, records: Any, *, frozen: tuple[Step, ...] = (), **settings: Any) -> None:
        self.steps: list[Step] = []
        self.evaluations: list[dict[str, Any]] = []
        self._frozen = frozen
        super().__init__(records, **settings)
        self.ledger.note("void", "a replay shows exact answers to the test that runs it")

    def _accept(
        self,
        query: Query,
        details: Mapping[str, Any],
        reservation: str | None,
        outcome: IntegerSum | Failure,
    ) -> Handle:
        self.evaluations.append({**_public(query), **details})
        return super()._accept(query, details, reservation, outcome)

    def _published(self, drawn: Drawn) -> Release:
        query, answer = self._answer(drawn.handle)
        sensitivity = query.sensitivity(self.adjacency)
        question = {
            **_public(query),
            **drawn.handle.details,
            "event": drawn.event,
            "distribution": drawn.law,
            "quanta": answer.quanta,
            "sensitivity": sensitivity,
        }
        place = len(self.steps)
        if place < len(self._frozen):
            value = self._frozen[place].release
        else:
            value = super()._published(drawn)
        release = dataclasses.replace(value, entry=drawn.entry)
        self.steps.append(
            Step(question, tuple(answer.numerators.tolist()), answer.quanta, sensitivity, release)
        )
        return release


@checked
def replay(
    run: Callable[[Curator, Any], Any],
    records: Any,
    neighbour: Any,
    *,
    neighbour_unit: PrivacyUnit | None = None,
    **settings: Any,
) -> tuple[Step, ...]:
    """Run an algorithm twice, on neighbouring records, and compare what it does in public.

    Args:
        run: `run(curator, records)`, the algorithm, with seeds set inside run: its public
            randomness must be the same in both runs. It gets the records beside the curator so that
            what it does with them outside the curator is tested too.
        records, neighbour: two data sets that differ in one unit.
        neighbour_unit: the neighbour's PrivacyUnit, where its group labels differ.
        settings: further arguments of `Curator`, such as unit, adjacency and budget, but no ledger.

    Returns:
        The first run's steps, one for each release.

    Raises:
        AssertionError: the run released nothing; or the two runs differ in an evaluation, a
            release, a ledger record or the result, or an exact answer moved further than the
            declared sensitivity. The text names the first difference of its kind.
    """
    first = RecordingCurator(records, **settings)
    result = fingerprint(run(first, records), detail="content")
    assert first.steps, "the run released nothing: there is nothing to compare"
    if neighbour_unit is not None:
        settings = {**settings, "unit": neighbour_unit}
    second = RecordingCurator(neighbour, frozen=tuple(first.steps), **settings)
    other_result = fingerprint(run(second, neighbour), detail="content")
    _require_same("evaluation", first.evaluations, second.evaluations)
    _require_same(
        "release", [step.question for step in first.steps], [step.question for step in second.steps]
    )
    for place, (a, b) in enumerate(zip(first.steps, second.steps, strict=True)):
        require_within(
            a.numerators,
            b.numerators,
            a.quanta,
            a.sensitivity,
            f"the exact answer of release {place}",
        )
    _require_same(
        "ledger record",
        list(map(_without_ids, first.ledger.records())),
        list(map(_without_ids, second.ledger.records())),
    )
    assert result == other_result, (
        "what the run returns depends on the records beyond what was released"
    )
    return tuple(first.steps)


def _public(query: Query) -> dict[str, Any]:
    """A question's public content: its public inputs, and fingerprints of what it was made of."""
    fields = {
        f.name: fingerprint(getattr(query, f.name), detail="content")
        for f in dataclasses.fields(query)  # type: ignore[arg-type]
        if f.init or f.name[0] != "_"
    }
    return {"query": type(query).__name__, **fields, **query.public_inputs()}


def _without_ids(record: Record) -> dict[str, Any]:
    """A ledger record without what is random in it: ids of handles, and hashes."""
    body = dict(record.body)
    if record.kind == "birth":
        body["id"] = ""
    for key in ("slots", "values"):
        if isinstance(body.get(key), list):
            body[key] = [{**slot, "handle": ""} for slot in body[key]]
    same = {**vars(record), "body": "", "hash": ""}
    return {**same, **body}


def _require_same(what: str, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        changed = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        assert not changed, (
            f"{what} {place} depends on the records beyond what was released: {', '.join(changed)}"
            " changed"
        )
    assert len(first) == len(second), (
        f"the number of {what}s depends on the records: {len(first)} and {len(second)}"
    )
