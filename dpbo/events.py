"""Events: what a release costs, as data that goes to the ledger and from which any accountant can
recompute the privacy loss.

Floats are kept exactly, so `event -> JSON -> event` changes nothing. accounting/event_costs.py has
the cost of each event.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from dpbo.errors import InputError
from dpbo.run_counts import RunCountDistribution, run_count_from_json
from dpbo.validation import Within, at_least, between, checked

_Multiplier = Annotated[float, between(1e-100, 1e100)]


@checked
@dataclass(frozen=True)
class Event:
    """`count` releases, each with noise of scale `noise_multiplier` times its sensitivity, drawn
    jointly or one after another.

    Args:
        noise_multiplier: from 1e-100 to 1e100.
        count: number of releases.
    """

    noise_multiplier: _Multiplier
    count: Annotated[int, at_least(1, 2**63 - 1)] = 1
    mechanism: ClassVar[str]
    # True for exact answers, which are charged nothing because no budget could pay for them.
    free: ClassVar[bool] = False

    def to_json(self) -> dict[str, Any]:
        """Readable by `event_from_json` and by people."""
        return {"mechanism": self.mechanism, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The event with these fields. Raises InputError, a ValueError, on other fields."""
        if {field.name for field in dataclasses.fields(cls)} != set(body):
            raise _unknown(body)
        return cls(**body)

    def relations(self) -> frozenset[str]:
        """The neighbouring relations that its numbers refer to; none for most events, which count
        in units of their sensitivity.
        """
        return frozenset()

    def repeated(self, count: int) -> Self:
        """The same event with another count."""
        return dataclasses.replace(self, count=count)


@checked
class GaussianEvent(Event):
    """Gaussian noise; its multiplier is the standard deviation over the l2 sensitivity.

    Each release is exactly mu-GDP with mu = 1 / noise_multiplier.
    """

    mechanism = "gaussian"


@checked
class LaplaceEvent(Event):
    """Laplace noise; its multiplier is the scale over the l1 sensitivity.

    Each release is pure epsilon = 1 / noise_multiplier.
    """

    mechanism = "laplace"


@checked
class DiscreteLaplaceEvent(Event):
    """Discrete Laplace noise, such as ranks add in shares; its multiplier is the scale over the l1
    sensitivity, rounding to the grid included.

    Each release is pure epsilon = 1 / noise_multiplier. Its privacy loss is not that of
    LaplaceEvent, which is no bound: on a grid the loss is epsilon with a larger probability.
    """

    mechanism = "discrete-laplace"


@checked
class L2LaplaceEvent(Event):
    """Laplace noise of a vector; its multiplier is the radius' scale over the l2 sensitivity.

    Each release is pure epsilon = 1 / noise_multiplier.
    """

    mechanism = "l2-laplace"


@checked
class ExponentialEvent(Event):
    """A choice by the exponential mechanism; its multiplier is the utilities' scale of noise over
    their sensitivity.

    Each release is pure epsilon = 2 / noise_multiplier, of range epsilon.
    """

    mechanism = "exponential"


@checked
class PermuteAndFlipEvent(Event):
    """A choice by permute-and-flip; its multiplier is the utilities' scale of noise over their
    sensitivity.

    Each release is pure epsilon = 2 / noise_multiplier.
    """

    mechanism = "permute-and-flip"


@checked
class ThresholdedExponentialEvent(Event):
    """A choice of a candidate that stands out from a known constant, or of none; its multiplier is
    the utilities' scale of noise over their sensitivity.

    Each release is pure epsilon = 2 / noise_multiplier.
    """

    mechanism = "thresholded exponential"


@checked
@dataclass(frozen=True)
class PoissonGaussianEvent(Event):
    """Gaussian noise on a sum over a sample that takes each unit independently with probability
    `rate`, a new sample for every release.

    Args:
        noise_multiplier: standard deviation over the norm bound of one unit's contribution, under
            either relation.
        rate: in (0, 1].
        relation: "add-or-remove-one", or "replace-one", where both the old and the new contribution
            may be in the sample.
    """

    rate: Annotated[float, Within("in (0, 1]", lambda rate: 0.0 < rate <= 1.0)] = dataclasses.field(
        kw_only=True
    )
    relation: str = dataclasses.field(kw_only=True)
    mechanism: ClassVar[str] = "poisson-gaussian"

    def __post_init__(self) -> None:
        if self.relation not in ("replace-one", "add-or-remove-one"):
            raise InputError("relation", self.relation, "'replace-one' or 'add-or-remove-one'")

    def relations(self) -> frozenset[str]:
        return frozenset({self.relation})


_PAID = Within(
    "a tuple of one event or more, none of them exact",
    lambda events: (
        len(events) > 0 and all(isinstance(event, Event) and not event.free for event in events)
    ),
)
SPREAD = Within(
    "(c, C) with 0 < c <= 1 <= C", lambda spread: 0.0 < spread[0] <= 1.0 <= spread[1] < math.inf
)


@checked
@dataclass(frozen=True)
class SelectionEvent(Event):
    """The best of a random number of runs, each run costing all events of `base`; only the best is
    released.

    Args:
        noise_multiplier: factor on the noise of every event in the base, so that a base can be
            calibrated like other noise.
        base: what one run costs: its output and its score together.
        run_count: the distribution of the number of runs.
        spread: (c, C), where proposals may depend on the results of earlier runs, with densities
            between c and C times the public prior's; (1, 1) if every proposal comes from the prior.
    """

    noise_multiplier: _Multiplier = 1.0
    base: Annotated[tuple[Event, ...], _PAID] = dataclasses.field(kw_only=True)
    run_count: RunCountDistribution = dataclasses.field(kw_only=True)
    spread: Annotated[tuple[float, float], SPREAD] = dataclasses.field(
        default=(1.0, 1.0), kw_only=True
    )
    mechanism: ClassVar[str] = "private-selection"

    def __post_init__(self) -> None:
        _require_one_relation("base", self.relations())
        # Raises InputError where noise is out of its range.
        self.run()

    def run(self) -> tuple[Event, ...]:
        """The events of one run."""
        scale = self.noise_multiplier
        return tuple(
            dataclasses.replace(event, noise_multiplier=event.noise_multiplier * scale)
            for event in self.base
        )

    def relations(self) -> frozenset[str]:
        return frozenset().union(*(event.relations() for event in self.base))

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "base": [event.to_json() for event in self.base],
            "run_count": self.run_count.to_json(),
            "spread": list(self.spread),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        events = _listed(body.get("base"), event_from_json)
        run_count = run_count_from_json(body.get("run_count"))
        return super().from_json(
            {
                **body,
                "base": events,
                "run_count": run_count,
                "spread": _listed(body.get("spread"), lambda end: end),
            }
        )


@checked
@dataclass(frozen=True)
class OneOfEvent(Event):
    """One release by one of several candidate mechanisms, such as a DP-SGD run whose batch size and
    number of epochs are searched. Which one is public, drawn with public probabilities, or chosen
    by what was released before.

    It costs the pointwise maximum over the candidates of whatever is counted: privacy profiles in
    each direction, Renyi curves, costs that add. Proof. Let candidate i have the profile d_i(x),
    the supremum over neighbours of the hockey-stick divergence H_x(P_i || Q_i) at x = e^epsilon,
    and let d = max d_i.

    1. Drawn with probabilities w and released: the laws of (i, output) lie on disjoint sets, so
       H_x = sum w_i H_x(P_i || Q_i) <= d(x). Not released: post-processing. Of Renyi divergences
       e^((a-1) D_a) is such a sum, and at most its largest term.
    2. Chosen by earlier releases, even by chance: given these, 1 applies, with weights that they
       decide. Every d_i is convex and falls in x, with d_i(0) = 1 and d_i(x) >= 1 - x, and so does
       d: it is the profile of a pair of laws (Zhu, Dong & Wang 2022, Section 3), which dominates
       this release whatever was released before. Compositions of dominating pairs
       dominate adaptive compositions (their Theorem 10).
    3. Within hidden runs the candidate is a part of a run's public parameters, so 1 bounds a run.

    Args:
        noise_multiplier: factor on the noise of every candidate.
        candidates: what each of the mechanisms costs.
    """

    noise_multiplier: _Multiplier = 1.0
    candidates: Annotated[tuple[Event, ...], _PAID] = dataclasses.field(kw_only=True)
    mechanism: ClassVar[str] = "one-of"

    def __post_init__(self) -> None:
        _require_one_relation("candidates", self.relations())
        # Raises InputError where noise is out of its range.
        self.alternatives()

    def alternatives(self) -> list[tuple[Event, ...]]:
        """The events of all releases by each candidate."""
        return [(_scaled(event, self),) for event in self.candidates]

    def relations(self) -> frozenset[str]:
        return frozenset().union(*(event.relations() for event in self.candidates))

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "candidates": [event.to_json() for event in self.candidates],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        candidates = _listed(body.get("candidates"), event_from_json)
        return super().from_json({**body, "candidates": candidates})


@checked
@dataclass(frozen=True)
class RolesEvent(Event):
    """One release from records of several roles, such as training and validation. A public rule
    gives each record its role.

    Neighbouring data sets differ in records of one role, the same in all releases of a study, so a
    release costs them the events of that role alone. The guarantee of a study is the worst over the
    roles, each role's events composed separately; events outside any RolesEvent count for every
    role.

    Args:
        costs: (role, events) for each role; a role that is not named pays nothing.
    """

    noise_multiplier: _Multiplier = 1.0
    costs: tuple[tuple[str, tuple[Event, ...]], ...] = dataclasses.field(kw_only=True)
    mechanism: ClassVar[str] = "roles"

    def __post_init__(self) -> None:
        named = dict(self.costs)
        paid = itertools.chain.from_iterable(named.values())
        nested = any(isinstance(event, RolesEvent) or event.free for event in paid)
        if not named or len(named) < len(self.costs) or nested or not all(named.values()):
            raise InputError(
                "costs",
                sorted(named),
                "one event or more for each of several roles, none of them exact or of roles"
                " itself",
            )
        _require_one_relation("costs", self.relations())
        # Raises InputError where noise is out of its range.
        self.alternatives()

    def alternatives(self) -> list[tuple[Event, ...]]:
        """The events that all releases cost a record of each role."""
        return list(map(self.of, self.roles))

    def of(self, role: str) -> tuple[Event, ...]:
        """The events that all releases cost a record of this role."""
        return tuple(_scaled(event, self) for event in dict(self.costs).get(role, ()))

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.costs)

    def relations(self) -> frozenset[str]:
        events = itertools.chain.from_iterable(dict(self.costs).values())
        return frozenset().union(*(event.relations() for event in events))

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "costs": [[role, [event.to_json() for event in events]] for role, events in self.costs],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        pairs = _listed(body.get("costs"), lambda pair: pair)
        if not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in pairs
        ):
            raise _unknown(body)
        return super().from_json(
            {
                **body,
                "costs": tuple((role, _listed(events, event_from_json)) for role, events in pairs),
            }
        )


@checked
@dataclass(frozen=True)
class ExactEvent(Event):
    """Exact answers: no noise."""

    noise_multiplier: float = 0.0
    free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.noise_multiplier != 0.0:
            raise InputError(
                "noise_multiplier", self.noise_multiplier, "0 for a release without noise"
            )


@checked
class NotPrivateEvent(ExactEvent):
    """A release without any guarantee, exact or with noise for a bound that does not hold; the
    statement says "not bounded".
    """

    mechanism = "none"


@checked
class DeclassifiedEvent(ExactEvent):
    """A release of values declared to need no protection, free under that declaration, which is a
    named data assumption.
    """

    mechanism = "declassified"


def _scaled(event: Event, whole: Event) -> Event:
    """An event that each release of the whole makes, with the whole's factor on noise, as often as
    the whole is released.
    """
    return dataclasses.replace(
        event,
        noise_multiplier=event.noise_multiplier * whole.noise_multiplier,
        count=event.count * whole.count,
    )


def _require_one_relation(parameter: str, relations: frozenset[str]) -> None:
    """Raises InputError for events of several neighbouring relations."""
    if len(relations) > 1:
        remedy = "See dpbo.accounting.calibration.convert_adjacency."
        raise InputError(parameter, sorted(relations), "of one relation", remedy)


def _listed(body: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Each item of a JSON list, read."""
    if not isinstance(body, (list, tuple)):
        raise _unknown(body)
    return tuple(map(read, body))


def _unknown(body: Any) -> InputError:
    return InputError("body", body, "what to_json wrote", "Was it written by a newer dpbo?")


_KINDS: dict[str, type[Event]] = {
    kind.mechanism: kind
    for kind in (
        GaussianEvent,
        LaplaceEvent,
        DiscreteLaplaceEvent,
        L2LaplaceEvent,
        ExponentialEvent,
        PermuteAndFlipEvent,
        ThresholdedExponentialEvent,
        PoissonGaussianEvent,
        SelectionEvent,
        OneOfEvent,
        RolesEvent,
        NotPrivateEvent,
        DeclassifiedEvent,
    )
}


@checked
def event_from_json(body: Any) -> Event:
    """The event that `to_json` wrote. Raises InputError, a ValueError, on an unknown mechanism or
    content.
    """
    fields = dict(body) if isinstance(body, dict) else {}
    mechanism = fields.pop("mechanism", None)
    if not isinstance(mechanism, str) or mechanism not in _KINDS:
        raise _unknown(body)
    return _KINDS[mechanism].from_json(fields)
