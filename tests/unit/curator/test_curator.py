"""The curator: one door, charged first, drawn once, opaque."""

import contextlib
import copy
import itertools
import os
import pickle
import re
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix

from dpbo import Adjacency, Budget, BudgetExceeded, Curator, PrivacyUnit, PrivateObjective, Source
from dpbo.accounting import GDPFilter, PureFilter, ZCDPFilter, gdp
from dpbo.errors import (
    InputError,
    LedgerMismatch,
    LedgerUnavailable,
    OpacityError,
    PrivateFailure,
    ReleaseLost,
    ScoreError,
)
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from dpbo.queries import CandidateScores, ClippedMean, ClippedSum, score_evaluation
from dpbo.records import sources
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, TERMS, itself, kinds, of, owner, point

RECORDS = torch.linspace(0, 1, 101, dtype=DOUBLE)
NOISE = GaussianMechanism(5.0)


def make(records=RECORDS, **changes):
    return owner(records, **{"budget": Budget.gdp(1.0, delta=1e-5), **changes})


def _watch_entropy(curator):
    """A list that grows with every draw."""
    drawn, source = [], curator._entropy

    def watched(size):
        drawn.append(size)
        return source(size)

    curator._entropy = watched
    return drawn


def failing(method, error=None, *, kept=False):
    """Within this a method of the ledger raises; with `kept`, after it did its work."""
    honest = getattr(Ledger, method)

    def fails(self, *arguments, **named):
        if kept:
            honest(self, *arguments, **named)
        raise error or LedgerUnavailable("connection lost", uncertain=kept)

    return patch.object(Ledger, method, fails)


def settled(score, records, **changes):
    """One release that has next to no noise."""
    return (
        make(records, budget=Budget.gdp(1000.0), **changes)
        .release(mean(score), GaussianMechanism(0.01))
        .value.item()
    )


def mean(score=itself, **changes):
    return ClippedMean(score, **{"score_range": (0.0, 1.0), **changes})


def test_a_release_has_the_value_and_the_variance_it_states():
    curator = make(budget=Budget.gdp(100.0))
    values = curator.release_all([curator.evaluate(mean()) for _ in range(300)], NOISE)
    errors = np.array([(r.value.item() - 0.5) / r.variance.item() ** 0.5 for r in values])
    assert abs(errors.mean()) < 5.5 / 300**0.5
    assert 0.75 < errors.std() < 1.3
    assert values[0].variance.item() == pytest.approx((5.0 / 101) ** 2)


def test_a_handle_gives_its_one_value_again_and_is_charged_once():
    curator = make()
    handle = curator.evaluate(mean())
    first, twin = curator.release_all([handle, handle], NOISE)
    assert (first.value, first.lattice, first.entry, first.event.count) == (
        twin.value,
        twin.lattice,
        twin.entry,
        1,
    )
    value, variance = first.value.clone(), first.variance.clone()
    for part in (first.value, first.variance):
        part.add_(1.0)  # the caller's own
    again = curator.release(handle, NOISE)
    assert (again.value, again.variance, again.lattice, again.entry) == (
        value,
        variance,
        first.lattice,
        first.entry,
    )
    assert curator.release(mean(), NOISE).value != first.value
    assert kinds(curator) == ["birth", "charge", "value", "charge", "value"]


@attack("A16")
def test_the_charge_is_durable_before_the_noise_and_the_value_after():
    order = []

    class Watched(GaussianMechanism):
        def _sample(self, *arguments):
            order.append(kinds(curator))
            return super()._sample(*arguments)

    curator = make()
    curator.release(mean(), Watched(5.0))
    assert order == [["birth", "charge"]]
    assert curator.ledger.head().kind == "value"


@attack("A16")
def test_beyond_the_budget_nothing_is_drawn_and_nothing_charged():
    curator = make()
    curator.release_all([curator.evaluate(mean()) for _ in range(25)], NOISE)
    drawn, before = _watch_entropy(curator), curator.ledger.head()
    with pytest.raises(BudgetExceeded) as refused:
        curator.release(mean(), NOISE)
    assert refused.value.requested == pytest.approx(1 / 25)
    assert refused.value.remaining == 0
    assert drawn == []
    assert curator.ledger.head() == before


@attack("A14")
def test_a_choice_tells_nothing_by_underflow_whatever_numpy_is_told_to_do_then():
    """The worse one's weight is exp(-ones), which underflows from 709 on: an error, or a warning,
    would tell how many there are.
    """
    reactions: list[Any] = ["raise", "warn"]
    for ones, told in itertools.product((708, 709), reactions):
        curator = make((torch.arange(3000) < ones).double(), budget=Budget.gdp(50.0, delta=1e-5))
        handle = curator.evaluate(
            CandidateScores(lambda x, r: x * r, [0.0, 1.0], score_range=(0.0, 1.0))
        )
        with np.errstate(all=told):
            assert curator.release(handle, ExponentialMechanism.of(2.0)).value.item() == 1.0


def test_a_failure_after_the_charge_loses_the_value_for_good():
    class Broken(GaussianMechanism):
        def _sample(self, *arguments):
            raise RuntimeError("power cut")

    curator = make()
    handle = curator.evaluate(mean())
    with pytest.raises(RuntimeError):
        curator.release(handle, Broken(5.0))
    with pytest.raises(ReleaseLost):
        curator.release(handle, NOISE)
    assert kinds(curator) == ["birth", "charge"]


@attack("A16")
def test_a_value_that_could_not_be_stored_is_delivered_later_and_never_drawn_again():
    """By the next release of its handle, or when delivery is asked for, as long as that takes."""
    for deliver in (False, True):
        curator = make()
        handle = curator.evaluate(mean())
        curator.deliver()
        draws = _watch_entropy(curator)
        with failing("store"):
            for call in (
                lambda: curator.release(handle, NOISE),  # noqa: B023
                curator.deliver,
                curator.deliver,
            ):
                with pytest.raises(LedgerUnavailable):
                    call()
        for _ in range(2 * deliver):
            curator.deliver()
        if deliver:
            assert kinds(curator) == ["birth", "charge", "value"]
        release = curator.release(handle, NOISE)
        _, _, value = curator.ledger.records()
        assert (release.entry, release.value.tolist(), len(draws)) == (
            1,
            value.body["values"][0]["value"],
            1,
        )
    curator = make()
    handle = curator.evaluate(mean())
    with failing("store", kept=True), pytest.raises(LedgerUnavailable):
        curator.release(handle, NOISE)
    curator.release(handle, NOISE)
    assert kinds(curator) == ["birth", "charge", "value"]


@attack("A16")
def test_what_stops_a_charge_burns_the_handle_only_if_it_was_kept():
    """A commit whose confirmation was lost went through, too: what it charged is never drawn
    again.
    """
    stops = (
        KeyboardInterrupt(),
        MemoryError(),
        LedgerUnavailable("connection lost", uncertain=True),
    )
    for stop, kept in itertools.product(stops, (True, False)):
        curator = make()
        handle = curator.evaluate(mean())
        with failing("charge", stop, kept=kept), pytest.raises(type(stop)):
            curator.release(handle, NOISE)
        if kept:
            with pytest.raises(ReleaseLost):
                curator.release_all([curator.evaluate(mean()), handle], NOISE)
        else:
            assert curator.release(handle, NOISE).entry == 1, stop
        assert kinds(curator) == ["birth", "charge"] + ["value"] * (not kept), (stop, kept)


@attack("A21")
def test_curators_handles_and_units_are_opaque():
    curator = make(unit=PrivacyUnit("patient", groups=[f"name{i}" for i in range(101)]))
    for thing in (curator, curator.evaluate(mean())):
        assert copy.copy(thing) is thing
        assert copy.deepcopy([thing])[0] is thing
        for breach in (pickle.dumps, np.asarray, torch.as_tensor, lambda t: t.item()):
            with pytest.raises((OpacityError, TypeError, RuntimeError)):
                breach(thing)
        assert "tensor" not in repr(thing)
    assert not any(
        isinstance(value, torch.Tensor) for value in vars(curator.evaluate(mean())).values()
    )
    shown = repr(vars(curator)) + repr(PrivacyUnit("patient", groups=["name7"]))
    assert "name7" not in shown
    assert "tensor(" not in shown.replace(repr(curator._example), "")


def test_records_and_scores_of_every_kind():
    every: list[tuple[Any, Any]] = [
        (Source(lambda: RECORDS), itself),
        (
            {"a": RECORDS, "b": (RECORDS.numpy(),)},
            lambda _m, r: r["a"] + 0 * torch.as_tensor(r["b"][0]),
        ),
        (csr_matrix(RECORDS.numpy()[:, None]), lambda _m, r: r.toarray()),
        ([np.array([v]) for v in RECORDS.tolist()], lambda _m, r: np.concatenate(r)),
        (RECORDS, lambda _m, r: (batch for batch in r.split(7))),
        (RECORDS, lambda _m, r: r > 0.495),
        (RECORDS, lambda _m, r: r.numpy().tolist()),
    ]
    for place, (records, score) in enumerate(every):
        found = make(records).release(mean(score), GaussianMechanism(1.0)).value.item()
        assert found == pytest.approx(0.5, abs=8 / 101), f"case {place}: {type(records)}"
    table = pd.DataFrame({"v": RECORDS.numpy()})
    found = (
        make(table, example=table[50:52])
        .release(mean(lambda _m, r: r["v"]), GaussianMechanism(1.0))
        .value.item()
    )
    assert found == pytest.approx(0.5, abs=8 / 101)


@attack("A20")
def test_units_count_by_their_means_and_divide_by_their_number():
    records, unit = (
        torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=DOUBLE),
        PrivacyUnit("patient", groups=["a", "a", "a", "b"]),
    )
    assert make(records, unit=unit).units == 2
    assert settled(itself, records, unit=unit) == pytest.approx(0.5, abs=0.05)
    two = mean(max_records_per_unit=2, divisor=3)
    curator = make(records, unit=unit, budget=Budget.gdp(1000.0))
    assert curator.release(two, GaussianMechanism(0.02)).value.item() == pytest.approx(
        0.5 + (2 * 0.5 - 0.5) / 3, abs=0.1
    )


@attack("A5")
def test_nan_infinities_and_failures_count_as_the_worst_score():
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0], dtype=DOUBLE)
    assert settled(itself, bad) == pytest.approx(0.25, abs=0.02)
    curator = make(bad, budget=Budget.gdp(1000.0))
    assert curator.release(
        mean(worst="upper"), GaussianMechanism(0.01)
    ).value.item() == pytest.approx(1.0, abs=0.02)


@attack("A5")
def test_an_exception_or_a_wrong_result_is_confined_to_the_units_that_cause_it():
    records = torch.ones(200, dtype=DOUBLE)
    records[[17, 40]] = -1.0

    def picky(_model, r):
        if bool((r < 0).any()):
            raise RuntimeError(f"bad patient {r.argmin()}")
        return r

    scores = (
        picky,
        lambda _m, r: r[r >= 0],  # some records too few
        # fails after some batches
        lambda _m, r: (part if bool((part >= 0).all()) else part / 0 * [] for part in r.split(9)),
    )
    for place, score in enumerate(scores):
        for groups, lost in ((None, 0.01), ([i // 2 for i in range(200)], 0.02)):
            unit = PrivacyUnit("patient", groups=groups)
            assert settled(score, records, unit=unit) == pytest.approx(1 - lost, abs=0.001), (
                place,
                lost,
            )


def test_a_score_that_cannot_work_is_found_on_zeros_and_charges_nothing():
    curator = make()
    for broken in (
        lambda _m, r: r[:-1],
        lambda _m, r: r.sum(),
        lambda _m, r: r.undefined,
        lambda _m, r: torch.stack([r, r], 1),
    ):
        with pytest.raises(ScoreError, match="score must return"):
            curator.release(mean(broken), NOISE)
    with pytest.raises(ScoreError):  # two metrics, transposed
        curator.evaluate(mean(lambda _m, r: torch.stack([r, r]), score_range=[(0.0, 1.0)] * 2))
    assert curator.ledger.head().kind == "birth"


def test_more_failures_than_the_calls_settle_are_a_failure_not_worst_scores(monkeypatch):
    """What is left over must not count as worst: one more failing record would then move many
    others.
    """
    records = torch.ones(512, dtype=DOUBLE)
    records[::64] = float("nan")

    def picky(_m, r):
        if bool(r.isnan().any()):
            raise ValueError
        return r

    assert settled(picky, records) == pytest.approx(1 - 1 / 64, abs=0.001)
    monkeypatch.setattr(score_evaluation, "_MOST_CALLS", 40)
    with pytest.raises(PrivateFailure):
        settled(picky, records)


@pytest.mark.filterwarnings("ignore:.* is multi-threaded:DeprecationWarning")
def test_workers_get_copies_and_a_change_there_stops_the_curator():
    view = make((RECORDS.clone(), ["a"] * 101))._Curator__view
    sent = pickle.loads(pickle.dumps(view))
    assert torch.equal(sent.records[0], RECORDS)
    sent.records[0].mul_(0.0)
    assert view.records[0].sum() > 0
    curator = make(Source(load_records))
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        with pytest.raises(PrivateFailure, match="in place"):
            curator.submit(mean(halve), pool).result(timeout=300)
        with pytest.raises(PrivateFailure, match="in place"):
            curator.submit(mean(itself), pool)


def load_records():
    return torch.linspace(0, 1, 101, dtype=DOUBLE)


def halve(_m, r):
    return r.mul_(0.5)


def test_a_cap_computed_a_float_away_resumes_and_verifies(on_disk, monkeypatch):
    """Another machine's root finder may end an ulp lower or higher: the ledger's own cap and
    multiplier stand.
    """
    terms = {**on_disk, "budget": Budget(3.0, 1e-5)}
    plan = of(score_range=(0.0, 1.0), evaluations=7)
    first = PrivateObjective(make(**terms), itself, **plan)
    first(point(0.0))
    found = gdp.mu_within
    for factor in (1 - 4e-16, 1 + 4e-16):
        monkeypatch.setattr(gdp, "mu_within", lambda e, d, f=factor: found(e, d) * f)
        again = PrivateObjective(make(**terms), itself, **plan)
        assert again.noise_multiplier == first.noise_multiplier
        again(point(0.0))
        again.curator.statement()


def test_errors_come_back_from_workers():
    budget = BudgetExceeded(1.0, 0.5, 2.0, "slots", "the batch", "The budget is spent.")
    ledger = LedgerMismatch("unit", "a", "b", "No."), LedgerUnavailable("locked", uncertain=True)
    for error in (InputError("x", 3, "small"), budget, *ledger, PrivateFailure("no")):
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


def test_confining_a_failure_changes_nobody_elses_score():
    """A score may depend on how many records it gets, which is public: isolation must not score
    fewer.
    """

    def share(_m, r):
        if bool(r.isnan().any()):
            raise ValueError
        return r * 1000 / len(r)

    good = torch.full((1000,), 0.001, dtype=DOUBLE)
    bad = torch.cat([torch.tensor([float("nan")]), good[1:]])
    query, law = ClippedSum(share, score_range=(0.0, 1.0)), GaussianMechanism(0.01)
    sums = [
        make(records, budget=Budget.gdp(1000.0)).release(query, law).value.item()
        for records in (good, bad)
    ]
    assert abs(sums[0] - sums[1]) < 0.2


def test_a_source_that_fails_in_a_worker_tells_nothing():
    calls = []

    def load():
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("could not convert 'Alice Smith'")
        return RECORDS

    source = Source(load)
    curator = make(source)
    sources._loaded.pop(source._key)
    with pytest.raises(PrivateFailure, match="Source") as told:
        curator.evaluate(mean())
    assert "Alice" not in repr(told.value)


HALF = torch.tensor([0.5], dtype=DOUBLE)


@attack("A4", "A5")
def test_what_a_score_writes_to_samples_is_refused_or_gone_at_the_next_call():
    """There are no public records on which that is seen."""

    def halve(_, samples):
        for sample in samples:
            sample[0] /= 2
        return [float(sample[0]) for sample in samples]

    curator = make([[0.5] for _ in range(50)])
    values = [curator.release(mean(halve), EXACT).value.item() for _ in range(2)]
    assert values == [pytest.approx(0.25)] * 2
    for kept in (lambda: HALF.clone(), lambda: (HALF.numpy().copy(), 0), lambda: {0: HALF.clone()}):
        with pytest.raises(PrivateFailure, match=r"in place|score failed"):
            make([kept() for _ in range(50)]).release(mean(halve), EXACT)


def column_of(records):
    """Numbers of the first column, which may be written to."""
    if isinstance(records, csr_matrix):
        return records.data
    if isinstance(records, torch.Tensor):
        return records[:, 0]
    if isinstance(records, np.ndarray):
        return torch.from_numpy(records)[:, 0]
    column = records if records.ndim == 1 else records.iloc[:, 0]
    return torch.from_numpy(column.to_numpy())


KINDS = {
    "tensor": lambda numbers: torch.tensor(numbers)[:, None],
    "array": lambda numbers: numbers[:, None].copy(),
    # with the zeros stored
    "sparse": lambda numbers: csr_matrix(
        (numbers, ([*range(len(numbers))], [0] * len(numbers))), shape=(len(numbers), 1)
    ),
    "table": lambda numbers: pd.DataFrame({"a": numbers, "b": "x"}),
    "series": lambda numbers: pd.Series(numbers.copy()),
}


@attack("A4", "A5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["score", "caller"])
def test_records_that_are_written_to_are_refused(kind, who):
    """Of zeros, which stand for them on trial, half is the same."""
    records = KINDS[kind](np.linspace(0.1, 0.9, 5000))
    curator = make(records, example=KINDS[kind](np.zeros(5)))

    def score(_, r):
        column = column_of(r)
        if who == "score":
            column *= 0.5
        return column.clone() if isinstance(column, torch.Tensor) else column.copy()

    if who == "caller":
        curator.evaluate(mean(score))
        column = column_of(curator._Curator__view.records)
        column *= 0.5
    with pytest.raises((ScoreError, PrivateFailure), match="in place"):
        curator.evaluate(mean(score))


def test_a_table_that_nobody_writes_to_stays_the_same():
    """Whatever its columns are: those of several kinds together make an array of objects."""
    times = pd.date_range("2020", periods=500)
    records = pd.DataFrame(
        {
            "number": np.linspace(0.0, 1.0, 500),
            "whole": range(500),
            "flag": [True, False] * 250,
            "time": times,
            "zoned": times.tz_localize("UTC"),
            "length": times - times[0],
            "text": "x",
            "category": pd.Categorical(["u", "v"] * 250),
            "object": [(1, 2)] * 500,
        }
    )
    curator = make(records, example=records.head().copy())
    for _ in range(3):
        curator.evaluate(mean(lambda _, r: r["number"].to_numpy()))


def test_a_score_may_sort_a_sparse_matrix():
    """As scikit-learn's SVC does."""
    unsorted = csr_matrix((np.full(6, 0.5), [2, 0, 1, 0, 1, 0], [0, 3, 4, 6]), shape=(3, 3))

    def sort(_, records):
        records.sum_duplicates()
        return records.toarray()[:, 0]

    make(unsorted).evaluate(mean(sort))


@attack("A5", "A8")
def test_an_empty_data_set_is_an_ordinary_neighbour_where_the_number_is_private():
    def needs_someone(_m, r):
        r.max()  # of none raises
        return r

    none: list[str] = []
    for groups in (None, none):
        curator = make(
            RECORDS[:0],
            adjacency=Adjacency.ADD_OR_REMOVE_ONE,
            unit=PrivacyUnit("patient", groups=groups),
        )
        assert curator.release(mean(needs_someone, divisor=10), NOISE).event.count == 1


def test_handles_of_another_curator_are_refused():
    with pytest.raises(InputError, match="handle"):
        make().release(make().evaluate(mean()), NOISE)


@attack("A17")
def test_a_forked_process_cannot_release(on_disk):
    for terms in (of(), on_disk):
        curator = make(**terms)
        handle = curator.evaluate(mean())
        child = os.fork()
        if child == 0:
            try:
                curator.release(handle, NOISE)
            except LedgerUnavailable:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert curator.release(handle, NOISE).entry == 1


def _refused_in_a_fork(call):
    child = os.fork()
    if child == 0:
        # It only ends what hangs.
        signal.alarm(60)
        try:
            call()
        except LedgerUnavailable:
            os._exit(7)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@attack("A17")
@pytest.mark.filterwarnings("ignore:.* is multi-threaded:DeprecationWarning")
def test_a_fork_beside_a_thread_that_releases_or_writes_does_not_wait_for_it(on_disk):
    begun, go_on = threading.Event(), threading.Event()

    def entropy(size):
        begun.set()
        go_on.wait()
        return os.urandom(size)

    curator = make(**on_disk, entropy=entropy)
    first, second = (curator.evaluate(mean()) for _ in range(2))
    releasing = threading.Thread(target=curator.release, args=(first, NOISE))
    releasing.start()
    begun.wait()
    refused = [_refused_in_a_fork(lambda: curator.release(second, NOISE))]
    go_on.set()
    releasing.join()

    begun.clear()
    go_on.clear()

    def write():
        with curator.ledger.alone():
            entropy(1)

    writing = threading.Thread(target=write)
    writing.start()
    begun.wait()
    refused.append(_refused_in_a_fork(curator.ledger.head))
    go_on.set()
    writing.join()
    assert refused == [True, True]
    assert curator.release(second, NOISE).entry == curator.ledger.head().seq - 1


def test_ranges_that_one_lattice_cannot_hold_are_refused_before_the_charge():
    curator = make(torch.rand(10, 2, dtype=DOUBLE))
    far = ClippedSum(itself, score_range=[(0, 1e99), (0, 1e-99)], weights=[1e-6, 1e6])
    with pytest.raises(InputError, match="differ less"):
        curator.release(far, NOISE)
    assert curator.ledger.head().kind == "birth"


def test_details_are_those_of_the_submission():
    curator, x = make(), [[0.25]]
    handle = curator.evaluate(mean(), x=x)
    x[0][0] = handle.details["x"][0][0] = 7.0
    curator.release(handle, NOISE)
    charge, value = curator.ledger.records()[1:]
    assert charge.body["slots"][0]["details"] == {"x": [[0.25]]}
    assert value.body["values"][0]["details"] == {"x": [[0.25]]}


def test_a_score_that_fails_on_every_unit_is_broken_not_worst_and_given_up_soon():
    table = pd.DataFrame({"v": np.arange(1500.0)})
    curator, calls = make(table, schema=table[:0]), 0
    for broken in (lambda r: r["w"], lambda r: r["v"].astype(str)):

        def counted(_m, r, broken=broken):
            nonlocal calls
            calls += 1
            return broken(r)

        with pytest.raises(PrivateFailure):
            curator.evaluate(mean(counted))
    assert calls <= 2 * 257


def test_an_example_replaces_the_made_up_records():
    def needs_positive(_m, r):
        assert bool((r >= 1).all())
        return r

    records = RECORDS + 1.0
    with pytest.raises(ScoreError, match="example="):
        make(records).evaluate(mean(needs_positive))
    make(records, example=torch.ones(3, dtype=DOUBLE)).evaluate(mean(needs_positive))


def test_submit_gives_handles_from_an_executor():
    curator = make()
    with ThreadPoolExecutor(2) as pool:
        futures = [curator.submit(mean(), pool) for _ in range(4)]
        releases = curator.release_all([future.result() for future in futures], NOISE)
    assert len({r.entry for r in releases}) == 1
    assert releases[0].event.count == 4


@attack("A17")
def test_repeatable_noise_voids_the_statement(on_disk, tmp_path):
    values = [make(entropy=SeededEntropy(1)).release(mean(), NOISE).value for _ in range(2)]
    assert values[0] == values[1]
    assert "VOID" in str(make(entropy=SeededEntropy(1)).statement())
    make(entropy=SeededEntropy(1), **on_disk)
    assert "VOID" in str(make(**on_disk).statement()), "for every later reader of the ledger too"
    assert "VOID" not in str(make().statement())
    file = tmp_path / "real.db"
    curator = Curator.rehearsal(RECORDS, **{**TERMS, "dataset": "d", "ledger": str(file)})
    curator.release(mean(), NOISE)
    assert not file.exists()
    assert str(curator.statement()).startswith("VOID: rehearsal")


def test_a_locked_ledger_charges_and_loses_nothing_and_one_out_of_reach_is_named(tmp_path):
    curator = make(ledger=f"sqlite:///{tmp_path / 'l.db'}?timeout=0.1", dataset="a")
    other = Ledger(str(tmp_path / "l.db"), curator.ledger.birth)
    handle = curator.evaluate(mean())
    with other.storage.writing(), pytest.raises(LedgerUnavailable, match="locked"):
        curator.release(handle, NOISE)
    assert curator.release(handle, NOISE).entry == 1
    with pytest.raises(LedgerUnavailable, match="cannot be used"):
        make(ledger=str(tmp_path / "no" / "such" / "folder" / "l.db"), dataset="a")


FILTERS = {"GDPFilter": GDPFilter(), "PureFilter": PureFilter(), "ZCDPFilter": ZCDPFilter()}


@pytest.mark.parametrize(
    ("accounting", "budget", "first", "then", "paid"),
    [
        pytest.param(
            GDPFilter(),
            Budget(200.0, 1e-3),
            GaussianMechanism(1.0),
            LaplaceMechanism(1 / 30),
            "ZCDPFilter()",
            id="Gaussian noise before",
        ),
        pytest.param(
            PureFilter(),
            Budget(1.0, 1e-3),
            LaplaceMechanism(20.0),
            LaplaceMechanism(20.0),
            "ZCDPFilter()",
            id="many small ones",
        ),
        pytest.param(
            PureFilter(),
            Budget(1.0, 0.0),
            LaplaceMechanism(4.0),
            LaplaceMechanism(4.0),
            None,
            id="the only one",
        ),
    ],
)
def test_a_refusal_names_the_accounting_that_would_have_paid(accounting, budget, first, then, paid):
    """One that is named takes the same releases, and the one that was refused; where none is named,
    none does.
    """
    question = ClippedMean(itself, None, score_range=(0.0, 1.0))

    def released(accounting, most):
        """How many releases it takes; the first from a reservation."""
        curator = make(budget=budget, accounting=accounting, allow_repeated=True)
        curator.reserve("first", first, slots=1, query=question).release(question)
        for count in range(1, most):
            try:
                curator.release(question, then)
            except BudgetExceeded as error:
                return count, str(error)
        return most, ""

    count, refused = released(accounting, 60)
    told = re.search(r"With accounting=(\w+)\(\) this and all before it", refused)
    assert (told and f"{told[1]}()") == paid
    if told:
        assert released(FILTERS[told[1]], count + 1) == (count + 1, "")
        return
    for other in FILTERS.values():
        with contextlib.suppress(BudgetExceeded, InputError):
            assert released(other, count + 1)[0] <= count
