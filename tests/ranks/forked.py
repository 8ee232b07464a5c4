"""What goes wrong on ranks, each case in fresh processes forked from this one: `python -m tests.ranks.forked FOLDER` writes what each met.

Ranks meet in a file, so that no rank's death takes the meeting place along. A rank that is killed is killed by SIGKILL, by itself, at a
named point; draws are noted in a file, synced before the noise is drawn, so that nothing it did can hide.
"""

import datetime
import functools
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import torch
import torch.distributed as dist

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Ranks, Space
from dpbo.accounting.filters import RDPFilter
from dpbo.algorithms.em import DPGaussianMixture
from dpbo.algorithms.selection import NoisedScore, private_selection
from dpbo.curator.curator import Curator as Watched
from dpbo.curator.inside import noised_inside
from dpbo.curator.ledger import Ledger
from dpbo.errors import PrivacyError
from dpbo.laws import TruncatedNegativeBinomial
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.queries import ClippedMean, QuantileUtilities, RowOutcome
from tests.ranks.searches import BOUNDS, D, exact, gibo, loss, opened, rows

SIZE, STEPS = 4, 6
Ranked = Callable[[Ranks, pathlib.Path], Any]


def search(ranks: Ranks | None, folder: pathlib.Path) -> list[Any]:
    """Six iterations on a ledger; what was released, step by step, goes into a file of this rank's."""
    curator = opened(ranks, budget=Budget.gdp(1.0), dataset="d", ledger=str(folder / "l.db"))
    seen = folder / f"seen{-1 if ranks is None else ranks.rank}"

    def note(run: DPGIBO) -> None:
        seen.write_text(json.dumps(run.state_dict()["gradients"]))

    run = DPGIBO(curator, loss, bounds=BOUNDS, budget=1.0, iterations=STEPS, batch_size=D + 1, clip=1.0, callback=note)
    return run.run().gradients.tolist()


def dies(who: int, title: str, method: str, times: int) -> Ranked:
    """The search, in which one rank kills itself at the so-manieth step of this title, on entering this method."""

    def job(ranks: Ranks, folder: pathlib.Path) -> Any:
        original, calls = getattr(Ranks, method), 0

        def watched(self: Ranks, *arguments: Any) -> Any:
            nonlocal calls
            calls += (title in (self._doing, arguments[0])) if ranks.rank == who else 0
            if calls == times:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *arguments)

        setattr(Ranks, method, watched)
        return search(ranks, folder)

    return job


def dies_while_drawing(ranks: Ranks, folder: pathlib.Path) -> Any:
    """Charged, not drawn."""
    draw, calls = Watched._draw, 0

    def watched(self: Curator, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(self, *arguments)

    Watched._draw = watched  # type: ignore[method-assign, assignment]
    return search(ranks, folder)


def unit_on_two_ranks(ranks: Ranks, folder: pathlib.Path) -> Any:
    labels = torch.arange(5) + 4 * ranks.rank  # 4, 8 and 12 twice
    unit = PrivacyUnit("patient", groups=labels.double() if ranks.rank == 1 else labels)
    return Curator(torch.rand(5), unit=unit, adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0), dataset="d",
                   ledger=str(folder / "l.db"), ranks=ranks)  # fmt: skip


def words_and_numbers(ranks: Ranks, folder: pathlib.Path) -> Any:
    """In tuples, which is the harder case."""
    labels = np.empty(1, dtype=object)
    labels[0] = ("a", ranks.rank if ranks.rank else "0")
    unit = PrivacyUnit("patient", groups=labels)
    return Curator(torch.rand(1), unit=unit, adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0), ranks=ranks)


def other_questions(ranks: Ranks, folder: pathlib.Path) -> Any:
    """Rank 3 asks at another point; then all ask alike, and only that is charged."""
    curator = opened(ranks, dataset="d", ledger=str(folder / "l.db"))
    objective = PrivateObjective(curator, lambda x, r: -loss(x, r), score_range=(-2.0, 0.0), evaluations=3)
    met = [met_by(lambda: objective(torch.full((1, D), 0.1 + 1e-16 * (ranks.rank == 3), dtype=torch.float64)))]
    met.append(met_by(lambda: curator.statement() if ranks.rank == 3 else None))  # needs no others
    met.append(met_by(lambda: curator.evaluate(_mean()) if ranks.rank == 3 else curator.reserve("p", _event(), slots=1, terms={})))
    met.append(met_by(lambda: curator.release(_mean(), GaussianMechanism(20.0 + (ranks.rank == 1)))))
    objective(torch.full((1, D), 0.1, dtype=torch.float64))
    return [*met, [record.kind for record in curator.ledger.records()].count("charge"), objective.remaining]


def other_terms(ranks: Ranks, folder: pathlib.Path) -> Any:
    return opened(ranks, budget=Budget.gdp(1.0 + (ranks.rank == 2)), dataset="d", ledger=str(folder / "l.db"))


def refused_by_one(ranks: Ranks, folder: pathlib.Path) -> Any:
    """What goes wrong on one rank goes wrong on all; the curator lives on."""
    curator = opened(ranks)

    def fails(x: Any, r: torch.Tensor) -> torch.Tensor:
        if ranks.rank == 3 and len(r) > 5:
            raise ValueError("secret")
        return r[:, 0]

    def breaks(x: Any) -> Any:
        if ranks.rank == 2:
            raise ZeroDivisionError
        return x

    met = [met_by(lambda: curator.evaluate(ClippedMean(fails, score_range=(0.0, 1.0))))]
    met.append(met_by(lambda: curator.evaluate(ClippedMean(lambda _, r: r[:, 0], 1, score_range=(0.0, 1.0), fit=breaks))))
    met.append(met_by(lambda: curator.evaluate(QuantileUtilities(lambda _, r: r[:, 0], candidates=[0.1, 0.2], quantile=0.5))))
    met.append(met_by(lambda: curator.evaluate(RowOutcome(lambda r: 0.5, row=0, value_range=(0.0, 1.0)))))
    met.append(met_by(lambda: curator.ledger.note("assume", "x")))
    met.append(met_by(lambda: DPGaussianMixture(2, budget=0.1, radius=4.0, dimension=D).fit(curator)))
    met.append(met_by(lambda: curator.reserve("much", GaussianMechanism(0.01).event(), slots=100, terms={})))
    curator.release(_mean(), GaussianMechanism(20.0))
    return [*met, "score-total" in curator.statement().assumptions]


def fail_in_two_ways(ranks: Ranks, folder: pathlib.Path) -> Any:
    """Each rank in a way of its own; nobody is left waiting, and who changed its records says so ever after."""
    curator = opened(ranks)

    class Local(PrivacyError):
        """Cannot be pickled."""

    def score(_: Any, r: torch.Tensor) -> torch.Tensor:
        if ranks.rank == 0 and len(r) > 5:
            raise ValueError("secret")
        return r[:, 0] if len(r) == 5 else r.mul_(0.5)[:, 0]

    def breaks(_: Any, error: type[Exception] = ZeroDivisionError) -> None:
        if ranks.rank == (error is ZeroDivisionError):
            raise error

    met = [met_by(lambda: curator.evaluate(ClippedMean(score, 1, score_range=(0.0, 1.0), fit=breaks)))]
    met.append(met_by(lambda: curator.evaluate(ClippedMean(score, score_range=(0.0, 1.0)))))
    met.append(met_by(lambda: curator.evaluate(_mean())))
    other = opened(ranks)
    local = ClippedMean(lambda _, r: r[:, 0], 1, score_range=(0.0, 1.0), fit=lambda x: breaks(x, Local))
    met.append(met_by(lambda: other.evaluate(local)))
    bound = functools.partial(loss, torch.full((D,), 0.5 + ranks.rank))
    met.append(met_by(lambda: other.evaluate(ClippedMean(lambda _, r: r[:, 0], bound, score_range=(0.0, 1.0)))))
    return met


def fails_on_one_shard(ranks: Ranks, folder: pathlib.Path) -> Any:
    """The first rank's only unit cannot be scored: one failure among all, on ranks as in one process."""

    def score(_: Any, r: torch.Tensor) -> torch.Tensor:
        if (r == rows()[0]).all(1).any():
            raise ValueError
        return r[:, 1]

    open_, mean = NoNoise(allow_not_private=True), ClippedMean(score, score_range=(0.0, 1.0))
    return [opened(which).release(mean, open_).value.tolist() for which in (ranks, None)]


def no_hidden_runs(ranks: Ranks, folder: pathlib.Path) -> Any:
    """A rank sees its own shard alone, so it cannot draw for all: refused before anything is reserved."""
    curator = opened(ranks, budget=Budget(1.0, 1e-6), accounting=RDPFilter(64.0))
    space, law = Space(t=scipy.stats.uniform(0.0, 1.0)), TruncatedNegativeBinomial.of_mean(5.0)
    scored = NoisedScore(lambda _, r: r[:, 0], (0.0, 1.0), GaussianMechanism(50.0))
    met = [met_by(lambda: private_selection(curator, lambda p: p, space=space, law=law, score=scored))]
    met.append(met_by(lambda: noised_inside(curator, _mean(), GaussianMechanism(50.0))))
    return [*met, curator.ledger.head().seq]


def comes_late(ranks: Ranks, folder: pathlib.Path) -> Any:
    patient = Ranks(timeout=datetime.timedelta(seconds=1))
    curator = opened(patient)
    if ranks.rank == 1:
        time.sleep(20)
    return curator.release(_mean(), GaussianMechanism(20.0))


def no_records(ranks: Ranks, folder: pathlib.Path) -> Any:
    return Curator(torch.rand(0, 2), unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0), ranks=ranks)


def refused_before_it_is_asked(ranks: Ranks, folder: pathlib.Path) -> Any:
    """Rank 1 gives arguments that are refused before any collective; then all go on together. Last, all are refused alike."""
    odd: Any = "" if ranks.rank == 1 else "release"
    role: Any = None if ranks.rank == 1 else "validation"
    made = met_by(lambda: opened(ranks, budget=Budget.gdp(1.0), role=role))
    curator = opened(ranks, budget=Budget.gdp(1.0))
    handle = curator.evaluate(_mean())
    apart = met_by(lambda: curator.release_all([handle], GaussianMechanism(50.0), name=odd))
    detail: Any = object() if ranks.rank == 1 else 0.5
    named = met_by(lambda: curator.evaluate(_mean(), x=detail))
    together = curator.release(handle, GaussianMechanism(50.0)).value.tolist()
    wrong: Any = 3
    alike = met_by(lambda: curator.release_all(wrong, GaussianMechanism(50.0)))
    return made, apart, named, alike, together, len([r for r in curator.ledger.records() if r.kind == "charge"])


def others_take_turns(ranks: Ranks, folder: pathlib.Path) -> Any:
    """Who is no rank spends of the same plan in between, and all ranks note it together."""
    url, X = str(folder / "l.db"), torch.zeros(1, D, dtype=torch.float64)
    curator = opened(ranks, budget=Budget.gdp(1.0), dataset="d", ledger=url)
    search = PrivateObjective(curator, lambda _, r: r[:, 0].clamp(0.0, 1.0), score_range=(0.0, 1.0), evaluations=4)
    told = []
    for _ in range(3):
        search(X)
        told.append("durations-tell-nothing" in curator.statement().assumptions)
        if ranks.rank == 0 and len(told) == 2:
            other = Ledger.existing(url)
            (charge, *_) = other.charges(search.name)
            slot = {**charge.body["slots"][0], "handle": "another"}
            other.charge(search.name, charge.event, {"units": charge.body["units"], "slots": [slot]}, search.name)
    return told


def on_devices(ranks: Ranks, folder: pathlib.Path) -> Any:
    """Partial sums by NCCL from records on CUDA, against one process with all records on CUDA."""
    torch.cuda.set_device(ranks.rank)
    return [gibo(opened(which, device="cuda"), NoNoise(allow_not_private=True)) for which in (ranks, None)]


def _mean() -> ClippedMean:
    return ClippedMean(lambda _, r: r[:, 0], score_range=(0.0, 1.0))


def _event() -> Any:
    return GaussianMechanism(50.0).event()


def met_by(work: Callable[[], Any]) -> Any:
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


JOBS: dict[str, tuple[int, Ranked]] = {
    "exact1": (1, lambda ranks, _: exact(ranks)),
    "exact2": (2, lambda ranks, _: exact(ranks)),
    "exact3": (3, lambda ranks, _: exact(ranks)),
    "dies before a charge": (SIZE, dies(2, "release dpgibo", "first", 3)),
    "dies between charge and value": (SIZE, dies_while_drawing),
    "dies before it tells the value": (SIZE, dies(0, "release dpgibo", "_shared", 3)),
    "dies after the value": (SIZE, dies(2, "evaluate ClippedGradient", "sum", 4)),
    "unit on two ranks": (SIZE, unit_on_two_ranks),
    "words and numbers": (SIZE, words_and_numbers),
    "other questions": (SIZE, other_questions),
    "other terms": (SIZE, other_terms),
    "refused by one": (SIZE, refused_by_one),
    "fail in two ways": (2, fail_in_two_ways),
    "fails on one shard": (3, fails_on_one_shard),
    "no hidden runs": (2, no_hidden_runs),
    "comes late": (SIZE, comes_late),
    "no records": (SIZE, no_records),
    "refused before it is asked": (2, refused_before_it_is_asked),
    "others take turns": (2, others_take_turns),
    "on devices": (min(SIZE, torch.cuda.device_count()), on_devices),
}


def run_rank(name: str, rank: int, size: int, folder: pathlib.Path) -> None:
    draw = Watched._draw

    def noted(self: Curator, handle: Any, *arguments: Any) -> Any:
        with (folder / "draws").open("a") as file:
            file.write(f"{rank} {handle.id}\n")
            file.flush()
            os.fsync(file.fileno())
        return draw(self, handle, *arguments)

    Watched._draw = noted  # type: ignore[method-assign, assignment]
    wait = datetime.timedelta(seconds=90)
    dist.init_process_group(
        "nccl" if "devices" in name else "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size, timeout=wait
    )
    begun = time.perf_counter()
    ranks = Ranks(timeout=wait)
    try:
        value, error = JOBS[name][1](ranks, folder), None
    except PrivacyError as refused:
        value, error = None, [type(refused).__name__, str(refused)]
    met = {"value": value, "error": error, "seconds": time.perf_counter() - begun}
    (folder / f"{rank}.json").write_text(json.dumps(met, default=str))


def main(folder: pathlib.Path, names: list[str]) -> None:
    forking = multiprocessing.get_context("fork")
    for name in names or JOBS:
        place = folder / name.replace(" ", "_")
        place.mkdir()
        children = [forking.Process(target=run_rank, args=(name, rank, JOBS[name][0], place)) for rank in range(JOBS[name][0])]
        for child in children:
            child.start()
        for child in children:
            child.join(200)
        (place / "exits").write_text(json.dumps([child.exitcode for child in children]))
        if "dies" in name:
            (place / "after.json").write_text(json.dumps(_again(place)))


def _again(place: pathlib.Path) -> list[Any]:
    """The search anew, by one process with all records, on the ledger that was left behind."""
    queue: Any = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=lambda: queue.put(search(None, place)))
    child.start()
    result = queue.get()
    child.join()
    return result


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
