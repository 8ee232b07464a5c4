"""A plan, a ledger or an accountant that forgets, and an interrupt that tells: each attack won
once.
"""

import contextlib
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

from dpbo import Budget, DPSearch, PrivateObjective
from dpbo.dpsgd.accountant import LedgerAccountant
from dpbo.errors import InputError, LedgerCorrupt
from dpbo.ledger.entries import Record
from dpbo.ledger.ledger import Ledger
from dpbo.queries import ClippedMean
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, MEAN, NOISE, itself, kinds, owner
from tests.setups import following

# Columns of the table, by number.
_USED, _ANSWERS, _BODY = 4, 5, 6


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
def test_a_ledger_keeps_no_number_of_units_where_it_is_private(on_disk):
    for number in (2000, 500):
        assert curator(number, **on_disk, adjacency="add-or-remove-one").units is None
    assert "2000" not in str(Ledger.open(on_disk["ledger"]).birth)


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


@attack("A16")
def test_an_open_ledger_sees_every_change_of_records_that_it_has_read(on_disk):
    held = curator(**on_disk)
    for _ in range(3):
        held.release(MEAN, NOISE)
    ledger = held.ledger
    with contextlib.closing(sqlite3.connect(on_disk["ledger"], isolation_level=None)) as file:
        rows = file.execute("SELECT * FROM dpbo_entries ORDER BY seq").fetchall()
        marks = ", ".join("?" * len(rows[0]))

        def write(changed):
            file.execute("DELETE FROM dpbo_entries")
            file.executemany(f"INSERT INTO dpbo_entries VALUES ({marks})", changed)

        forged = []
        for place, row in enumerate(rows):
            for column in range(1, len(row)):
                # a number stays one, so that the column takes it
                numbers = column in (_USED, _ANSWERS)
                other = (row[column] or 0) + 70 if numbers else f"{row[column]}1"
                changed = [*row[:column], other, *row[column + 1 :]]
                forged.append([*rows[:place], changed, *rows[place + 1 :]])
            forged.append(rows[:place] + rows[place + 1 :])
            bytes_for_text = [*row[:_BODY], row[_BODY].encode(), *row[_BODY + 1 :]]
            forged.append([*rows[:place], bytes_for_text, *rows[place + 1 :]])
        # From the first charge on, each hash follows from what is there: the chain of other values.
        later = [Record.stored(*rows[0])]
        for _, kind, name, reservation, used, answers, body, total, _ in rows[1:]:
            columns = {"reservation": reservation, "used": used, "answers": answers}
            later.append(
                following(later[-1], kind, f"{name}'", json.loads(body), total=total, **columns)
            )
        forged.append([[*one.columns().values()] for one in later])
        for rewritten in forged:
            write(rewritten)
            with pytest.raises(LedgerCorrupt):
                ledger.facts()
        write(rows)
        assert ledger.facts().head == ledger.head()
