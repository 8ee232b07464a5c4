"""A release, from its handle to its stored value: charged first, then drawn, then stored, then
delivered. Nothing is ever drawn twice.
"""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpbo.curator.handle import Handle
from dpbo.curator.pricing import event_of
from dpbo.errors import InputError, LedgerError, PrivacyError, ReleaseLost, UsageError
from dpbo.events import Event
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Affine, Entropy, Mechanism, NoiseDistribution
from dpbo.queries.query import IntegerSum, Query
from dpbo.release import Release

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger

_MOST_STEPS = 1 << 61
Answer = tuple[Query, IntegerSum]
Draw = Callable[[Handle, NoiseDistribution, Mechanism], Any]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """An answer that was charged, with its noise.

    Attributes:
        handle: its name.
        law: the law of its noise.
        mechanism: its noise.
        event: what its ledger entry cost.
        entry: the number of that entry.
        quanta: of the exact answer.
        numbers: in steps of the law's grid; of a choice, what was chosen.
    """

    handle: Handle
    law: NoiseDistribution
    mechanism: Mechanism
    event: Event
    entry: int
    quanta: Sequence[float]
    numbers: Any


class Releases:
    """What becomes of each handle that is released: delivered once, drawn but not yet stored, or
    lost.

    Args:
        ledger: what is charged, and where values are stored.
        allow_conditional: whether a release may rest on data assumptions.
    """

    def __init__(self, ledger: "Ledger", *, allow_conditional: bool) -> None:
        self._ledger = ledger
        self._allow_conditional = allow_conditional
        # Of each handle that was charged; None until it is stored.
        self._charged = weakref.WeakKeyDictionary[Handle, Release | None]()
        self._drawn: list[tuple[int, str, Sequence[tuple[Handle, Release]]]] = []

    def draw(
        self,
        answers: dict[Handle, Answer],
        mechanism: Mechanism,
        name: str,
        reservation: str | None,
        used: int | None,
        draw: Draw,
    ) -> list[Drawn]:
        """Charge what was not charged before, and draw it.

        Args:
            draw: `draw(handle, law, mechanism)`, the handle's answer with noise.

        Raises:
            ReleaseLost: a value is lost. Nothing is charged.
        """
        self.store()
        fresh = self._uncharged(answers)
        if not fresh:
            return []
        birth = self._ledger.birth
        laws = []
        for query, answer in map(answers.__getitem__, fresh):
            law = mechanism.distribution(query.sensitivity(birth.adjacency), answer.quanta)
            require_expressible(query, answer.quanta, law, mechanism, birth.units)
            laws.append(law)
        queries = [answers[handle][0] for handle in fresh]
        event = event_of(queries, mechanism, birth.adjacency)
        self.require_allowed(set().union(*map(conditions_of, queries)))
        slots = list(map(slot_of, fresh, queries))
        entry = self._charge(fresh, name, event, slots, reservation, used)
        return [
            Drawn(
                handle,
                law,
                mechanism,
                event,
                entry,
                answers[handle][1].quanta,
                draw(handle, law, mechanism),
            )
            for handle, law in zip(fresh, laws, strict=True)
        ]

    def keep(self, name: str, releases: Sequence[tuple[Handle, Release]]) -> None:
        """Store what was just drawn, in an entry of this name."""
        if releases:
            self._drawn.append((releases[0][1].entry, name, releases))
        self.store()

    def require_allowed(self, data_assumptions: Iterable[str]) -> None:
        """Raises InputError for data assumptions that the curator does not allow."""
        conditions = sorted(data_assumptions)
        if conditions and not self._allow_conditional:
            raise InputError(
                "allow_conditional",
                False,
                f"True for a guarantee that rests on {', '.join(conditions)}",
                "The statement then says what holds without them.",
            )

    def store(self) -> None:
        """Store what was drawn. If the ledger cannot be written, it stays here until the next
        release.
        """
        while self._drawn:
            entry, name, drawn = self._drawn[0]
            rows = [
                {
                    "handle": handle.id,
                    "value": _listed(release.value),
                    "variance": _listed(release.variance),
                    "distribution": release.distribution.to_json(),
                    "lattice": list(map(str, release.lattice)),
                    "details": handle.details,
                }
                for handle, release in drawn
            ]
            self._ledger.store(entry, name, rows)
            self._charged.update(drawn)
            self._drawn.pop(0)

    def is_charged(self, handle: Handle) -> bool:
        return handle in self._charged

    def value(self, handle: Handle) -> Release:
        """Its one value, in tensors that the caller may change. Raises ReleaseLost where it was
        charged but never delivered.
        """
        release = self._charged[handle]
        if release is None:
            raise ReleaseLost(
                "this handle was charged but its value was never delivered, and it is never drawn"
                " twice. Evaluate again: a new handle is a new release with a charge of its own."
            )
        return dataclasses.replace(
            release, value=release.value.clone(), variance=release.variance.clone()
        )

    def _uncharged(self, handles: Iterable[Handle]) -> list[Handle]:
        """Those that were never charged. Raises ReleaseLost where another one's value is lost."""
        fresh = []
        for handle in handles:
            if handle in self._charged:
                self.value(handle)
            else:
                fresh.append(handle)
        return fresh

    def _charge(
        self,
        handles: Sequence[Handle],
        name: str,
        event: Event,
        slots: list[dict[str, Any]],
        reservation: str | None,
        used: int | None,
    ) -> int:
        ledger = self._ledger
        # Before it is true: an interrupt may come between the commit and its answer.
        self._charged.update(dict.fromkeys(handles))
        try:
            body = {"units": ledger.birth.units, "slots": slots}
            return ledger.charge(name, event, body, reservation, used=used)
        except BaseException as error:
            charged = not isinstance(error, PrivacyError) or getattr(error, "uncertain", False)
            if charged:
                with contextlib.suppress(LedgerError):  # which leaves it uncertain
                    charged = ledger.charged(handles[0].id)
            if not charged:
                for handle in handles:
                    del self._charged[handle]
            raise


def _listed(numbers: Tensor) -> list[Any]:
    """Numbers as the ledger keeps them, also a single one in a list."""
    listed: list[Any] = numbers.reshape(numbers.shape or (1,)).tolist()
    return listed


def conditions_of(query: Query) -> dict[str, str]:
    """The data assumptions of a query.

    One that may fail without any has that its declared sensitivity holds.
    """
    named = dict(query.data_assumptions())
    if query.failure_probability() and not named:
        named["declared-sensitivity"] = (
            "the sensitivity that the query declares is true, except with the probability that it"
            " states"
        )
    return named


def terms_of(query: Query) -> dict[str, Any]:
    """What a reservation for this question states."""
    stated = {
        "assumptions": conditions_of(query),
        "failure_probability": query.failure_probability(),
    }
    return {**query.public_inputs(), **{name: value for name, value in stated.items() if value}}


def slot_of(handle: Handle, query: Query) -> dict[str, Any]:
    """What the ledger keeps of a handle that is charged."""
    slot = {
        "handle": handle.id,
        "query": type(query).__name__,
        "public": query.public_inputs(),
        "details": handle.details,
        "part": query.part(),
        "assumptions": conditions_of(query) or None,
        "failure_probability": query.failure_probability() or None,
    }
    return {name: value for name, value in slot.items() if value is not None}


def sampled(
    query: Query,
    answer: IntegerSum,
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    entropy: Entropy,
    *,
    units: int | None,
) -> Any:
    """The answer with noise, in steps of the law's grid; of a choice, what was chosen.

    Whatever the caller has set for devices and numpy's errors, as in `published`: an error now
    would lose what was charged, and one of underflow, or a warning, would tell of records.
    """
    with torch.device("cpu"), np.errstate(all="ignore"):
        numerators = answer.numerators
        if isinstance(mechanism, ChoiceMechanism):
            numerators = _with_offsets(numerators, answer.quanta, query.affine(units))
        return mechanism._sample(numerators, answer.quanta, distribution, entropy)


def published(
    query: Query,
    drawn: Any,
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    *,
    units: int | None,
) -> tuple[Tensor, Tensor]:
    """The value that stands for what was drawn, and its variance."""
    with torch.device("cpu"), np.errstate(all="ignore"):
        value, variance = mechanism.publish(drawn, distribution, query.affine(units))
    return torch.from_numpy(value), torch.from_numpy(variance)


def noised(
    query: Query,
    answer: IntegerSum,
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    entropy: Entropy,
    *,
    units: int | None,
) -> Tensor:
    """The value that stands for the answer with noise."""
    drawn = sampled(query, answer, distribution, mechanism, entropy, units=units)
    return published(query, drawn, distribution, mechanism, units=units)[0]


def require_expressible(
    query: Query,
    quanta: Sequence[float],
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    units: int | None,
) -> None:
    """Refuse before the charge what could not be kept after it, or an error of a user's query would
    lose what was paid for.

    Raises:
        InputError: offsets too large for whole numbers.
        UsageError: the query's public part does not give one finite number for each of its numbers.
    """
    affine = query.affine(units)
    if isinstance(mechanism, ChoiceMechanism):
        # a choice may be among 10^8 candidates
        if any(affine[0]):
            _steps(affine, quanta)
        return
    with np.errstate(all="ignore"):
        value, variance = mechanism.publish(
            np.zeros(len(quanta), dtype=np.int64), distribution, affine
        )
    for found in (value, variance):
        if found.shape != (len(quanta),) or not np.isfinite(found).all():
            raise UsageError(
                f"affine of {type(query).__name__} must give a finite value and variance for each"
                f" of its {len(quanta)} numbers."
            )


def _with_offsets(numerators: Tensor, quanta: Sequence[float], affine: Affine) -> Tensor:
    """The utilities with their public offsets, in quanta: added here, once, after the sum over all
    parts of the records. Neighbours have the same offsets, so their utilities differ as before.
    """
    if not any(affine[0]):
        return numerators
    return numerators + torch.tensor(_steps(affine, quanta), device=numerators.device)


def _steps(affine: Affine, quanta: Sequence[float]) -> list[int]:
    """Offsets in quanta, at most 2^61: a sum is at most as much, and both together fit int64."""
    offsets, gain = affine
    steps = []
    for offset, quantum in zip(offsets, quanta, strict=True):
        unit = gain * quantum
        if not abs(offset) <= unit * _MOST_STEPS:
            allowed = f"numbers from {-unit * _MOST_STEPS:g} to {unit * _MOST_STEPS:g}"
            raise InputError("offsets", offset, allowed)
        steps.append(round(offset / unit))
    return steps
