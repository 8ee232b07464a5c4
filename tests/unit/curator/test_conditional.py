"""Releases whose sensitivity rests on assumptions about the data: refused unless allowed, and said
in three lines.
"""

from dataclasses import dataclass

import pytest
import torch

from dpbo import Budget
from dpbo.errors import InputError
from dpbo.queries import ClippedMean
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, MEAN, NOISE, owner

RECORDS = torch.linspace(0, 1, 101, dtype=DOUBLE)


@dataclass(frozen=True, eq=False)
class SmoothMean(ClippedMean):
    """A mean that would be more sensitive, were its records not smooth."""

    def data_assumptions(self):
        return {"gp-prior": "the objective is a draw of the declared prior"}


def make(**terms):
    return owner(RECORDS, budget=Budget(2.0, 1e-6), **terms)


SMOOTH = SmoothMean(lambda _, r: r, score_range=(0.0, 1.0))


@attack("A19")
def test_it_is_refused_unless_allowed_and_nothing_is_charged():
    curator = make()
    with pytest.raises(InputError, match=r"allow_conditional.*gp-prior"):
        curator.release(SMOOTH, NOISE)
    assert curator.ledger.head().kind == "birth"


@attack("A19")
def test_three_lines_tell_three_guarantees(on_disk):
    curator = make(**on_disk, allow_conditional=True)
    curator.release(MEAN, NOISE)
    assert len(set(curator.statement().lines)) == 1
    curator.release(SMOOTH, NOISE)
    statement = make(**on_disk, allow_conditional=True).statement()
    everything, alone, assumed = statement.lines
    assert everything == "not bounded"
    assert alone.startswith("(2.000, 1e-06)-DP")
    assert "chosen by what the other releases said" in alone
    assert assumed.startswith("(2.000, 1e-06)-DP")
    assert assumed.endswith("gp-prior")
    assert statement.assumptions["gp-prior"] == "the objective is a draw of the declared prior"
    assert not statement.void
    # an exact answer leaves no line but the private ones
    curator.release(MEAN, EXACT)
    everything, alone, assumed = curator.statement().lines
    assert everything == "not bounded"
    assert alone.startswith("(2.000")
    assert assumed.startswith("not bounded")
