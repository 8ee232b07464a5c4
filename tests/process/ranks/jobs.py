"""What ranks do in real processes: every algorithm that runs on ranks, and what goes wrong on them,
each job in fresh processes.

Ranks meet in a file, so that no rank's death takes the meeting place along. A rank that is killed
is killed by SIGKILL, by itself, at a named point; draws are noted in a file, synced before the
noise is drawn, so that nothing it did can hide. Records are whole numbers of 2^-10 and scores
elementwise, so that every rank computes the same number for a record.
"""

import contextlib
import datetime
import functools
import json
import multiprocessing
import os
import signal
import time
import warnings
from typing import Any

import numpy as np
import scipy.stats
import torch
import torch.distributed as dist

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Ranks, Space
from dpbo.accounting.filters import RDPFilter
from dpbo.dpsgd.selection import NoisedScore, private_selection
from dpbo.entropy import system_entropy
from dpbo.errors import PrivacyError
from dpbo.gibo.algorithm import choose_start
from dpbo.gibo.design import GIBOSettings
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import CellMeans, ClippedMean, QuantileUtilities
from dpbo.records import labels, streaming
from dpbo.records.protected_records import holds_protected
from dpbo.run_counts import TruncatedNegativeBinomial
from dpbo.testing import SeededEntropy
from tests.setups import DOUBLE, EXACT, box, charged, charges, first_column, owner, stored

N = 203
# More than a score is tried on, and fewer than a rank has.
MADE_UP = 20
D = 3
SIZE = 4
STEPS = 6
BOUNDS = box(D)
NOISE = GaussianMechanism(50.0)


def rows(records=N):
    """All records: three clusters, one record that is broken and one far away."""
    draw = np.random.default_rng(0)
    X = (
        np.round(
            (draw.normal(size=(records, D)) * 0.1 + draw.integers(0, 3, (records, 1)) - 1) * 1024
        )
        / 1024
    )
    X[5] = np.nan
    X[7] = 1e3
    return torch.from_numpy(X)


def dealt(records, ranks):
    """Positions of this rank's shard: of four, one has none and one has a single record."""
    if ranks is None:
        return torch.arange(records)
    ends = {1: [0], 2: [0, records // 3], 3: [0, 1, records // 3], 4: [0, 0, 1, records // 3]}[
        ranks.world_size
    ]
    return torch.arange(ends[ranks.rank], [*ends[1:], records][ranks.rank])


def loss(x, r):
    return (
        (r[:, 0] - x[0]).abs() + (r[:, 1] - x[1]).abs() * 0.5 + (r[:, 2] - x[2]) * (r[:, 2] - x[2])
    )


def opened(
    ranks, *, adjacency=Adjacency.REPLACE_ONE, groups=False, where="cpu", records=None, **more
):
    records = (rows() if records is None else records).to(where)
    patients = torch.arange(N) // 2
    mine = dealt(N, ranks)
    unit = PrivacyUnit("record")
    if groups:
        mine = torch.arange(N)
        if ranks is not None:
            mine = mine[patients * 7 % ranks.world_size == ranks.rank]
        unit = PrivacyUnit("patient", groups=patients[mine])
    settings = {"budget": Budget.gdp(8.0), "entropy": SeededEntropy(3), **more}
    return Curator(records[mine], unit=unit, adjacency=adjacency, ranks=ranks, **settings)


def mean(score=first_column, point=None, **more):
    return ClippedMean(score, point, score_range=(0.0, 1.0), **more)


def at(number, rows=1):
    return torch.full((rows, D), number, dtype=DOUBLE)


def objective(curator, **more):
    return PrivateObjective(
        curator, lambda x, r: -loss(x, r), **{"score_range": (-2.0, 0.0), "evaluations": 3, **more}
    )


def on_disk(folder):
    return {"dataset": "d", "ledger": str(folder / "l.db")}


def gibo(curator, mechanism=None, **more):
    search = DPGIBO(
        curator,
        loss,
        bounds=BOUNDS,
        mechanism=mechanism,
        iterations=4,
        batch_size=D + 1,
        clip=1.0,
        **more,
    )
    result = search.run()
    return {
        "iterates": result.iterates.tolist(),
        "gradients": result.gradients.tolist(),
        "left": search.remaining,
    }


def exact(ranks):
    """Without noise, so that one unit of the finest lattice would be seen."""
    mixture = DPGaussianMixture(
        2, mechanism=EXACT, radius=4.0, dimension=D, max_iter=2, random_state=0
    ).fit(opened(ranks))
    patients = gibo(opened(ranks, groups=True), EXACT, loss_range=(0.0, 3.0))
    return {
        "gibo": gibo(opened(ranks), EXACT),
        "patients": patients,
        "mixture": [mixture.means_.tolist(), mixture.covariances_.tolist()],
    }


def everything(ranks):
    removed = opened(ranks, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    grouped = opened(ranks, groups=True)
    mixture = DPGaussianMixture(
        3, budget=1.0, radius=4.0, dimension=D, max_iter=3, random_state=0
    ).fit(opened(ranks))
    means = DPKMeans(3, budget=1.0, radius=4.0, dimension=D, max_iter=3, random_state=0).fit(
        opened(ranks)
    )
    factors = DPFactorAnalysis(1, budget=1.0, radius=4.0, dimension=D, random_state=0).fit(
        opened(ranks)
    )
    asked = objective(opened(ranks, groups=True))
    cells = PrivateObjective(
        opened(ranks),
        CellMeans(lambda x, r: (r[:, 0] > x[0]).long(), cells=2),
        evaluations=2,
    )
    X = at(0.25, 2)
    start = choose_start(
        opened(ranks), loss, X * torch.tensor([[1.0], [2.0]]), loss_range=(0.0, 3.0), budget=0.5
    )
    return {
        "gibo": gibo(opened(ranks), settings=GIBOSettings.recommended()),
        "gibo with history": gibo(opened(ranks), settings=GIBOSettings.paper()),
        "gibo, units removed": {**gibo(removed, divisor=200.0), "units": removed.units},
        "gibo, patients": {**gibo(grouped, loss_range=(0.0, 3.0)), "units": grouped.units},
        "mixture": [
            mixture.weights_.tolist(),
            mixture.means_.tolist(),
            mixture.covariances_.tolist(),
        ],
        "k-means": means.cluster_centers_.tolist(),
        "factors": [factors.components_.tolist(), factors.noise_variance_.tolist()],
        "objective": [part.tolist() for part in (*asked(X), *asked(X[:1]), *asked.history())],
        "cells": cells(X)[0].tolist(),
        "start": start.tolist(),
        "exact": exact(ranks),
        "statement": [str(grouped.statement().guarantee), grouped.ledger.head().seq],
    }


def search(ranks, folder, **more):
    """Six iterations on a ledger; what was released, step by step, goes into a file of this
    rank's.
    """
    curator = opened(ranks, budget=Budget.gdp(1.0), **{**on_disk(folder), **more})
    seen = folder / f"seen{-1 if ranks is None else ranks.rank}"

    run = DPGIBO(
        curator,
        loss,
        bounds=BOUNDS,
        budget=1.0,
        iterations=STEPS,
        batch_size=D + 1,
        clip=1.0,
    )
    while run.remaining:
        X = run.ask()
        run.tell(X, run.evaluate(X))
        seen.write_text(json.dumps(run.result().gradients.tolist()))
    return run.result().gradients.tolist()


def dies(who, owner, method, times, title=None):
    """The search, in which one rank kills itself on entering this method of `owner` so many times,
    in the steps of this title.
    """

    def job(ranks, folder):
        original = getattr(owner, method)
        calls = 0

        def watched(self, *arguments):
            nonlocal calls
            calls += ranks.rank == who and (title is None or title in (self._step, arguments[0]))
            if calls == times:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *arguments)

        setattr(owner, method, watched)
        return search(ranks, folder)

    return job


def held(ranks, records, groups=None, **more):
    """A curator of so many records of this rank's."""
    unit = PrivacyUnit("patient", groups=groups)
    return owner(torch.rand(records, 2), unit=unit, budget=Budget.gdp(1.0), ranks=ranks, **more)


def unit_on_two_ranks(ranks, folder):
    # 4, 8 and 12 twice.
    labels = torch.arange(5) + 4 * ranks.rank
    return held(ranks, 5, labels.int() if ranks.rank == 1 else labels, **on_disk(folder))


def written_in_another_way(ranks, folder):
    """One name, decomposed, in capitals or with a zero-width space on the other rank. At last that
    rank lacks memory for what a reader takes for one name.
    """
    told = []
    for name in ("Jo\u0308rg", "J\u00d6RG", "J\u00f6\u200brg", "J\u00fcrg"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            held(ranks, 2, ["others" + "!" * ranks.rank, name if ranks.rank else "J\u00f6rg"])
        told.append(" ".join(str(warning.message) for warning in caught))
    plain = labels.folded

    def lacks_memory(label):
        if ranks.rank:
            raise MemoryError
        return plain(label)

    labels.folded = lacks_memory
    told += met_by(lambda: held(ranks, 2, [f"{name} {ranks.rank}" for name in "ab"]))
    return told


def resumed_with_others(ranks, folder):
    """A plan is resumed with the same records, dealt in another way, and not with others. What is
    released is remembered everywhere.
    """
    whole = rows()
    terms = {"budget": Budget.gdp(1.0), "ranks": ranks}

    def begin(records):
        return objective(owner(records, **terms, **on_disk(folder)))

    begun = begin(whole[dealt(N, ranks)])
    begun(at(0.5))
    first = begun.remaining
    turns = whole[ranks.rank :: ranks.world_size]
    again = begin(turns).remaining
    (other,) = met_by(lambda: begin(turns + 1.0))
    fresh = turns + 2.0
    owner(fresh, **terms).release(mean(), NOISE)
    return first, again, other, holds_protected(fresh)


def named_alone(ranks, folder):
    """The ledger of a data set that is named without a place."""
    os.environ["DPBO_STATE"] = str(folder)
    curator = opened(ranks, dataset="d", entropy=system_entropy)
    curator.release(mean(), NOISE)
    return [curator.ledger.storage.persistent, len(charges(curator.ledger))]


def other_questions(ranks, folder):
    """Rank 3 asks at another point; then all ask alike, and only that is charged."""
    curator = opened(ranks, **on_disk(folder))
    asked = objective(curator)
    met = met_by(
        lambda: asked(at(0.1 + 1e-16 * (ranks.rank == 3))),
        # A statement needs no other rank.
        lambda: curator.statement() if ranks.rank == 3 else None,
        lambda: (
            curator.evaluate(mean())
            if ranks.rank == 3
            else curator.reserve("p", NOISE.event(), slots=1, terms={})
        ),
        lambda: curator.release(mean(), GaussianMechanism(20.0 + (ranks.rank == 1))),
    )
    asked(at(0.1))
    return [*met, len(charges(curator.ledger)), asked.remaining]


class Scorer:
    """A score that is an object of the caller's own, with a number or a model in it."""

    def __init__(self, held):
        self.held = held

    def __call__(self, _, records):
        return records[:, 0]


def other_models(ranks, folder):
    """Rank 1 has another number, table, model, default or line of code; then a device of its own
    alone.
    """
    curator = opened(ranks, **on_disk(folder))
    other = ranks.rank == 1
    shift = 0.5 + other
    table = torch.full((3,), float(other))
    torch.manual_seed(int(other))
    model = torch.nn.Linear(D, 1)
    scores: dict[str, Any] = {
        "number": lambda _, r: r[:, 0] * shift,
        "table": lambda _, r: r[:, 0] * table[0],
        "model": lambda _, r: model(r.to(torch.float32))[:, 0],
        "default": lambda _, r, by=shift: r[:, 0] * by,
        "code": (lambda _, r: r[:, 1]) if other else (lambda _, r: r[:, 0]),
        "attribute": Scorer(shift),
        "model of an object": Scorer(model),
        "layer": Scorer(torch.nn.Sequential(torch.nn.Tanh() if other else torch.nn.ReLU())),
        "setting of a layer": Scorer(torch.nn.LeakyReLU(shift)),
    }
    met = [
        [kind, *met_by(functools.partial(curator.evaluate, mean(score)))]
        for kind, score in scores.items()
    ]
    same = Scorer(torch.device("meta" if other else "cpu"))
    alike = met_by(lambda: curator.evaluate(mean(same)))
    return [*met, alike, len(charges(curator.ledger))]


def lies(ranks, folder):
    """Rank 1 sends false sums, asks for a release that nobody else asks for, repeats an earlier
    message and hides an error.

    After each lie all ranks release another question.
    """
    curator = opened(ranks, **on_disk(folder))
    liar = ranks.rank == 1
    honest = dict[str, Any](vars(Ranks))
    rows_sent = list[bytes]()

    def released():
        # Another score than that of `mean`, which the others evaluate while one rank releases.
        return curator.release(mean(lambda _, r: r[:, 0]), NOISE).value.tolist()

    def ten_times(self, numbers):
        return honest["reduce_tensor"](
            self, numbers * 10 if self.rank == 1 and numbers.numel() else numbers
        )

    def repeated(self, row):
        rows_sent.append(row)
        first = next(sent for sent in rows_sent if len(sent) == len(row))
        return honest["all_gather"](self, first if self.rank == 1 and len(row) > 1 else row)

    def hidden(self, row):
        return honest["all_gather"](self, bytes([0]) if self.rank == 1 and len(row) == 1 else row)

    told = []
    for method, lie in (
        ("reduce_tensor", ten_times),
        ("all_gather", repeated),
        ("all_gather", hidden),
    ):
        setattr(Ranks, method, lie)
        told += met_by(released)
        setattr(Ranks, method, honest[method])
        told.append(met_by(released)[0])
    told += met_by(
        lambda: released() if liar else curator.evaluate(mean(lambda _, records: records[:, 1]))
    )
    last = released()
    curator.ledger.verify()
    return [told, last, charged(curator.ledger), stored(curator.ledger)]


def refused_by_one(ranks, folder):
    """What goes wrong on one rank goes wrong on all; the curator lives on."""
    curator = opened(ranks)

    def fails(x, r):
        if ranks.rank == 3 and len(r) > MADE_UP:
            raise ValueError("secret")
        return r[:, 0]

    def breaks(x):
        if ranks.rank == 2:
            raise ZeroDivisionError
        return x

    met = met_by(
        lambda: curator.evaluate(mean(fails)),
        lambda: curator.evaluate(mean(point=1, fit=breaks)),
        lambda: curator.evaluate(
            QuantileUtilities(first_column, candidates=[0.1, 0.2], quantile=0.5)
        ),
        lambda: curator.evaluate(RowOutcome(lambda r: 0.5, row=0, value_range=(0.0, 1.0))),
        lambda: curator.ledger.note("assume", "x"),
        lambda: DPGaussianMixture(2, budget=0.1, radius=4.0, dimension=D).fit(curator),
        lambda: curator.reserve("much", GaussianMechanism(0.01).event(), slots=100, terms={}),
    )
    curator.release(mean(), NOISE)
    return met


def fail_in_two_ways(ranks, folder):
    """Each rank in a way of its own; nobody is left waiting, and who changed its records says so
    ever after.
    """
    curator = opened(ranks)

    class Local(PrivacyError):
        """Cannot be pickled."""

    def score(_, r):
        if ranks.rank == 0 and len(r) > MADE_UP:
            raise ValueError("secret")
        return r.mul_(0.5)[:, 0] if len(r) > MADE_UP else r[:, 0]

    def breaks(_, error=ZeroDivisionError):
        if ranks.rank == (error is ZeroDivisionError):
            raise error

    other = opened(ranks)
    bound = functools.partial(loss, torch.full((D,), 0.5 + ranks.rank))
    local = mean(point=1, fit=lambda x: breaks(x, Local))
    return met_by(
        lambda: curator.evaluate(mean(score, 1, fit=breaks)),
        lambda: curator.evaluate(mean(score)),
        lambda: curator.evaluate(mean()),
        lambda: other.evaluate(local),
        lambda: other.evaluate(mean(point=bound)),
    )


def fails_on_one_shard(ranks, folder):
    """The first rank's only unit cannot be scored: one failure among all, on ranks as in one
    process.
    """

    def score(_, r):
        if (r == rows()[0]).all(1).any():
            raise ValueError
        return r[:, 1]

    return [opened(which).release(mean(score), EXACT).value.tolist() for which in (ranks, None)]


def no_hidden_runs(ranks, folder):
    """A rank sees its own shard alone, so it cannot draw for all: refused before anything is
    reserved.
    """
    curator = opened(ranks, budget=Budget(1.0, 1e-6), accounting=RDPFilter(64.0))
    space = Space(t=scipy.stats.uniform(0.0, 1.0))
    law = TruncatedNegativeBinomial.of_mean(5.0)
    scored = NoisedScore(first_column, (0.0, 1.0), NOISE)
    met = met_by(
        lambda: private_selection(curator, lambda p: p, space=space, run_count=law, score=scored),
        lambda: curator.hidden_draws("selection")(mean(), NOISE),
    )
    return [*met, curator.ledger.head().seq]


def trains_together(ranks, folder):
    """A module that several processes share is refused, and so is a curator of several."""
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import TensorDataset

    from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session

    config = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=2, batch_size=2)

    def train(spread):
        module = spread(torch.nn.Linear(2, 2))
        session = Session(TensorDataset(torch.rand(4, 2)), config)
        session.make_private(module, torch.optim.SGD(module.parameters()), max_grad_norm=1.0)

    kinds = (
        DistributedDataParallel,
        DifferentiallyPrivateDistributedDataParallel,
        fully_shard,
        lambda module: torch.nn.Sequential(DistributedDataParallel(module)),
    )
    curator = held(ranks, 4, role="training")
    before = curator.ledger.head().seq
    met = met_by(
        *(functools.partial(train, kind) for kind in kinds),
        lambda: PrivateEngine(curator, config),
    )
    return [*met, curator.ledger.head().seq - before]


def comes_late(ranks, folder):
    patient = Ranks(timeout=datetime.timedelta(seconds=5))
    curator = opened(patient)
    others = [folder / f"{other}.json" for other in (0, 2, 3)]
    while ranks.rank == 1 and not all(file.exists() for file in others):
        # So the others gave up before this one came, or the test runs into its limit.
        time.sleep(0.1)
    return curator.release(mean(), NOISE)


def others_take_turns(ranks, folder):
    """Who is no rank spends of the same plan in between, and all ranks note it together."""
    curator = opened(ranks, budget=Budget.gdp(1.0), **on_disk(folder))
    search = objective(curator, evaluations=4)
    told = []
    for _ in range(3):
        search(at(0.0))
        told.append("durations-tell-nothing" in curator.statement().assumptions)
        if ranks.rank == 0 and len(told) == 2:
            other = Ledger.open(str(folder / "l.db"))
            charge, *_ = other.charges(search.name)
            slot = {**charge.body["slots"][0], "handle": "another"}
            other.charge(
                search.name,
                charge.event,
                {"units": charge.body["units"], "slots": [slot]},
                search.name,
            )
    return told


def on_devices(ranks, folder):
    """Sums from records on this rank's device, and from records that come to it block by block; one
    process with all records on a device.

    By NCCL where the group has it.
    """
    on_gpus = "nccl" in dist.get_backend()
    if on_gpus:
        torch.cuda.set_device(ranks.rank)
    device = "cuda" if on_gpus else "cpu"
    streaming._ROWS = 16
    return [
        gibo(opened(ranks, where=device), EXACT),
        gibo(opened(ranks, device=device), EXACT),
        gibo(opened(None, where=device), EXACT),
    ]


def met_by(*works):
    """Name and text of the error that each met in turn, or None."""
    met: list[list[str] | None] = []
    for work in works:
        try:
            work()
        except Exception as error:
            met.append([type(error).__name__, str(error)])
        else:
            met.append(None)
    return met


def many_machines(rank, folder):
    """The example, with the variables that torchrun sets."""
    from examples import many_machines

    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(SIZE),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(SIZE),
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": (folder / "port").read_text()}
    with (folder / f"{rank}.out").open("w") as file, contextlib.redirect_stdout(file):
        many_machines.main(2000)


def trained_in_opacus(ranks, folder):
    """Models that both processes train together in Opacus' own engine, in two modes, and then one
    model each.
    """
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as Together

    from tests.integration import test_opacus_own_engine as own

    torch.seed()
    ended: dict[str, Any] = {}
    for mode in ("hooks", "ghost"):
        curator = own.owner(rate=0.5, dataset="trained", ledger=folder / f"{mode}.db")
        engine = own.engine_of(curator)

        def prepared(engine=engine, **settings):
            return own.prepared(engine, Together(own.network()), size=32, **settings)

        module, optimizer, *loss, loader = prepared(grad_sample_mode=mode)
        train = functools.partial(own.train, module, optimizer, loader)
        if loss:
            train.keywords["loss"] = loss[0]
        train(passes=4)
        weights = [parameter.tolist() for parameter in module.parameters()]
        refused = met_by(train, functools.partial(prepared, grad_sample_mode=mode))
        ended[mode] = {
            "weights": weights,
            "unchanged": weights == [parameter.tolist() for parameter in module.parameters()],
            "refused": refused,
            "epsilon": engine.get_epsilon(1e-5),
            "runs": {
                run: steps for run, steps in engine.accountant.state_dict()["runs"].items() if steps
            },
            "charged": [[body["run"], body["event"]["count"]] for body in charges(curator.ledger)],
            "assumed": [*curator.statement().assumptions],
        }
    # How often each of this rank's records is in a sample.
    places = torch.cat([batch[0][:, 0] for _ in range(200) for batch in loader])
    ended["records"], ended["samples"] = places.unique().tolist(), len(places)
    apart = own.engine_of(own.owner(rate=0.5))
    (ended["apart"],) = met_by(lambda: own.train(*own.prepared(apart, size=32)))
    return ended


JOBS: dict[str, tuple[int, Any]] = {
    "everything": (SIZE, lambda ranks, _: everything(ranks)),
    "exact on 1": (1, lambda ranks, _: exact(ranks)),
    "exact on 2": (2, lambda ranks, _: exact(ranks)),
    "exact on 3": (3, lambda ranks, _: exact(ranks)),
    "dies before a charge": (SIZE, dies(2, Ranks, "run_on_rank_0", 3, "release dpgibo")),
    "dies between charge and value": (SIZE, dies(0, Curator, "_draw", 3)),
    "dies before it tells the value": (SIZE, dies(0, Ranks, "_broadcast", 3, "release dpgibo")),
    "dies after the value": (SIZE, dies(2, Ranks, "reduce", 4, "evaluate ClippedGradient")),
    "unit on two ranks": (SIZE, unit_on_two_ranks),
    "written in another way": (2, written_in_another_way),
    "resumed with others": (3, resumed_with_others),
    "other questions": (SIZE, other_questions),
    "other models": (2, other_models),
    "lies": (2, lies),
    "named alone": (2, named_alone),
    "refused by one": (SIZE, refused_by_one),
    "fail in two ways": (2, fail_in_two_ways),
    "fails on one shard": (3, fails_on_one_shard),
    "no hidden runs": (2, no_hidden_runs),
    "trains together": (2, trains_together),
    "comes late": (SIZE, comes_late),
    "trained in Opacus": (2, trained_in_opacus),
    "others take turns": (2, others_take_turns),
    "on devices": (min(SIZE, torch.cuda.device_count()), on_devices),
    "on two CPUs": (2, on_devices),
}


def run_rank(name, rank, size, folder):
    """One rank of a job: what it returned or met goes into a file."""
    draw = Curator._draw

    def noted(self, handle, *arguments):
        with (folder / "draws").open("a") as file:
            file.write(f"{rank} {handle.id}\n")
            file.flush()
            os.fsync(file.fileno())
        return draw(self, handle, *arguments)

    Curator._draw = noted  # type: ignore[method-assign]
    # Whoever waited for it would not end before `started` gives up.
    wait = datetime.timedelta(hours=1)
    backend = "nccl" if "devices" in name else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size, timeout=wait
    )
    ranks = Ranks(timeout=wait)
    try:
        value = JOBS[name][1](ranks, folder)
        error = None
    except PrivacyError as refused:
        value = None
        error = [type(refused).__name__, str(refused)]
    met = {"value": value, "error": error}
    (folder / f"{rank}.json.part").write_text(json.dumps(met, default=str))
    (folder / f"{rank}.json.part").rename(folder / f"{rank}.json")


def again(folder):
    """The search anew, by one process with all records, on the ledger that was left behind."""
    (folder / "after.json").write_text(json.dumps(search(None, folder)))


def started(target, arguments):
    """One process for each tuple of arguments; their exit codes, None for one that hangs."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(400)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
