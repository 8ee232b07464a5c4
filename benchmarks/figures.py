"""The figures of the pages, from the stored rows of benchmarks/results.

A page has an expression in two braces for each measured figure, and Sphinx's build puts the row's
figure in its place: `{{ row("main_job > runs > default > mean", ".1f") }}`. What does not resolve
ends the build. A place is the file's name and the keys below its "figures"; in a list,
`epsilon=1 & m=1,000` is the row with these cells, and a number the row at that position.
"""

import functools
import json
import math
import operator
import pathlib
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jinja2

from benchmarks.harness import table as markdown
from benchmarks.harness import table_of
from benchmarks.papers.dpem_paper import joint
from benchmarks.papers.verdicts import of_all, verdict, verdict_of_share
from benchmarks.zoo.__main__ import AUC, AUTO, CELLS, FREE, OPEN, ROUNDING
from dpbo.planning import noise_table

RESULTS = pathlib.Path(__file__).parent / "results"
Row = dict[str, Any]
_SCORES = {
    "neg_brier_score": "Brier",
    "true_class_probability": "true class",
    "neg_mean_squared_error": "squared error",
}
_WAYS = {
    "free": "the free choice",
    "weighted cross-validation": "weighted cross-validation alone",
    "handicap 4": "what the default was before: two fifths for the cells, then a choice"
    " with a handicap of four standard deviations",
    "free, test": "the free choice, tested with all of the budget",
    "cells .36, test": "the best by weights, .36 of the budget for the cells, then its test",
    "cells .5, test": "... half of the budget",
    "choice .3, test": "a private choice among all with .3 of the budget, then its test",
    "choice .4, test": "... with .4",
    "choice .5, test": "... with half",
    "choice .6, test": "... with .6",
    "choice .5, test, clip .5": "... with half, by differences clipped at half of the width",
    "choice .5, test, no clip": "... not clipped",
    "rehearsed": "**with half by weights or by a choice, as the rehearsal says, then the test**",
    "permute-and-flip against the default": "permute-and-flip, with handicaps of the same risk",
    "thresholded exponential": "the thresholded exponential mechanism, which tells no"
    ' gain: `strategy="choice"`',
    "thresholded exponential, clip .5": "... by differences clipped at half of the width",
    "openly": "the open choice",
}
_SETS = {
    "locked": "**five new tables, kept back**",
    "open": "five new tables, open",
    "zoo": "the tables kept back before",
}
_ARMS = {
    "free": "the free choice",
    "weighted": "the best by weights, no test",
    "DPSearch": "**DPSearch**",
    "openly": "the open choice",
}
# of Park et al.'s factor analysis: people, and pixels a side
_FACES, _SIDE = 400, 64


class Figures:
    """What a page may call; each method reads the rows of one folder."""

    def __init__(self, folder: pathlib.Path = RESULTS) -> None:
        self._folder = folder
        self._opened: dict[str, Any] = {}

    def value(self, place: str) -> Any:
        """What lies at a place.

        Raises:
            KeyError: nothing does.
        """
        name, *keys = place.split(" > ")
        found = self._file(name)["figures"]
        for key in keys:
            found = _in_list(found, key) if isinstance(found, list) else found[key]
        return found

    def row(self, place: str, how: str, *, times: float = 1) -> str:
        """The figure at a place, times a change of units, in Python's format."""
        return self.show(times * self.value(place), how)

    def show(self, number: float, how: str) -> str:
        """A number in Python's format; one that begins with "^" has no 0 before the
        point.
        """
        text = format(number, how.removeprefix("^"))
        return re.sub(r"^([-+]?)0\.", r"\1.", text) if how.startswith("^") else text

    def means(self, place: str, how: str, *names: str) -> str:
        """The means of several rows at a place, in turn."""
        return ", ".join(self.row(f"{place} > {name} > mean", how) for name in names)

    def mean(self, place: str, how: str) -> str:
        """The mean of a row, and its standard error in brackets."""
        return f"{self.row(f'{place} > mean', how)} ({self.row(f'{place} > se', how)})"

    def verdict(
        self, place: str, printed: Literal["below", "above"] | float, within: float = 0.0
    ) -> str:
        """What a row of paired differences says of a paper's claim: `papers.verdicts`."""
        return self._told(self.value(place), printed, within=within)

    def largest_is_best(self, table: str, *, rank: int = 1) -> str:
        """What PO-GP-UCB's rows by r, fifty paired runs each, say of the claim that the r marked *
        has the least regret, or the second least (rank 2): "reproduced" where rank - 1 of the
        others are below it and all the rest above, "differs" where that cannot be.
        """
        rows = [r for r in self.value(f"po_gp_ucb > by r, {table} > rows") if "*" not in r["r"]]
        words = [
            verdict(row["above *"], row["its SE"], printed="above", intervals=len(rows))
            for row in rows
        ]
        above, below = words.count("reproduced"), words.count("differs")
        if (below, above) == (rank - 1, len(rows) - rank + 1):
            return "reproduced"
        wrong = below > rank - 1 or above > len(rows) - rank + 1
        return "differs" if wrong else "not reproduced"

    def apart_from_the_star(self, problem: str, branch: str = "") -> str:
        """The largest difference of an r's regret to that of *, in its standard errors; of all r or
        of a branch of the algorithm ("if": up to *).
        """
        apart = [
            abs(row["above *"] / row["its SE"])
            for rows in self._by_r(problem).values()
            for row in rows
            if "*" not in row["r"] and branch in row["r"]
        ]
        return f"{max(apart):.1f}"

    def above_wanted(self) -> str:
        """The rows of speed beside peers that are above what is wanted, with both figures."""
        found = []
        for row in self.value("speed > rows"):
            wanted, _, unit = row["wanted"].partition(" ")
            got = row["ms"] / {"ms": 1, "s": 1000}[unit] if unit else row["ratio"]
            if wanted and got > float(wanted):
                found.append(f"{row['work']} ({got:.2f}{' ' + unit if unit else ''})")
        return "; ".join(found)

    def not_reached(self) -> str:
        """The whole runs that are above what is wanted."""
        rows = self.value("end_to_end > rows")
        return "; ".join(row["work"] for row in rows if row["reached"] == "no")

    def date(self, name: str, part: str = "") -> str:
        """When the rows of a file were measured, or those of a part that was by itself."""
        return (self._file(name)["parts"][part] if part else self._file(name))["date"]

    def program(self, name: str) -> str:
        """Which program made the rows of a decided question, and its last commit."""
        path, _, commit = self._file(name)["program"].partition(" at ")
        return f"`{path}` at {commit}"

    def first(self, place: str) -> str:
        """The first word of a text, such as the mean of "0.1 (0.02)"."""
        return self.value(place).split()[0]

    def gap(self, experiment: str, claim: str) -> str:
        """The paired difference that decides a claim of DP-GIBO's experiments, whose words begin
        so, and its standard error in brackets.
        """
        gap = self._finding(experiment, claim)["gap"]
        return f"{gap['mean']:+.2g} ({gap['se']:.2g})"

    def claimed(self, experiment: str, claim: str) -> str:
        """Whether the replications bear this claim out."""
        found = self._finding(experiment, claim)
        return self._told(found["gap"], found["printed"], within=found["within"])

    def counted(self, table: str, column: str, **where: Sequence[Any]) -> str:
        """In how many rows of a table a paired difference is below 0 by more than chance, and in
        how many above; of the rows with one of these cells in each column of `where`.
        """
        told = [self._told(gap, "below") for gap in self._gaps(table, column, where)]
        lower, higher = (told.count(word) for word in ("reproduced", "differs"))
        return f"below in {lower} of {len(told)}, above in {higher}"

    def together(
        self, table: str, column: str, printed: Literal["below", "above"], **where: Sequence[Any]
    ) -> str:
        """What the paired differences of several rows say of a claim that all of them bear out, by
        intervals that hold together.
        """
        gaps = self._gaps(table, column, where)
        return of_all([self._told(gap, printed, intervals=len(gaps)) for gap in gaps])

    def kept(self, theorem: str, *candidates: str) -> str:
        """What draws of the prior say of the probability with which a theorem of Kusner et al. may
        fail: all sizes and epsilons, or those with so many candidates, by intervals that hold
        together.
        """
        rows = [
            row
            for row in self.value("kusner > promises")
            if row["theorem"] == theorem
            and row["candidates"] in (candidates or [row["candidates"]])
        ]
        if not rows:
            raise KeyError(f"no theorem {theorem} with {candidates}")
        return of_all(
            [
                verdict_of_share(
                    row["fails"], row["draws"], allowed=row["may fail"], intervals=len(rows)
                )
                for row in rows
            ]
        )

    def table(self, name: str) -> str:
        """A table by its name in `TABLES`, or else the rows at a place, which may have names;
        repetitions as their mean and standard error.
        """
        if name in TABLES:
            return TABLES[name](self)
        rows = self.value(name)
        if isinstance(rows, dict):
            rows = [{"": title, **row} for title, row in rows.items()]
        return table_of([{title: _cell(cell) for title, cell in row.items()} for row in rows])

    def of_serial_time(self, workers: str) -> str:
        """Wall time of a search with workers over that of the serial one."""
        times = self.value("asynchronous > times")
        return f"{times[workers]['wall'] / times['serial']['wall']:.2f}"

    def of_one_process(self, work: str, ranks: int) -> str:
        """Time on so many ranks over the time of one process."""
        machines = self.value("machines")
        return f"{machines['ranks'][str(ranks)][work] / machines['one'][work]:.2f}"

    def held(self, tables: str) -> str:
        """In how many searches on records drawn alike the rehearsal's range held the
        gain.
        """
        rows = [r for r in self.value("ranges > cases") if r["tables"] == tables]
        return f"{sum(r['held'] for r in rows)} of {sum(r['searches'] for r in rows)}"

    def covered(self, *, kept_back: bool) -> str:
        """How often the rehearsal's ranges held the gain, in percent of the searches."""
        cells = [row for row in _scored(self) if row["kept back"] is kept_back]
        return f"{statistics.fmean(row['covered, %'] for row in cells):.0f}"

    def few_records_gain(self) -> str:
        """The default's mean gain at 300 and 1,000 records and epsilon .4 and 1."""
        means = self.value("small_data > means of the tasks")
        chosen = [r for r in means if (r["n"], r["epsilon"]) in CELLS]
        gain = statistics.fmean(row["DPSearch's default"] for row in chosen)
        return f"{gain:.2f}"

    def beyond_the_star(self) -> str:
        """Regret on the synthetic problem with more columns than the largest r with
        sigma_min >= omega, over the regret with that r: from the least to the most.
        """
        ratios = []
        for rows in self._by_r("synthetic, l = 5").values():
            (star,) = (row["mean S_T"] for row in rows if "*" in row["r"])
            ratios += [row["mean S_T"] / star for row in rows if "else" in row["r"]]
        return f"{min(ratios):.1f} to {max(ratios):.1f}"

    def loans_over_printed(self) -> str:
        """Our regrets on the loans over the printed ones: from the least to the most."""
        ratios = [
            row["mean S_T"] / row["paper's"]
            for rows in self._by_r("loans").values()
            for row in rows
        ]
        return f"{min(ratios):.1f} to {max(ratios):.1f}"

    def least_factor(self) -> str:
        """The variance that a factor of the faces needs to show at epsilon 1."""
        return f"{_SIDE * joint(1.0, 1e-4, 1) / _FACES:.2f}"

    def noise_too_small_by(self) -> str:
        """The deviation that is due over its square, with which the authors' factor
        analysis draws, at epsilon 1.
        """
        deviation = 2 / _FACES * math.sqrt(2 * math.log(1.25 / 1e-4))
        return f"{1 / deviation:.0f}"

    def _finding(self, experiment: str, claim: str) -> Row:
        found = [
            finding
            for finding in self.value(f"{experiment} > findings")
            if finding["claim"].startswith(claim)
        ]
        (one,) = found
        return one

    def _told(self, gap: Row, printed: Any, **changes: Any) -> str:
        shared: dict[str, Any] = {"printed": printed, "replications": gap["n"], **changes}
        return verdict(gap["mean"], gap["se"], **shared)

    def _gaps(self, table: str, column: str, where: dict[str, Sequence[Any]]) -> list[Row]:
        rows = [
            row
            for row in self.value(table)
            if all(row[name] in cells for name, cells in where.items())
        ]
        gaps = [functools.reduce(operator.getitem, column.split(" > "), row) for row in rows]
        if not any(gaps):
            raise KeyError(f"{table}, {column}: no row")
        return [gap for gap in gaps if gap]

    def _file(self, name: str) -> Any:
        if name not in self._opened:
            self._opened[name] = json.loads((self._folder / f"{name}.json").read_text())
        return self._opened[name]

    def _by_r(self, problem: str) -> dict[str, list[Row]]:
        """Rows of PO-GP-UCB by the number of columns, for each epsilon of a problem."""
        return {
            name.removeprefix("by r, "): found["rows"]
            for name, found in self.value("po_gp_ucb").items()
            if name.startswith(f"by r, {problem}") and "l = 1.25" not in name
        }


def rendered(text: str, folder: pathlib.Path = RESULTS) -> str:
    """A page with its figures.

    Raises:
        KeyError, jinja2.UndefinedError: an expression names what is not there.
    """
    figures = Figures(folder)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    names = [name for name in dir(Figures) if not name.startswith("_")]
    return environment.from_string(text).render({n: getattr(figures, n) for n in names})


def _cell(cell: Any) -> Any:
    """A row of repetitions in one cell; anything else as it is."""
    if isinstance(cell, dict) and {"mean", "se"} <= cell.keys():
        return f"{cell['mean']:.3g} ({cell['se']:.1g})"
    return cell


def _in_list(rows: list[Any], key: str) -> Any:
    if "=" not in key:
        return rows[int(key)]
    wanted = dict(part.split("=", 1) for part in key.split(" & "))
    found = [row for row in rows if all(str(row[k]) == v for k, v in wanted.items())]
    if len(found) != 1:
        raise KeyError(f"{key}: {len(found)} rows")
    return found[0]


def _scored(figures: Figures) -> list[Row]:
    """The zoo's cells that have a public score."""
    return [row for row in figures.value("zoo > cells") if row["score"] != AUC]


def _two(number: float) -> str:
    """With two decimals, and no minus before zero."""
    return f"{round(number, 2) + 0.0:.2f}"


def _gap(row: Row) -> str:
    return f"{_two(row['minus free'])} ({row['error']:.2f})"


def _sizes() -> list[str]:
    return [f"{n:,}, {epsilon:g}" for n, epsilon in CELLS]


def _by_task(cells: list[Row]) -> dict[str, dict[tuple[int, float], Row]]:
    """The cells of each task and score, by n and epsilon."""
    found: dict[str, dict[tuple[int, float], Row]] = {}
    for row in cells:
        title = f"{row['task']}, {_SCORES[row['score']]}"
        found.setdefault(title, {})[row["n"], row["epsilon"]] = row
    return found


def _gains(own: dict[tuple[int, float], Row]) -> list[str]:
    """DPSearch's gain in each cell that there is, with its error."""
    return [
        f"{_two(own[cell][AUTO])} ({own[cell]['its error']:.2f})" if cell in own else ""
        for cell in CELLS
    ]


def _noise_by_units(figures: Figures) -> str:  # noqa: ARG001
    """30 evaluations with nine tenths of the budget."""
    units = [500, 1000, 2000, 5000, 10_000, 20_000, 50_000]
    epsilons = [0.5, 1.0, 2.0, 3.0, 5.0, 8.0]
    return noise_table(units, epsilons, delta=1e-6, evaluations=30, share=0.9)


def _regrets_by_r(figures: Figures) -> str:
    """PO-GP-UCB's nine tables beside our rows."""
    rows = []
    for name, found in figures._by_r("").items():
        cells = []
        for row in found:
            r, printed, mean, error = (row[key] for key in ("r", "paper's", "mean S_T", "SE"))
            cells.append(f"{r.split()[0]}: {printed:g}, {mean:.2g} ({error:.1g})")
        rows.append([name.replace(", l = 5", ""), *cells])
    return markdown(["problem, epsilon", *["r: printed, ours (error)"] * 6], rows)


def _starts(figures: Figures) -> str:
    """4.3 with other settings, on fresh seeds."""
    found = figures.value("dpgibo_settings > settings")
    gaps = {each["claim"]: each["gap"] for each in found["findings"]}
    rows = []
    for name, each in found["losses"].items():
        gap = gaps.get(f"{name}: below random")
        shown = f"{gap['mean']:+.2g} ({gap['se']:.2g})" if gap else ""
        rows.append([name, each["mean"], each["median"], shown])
    header = ["mu = 1, 275 evaluations", "mean", "median", "minus random (standard error)"]
    return markdown(header, rows)


def _gap_of(row: Row) -> str:
    """A paired difference and its standard error."""
    return f"{row['mean']:+.2g} ({row['se']:.1g})"


def _peers(figures: Figures, steps: str) -> str:
    """DP-GIBO beside zeroth-order descent and DP-SGD: excess losses, and DP-GIBO's less theirs."""
    cells = figures.value(f"dpgibo > {steps} > cells")
    rows = []
    for cell in cells:
        row = [f"{cell['d']}, {cell['n']:,}", cell["losses"]["DP-GIBO"]["n"], cell["start"]]
        for name, each in cell["losses"].items():
            gap = cell["gaps"].get(name)
            row.append(f"{each['mean']:.2g}{'; ' + _gap_of(gap) if gap else ''}")
        rows.append(row)
    return markdown(["d, people", "runs", "start", *cells[0]["losses"]], rows)


def _zoo_in_short(figures: Figures) -> str:
    """Means over the cells, and how many of them are below the default model and the
    free choice by more than a standard error.
    """
    rows = []
    names = {True: "**kept back**", False: "seen while it was made"}
    for kept_back, name in names.items():
        own = [row for row in _scored(figures) if row["kept back"] is kept_back]
        means = [statistics.fmean(row[arm] for row in own) for arm in (FREE, AUTO, OPEN)]
        below = [row for row in own if row[AUTO] < -row["its error"] - ROUNDING]
        below_free = [row for row in own if row["minus free"] < -row["error"] - ROUNDING]
        above_free = [row for row in own if row["minus free"] > row["error"] + ROUNDING]
        far = [row for row in below_free if row["minus free"] <= -0.25]
        lowest = {k: min(row[k] for row in own) for k in (AUTO, FREE, "worst split")}
        rows.append(
            [
                name,
                len(own),
                *map(_two, means),
                len(below),
                f"{_two(lowest[AUTO])}, {_two(lowest[FREE])}",
                _two(lowest["worst split"]),
                f"{len(below_free)}, {len(far)}",
                len(above_free),
            ]
        )
    header = [
        "",
        "cells",
        "mean gain: free",
        "DPSearch",
        "openly",
        "below the default by more than a standard error",
        "lowest mean of a cell, free's",
        "lowest single search",
        "below the free choice by more than a standard error, of these by .25 or more",
        "above it",
    ]
    return markdown(header, rows)


def _zoo_kept_back(figures: Figures) -> str:
    """Each task that was kept back."""
    rows = []
    for title, own in _by_task([r for r in _scored(figures) if r["kept back"]]).items():
        last = own[max(own)]
        rows.append([title, _two(last[FREE]), *_gains(own), _two(last[OPEN])])
    return markdown(["task, score", "free", *_sizes(), "openly"], rows)


def _tested_in_short(figures: Figures) -> str:
    """Each way on each set of tables."""
    rows = []
    for name, words in _SETS.items():
        shown = f"{words}, {figures.value(f'tested_{name} > number of cells')} cells"
        for row in figures.value(f"tested_{name} > ways"):
            gains = [_two(row[kind]) for kind in ("mean gain", "lowest", "worst")]
            kinds = ("below default, %", "below free, %", "worse, %")
            shares = [f"{row[kind]:.0f} %" for kind in kinds]
            rows.append([shown, _ARMS[row["way"]], *gains, *shares])
            shown = "..."
    header = ["tables", "way", "mean gain", "lowest cell", "lowest search"]
    last = ["below default", "below free", "searches below default"]
    return markdown([*header, *last], rows)


def _tested_tasks(figures: Figures) -> str:
    """Each task of the new tables, the open ones first."""
    rows = []
    for name, mark in (("open", ""), ("locked", "**")):
        cells = figures.value(f"tested_{name} > cells")
        marked = [{**row, "task": f"{mark}{row['task']}{mark}"} for row in cells]
        for title, own in _by_task(marked).items():
            free, weighted, openly = (
                _two(own[max(own)][kind]) for kind in (FREE, "weighted", OPEN)
            )
            rows.append([title, free, weighted, *_gains(own), openly])
    return markdown(["task, score", "free", "by weights", *_sizes(), "openly"], rows)


def _zoo_ways(figures: Figures) -> str:
    """Ways to choose among the candidates of the tasks that were seen."""
    rows = []
    for way, words in _WAYS.items():
        row = figures.value(f"zoo_ways > ways > way={way}")
        kinds = ("below default, %", "below free, %", "power, %")
        shares = [f"{row[kind]:.0f} %" for kind in kinds]
        lowest = [_two(row["lowest"]), _two(row["worst"])]
        rows.append([words, _two(row["kept"]), *shares, *lowest])
    header = ["way", "kept", "below default", "below free", "power"]
    return markdown([*header, "lowest cell", "lowest draw"], rows)


def _private_bo(figures: Figures) -> str:
    """Losses of private Bayesian optimisation since 2020."""
    shown = [
        {name: _cell(cell) for name, cell in row.items() if name not in ("epsilon", "promise")}
        for row in figures.value("private_bo > rows")
    ]
    return table_of(shown)


def _few_records(figures: Figures) -> str:
    """Means of the six tasks with a shift."""
    arms = ("free", "tuned openly", "plain search", "DPSearch's default")
    rows = [
        [
            f"{row['n']:,}, {row['epsilon']:g}",
            *(_two(row[arm]) for arm in arms),
            _gap(row),
        ]
        for row in figures.value("small_data > means of the tasks")
    ]
    return markdown(["n, epsilon", *arms, "minus free (error)"], rows)


def _few_records_by_task(figures: Figures) -> str:
    """Each of these tasks."""
    arms = ("free", "tuned openly", "plain search", "DPSearch's default", "its error")
    fixed = ("weighted_cv 8", "list, all")
    rows = []
    for row in figures.value("small_data > cells"):
        gains = [_two(row[arm]) for arm in arms]
        others = ["" if row[arm] == "" else _two(row[arm]) for arm in fixed]
        place = f"{row['n']:,}, {row['epsilon']:g}"
        rows.append([row["task"], place, *gains, _gap(row), *others, row["chosen"]])
    header = [
        "task",
        "n, epsilon",
        *arms,
        "minus free (error)",
        *fixed,
        "mostly chosen",
    ]
    return markdown(header, rows)


def _gradients_on_a_gpu(figures: Figures) -> str:
    """Clipped gradients of 4 million units."""
    rows = []
    dimensions = {64: (8, 16, 33, 64), 256: (8, 33, 128), 1024: (8, 16, 33, 64)}
    for m, sizes in dimensions.items():
        for d in sizes:
            row = figures.value(f"gpu > clipped sum, m = {m}, d = {d}")
            kinds = ("ms", "ms where ten wait in a queue", "compiled in tf32, ms")
            alone, queued, compiled = (f"{row[kind]:#.2g}" for kind in kinds)
            share = f"{row['share of reading once']:.2f}"
            work = f"{m:,} losses, {d} dimensions"
            rows.append([work, alone, queued, share, compiled])
    header = [
        "clipped gradients of 4 million units",
        "alone, ms",
        "ten in a queue, each, ms",
        "share of reading once, in the queue",
        "compiled, ms",
    ]
    return markdown(header, rows)


TABLES: dict[str, Callable[[Figures], str]] = {
    "noise by units": _noise_by_units,
    "regrets by r": _regrets_by_r,
    "private BO": _private_bo,
    "ways for 4.3": _starts,
    "baselines": functools.partial(_peers, steps="baselines"),
    "samples": functools.partial(_peers, steps="samples"),
    "zoo in short": _zoo_in_short,
    "zoo kept back": _zoo_kept_back,
    "tested in short": _tested_in_short,
    "tested tasks": _tested_tasks,
    "zoo ways": _zoo_ways,
    "few records": _few_records,
    "few records by task": _few_records_by_task,
    "gradients on a GPU": _gradients_on_a_gpu,
}
