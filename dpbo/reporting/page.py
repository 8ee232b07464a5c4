"""The report: what was promised about a data set's people, what it cost and what came of it, as one
HTML page that needs nothing else.

    # or: python -m dpbo report tuning.db
    pathlib.Path("report.html").write_text(dpbo.report(curator))

It is for a privacy officer and for a paper's appendix. Everything in it is public: it follows from
the ledger, which keeps points, released values and the law of their noise, and from models of
these. Points are shown by their parameters where the ledger or the caller (`space=`) names these,
else by their coordinates. The page holds no script and asks for no other file. The same ledger
gives the same page.

`data/report.html` has its text, and this module what that text is about.
"""

import contextlib
import io
import itertools
import math
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpbo._version import __version__
from dpbo.accounting.calibration import budget_in_words
from dpbo.curator.curator import Curator
from dpbo.curator.statements import BudgetUse, compose_statement, largest_share
from dpbo.errors import InputError, Unshown, UsageError
from dpbo.extras import needs
from dpbo.ledger.entries import Record, Reserved
from dpbo.ledger.ledger import Ledger
from dpbo.objective import PrivateObjective
from dpbo.places import ledger_name, ledger_of, place_named
from dpbo.reporting import words
from dpbo.reporting.plots import draw_convergence
from dpbo.reporting.released_values import PUBLIC_SCORES, ReleasedValues, public_column
from dpbo.search import DPSearch
from dpbo.space import Space
from dpbo.statement import Guarantee, format_down, format_up
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
# configurations of a search that released no scores
_BEST = 10
# colours of pictures, which the page's style sheet gives again, and others in the dark
_COLOURS = {
    "#2a62a8": "value",
    "#bf4a11": "model",
    "#5a6675": "muted",
    "#dfe4ea": "line",
}
_STYLE = {
    "axes.edgecolor": "#dfe4ea",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": "#5a6675",
    "axes.prop_cycle": "cycler(color=['#2a62a8', '#bf4a11'])",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": "#dfe4ea",
    "legend.labelcolor": "#5a6675",
    "svg.fonttype": "none",
    "svg.hashsalt": "dpbo",
    "xtick.color": "#5a6675",
    "ytick.color": "#5a6675",
    "ytick.major.size": 0,
}

Spaces = Space | Mapping[str, Space]


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
        MissingLibrary: without the extra `plots`.
        LedgerUnavailable: the ledger cannot be read.
        LedgerCorrupt: it was damaged.
    """
    with needs("plots"):
        import jinja2
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpbo.reporting", "data"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters |= {"down": format_down, "percent": words.percent, "up": _up}
    if isinstance(source, DPSearch):
        facts = _facts_of_search(source, delta)
    else:
        facts = _facts_of_ledger(*_ledger_of(source, space), delta)
    statement = facts["statement"]
    page = environment.get_template("report.html").render(
        **facts,
        bound=Guarantee.none() if statement.void else statement.guarantee,
        condition=statement.condition(),
        exp=math.exp,
        share_of=largest_share,
        title=title or statement.dataset or "Records without a name",
        version=__version__,
        words=words,
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _printable(value: Any) -> Any:
    """What stands in the page: the lines of a text, each of printable characters."""
    if isinstance(value, str):
        return type(value)("\n".join(map(printable, value.split("\n"))))
    return value


def _up(bound: float | None, digits: int = 4) -> str:
    """A bound in a guarantee, rounded up; "" where there is none."""
    return "" if bound is None or bound == math.inf else format_up(bound, digits)


def _ledger_of(source: Any, space: Spaces | None) -> tuple[Ledger, Spaces | None, int | None]:
    """The ledger of a source, the space of its points, and the number of units, where known."""
    if isinstance(source, (str, os.PathLike)):
        return Ledger.open(place_named(os.fspath(source))), space, None
    if isinstance(source, Ledger):
        return source, space, None
    owner = getattr(source, "objective", source)
    curator = getattr(owner, "curator", owner)
    if not isinstance(curator, Curator):
        raise InputError("source", Unshown(source), _ALLOWED)
    own = getattr(source, "space", None)
    if space is None and isinstance(owner, PrivateObjective) and isinstance(own, Space):
        space = {owner.name: own}
    return curator.ledger, space, curator.units


def _facts_of_ledger(
    ledger: Ledger, space: Spaces | None, units: int | None, delta: float | None
) -> dict[str, Any]:
    """What the page shows of a ledger."""
    held = ledger.facts()
    records = ledger.records()
    statement = compose_statement(ledger, delta=delta, units=units, verified=held)
    counts = Counter[str | None]()
    for record in records:
        if record.kind == "charge":
            counts[record.reservation] += record.event.count
    releases = [*_releases(records)]
    results = [*_results(releases, held.reservations, space)]
    spaces = {result.name: result.space for result in results}
    return {
        "statement": statement,
        "told": f"{budget_in_words(ledger.budget)}. {words.accounting_in_words(ledger.accounting)}",
        "ledger": ledger,
        "file": _named(ledger),
        "held": held,
        "use": BudgetUse.of(ledger, held, statement.guarantee.delta if delta is None else delta),
        "counts": counts,
        "results": results,
        "recommended": None,
        "releases": [_row(one, spaces.get(one.name)) for one in releases[:_MOST_ROWS]],
        "more": max(len(releases) - _MOST_ROWS, 0),
    }


def _named(ledger: Ledger) -> str:
    """How a command names the ledger: by its data set where it lies in the user's state folder,
    else by its file, without the folder, which is nobody else's concern."""
    name = getattr(ledger.storage.file, "name", "FILE")
    if name == ledger_name(ledger.birth.dataset):
        name = ledger.birth.dataset
    return shlex.quote(name)


def _facts_of_search(search: DPSearch, delta: float | None) -> dict[str, Any]:
    """What the page shows of a fitted search: its ledger, where that was kept in a file, and what
    it recommends.
    """
    if not hasattr(search, "statement_"):
        raise UsageError("the DPSearch is not fitted: call fit first.")
    space = Space(**search.param_distributions)
    facts: dict[str, Any] = {"statement": search.statement_, "ledger": None, "file": "FILE"}
    facts["results"] = []
    place = None if search.privacy is None else search.privacy.ledger
    if place is None and search.privacy is not None and search.privacy.dataset is not None:
        place = ledger_of(search.privacy.dataset)
    if place is not None:
        tested = f"{search.name}: test"
        spaces = {f"{search.name}: search": space, tested: space}
        facts = _facts_of_ledger(Ledger.open(place), spaces, None, delta)
        # what the recommendation says
        facts["results"] = [one for one in facts["results"] if one.name != tested]
    elif "posterior_mean" in search.results_:
        released = ReleasedValues.of(search)
        facts["results"] = [Result.of(released, space, released.X)]
    column = public_column(search.results_)
    configurations = []
    if column is not None:
        scored = zip(search.results_[column], search.results_["params"], strict=True)
        for score, parameters in sorted(scored, key=lambda row: -row[0])[:_BEST]:
            configurations.append((f"{score:.4g}", _listed(_texts(parameters))))
    score = ""
    if not math.isnan(search.best_score_):
        score = words.with_noise(search.best_score_, search.recommendation_.noise_std)
    facts["recommended"] = {
        "parameters": _texts(search.best_params_),
        "told": str(search.recommendation_),
        "score": score,
        "column": PUBLIC_SCORES.get(column or ""),
        "configurations": configurations,
        "count": len(search.results_["params"]),
    }
    return facts


@dataclass(frozen=True, eq=False)
class Release:
    """What was released at once, or charged without an answer in the ledger.

    Attributes:
        entry: of the charge, or of several.
        name: of its reservation, or its own.
        reservation: None where there is none.
        what: was asked.
        slot: the facts with which it was asked.
        value: what the ledger has of the answer; None where it has none.
    """

    entry: str
    name: str
    reservation: str | None
    what: str
    slot: Mapping[str, Any]
    value: Mapping[str, Any] | None

    @property
    def details(self) -> dict[str, Any]:
        """Public facts of the question, such as its point x."""
        return {**(self.value or {}).get("details", {}), **self.slot.get("details", {})}


def _releases(records: Sequence[Record]) -> Iterator[Release]:
    """In order; successive charges that keep no slots, such as the steps of DP-SGD, are one."""
    drawn = {one.answers: one.body["values"] for one in records if one.answers is not None}
    charges = [record for record in records if record.kind == "charge"]
    for (name, reservation, _), group in itertools.groupby(
        charges, lambda one: (one.name, one.reservation, "slots" in one.body or one.seq)
    ):
        charged = list(group)
        shown = reservation or name
        if "slots" not in charged[0].body:
            first, last = charged[0].seq, charged[-1].seq
            entry = f"{first}" if first == last else f"{first} to {last}"
            count = sum(record.event.count for record in charged)
            what = f"{count:,} times: {words.mechanism_in_words(charged[0].event)}"
            yield Release(entry, shown, reservation, what, {}, None)
            continue
        for charge in charged:
            values = drawn.get(charge.seq, [])
            for slot, value in itertools.zip_longest(charge.body["slots"], values):
                query = str(slot.get("query", ""))
                what = words.question_in_words(query)
                if query == "ClippedMean" and "reference" in slot.get("public", {}):
                    what = "mean difference of the scores to a reference model's"
                yield Release(str(charge.seq), shown, reservation, what, slot, value)


@dataclass(frozen=True, eq=False)
class Result:
    """What a reservation's values tell, where each is a number at a point.

    Attributes:
        name: of the reservation.
        space: of the points; None where none is known.
        parameters: of the recommended point, by name.
        score: its posterior mean; of a single value, that with its noise; "" where it has none.
        best: its evaluation, from 1.
        noise: standard deviation of one release.
        picture: of convergence, as SVG; "" of a single value.
        hidden: whether it is the best of a hidden number of runs.
    """

    name: str
    space: Space | None
    parameters: dict[str, str]
    score: str
    best: int = 1
    noise: str = ""
    picture: str = ""
    hidden: bool = False

    @classmethod
    def of(cls, released: ReleasedValues, space: Space | None, X: torch.Tensor) -> "Result":
        """From values at points X of this space, as the ledger has them."""
        best = released.best
        mean = float(released.mean[best])
        std = float(released.Yvar.max().sqrt())
        shown = (released.name, space, _parameters(X[best].tolist(), space))
        if len(X) == 1:
            return cls(*shown, words.with_noise(mean, std), noise=f"{std:.2g}")
        return cls(*shown, f"{mean:.4g}", best + 1, f"{std:.2g}", _picture(released))


def _results(
    releases: Sequence[Release], reservations: Mapping[str, Reserved], given: Spaces | None
) -> Iterator[Result]:
    """Those of the reservations whose values are single numbers at points of one dimension, and
    the best runs of private selections.
    """
    delivered = defaultdict[str, list[Release]](list)
    for release in releases:
        if release.value is not None and release.reservation is not None:
            delivered[release.reservation].append(release)
    for name, own in delivered.items():
        try:
            X = _float64([one.details["x"] for one in own])
        except (KeyError, TypeError, ValueError):
            # a best run that was not released has no point, and other queries have other facts
            continue
        terms = reservations[name].terms
        space = _space_of(name, X, terms, given)
        values = [one.value or {} for one in own]
        if own[0].slot.get("query") == _SELECTION:
            score = ""
            if values[0]["value"]:
                score = words.with_noise(values[0]["value"][0], terms.get("noise_std") or 0.0)
            yield Result(name, space, _parameters(X[0].tolist(), space), score, hidden=True)
        elif X.ndim == 2 and all(len(one.get("variance", [])) == 1 for one in values):
            Y = _float64([one["value"] for one in values])
            Yvar = _float64([one["variance"] for one in values])
            yield Result.of(ReleasedValues.at(X, Y, Yvar, name, space), space, X)


def _space_of(
    name: str, X: torch.Tensor, terms: Mapping[str, Any], given: Spaces | None
) -> Space | None:
    """The space of a reservation's points: the caller's, else the one that its terms describe. None
    unless all points lie in it.
    """
    spaces = [given.get(name) if isinstance(given, Mapping) else given]
    # there is none, or another program described it
    with contextlib.suppress(InputError):
        spaces.append(Space.from_json(terms.get("space", "")))
    for space in spaces:
        with contextlib.suppress(InputError):
            if space is not None and [space.decode(x) for x in X]:
                return space
    return None


def _picture(released: ReleasedValues) -> str:
    """The convergence picture as SVG, in the page's colours."""
    with needs("plots"):
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        axes = draw_convergence(released, figure.add_subplot())
        axes.set_title("")
        axes.get_legend().remove()
        figure.legend(loc="outside upper left", ncols=3, frameon=False)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # several pictures of one page would have the same
    text = re.sub(r' id="[a-z]+_\d+"', "", text)
    for colour, name in _COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text


def _parameters(point: Sequence[float], space: Space | None) -> dict[str, str]:
    """A point's parameters by name; its coordinates where no space is known."""
    if space is None:
        return {f"x{i}": f"{u:.4g}" for i, u in enumerate(point)}
    return _texts(space.decode(_float64(point)))


def _row(release: Release, space: Space | None) -> tuple[str, ...]:
    """A release as a row of the table."""
    details = release.details
    # other queries have other facts of this name
    with contextlib.suppress(KeyError, TypeError, ValueError):
        details = _parameters(details["x"], space) | {**details, "x": None}
    answer = "lost: charged, never delivered"
    if release.value is not None:
        answer = _answer(release.value, release.slot)
    elif not release.slot:
        answer = "the ledger holds the cost alone"
    return release.entry, release.name, release.what, _listed(_texts(details)), answer


def _answer(drawn: Mapping[str, Any], slot: Mapping[str, Any]) -> str:
    """One released answer in a cell of a table."""
    value = drawn["value"]
    variance = drawn.get("variance", [])
    if slot.get("query") == _SELECTION:
        if "x" not in drawn.get("details", {}):
            return "no run was released"
        return ", score ".join(["the best run", *(f"{score:.4g}" for score in value)])
    if not variance:
        chosen = ", ".join(f"candidate {number + 1:,.0f}" for number in value)
        count = slot.get("public", {}).get("candidates")
        return f"{chosen}{f' of {count:,}' if isinstance(count, int) else ''} was chosen"
    numbers = _float64(value)
    if numbers.ndim == 1 and len(numbers) <= _FEW:
        pairs = zip(value, variance, strict=True)
        return ", ".join(words.with_noise(one, math.sqrt(squared)) for one, squared in pairs)
    noise = f"{math.sqrt(max(variance)):.2g}"
    return f"{' x '.join(map(str, numbers.shape))} numbers, noise at most {noise}"


def _float64(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _listed(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {text}" for name, text in texts.items())


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Texts of public facts; what is None is left out."""
    return {
        str(name): f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in facts.items()
        if value is not None
    }
