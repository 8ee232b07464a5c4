"""What each of several processes does to one ledger; imported by them, so nothing heavy here."""

import random
from typing import Any

from dpbo.curator.ledger import Ledger
from dpbo.errors import BudgetExceeded
from dpbo.events import GaussianEvent
from dpbo.privacy import Budget

BIRTH = {
    "dataset": "processes", "unit": "record", "grouped": False, "adjacency": "replace-one",
    "budget": Budget.gdp(1.0, delta=1e-5).to_json(), "accounting": "GDPFilter", "role": "validation",
}  # fmt: skip
PLANS = {"first": 8, "second": 16}
SINGLE, PLANNED = GaussianEvent(8.0), GaussianEvent(8.0)  # mu^2 = 1/64 each: 24 slots in plans, 40 releases besides
NOTES = ("durations-tell-nothing", "score-total")


_START: list[Any] = []


def start_together(barrier):
    """For a pool's workers: none charges before all are there."""
    _START[:] = [barrier]


def charge_all(url, number):
    """Charge what is left of the budget and of each plan, in an order of one's own; the entries that were charged, by plan."""
    for barrier in _START:
        barrier.wait(300)
    ledger, rng = Ledger(url, BIRTH), random.Random(number)
    charged, left = [], [None, *PLANS]
    for name, slots in PLANS.items():
        ledger.reserve(name, PLANNED, slots, {"by": "whoever came first"})
    while left:
        plan = rng.choice(left)
        try:
            entry = ledger.charge(plan or "release", PLANNED if plan else SINGLE, {"by": number}, plan)
        except BudgetExceeded:
            left.remove(plan)
            continue
        charged.append((plan, entry))
        ledger.store(entry, plan or "release", [{"handle": f"{number}-{entry}", "value": [0.5], "details": {}}])
        ledger.note("assume", rng.choice(NOTES))
    return charged
