"""Private selection: releases the best of a random number of private runs for little more than the
price of one run.

    best = private_selection(
        curator, train, space=Space(lr=scipy.stats.loguniform(1e-4, 1.0)),
        run_count=TruncatedNegativeBinomial.of_mean(20.0, shape=3.0),
        base=[config],
        score=NoisedScore(accuracy, score_range=(0.0, 1.0), mechanism=GaussianMechanism(500.0)),
    )
    best.parameters, best.output, best.score

The number of runs K is drawn from a public distribution before the first run. Each run draws its
parameters uniformly, trains, and scores. Only the best run's parameters, output and noised score
are released. One ledger entry pays for all: a `SelectionEvent` of what one run costs. That is the
cost of `train` (`base`) and of the score's noise, which the curator draws as for any release. The
cost of a `Session` in `train` is computed from its configuration; other events are stated by the
caller (assumption `runs-attested`).

The proof needs that K and all other runs stay hidden. So nothing is printed, logged or stored for a
run, and errors are not shown: a run that fails has the worst score. A selection whose process was
killed is lost and never drawn again. The statement names what code cannot hide: the duration
(assumption `timing-not-observed`), and what `train` itself writes, sends or keeps (assumption
`runs-hidden`).

Source: Liu & Talwar 2019; Papernot & Steinke 2022. Bounds and proofs:
dpbo/accounting/selection_bounds.py.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpbo.curator.curator import Curator
from dpbo.dpsgd.hidden_runs import DensityRatioProposals, best_of
from dpbo.dpsgd.outputs import copied_output
from dpbo.dpsgd.planning import DPSGDConfig, run_event
from dpbo.errors import InputError, ReleaseLost, UsageError
from dpbo.events import Event, RolesEvent, SelectionEvent
from dpbo.fingerprint import is_own, refers_to
from dpbo.hidden_run import in_hidden_run
from dpbo.ledger.birth import ROLES
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.queries.clipped import ClippedMean, ScoreRanges
from dpbo.queries.query import copy_mutable
from dpbo.queries.score_evaluation import Score
from dpbo.run_counts import RunCountDistribution
from dpbo.space import Space
from dpbo.validation import Name, checked, warn

_PRIOR = (1.0, 1.0)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_STAYS = (
    "the best run's output holds what may not leave, so it does not leave: Selected.output is None."
    " Its parameters and its score are released. Let `train` return numbers, text, dates, paths,"
    " arrays, tensors, tables of pandas, estimators of scikit-learn, and lists, tuples, sets, dicts"
    " and data classes of these; of a module that it trained, session.released()."
)
_UNFITTED = (
    "the best run's output holds fitted estimators of which only the parameters leave, because what"
    " they keep is of other kinds, as a tree's nodes are: {}. They are not fitted. Fit them anew"
    " with Selected.parameters: for nothing on public records, and on the protected ones at the"
    " price of `base`, under a charge of its own. Or let `train` return what is needed as arrays,"
    " such as predictions for public rows."
)
_SHARED = (
    "All runs would share it, and a piece of one stream tells which run it went to. Draw from the"
    " global generators of torch, NumPy or Python, which get seeds of their own in each run, or"
    " make the generator within the function."
)

Cost = Event | DPSGDConfig | Sequence[DPSGDConfig]
Costs = Sequence[Cost] | Mapping[str, Sequence[Cost]]


@checked
@dataclass(frozen=True, eq=False)
class NoisedScore:
    """The score of a run: the mean over units of `score(output, records)`, clipped and noised by
    the curator.

    Args:
        score: one number a record, maximised; `output` is what `train` returned.
        score_range: public (lower, upper) of a record's score.
        mechanism: noise of each run's score; its event is part of what a run costs.
        settings: `divisor`, `worst`, `max_records_per_unit`, as in `ClippedMean`.
    """

    score: Score
    score_range: ScoreRanges
    mechanism: AdditiveMechanism
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "score_range", copy_mutable(self.score_range))
        object.__setattr__(self, "settings", copy_mutable(dict(self.settings)))

    def query(self, output: Any) -> ClippedMean:
        """The query for one run's output."""
        return ClippedMean(self.score, output, score_range=self.score_range, **self.settings)


@dataclass(frozen=True, eq=False)
class Selected:
    """The result of `private_selection`: the best run, or nothing. Everything in it is released.

    Attributes:
        parameters: the run's parameters; None if nothing was released.
        x: the same as a point of the space, `d`.
        score: the run's noised score; None if nothing was released, or every run failed.
        output: the object that `train` returned; None if the selection was read from a ledger,
            which stores parameters and score only.
    """

    parameters: dict[str, Any] | None
    x: torch.Tensor | None
    score: float | None
    output: Any = field(default=None, repr=False)

    @property
    def nothing(self) -> bool:
        """Whether no run was released."""
        return self.parameters is None


@checked
def private_selection(
    curator: Curator,
    train: Callable[[dict[str, Any]], Any],
    *,
    space: Space,
    run_count: RunCountDistribution,
    base: Costs = (),
    score: NoisedScore | None = None,
    adaptive: DensityRatioProposals | None = None,
    name: Name = "selection",
) -> Selected:
    """Release the best of K runs, K drawn from `run_count`, as one ledger entry. Called again with
    the same name it returns the same.

    Runs are hidden from the whole process, so selections of several threads run one after another.
    A run must not wait for another thread's selection.

    Args:
        curator: owner of the records and of the ledger. Its accounting must be able to pay:
            `Planned` with this very `SelectionEvent` (`selection_event` makes it), `RDPFilter`, or,
            where all events of a run are pure, PureFilter and GDPFilter.
        train: `train(parameters) -> output`. Without `score` it returns `(output, number)`. A run
            fails if it raises an exception, its number is not finite, it writes to a ledger, it
            trains in a `Session` whose configuration `base` does not name, or it draws by
            `Curator.hidden_draws` an answer that rests on data assumptions. The best run's output
            is released as a copy if all that it holds may leave (`dpbo.dpsgd.outputs`); else
            `output` is None, with a warning; estimators whose state may not leave are not fitted in
            it, with another warning. It must hold nothing but what `base` pays for: noised
            numbers, and settings that are public. A module that was trained in a `Session` holds
            records: return `session.released()`. Each run has fresh seeds of the global generators;
            code that names another generator is refused. It must read nothing that an earlier run
            left, and return no clock time, memory address or number of a process.
        space: each run's parameters are drawn uniformly from it.
        run_count: distribution of the number of runs.
        base: what `train` costs: the `DPSGDConfig` of each `Session` that it makes, and all other
            events, in the ledger's adjacency; without `score` also those of the returned number. A
            list of configurations stands for a `Session` that takes any one of them, as a run's
            public parameters say. Where lists overlap, each `Session` in turn uses up the shortest
            that has its configuration, and one for which none is left fails the run.
            Empty if `train` reads none of this ledger's records. A dict such as
            {"training": [...]} if `train` reads only records of another role: those pay for
            training, the curator's own for the score.
        score: how the curator scores an output.
        adaptive: lets later runs look where earlier ones did well, at a price; omitted, each draws
            uniformly.
        name: name of the selection in the ledger.

    Raises:
        InputError: an argument outside its range, or `train` or what it uses names a generator.
        BudgetExceeded: the budget is not left; nothing was charged.
        LedgerMismatch: the name belongs to a selection with other terms.
        ReleaseLost: the selection was charged, but its process ended before the value was stored,
            or runs ended with an error outside `train`, which is not shown. It stays charged.
        KeyboardInterrupt: the runs were interrupted. They stay charged.
    """
    if curator.ranks > 1:
        raise UsageError(
            "hidden runs score all records and draw where they run: give a curator of one process."
        )
    event = selection_event(
        curator,
        run_count=run_count,
        base=base,
        score=score,
        spread=_PRIOR if adaptive is None else adaptive.spread,
    )
    terms = _terms(curator, run_count, space, base, score)
    require_no_generator("train", train)
    # Of functions of this package's own, such as `tune`'s, others have fixed what decides.
    functions = {"train": train, "score": None if score is None else score.score}
    given = {each: function for each, function in functions.items() if is_own(function)}
    reservation = curator.reserve(name, event, slots=1, given=given, terms=terms)
    if reservation.remaining:
        for assumed in ("runs-hidden", "runs-attested"):
            curator.ledger.note("assume", assumed)
        slot = {"query": "PrivateSelection", "public": {}, "details": {}}
        entry = reservation.charge({"units": curator.units, "slots": [slot]}, used=0)
        work = _hidden_run(curator, train, score, name, base)
        best = best_of(
            work,
            space,
            run_count,
            curator.entropy,
            proposals=adaptive,
        )
        chosen = Selected(None, None, None)
        if best is not None and best.failed:
            chosen = Selected(space.decode(best.x), best.x, None)
        elif best is not None:
            output, unfitted = best.output
            chosen = Selected(space.decode(best.x), best.x, best.score, output)
            if unfitted is None:
                warn(_STAYS, UserWarning)
            elif unfitted:
                warn(_UNFITTED.format(", ".join(sorted(set(unfitted)))), UserWarning)
        curator.selections[name] = entry, chosen
    return _delivered(curator, space, name)


@checked
def selection_event(
    curator: Curator,
    *,
    run_count: RunCountDistribution,
    base: Costs = (),
    score: NoisedScore | None = None,
    spread: tuple[float, float] = _PRIOR,
) -> SelectionEvent | RolesEvent:
    """The event of a private selection with these arguments: the events of one run, its score's
    noise included, and the number of runs.
    """

    def selection(costs: Sequence[Cost]) -> SelectionEvent:
        if not costs:
            raise InputError(
                "base", (), "the events of one run", "Runs that cost nothing need no selection."
            )
        events = tuple(
            cost if isinstance(cost, Event) else run_event(_choices(cost), curator.adjacency)
            for cost in costs
        )
        return SelectionEvent(base=events, run_count=run_count, spread=spread)

    scored: list[Event] = []
    if score is not None:
        query, _ = _noise_of(curator, score)
        scored = [query.release_event(score.mechanism.event(), curator.adjacency)]
    if not isinstance(base, Mapping):
        return selection([*base, *scored])
    role = curator.ledger.birth.role
    costs = dict(base)
    if scored:
        costs[role] = [*costs.get(role, []), *scored]
    return RolesEvent(
        costs=tuple((name, (selection(events),)) for name, events in sorted(costs.items()))
    )


def _choices(cost: Cost) -> tuple[DPSGDConfig, ...]:
    """The configurations of which a Session may take one; none of an event."""
    if isinstance(cost, Event):
        return ()
    return (cost,) if isinstance(cost, DPSGDConfig) else tuple(cost)


def _noise_of(curator: Curator, score: NoisedScore) -> tuple[ClippedMean, Any]:
    """The score's query, and the distribution of its noise. Raises InputError for a score that
    cannot be released.
    """
    query = score.query(None)
    query.require_public(curator.adjacency)
    curator.ledger.birth.require_role(query.role)
    if query.metrics != 1:
        raise InputError(
            "score_range", query.metrics, "of one metric", "A selection maximises one number."
        )
    quanta = [grid.quantum for grid in query.lattices(curator.units)]
    return query, score.mechanism.distribution(query.sensitivity(curator.adjacency), quanta)


def _terms(
    curator: Curator,
    run_count: RunCountDistribution,
    space: Space,
    base: Costs,
    score: NoisedScore | None,
) -> dict[str, Any]:
    """The public terms of a selection."""
    others = sorted(set(base) - {curator.ledger.birth.role}) if isinstance(base, Mapping) else []
    if len(others) > 1 or not set(others) <= set(ROLES):
        raise InputError("base", others, f"of one further role, among {ROLES}")
    terms = {"runs": run_count.to_json(), **terms_of(space), "score": "attested"}
    if score is not None:
        query, distribution = _noise_of(curator, score)
        # Few digits: another machine computes the same.
        noise = float(f"{distribution.std[0] * query.affine(curator.units)[1]:.3g}")
        terms |= {"score": "noised by the curator", **query.public_inputs(), "noise_std": noise}
    if others:
        terms["role"] = others[0]
    return terms


def terms_of(space: Space) -> dict[str, Any]:
    """The space as public terms: points in the ledger mean other parameters in another one."""
    return {"parameters": list(space.names), "space": space.to_json()}


def require_no_generator(name: str, function: Callable[..., Any]) -> None:
    """Raise InputError where the code of a function that hidden runs call names a generator, or
    another function or object that it uses does; not one in a list, a dict or a set.
    """
    code = getattr(function, "__func__", function)
    if isinstance(code, types.FunctionType):
        named = inspect.getclosurevars(code)
        for each, value in [*named.nonlocals.items(), *named.globals.items()]:
            if isinstance(value, _GENERATORS):
                raise InputError(name, each, "of code that names no generator", _SHARED)
    if refers_to(function, _GENERATORS):
        raise InputError(name, function, "of code that uses no generator made elsewhere", _SHARED)


def _hidden_run(
    curator: Curator, train: Callable[..., Any], score: NoisedScore | None, name: str, base: Costs
) -> Callable[[dict[str, Any]], tuple[Any, float]]:
    """What one run does. It gives `_leaving` of its output, and its score."""
    groups = base.values() if isinstance(base, Mapping) else [base]
    costs = itertools.chain.from_iterable(groups)
    # first those that leave the least choice
    configurations = sorted(filter(None, map(_choices, costs)), key=len)
    draw = curator.hidden_draws(name)

    def run(parameters: dict[str, Any]) -> tuple[Any, float]:
        begun = in_hidden_run.set(list(configurations))
        try:
            output = train(parameters)
            number = -math.inf
            if score is None:
                output, number = output
            # Before it is scored, because an output may keep the records that it sees.
            leaving = _leaving(output)
            if score is not None:
                value = draw(score.query(output), score.mechanism)
                if value is not None:
                    number = float(value[0])
            return leaving, number
        finally:
            in_hidden_run.reset(begun)

    return run


def _leaving(output: Any) -> tuple[Any, list[str] | None]:
    """A copy, and which estimators are not fitted in it; None and None where it may not leave."""
    unfitted = list[str]()
    try:
        return copied_output(output, unfitted), unfitted
    except KeyboardInterrupt:
        raise
    # Of the output's own code, too.
    except BaseException:
        return None, None


def _delivered(curator: Curator, space: Space, name: str) -> Selected:
    """What this process drew, after storing it in the ledger; otherwise what the ledger holds."""
    if name in curator.selections:
        entry, chosen = curator.selections[name]
        place = None if chosen.x is None else chosen.x.tolist()
        value = {
            "value": [] if chosen.score is None else [chosen.score],
            "variance": [],
            "details": {"x": place},
        }
        curator.ledger.store(entry, name, [value])
        return chosen
    values = curator.ledger.values(name)
    if not values:
        raise ReleaseLost(
            f"the selection {name!r} was charged but never delivered, and it is never drawn twice."
            " What it cost stays charged. Where budget is left, private_selection draws again under"
            " another name; tune has spent the whole budget."
        )
    place = values[0]["details"]["x"]
    if place is None:
        return Selected(None, None, None)
    x = space.bounds.new_tensor(place)
    return Selected(space.decode(x), x, next(iter(values[0]["value"]), None))
