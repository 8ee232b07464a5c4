"""The report: what was promised about a data set's people, what it cost and what came of it, as one HTML page that needs nothing else.

    pathlib.Path("report.html").write_text(dpbo.report(curator))            # or: python -m dpbo report tuning.db

It is for a privacy officer and for a paper's appendix. Everything in it is public: it follows from the ledger, which keeps points, released
values and the law of their noise, and from models of these. Where the names of parameters are not given (`space=`), points are shown by
their coordinates, because a ledger keeps no search space. The page holds no script and asks for no other file.
"""

import dataclasses
import importlib.metadata
import importlib.resources
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import torch

from dpbo.curator.chain import Record, Reservation, replay
from dpbo.curator.curator import Curator
from dpbo.curator.ledger import Ledger
from dpbo.curator.reporting import BudgetUse, compose_statement, largest_share
from dpbo.errors import InputError, Unshown
from dpbo.integrations.sklearn import DPSearch
from dpbo.objective import PrivateObjective
from dpbo.released_values import PUBLIC_SCORES, ReleasedValues
from dpbo.report_charts import HEIGHT, WIDTH, ConvergenceChart, budget_bars, percent, with_noise
from dpbo.space import Space
from dpbo.statement import Guarantee, Statement, format_down, format_up
from dpbo.validation import checked

_ALLOWED = "a Curator, a PrivateObjective, a search that has one, a fitted DPSearch, or the file name or URL of a ledger"
_MOST_ROWS = 1000  # of the table of releases
_FEW = 4  # numbers of one release that are shown one by one
_LONGEST, _LONGEST_TERM = 160, 4000  # letters of a text in a table, and of what was declared public

Spaces = Space | Mapping[str, Space]


@checked
def report(source: Any, *, space: Spaces | None = None, title: str = "", delta: float | None = None) -> str:
    """A report on everything that a ledger promises and has released, as one HTML page in plain ASCII.

    Args:
        source: a `Curator`, a `PrivateObjective` or a search that has one, a fitted `DPSearch`, or the file name or URL of a ledger. The
            report is about the whole ledger. A `DPSearch` without `ledger=` has its statement and results alone.
        space: names the parameters of the points; a search and a `DPSearch` have their own. Where the ledger's searches have several
            spaces, a mapping from the name of a search to its space.
        title: of the page; omitted, the name of the data set.
        delta: where to read epsilon, for a budget given as mu.

    Returns:
        The page. Write it to a file, or show it in a notebook by `IPython.display.HTML`.

    Raises:
        InputError: another source. LedgerUnavailable, LedgerCorrupt: the ledger cannot be read, or was damaged.
    """
    page = importlib.resources.files("dpbo").joinpath("data/report.html").read_text(encoding="ascii")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    facts = _facts_of(source, space, delta)
    facts |= {"title": title or facts["statement"].dataset or "Records without a name", "version": importlib.metadata.version("dpbo")}
    text = environment.from_string(page).render(**facts, width=WIDTH, height=HEIGHT)
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _facts_of(source: Any, space: Spaces | None, delta: float | None) -> dict[str, Any]:
    """What the page shows of a source."""
    if isinstance(source, DPSearch):
        return _facts_of_search(source, delta)
    if isinstance(source, (str, os.PathLike)):
        return _facts_of_ledger(Ledger.open(os.fspath(source)), space, delta)
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


def _facts_of_ledger(ledger: Ledger, space: Spaces | None, delta: float | None, units: int | None = None) -> dict[str, Any]:
    statement, records = compose_statement(ledger, delta=delta, units=units), ledger.records()
    use = BudgetUse.of(ledger, records, statement.guarantee.delta if delta is None else delta)
    chain = replay(records)
    searches = [*_searches(records, chain.reservations, space)]
    names = {search.name: search.at for search in searches}
    releases, counts = [*_releases(records, names)], Counter[str | None]()
    for record in records:
        if record.kind == "charge":
            counts[record.body["plan"]] += record.event.slots
    rows = []
    for name, cost in chain.paid.items():
        reserved = chain.reservations.get(name)
        rows.append({
            "name": name,
            "releases": "without a reservation" if reserved is None else f"{counts[name]:,} of {_most(reserved)}",
            "mechanism": "" if reserved is None else reserved.event.mechanism,
            "share": percent(float(largest_share(cost, chain.cap))),
            "noise": next((found.noise for found in searches if found.name == name), ""),
        })  # fmt: skip
    return {
        **_promise(statement),
        "budget": _budget(use, ledger),
        "reservations": rows,
        "searches": [search for search in searches if search.chart is not None],
        "single": [search for search in searches if search.chart is None],
        "recommended": None,
        "configurations": None,
        "releases": releases[:_MOST_ROWS],
        "more": max(len(releases) - _MOST_ROWS, 0),
        "count": counts.total(),
    }


def _facts_of_search(search: DPSearch, delta: float | None) -> dict[str, Any]:
    """A fitted search: its ledger's facts where it was kept in a file, and what it recommends."""
    if not hasattr(search, "statement_"):
        raise InputError("source", "a DPSearch without a fit", "a fitted one", "Call fit first.")
    statement: Statement = search.statement_
    space = Space(**search.param_distributions)
    if search.ledger is not None:
        ledger = Ledger.open(search.ledger)
        facts = _facts_of_ledger(ledger, {f"{search.name}: {part}": space for part in ("search", "final")}, delta)
        split = dataclasses.replace(facts["statement"], not_protected=statement.not_protected)
        facts |= _promise(split)
        facts["single"] = [one for one in facts["single"] if one.name != f"{search.name}: final"]  # the recommended point's own
    else:
        bars = budget_bars(None, 1 - statement.remaining)
        budget = {"bars": bars, "spent": str(statement.spent), "reserved": str(statement.reserved), "left": None, "unit": "", "words": ""}
        facts = {**_promise(statement), "budget": budget, "reservations": [], "searches": [], "single": [], "configurations": None,
                 "releases": None, "more": 0, "count": None}  # fmt: skip
        if "posterior_mean" in search.results_:
            facts["searches"] = [Search.of(ReleasedValues.of(search))]
    if not facts["searches"]:
        facts["configurations"] = _configurations(search)
    score = None
    if search.best_score_ is not None and search.best_score_std_ is not None:
        score = with_noise(search.best_score_, search.best_score_std_)
    names = (search.name, f"{search.name}: search")
    return facts | {"recommended": {"parameters": _texts(search.best_params_), "score": score, "searches": names}}


def _promise(statement: Statement) -> dict[str, Any]:
    """What the page says of the guarantee."""
    guarantee = Guarantee.none() if statement.void else statement.guarantee
    return {
        "statement": statement,
        "opening": statement.opening(),
        "guarantee": dict(statement.sections())["Guarantee"],
        "epsilon": None if guarantee.epsilon in (None, math.inf) else format_up(guarantee.epsilon),
        "mu": None if guarantee.mu in (None, math.inf) else format_up(guarantee.mu),
        "factor": _factor(guarantee),
        "several_lines": len(set(statement.lines)) > 1,
        "declared": {
            name: {term: _cut(str(value), _LONGEST_TERM) for term, value in terms.items() if value is not None}
            for name, terms in statement.public_inputs.items()
        },
    }


def _factor(guarantee: Guarantee) -> str | None:
    """By how much a probability may change, rounded up; None where that is not bounded or too large to mean anything."""
    if guarantee.epsilon is None or guarantee.epsilon > 100:
        return None
    return format_up(math.exp(guarantee.epsilon), 3)


def _budget(use: BudgetUse, ledger: Ledger) -> dict[str, Any]:
    left = None if not use.epsilon_left else f"epsilon {format_down(use.epsilon_left)} at delta {ledger.budget.delta:g}"
    return {
        "bars": budget_bars(float(use.spent_share), float(use.reserved_share)),
        "spent": str(use.spent),
        "reserved": str(use.reserved),
        "left": left,
        "unit": ledger.accounting.unit,
        "words": use.budget,
    }


@dataclass(frozen=True, eq=False)
class Search:
    """The values of one reservation whose releases have points, and what is recommended of them.

    Attributes:
        chart: None for a single value.
        parameters: the recommended point's, by name. mean: its posterior mean. best: its evaluation, from 1.
        noise: standard deviation of one release.
        at: a point in words.
        named: whether the names are those of a given space.
    """

    name: str
    chart: ConvergenceChart | None
    parameters: dict[str, str]
    mean: str
    best: int
    noise: str
    at: Callable[[Sequence[float]], str]
    named: bool

    @classmethod
    def of(cls, released: ReleasedValues, *, named: bool = True, points: torch.Tensor | None = None) -> "Search":
        """From released values; `points` as the ledger has them, where their space is not known."""
        best, stds = released.best, released.Yvar[:, 0].sqrt()
        x = released.X if points is None else points

        def at(point: Sequence[float]) -> str:
            if not named:
                return ", ".join(f"{u:.4g}" for u in point)
            decoded = released.space.decode(torch.tensor(point, dtype=torch.float64))
            return ", ".join(f"{name} = {text}" for name, text in _texts(decoded).items())

        parameters = dict(released.parameters(best)) if named else dict(zip(released.space.names, x[best].tolist(), strict=True))
        single = len(released.X) == 1
        mean = with_noise(float(released.mean[best]), float(stds[best])) if single else f"{float(released.mean[best]):.4g}"
        chart = None if single else ConvergenceChart.of(released)
        return cls(released.name, chart, _texts(parameters), mean, best + 1, f"{float(stds.max()):.2g}", at, named)


def _searches(records: Sequence[Record], reservations: Mapping[str, Reservation], space: Spaces | None) -> Iterator[Search]:
    """Each reservation whose values are single numbers at points x of one dimension."""
    plans = {record.seq: record.body["plan"] for record in records if record.kind == "charge"}
    values = [(plans[record.body["entry"]], value) for record in records if record.kind == "value" for value in record.body["values"]]
    for name in reservations:
        own = [value for plan, value in values if plan == name]
        points = [value["details"].get("x") if isinstance(value.get("details"), dict) else None for value in own]
        if not own or not all(_is_point(x, points[0]) and len(value["variance"]) == 1 for x, value in zip(points, own, strict=True)):
            continue
        X, Y, Yvar = (torch.tensor(column, dtype=torch.float64) for column in
                      (points, [value["value"] for value in own], [value["variance"] for value in own]))  # fmt: skip
        given = space.get(name) if isinstance(space, Mapping) else space
        inside = given is not None and X.shape[1] == len(given.names) and bool(((X >= given.bounds[0]) & (X <= given.bounds[1])).all())
        released = ReleasedValues.at(X, Y, Yvar, name, given if inside else None)
        yield Search.of(released, named=inside, points=X)


def _is_point(x: Any, first: Any) -> bool:
    """Whether this is a point of numbers, as long as the first one."""
    return isinstance(x, list) and isinstance(first, list) and 0 < len(x) == len(first) and all(isinstance(u, (int, float)) for u in x)


def _releases(records: Sequence[Record], names: Mapping[str, Callable[[Sequence[float]], str]]) -> Iterator[dict[str, str]]:
    """A row for each release; successive charges that keep no slots, such as the steps of DP-SGD, are one row."""
    values = {record.body["entry"]: record.body["values"] for record in records if record.kind == "value"}
    charges = [record for record in records if record.kind == "charge"]
    for key, group in itertools.groupby(charges, lambda r: (r.name, r.body["plan"], "slots" in r.body or r.seq)):
        charged = list(group)
        first, last, own = charged[0], charged[-1], charged[0].body.get("slots")
        if own is None:
            count = sum(record.event.slots for record in charged)
            entry = f"{first.seq}" if first is last else f"{first.seq} to {last.seq}"
            yield {"entry": entry, "name": str(key[1] or key[0]), "what": f"{count:,} times {first.event.mechanism}", "at": "",
                   "value": "not in the ledger"}  # fmt: skip
            continue
        for record in charged:
            drawn = values.get(record.seq, [])
            for place, slot in enumerate(record.body["slots"]):
                details, plan = dict(slot.get("details", {})), record.body["plan"] or record.name
                x = details.pop("x", None)
                point = [names[plan](x)] if plan in names and x is not None else [] if x is None else [_short(x)]
                yield {
                    "entry": str(record.seq),
                    "name": plan,
                    "what": str(slot.get("query", "")),
                    "at": ", ".join(point + [f"{name}: {text}" for name, text in _texts(details).items()]),
                    "value": _value(drawn[place]) if place < len(drawn) else "lost: charged, never delivered",
                }


def _value(drawn: Mapping[str, Any]) -> str:
    """One released answer in a cell of a table."""
    value, variance = drawn["value"], drawn["variance"]
    if not variance:
        return f"number {_short(value[0] if len(value) == 1 else value)} was chosen"
    rows = torch.tensor(value, dtype=torch.float64)
    if rows.ndim == 1 and len(rows) <= _FEW:
        return ", ".join(with_noise(v, math.sqrt(s)) for v, s in zip(value, variance, strict=True))
    stds = torch.tensor(variance, dtype=torch.float64).sqrt()
    low, high = f"{float(stds.min()):.2g}", f"{float(stds.max()):.2g}"
    return f"{' x '.join(map(str, rows.shape))} numbers, noise {low if low == high else f'{low} to {high}'}"


def _most(reserved: Reservation) -> str:
    """How many releases a reservation allows."""
    if not reserved.parallel:
        return f"{reserved.slots:,}"
    return f"{reserved.slots:,} of each row" + (f", {reserved.limit:,} in all" if reserved.limit is not None else "")


def _configurations(search: DPSearch) -> dict[str, Any] | None:
    """The ten best configurations of a search that released no scores, by the score that it chose them by."""
    column = next((name for name in PUBLIC_SCORES if name in search.results_), None)
    if column is None:
        return None
    rows = sorted(zip(search.results_[column], search.results_["params"], strict=True), key=lambda row: -row[0])
    shown = [(f"{score:.4g}", _texts(parameters)) for score, parameters in rows[:10]]
    return {"label": PUBLIC_SCORES[column], "rows": shown, "count": len(rows)}


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Short texts of public facts; what is None is left out."""
    return {str(name): _short(value) for name, value in facts.items() if value is not None}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    numbers = isinstance(value, list) and all(isinstance(one, (int, float)) for one in value)
    return _cut(", ".join(f"{one:.4g}" for one in value) if numbers else str(value), _LONGEST)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]} ... ({len(text) - longest} more letters in the ledger)"
