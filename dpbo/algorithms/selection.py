"""The best of a random number of private runs, for little more than the price of one: private hyper-parameter tuning.

    best = private_selection(
        curator, train, space=Space(lr=scipy.stats.loguniform(1e-4, 1.0)), law=TruncatedNegativeBinomial.of_mean(20.0, shape=3.0),
        base=[PoissonGaussianEvent(1.1, 3000, rate=0.004, relation="add-or-remove-one")],
        score=NoisedScore(accuracy, score_range=(0.0, 1.0), mechanism=GaussianMechanism(500.0)),
    )
    best.parameters, best.output, best.score

The number of runs K is drawn from a public law before any run; each run draws its proposal uniformly, trains, and scores; only the best
run's proposal, output and noised score come out. One ledger entry pays for all, a `SelectionEvent` of what one run costs: what `train`
costs (`base`, attested by the caller) and the score's noise, which is drawn here, by the curator, as for any release.
The proof needs that K and every losing run stay hidden. So nothing is printed, logged or stored for a run, errors are never shown (a run
that fails has the worst score), and a run that a killed process began is lost and never drawn again. What code can not hide, the statement
names: how long it took (`timing-not-observed`; `pad_to` makes every call last so long, unless its runs, and those of other threads that it
waits for, last longer), and what `train` itself writes, sends or keeps (`runs-hidden`).

Source: Liu & Talwar 2019; Papernot & Steinke 2022. Bounds and proofs: accounting/selected.py.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.algorithms.hidden_runs import DensityRatioProposals, Run, best_of
from dpbo.curator.birth import ROLES, require_own_role
from dpbo.curator.curator import Curator
from dpbo.curator.inside import noised_inside
from dpbo.describing import described_space
from dpbo.errors import InputError, ReleaseLost
from dpbo.events import Event, RolesEvent, SelectionEvent
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.privacy import require_positive
from dpbo.queries.clipped import ClippedMean, ScoreRange
from dpbo.queries.query import own
from dpbo.queries.score_evaluation import Score
from dpbo.run_counts import RunLaw, ThresholdStop
from dpbo.space import Space
from dpbo.validation import checked

_PRIOR = (1.0, 1.0)
_drawn: weakref.WeakKeyDictionary[Curator, dict[str, tuple[int, Selected]]] = weakref.WeakKeyDictionary()


@checked
@dataclass(frozen=True, eq=False)
class NoisedScore:
    """How the curator scores what a run has trained: the mean of `score(output, records)` over units, clipped and noised.

    Args:
        score: one number a record, maximised.
        score_range: public (lower, upper) of it.
        mechanism: the noise of each run's score; its event is part of what a run costs.
        settings: `divisor`, `worst`, `max_records_per_unit`, as in `ClippedMean`.
    """

    score: Score
    score_range: ScoreRange
    mechanism: AdditiveMechanism
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "score_range", own(self.score_range))
        object.__setattr__(self, "settings", own(dict(self.settings)))

    def query(self, output: Any) -> ClippedMean:
        """The question about one run's output."""
        return ClippedMean(self.score, output, score_range=self.score_range, **self.settings)


@dataclass(frozen=True, eq=False)
class Selected:
    """The best run, or nothing; all of it is released.

    Attributes:
        parameters: what the run was given; None where nothing was released.
        x: the same as coordinates of the space, `d`.
        score: its noised score; None where nothing was released, or every run failed.
        output: what `train` returned, the very object, with all that it holds; None after the ledger was opened anew, which keeps the
            parameters and the score alone.
    """

    parameters: dict[str, Any] | None
    x: torch.Tensor | None
    score: float | None
    output: Any = field(default=None, repr=False)

    @property
    def nothing(self) -> bool:
        """No run was released."""
        return self.parameters is None


@checked
def private_selection(
    curator: Curator,
    train: Callable[[dict[str, Any]], Any],
    *,
    space: Space,
    law: RunLaw,
    base: Sequence[Event] | Mapping[str, Sequence[Event]] = (),
    score: NoisedScore | None = None,
    adaptive: DensityRatioProposals | None = None,
    threshold: float | None = None,
    pad_to: float | None = None,
    name: str = "selection",
) -> Selected:
    """Release the best of K runs, K drawn from `law`, as one entry of the ledger; asked again under its name it gives the same.

    Runs are hidden from the whole process, so of several threads' selections one runs at a time. A run must not wait for another thread's.

    Args:
        curator: owner of the records and of the ledger. Its accounting must be able to pay: `Planned` with the very `SelectionEvent`
            (`selection_event` makes it), `RDPFilter`; PureFilter and GDPFilter where all events of a run are pure.
        train: `train(parameters) -> output`, what is then scored; without `score` it returns `(output, number)`. Where it raises,
            or the number is not finite, the run has failed. The winner's output is published as it is: it must hold nothing but what `base`
            pays for, also after it was scored. A model that Opacus trained holds gradients of single records, and so must be passed through
            `dpbo.integrations.opacus.released` in here.
        space: where each run's parameters are drawn, uniformly.
        law: of the number of runs; or `ThresholdStop`, which releases the first run that reaches `threshold`.
        base: what `train` costs, all its events, in the ledger's relation. Without `score` they must cover the returned number as well.
            Empty where `train` touches none of this ledger's records. A dict where `train` touches records of other roles only, such as
            {"training": [...]}: they pay for that, and the curator's own for the score.
        score: how the curator scores an output.
        adaptive: lets later runs look where earlier ones did well, at a price; see hypo.py. Else each looks anywhere, uniformly.
        threshold: public, chosen without looking at the records; for `ThresholdStop` alone.
        pad_to: seconds that the call lasts at least.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: it is not left; nothing was charged. LedgerMismatch: the name is taken by
        a selection with other terms. ReleaseLost: charged by a process that ended before it could deliver, or the runs
        ended with an error outside `train`, which is not told. KeyboardInterrupt: they were interrupted. What they cost stays charged.
    """
    _require(curator, train, space, law, threshold, pad_to, name)
    spread = _PRIOR if adaptive is None else adaptive.spread
    event = selection_event(curator, law=law, base=base, score=score, spread=spread)
    terms = _terms(law, space, score, threshold, pad_to) | ({"role": role} if (role := _other_role(curator, base)) else {})
    curator.bind(name, {}, begun=name in curator.ledger.head().used)
    charged = curator.reserve(name, event, slots=1, terms=terms)  # as the ledger has it
    if curator.ledger.head().used[name] == 0:
        for assumed in ("runs-hidden", *(["runs-attested"] if base else [])):
            curator.ledger.note("assume", assumed)
        slot = {"query": "PrivateSelection", "public": {}, "details": {}}
        entry = curator.ledger.charge(name, charged, {"units": curator.units, "slots": [slot]}, name, used=0)
        best = best_of(_work(curator, train, score), space, law, curator._entropy, threshold=threshold, pad_to=pad_to, proposals=adaptive)
        _drawn.setdefault(curator, {})[name] = entry, _selected(best, space)
    return _delivered(curator, space, name)


@checked
def selection_event(
    curator: Curator,
    *,
    law: RunLaw,
    base: Sequence[Event] | Mapping[str, Sequence[Event]] = (),
    score: NoisedScore | None = None,
    spread: tuple[float, float] = _PRIOR,
) -> SelectionEvent | RolesEvent:
    """What the selection costs: one run's events, the score's noise among them, under the law of the number of runs."""
    scored = [] if score is None else [_score_event(curator, score)]
    if not isinstance(base, Mapping):
        return _selection([*base, *scored], law, spread)
    own = curator.ledger.birth["role"]
    costs = {role: list(events) for role, events in base.items()}
    if scored:
        costs[own] = [*costs.get(own, []), *scored]
    return RolesEvent(costs=tuple((role, (_selection(events, law, spread),)) for role, events in sorted(costs.items())))


def _score_event(curator: Curator, score: NoisedScore) -> Event:
    query = score.query(None)
    query.require_public(curator.adjacency)
    require_own_role(query.role, curator.ledger.birth["role"])
    if query.metrics != 1:
        raise InputError("score_range", query.metrics, "of one metric", "A selection maximises one number.")
    score.mechanism.law(query.scale(curator.adjacency), [grid.quantum for grid in query.lattices(curator.units)])
    return query.charged(score.mechanism.event(), curator.adjacency)


def _selection(events: Sequence[Event], law: RunLaw, spread: tuple[float, float]) -> SelectionEvent:
    if not events:
        raise InputError("base", "()", "the events of one run", "Runs that cost nothing need no selection.")
    return SelectionEvent(base=tuple(events), law=law, spread=spread)


def _work(curator: Curator, train: Callable[..., Any], score: NoisedScore | None) -> Callable[[dict[str, Any]], tuple[Any, float]]:
    if score is None:
        return train

    def scored(parameters: dict[str, Any]) -> tuple[Any, float]:
        output = train(parameters)
        value = noised_inside(curator, score.query(output), score.mechanism)
        return output, -math.inf if value is None else float(value[0])

    return scored


def _selected(best: Run | None, space: Space) -> Selected:
    if best is None:
        return Selected(None, None, None)
    return Selected(space.decode(best.x), best.x, None if best.failed else best.score, best.output)


def _delivered(curator: Curator, space: Space, name: str) -> Selected:
    """What this process drew, once the ledger has it; else what the ledger holds."""
    if name in (here := _drawn.get(curator, {})):
        entry, chosen = here[name]
        place = None if chosen.x is None else chosen.x.tolist()
        value = {"value": [] if chosen.score is None else [chosen.score], "variance": [], "details": {"x": place}}
        curator.ledger.store(entry, name, [value])
        return chosen
    values = curator.ledger.values(name)
    if not values:
        raise ReleaseLost(f"the selection {name!r} was charged but never delivered, and it is never drawn twice. Use another name.")
    if values[0]["details"]["x"] is None:
        return Selected(None, None, None)
    x = torch.tensor(values[0]["details"]["x"], dtype=torch.float64)
    return Selected(space.decode(x), x, values[0]["value"][0] if values[0]["value"] else None)


def _terms(law: RunLaw, space: Space, score: NoisedScore | None, threshold: float | None, pad_to: float | None) -> dict[str, Any]:
    inside = {"score": "attested"} if score is None else {"score": "noised by the curator", **score.query(None).public_inputs()}
    extra = {"threshold": threshold, "pad_to": pad_to}
    return {
        "runs": law.to_json(),
        "parameters": list(space.names),
        "space": described_space(space.specs),  # the ledger keeps a coordinate: elsewhere it would be other parameters
        **inside,
        **{key: value for key, value in extra.items() if value is not None},
    }


def _other_role(curator: Curator, base: Sequence[Event] | Mapping[str, Sequence[Event]]) -> str | None:
    """The role, besides the curator's own, that pays for training. Raises InputError where there are several."""
    others = sorted(set(base) - {curator.ledger.birth["role"]}) if isinstance(base, Mapping) else []
    if len(others) > 1 or not set(others) <= set(ROLES):
        raise InputError("base", others, f"of one further role, among {ROLES}")
    return others[0] if others else None


def _require(curator: Any, train: Any, space: Any, law: Any, threshold: Any, pad_to: Any, name: Any) -> None:
    if not isinstance(curator, Curator):
        raise InputError("curator", type(curator).__name__, "a dpbo.Curator")
    if curator.ranks > 1:
        raise InputError("curator", "on several ranks", "of one process", "Hidden runs score all records and draw where they run.")
    if not callable(train):
        raise InputError("train", type(train).__name__, "a function of the parameters")
    if not isinstance(space, Space):
        raise InputError("space", type(space).__name__, "a dpbo.Space")
    if not isinstance(law, RunLaw):
        raise InputError("law", type(law).__name__, "a law of dpbo.run_counts", "For example TruncatedNegativeBinomial.of_mean(20.0).")
    stops = isinstance(law, ThresholdStop)
    finite = isinstance(threshold, (int, float)) and math.isfinite(threshold)
    if stops != (threshold is not None) or (stops and not finite):
        raise InputError("threshold", threshold, "a finite number with ThresholdStop, and left out otherwise")
    if pad_to is not None:
        require_positive("pad_to", pad_to, 0.0, 1e6)
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise InputError("name", name, "a word of at most 200 letters")
