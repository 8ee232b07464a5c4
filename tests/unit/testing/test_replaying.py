"""Replay passes honest algorithms and finds each planted leak."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from dpbo import Budget, PrivacyUnit, PrivateObjective
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.testing import replay
from tests.attacks.marks import attack
from tests.setups import DOUBLE, TERMS

RECORDS = torch.linspace(0, 1, 50, dtype=DOUBLE)
NEIGHBOUR = torch.cat([torch.tensor([37.0], dtype=DOUBLE), RECORDS[1:]])
SETTINGS = {**TERMS, "budget": Budget(12.0, 1e-5)}


def score(x, records):
    return 1 - (records - x[0]).abs()


GRID = torch.linspace(0, 1, 5, dtype=DOUBLE).reshape(-1, 1)


def honest(curator, _records):
    """Where it looks next depends on what was released, as it may."""
    x = torch.tensor(0.5, dtype=DOUBLE)
    objective = planned(curator)
    for _ in range(6):
        Y, _ = objective(x.reshape(1, 1))
        x = (x + 0.1 * Y.item()).clamp(0, 1)


@attack("A6", "A20")
def test_an_honest_algorithm_passes_also_for_groups_and_its_steps_come_back():
    steps = replay(honest, RECORDS, NEIGHBOUR, **SETTINGS)
    assert len(steps) == 6
    assert len({step.question["x"][0] for step in steps}) > 3
    labels = [i // 2 for i in range(50)]
    grown = [0, *labels]
    settings = {**SETTINGS, "unit": PrivacyUnit("patient", groups=labels)}
    records = torch.cat([torch.tensor([-5.0], dtype=DOUBLE), RECORDS])
    replay(
        honest, RECORDS, records, neighbour_unit=PrivacyUnit("patient", groups=grown), **settings
    )


def is_neighbour(records):
    return bool(records.max() > 10)


def planned(curator, score=score, **changed):
    return PrivateObjective(
        curator, score, **{"score_range": (0.0, 1.0), "evaluations": 6, **changed}
    )


def candidates_from_the_records(curator, records):
    for x in (records.quantile(0.9), records.mean()):
        planned(curator)(x.reshape(1, 1))


def stopping_on_raw_scores(curator, records):
    for x in GRID[: 1 if is_neighbour(records) else 5]:
        planned(curator)(x.unsqueeze(0))


def standardised_by_the_records(curator, records):
    # unseen on the few records that it is tried on
    planned(curator, lambda x, r: (r - r.mean()) / r.std() if len(r) > 20 else r)(GRID)


def ranges_from_the_records(curator, records):
    planned(curator, score_range=(0.0, float(records.max())))(GRID)


def plans_by_the_records(curator, records):
    planned(curator, evaluations=6 + is_neighbour(records))(GRID)


def evaluating_more_than_is_released(curator, records):
    objective = planned(curator)
    handles = [objective.evaluate(x) for x in GRID[: 2 + is_neighbour(records)]]
    objective.release(handles[:2])


def returning_a_raw_number(curator, records):
    honest(curator, records)
    return float(records.mean())


def a_threshold_from_the_records(curator, records):
    planned(curator, fit=functools.partial(torch.add, records.mean()))(GRID)


def a_name_with_a_number_in_it(curator, records):
    planned(curator, name=f"sum {records.sum():.3f}")(GRID)


class PrivateQuanta(ClippedMean):
    """The same integers on a lattice that depends on the records."""

    def _evaluate(self, view, subject):
        answer: Any = super()._evaluate(view, subject)
        factor = 2.0 if float(view.records.max()) > 10 else 1.0
        return dataclasses.replace(answer, quanta=tuple(factor * q for q in answer.quanta))


def a_lattice_from_the_records(curator, records):
    curator.release(
        PrivateQuanta(score, torch.tensor([0.5]), score_range=(0.0, 1.0)), GaussianMechanism(50.0)
    )


@pytest.mark.parametrize(
    ("leak", "message"),
    [
        (returning_a_raw_number, "what the run returns"),
        (a_threshold_from_the_records, "fit changed"),
        (a_name_with_a_number_in_it, "ledger record .* name"),
        (a_lattice_from_the_records, "quanta"),
        (candidates_from_the_records, "evaluation 0 depends on the records .* x changed"),
        (stopping_on_raw_scores, "the number of evaluations"),
        (standardised_by_the_records, "moved by"),
        (ranges_from_the_records, "score_range, ranges changed"),
        (plans_by_the_records, "release 0 depends on the records .* event"),
        (evaluating_more_than_is_released, "the number of evaluations"),
    ],
)
@attack("A6", "A7", "A21")
def test_each_planted_leak_is_found(leak, message):
    with pytest.raises(AssertionError, match=message):
        replay(leak, RECORDS, NEIGHBOUR, **SETTINGS)


def test_a_run_that_releases_nothing_proves_nothing():
    with pytest.raises(AssertionError, match="nothing to compare"):
        replay(lambda _curator, _records: None, RECORDS, NEIGHBOUR, **SETTINGS)
