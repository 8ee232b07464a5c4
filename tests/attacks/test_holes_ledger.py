"""A plan, a ledger or an accountant that forgets, and an interrupt that tells: each attack won
once.
"""

import contextlib
import gc
import json
import os
import pickle
import signal
import sqlite3
import traceback
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dpbo import DPGIBO, Budget, BudgetExceeded, DPSearch, PrivateObjective
from dpbo.curator.chain import Record, dump
from dpbo.curator.ledger import Ledger
from dpbo.dpsgd.accountant import LedgerAccountant
from dpbo.errors import InputError, LedgerCorrupt, LedgerError, LedgerMismatch
from dpbo.events import GaussianEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.testing.ledger_contract import BIRTH
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, MEAN, NOISE, itself, kinds, owner
from tests.setups import box


def curator(records=200, **changes):
    return owner(
        torch.linspace(0, 1, records, dtype=DOUBLE),
        **{"budget": Budget.gdp(1.0, delta=1e-5), **changes},
    )


def objective(curator):
    return PrivateObjective(
        curator, itself, score_range=(0.0, 1.0), evaluations=6, name="search", budget=0.5
    )


def points(q, d):
    return torch.full((q, d), 0.5, dtype=DOUBLE)


def raises_each(error, words, *calls):
    for call in calls:
        with pytest.raises(error, match=words):
            call()


@attack("A16")
def test_a_plan_keeps_the_dimension_of_its_first_release(on_disk):
    """Once, 2 x 6 and then 1 x 5 were both charged, and history() raised for ever."""
    first = objective(curator(**on_disk))
    other = first.evaluate(points(1, 5)[0])
    first(points(2, 6))
    words = r"x=\(5,\) is not allowed: x must be of 6 coordinates"
    raises_each(InputError, words, lambda: first.release(other))
    for search in (first, objective(curator(**on_disk))):
        raises_each(
            InputError,
            words,
            partial(search, points(1, 5)),
            partial(search.evaluate, points(1, 5)[0]),
        )
        assert search.remaining == 4
        assert search.history()[0].shape == (2, 6)


@attack("A16")
def test_a_ledger_keeps_the_number_of_units_where_it_is_public(on_disk):
    """Once, one that was born with 2,000 released for 500 of them, and its statement said 500."""
    curator(2000, **on_disk)
    with pytest.raises(LedgerMismatch, match=r"units=2000, but units=500 .* stand-in record"):
        curator(500, **on_disk)
    assert curator(2000, **on_disk).statement().units == 2000


@attack("A16")
def test_a_ledger_keeps_no_number_of_units_where_it_is_private(on_disk):
    for number in (2000, 500):
        assert curator(number, **on_disk, adjacency="add-or-remove-one").units is None
    assert "2000" not in str(Ledger.open(on_disk["ledger"]).birth)


@attack("A16")
def test_a_row_deleted_amid_the_ledger_is_seen_by_all_who_go_on(on_disk):
    """Once, by statement() alone: a plan whose charge was deleted could be opened, asked and
    released from.
    """
    held = curator(**on_disk)
    first = objective(held)
    for _ in range(3):
        first(points(1, 2))
    waiting = held.evaluate(MEAN)
    with contextlib.closing(sqlite3.connect(on_disk["ledger"])) as connection, connection:
        assert connection.execute("SELECT kind FROM dpbo_ledger WHERE seq = 4").fetchone() == (
            "charge",
        )
        connection.execute("DELETE FROM dpbo_ledger WHERE seq = 4")
    raises_each(
        LedgerCorrupt,
        r"one was removed|record 5 was changed, moved",
        lambda: first.remaining,
        lambda: held.release(waiting, NOISE),
        lambda: first(points(1, 2)),
        lambda: first.history(),
    )
    raises_each(
        LedgerCorrupt,
        "record 5 was changed, moved",
        lambda: curator(**on_disk),
        lambda: Ledger.open(on_disk["ledger"]),
    )


@attack("A16")
def test_before_a_release_only_new_records_are_read(tmp_path, monkeypatch):
    url = str(tmp_path / "l.db")
    ledger = Ledger(url, BIRTH)
    for _ in range(40):
        ledger.charge("release", GaussianEvent(100.0), {})
    Ledger.open(url).charge("release", GaussianEvent(100.0), {})
    read: list[int] = []
    stored = Record.stored

    def counted(*row):
        read.append(row[0])
        return stored(*row)

    monkeypatch.setattr(Record, "stored", counted)
    entry = ledger.charge("release", GaussianEvent(100.0), {})
    ledger.head()
    assert (entry, read) == (42, [41]), "what another one wrote; not what this one wrote itself"


@attack("A16")
def test_what_is_spent_is_named_and_no_new_ledger_is_advised(tmp_path):
    held = curator(dataset="readmissions", ledger=str(tmp_path / "l.db"), budget=Budget(2.0, 1e-6))
    search = objective(held)
    search(points(5, 2))
    for ask, told in (
        (
            lambda: search(points(2, 2)),
            ["needs 2 evaluations; 1 of 6 evaluations are left. Nothing was charged."],
        ),
        (
            lambda: held.reserve("more", GaussianEvent(1.0), slots=9, terms={}),
            [
                "of the budget); 0.100502 of 0.201004 mu^2 are left (50 % of the budget)",
                "Unused slots of a reservation cannot be given to another.",
            ],
        ),
    ):
        with pytest.raises(BudgetExceeded) as refused:
            ask()
        text = str(refused.value)
        for part in (
            (
                "The budget (epsilon 2, delta 1e-06) of data set 'readmissions' is spent or"
                " reserved in part"
            ),
            "in mu^2: the reservation 'search' 0.100502 (50 %; 5 of 6 slots used).",
            "nothing more may be released about these records",
            *told,
        ):
            assert part in text
        assert "new ledger" not in text


def test_where_nothing_is_spent_that_is_said():
    with pytest.raises(
        BudgetExceeded,
        match=r"Nothing of the budget \(mu 1, which is epsilon 4\.378, delta 1e-05\) .* is spent",
    ):
        curator().release(MEAN, GaussianMechanism(0.5))


def steps(accountant, count):
    for _ in range(count):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    return accountant.state_dict()


@attack("A15", "A17")
def test_steps_after_a_fork_are_steps_of_their_own():
    """Once, 10 steps, 500 more on either side of a fork, merged to 510."""
    parent = LedgerAccountant()
    steps(parent, 10)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, pickle.dumps(steps(parent, 500)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pickle.load(pipe)
    os.waitpid(child, 0)
    steps(parent, 500)
    parent.load_state_dict(told)
    assert len(parent) == 1010


@attack("A15")
def test_a_checkpoint_takes_nothing_away():
    """Once, one that gave a known release another noise turned epsilon 10.46 into .013."""
    accountant = LedgerAccountant()
    accountant.add(GaussianEvent(0.5))
    steps(accountant, 10)
    before = accountant.state_dict()
    epsilon = accountant.get_epsilon(1e-5)
    ((known, body),) = before["releases"].items()
    forged = [
        {**before, "releases": {known: {**body, "noise_multiplier": 400.0}}},
        {**before, "runs": {"another": [(1.0, 0.01, -500)]}},
        {
            **before,
            "runs": {
                "another": [(1.0, 0.01, 5)],
                **{run: [(9.0, 0.01, 99)] for run in before["runs"]},
            },
        },
    ]
    for state in forged:
        with pytest.raises((LedgerError, InputError)):
            accountant.load_state_dict(state)
        assert accountant.state_dict() == before, "nothing was loaded"
    accountant.load_state_dict(before)
    assert accountant.get_epsilon(1e-5) == epsilon


def require_confined(score):
    """It counts as the worst one of the last record, and as 0.5 of the 199 others."""
    held = curator(budget=Budget.gdp(1e4))
    mean = ClippedMean(score, score_range=(0.0, 1.0))
    confined = held.release(mean, GaussianMechanism(0.01))
    assert abs(confined.value.item() - 0.5 * 199 / 200) < 1e-3
    assert kinds(held) == ["birth", "charge", "value"]


class _TimeIsUp(TimeoutError):
    """What the handler of a time limit raises."""


@pytest.fixture
def time_limit():
    """SIGALRM, as `signal.alarm` sends it, raises _TimeIsUp."""

    def ended(_number, _frame):
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ended)
    yield
    signal.signal(signal.SIGALRM, before)


@attack("A21")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeoutError)]
)
def test_a_signal_within_a_score_ends_it_and_shows_no_frame_of_it(
    ctrl_c, time_limit, number, raised
):
    """The time limit was taken for the score's own failure: records counted as the worst, and the
    loop that it should have ended went on."""

    def stopped(_x, records):
        if bool((records == 1.0).any()):
            signal.raise_signal(number)
        return records

    held = curator()
    with pytest.raises(raised) as told:
        held.evaluate(ClippedMean(stopped, score_range=(0.0, 1.0)))
    assert type(told.value) is raised
    assert told.value.__context__ is None
    frames = {frame.f_code.co_name for frame, _ in traceback.walk_tb(told.value.__traceback__)}
    assert not frames & {"stopped", "_evaluate", "_isolated"}
    assert kinds(held) == ["birth"]


@attack("A21")
def test_a_signal_is_not_lost_where_a_score_evaluates_something_itself(time_limit):
    """The inner evaluation forgot it: records counted as the worst, and the loop went on."""
    own = curator()

    def late(_x, records):
        if bool((records == 1.0).any()):
            signal.raise_signal(signal.SIGALRM)
        return records

    def nested(_x, records):
        if bool((records == 1.0).any()):
            own.evaluate(ClippedMean(late, score_range=(0.0, 1.0)))
        return records

    with pytest.raises(TimeoutError):
        curator().evaluate(ClippedMean(nested, score_range=(0.0, 1.0)))


@pytest.fixture
def children_tell():
    """SIGCHLD raises, as torch's handler does once a DataLoader has had workers."""

    def died(_number, _frame):
        raise RuntimeError("a worker is killed")

    before = signal.signal(signal.SIGCHLD, died)
    yield
    signal.signal(signal.SIGCHLD, before)


@attack("A21")
def test_a_record_that_kills_a_worker_of_the_score_is_confined(children_tell):
    """It ended evaluate, uncharged, with torch's message: that tells that the record is there."""

    def loading(_x, records):
        if bool((records == 1.0).any()):
            signal.raise_signal(signal.SIGCHLD)
        return records * 0 + 0.5

    require_confined(loading)


def test_a_time_limit_in_public_work_ends_it(time_limit):
    def late(*_given):
        signal.raise_signal(signal.SIGALRM)

    class Late(LogisticRegression):  # type: ignore[misc]
        def fit(self, X, y):
            late()

    table = np.arange(40.0)[:, None], np.arange(40) % 2
    worst = DPSearch(Late(), {"C": [1.0, 2.0]}, budget=Budget(1.0, 1e-6), error_score="worst")
    one_by_one = curator(one_at_a_time=True)
    works = {
        "a score's trial": lambda: curator().evaluate(ClippedMean(late, score_range=(0.0, 1.0))),
        "the trial of one record": lambda: one_by_one.evaluate(
            ClippedMean(late, score_range=(0.0, 1.0))
        ),
        "a fit that may fail": lambda: worst.fit(*table, table[0] + 100.0, table[1]),
    }
    for work in works.values():
        with pytest.raises(_TimeIsUp):
            work()


@attack("A21")
def test_a_result_does_not_lead_to_the_records():
    held = curator()
    bounds = box(2)
    search = DPGIBO(
        held,
        lambda x, r: (r - x[0]) ** 2,
        bounds=bounds,
        budget=1.0,
        iterations=2,
        batch_size=3,
        clip=1.0,
    )
    result = search.run()
    seen = set()
    waiting = [result]
    while waiting:
        thing = waiting.pop()
        assert thing is not held
        if (
            id(thing) not in seen
            and not isinstance(thing, type)
            and type(thing).__name__ not in ("module", "function")
        ):
            seen.add(id(thing))
            waiting += gc.get_referents(thing)
    assert str(result.statement().guarantee) == str(held.statement().guarantee)
    assert result.statement().units == 200


@attack("A16")
def test_an_open_ledger_sees_every_change_of_records_that_it_has_read(on_disk):
    """Verified again are their hashes alone."""
    held = curator(**on_disk)
    for _ in range(3):
        held.release(MEAN, NOISE)
    ledger = held.ledger
    with contextlib.closing(sqlite3.connect(on_disk["ledger"], isolation_level=None)) as file:
        rows = file.execute("SELECT * FROM dpbo_ledger ORDER BY seq").fetchall()

        def write(changed):
            file.execute("DELETE FROM dpbo_ledger")
            file.executemany("INSERT INTO dpbo_ledger VALUES (?, ?, ?, ?, ?, ?)", changed)

        def last_digit(row, column):
            parts = [*row]
            digits = [place for place, letter in enumerate(parts[column]) if letter.isdigit()]
            place = digits[-1] if digits else len(parts[column])
            new = str((int(parts[column][place]) + 1) % 10) if digits else "1"
            parts[column] = parts[column][:place] + new + parts[column][place + 1 :]
            return parts

        forged = []
        for place, row in enumerate(rows):
            for column in range(1, 6):
                forged.append([*rows[:place], last_digit(row, column), *rows[place + 1 :]])
            forged.append(rows[:place] + rows[place + 1 :])
            forged.append(
                [*rows[:place], [*row[:3], row[3].encode(), *row[4:]], *rows[place + 1 :]]
            )
        # From the first charge on, each hash follows from what is there: the chain of other values.
        later = [Record.stored(*row) for row in rows[:1]]
        for _, kind, name, body, *_ in rows[1:]:
            later.append(Record.following(later[-1], kind, f"{name}'", json.loads(body)))
        forged.append([[*vars(one).values()] for one in later])
        forged[-1] = [[*row[:3], dump(row[3]), *row[4:]] for row in forged[-1]]
        for rewritten in forged:
            write(rewritten)
            with pytest.raises(LedgerCorrupt):
                ledger.verified()
        write(rows)
        assert ledger.verified().head == ledger.head()
