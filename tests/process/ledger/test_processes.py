"""Eight processes on one ledger: the budget and each plan are used up exactly, no charge is lost,
and no number is given twice.
"""

import multiprocessing
import random
from collections import Counter
from typing import Any

from dpbo.accounting.filters import Cost
from dpbo.errors import BudgetExceeded
from dpbo.events import GaussianEvent
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH

PROCESSES = 8
pytestmark = attack("A16")
PLANS = {"first": 8, "second": 16}
# mu^2 = 1/64 each: 24 slots in plans, 40 releases besides
SINGLE = GaussianEvent(8.0)
PLANNED = GaussianEvent(8.0)
NOTES = ("durations-tell-nothing", "score-total")

_START: list[Any] = []


def start_together(barrier):
    """For a pool's workers: none charges before all are there, and none a second time before all
    have charged once.
    """
    _START[:] = [barrier]


def charge_all(url, number):
    """Charge what is left of the budget and of each plan, in an order of one's own; the entries
    that were charged, by plan.
    """
    (barrier,) = _START
    barrier.wait(300)
    ledger = Ledger(url, BIRTH)
    rng = random.Random(number)
    charged = []
    left = [None, *PLANS]
    for name, slots in PLANS.items():
        ledger.reserve(name, PLANNED, slots, {"by": "whoever came first"})
    while left:
        plan = rng.choice(left)
        try:
            entry = ledger.charge(
                plan or "release", PLANNED if plan else SINGLE, {"by": number}, plan
            )
        except BudgetExceeded:
            left.remove(plan)
            continue
        charged.append((plan, entry))
        ledger.store(
            entry,
            plan or "release",
            [{"handle": f"{number}-{entry}", "value": [0.5], "details": {}}],
        )
        ledger.note("assume", rng.choice(NOTES))
        if len(charged) == 1:
            barrier.wait(300)
    return charged


def test_eight_processes_share_one_budget(url, measured):
    """mu^2 = 1/64 each: 8 and 16 slots in two plans, so 40 single releases fit besides, and not one
    more.
    """
    # imports once; no ledger is open where it forks
    forking = multiprocessing.get_context("forkserver")
    with forking.Pool(PROCESSES, start_together, (forking.Barrier(PROCESSES),)) as pool:
        told = pool.starmap(charge_all, [(url, number) for number in range(PROCESSES)])
    charged = [(plan, entry) for part in told for plan, entry in part]

    ledger = Ledger(url, BIRTH)
    assert ledger.verify().total == Cost.of(1), "spent to the last bit, and no further"
    records = ledger.records()
    assert [record.seq for record in records] == list(range(len(records)))
    kept = {record.seq: record for record in records if record.kind == "charge"}
    assert sorted(entry for _, entry in charged) == sorted(kept), (
        "every charge that somebody was told of, and no other, each once"
    )
    assert Counter(plan or "none" for plan, _ in charged) == {"none": 40, **PLANS}
    for number, part in enumerate(told):
        assert all(
            kept[entry].body["by"] == number and kept[entry].reservation == plan
            for plan, entry in part
        )
    kinds = [record.kind for record in records]
    assert (kinds.count("reserve"), kinds.count("value"), kinds.count("assume")) == (
        2,
        64,
        2,
    ), "plans and notes once, every value"
    assert all(told), "not one alone"
    measured(len(charged), float(ledger.head().total.parts[0]), 1.0, least=1.0)
