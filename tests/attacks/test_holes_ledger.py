"""A plan, a ledger or an accountant that forgets, and an interrupt that tells: each attack won once."""

import contextlib
import gc
import os
import pickle
import signal
import sqlite3

import pytest
import torch

from dpbo import DPGIBO, Adjacency, Budget, BudgetExceeded, Curator, PrivacyUnit, PrivateObjective
from dpbo.curator.chain import Record
from dpbo.curator.ledger import Ledger
from dpbo.dpsgd.accountant import LedgerAccountant
from dpbo.errors import InputError, LedgerCorrupt, LedgerError, LedgerMismatch
from dpbo.events import GaussianEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.testing.ledger_contract import BIRTH

NOISE = GaussianMechanism(20.0)


def curator(records=200, **changes):
    terms = {"unit": PrivacyUnit("patient"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget.gdp(1.0, delta=1e-5)}
    return Curator(torch.linspace(0, 1, records, dtype=torch.float64), **{**terms, **changes})


def objective(owner):
    return PrivateObjective(owner, score, score_range=(0.0, 1.0), evaluations=6, name="search", budget=0.5)


def score(_x, records):
    return records


def points(q, d):
    return torch.full((q, d), 0.5, dtype=torch.float64)


@pytest.mark.attack("A16")
def test_a_plan_keeps_the_dimension_of_its_first_release(on_disk):
    """Once, 2 x 6 and then 1 x 5 were both charged, and history() raised for ever."""
    first = objective(curator(**on_disk))
    other = first.evaluate(points(1, 5)[0])
    first(points(2, 6))
    for search in (first, objective(curator(**on_disk))):
        for ask in (lambda: search(points(1, 5)), lambda: search.evaluate(points(1, 5)[0]), lambda: first.release(other)):  # noqa: B023
            with pytest.raises(InputError, match=r"x=\(5,\) is not allowed: x must be of 6 coordinates"):
                ask()
        assert search.remaining == 4
        assert search.history()[0].shape == (2, 6)


@pytest.mark.attack("A16")
def test_a_ledger_keeps_the_number_of_units_where_it_is_public(tmp_path):
    """Once, one that was born with 2,000 released for 500 of them, and its statement said 500."""
    where = {"dataset": "d", "ledger": str(tmp_path / "l.db")}
    curator(2000, **where)
    with pytest.raises(LedgerMismatch, match=r"units=2000, but units=500 .* stand-in record"):
        curator(500, **where)
    assert curator(2000, **where).statement().units == 2000
    private = {"dataset": "d", "ledger": str(tmp_path / "m.db"), "adjacency": Adjacency.ADD_OR_REMOVE_ONE}
    assert [curator(n, **private).units for n in (2000, 500)] == [None, None]
    assert "2000" not in str(Ledger.open(str(tmp_path / "m.db")).birth)


@pytest.mark.attack("A16")
def test_a_row_deleted_amid_the_ledger_is_seen_by_all_who_go_on(tmp_path):
    """Once, by statement() alone: a plan whose charge was deleted could be opened, asked and released from."""
    where = {"dataset": "d", "ledger": str(file := tmp_path / "l.db")}
    first = objective(owner := curator(**where))
    for _ in range(3):
        first(points(1, 2))
    waiting = owner.evaluate(ClippedMean(score, score_range=(0.0, 1.0)))
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        assert connection.execute("SELECT kind FROM dpbo_ledger WHERE seq = 4").fetchone() == ("charge",)
        connection.execute("DELETE FROM dpbo_ledger WHERE seq = 4")
    for call in (lambda: first.remaining, lambda: owner.release(waiting, NOISE), lambda: first(points(1, 2)), lambda: first.history()):
        with pytest.raises(LedgerCorrupt, match=r"one was removed|record 5 was changed, moved"):
            call()
    for call in (lambda: curator(**where), lambda: Ledger.open(str(file))):
        with pytest.raises(LedgerCorrupt, match="record 5 was changed, moved"):
            call()


@pytest.mark.attack("A16")
def test_before_a_release_only_new_records_are_read(tmp_path, monkeypatch):
    ledger = Ledger(str(tmp_path / "l.db"), BIRTH)
    for _ in range(40):
        ledger.charge("release", GaussianEvent(100.0), {})
    Ledger.open(str(tmp_path / "l.db")).charge("release", GaussianEvent(100.0), {})
    read, stored = list[int](), Record.stored

    def counted(*row):
        read.append(row[0])
        return stored(*row)

    monkeypatch.setattr(Record, "stored", counted)
    entry = ledger.charge("release", GaussianEvent(100.0), {})
    ledger.head()
    assert (entry, read) == (42, [41]), "what another one wrote; not what this one wrote itself"


@pytest.mark.attack("A16")
def test_what_is_spent_is_named_and_no_new_ledger_is_advised(tmp_path):
    owner = curator(dataset="readmissions", ledger=str(tmp_path / "l.db"), budget=Budget(2.0, 1e-6))
    search = objective(owner)
    search(points(5, 2))
    refused = []
    for ask in (lambda: search(points(2, 2)), lambda: owner.reserve("more", GaussianEvent(1.0), slots=9, terms={})):
        with pytest.raises(BudgetExceeded) as told:
            ask()
        refused.append(str(told.value))
    for text in refused:
        assert "The budget (epsilon 2, delta 1e-06) of data set 'readmissions' is spent or reserved in part" in text
        assert "in mu^2: the reservation 'search' 0.100502 (50 %; 5 of 6 slots used)." in text
        assert "nothing more may be released about these records" in text
        assert "new ledger" not in text
    assert "needs 2 evaluations; 1 of 6 evaluations are left. Nothing was charged." in refused[0]
    assert "of the budget); 0.100502 of 0.201004 mu^2 are left (50 % of the budget)" in refused[1]
    assert "ask for no more than is left, for example by budget=0.5." in refused[1]
    with pytest.raises(BudgetExceeded, match=r"Nothing of the budget \(mu 1, which is epsilon 4\.378, delta 1e-05\) .* is spent"):
        curator().release(ClippedMean(score, score_range=(0.0, 1.0)), GaussianMechanism(0.5))


def steps(accountant, count):
    for _ in range(count):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    return accountant.state_dict()


@pytest.mark.attack("A15", "A17")
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


@pytest.mark.attack("A15")
def test_a_checkpoint_takes_nothing_away():
    """Once, one that gave a known release another noise turned epsilon 10.46 into .013."""
    accountant = LedgerAccountant()
    accountant.add(GaussianEvent(0.5))
    steps(accountant, 10)
    before, epsilon = accountant.state_dict(), accountant.get_epsilon(1e-5)
    ((known, body),) = before["releases"].items()
    forged = [
        {**before, "releases": {known: {**body, "noise_multiplier": 400.0}}},
        {**before, "runs": {"another": [(1.0, 0.01, -500)]}},
        {**before, "runs": {"another": [(1.0, 0.01, 5)], **{run: [(9.0, 0.01, 99)] for run in before["runs"]}}},
    ]
    for state in forged:
        with pytest.raises((LedgerError, InputError)):
            accountant.load_state_dict(state)
        assert accountant.state_dict() == before, "nothing was loaded"
    accountant.load_state_dict(before)
    assert accountant.get_epsilon(1e-5) == epsilon


@pytest.mark.attack("A21")
def test_an_interrupt_that_one_record_raises_is_confined_and_ctrl_c_is_not(ctrl_c):
    """Once, the first ended evaluate, which tells that the record is there."""

    def interrupting(_x, records):
        if bool((records == 1.0).any()):
            raise KeyboardInterrupt("the last record")
        return records * 0 + 0.5

    def stopped(_x, records):
        if bool((records == 1.0).any()):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:  # a library that does not let it through
                raise ValueError("private") from None
        return records

    owner, handler = curator(budget=Budget.gdp(1e4)), signal.getsignal(signal.SIGINT)
    confined = owner.release(ClippedMean(interrupting, score_range=(0.0, 1.0)), GaussianMechanism(0.01))
    assert abs(confined.value.item() - 0.5 * 199 / 200) < 1e-3, "as the worst score"
    with pytest.raises(KeyboardInterrupt) as told:
        owner.evaluate(ClippedMean(stopped, score_range=(0.0, 1.0)))
    assert (str(told.value), told.value.__context__) == ("", None)
    frames, traceback = set[str](), told.value.__traceback__
    while traceback is not None:
        frames, traceback = frames | {traceback.tb_frame.f_code.co_name}, traceback.tb_next
    assert not frames & {"stopped", "_evaluate", "_isolated"}
    assert signal.getsignal(signal.SIGINT) is handler
    assert [record.kind for record in owner.ledger.records()] == ["birth", "charge", "value"]


@pytest.mark.attack("A21")
def test_a_result_does_not_lead_to_the_records():
    owner = curator()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    search = DPGIBO(owner, lambda x, r: (r - x[0]) ** 2, bounds=bounds, budget=1.0, iterations=2, batch_size=3, clip=1.0)
    result = search.run()
    seen, waiting = set(), [result]
    while waiting:
        thing = waiting.pop()
        assert thing is not owner
        if id(thing) not in seen and not isinstance(thing, type) and type(thing).__name__ not in ("module", "function"):
            seen.add(id(thing))
            waiting += gc.get_referents(thing)
    assert str(result.statement().guarantee) == str(owner.statement().guarantee)
    assert result.statement().units == 200
