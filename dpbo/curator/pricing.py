"""From a budget to the least noise that it pays for, and from a mechanism to its noise on the
answer of a question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from dpbo.accounting.filters import budget_cost, filter_within
from dpbo.accounting.planned import Planned
from dpbo.curator.statements import largest_share
from dpbo.errors import InputError, UsageError
from dpbo.events import DiscreteLaplaceEvent, Event, GaussianEvent, PoissonGaussianEvent
from dpbo.mechanisms.additive import LEAST_MULTIPLIER, AdditiveMechanism
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.privacy import Adjacency, Budget, BudgetOrShare, exact_share
from dpbo.queries.query import Query

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger

KindOfNoise = type[AdditiveMechanism | ChoiceMechanism] | tuple[type[AdditiveMechanism], ...]
Noise = Event | Mechanism | KindOfNoise
Kind = TypeVar("Kind", bound=AdditiveMechanism | ChoiceMechanism)
# a multiplier at which a release costs next to nothing, under any filter that knows its cost
_QUIET = 1e9
# What noise in shares costs.
_OF_SHARES = (GaussianEvent, DiscreteLaplaceEvent)


def share_of_cap(ledger: Ledger, budget: BudgetOrShare) -> Fraction:
    """A budget as an exact share of the ledger's, to be divided further. Raises InputError for a
    Budget under `Planned`.
    """
    if not isinstance(budget, Budget):
        return exact_share(budget)
    if isinstance(ledger.accounting, Planned):
        remedy = "The list of Planned says what each release takes: leave `budget` at 1."
        raise InputError("budget", str(budget), "1 with accounting=Planned(...)", remedy)
    return largest_share(budget_cost(budget, ledger.accounting, ledger.cap), ledger.cap)


def require_left(ledger: Ledger, budget: BudgetOrShare, what: str) -> None:
    """Raises BudgetExceeded if `budget` is not left. Under `Planned`, which counts slots, nothing
    is checked.
    """
    if isinstance(ledger.accounting, Planned):
        return
    wanted = budget_cost(budget, ledger.accounting, ledger.cap)
    if not ledger.head().total + wanted <= ledger.cap:
        raise ledger.facts().exceeded(wanted, what)


def priced(
    ledger: Ledger,
    kinds: Sequence[type[Kind]],
    budget: BudgetOrShare,
    slots: int = 1,
    query: Query | None = None,
    *,
    in_shares: Callable[[Mechanism], Mechanism] = lambda mechanism: mechanism,
) -> Iterator[Kind]:
    """Of each kind that the accounting can pay for, the mechanism with the least noise that the
    budget pays for.

    Args:
        budget: what all slots together may spend: a `Budget`, or a share in (0, 1] of the
            ledger's.
        query: the question that each slot releases; omitted, one that is charged as the mechanism
            says.
        in_shares: the noise that each rank draws of a mechanism's (`Ranks.in_shares`), whose event
            is charged.

    Raises:
        UsageError: the accounting can pay for none of these kinds, or for more noise than can be
            drawn.
    """
    accounting = ledger.accounting
    available = budget_cost(budget, accounting, ledger.cap)
    found = False
    for kind in kinds:
        event = in_shares(kind(1.0)).event()
        if query is not None:
            event = query.release_event(event, ledger.birth.adjacency)

        def with_noise(noise_multiplier: float, count: int = 1, event: Event = event) -> Event:
            return dataclasses.replace(event, noise_multiplier=noise_multiplier, count=count)

        multiplier = accounting.multiplier(with_noise, slots, available)
        if multiplier is not None:
            found = True
            yield _drawable(kind, multiplier, slots)
    if not found:
        remedy = "Take another mechanism."
        quiet = with_noise(_QUIET, slots)
        if (other := filter_within([(quiet, 1)], ledger.budget)) is not None:
            remedy = f"Take another mechanism, or give the Curator accounting={other!r}."
        if isinstance(event, PoissonGaussianEvent):
            remedy = (
                "Sampled units need Curator(..., accounting=RDPFilter()), or Planned with this"
                " event and as many slots."
            )
        if accounting.events:
            remedy = (
                f"The plan must list this event, a {type(event).__name__}, with as many slots as"
                " there are releases."
            )
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"{type(accounting).__name__} cannot pay for {names}. {remedy}")


def _drawable(kind: type[Kind], multiplier: float, slots: int) -> Kind:
    """The mechanism with this multiplier. Raises UsageError where that is too large."""
    try:
        # A budget that pays for less noise than can be drawn is spent in part.
        return kind(max(multiplier, LEAST_MULTIPLIER))
    except InputError as error:
        count = "one release" if slots == 1 else f"{slots} releases"
        raise UsageError(
            f"the budget is too small: within it {count} by {kind.__name__} need noise of"
            f" {multiplier:.3g} times the sensitivity, where {error.allowed} can be drawn. Raise"
            " epsilon, or plan fewer releases."
        ) from None


def slot_noise(
    ledger: Ledger,
    noise: Noise,
    budget: BudgetOrShare | None,
    slots: int,
    query: Query | None,
    *,
    in_shares: Callable[[Mechanism], Mechanism],
) -> tuple[Mechanism | None, Event]:
    """The mechanism of each slot of a reservation, if it has one, and what a slot costs
    (`Curator.reserve`).

    `in_shares` gives the noise that each rank draws (`Ranks.in_shares`).

    Raises:
        InputError: no budget for a class of mechanisms, or noise that cannot be drawn, or an event
            that noise in shares never has.
        UsageError: an accounting that can pay for none of them.
    """
    mechanism: Mechanism
    if isinstance(noise, Event):
        if ledger.birth.federated and not (noise.free or isinstance(noise, _OF_SHARES)):
            allowed = "GaussianEvent or DiscreteLaplaceEvent with Ranks(trust='sum')"
            remedy = "Or give the mechanism, Gaussian or Laplace. There is no private choice."
            raise InputError("noise", type(noise).__name__, allowed, remedy)
        return None, noise
    if isinstance(noise, Mechanism):
        mechanism = noise
    elif budget is not None:
        kinds = noise if isinstance(noise, tuple) else (noise,)
        mechanism = next(priced(ledger, kinds, budget, slots, query, in_shares=in_shares))
    else:
        remedy = "No privacy is the mechanism NoNoise(allow_not_private=True)."
        raise InputError("budget", None, "a Budget, or a share in (0, 1] of the curator's", remedy)
    mechanism = in_shares(mechanism)
    if query is None:
        return mechanism, mechanism.event()
    noise_std(ledger, mechanism, query)
    return mechanism, event_of([query], mechanism, ledger.birth.adjacency)


def event_of(queries: Sequence[Query], mechanism: Mechanism, adjacency: Adjacency) -> Event:
    """What the joint release costs. Raises UsageError if its questions are charged differently."""
    plain = mechanism.event(len(queries))
    first, *others = [query.release_event(plain, adjacency) for query in queries]
    if any(event != first for event in others):
        raise UsageError(
            "the handles must be charged alike: release sampled and other questions separately."
        )
    return first


def noise_std(ledger: Ledger, mechanism: Mechanism, query: Query) -> Tensor | None:
    """Standard deviation of a release of the question, `m`.

    None for a choice, and where only the answer tells its quanta. Raises InputError where this
    noise cannot be drawn.
    """
    birth = ledger.birth
    quanta = query.quanta(birth.units)
    if quanta is None or isinstance(mechanism, ChoiceMechanism):
        return None
    distribution: Any = mechanism.distribution(query.sensitivity(birth.adjacency), quanta)
    std = torch.tensor(distribution.std, dtype=torch.float64, device="cpu")
    return (std * query.affine(birth.units)[1]).abs()
