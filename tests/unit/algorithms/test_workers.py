"""Threads, processes, loky and Dask: the same integers, any order of release; a killed worker costs
no charge and no second noise.
"""

import contextlib
import functools
import os
import traceback
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import dask
import loky
import pytest
import torch
from distributed import Client, LocalCluster

from dpbo import Budget, PrivacyUnit, PrivateObjective, Source
from dpbo.algorithms import AsynchronousBO
from dpbo.errors import PrivateFailure, WorkersDied
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, charged, of, owner, stored
from tests.unit.algorithms.test_asynchronous import SPACE, quick, require_same, search
from tests.unit.algorithms.worker_scores import RECORDS, Noting, Patient, load, near, trouble

X = torch.tensor([[0.1, 0.2], [0.5, 0.5], [0.9, 0.3], [0.5, 0.5]], dtype=DOUBLE)
# their workers take seconds to start
DEEP = [pytest.param(kind, marks=pytest.mark.deep) for kind in ("loky", "dask")]
KEPT = dict[str, Executor]()  # a worker takes seconds to import torch


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def makers(request):
    """Kind -> a callable that makes its executor, or hands on the one that an earlier test left in
    KEPT.
    """
    spawn = get_context("spawn")
    fresh = of(
        threads=functools.partial(ThreadPoolExecutor, 2),
        processes=functools.partial(ProcessPoolExecutor, 1, mp_context=spawn),
        loky=functools.partial(loky.ProcessPoolExecutor, 1),
        dask=lambda: request.getfixturevalue("client").get_executor(pure=False),
    )
    yield {kind: functools.partial(_kept_or, kind, make) for kind, make in fresh.items()}
    for executor in KEPT.values():
        executor.shutdown()


def _kept_or(kind, make):
    return KEPT.pop(kind) if kind in KEPT else make()


class Counted(SeededEntropy):
    """How often noise was asked for, in this process."""

    calls = 0

    def __call__(self, size):
        self.calls += 1
        return super().__call__(size)


def planned(score, records=None, *, evaluations=6, entropy=None, **changes):
    curator = owner(
        load() if records is None else records,
        unit=PrivacyUnit("patient", groups=[i // 3 for i in range(RECORDS)]),
        budget=Budget(8.0, 1e-5),
        entropy=entropy or SeededEntropy(0),
    )
    return PrivateObjective(
        curator, score, score_range=(0.0, 1.0), evaluations=evaluations, **changes
    )


def integers(objective):
    """The exact sums that were released without noise, by x."""
    return {
        tuple(value["details"]["x"]): value["lattice"]
        for value in objective.curator.ledger.values(objective.name)
    }


@pytest.mark.parametrize("kind", ["threads", "processes", *DEEP])
def test_every_executor_gives_the_same_integers_whatever_the_order_of_release(
    makers, kind, tmp_path
):
    exact = {"mechanism": EXACT}
    here = planned(near, **exact)
    here(X)
    score = Noting(tmp_path)
    there = planned(score, Source(load), **exact)
    KEPT[kind] = executor = makers[kind]()
    jobs = [there.submit(x, executor) for x in X]
    for job in reversed(jobs):
        there.release(job.result(timeout=300))
    assert integers(there) == integers(here)
    assert torch.equal(there.history()[0], X.flip(0))
    if kind != "threads":
        _no_worker_can_draw(score)


@pytest.mark.parametrize("kind", ["processes", *DEEP])
@attack("A21")
def test_what_an_executor_says_of_records_that_do_not_pickle_stays_inside(makers, kind):
    """It was raised as it came, with the text of a record; what a fit raises in the open still
    comes as it is.
    """
    executor, told = makers[kind](), []
    with pytest.raises(KeyError, match="no such model"):
        planned(near, fit=trouble).submit(X[0], executor).result(timeout=300)
    # workers of the first die of what they cannot read, without a word
    for pickles in (False,) if kind == "processes" else (False, True):
        with pytest.raises((PrivateFailure, BrokenExecutor)) as refused:
            planned(near, [Patient(pickles)] * RECORDS).submit(X[0], executor).result(timeout=300)
        told += traceback.format_exception(refused.value)
    assert "must pickle for workers in other processes" in "".join(told)
    assert "Lovelace" not in "".join(told)
    if kind == "processes":
        KEPT[kind] = executor


@pytest.mark.parametrize("kind", ["processes", *DEEP])
@attack("A16", "A17")
def test_a_worker_killed_while_it_evaluates_costs_no_charge_and_no_second_noise(
    makers, kind, tmp_path
):
    with ThreadPoolExecutor(2) as threads:
        undisturbed = search(planned(near), threads, workers=2)
    score, entropy = Noting(tmp_path, kill=True), Counted(0)
    objective = planned(score, entropy=entropy)
    # a callable makes new process pools; Dask, which replaces its workers itself, is one executor
    with makers[kind]() if kind == "dask" else contextlib.nullcontext(makers[kind]) as given:
        found = search(objective, given, workers=2)
    place, killed = (tmp_path / "killed").read_text().split("|")
    done = score.evaluations()
    assert len(done) > 6, "the killed evaluation ran a second time"
    processes = [process for x, process, _ in done if x == place]
    assert len(processes) >= 2
    assert set(processes) > {int(killed)}, "and in another process"
    paid = charged(objective.curator.ledger)
    assert len(paid) == len(set(paid)) == 6
    assert paid == stored(objective.curator.ledger)
    assert entropy.calls == 6, "one draw a value, all of them here"
    require_same(found, undisturbed)
    _no_worker_can_draw(score)


@pytest.mark.deep
@attack("A17")
def test_a_job_that_dask_gave_up_loses_no_point_and_no_charge(tmp_path):
    """Dask raises KilledWorker once as many workers died of a job as it allows."""
    with ThreadPoolExecutor(2) as threads:
        undisturbed = search(planned(near), threads, workers=2)
    objective = planned(Noting(tmp_path, kill=True))
    tried = AsynchronousBO(objective, SPACE, initial=4, workers=2, propose=quick)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as connected,
        connected.get_executor(pure=False) as executor,
    ):
        with pytest.raises(WorkersDied, match=r"A worker process died.* Nothing was charged"):
            tried.run(executor)
        found = tried.run(executor)
    require_same(found, undisturbed)


def _no_worker_can_draw(score):
    """What draws noise, and what holds the budget, is not even loaded in a worker."""
    assert all(process != os.getpid() for _, process, _ in score.evaluations())
    assert {drawing for *_, drawing in score.evaluations()} == {""}
