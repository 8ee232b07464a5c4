"""Which fields a record of the ledger may have, and of what type: what `Chain.next_state` takes in,
written here or read.

Whatever reads a chain relies on it: a statement, a report, a resumed reservation. Other fields, and
other types, come from a forger, a damaged file or a later version, and would end in an error far
from their cause, or in a wrong number: a negative failure probability would hide a positive one.
The caller's own details, terms and public inputs are JSON of any kind.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from dpbo.errors import InputError

Check = Callable[[Any], bool]
Fields = dict[str, Check]


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


_TEXT = _is(str)
_OBJECT = _is(dict)
_BOOL = _is(bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_event(value: Any) -> bool:
    """`event_from_json` reads it; but True counts as 1 where events are compared."""
    return isinstance(value, dict) and not any(map(_BOOL, value.values()))


def _is_probability(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _are_texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_TEXT, value.values()))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _are_numbers(value: Any) -> bool:
    """A list of numbers, or of such lists of one length: what `Tensor.tolist` makes."""
    if not isinstance(value, list):
        return False
    return all(map(_is_number, value)) or all(
        _are_numbers(row) and len(row) == len(value[0]) for row in value
    )


def _are_variances(value: Any) -> bool:
    return isinstance(value, list) and all(_is_number(part) and part >= 0 for part in value)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _are_terms(value: Any) -> bool:
    return isinstance(value, dict) and _fits(value, {}, _TERMS, others=True) is None


def _are_slots(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(slot, dict) and _fits(slot, {}, _SLOT) is None for slot in value
    )


def _are_values(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_drawn, value))


def _is_drawn(value: Any) -> bool:
    """A value of one slot; in one dimension with a variance for each number, or none."""
    if not isinstance(value, dict) or _fits(value, _VALUE, _DRAWN) is not None:
        return False
    numbers = value["value"]
    variance = value.get("variance", [])
    return len(variance) in (0, len(numbers)) or not all(map(_is_number, numbers))


_TERMS: Fields = {"assumptions": _or_none(_are_texts_by_name)}
_SLOT: Fields = {
    "handle": _TEXT,
    "query": _TEXT,
    "public": _OBJECT,
    "details": _OBJECT,
    "part": _is_count,
    "assumptions": _are_texts_by_name,
    "failure_probability": _is_probability,
}
_VALUE: Fields = {"value": _are_numbers}
_DRAWN: Fields = {
    "handle": _TEXT,
    "variance": _are_variances,
    "distribution": _OBJECT,
    "lattice": lambda value: isinstance(value, list) and all(map(_TEXT, value)),
    "details": _OBJECT,
}
_BIRTH: Fields = {
    "schema": _is_count,
    "cap": _TEXT,
    "dataset": _TEXT,
    "unit": _TEXT,
    "grouped": _BOOL,
    "adjacency": _TEXT,
    "budget": _OBJECT,
    "accounting": _TEXT,
    "role": _TEXT,
    "row_change": _or_none(_OBJECT),
    "units": _or_none(_is_count),
    "one_at_a_time": _BOOL,
}
_RESERVE: Fields = {
    "event": _is_event,
    "slots": lambda value: _is_count(value) and value > 0,
    "terms": _are_terms,
}
_RESERVED: Fields = {
    "name": _TEXT,
    "parallel": _BOOL,
    "limit": _or_none(_is_count),
}
_CHARGE: Fields = {"event": _is_event, "reservation": _or_none(_TEXT)}
_CHARGED: Fields = {"units": _or_none(_is_count), "slots": _are_slots}
# Who wrote the record, as the operator says, in any.
_SIGNED: Fields = {"run_by": _TEXT}
# Fields that a record needs, others that it may have, and whether it may have any other.
_FORMS: dict[str, tuple[Fields, Fields, bool]] = {
    "birth": (_BIRTH, {"id": _TEXT}, False),
    "reserve": (_RESERVE, _RESERVED, False),
    "charge": (_CHARGE, _CHARGED, True),
    "value": ({"entry": _is_count, "values": _are_values}, {}, False),
    "assume": ({}, {}, False),
    "void": ({}, {}, False),
}


def require_form(kind: str, body: Mapping[str, Any]) -> None:
    """Raises InputError, which names the field, where a record of this kind has no such body."""
    if kind not in _FORMS:
        raise InputError("kind", kind, f"one of {tuple(_FORMS)}")
    needed, allowed, others = _FORMS[kind]
    if (wrong := _fits(body, needed, {**allowed, **_SIGNED}, others=others)) is not None:
        raise InputError(
            wrong, type(body.get(wrong)).__name__, f"as a record of the kind {kind!r} has it"
        )


def _fits(
    body: Mapping[str, Any],
    needed: Fields,
    allowed: Fields,
    *,
    others: bool = False,
) -> str | None:
    """The first field that is missing, unknown or of another type; None where all fit."""
    for name, check in needed.items():
        if name not in body or not check(body[name]):
            return name
    for name, value in body.items():
        if name in needed or name == "state":
            continue
        check_it = allowed.get(name)
        if not (others if check_it is None else check_it(value)):
            return name
    return None
