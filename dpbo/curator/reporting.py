"""From a ledger to its statement."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dpbo.accounting.filters import Cost
from dpbo.accounting.gdp import true_positive_rate
from dpbo.curator.birth import EVALUATIONS, IN_ALL, OF_EACH_ROW, ROLES
from dpbo.curator.chain import Record, dump
from dpbo.curator.ledger import Ledger
from dpbo.curator.upgrades import upgraded_slot
from dpbo.errors import InputError
from dpbo.events import DeclassifiedEvent
from dpbo.privacy import Adjacency
from dpbo.statement import NOT_BOUNDED, Guarantee, Statement, conditional, format_up

_ASSUMPTIONS = {
    "score-per-record": "one unit's records change no other unit's score, nor any record; dpbo.testing.check_per_record tests it",
    "score-total": "the score does not fail on the private records as a whole; where it does, the operator sees that, uncharged",
    "timing-not-observed": "nobody who must not see the records times evaluations or releases",
    "durations-tell-nothing": "how long a score takes does not depend on the records: values were released in the order in which workers "
    "finished, which everybody who reads them sees",
    "dpsgd-attested": "training takes records from dpbo's loader alone, which holds each protected record once; a record's gradient "
    "depends on no other record (as it would by class weights or padding in a mean loss), but for the last bits of float arithmetic; "
    "whether a training fails tells nothing of them",
    "roles-by-record": "whether a record trains or validates follows from the record itself, such as a keyed hash of its id: by its place "
    "in a table, removing one record would move others across",
    "runs-hidden": "nobody learns how many runs a private selection made, nor what a losing run gave: no log, file, process or device that "
    "its training uses can be watched",
    "runs-attested": "each run of a private selection, its output, its score and whether it fails, costs what its events say, and runs "
    "share nothing that depends on the records",
    "conditional-allowed": "none yet, but this ledger lets releases happen that rest on data assumptions: after one, not all are bounded",
    "repeated-records": "none, but the caller allowed it: other ledgers may have released answers about these records, and what they "
    "guarantee adds to this",
    "records-keep-their-places": "whenever this ledger is opened, every record stands where it stood: answers are counted by place",
    "shards-are-disjoint": "no record was given to two processes",
}
_OWN_WORDS = "noted by the caller, in these words: dpbo neither makes nor checks this assumption"
_CHANGES = {
    Adjacency.REPLACE_ONE: "had these records rather than others",
    Adjacency.ADD_OR_REMOVE_ONE: "is in the data",
    Adjacency.BOUNDED_ROW_CHANGE: "lies in one place rather than another in reach",
}
_INPUTS = "search inputs (the points x and their range)"
_MODELS = "records that models were trained on, and the models: the caller declares them public or protected by other means"
_OTHERS = "records of other roles"
_NOT_PROTECTED = {
    "training": (_OTHERS, "models, unless every step of their training is charged here", _INPUTS),
    "validation": (_MODELS, _INPUTS),
    "candidate": (_MODELS, _INPUTS),
}

_LISTED = 5  # kinds of question under one plan that took on trust what its terms do not say


def compose_statement(ledger: Ledger, *, delta: float | None = None, units: int | None = None) -> Statement:
    """The statement of everything this ledger may ever release. `units`: their public number, else the newest that a charge names."""
    chain, birth = ledger.verified(), ledger.birth
    at, conditions, roles = _delta(ledger, delta), _conditions(chain), _roles(chain)
    assumed = {name: text for name, text in _assumed(chain).items() if not (conditions and name == "conditional-allowed")}
    exact = any(record.kind in ("charge", "reserve") and _is_exact(record) for record in chain)
    protected = _guarantee(ledger, ledger.cap, at)
    failing = _failure_probability(chain)
    guarantee = Guarantee.none() if exact or failing >= 1.0 else protected
    units, counted = units if units is not None else _units(chain), roles[0] if len(roles) > 1 else ""  # the curator's own
    return Statement(
        void="; ".join(_voids(chain) + ["answers without any guarantee were or will be published"] * exact),
        scope="" if ledger.storage.persistent else "this process only",
        dataset=birth["dataset"],
        unit=birth["unit"],
        units=units,
        adjacency=birth["adjacency"],
        role=" and ".join(roles),
        not_protected=(*_not_protected(roles), *_unknown(chain)),
        guarantee=guarantee,
        lines=_lines(guarantee, protected, assumed, conditions, failing),
        spent=_spent(ledger, chain, at),
        reserved=_guarantee(ledger, chain[-1].total, at),
        assumptions={**assumed, **conditions},
        public_inputs=_declared(chain),
        entries=len(chain),
        head=chain[-1].hash,
        meaning=(*_meaning(guarantee, birth, conditions, failing), *_warnings(guarantee, units, counted)),
        radius=_radius(birth),
        counted=counted,
        conditions=tuple(conditions),
        failure_probability=failing,
    )


def _units(chain: list[Record]) -> int | None:
    """Steps of DP-SGD are charged by an accountant that is not told how many there are, so the newest charge may name none."""
    named = (record.body.get("units") for record in reversed(chain) if record.kind == "charge")
    return next((units for units in named if units is not None), None)


def _roles(chain: list[Record]) -> list[str]:
    """What the records are for: the curator's role, and what plans do with them besides."""
    return list(dict.fromkeys([chain[0].body["role"], *(role for role in _named(chain) if role in ROLES)]))


def _unknown(chain: list[Record]) -> tuple[str, ...]:
    """Roles that are none: earlier versions took any word from a plan's caller, and what it was to protect cannot be told."""
    names = dict.fromkeys(repr(role) for role in _named(chain) if role not in ROLES)
    return tuple(f"records of the role {name}, which a plan names and dpbo does not know" for name in names)


def _named(chain: list[Record]) -> list[Any]:
    return [record.body["terms"]["role"] for record in chain if record.kind == "reserve" and "role" in record.body["terms"]]


def _not_protected(roles: list[str]) -> tuple[str, ...]:
    """Of several roles, what no one of them protects."""
    told = dict.fromkeys(item for role in roles for item in _NOT_PROTECTED[role])
    protected = {_MODELS} if "training" in roles else set()
    return tuple(item for item in told if item not in protected | ({_OTHERS} if len(roles) > 1 else set()))


def _radius(birth: dict[str, Any]) -> str:
    """Of a bounded row change, in words."""
    if "row_change" not in birth:
        return ""
    norm, diameter = birth["row_change"]["norm"], birth["row_change"]["diameter"]
    table = "" if birth["row_change"].get("table") is None else f" of {birth['row_change']['table']!r}"
    return f"a row{table} moves by at most {norm:g}, which is {format_up(100 * norm / diameter, 3)} % of the diameter {diameter:g}"


def _lines(
    guarantee: Guarantee, protected: Guarantee, assumed: dict[str, str], conditions: dict[str, str], failing: float
) -> tuple[str, str, str]:
    """All releases, the unconditional ones, all under the data assumptions.

    `protected` is the cap, which the private releases share whatever else was released. The unconditional ones keep it only where
    nobody chose them by what the others said: a release that is bounded by nothing may say which question to ask next.
    """
    code = f"with {', '.join(assumed)}"
    if not conditions and guarantee == protected:
        return (f"{guarantee}, {code}",) * 3
    alone = f"{protected}, {code}, where none was chosen by what the other releases said"
    return NOT_BOUNDED, alone, f"{guarantee}, {code}, {conditional(conditions, failing)}" if conditions else str(guarantee)


def _conditions(chain: list[Record]) -> dict[str, str]:
    """The data assumptions of everything reserved or charged."""
    slots = [slot for record in chain if record.kind == "charge" for slot in record.body.get("slots", [])]
    plans = [record.body["terms"] for record in chain if record.kind == "reserve"]
    found: dict[str, list[str]] = {}
    for name, text in (pair for holder in (*plans, *slots) for pair in (holder.get("assumptions") or {}).items()):
        found.setdefault(name, []).append(text)
    return {name: "; also: ".join(dict.fromkeys(texts)) for name, texts in found.items()}


def _failure_probability(chain: list[Record]) -> float:
    """With which the sensitivity of one conditional release or another is false: the sum over them, as a union bound has it.

    Added as decimals, as they were given, so that .1 and .2 are .3.
    """
    slots = [slot for record in chain if record.kind == "charge" for slot in record.body.get("slots", [])]
    total = sum((Decimal(repr(slot["failure_probability"])) for slot in slots if "failure_probability" in slot), Decimal(0))
    return float(min(total, Decimal(1)))


def _is_exact(record: Record) -> bool:
    """Whether it publishes what no guarantee covers: exact answers, but for those that a named assumption declassifies."""
    event = record.event
    held = [record.body["terms"]] if record.kind == "reserve" else record.body.get("slots", [])
    declared = isinstance(event, DeclassifiedEvent) and held and all(holder.get("assumptions") for holder in held)
    return event.free and not declared


def _delta(ledger: Ledger, delta: float | None) -> float | None:
    if delta is not None and not 0.0 < delta < 1.0:
        raise InputError("delta", delta, "in (0, 1)")
    if delta is not None and ledger.budget.delta not in (None, delta) and ledger.budget.epsilon is not None:
        raise InputError(
            "delta", delta, f"the budget's own, {ledger.budget.delta:g}", "Only a budget given as mu may be read at any delta."
        )
    return delta if delta is not None else ledger.budget.delta


def _guarantee(ledger: Ledger, cost: Cost, delta: float | None) -> Guarantee:
    """Of everything that cost this much; within a cap that was rounded down, the budget's own epsilon is a bound as well."""
    bound, stated = ledger.accounting.guarantee(cost, delta), ledger.budget.epsilon
    if bound.epsilon is None or stated is None or not ledger.accounting.cap_is_budget:
        return bound
    return dataclasses.replace(bound, epsilon=min(bound.epsilon, stated))


def _spent(ledger: Ledger, chain: list[Record], delta: float | None) -> Guarantee:
    exact = any(record.kind == "charge" and _is_exact(record) for record in chain)
    return Guarantee.none() if exact else _guarantee(ledger, _charged(chain, ledger), delta)


def _charged(chain: list[Record], ledger: Ledger) -> Cost:
    """Of a parallel plan, what the part that was asked most often cost."""
    parallel = {record.name: record for record in chain if record.kind == "reserve" and record.parallel}
    charges = [record for record in chain if record.kind == "charge" and record.body["plan"] not in parallel]
    events = [record.event for record in charges]
    used = {name: slots for name, slots in chain[-1].used.items() if name in parallel and slots}
    events += [parallel[name].event.repeated(slots) for name, slots in used.items()]
    return sum(map(ledger.accounting.cost, events), ledger.cap.nothing)


def _assumed(chain: list[Record]) -> dict[str, str]:
    named = ["score-per-record", "score-total", "timing-not-observed"] + [record.name for record in chain if record.kind == "assume"]
    return {name: _ASSUMPTIONS.get(name, _OWN_WORDS) for name in named}


def _voids(chain: list[Record]) -> list[str]:
    """Why nothing is guaranteed. A reason left empty voids like any other: earlier versions of dpbo took one."""
    return [record.name or "no reason was given" for record in chain if record.kind == "void"]


def _declared(chain: list[Record]) -> dict[str, dict[str, Any]]:
    """By plan; what questions under it took on trust otherwise than its terms say; what those of no plan did."""
    told = {r.name: {**_counted(r), **r.body["terms"], **_counted(r)} for r in chain if r.kind == "reserve"}
    asked = defaultdict[str | None, list[dict[str, Any]]](list)
    for record in chain:
        if record.kind == "charge":
            asked[record.body["plan"]] += record.body.get("slots", [])
    loose = asked.pop(None, [])
    for plan, slots in asked.items():
        others = _others(told[str(plan)], slots)
        told |= {_not_in(told, f"{plan}, question {i}", "not a plan"): other for i, other in enumerate(others, 1)}
    terms = [{"query": slot["query"], **upgraded_slot(slot)["public"]} for slot in loose]
    return told | {_not_in(told, f"release {i}", "of no plan"): held for i, held in enumerate(terms, 1)}


def _others(terms: Mapping[str, Any], slots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What these slots took on trust and the terms do not say: each kind once, the first few of them."""
    found = dict[str, dict[str, Any]]()
    for slot in slots:
        public = upgraded_slot(slot)["public"]
        if other := {name: value for name, value in public.items() if name not in terms or terms[name] != value}:
            other = {"query": slot["query"], **other}
            found.setdefault(dump(other), other)
    more = {"of other kinds": len(found) - _LISTED, "listed": "in the ledger alone"}
    return [*found.values()][:_LISTED] + [more] * (len(found) > _LISTED)


def _not_in(plans: Mapping[str, Any], name: str, mark: str) -> str:
    """A name for what is no plan, whatever plans are called."""
    while name in plans:
        name += f" ({mark})"
    return name


def _counted(reserved: Record) -> dict[str, Any]:
    """How many releases a plan has, in words for its reader."""
    if not reserved.parallel:
        return {EVALUATIONS: reserved.body["slots"]}
    return {OF_EACH_ROW: reserved.body["slots"], IN_ALL: reserved.body.get("limit") or "all rows"}


def _meaning(guarantee: Guarantee, birth: dict[str, Any], conditions: dict[str, str], failing: float) -> tuple[str, ...]:
    rate = format_up(100 * true_positive_rate(guarantee, 0.01), 2)
    change = _CHANGES[Adjacency(birth["adjacency"])]
    only = f"only under {conditional(conditions, failing)}: " if conditions else ""
    told = [f"{only}whoever tests whether one {birth['unit']} {change}, with 1 % false alarms, is right about at most {rate} % of them."]
    if "row_change" in birth:
        times = birth["row_change"]["diameter"] / birth["row_change"]["norm"]
        told += [f"A row that moves k times as far may show k times as much (pure epsilon, or mu, times k), up to k = {times:g}."]
    return tuple(told)


def _warnings(guarantee: Guarantee, units: int | None, counted: str) -> tuple[str, ...]:
    """Of a delta that is too large. With those of other roles there are only more than `units`, so 1/units still is too large."""
    if units is None or not guarantee.delta:
        return ()
    if guarantee.delta > 1 / units:
        return (f"WARNING: delta exceeds 1/{units}: (epsilon, delta) alone would allow publishing a whole record.",)
    return (f"Delta must lie below one over the number of all records; known here are the {units} {counted} ones.",) if counted else ()
