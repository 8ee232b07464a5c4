"""What the scoring of private records leaves in the process, and what a user's query remembers of
it.
"""

import collections
import copy
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.curator.evaluation import private_generators
from dpbo.errors import UsageError
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import (
    ClippedMean,
    ClippedSum,
    IntegerSum,
    Query,
    Sensitivity,
    score_evaluation,
)
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, charges

UNITS = 16
BAD = 7.0
GAUSSIAN = GaussianMechanism(40.0)
DRAWS = {
    "torch": (lambda: float(torch.rand(())), lambda: torch.manual_seed(0)),
    "numpy": (lambda: float(np.random.rand()), lambda: np.random.seed(0)),
    "python": (random.random, lambda: random.seed(0)),
}


def curator_of(records, **settings):
    settings = {"adjacency": Adjacency.REPLACE_ONE, **settings}
    return Curator(
        records,
        unit=PrivacyUnit("patient"),
        budget=Budget(0.1, 1e-6),
        allow_repeated=True,
        **settings,
    )


@pytest.fixture
def generators_as_before():
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@attack("A7")
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_how_often_a_score_draws_moves_no_later_draw(name, one_at_a_time, generators_as_before):
    """A record on which the score fails makes dpbo call it again, and each call draws."""
    draw, seed = DRAWS[name]

    def score(_, records):
        noise = draw()
        if BAD in records:
            raise ValueError
        return records.clamp(0, 1) * noise

    def next_draw(record):
        records = torch.full((UNITS,), 0.5)
        records[3] = record
        curator = curator_of(records, one_at_a_time=one_at_a_time)
        seed()
        curator.evaluate(ClippedMean(score, None, score_range=(0.0, 1.0)))
        return draw()

    assert next_draw(0.5) == next_draw(BAD)


@attack("A8", "A25")
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_seed_of_the_script_makes_no_draw_of_a_score_known(one_at_a_time, generators_as_before):
    """Known draws move for all later records where one record draws more, or is removed."""
    seen = []

    def score(_, records):
        seen.append((float(torch.rand(())), float(np.random.rand()), random.random()))
        return records.clamp(0, 1)

    curator = curator_of(torch.full((UNITS,), 0.5), one_at_a_time=one_at_a_time)
    query = ClippedMean(score, None, score_range=(0.0, 1.0))
    # the first evaluation tries the score on public records, which draws from the script's stream
    curator.evaluate(query)
    runs = []
    for _ in range(2):
        seen.clear()
        for _, seed in DRAWS.values():
            seed()
        curator.evaluate(query)
        runs.append(seen[-1])
    assert all(first != second for first, second in zip(*runs, strict=True))


def test_threads_share_fresh_generators_and_the_last_restores_the_old(generators_as_before):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    inside, leave = threading.Barrier(3, timeout=60), threading.Event()

    def first():
        with private_generators:
            inside.wait()

    def last():
        with private_generators:
            inside.wait()
            assert leave.wait(60)
            assert not torch.equal(torch.get_rng_state(), before)

    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(first), threads.submit(last)]
        inside.wait()
        done[0].result()
        leave.set()
        done[1].result()
    assert torch.equal(torch.get_rng_state(), before)


def doubled(x):
    """Writes into its argument."""
    x[0] = x[0] * 2
    return x[0]


@attack("A4", "A36")
@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(torch.ones(1), id="tensor"),
        pytest.param(np.ones(1), id="array"),
        pytest.param([1.0], id="list"),
        pytest.param({0: 1.0}, id="dict"),
        pytest.param(collections.OrderedDict({0: 1.0}), id="ordered dict"),
    ],
)
@pytest.mark.parametrize("how", ["score", "fit", "reference", "blocks"])
def test_what_a_score_writes_into_its_argument_reaches_no_other_call(how, subject, monkeypatch):
    """Where one record made it fail, it was called again, and all others got other scores."""

    def score(x, records):
        factor = x if how == "fit" else doubled(x)
        if records.isnan().any():
            raise ValueError
        return records * factor / 16

    def query():
        given = {"fit": {"fit": doubled}, "reference": {"reference": subject}}.get(how, {})
        if how == "reference":
            given["largest_difference"] = 1.0
        return ClippedSum(score, subject, score_range=(0.0, 1.0), **given)

    if how == "blocks":
        monkeypatch.setattr(score_evaluation, "ROWS_AT_ONCE", 256)
    exact = EXACT
    records = torch.full((1000,), 0.5, dtype=DOUBLE)
    curator = curator_of(records)
    asked = query()
    sums = [curator.release(asked, exact).value.tolist() for _ in range(2)]
    records = records.clone()
    records[300] = torch.nan
    sums.append(curator_of(records).release(query(), exact).value.tolist())
    if how == "reference":
        # it and the subject are alike
        assert sums == [[0.0]] * 3
    else:
        assert sums == [[62.5]] * 2 + [[62.4375]]


@attack("A21")
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_warning_about_one_record_is_not_shown(one_at_a_time):
    def score(_, records):
        return torch.from_numpy(np.log(np.asarray(records))).clamp(0, 1)

    records = torch.full((UNITS,), 0.5)
    records[3] = 0.0
    example = torch.full((4,), 0.5)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        curator = curator_of(records, example=example, one_at_a_time=one_at_a_time)
        curator.release(ClippedMean(score, None, score_range=(0.0, 1.0)), GAUSSIAN)
    assert not [warning for warning in shown if "divide by zero" in str(warning.message)]


@dataclass(eq=False)
class ShareAbove(Query):
    """The share of units above a threshold: a unit moves the count by 1. It keeps what it saw."""

    threshold: float
    seen: float = 1.0

    per_unit = True

    def sensitivity(self, adjacency):
        return Sensitivity(l1=self.seen, l2=self.seen, linf=self.seen)

    def _evaluate(self, view, subject):
        self.seen = float(view.count)
        return IntegerSum(
            (view.records > self.threshold).long().sum().reshape(1) << 30, quanta=(2.0**-30,)
        )

    def affine(self, units):
        return [0.0], 1.0 / self.seen

    def public_inputs(self):
        return {"threshold": self.threshold, "seen": self.seen}


@attack("A8", "A36")
def test_what_a_query_keeps_of_the_records_reaches_no_release():
    query = ShareAbove(0.5)
    curator = curator_of(torch.rand(UNITS), adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    handles = [curator.evaluate(query) for _ in range(2)]
    releases = curator.release_all(handles, GaussianMechanism(80.0))
    assert [release.distribution.std for release in releases] == [pytest.approx((80.0,))] * 2
    assert query.seen == 1.0
    (charge,) = charges(curator.ledger)
    assert [slot["public"]["seen"] for slot in charge["slots"]] == [1.0, 1.0]


@attack("A36")
def test_a_query_that_changes_after_its_evaluation_changes_no_noise():
    query = ShareAbove(0.5, seen=8.0)
    curator = curator_of(torch.rand(UNITS))
    handle = curator.evaluate(query)
    query.seen = 0.001
    assert curator.release(handle, GAUSSIAN).distribution.std == pytest.approx((320.0,))


@attack("A36")
def test_a_query_that_cannot_be_copied_is_refused_before_it_sees_a_record():
    class Lonely(ShareAbove):
        per_unit = True

        def __deepcopy__(self, memo):
            raise RuntimeError("not to be copied")

    with pytest.raises(
        UsageError, match="deepcopy can copy, but that raised RuntimeError: not to be copied"
    ):
        curator_of(torch.rand(UNITS)).evaluate(Lonely(0.5))
    assert copy.deepcopy(ShareAbove(0.5)).seen == 1.0
