"""What ranks that do not trust each other do in real processes: every message that a rank sends and
every noise that it draws is noted in files of its own.
"""

import contextlib
import datetime
import functools
import itertools
import json
import os
import pickle
import signal
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.stats
import torch
import torch.distributed as dist
from sklearn.linear_model import LogisticRegression

from dpbo import Adjacency, Budget, Curator, DPSearch, Ranks
from dpbo.accounting.filters import PureFilter
from dpbo.algorithms import search_then_choose
from dpbo.curator.secure_sum import Masks
from dpbo.curator.shared_ledger import OwnLedger
from dpbo.entropy import system_entropy
from dpbo.errors import LedgerUnavailable, PrivacyError
from dpbo.gibo.algorithm import choose_start
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism, PermuteAndFlipMechanism
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.shares import GaussianShare
from dpbo.papers.em import DPGaussianMixture, DPKMeans, DPLloyd
from dpbo.queries import CandidateScores, ClippedSum
from dpbo.search import Auto
from dpbo.search.problem import least_noise
from dpbo.testing import SeededEntropy
from examples.hospitals import patients
from tests.process.ranks.jobs import (
    NOISE,
    D,
    N,
    at,
    dealt,
    exact,
    gibo,
    loss,
    mean,
    met_by,
    objective,
    opened,
    rows,
    search,
)
from tests.setups import charges, first_column, of

SENDING = "all_gather all_reduce all_to_all_single broadcast gather reduce scatter send isend"


def own(folder, ranks):
    """This rank's own ledger."""
    return {"dataset": "d", "ledger": str(folder / f"{ranks.rank}.db")}


def noted(folder, rank):
    """From now on messages, exact numbers and noised ones go into files."""

    def note(kind, value):
        with (folder / f"{rank}.{kind}").open("ab") as file:
            pickle.dump(value, file)

    def sending(name):
        plain = getattr(dist, name)

        def sent(*arguments, **named):
            # An `all_gather` has what it receives first, and what it sends second.
            mine = [part for part in arguments if isinstance(part, torch.Tensor)][-1]
            source = named.get("src", dist.get_rank())
            data = b"" if source != dist.get_rank() else mine.numpy().tobytes()
            note("sent", (name, data))
            return plain(*arguments, **named)

        setattr(dist, name, sent)

    for name in SENDING.split():
        sending(name)
    sample = AdditiveMechanism._sample

    def drawn(self, numerators, quanta, distribution, entropy):
        shares = sample(self, numerators, quanta, distribution, entropy)
        steps = np.round(np.asarray(distribution.grid) / np.asarray(quanta)).astype(np.int64)
        whole = np.asarray(numerators).reshape(shares.shape)
        note("drawn", (whole.tolist(), (whole // steps).tolist(), shares.tolist()))
        return shares

    AdditiveMechanism._sample = drawn  # type: ignore[method-assign]


def read(folder, rank, kind):
    """What a rank noted, in its order."""
    found = []
    with (folder / f"{rank}.{kind}").open("rb") as file:
        while True:
            try:
                found.append(pickle.load(file))
            except EOFError:
                return found


def seen(curator):
    """What the ledger holds, but for its own name."""
    return [
        [entry.kind, entry.name, {k: v for k, v in entry.body.items() if k != "id"}]
        for entry in curator.ledger.records()
    ]


def released(ranks, folder):
    """One mean and then every algorithm, on a ledger of each rank's own."""
    curator = opened(ranks, entropy=SeededEntropy(ranks.rank), **own(folder, ranks))
    first = curator.release(mean(), NOISE)
    asked = objective(curator, budget=0.1)
    mixture = DPGaussianMixture(
        2, budget=0.1, radius=4.0, dimension=D, max_iter=2, random_state=0
    ).fit(curator)
    return {
        "first": [first.value.tolist(), first.variance.tolist(), list(first.lattice)],
        "objective": [part.tolist() for part in asked(at(0.25))],
        "gibo": gibo(curator, budget=0.1),
        "mixture": mixture.means_.tolist(),
        "assumptions": sorted(curator.statement().assumptions),
        "ledger": seen(curator),
    }


def laplace(ranks, folder):
    """Pure privacy: a mean, an objective, and k-means by Lloyd's algorithm."""
    curator = opened(
        ranks,
        budget=Budget(9.0, 0.0),
        accounting=PureFilter(),
        entropy=SeededEntropy(ranks.rank),
        **own(folder, ranks),
    )
    asked = objective(curator, budget=0.2)
    lloyd = DPLloyd(2, budget=0.5, radius=4.0, dimension=D, max_iter=2, random_state=0).fit(curator)
    first = curator.release(mean(), LaplaceMechanism(20.0))
    return {
        "first": [first.value.tolist(), first.variance.tolist(), list(first.lattice)],
        "objective": [part.tolist() for part in asked(at(0.25))],
        "lloyd": lloyd.cluster_centers_.tolist(),
        "events": [charge["event"]["mechanism"] for charge in charges(curator.ledger)],
        "assumptions": sorted(curator.statement().assumptions),
        "spent": str(curator.spent),
    }


def searches(ranks, folder):
    """Searches of every strategy: what each recommends, or says to take instead."""
    public = patients(0, 80)
    curator = Curator(
        patients(1 + ranks.rank, 100),
        unit="patient",
        adjacency="replace-one",
        budget=Budget.gdp(8.0),
        schema=public,
        ranks=ranks,
        **own(folder, ranks),
    )

    def searched(strategy):
        search = DPSearch(
            LogisticRegression(),
            {"C": scipy.stats.loguniform(1e-3, 1e2)},
            budget=0.1,
            n_iter=4,
            strategy=strategy,
            name=str(strategy),
            verbose=0,
            random_state=0,
        )
        return search.fit(*public, X_val=curator).best_params_

    cells = Auto(first="weighted_cv")
    found = [searched(each) for each in (Auto(), cells, "weighted_cv", "bo")]
    before = seen(curator)
    met = met_by(
        lambda: searched("choice"),
        lambda: searched(Auto(first="choice")),
        lambda: choose_start(opened(ranks), loss, at(0.25, 2), loss_range=(0.0, 3.0), budget=0.5),
    )
    means = DPKMeans(2, budget=0.1, radius=4.0, dimension=D, max_iter=2, random_state=0)
    centers = means.fit(opened(ranks)).cluster_centers_.tolist()
    return [found, met, seen(curator) == before, centers]


def dies(who, message):
    """The search, in which one rank kills itself before it sends this message."""

    def job(ranks, folder):
        plain = Ranks.all_gather
        count = 0

        def sent(self, row):
            nonlocal count
            count += 1
            (folder / f"{ranks.rank}.count").write_text(str(count))
            if ranks.rank == who and count == message:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(self, row)

        Ranks.all_gather = sent  # type: ignore[method-assign]
        return run(ranks, folder)

    return job


def run(ranks, folder):
    """A search on the ledgers of all ranks."""
    return search(ranks, folder, entropy=system_entropy, **own(folder, ranks))


@contextlib.contextmanager
def lying(ranks, lie, which=1):
    """Rank 1 lies in this sum within."""
    honest = Masks.masked
    count = 0

    def sent(self, numbers, about):
        nonlocal count
        count += 1
        return (lie if count == which else honest)(self, numbers, about)

    if ranks.rank == 1:
        Masks.masked = sent  # type: ignore[method-assign]
    yield
    Masks.masked = honest  # type: ignore[method-assign]


def garbage(ranks, folder):
    """Rank 1 sends a random word, then a shifted one; in between all go on. The last word of each
    message is the one that says whether a rank failed.
    """
    curator = opened(ranks, **own(folder, ranks))
    honest = Masks.masked
    value = curator.release(mean(), NOISE).value.item()

    def at_random(self, numbers, about):
        return os.urandom(8) + honest(self, numbers, about)[8:]

    def shifted(self, numbers, about):
        return honest(self, numbers + np.array([12_345, 0]), about)

    def told_by(lie):
        handle = curator.evaluate(mean())
        with lying(ranks, lie):
            return met_by(
                lambda: curator.release(handle, NOISE), lambda: curator.release(handle, NOISE)
            )

    told = [told_by(at_random), told_by(shifted)]
    again = curator.release(mean(), NOISE).value.item()
    entries = seen(curator)
    charge = Ledger.charge

    def charged_otherwise(self, *arguments, **named):
        entry = charge(self, *arguments, **named)
        self.note("assume", "another entry")
        return entry

    if ranks.rank == 1:
        Ledger.charge = charged_otherwise  # type: ignore[method-assign]
    return [value, told, again, entries, met_by(lambda: curator.release(mean(), NOISE))]


def unpaid(ranks, folder):
    """Rank 1 cannot read its ledger between two steps of one release, and of one reservation. Then
    it cannot store a value that the others got.

    Then it lacks memory for its share; then for that of a second handle alone; then its ledger
    cannot be read again; then it cannot write to it when it is to charge: what the others met, and
    read of each total. At last it cannot mask its words.
    """
    curator = opened(ranks, **own(folder, ranks))

    def fails(where, name, times, work):
        plain = getattr(where, name)
        if ranks.rank == 1:
            setattr(where, name, failing(plain, times))
        (met,) = met_by(work)
        setattr(where, name, plain)
        return met and met[0]

    first = curator.evaluate(mean())
    plan = functools.partial(curator.reserve, "plan", NOISE, slots=1)
    between = [
        fails(OwnLedger, "head", 2, lambda: curator.release(first, NOISE)),
        fails(Ledger, "reservation", 1, plan),
    ]
    handle = curator.evaluate(mean())
    stored = fails(Ledger, "store", 1, lambda: curator.release(handle, NOISE))
    after = met_by(lambda: curator.evaluate(mean()))[0] if ranks.rank != 1 else None
    alike = [curator.release(handle, NOISE).value.item(), curator.ledger.head().seq]
    sample = AdditiveMechanism, "_sample"
    cases = [(1, *sample, 1), (2, *sample, 2), (1, OwnLedger, "head", 2), (1, Ledger, "charge", 1)]
    handles = [[curator.evaluate(mean()) for _ in range(count)] for count, *_ in cases]
    opens = Masks.total
    read = []

    def noted_total(rows):
        read.append(opens(rows))
        return read[-1]

    Masks.total = staticmethod(noted_total)  # type: ignore[method-assign]
    found = []
    for together, (_, where, name, times) in zip(handles, cases, strict=True):
        met = fails(where, name, times, functools.partial(curator.release_all, together, NOISE))
        words = np.abs(read[-1].astype(np.float64)).tolist()
        found.append([met, words, len(charges(curator.ledger))])
    lost = fails(Masks, "masked", 1, lambda: curator.evaluate(mean()))
    return [between, stored, after, alike, found, lost]


def failing(plain, times):
    """`plain`, but for this call."""
    calls = itertools.count(1)

    def called(*arguments, **named):
        if next(calls) == times:
            raise LedgerUnavailable("the disk is full")
        return plain(*arguments, **named)

    return called


def other_ledger(ranks, folder):
    """Another program writes to one rank's ledger; then all start again, on this one, on one that
    was lost, on a longer one of another past, with a lost one beside it, on a void one, on one
    whose message is changed on its way, and on one ledger for two.
    """
    # Each hospital is a machine of its own, with its own state.
    os.environ["DPBO_STATE"] = str(folder / f"state {ranks.rank}")
    again = functools.partial(
        opened, ranks, entropy=system_entropy, allow_repeated=True, **own(folder, ranks)
    )
    curator = again()
    curator.release(mean(), NOISE)
    if ranks.rank == 1:
        Ledger.open(folder / "1.db").note("assume", "another program")
    (met,) = met_by(lambda: curator.release(mean(), NOISE))
    found = again()
    found.release(mean(), NOISE)
    noted = [seen(found)]
    lost(folder, ranks, 2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        noted.append(seen(again()))
    told = [str(each.message) for each in warned if "took over" in str(each.message)]

    def alone(rank, kind, text):
        if ranks.rank == rank:
            Ledger.open(folder / f"{rank}.db").note(kind, text)

    # Rank 1's message to rank 0 is changed on its way.
    alone(1, "assume", "rank 1 went on")
    plain = Ranks.send
    Ranks.send = lambda *sent: plain(*sent).replace(b"went on", b"is void")  # type: ignore
    if ranks.rank:
        Ranks.send = plain  # type: ignore[method-assign]
    (changed,) = met_by(again)
    Ranks.send = plain  # type: ignore[method-assign]
    before = len(seen(again()))
    alone(0, "void", "rank 0 says so")
    (void,) = met_by(again)
    alone(1, "assume", "rank 1 was alone")
    alone(0, "assume", "and once more")
    lost(folder, ranks, 2)
    (forked,) = met_by(again)
    kept = len(Ledger.open(folder / f"{ranks.rank}.db").records()) - before
    (shared,) = met_by(lambda: again(ledger=str(folder / "one.db")))
    # Rank 1 alone begins a second budget for its records.
    moved = rows() + (ranks.rank != 1) / 1024
    terms = {"dataset": "e", "ledger": str(folder / f"second {ranks.rank}.db")}
    second = opened(ranks, records=moved, entropy=system_entropy, **terms)
    second.release_all([], NOISE)
    (repeated,) = met_by(lambda: second.release(mean(), NOISE))
    return [met, noted, told, changed, void, forked, kept, shared, repeated, seen(second)]


def lost(folder, ranks, rank):
    """This rank's ledger."""
    if ranks.rank == rank:
        for file in folder.glob(f"{rank}.db*"):
            file.unlink()


def refused(ranks, folder):
    """What has no sum of shares, a score that fails on one rank, and arguments."""
    curator = opened(ranks, **own(folder, ranks))

    def fails(_, r):
        mine = rows()[dealt(N, ranks), 0]
        if ranks.rank == 2 and torch.isin(r[:, 0], mine).all():
            raise ValueError("secret")
        return r[:, 0]

    choice = CandidateScores(lambda c, r: r[:, 0] * c, [0.1, 0.2], score_range=(0.0, 1.0))
    met = met_by(
        lambda: curator.release(choice, PermuteAndFlipMechanism(20.0)),
        lambda: search_then_choose(curator, loss, at(0.25, 2), score_range=(0, 3), evaluations=1),
        lambda: curator.evaluate(mean(fails)),
        lambda: curator.reserve("much", GaussianMechanism(0.01).event(), slots=100),
        lambda: curator.reserve("choice", PermuteAndFlipMechanism(5.0).event(), slots=1),
        lambda: curator.reserve("other", LaplaceMechanism(5.0).event(), slots=1),
        lambda: Ranks(trust="some"),
        lambda: Ranks(tolerate=2),
        lambda: Ranks(trust="sum", tolerate=ranks.world_size),
        lambda: Ranks(trust="sum", fingerprints=["00"]),
        lambda: Ranks(trust="sum", tolerate=1 + (ranks.rank == 1)),
        lambda: opened(ranks, budget=Budget.gdp(8.0 + (ranks.rank == 1))),
    )
    curator.release(mean(), NOISE)
    entries = seen(curator)
    honest = Masks.masked
    altered = rows()
    altered[dealt(N, ranks)[0], 0] += ranks.rank == 1
    reserved = functools.partial(
        Curator.reserve, name="plan", noise=NOISE, slots=2, query=mean(), given={}
    )
    reserved(curator).release(mean())
    # The share of one rank of thirty, each of which would draw less than one of these.
    foreign = GaussianShare(NOISE.noise_multiplier, ranks=30, tolerate=1)
    stds = [curator.release(mean(), noise).distribution.std for noise in (NOISE, foreign)]
    stds.append(Ranks().in_shares(foreign) == NOISE)
    stds += [least_noise(owner, mean(), Fraction(1, 10))[1] for owner in (curator, opened(None))]
    (changed,) = met_by(lambda: reserved(opened(ranks, records=altered, **own(folder, ranks))))
    # Of a study without the others, none of whose entries the others may get.
    local = of(
        adjacency=Adjacency.ADD_OR_REMOVE_ONE, dataset="d", ledger=str(folder / f"own {ranks.rank}")
    )
    opened(None, allow_repeated=True, **local)
    (mine,) = met_by(lambda: opened(ranks, allow_repeated=True, **local))
    # The sum of rank 2 might overflow by a total of fewer units than it has.
    fewer = functools.partial(lying, ranks, which=2)
    with fewer(lambda self, numbers, about: honest(self, numbers - np.array([150, 0]), about)):
        return [met, entries, changed, mine, stds, met_by(lambda: opened(ranks))]


def removed(ranks, folder, more=0):
    """The number of units is private, and differs by one rank's."""
    mine = rows(N + more * (ranks.rank == 1))[ranks.rank :: ranks.world_size]
    curator = Curator(
        mine,
        unit="patient",
        adjacency="add-or-remove-one",
        budget=Budget.gdp(8.0),
        entropy=SeededEntropy(3),
        ranks=ranks,
    )
    question = ClippedSum(first_column, score_range=(0.0, 1.0))
    return [curator.units, curator.release(question, GaussianMechanism(5.0)).variance.tolist()]


def many(ranks, folder, count=8000, together=100):
    """Releases, each of its own noise, on two data sets that differ in a patient of rank 1's."""
    found = []
    for which in (0, 1):
        mine = torch.tensor([[which], [0.5]]) if ranks.rank == 1 else torch.full((2, 1), 0.5)
        entropy = SeededEntropy(3 * which + ranks.rank)
        terms = of(adjacency="replace-one", budget=Budget.gdp(1e6), entropy=entropy)
        curator = Curator(mine, unit="patient", ranks=ranks, **terms)
        released: list[Any] = []
        for _ in range(count // together):
            handles = [curator.evaluate(mean()) for _ in range(together)]
            released += curator.release_all(handles, GaussianMechanism(1 / 3.2))
        found.append([str(each.lattice[0]) for each in released])
    return found


JOBS: dict[str, tuple[int, Any]] = {
    "exact": (3, lambda ranks, _: exact(ranks)),
    "released": (3, released),
    "laplace": (3, laplace),
    "searches": (3, searches),
    "killed": (3, dies(1, 22)),
    "again": (3, run),
    "garbage": (3, garbage),
    "unpaid": (3, unpaid),
    "other ledger": (3, other_ledger),
    "refused": (3, refused),
    "many": (3, many),
    "removed": (3, removed),
    "removed, one more": (3, functools.partial(removed, more=300)),
    "trusted": (3, lambda ranks, _: opened(ranks).release(mean(), NOISE).value.tolist()),
}


def one_rank(name, rank, size, folder, more):
    """One rank of a job: what it returned or met goes into a file."""
    noted(folder, rank)
    wait = datetime.timedelta(minutes=5)
    meet = f"file://{folder / 'meet'} {name}".replace(" ", "-")
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size, timeout=wait)
    trusting = {} if name == "trusted" else {"trust": "sum", **more}
    ranks = Ranks(timeout=wait, **trusting)
    job = JOBS[name][1] if name in JOBS else dies(*map(int, name.split()[1:]))
    try:
        met = {"value": job(ranks, folder), "error": None}
    except PrivacyError as error:
        met = {"value": None, "error": [type(error).__name__, str(error)]}
    (folder / f"{name}-{rank}.json").write_text(json.dumps(met, default=str))


def example(rank, folder):
    """The example, with the variables that torchrun sets, over real sockets."""
    from examples import hospitals

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": (folder / "port").read_text()}
    # Each hospital is a machine of its own, with its own state.
    os.environ["DPBO_STATE"] = str(folder / f"state {rank}")
    arguments = ["--key", f"{rank}.pem", "--fingerprints", "fingerprints", "--ledger", f"{rank}.db"]
    named = [each if each.startswith("--") else str(folder / each) for each in arguments]
    with (folder / f"{rank}.out").open("w") as file, contextlib.redirect_stdout(file):
        hospitals.main([*named, "--patients", "300"])
