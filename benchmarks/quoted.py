"""The figures that the pages quote, each tied to a stored row of benchmarks/results.

    python -m benchmarks.quoted           # what on the pages differs from the rows
    python -m benchmarks.quoted --write   # writes the rows' figures into the pages

A sentence of `quoted_sentences.txt` stands on its page word for word, with a reference for each
figure: `{dpem > likelihoods > joint, GDP, plain > 1 > mean | .2f}` is a place in
benchmarks/results/dpem.json and the figure's format. In a list, `epsilon=1 & m=1,000` is the row
with these cells; `computed` has what follows from a formula or from many rows. A format that begins
with `^` leaves out the zero before the point, one with `*` is a percentage, `first` is a text's
first word, and `interval` a finding's difference. A line that begins with `= ` has figures that
nothing here measured: settings, what a paper prints, and what a test derives. Whole tables stand on
a page between `<!-- rows: NAME -->` and `<!-- rows end -->` (`quoted_tables`); what stands between
marks that say "begin" and "end" is written by the command that measures it.
"""

import argparse
import functools
import json
import math
import pathlib
import re
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import quoted_tables
from benchmarks.harness import table
from benchmarks.papers.dpem_paper import joint

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (
    "docs/papers/kusner.md",
    "docs/papers/po_gp_ucb.md",
    "docs/papers/dpem.md",
    "docs/papers/dpgibo.md",
    "docs/choosing.md",
    "docs/measured.md",
)
# what `python -m benchmarks` and `python -m benchmarks.end_to_end` write into a page
_WRITTEN = re.compile(r"<!-- (speed|whole runs): begin -->.*?<!-- \1: end -->", re.DOTALL)
# what a paper and its parts are called
_NAMES = re.compile(
    r"(?:Theorem|Lemma|Section|Corollary|Assumptions|to|[Ee]xperiment|kernel of) \d\.\d"
    r"|\(4\.\d|arXiv \d{4}\.\d+"
)
REFERENCE = re.compile(r"\{([^{}|]+) \| ([^{}]+)\}")
NUMBER = r"[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?"
_INTERVAL = rf"{NUMBER} \[{NUMBER}, {NUMBER}\], below in \d+/\d+"
TABLE = re.compile(r"(<!-- rows: (.+?) -->\n).*?(<!-- rows end -->)", re.DOTALL)
# of Park et al.'s factor analysis: people, pixels a side, and the deviation that their code should
# draw with where it draws with its square
_FACES, _SIDE = 400, 64
_NOISE = 2 / _FACES * math.sqrt(2 * math.log(1.25 / 1e-4))


@functools.cache
def stored(name: str) -> Any:
    """The figures of one benchmark."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["figures"]


@functools.cache
def computed() -> dict[str, float]:
    """Figures that follow from a formula or from many rows."""
    found = {name: rows for name, rows in stored("po_gp_ucb").items() if name.startswith("by r, ")}
    beyond = []
    printed = []
    for name, table_of in found.items():
        rows = table_of["rows"]
        (star,) = (row["mean S_T"] for row in rows if "*" in row["r"])
        if "l = 5" in name:
            beyond += [row["mean S_T"] / star for row in rows if "else" in row["r"]]
        if "loans" in name:
            printed += [row["mean S_T"] / row["paper's"] for row in rows]
    runs = stored("main_job")["runs"]
    free = runs["free: cross-validated on the public records"]["mean"]
    times = {name: row["wall"] for name, row in stored("asynchronous")["times"].items()}
    machines = stored("machines")
    gpu = stored("gpu")
    draws = (1_000_000, 10_000_000, 100_000_000)
    wives = "zoo > cells > task=wives' insurance, south to north & score=neg_brier_score"
    wives += " & n=300 & epsilon=0.4 > minus free"
    single = "zoo > claims > kept back=True & score=neg_brier_score > 95 % of single losses"
    scored = [row for row in stored("zoo")["cells"] if row["score"] != "roc_auc"]
    kept_back = [row for row in scored if row["kept back"]]
    others = [row for row in scored if not row["kept back"]]
    small = [
        looked_up(f"small_data > means of the tasks > n={n} & epsilon={epsilon}")
        for n in (300, 1000)
        for epsilon in (0.4, 1.0)
    ]
    return {
        "read, TB/s": gpu["ceilings"]["read, GB/s"] / 1000,
        **{f"ms of {n:,} draws": 1000 * gpu[f"noise, {n:,} draws"]["exact"] for n in draws},
        **{f"torch, ms of {n:,} draws": 1000 * gpu[f"noise, {n:,} draws"]["torch"] for n in draws},
        "ms of a run of GP-UCB": 1000 * gpu["ucb"]["run"],
        "ms of a step of DP-GIBO": 1000 * gpu["gibo"]["whole"],
        "of which choosing, ms": 1000 * gpu["gibo"]["choosing"],
        "ms of a choice": 1000 * gpu["choice"]["seconds"],
        "ms of reading it three times": 1000 * gpu["choice"]["seconds"] * gpu["choice"]["share"],
        "ms of a streamed point": 1000 * gpu["streamed, 4,000,000 users"]["streamed"],
        "of which copies, ms": 1000 * gpu["streamed, 4,000,000 users"]["copies alone"],
        "ms of a mixture": 1000 * gpu["mixture"]["own"],
        "torch, ms of a mixture": 1000 * gpu["mixture"]["torch"],
        "compiled, ms of a mixture": 1000 * gpu["mixture"]["compiled"],
        **{
            f"{kind} with {tables}": sum(
                row[kind] for row in stored("ranges")["cases"] if row["tables"] == tables
            )
            for kind in ("searches", "held")
            for tables in ("one", "two")
        },
        **{
            f"{kind} of {name}": statistics.fmean(row[kind] for row in rows)
            for kind in ("covered, %",)
            for name, rows in (("kept back", kept_back), ("others", others))
        },
        "tested, gain": looked_up("tested_locked > ways > way=DPSearch > mean gain") / 100,
        "tested, free gain": looked_up("tested_locked > ways > way=free > mean gain") / 100,
        "tested, lowest": looked_up("tested_locked > ways > way=DPSearch > lowest") / 100,
        "zoo, 95 % of single losses by Brier score": looked_up(single),
        "zoo, wives' insurance below free": -looked_up(wives),
        "few records, default": sum(row["DPSearch's default"] for row in small) / len(small),
        **{name: wall / times["serial"] for name, wall in times.items()},
        **{
            f"{work} on {count} ranks": row[work] / machines["one"][work]
            for count, row in machines["ranks"].items()
            for work in ("clipped gradient", "EM step")
        },
        "private minus free": runs["tuned privately"]["mean"] - free,
        "least factor": _SIDE * joint(1.0, 1e-4, 1) / _FACES,
        "too small by": 1 / _NOISE,
        "loss beyond the star, least": min(beyond),
        "loss beyond the star, most": max(beyond),
        "loans over printed, least": min(printed),
        "loans over printed, most": max(printed),
    }


def looked_up(place: str) -> Any:
    """What lies at a place: `file > key > row`. Raises KeyError where there is nothing."""
    name, *keys = place.split(" > ")
    found = computed() if name == "computed" else stored(name)
    for key in keys:
        found = _in_list(found, key) if isinstance(found, list) else found[key]
    return found


def _in_list(rows: list[Any], key: str) -> Any:
    if "=" not in key:
        return rows[int(key)]
    wanted = dict(part.split("=", 1) for part in key.split(" & "))
    found = [row for row in rows if all(str(row[k]) == v for k, v in wanted.items())]
    if len(found) != 1:
        raise KeyError(f"{key}: {len(found)} rows")
    return found[0]


def shown(value: Any, how: str) -> str:
    """A stored figure in the page's format."""
    if how == "first":
        return str(value).split()[0]
    if how == "interval":
        found = re.search(_INTERVAL, value)
        assert found, f"no difference in {value}"
        return found[0]
    text = format(100 * value if "*" in how else value, how.strip("^*"))
    return re.sub(r"^([-+]?)0\.", r"\1.", text) if "^" in how else text


def filled(sentence: str) -> str:
    """The sentence with the rows' figures."""
    return REFERENCE.sub(lambda found: shown(looked_up(found[1]), found[2]), sentence)


def wording(sentence: str) -> re.Pattern[str]:
    """The sentence with any figures."""
    pattern = ""
    end = 0
    for found in REFERENCE.finditer(sentence):
        figure = _INTERVAL if found[2] == "interval" else NUMBER
        pattern += re.escape(sentence[end : found.start()]) + figure
        end = found.end()
    return re.compile(pattern + re.escape(sentence[end:]))


def sentences() -> dict[str, list[str]]:
    """The sentences with references, by page."""
    found: dict[str, list[str]] = {page: [] for page in PAGES}
    page = ""
    for line in (pathlib.Path(__file__).with_name("quoted_sentences.txt")).read_text().splitlines():
        if line.startswith("docs/"):
            page = line
        elif line:
            found[page].append(line)
    return found


def written(page: str, text: str) -> str:
    """The page with the rows' figures in its sentences and tables.

    Raises ValueError where the page lacks a sentence.
    """
    for sentence in sentences()[page]:
        bare = sentence.lstrip("= ")
        count = len(wording(bare).findall(text))
        if count == 0 or (count > 1 and "{" in sentence):
            raise ValueError(f"{page} has {count} times: {sentence}")
        text = wording(bare).sub(filled(bare).replace("\\", r"\\"), text)
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + "\n" + found[3], text)


def untied(page: str, text: str) -> list[str]:
    """Figures with a decimal point that no sentence and no table ties to a row, with what stands
    before them.
    """
    bare = _NAMES.sub("", _WRITTEN.sub("", TABLE.sub("", text)))
    for sentence in sentences()[page]:
        bare = bare.replace(_NAMES.sub("", filled(sentence.lstrip("= "))), "")
    return [
        bare[max(0, found.start() - 30) : found.end()].replace("\n", " ")
        for found in re.finditer(r"(?<![\w.])[-+]?\d*\.\d+", bare)
    ]


def _regrets_by_r() -> str:
    """The paper's nine tables beside our rows."""
    rows = []
    for name, found in stored("po_gp_ucb").items():
        if not name.startswith("by r, ") or "l = 1.25" in name:
            continue
        cells = []
        for row in found["rows"]:
            r, printed, mean, error = (row[key] for key in ("r", "paper's", "mean S_T", "SE"))
            cells.append(f"{r.split()[0]}: {printed:g}, {mean:.2g} ({error:.1g})")
        rows.append([name.removeprefix("by r, ").replace(", l = 5", ""), *cells])
    return table(["problem, epsilon", *["r: printed, ours (error)"] * 6], rows)


def _noisy() -> str:
    """C.5's losses."""
    rows = [
        [name, each["mean"], each["se"], each["median"]]
        for name, each in stored("dpgibo")["noisy"]["losses"].items()
    ]
    return table(["true loss, ten seeds", "mean", "standard error", "median"], rows)


def _starts() -> str:
    """4.3 with other settings, on fresh seeds."""
    found = stored("dpgibo_settings")["settings"]
    claims = {each["claim"]: each["measured"] for each in found["findings"]}
    rows = []
    for name, each in found["losses"].items():
        gap = claims.get(f"{name}: below random search", "")
        rows.append([name, each["mean"], each["median"], gap.replace("below in ", "")])
    header = ["mu = 1, 275 evaluations", "mean", "median", "minus random [95 %], how often below"]
    return table(header, rows)


def _tested() -> dict[str, Any]:
    """What `python -m benchmarks.zoo.tested` stored of each set of tables."""
    return {which: stored(f"tested_{which}") for which in ("open", "locked", "zoo")}


def rows_at(place: str) -> Callable[[], str]:
    """The rows at a place, as they are stored."""

    def shown_rows() -> str:
        rows = looked_up(place)
        return table(list(rows[0]), [list(row.values()) for row in rows])

    return shown_rows


TABLES: dict[str, Callable[[], str]] = {
    "regrets by r": _regrets_by_r,
    "noisy observations": _noisy,
    "public design": rows_at("kusner > public design"),
    "last and largest": rows_at("kusner > last and largest"),
    "ways for 4.3": _starts,
    "NICV": rows_at("dpem > figure 4 > rows"),
    "factors as coded": rows_at("dpem > factors as coded"),
    "noise by units": quoted_tables.noise_by_units,
    "zoo in short": lambda: quoted_tables.zoo_in_short(stored("zoo")["cells"]),
    "zoo kept back": lambda: quoted_tables.zoo_kept_back(stored("zoo")["cells"]),
    "tested in short": lambda: quoted_tables.tested_in_short(_tested()),
    "tested tasks": lambda: quoted_tables.tested_tasks(_tested()),
    "zoo ways": lambda: quoted_tables.zoo_ways(stored("zoo_ways")["ways"]),
    "few records": lambda: quoted_tables.few_records(stored("small_data")["means of the tasks"]),
    "few records by task": lambda: quoted_tables.few_records_by_task(stored("small_data")["cells"]),
    "gradients on a GPU": lambda: quoted_tables.gradients_on_a_gpu(stored("gpu")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the figures into the pages")
    chosen = parser.parse_args()
    for page in PAGES:
        text = (ROOT / page).read_text()
        new = written(page, text)
        if new != text:
            print(f"{page} differs from the stored rows")
            if chosen.write:
                (ROOT / page).write_text(new)
        for each in untied(page, new):
            print(f"{page}: tied to no row: {each}")


if __name__ == "__main__":
    main()
