"""Private selection end to end: one entry, one winner, nothing else to be seen."""

import collections
import contextlib
import contextvars
import ctypes
import dataclasses
import datetime
import logging
import math
import os
import pathlib
import random
import sys
import threading
import traceback
import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpbo.accounting import Planned, RDPFilter
from dpbo.dpsgd import NoisedScore, hidden_runs, private_selection
from dpbo.dpsgd.selection import selection_event
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerMismatch,
    ReleaseLost,
    ReservationChanged,
    UsageError,
)
from dpbo.events import GaussianEvent, SelectionEvent
from dpbo.hidden_run import in_hidden_run
from dpbo.mechanisms import GaussianMechanism
from dpbo.privacy import Adjacency
from dpbo.run_counts import FixedRuns, PoissonRuns, TruncatedNegativeBinomial
from dpbo.space import Space
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import DOUBLE, of, owner

SPACE = Space(lr=scipy.stats.uniform(0.0, 1.0), depth=[1, 2, 4], kind=["a", "b"])
RECORDS = torch.rand(2000, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
LAW = TruncatedNegativeBinomial.of_mean(12.0, shape=3.0)
BASE = (GaussianEvent(30.0, 10),)


def near(model, records):
    """Best at 0.7."""
    return 1.0 - abs(model - 0.7) - 0.1 * records


SCORE = NoisedScore(near, (0.0, 1.0), GaussianMechanism(20.0))


def made(run_count=LAW, base=BASE, score=SCORE, seed=3, **terms):
    event = SelectionEvent(
        base=(*base, *(() if score is None else (score.mechanism.event(),))), run_count=run_count
    )
    terms = {"accounting": Planned([event]), "entropy": SeededEntropy(seed), **terms}
    return owner(RECORDS, **terms)


def train(parameters):
    return parameters["lr"]


def select(curator, work=train, **changed):
    return private_selection(
        curator, work, **{"space": SPACE, "run_count": LAW, "base": BASE, "score": SCORE, **changed}
    )


def best_of(work, law, seed=0, **settings):
    """The runner alone, without a curator."""
    return hidden_runs.best_of(work, SPACE, law, SeededEntropy(seed), **settings)


def test_the_best_run_is_released_and_costs_what_the_plan_says():
    curator = made(seed=6)
    best = select(curator)
    assert abs(best.output - 0.7) < 0.25
    assert best.parameters is not None
    assert best.parameters["lr"] == best.output
    assert best.parameters["depth"] in (1, 2, 4)
    assert best.score == pytest.approx(1.0 - abs(best.output - 0.7) - 0.05, abs=0.05)
    statement = str(curator.statement())
    assert "runs-hidden" in statement
    assert "runs-attested" in statement
    assert "timing-not-observed" in statement
    curator.ledger.verify()


@attack("A21")
def test_the_ledger_holds_one_charge_and_one_value_and_no_trace_of_a_run():
    def failing(parameters):
        raise RuntimeError("record 17 is strange")

    runs, lengths = [], set()

    def noting(parameters):
        runs.append(parameters["lr"])
        return parameters["lr"]

    for seed, work in (
        (3, noting),
        (1, train),
        (2, failing),
        (3, lambda p: 1 / 0 if p["lr"] > 0.5 else p["lr"]),
    ):
        curator = made(seed=seed)
        best, records = select(curator, work), curator.ledger.records()
        lengths.add(len(records))
        if work is noting:
            assert best.parameters is not None
            assert (
                [r.kind for r in records].count("charge")
                == [r.kind for r in records].count("value")
                == 1
            )
            assert len(runs) > 2
            text = str([r.body for r in records])
            assert [lr for lr in runs if repr(lr) in text] == [best.parameters["lr"]]
        if work is failing:
            assert (best.nothing, best.output, best.score) == (
                False,
                None,
                None,
            ), "one of the runs is released"
    assert len(lengths) == 1, "as many records whatever happened inside"


@pytest.mark.parametrize("fault", [RuntimeError("17"), SystemExit(3), torch.OutOfMemoryError("x")])
@attack("A5", "A21")
def test_a_run_that_fails_is_the_worst_and_is_not_heard(fault, capfd, caplog):
    def work(parameters):
        print("out")
        print("err", file=sys.stderr)
        logging.getLogger("x").error("log")
        warnings.warn("warn", stacklevel=2)
        if parameters["lr"] > 0.3:
            raise fault
        return parameters["lr"]

    best = select(made(seed=5), work)
    assert best.output is not None
    assert best.output <= 0.3
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    logging.getLogger("x").error("afterwards")
    assert len(caplog.records) == 1


@attack("A21")
def test_what_runs_and_their_children_write_past_python_is_not_heard(capfd):
    """Libraries in C write to descriptors."""
    libc = ctypes.CDLL(None)

    def work(parameters):
        os.write(1, b"raw"), os.write(2, b"raw")
        libc.puts(b"buffered by C")
        print("kept by Python", file=sys.__stdout__)
        os.system("echo child; echo child >&2")
        return parameters["lr"]

    libc.puts(b"C before")
    select(made(seed=5), work)
    os.write(2, b"after\n")
    libc.puts(b"C after")
    libc.fflush(None)
    out, err = capfd.readouterr()
    assert out.split("\n") == ["C before", "C after", ""]
    assert err == "after\n"


@attack("A21")
def test_selections_of_two_threads_take_turns():
    """Else the first to end would let the other's runs be heard."""
    inside, other = threading.Event(), threading.Event()
    overlapped = []

    def first(parameters):
        inside.set()
        overlapped.append(other.wait(0.05))
        return parameters["lr"]

    def second(parameters):
        other.set()
        return parameters["lr"]

    one = threading.Thread(target=select, args=(made(seed=5), first))
    one.start()
    assert inside.wait(60)
    select(made(seed=6), second)
    one.join()
    assert other.is_set()
    assert not any(overlapped)


@attack("A17", "A21")
def test_global_generators_do_not_tell_how_many_runs_there_were():
    drawn, states = [], []

    def draws(parameters):
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))
        return parameters["lr"]

    for seed in (1, 2, 3):
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        select(made(seed=seed), draws)
        states.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert len(set(states)) == 1, "as if nothing had been drawn"
    assert len({number for numbers in drawn for number in numbers}) == 3 * len(drawn), (
        "nothing is drawn twice"
    )
    assert not set(states[0]) & {number for numbers in drawn for number in numbers}, (
        "nor again afterwards"
    )


def test_a_score_that_is_no_finite_number_is_the_worst():
    """An infinite one cannot be kept in the ledger, so that a selection which it won would be
    charged and never delivered.
    """
    wild: list[Any] = [math.nan, math.inf, 10**400, "no number"]
    for number in wild:

        def train(p, number=number):
            return p, number if p["lr"] > 0.4 else 0.1

        best = select(made(score=None), train, score=None)
        assert best.score == 0.1, number
        assert best.parameters is not None
        assert best.parameters["lr"] <= 0.4, number


def test_no_run_releases_nothing():
    law = PoissonRuns(0.05)
    curator = made(run_count=law, base=(GaussianEvent(50.0),), seed=4)
    terms = {"run_count": law, "base": (GaussianEvent(50.0),)}

    def never(_):
        pytest.fail("no run was drawn")

    best = select(curator, never, **terms)
    assert best.nothing
    assert best.score is None
    assert select(curator, never, **terms).nothing
    curator.ledger.verify()


def test_asked_again_it_gives_the_same_and_runs_nothing(on_disk):
    terms = {**on_disk, "entropy": SeededEntropy(3)}
    curator, axes = made(**terms), SPACE.specs
    ran = list[Any]()

    def once(parameters):
        ran.append(parameters)
        return parameters["lr"]

    best = select(curator, once)
    ran.clear()
    assert select(curator, once) is best
    again = select(made(**terms), once, space=Space(**axes))
    assert not ran
    assert (again.parameters, again.score, again.output) == (best.parameters, best.score, None)
    # the ledger keeps a coordinate: in another space it would stand for parameters that no run ever
    # had
    spaces = [
        {**axes, "lr": scipy.stats.uniform(10.0, 1e6)},
        dict(reversed(axes.items())),
    ]
    for other in spaces:
        with pytest.raises(LedgerMismatch):
            select(made(**terms), once, space=Space(**other))
    wider = NoisedScore(near, (0.0, 2.0), GaussianMechanism(20.0))
    with pytest.raises(LedgerMismatch):
        select(made(**terms), once, score=wider)
    with pytest.raises(ReservationChanged, match="began with another train"):
        select(made(**terms), lambda parameters: 2 * parameters["lr"])


@attack("A16")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_selection_is_charged_lost_and_never_drawn_again(tmp_path):
    path, done = str(tmp_path / "l.db"), []

    def work(parameters):
        done.append(parameters)
        if len(done) == 2:
            os.kill(os.getpid(), 9)
        return parameters["lr"]

    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            select(made(dataset="d", ledger=path), work)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    curator = made(dataset="d", ledger=path)
    with pytest.raises(ReleaseLost, match="under another name; tune has spent the whole budget"):
        select(curator, work)
    assert not done, "drawn again"
    with pytest.raises(BudgetExceeded):
        select(curator, name="another")
    curator.ledger.verify()


def frames_of(error):
    """Everything that the frames of an error's traceback hold, by name."""
    held = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if "dpbo" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename:
            held.update(frame.f_locals)
    return held


def require_silent(error):
    """Neither what it came from nor a frame of it knows anything of the runs."""
    assert error.__context__ is None
    assert error.__cause__ is None
    known = {"best", "run", "count", "told", "output", "number", "parameters", "x", "tie"}
    assert not set(frames_of(error)) & known


class Holds:
    """An output that holds itself, so that only the collector can take it apart, and says so."""

    def __init__(self, said):
        self.itself, self.said = self, said

    def __del__(self):
        self.said.append(os.fstat(2).st_ino)  # where stderr leads


SEVEN = of(run_count=FixedRuns(7), base=(GaussianEvent(60.0),), score=None)


@attack("A5", "A21")
@pytest.mark.parametrize("fault", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_between_runs_says_nothing_and_no_frame_knows_anything(fault):
    """Whether it comes, and what it says, may depend on how many runs there were and what they
    scored.
    """
    asked, said = list[int](), list[int]()

    def proposals(runs, entropy):
        asked.append(len(runs))
        if len(runs) == 4:
            raise fault("0.123")
        return SPACE.sample(1, seed=len(runs))[0]

    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else ReleaseLost) as caught:
        best_of(lambda p: (Holds(said), p["lr"]), FixedRuns(7), proposals=proposals)
    assert asked == [0, 1, 2, 3, 4]
    assert len(said) == 4, "what runs left is gone"
    assert os.fstat(2).st_ino not in said
    assert "0.123" not in str(caught.value)
    require_silent(caught.value)


def test_refused_before_anything_is_charged():
    curator, before = made(), len(made().ledger.records())
    two = NoisedScore(near, [(0.0, 1.0)] * 2, GaussianMechanism(20.0))
    wrong: list[dict[str, Any]] = [
        {"run_count": 12},
        {"space": {"lr": [1]}},
        {"name": ""},
        {"base": (), "score": None},
        {"base": BASE * 2},
        {"score": two},
    ]
    for changed in wrong:
        with pytest.raises((InputError, BudgetExceeded)):
            select(curator, **changed)
    with pytest.raises(InputError, match="accounting"):
        select(owner(RECORDS))  # GDPFilter: the best of Gaussian runs is no Gaussian
    assert len(curator.ledger.records()) == before


class Attentive:
    """An estimator that keeps what it is called on, as an attention's weights are kept for a
    picture.
    """

    kept: Any = None

    def get_params(self, deep=True):
        return {}

    def __call__(self, records):
        self.kept = records
        return torch.full((len(records),), 0.5)


@attack("A31")
def test_the_output_that_leaves_is_not_the_object_that_was_scored():
    score = NoisedScore(lambda model, records: model(records), (0.0, 1.0), GaussianMechanism(10.0))
    chosen = select(
        made(FixedRuns(2), score=score), lambda _: Attentive(), run_count=FixedRuns(2), score=score
    )
    assert isinstance(chosen.output, Attentive)
    assert chosen.output.kept is None


def test_add_or_remove_one_needs_its_divisor_and_converts_the_score():
    score = NoisedScore(near, (0.0, 1.0), GaussianMechanism(20.0), {"divisor": 2000.0})
    curator = owner(
        RECORDS,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        entropy=SeededEntropy(2),
        accounting=Planned([SelectionEvent(base=(*BASE, GaussianEvent(20.0)), run_count=LAW)]),
    )
    assert (
        selection_event(curator, run_count=LAW, base=BASE, score=score)
        == curator.accounting.events[0]
    )
    assert select(curator, score=score).score is not None
    with pytest.raises(InputError, match="divisor"):
        select(curator, name="no divisor")


def test_an_output_that_may_not_leave_is_told_of_and_the_rest_is_released():
    """Whether it may follows from the output, which is released."""
    for output in (threading.Lock(), [lambda: 3], torch.nn.Linear(1, 1)):
        with pytest.warns(UserWarning, match="output holds what may not leave"):
            best = select(made(**SEVEN), lambda p, held=output: (held, p["lr"]), **SEVEN)
        assert best.output is None
        assert best.parameters is not None
    best = select(
        made(**SEVEN), lambda p: ([torch.ones(2, requires_grad=True) * 2], p["lr"]), **SEVEN
    )
    assert best.output[0].tolist() == [2.0, 2.0]
    assert best.output[0].grad_fn is None


class Pair(NamedTuple):
    first: float
    second: list[float]


@dataclasses.dataclass(frozen=True)
class Trained:
    weights: np.ndarray
    day: datetime.date


TABLE = pd.DataFrame(
    {
        "whole": np.array([1, 2], dtype="int8"),
        "part": np.array([0.5, np.nan], dtype="float32"),
        "word": ["a", None],
        "moment": pd.to_datetime(["2026-01-01", None]),
        "place": pd.Series(["x", "y"], index=["r", "s"]).astype("category").to_numpy(),
    },
    index=pd.Index(["r", "s"], name="row"),
)


def left(output):
    """What the best of seven runs leaves of this."""
    return select(made(**SEVEN), lambda p: (output, p["lr"]), **SEVEN).output


@pytest.mark.filterwarnings("error")
def test_results_leave_in_the_containers_that_people_return_them_in():
    counts = collections.defaultdict(int, {"a": 1})
    for output in (
        Pair(1.0, [2.0]),
        counts,
        collections.OrderedDict(a=Pair(1.0, [])),
        collections.Counter("aab"),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.timedelta(days=1),
        pathlib.Path("kept") / "model",
    ):
        found = left([output])[0]
        assert found == output
        assert type(found) is type(output)
    assert left(counts)["b"] == 0
    found = left(Trained(np.ones(2), datetime.date(2026, 1, 1)))
    assert isinstance(found, Trained)
    assert found.weights.tolist() == [1.0, 1.0]
    assert found.day == datetime.date(2026, 1, 1)
    pd.testing.assert_frame_equal(left(TABLE), TABLE)
    pd.testing.assert_series_equal(left(TABLE["part"]), TABLE["part"])


def test_an_estimator_that_comes_back_unfitted_is_told_of():
    rows = np.random.default_rng(0).normal(size=(20, 2))
    labels = np.arange(20) % 2
    forest = RandomForestClassifier(n_estimators=3).fit(rows, labels)
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
    with pytest.warns(UserWarning, match=r"nodes are: RandomForestClassifier\..*Fit them anew"):
        found = left({"forest": forest, "pipe": fitted})
    assert not hasattr(found["forest"], "estimators_")
    assert found["forest"].n_estimators == 3
    assert (found["pipe"].predict(rows) == fitted.predict(rows)).all()


def under_way(**changed):
    """A curator with a selection "s" that was charged and has no value yet."""
    curator = owner(RECORDS, accounting=RDPFilter(6.0), **changed)
    event = SelectionEvent(
        base=(GaussianEvent(400.0),), run_count=TruncatedNegativeBinomial.of_mean(2.0)
    )
    curator.reserve("s", event, slots=1, terms={})
    with pytest.raises(InputError, match="charged and has no value"):
        curator.hidden_draws("s")
    curator.ledger.charge(
        "s",
        event,
        {
            "units": curator.units,
            "slots": [{"query": "PrivateSelection", "public": {}, "details": {}}],
        },
        "s",
    )
    return curator


def in_a_run(work):
    """`work()`, as within a run of the selection."""
    context = contextvars.copy_context()
    context.run(in_hidden_run.set, [])
    return context.run(work)


@attack("A22", "A24")
@pytest.mark.parametrize("when", ["before", "after", "interrupted"])
def test_what_draws_for_hidden_runs_draws_for_nothing_else(when):
    """4,000 draws, none charged, gave the exact mean of the records."""
    draws = []

    def train(_):
        draws.append(curator.hidden_draws("selection"))
        if when == "interrupted":
            raise KeyboardInterrupt
        return 0.5

    query = SCORE.query(0.7)
    if when == "before":
        draws.append(under_way().hidden_draws("s"))
    else:
        curator = owner(RECORDS, accounting=RDPFilter(6.0))
        with contextlib.suppress(KeyboardInterrupt):
            private_selection(
                curator,
                train,
                space=Space(t=scipy.stats.uniform()),
                run_count=FixedRuns(2),
                score=SCORE,
            )
    with pytest.raises(UsageError, match="within a run of a private selection alone"):
        draws[0](query, GaussianMechanism(20.0))


def test_scores_inside_carry_the_noise_that_is_charged():
    """M times the sensitivity over the divisor: 20 / 2000. 300 draws know it to 4.1 %."""
    curator = under_way(entropy=SeededEntropy(9))
    deviation = 0.01
    query = NoisedScore(near, (0.0, 1.0), GaussianMechanism(20.0), {"divisor": 2000.0}).query(0.7)
    draw = curator.hidden_draws("s")
    values = in_a_run(lambda: [draw(query, GaussianMechanism(20.0)) for _ in range(300)])
    scores = torch.stack([value for value in values if value is not None])
    assert len(scores) == 300
    assert float(scores.std()) == pytest.approx(deviation, rel=0.11)
    assert float(scores.mean()) == pytest.approx(
        float(near(0.7, RECORDS).mean()), abs=5 * deviation / 300**0.5
    )
