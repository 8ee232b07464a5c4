"""A32: what the winner returns does not tell which hidden run it was.

The pieces of one stream told 12 of 12 places: every run has a stream of its own.
"""

import contextlib
import functools
import random
from typing import Any

import numpy as np
import pytest
import torch

from dpbo import Curator, Space
from dpbo.accounting import RDPFilter
from dpbo.errors import InputError, LedgerError
from dpbo.events import GaussianEvent
from tests.attacks.marks import attack
from tests.attacks.setups import (
    MEAN,
    NOISE,
    TERMS,
    best_run,
    kinds,
    owner_of_runs,
)

pytestmark = attack("A32")
RECORDS = torch.zeros(50)
BASE = (GaussianEvent(1000.0),)
GENERATORS: dict[str, Any] = {
    "numpy": np.random.default_rng(0),
    "old numpy": np.random.RandomState(0),
    "torch": torch.Generator().manual_seed(0),
    "Python": random.Random(0),
}
NUMPY = GENERATORS["numpy"]


def winner(read, place, runs):
    """What the run at this place returns, which wins."""
    done = list[Any]()

    def train(_):
        done.append(read())
        return done[-1], float(len(done) == place)

    return best_run(owner_of_runs(RECORDS, BASE, runs), train, BASE, runs).output


def of_closure(kind):
    generator = GENERATORS[kind]
    return lambda _: (generator, 0.5)


def refused(train, words):
    curator = owner_of_runs(RECORDS, BASE)
    with pytest.raises(InputError, match=words):
        best_run(curator, train, BASE)
    assert "charge" not in kinds(curator)


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_all_runs_would_share_is_refused_by_name_before_a_charge(kind):
    """Which piece of its stream a run took told its place."""
    refused(of_closure(kind), "train='generator'.*global generators")


def drawn(generator=None):
    return (generator or NUMPY).random(), 0.5


class Job:
    def __init__(self):
        self.stream = np.random.default_rng(0)

    def train(self, _):
        return self.stream.random(), 0.5


def test_so_is_one_of_a_helper_a_partial_a_default_or_an_object():
    for train in (
        lambda _: drawn(),
        functools.partial(lambda generator, _: (generator.random(), 0.5), NUMPY),
        lambda _, generator=NUMPY: (generator.random(), 0.5),
        Job().train,
    ):
        refused(train, "no generator made elsewhere.*global generators")


def test_the_winner_is_as_its_own_run_left_it():
    """Runs that return one object, such as an estimator made outside, released the last run's state
    as the winner's.
    """
    shared: dict[str, Any] = {}

    def read():
        shared["runs"] = shared.get("runs", 0) + 1
        return shared

    assert winner(read, 2, 4) == {"runs": 2}


def test_a_run_that_changes_its_parameters_changes_no_other_runs():
    """A list among the values had as many new items afterwards as there were runs."""
    seen: list[int] = []

    def train(parameters):
        parameters["hidden"].append(2)
        seen.append(len(parameters["hidden"]))
        return None, 0.5

    found = best_run(owner_of_runs(RECORDS, BASE, 3), train, BASE, 3, space=Space(hidden=[[8]]))
    assert seen == [2, 2, 2]
    assert found.parameters == {"hidden": [8]}


def _begins_afresh():
    """Whether the streams stand at their beginning."""
    again = torch.rand(4, generator=torch.Generator().manual_seed(torch.initial_seed()))
    numpy: Any = np.random.get_state()
    python = random.getstate()
    # numpy begins a stream that is seeded by a whole number one place before the end of its words.
    return torch.equal(torch.rand(4), again), numpy[2] == 623, python[1][-1] == 624


def test_every_run_begins_a_stream_of_its_own():
    """A frozen random layer is the first piece of a stream, another stream in each run."""
    seen = list[Any]()

    def read():
        afresh = _begins_afresh()
        drawn = (*torch.rand(2).tolist(), *np.random.rand(2), random.random())
        seen.append((afresh, drawn))

    winner(read, 3, 5)
    assert [all(afresh) for afresh, _ in seen] == [True] * 5
    assert len({number for _, drawn in seen for number in drawn}) == 5 * len(seen[0][1])


def test_no_run_leaves_a_record_in_a_ledger():
    """Runs that released left a charge each: as many as there were runs."""
    curator = owner_of_runs(RECORDS, BASE, accounting=RDPFilter(16.0))
    own = Curator.rehearsal(torch.ones(50), **TERMS)
    done = []

    def train(_):
        own.release(MEAN, NOISE)
        for act in (lambda: curator.release(MEAN, NOISE), lambda: curator.assume("mine")):
            with contextlib.suppress(LedgerError):
                done.append(act())
        return None, 0.5

    best_run(curator, train, BASE, 4)
    assert done == []
    assert kinds(curator).count("charge") == 1
    curator.release(MEAN, NOISE)
