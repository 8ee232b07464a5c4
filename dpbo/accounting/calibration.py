"""From a budget to noise: the smallest multiplier with which `releases` equal releases fit; from
one neighbouring relation to another.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TypeVar

from dpbo.accounting.filters import Accounting, Cost, EventKind, GDPFilter, PureFilter
from dpbo.accounting.gdp import epsilon_at
from dpbo.accounting.planned import Planned
from dpbo.errors import InputError
from dpbo.events import (
    Event,
    GaussianEvent,
    OneOfEvent,
    PoissonGaussianEvent,
    RolesEvent,
    SelectionEvent,
)
from dpbo.privacy import Adjacency, Budget, exact_share
from dpbo.statement import format_up
from dpbo.validation import Count, checked

E = TypeVar("E", bound=Event)
# share of a cap that rounding leaves where all of it was reserved
_ROUNDING = Fraction(1, 10**12)


@checked
def convert_adjacency(event: E, given: Adjacency, wanted: Adjacency) -> E:
    """The event of a release made under the relation `given`, as it counts under `wanted`.

    Replacing one unit is removing it and adding another: two steps of add-or-remove-one. So an
    event's guarantee under add-or-remove-one holds twice over under replace-one: a vector moves
    twice as far, which halves the noise multiplier (mu becomes 2 mu, pure epsilon 2 epsilon). A
    Poisson-sampled Gaussian keeps its multiplier, which refers to the norm bound of one unit's
    contribution, and takes the pair of replace-one, which is far better than doubling. A private
    selection, each role and each of several candidates is converted event by event.

    Raises:
        InputError: any other conversion; replace-one says nothing about the number of units.
    """
    if given is wanted or event.free:
        return event
    if (given, wanted) != (Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE):
        raise InputError(
            "wanted", wanted, "REPLACE_ONE, from ADD_OR_REMOVE_ONE", "No other conversion holds."
        )

    def converted(events: Iterable[Event]) -> tuple[Event, ...]:
        return tuple(convert_adjacency(one, given, wanted) for one in events)

    match event:
        case PoissonGaussianEvent():
            return dataclasses.replace(event, relation=wanted.value)
        case RolesEvent():
            costs = tuple((role, converted(events)) for role, events in event.costs)
            return dataclasses.replace(event, costs=costs)
        case SelectionEvent():
            return dataclasses.replace(event, base=converted(event.base))
        case OneOfEvent():
            return dataclasses.replace(event, candidates=converted(event.candidates))
    return dataclasses.replace(event, noise_multiplier=event.noise_multiplier / 2)


@checked
def calibrate(
    budget: Budget,
    *,
    releases: Count,
    share: float | Fraction = 1,
    accounting: Accounting | None = None,
    event: EventKind = GaussianEvent,
) -> float:
    """Smallest noise multiplier with which `releases` equal releases together stay within `share`
    of the budget.

    For Gaussians under GDPFilter this is sqrt(releases / share) / mu. Whatever the filter, it is
    the least float whose exact cost fits, so the way back (cost of the releases -> epsilon) never
    passes the budget.

        # in one plan with five selections
        calibrate(budget, releases=30, accounting=Planned([ExponentialEvent(20.0, 5)]))

    Args:
        budget: what may be spent in all.
        releases: number of releases, each one slot.
        share: part of the budget's cap that they may take, in (0, 1]; read as a decimal, so that
            0.9 and 0.1 add to 1.
        accounting: the filter, GDPFilter() if omitted; or Planned with everything else that will be
            released.
        event: class of the events, such as GaussianEvent or LaplaceEvent; for a Poisson-sampled
            Gaussian a partial with rate and relation.

    Raises:
        InputError: a number outside its range, an event that the filter cannot pay for, or one that
            costs next to nothing.
    """
    chosen = accounting or GDPFilter()
    part = exact_share(share, "share")
    if isinstance(chosen, Planned):
        return chosen.least_beside(budget, event, releases, part)
    multiplier = chosen.multiplier(event, releases, chosen.cap(budget) * part)
    if multiplier is None:
        given = event(1.0, 1)
        remedy = (
            "Pass another event, or an accounting that can: RDPFilter and Planned pay for most"
            " events."
        )
        if isinstance(chosen, PureFilter) and isinstance(given, GaussianEvent):
            remedy = (
                "Gaussian noise has no pure epsilon: pass event=LaplaceEvent"
                " (DiscreteLaplaceEvent with Ranks(trust='sum')), or accounting=GDPFilter()."
            )
        raise InputError("event", given.mechanism, f"one that {chosen.name} can pay for", remedy)
    return multiplier


def parts_of(accounting: Accounting, whole: Fraction, share: Fraction) -> tuple[Fraction, Fraction]:
    """`share` of the whole, and the rest. Under `Planned` both are the whole, because it lists what
    each release takes.
    """
    if isinstance(accounting, Planned):
        return (whole, whole)
    return (whole * share, whole * (1 - share))


def epsilon_left(total: Cost, cap: Cost, budget: Budget, accounting: Accounting) -> float | None:
    """Epsilon of the largest `Budget(epsilon, delta)` that the cap still pays for beside `total`,
    at the delta of `budget`; rounded down.

    None where the budget names no delta, and under `Planned`, which counts slots.
    """
    if budget.delta is None or isinstance(accounting, Planned):
        return None
    left = Cost(tuple(max(whole - used, Fraction(0)) for used, whole in total.beside(cap)))
    if left <= cap * _ROUNDING:
        return 0.0
    # `guarantee` rounds up, so what the cap still pays for may be a little less
    bound = accounting.guarantee(left, budget.delta).epsilon or 0.0
    epsilon = bound if budget.epsilon is None else min(bound, budget.epsilon)
    for lower in (
        epsilon,
        math.nextafter(epsilon, 0.0),
        *(epsilon * (1 - 2.0**power) for power in range(-51, 0)),
    ):
        # an epsilon may be too small for a budget of this accounting
        with contextlib.suppress(InputError):
            if accounting.cap(Budget(lower, budget.delta)) <= left:
                return lower
    return 0.0


def budget_in_words(budget: Budget) -> str:
    """A budget for a reader."""
    if budget.epsilon is not None:
        return f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"
    if budget.mu is not None and budget.delta is not None:
        return (
            f"mu {budget.mu:g}, which is epsilon {format_up(epsilon_at(budget.mu, budget.delta))},"
            f" delta {budget.delta:g}"
        )
    return f"mu {budget.mu:g}"
