"""From a ledger to its statement."""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

from dpbo.accounting.filters import Filter, added
from dpbo.accounting.membership import true_positive_rate
from dpbo.curator.chain import Record
from dpbo.curator.ledger import Ledger
from dpbo.errors import InputError
from dpbo.events import event_from_json
from dpbo.privacy import Adjacency
from dpbo.statement import Guarantee, Statement, format_up

_ASSUMPTIONS = {
    "score-per-record": "one unit's records change no other unit's score, nor any record; dpbo.testing.check_per_record tests it",
    "timing-not-observed": "nobody who must not see the records times evaluations or releases",
    "score-total": "the score never fails on private records; it did at least once, and the operator saw that it did",
}
_NOT_PROTECTED = (
    "records that models were trained on, and the models: the caller declares them public or protected by other means",
    "search inputs (the points x and their range)",
)


def compose_statement(ledger: Ledger, *, delta: float | None = None, units: int | None = None) -> Statement:
    """The statement of everything this ledger may ever release. `units`: their public number, else that of the newest charge."""
    chain, birth = ledger.verified(), ledger.birth
    at, assumed = _delta(ledger, delta), _assumed(chain)
    guarantee = _guarantee(ledger, ledger.cap, at)
    units = units if units is not None else next((r.body.get("units") for r in reversed(chain) if r.kind == "charge"), None)
    return Statement(
        void="; ".join(record.name for record in chain if record.kind == "void"),
        scope="" if ledger.storage.persistent else "this process only",
        dataset=birth["dataset"],
        unit=birth["unit"],
        units=units,
        adjacency=birth["adjacency"],
        role=birth["role"],
        not_protected=_NOT_PROTECTED,
        guarantee=guarantee,
        lines=_lines(guarantee, assumed),
        spent=_guarantee(ledger, _charged(chain, ledger.accounting), at),
        reserved=_guarantee(ledger, chain[-1].total, at),
        assumptions=assumed,
        public_inputs=_declared(chain),
        entries=len(chain),
        head=chain[-1].hash,
        meaning=_meaning(guarantee, birth, units),
    )


def _lines(guarantee: Guarantee, assumed: dict[str, str]) -> tuple[str, str, str]:
    """All releases, the unconditional ones, all under data assumptions. No release so far needs one, so the three agree."""
    line = f"{guarantee}, with {', '.join(assumed)}"
    return line, line, line


def _delta(ledger: Ledger, delta: float | None) -> float | None:
    if delta is not None and not 0.0 < delta < 1.0:
        raise InputError("delta", delta, "in (0, 1)")
    if delta is not None and ledger.budget.delta not in (None, delta) and ledger.budget.epsilon is not None:
        raise InputError(
            "delta", delta, f"the budget's own, {ledger.budget.delta:g}", "Only a budget given as mu may be read at any delta."
        )
    return delta if delta is not None else ledger.budget.delta


def _guarantee(ledger: Ledger, cost: Fraction, delta: float | None) -> Guarantee:
    """Of everything that cost this much; within the cap, the budget's own epsilon is a bound as well."""
    bound = ledger.accounting.guarantee(cost, delta)
    stated = ledger.budget.epsilon if ledger.budget.epsilon is not None and cost <= ledger.cap else math.inf
    return bound if bound.epsilon is None else dataclasses.replace(bound, epsilon=min(bound.epsilon, stated))


def _charged(chain: list[Record], accounting: Filter) -> Fraction:
    charges = (event_from_json(record.body["event"]) for record in chain if record.kind == "charge")
    return functools.reduce(added, map(accounting.cost, charges), Fraction(0))


def _assumed(chain: list[Record]) -> dict[str, str]:
    named = ["score-per-record", "timing-not-observed"] + [record.name for record in chain if record.kind == "assume"]
    return {name: _ASSUMPTIONS[name] for name in named}


def _declared(chain: list[Record]) -> dict[str, dict[str, Any]]:
    plans = {record.name: {"evaluations": record.body["slots"], **record.body["terms"]} for record in chain if record.kind == "reserve"}
    loose = [slot for r in chain if r.kind == "charge" and r.body["plan"] is None for slot in r.body.get("slots", [])]
    terms = {f"release {i + 1}": {"query": slot["query"], **slot["public"]} for i, slot in enumerate(loose)}
    return {**plans, **terms}


def _meaning(guarantee: Guarantee, birth: dict[str, Any], units: int | None) -> tuple[str, ...]:
    rate = format_up(100 * true_positive_rate(guarantee, 0.01), 2)
    change = "is in the data" if birth["adjacency"] == Adjacency.ADD_OR_REMOVE_ONE.value else "had these records rather than others"
    test = f"whoever tests whether one {birth['unit']} {change}, with 1 % false alarms, is right about at most {rate} % of them."
    if guarantee.delta is not None and units is not None and guarantee.delta > 1 / units:
        return (test, f"WARNING: delta exceeds 1/{units}: (epsilon, delta) alone would allow publishing a whole record.")
    return (test,)
