"""What a user waits for, and the memory that it takes: whole searches, runs, reports, statements,
tables and evaluations, beside what a user would call otherwise.

Times are medians of runs in turn, one thread; of searches and without a peer the processor's, so
that other work on the machine does not count. "Wanted" is the largest ratio, time or memory that
the project allows itself; "1.5 + 1 s" is 1.5 times the peer's time and a second. Each kind of work
runs in a process of its own, as what ran before in one decides how fast it gets memory. A report's
memory includes 360 MiB of imports; other memory is what comes on top of the records. `--large` adds
a report of 100,000 values, whose ledger takes minutes to make.
Searches take most of the time; `--only statements` leaves them out.

    python -m benchmarks.end_to_end [--smoke] [--large] [--json FILE] [--only TEXT]
"""

import dataclasses
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import loguniform, randint, uniform
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RandomizedSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch.utils.data import TensorDataset

from benchmarks.__main__ import fresh
from benchmarks.harness import interleaved, named, options, ratio, record, table, with_bar
from benchmarks.main_job import few
from benchmarks.overhead import curator_of, peak_memory
from dpbo import Adjacency, Budget, Curator, DPSearch, Privacy, PrivateObjective, Space, demo
from dpbo.accounting import Planned
from dpbo.dpsgd import Session, plan_tuning, tune
from dpbo.events import PoissonGaussianEvent
from dpbo.gibo import ClippedGradient
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.records.digests import table_digest
from dpbo.records.labels import numbered
from dpbo.search.public_scores import public_candidates
from examples import tuning_dpsgd

HEADER = ("work", "peer", "s", "s of the peer", "ratio", "MiB", "wanted", "reached")
REPORT = """
import re, time
from dpbo.__main__ import main
start = time.process_time()
main(["report", {file!r}, "--output", {page!r}])
seconds = time.process_time() - start
# Of this process since it began; getrusage also counts the one that it was forked from.
kilobytes = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(seconds, int(kilobytes) / 1024)
"""
PART = """
import json
from benchmarks import end_to_end
end_to_end.one_thread()
print(json.dumps(end_to_end.{part}(False)))
"""
KEY = bytes(32)


def line(
    work: str,
    mine: Sequence[float],
    *,
    peer: str = "",
    theirs: Sequence[float] = (),
    memory: float | None = None,
    wanted: dict[str, float],
) -> list[Any]:
    """One line of the table; `wanted` holds limits of `ratio`, `s` and `MiB`, and `more`, the
    seconds that come on top of the ratio.
    """
    found: dict[str, Any] = {"s": statistics.median(mine), "ratio": "", "MiB": ""}
    if theirs:
        found["ratio"] = ratio(mine, theirs)
    if memory is not None:
        found["MiB"] = round(memory)
    if "more" in wanted:
        limits = f"{wanted['ratio']:g} + {wanted['more']:g} s"
        most = wanted["ratio"] * statistics.median(theirs) + wanted["more"]
        reached = found["s"] <= most
    else:
        limits = ", ".join(
            f"{limit:g}" if name == "ratio" else f"{limit:g} {name}"
            for name, limit in wanted.items()
        )
        reached = all(found[name] <= limit for name, limit in wanted.items())
    of_peer = statistics.median(theirs) if theirs else ""
    return [
        work,
        peer,
        found["s"],
        of_peer,
        found["ratio"],
        found["MiB"],
        limits,
        "yes" if reached else "no",
    ]


def processor_times(*works: Callable[[], Any], repetitions: int) -> list[list[float]]:
    """Seconds of the processor for each work and repetition, in turn, after a first one; a single
    repetition is the first one.
    """
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repetitions + (repetitions > 1)):
        for work, seconds in zip(works, times, strict=True):
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
    return [seconds[-repetitions:] for seconds in times]


def tuned_models(census: demo.Census) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Models of scikit-learn's that a user tunes, each with its space."""
    weight = [None, "balanced"]
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    machine = make_pipeline(StandardScaler(), SVC())
    neighbours = make_pipeline(StandardScaler(), KNeighborsClassifier())
    return {
        "logistic regression": (
            linear,
            {
                "logisticregression__C": loguniform(1e-4, 10.0),
                "logisticregression__class_weight": weight,
            },
        ),
        "boosting": (census.model(), demo.SPACE),
        "SVC": (
            machine,
            {
                "svc__C": loguniform(0.01, 100.0),
                "svc__gamma": loguniform(1e-3, 1.0),
                "svc__class_weight": weight,
            },
        ),
        "forest of 50": (
            RandomForestClassifier(50, random_state=0),
            {
                "min_samples_leaf": randint(1, 60),
                "max_features": uniform(0.1, 0.9),
                "class_weight": weight,
            },
        ),
        "nearest neighbours": (
            neighbours,
            {
                "kneighborsclassifier__n_neighbors": randint(1, 30),
                "kneighborsclassifier__weights": ["uniform", "distance"],
            },
        ),
    }


def searches(smoke: bool) -> list[list[Any]]:
    """Searches for a model of 1,500 public records by 1,000 protected ones, beside one by
    cross-validation of the same candidates on the former, whose fits may take half as long for
    other candidates, and one that scores on the latter in the open.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Of logistic regressions and Gaussian processes.
    warnings.simplefilter("ignore")
    census = few(demo.split(0)) if smoke else demo.split(0)
    models = tuned_models(census)

    def ours(name: str, count: int, strategy: str = "auto") -> None:
        DPSearch(
            *models[name],
            budget=Budget(1.0, 1e-6),
            n_iter=count,
            strategy=strategy,
            privacy=Privacy(allow_repeated=True),
        ).fit(*census.train, *census.protected)

    def by_cross_validation(name: str, count: int) -> None:
        model, distributions = models[name]
        space = Space(**distributions)
        candidates = map(space.decode, public_candidates(space, count, seed=0))
        listed = [{key: [value] for key, value in one.items()} for one in candidates]
        RandomizedSearchCV(model, listed, n_iter=count, random_state=0).fit(*census.train)

    def by_optuna(count: int) -> None:
        model, space = models["logistic regression"]
        (C, low_to_high), (weight, weights) = space.items()

        def score(trial: optuna.Trial) -> float:
            given = {
                C: trial.suggest_float(C, *low_to_high.support(), log=True),
                weight: trial.suggest_categorical(weight, weights),
            }
            fitted = clone(model).set_params(**given).fit(*census.train)
            return float(fitted.score(*census.protected))

        sampler = optuna.samplers.GPSampler(seed=0)
        optuna.create_study(direction="maximize", sampler=sampler).optimize(score, n_trials=count)

    rows = []
    counts = {3: 1} if smoke else {24: 2, 100: 1}
    for count, repetitions in counts.items():
        for name in models:
            mine, theirs = processor_times(
                partial(ours, name, count),
                partial(by_cross_validation, name, count),
                repetitions=repetitions,
            )
            rows.append(
                line(
                    f"DPSearch, {count} candidates, {name}",
                    mine,
                    peer="RandomizedSearchCV",
                    theirs=theirs,
                    wanted={"ratio": 1.5, "more": 1},
                )
            )
        mine, theirs = processor_times(
            partial(ours, "logistic regression", count, "bo"),
            partial(by_optuna, count),
            repetitions=repetitions,
        )
        rows.append(
            line(
                f'DPSearch, {count} candidates, logistic regression, "bo"',
                mine,
                peer="Optuna's GPSampler",
                theirs=theirs,
                wanted={"ratio": 1, "more": 0.5},
            )
        )
    return rows


def training(smoke: bool) -> list[list[Any]]:
    """What `tune` adds to its runs; `benchmarks.dpsgd_step` has a step."""
    # Of Opacus' generators and hooks.
    warnings.simplefilter("ignore")
    runs, epochs = (2, 1) if smoke else (10, 5)
    records, validation, _ = tuning_dpsgd.parts()
    training = TensorDataset(*records)
    terms = dataclasses.replace(tuning_dpsgd.TERMS, epochs=epochs)
    # Each plan is new, or what was composed before would be told again.
    plans = [
        plan_tuning(
            Budget(6.0 + 0.1 * number, 1e-5),
            terms,
            runs=runs,
            validation=tuning_dpsgd.VALIDATION,
            adjacency=tuning_dpsgd.RELATION,
        )["search"]
        for number in range(1 if smoke else 4)
    ]
    left = iter(plans)

    def tuned() -> None:
        tune(
            tuning_dpsgd.fit,
            tuning_dpsgd.right,
            training=training,
            validation=validation,
            space=tuning_dpsgd.SPACE,
            plan=next(left),
            allow_repeated=True,
        )

    def run_alone() -> None:
        for _ in range(runs):
            tuning_dpsgd.fit(tuning_dpsgd.DEFAULTS, Session(training, plans[0].config))

    mine, theirs = processor_times(tuned, run_alone, repetitions=max(1, len(plans) - 1))
    return [
        line(
            f"tune, {runs} runs of {terms.epochs * terms.batches} steps",
            mine,
            peer="the runs alone",
            theirs=theirs,
            wanted={"ratio": 1, "more": 1},
        )
    ]


def reports(smoke: bool) -> list[list[Any]]:
    """Pages of one objective's released values, by the command."""
    limits: dict[int, dict[str, float]] = {1000: {"s": 5}, 10_000: {"s": 10, "MiB": 500}}
    return _reports({100: {"s": 5}} if smoke else limits)


def large_report(smoke: bool) -> list[list[Any]]:
    """The same, larger."""
    return _reports({1000 if smoke else 100_000: {"s": 60}})


def _reports(limits: dict[int, dict[str, float]]) -> list[list[Any]]:
    rows = []
    space = Space(**{f"x{i}": uniform(0, 1) for i in range(3)})
    for count, limit in limits.items():
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/ledger.db"
            curator = Curator(
                torch.rand(2000, dtype=torch.float64),
                unit="record",
                adjacency=Adjacency.REPLACE_ONE,
                budget=Budget(3.0, 1e-6),
                dataset="records",
                ledger=file,
            )
            objective = PrivateObjective(
                curator,
                lambda x, records: records * (1 - (x - 0.4).square().sum()),
                score_range=(0.0, 1.0),
                evaluations=count,
            )
            for points in torch.split(space.sample(count, seed=0), 1000):
                objective(points)
            code = REPORT.format(file=file, page=f"{folder}/report.html")
            seconds, memory = map(float, fresh(code).split()[-2:])
        rows.append(
            line(f"report, {count:,} released values", [seconds], memory=memory, wanted=limit)
        )
    return rows


def statements(smoke: bool) -> list[list[Any]]:
    """Statements under `Planned`, and of many releases, and opening their ledger."""
    repetitions = 2 if smoke else 5
    noise = iter(np.linspace(2.0, 2.1, repetitions + 1).tolist())

    def planned() -> None:
        # Each is new, or what was composed before would be told again.
        event = PoissonGaussianEvent(next(noise), 100, rate=0.1, relation="replace-one")
        Curator(
            torch.ones(100),
            unit="record",
            adjacency=Adjacency.REPLACE_ONE,
            budget=Budget(6.0, 1e-5),
            accounting=Planned([event]),
        ).statement()

    (times,) = processor_times(planned, repetitions=repetitions)
    rows = [line("statement of 100 steps of DP-SGD under Planned", times, wanted={"s": 0.5})]
    releases = 20 if smoke else 2000
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/ledger.db"
        curator = curator_of(torch.rand(100), dataset="records", ledger=file)
        for _ in range(releases):
            curator.release(
                ClippedMean(lambda _, records: records, score_range=(0.0, 1.0)),
                GaussianMechanism(1000.0),
            )
        for work, call in (
            ("statement", curator.statement),
            ("opening", lambda: Ledger.open(file)),
        ):
            (times,) = processor_times(call, repetitions=repetitions)
            name = f"{work} of {releases:,} releases in a file"
            rows.append(line(name, times, wanted={"s": 0.01 + 1e-5 * releases}))
    return rows


def labels(smoke: bool) -> list[list[Any]]:
    """Labels of groups."""
    count = 10**4 if smoke else 3 * 10**6
    ids = np.random.default_rng(0).integers(0, count // 6, count)
    texts = [f"customer-{i}" for i in ids.tolist()]
    rows = []
    for name, given in (("text", texts), ("whole-number", ids)):
        array = np.array(given, dtype=object) if name == "text" else ids
        mine, theirs = interleaved(
            lambda given=given: numbered("groups", given),  # type: ignore[misc]
            lambda array=array: pd.factorize(array),  # type: ignore[misc]
            repetitions=3,
        )
        work = f"{count:,} {name} labels"
        rows.append(line(work, mine, peer="pandas.factorize", theirs=theirs, wanted={"ratio": 2}))
    return rows


def fingerprints(smoke: bool) -> list[list[Any]]:
    """Digests of tables, as a plan keeps them."""
    count = 10**3 if smoke else 10**6
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draw.integers(0, 90, count),
            "x": draw.normal(size=count),
            "name": [f"person {i}" for i in draw.integers(0, count // 2, count)],
        }
    )
    tensor = torch.randn(10 * count, 4)
    rows = []
    tables: tuple[tuple[str, Any, str, Callable[[], Any]], ...] = (
        (
            f"fingerprint of a frame, {count:,} rows, one of text",
            frame,
            "pandas.util.hash_pandas_object",
            lambda: pd.util.hash_pandas_object(frame, index=False),
        ),
        (f"fingerprint of {10 * count:,} x 4 numbers", tensor, "their sum", tensor.sum),
    )
    for work, records, peer, read in tables:

        def digest(held: Any = records) -> Any:
            return table_digest(held, KEY)

        memory = peak_memory(digest)
        mine, theirs = interleaved(digest, read, repetitions=3)
        rows.append(
            line(
                work, mine, peer=peer, theirs=theirs, memory=memory, wanted={"ratio": 3, "MiB": 100}
            )
        )
    return rows


def evaluations(smoke: bool) -> list[list[Any]]:
    """Memory and time of scores and losses of many records."""
    count = 10**4 if smoke else 2 * 10**7
    records = torch.randn(count, 4)
    mean = ClippedMean(lambda _, r: r[:, 0] * r[:, 1], score_range=(-1.0, 1.0))
    curator = curator_of(records)
    curator_of(records[:1000]).evaluate(mean)
    memory = peak_memory(lambda: curator.evaluate(mean))
    mine, theirs = interleaved(
        lambda: curator.evaluate(mean),
        lambda: (records[:, 0] * records[:, 1]).mean(),
        repetitions=3,
    )
    name = f"one evaluation on {count:,} records"
    rows = [
        line(
            name, mine, peer="mean", theirs=theirs, memory=memory, wanted={"ratio": 1.5, "MiB": 100}
        )
    ]
    users = torch.rand(10**3 if smoke else 10**6, 2)

    def loss(x: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
        return (users[:, 0] - x[0]).abs() + users[:, 1] * x[1]

    curator = curator_of(users)
    for d in (3,) if smoke else (33, 100, 300):
        X = torch.rand(d + 1, d, dtype=torch.float64)
        weights = torch.randn(d, d + 1, dtype=torch.float64)
        gradient = ClippedGradient(loss, X, weights=weights, clip=1.0)

        def unclipped(X: torch.Tensor = X, weights: torch.Tensor = weights) -> None:
            for some in torch.split(users, 1 << 14):
                torch.stack([loss(x, some) for x in X], dim=1).double() @ weights.T

        def clipped(gradient: ClippedGradient = gradient) -> Any:
            return curator.evaluate(gradient)

        memory = peak_memory(clipped)
        mine, theirs = interleaved(clipped, unclipped, repetitions=3)
        name = f"clipped gradient, {len(users):,} users, d = {d}"
        peer = "losses and their product"
        wanted = {"ratio": 3.0, "MiB": 100.0}
        rows.append(line(name, mine, peer=peer, theirs=theirs, memory=memory, wanted=wanted))
    return rows


PARTS: tuple[Callable[[bool], list[list[Any]]], ...] = (
    searches,
    training,
    reports,
    statements,
    labels,
    fingerprints,
    evaluations,
)


def one_thread() -> None:
    """Of torch, of BLAS and of whatever else scikit-learn takes."""
    torch.set_num_threads(1)
    threadpool_limits(1)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, only="", large=False)
    one_thread()
    rows = []
    parts = [*PARTS, large_report] if chosen.large else PARTS
    parts = [part for part in parts if chosen.only in part.__name__]
    for part in with_bar(parts):
        if chosen.smoke or len(parts) == 1:
            rows += part(chosen.smoke)
        else:
            rows += json.loads(fresh(PART.format(part=part.__name__)))
    print(table(HEADER, rows))
    record("end_to_end", {"rows": named(HEADER, rows)}, chosen)


if __name__ == "__main__":
    main()
