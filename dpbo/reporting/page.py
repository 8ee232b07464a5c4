"""The report: what was promised about a data set's people, what it cost and what came of it, as one
HTML page that needs nothing else.

    # or: python -m dpbo report tuning.db
    pathlib.Path("report.html").write_text(dpbo.report(curator))

It is for a privacy officer and for a paper's appendix. Everything in it is public: it follows from
the ledger, which keeps points, released values and the law of their noise, and from models of
these. Points are shown by their parameters where the ledger or the caller (`space=`) names these,
else by their coordinates. The page holds no script and asks for no other file.
"""

import contextlib
import importlib.resources
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import jinja2
import torch

from dpbo._version import __version__
from dpbo.accounting import Planned, PureFilter
from dpbo.accounting.calibration import budget_in_words
from dpbo.curator.curator import Curator
from dpbo.curator.statements import BudgetUse, compose_statement, largest_share
from dpbo.errors import InputError, Unshown, UsageError
from dpbo.ledger.entries import Record, Reserved
from dpbo.ledger.ledger import Ledger
from dpbo.objective import PrivateObjective
from dpbo.places import place_named
from dpbo.reporting.charts import HEIGHT, WIDTH, ConvergenceChart, budget_bars, percent, with_noise
from dpbo.reporting.released_values import PUBLIC_SCORES, ReleasedValues, public_column
from dpbo.reporting.words import (
    accounting_in_words,
    mechanism_in_words,
    question_in_words,
    rarity,
    terms_in_words,
)
from dpbo.search import DPSearch
from dpbo.space import Space
from dpbo.statement import Guarantee, Statement, format_down, format_up
from dpbo.validation import checked, printable

_ALLOWED = (
    "a Curator, a PrivateObjective, a search that has one, a fitted DPSearch, or the file name or"
    " URL of a ledger"
)
# of the table of releases
_MOST_ROWS = 1000
# numbers of one release that are shown one by one
_FEW = 4
# the query of a charge of `private_selection`
_SELECTION = "PrivateSelection"
# letters of a text in a table, and of what was declared public
_LONGEST = 160
_LONGEST_TERM = 4000

Spaces = Space | Mapping[str, Space]
# a released value as the ledger has it
Value = Mapping[str, Any]


@checked
def report(
    source: Any, *, space: Spaces | None = None, title: str = "", delta: float | None = None
) -> str:
    """A report on everything that a ledger promises and has released, as one HTML page in plain
    ASCII.

    Args:
        source: a `Curator`, a `PrivateObjective` or a search that has one, a fitted `DPSearch`, or
            the name of a data set, or the file name or URL of a ledger. The report is about the
            whole ledger. A `DPSearch` without a ledger's file has its statement and results alone.
        space: names the parameters of the points, where the ledger does not; a search and a
            `DPSearch` have their own, and the ledgers of `DPSearch`, `tune` and `private_selection`
            hold theirs. Where the ledger's searches have several spaces, a mapping from the name of
            a search to its space.
        title: of the page; omitted, the name of the data set.
        delta: where to read epsilon, for a budget given as mu.

    Returns:
        The page. Write it to a file, or show it in a notebook by `IPython.display.HTML`.

    Raises:
        InputError: another source.
        LedgerUnavailable: the ledger cannot be read.
        LedgerCorrupt: it was damaged.
    """
    page = (
        importlib.resources.files("dpbo.reporting")
        .joinpath("data/report.html")
        .read_text(encoding="ascii")
    )
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    facts = _facts_of(source, space, delta)
    text = environment.from_string(page).render(
        **facts,
        title=title or facts["statement"].dataset or "Records without a name",
        version=__version__,
        width=WIDTH,
        height=HEIGHT,
    )
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _printable(value: Any) -> Any:
    """What stands in the page: the lines of a text, each of printable characters."""
    if isinstance(value, str):
        return type(value)("\n".join(map(printable, value.split("\n"))))
    return value


def _facts_of(source: Any, space: Spaces | None, delta: float | None) -> dict[str, Any]:
    """What the page shows of a source."""
    if isinstance(source, DPSearch):
        return _facts_of_search(source, delta)
    if isinstance(source, (str, os.PathLike)):
        return _facts_of_ledger(Ledger.open(place_named(os.fspath(source))), space, delta)
    if isinstance(source, Ledger):
        return _facts_of_ledger(source, space, delta)
    owner = getattr(source, "objective", source)
    curator = getattr(owner, "curator", owner)
    if not isinstance(curator, Curator):
        raise InputError("source", Unshown(source), _ALLOWED)
    own = getattr(source, "space", None)
    if space is None and isinstance(owner, PrivateObjective) and isinstance(own, Space):
        space = {owner.name: own}
    return _facts_of_ledger(curator.ledger, space, delta, units=curator.units)


def _facts_of_ledger(
    ledger: Ledger, space: Spaces | None, delta: float | None, units: int | None = None
) -> dict[str, Any]:
    held = ledger.facts()
    records = ledger.records()
    statement = compose_statement(ledger, delta=delta, units=units, verified=held)
    use = BudgetUse.of(ledger, held, statement.guarantee.delta if delta is None else delta)
    charges = [record for record in records if record.kind == "charge"]
    answers = _answers(records)
    spaces = {
        name: _space_of(held.reservations.get(name), values, space)
        for name, values in answers.items()
    }
    charted = []
    single = []
    noises = dict[str, str]()
    for search in _searches(answers, spaces):
        noises[search.name] = search.noise
        if search.chart is None:
            single.append(search)
        else:
            charted.append(search)
    values = _values(records)
    releases = [*_releases(charges, values, spaces)]
    counts = Counter[str | None]()
    for charge in charges:
        counts[charge.reservation] += charge.event.count
    rows = []
    for name, cost in held.paid.items():
        made = "without a reservation"
        mechanism = ""
        if (reserved := held.reservations.get(name)) is not None:
            made = f"{counts[name]:,} of {_most(reserved)}"
            mechanism = mechanism_in_words(reserved.event)
        rows.append(
            {
                "name": name,
                "releases": made,
                "mechanism": mechanism,
                "share": percent(float(largest_share(cost, held.cap))),
                "noise": noises.get(name, ""),
            }
        )
    return {
        **_promise(statement),
        "unused_delta": ledger.budget.delta if statement.guarantee.delta == 0.0 else None,
        "budget": _budget(use, ledger),
        "reservations": rows,
        "searches": charted,
        "single": single,
        "selected": [*_selected(charges, values, held.reservations, spaces)],
        "recommended": None,
        "configurations": None,
        "releases": releases[:_MOST_ROWS],
        "more": max(len(releases) - _MOST_ROWS, 0),
        "count": counts.total(),
    }


def _facts_of_search(search: DPSearch, delta: float | None) -> dict[str, Any]:
    """A fitted search: its ledger's facts where it was kept in a file, and what it recommends."""
    if not hasattr(search, "statement_"):
        raise UsageError("the DPSearch is not fitted: call fit first.")
    statement: Statement = search.statement_
    space = Space(**search.param_distributions)
    searched = f"{search.name}: search"
    tested = f"{search.name}: test"
    place = None if search.privacy is None else search.privacy.ledger
    if place is not None:
        facts = _facts_of_ledger(Ledger.open(place), {searched: space, tested: space}, delta)
        # what the recommendation says
        facts["single"] = [one for one in facts["single"] if one.name != tested]
    else:
        budget = {
            "bars": budget_bars(None, 1 - statement.remaining),
            "spent": _cost(statement.spent),
            "reserved": _cost(statement.reserved),
            "left": None,
            "words": "",
            "shares": "",
        }
        facts = {
            **_promise(statement),
            "unused_delta": None,
            "budget": budget,
            "reservations": [],
            "searches": [],
            "single": [],
            "selected": [],
            "configurations": None,
            "releases": None,
            "more": 0,
            "count": None,
        }
        if "posterior_mean" in search.results_:
            facts["searches"] = [Search.of(ReleasedValues.of(search))]
    if not facts["searches"]:
        facts["configurations"] = _configurations(search)
    score = None
    if not math.isnan(search.best_score_):
        score = with_noise(search.best_score_, search.recommendation_.noise_std)
    facts["recommended"] = {
        "parameters": _texts(search.best_params_),
        "score": score,
        "told": str(search.recommendation_),
        "searches": (search.name, searched),
    }
    return facts


def _promise(statement: Statement) -> dict[str, Any]:
    """What the page says of the guarantee."""
    guarantee = Guarantee.none() if statement.void else statement.guarantee
    technical = list[str]()
    meaning = list[str]()
    for sentence in statement.meaning:
        (technical if "-GDP means: " in sentence else meaning).append(sentence)
    declared = {}
    for name, terms in statement.public_inputs.items():
        words = terms_in_words(terms)
        declared[name] = {term: _cut(text, _LONGEST_TERM) for term, text in words.items()}
    return {
        "statement": statement,
        "opening": statement.opening(),
        "guarantee": dict(statement.sections())["Guarantee"],
        "condition": statement.condition(),
        "epsilon": _finite(guarantee.epsilon),
        "mu": _finite(guarantee.mu),
        "factor": _factor(guarantee),
        "rarity": rarity(guarantee.delta) if guarantee.delta else None,
        "meaning": meaning,
        "technical": technical,
        "several_lines": len(set(statement.lines)) > 1,
        "declared": declared,
    }


def _finite(bound: float | None) -> str | None:
    """A bound in a guarantee, rounded up; None where there is none."""
    if bound is None or bound == math.inf:
        return None
    return format_up(bound)


def _factor(guarantee: Guarantee) -> str | None:
    """By how much a probability may change, rounded up; None where that is not bounded or too large
    to mean anything.
    """
    if guarantee.epsilon is None or guarantee.epsilon > 100:
        return None
    return format_up(math.exp(guarantee.epsilon), 3)


def _cost(cost: Guarantee) -> str:
    """What releases cost together, in epsilon where there is one."""
    epsilon = _finite(cost.epsilon)
    if epsilon is None:
        return str(cost)
    return f"epsilon {epsilon} at delta {cost.delta:g}"


def _budget(use: BudgetUse, ledger: Ledger) -> dict[str, Any]:
    if not use.epsilon_left:
        left = None
    else:
        left = f"epsilon {format_down(use.epsilon_left)} at delta {ledger.budget.delta:g}"
    bars = budget_bars(float(use.spent_share), float(use.reserved_share))
    accounting = ledger.accounting
    if isinstance(accounting, Planned):
        shares = (
            "Shares are of the releases that were planned; where several kinds were planned, of the"
            " kind that is used most."
        )
    elif isinstance(accounting, PureFilter):
        shares = "Shares are of epsilon."
    else:
        shares = (
            f"Shares are of {accounting.unit.removeprefix('of ')}, in which the costs of releases"
            " add up. Epsilons do not add up"
        )
        shares += f": the {bars[2].text} that is left is worth {left}." if left else "."
    return {
        "bars": bars,
        "spent": _cost(use.spent),
        "reserved": _cost(use.reserved),
        "left": left,
        "words": f"{budget_in_words(ledger.budget)}. {accounting_in_words(accounting)}",
        "shares": shares,
    }


@dataclass(frozen=True, eq=False)
class Search:
    """The values of one reservation whose releases have points, and what is recommended of them.

    Attributes:
        chart: None for a single value.
        parameters: the recommended point's, by name.
        mean: its posterior mean.
        best: its evaluation, from 1.
        noise: standard deviation of one release.
        named: whether the names are those of a space.
    """

    name: str
    chart: ConvergenceChart | None
    parameters: dict[str, str]
    mean: str
    best: int
    noise: str
    named: bool

    @classmethod
    def of(cls, released: ReleasedValues, points: torch.Tensor | None = None) -> "Search":
        """From released values; `points` as the ledger has them, where their space is not known."""
        best = released.best
        stds = released.Yvar[:, 0].sqrt()
        if points is None:
            parameters = _texts(released.parameters(best))
        else:
            parameters = _parameters(points[best].tolist(), None)
        if len(released.X) == 1:
            mean = with_noise(float(released.mean[best]), float(stds[best]))
            chart = None
        else:
            mean = f"{float(released.mean[best]):.4g}"
            chart = ConvergenceChart.of(released)
        noise = f"{float(stds.max()):.2g}"
        return cls(released.name, chart, parameters, mean, best + 1, noise, points is None)


def _answers(records: Sequence[Record]) -> dict[str, list[Value]]:
    """The released values of each reservation."""
    found = dict[Any, list[Value]]()
    by_charge = dict[int | None, list[Value]]()
    for record in records:
        if record.kind == "charge":
            by_charge[record.seq] = found.setdefault(record.reservation, [])
        elif record.kind == "value":
            by_charge[record.answers] += record.body["values"]
    # of charges without a reservation
    found.pop(None, None)
    return found


def _values(records: Sequence[Record]) -> dict[int, list[Value]]:
    """The released values by the number of the charge that paid for them."""
    return {
        record.answers: record.body["values"] for record in records if record.answers is not None
    }


def _point(value: Value) -> Any:
    """The point at which a value was released, if it has one."""
    if isinstance(value.get("details"), dict):
        return value["details"].get("x")
    return None


def _space_of(
    reserved: Reserved | None, values: Sequence[Value], given: Spaces | None
) -> Space | None:
    """The space of a reservation's points: the caller's, else the one that its terms describe. None
    unless all points lie in it.
    """
    points = [point for point in map(_point, values) if point is not None]
    if not _are_points(points):
        return None
    terms = {} if reserved is None else reserved.terms
    spaces = [given.get(reserved.name if reserved else "") if isinstance(given, Mapping) else given]
    # There is no space, or another program described it.
    with contextlib.suppress(InputError):
        spaces.append(Space.from_json(terms.get("space", "")))
    for space in spaces:
        if space is not None and _holds(space, points):
            return space
    return None


def _holds(space: Space, points: Sequence[Sequence[float]]) -> bool:
    """Whether all points, of one dimension, lie in a space."""
    X = _float64(points)
    return X.shape[1] == len(space.names) and bool(
        ((X >= space.bounds[0]) & (X <= space.bounds[1])).all()
    )


def _parameters(point: Sequence[float], space: Space | None) -> dict[str, str]:
    """A point's parameters by name; its coordinates where no space is known."""
    if space is None:
        return {f"x{i}": f"{u:.4g}" for i, u in enumerate(point)}
    return _texts(space.decode(_float64(point)))


def _searches(
    answers: Mapping[str, Sequence[Value]], spaces: Mapping[str, Space | None]
) -> Iterator[Search]:
    """Each reservation whose values are single numbers at points x of one dimension."""
    for name, own in answers.items():
        points = list(map(_point, own))
        if not _are_points(points) or not all(map(_is_single, own)):
            continue
        X = _float64(points)
        Y = _float64([value["value"] for value in own])
        Yvar = _float64([value["variance"] for value in own])
        space = spaces[name]
        released = ReleasedValues.at(X, Y, Yvar, name, space)
        yield Search.of(released, X if space is None else None)


def _is_single(value: Value) -> bool:
    """Whether this is one number and its variance."""
    return len(value.get("variance", [])) == len(value["value"]) == 1 and isinstance(
        value["value"][0], (int, float)
    )


def _are_points(found: Sequence[Any]) -> TypeGuard[Sequence[list[float]]]:
    """Whether these are points of numbers, one or more, of one dimension."""
    if not found:
        return False
    for x in found:
        if not isinstance(x, list) or not 0 < len(x) == len(found[0]) or not _are_numbers(x):
            return False
    return True


def _are_numbers(found: list[Any]) -> bool:
    return all(isinstance(one, (int, float)) for one in found)


def _float64(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _selected(
    charges: Sequence[Record],
    values: Mapping[int, Sequence[Value]],
    reservations: Mapping[str, Reserved],
    spaces: Mapping[str, Space | None],
) -> Iterator[dict[str, Any]]:
    """The winner of each private selection."""
    for charge in charges:
        slots = charge.body.get("slots", [])
        if charge.seq in values and len(slots) == 1 and slots[0].get("query") == _SELECTION:
            name = charge.reservation or charge.name
            (value,) = values[charge.seq]
            noise = reservations[name].terms.get("noise_std")
            point = _point(value)
            yield {
                "name": name,
                "parameters": None if point is None else _parameters(point, spaces[name]),
                "named": spaces[name] is not None,
                "score": _score(value, noise),
                "noised": noise is not None,
            }


def _score(value: Value, noise: float | None) -> str | None:
    """A winner's score with the noise of one run's score, where it has one."""
    if not value["value"]:
        return None
    if noise is None:
        return f"{value['value'][0]:.4g}"
    return with_noise(value["value"][0], noise)


def _releases(
    charges: Sequence[Record],
    values: Mapping[int, Sequence[Value]],
    spaces: Mapping[str, Space | None],
) -> Iterator[dict[str, str]]:
    """A row for each release; successive charges that keep no slots, such as the steps of DP-SGD,
    are one row.
    """
    for _, group in itertools.groupby(
        charges, lambda r: (r.name, r.reservation, "slots" in r.body or r.seq)
    ):
        charged = list(group)
        if "slots" not in charged[0].body:
            yield _charges_alone(charged)
            continue
        for record in charged:
            drawn = values.get(record.seq, [])
            for place, slot in enumerate(record.body["slots"]):
                value = drawn[place] if place < len(drawn) else None
                yield _release(record, slot, value, spaces.get(record.reservation or ""))


def _charges_alone(charged: Sequence[Record]) -> dict[str, str]:
    """The row of charges that keep no slots."""
    first = charged[0]
    entry = f"{first.seq}"
    if len(charged) > 1:
        entry += f" to {charged[-1].seq}"
    what = mechanism_in_words(first.event)
    count = sum(record.event.count for record in charged)
    if count > 1:
        what = f"{count:,} times: {what}"
    name = str(first.reservation or first.name)
    return {
        "entry": entry,
        "name": name,
        "what": what,
        "at": "",
        "value": "the ledger holds the cost alone",
    }


def _release(
    record: Record, slot: Mapping[str, Any], value: Value | None, space: Space | None
) -> dict[str, str]:
    """The row of one slot of a charge, and of the value that was delivered for it, if any."""
    details = dict(slot.get("details", {}))
    x = details.pop("x", None)
    answer = "lost: charged, never delivered"
    if value is not None:
        x = x or _point(value)
        answer = _value(value, slot)
    at = []
    if space is not None and _are_points([x]) and _holds(space, [x]):
        at = [f"{name} = {text}" for name, text in _parameters(x, space).items()]
    elif x is not None:
        at = [_short(x)]
    at += [f"{name}: {text}" for name, text in _texts(details).items()]
    return {
        "entry": str(record.seq),
        "name": record.reservation or record.name,
        "what": question_in_words(str(slot.get("query", ""))),
        "at": ", ".join(at),
        "value": answer,
    }


def _value(drawn: Value, slot: Mapping[str, Any]) -> str:
    """One released answer in a cell of a table."""
    value = drawn["value"]
    variance = drawn.get("variance", [])
    if slot.get("query") == _SELECTION:
        return _best_run(drawn)
    if not variance:
        if len(value) == 1:
            chosen = f"candidate {value[0] + 1:,.0f}"
        else:
            chosen = f"candidate {_short(value)}"
        candidates = slot.get("public", {}).get("candidates")
        if isinstance(candidates, int):
            chosen += f" of {candidates:,}"
        return f"{chosen} was chosen"
    rows = _float64(value)
    if rows.ndim == 1 and len(rows) <= _FEW:
        return ", ".join(with_noise(v, math.sqrt(s)) for v, s in zip(value, variance, strict=True))
    stds = _float64(variance).sqrt()
    noise = f"{float(stds.min()):.2g}"
    highest = f"{float(stds.max()):.2g}"
    if highest != noise:
        noise += f" to {highest}"
    return f"{' x '.join(map(str, rows.shape))} numbers, noise {noise}"


def _best_run(drawn: Value) -> str:
    """The answer of a private selection."""
    if _point(drawn) is None:
        return "no run was released"
    score = _score(drawn, None)
    if score is None:
        return "the best run"
    return f"the best run, score {score}"


def _most(reserved: Reserved) -> str:
    """How many releases a reservation allows."""
    if not reserved.parallel:
        return f"{reserved.slots:,}"
    return f"{reserved.slots:,} of each row" + (
        f", {reserved.limit:,} in all" if reserved.limit is not None else ""
    )


def _configurations(search: DPSearch) -> dict[str, Any] | None:
    """The ten best configurations of a search that released no scores, by the score that it chose
    them by.
    """
    column = public_column(search.results_)
    if column is None:
        return None
    rows = sorted(
        zip(search.results_[column], search.results_["params"], strict=True),
        key=lambda row: -row[0],
    )
    shown = [(f"{score:.4g}", _texts(parameters)) for score, parameters in rows[:10]]
    return {"label": PUBLIC_SCORES[column], "rows": shown, "count": len(rows)}


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Short texts of public facts; what is None is left out."""
    return {str(name): _short(value) for name, value in facts.items() if value is not None}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and _are_numbers(value):
        return _cut(", ".join(f"{one:.4g}" for one in value), _LONGEST)
    return _cut(str(value), _LONGEST)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]} ... ({len(text) - longest} more letters in the ledger)"
