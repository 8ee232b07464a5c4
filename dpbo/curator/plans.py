"""A plan's slots: what a charge leaves of them, and which charges and sessions may use them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dpbo.curator.chain import Record, is_part
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.events import Event


def with_slots(
    head: Record, reserved: Record | None, plan: str, event: Event, details: Mapping[str, Any], taken: Counter[int] | None,
    account: Callable[[], str],
) -> dict[str, Any]:  # fmt: skip
    """The state after this charge; `taken` by part, for a parallel plan."""
    if reserved is None:
        raise InputError("plan", plan, "the name of a plan that was reserved")
    if event != reserved.event.repeated(event.slots):
        raise InputError("mechanism", event, f"the one reserved for the plan {plan!r}")
    used, slots = head.used[plan], reserved.body["slots"]
    if taken is None:
        after = used + event.slots
    else:
        parts = Counter(slot.get("part") for slot in details.get("slots", []))
        if not all(map(is_part, parts)) or sum(parts.values()) != event.slots:
            raise InputError("plan", plan, "used for questions about one part of the records each", "See Query.part.")
        if (limit := reserved.body.get("limit")) is not None and taken.total() + event.slots > limit:
            raise BudgetExceeded(event.slots, limit - taken.total(), limit, "answers", f"the plan {plan!r}", account())
        after = max(used, *(taken[part] + count for part, count in parts.items()))
        used = max(taken[part] for part in parts)
    if after > slots:
        raise BudgetExceeded(after - used, slots - used, slots, "slots", f"the release for the plan {plan!r}", account())
    return {"total": str(head.total), "used": {**head.used, plan: after}}


def require_declared(reserved: Record | None, details: Mapping[str, Any]) -> None:
    """A plan's statement must have told from the start under which data assumptions it will release."""
    declared = {} if reserved is None else reserved.body["terms"].get("assumptions", {})
    asked = {name for slot in details.get("slots", []) for name in slot.get("assumptions", {})}
    if not asked <= set(declared):
        remedy = "Reserve it with terms={'assumptions': dict(query.data_assumptions())}."
        raise InputError("plan", ", ".join(sorted(asked)), "reserved for releases under these data assumptions", remedy)


def require_records(reserved: Record, details: Mapping[str, Any]) -> None:
    """Slots of a parallel plan are those of the records' places: another number of records has other places."""
    if (promised := reserved.body["terms"].get("records")) != details.get("units"):
        raise LedgerMismatch("records", promised, details.get("units"), "Give the records that the plan was made for, in their order.")


def same_event(known: Record, event: Event, wanted: Mapping[str, Any]) -> Event:
    """The reserved event of a plan that exists, where its terms are the wanted ones. Raises LedgerMismatch, naming one that is not."""
    stored, kept, given = known.body, known.event, event
    close = math.isclose(kept.noise_multiplier, given.noise_multiplier, rel_tol=1e-9)
    same = close and dataclasses.replace(given, noise_multiplier=kept.noise_multiplier) == kept
    events: dict[str, tuple[Any, Any]] = {"event": (kept, kept if same else given), "evaluations": (stored["slots"], wanted["slots"])}
    for term in ("parallel", "limit"):
        events[term] = stored.get(term), wanted.get(term)
    terms = {term: (stored["terms"].get(term), wanted["terms"].get(term)) for term in {**wanted["terms"], **stored["terms"]}}
    for term, (old, new) in {**events, **terms}.items():
        if old != new:
            remedy = f"The plan {known.name!r} exists: resume it with its own terms, or choose another name."
            raise LedgerMismatch(term, old, new, remedy)
    return kept
