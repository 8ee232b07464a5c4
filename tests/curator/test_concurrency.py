"""Several processes on one ledger: they never exceed the budget and never lose a charge."""

import concurrent.futures
import multiprocessing

import pytest

from dpbo.accounting.costs import Cost
from dpbo.curator.ledger import Ledger
from dpbo.errors import BudgetExceeded
from dpbo.events import GaussianEvent
from dpbo.testing.ledger_contract import BIRTH


def charge_until_refused(url):
    ledger, entries = Ledger(url, BIRTH), []
    while True:
        try:
            entries.append(ledger.charge("release", GaussianEvent(10.0), {}))
        except BudgetExceeded:
            return entries


@pytest.mark.attack("A16")
def test_four_processes_share_one_budget(tmp_path):
    url = str(tmp_path / "l.db")
    with concurrent.futures.ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        entries = [entry for part in pool.map(charge_until_refused, [url] * 4) for entry in part]
    ledger = Ledger(url, BIRTH)
    assert ledger.verify().total == Cost.of(1)
    assert sorted(entries) == list(range(1, 101)), "mu^2 = 1/100 each, so exactly a hundred fit, each with an entry of its own"


@pytest.mark.attack("A16")
def test_a_birth_in_two_processes_at_once_is_one_birth(tmp_path):
    url = str(tmp_path / "l.db")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: Ledger(url, BIRTH), range(8)))
    assert len({ledger.head().hash for ledger in ledgers}) == 1
