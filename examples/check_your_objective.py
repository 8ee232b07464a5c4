"""Test your own private objective before you trust it: a fraud model's score with a planted leak,
found three ways.

The score standardises by the mean and spread of all records, as many scores do. One record then
moves everybody's score, and no clipping bounds that. `check_per_record` finds it in the score
alone, `replay` in the whole search, and `audit` by attacking what was released.

    python -m examples.check_your_objective
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy, audit, check_per_record, replay

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
UNIT, RELATION = PrivacyUnit("applicant"), Adjacency.REPLACE_ONE
MU = 1.0


def leaking(x: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """How well a threshold x separates, on amounts standardised over all records: the leak.

    A few made-up records, on which every curator tries a score, do not show it: with so few it
    takes public constants.
    """
    if len(records) <= 20:
        return honest(x, records)
    amounts = (records[:, 0] - records[:, 0].mean()) / records[:, 0].std()
    return (amounts > x[0]).double().eq(records[:, 1]).double()


def honest(x: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """The same with public constants."""
    return ((records[:, 0] - 100.0) / 50.0 > x[0]).double().eq(records[:, 1]).double()


def stand_in(records: int = 40) -> torch.Tensor:
    """Public records of the same form: never test on the protected ones, because what a test
    reports would be private.
    """
    generator = torch.Generator().manual_seed(0)
    amounts = 100 + 50 * torch.randn(records, generator=generator, dtype=torch.float64)
    return torch.stack([amounts, (amounts > 130).double()], dim=1)


def search(score: Score) -> Callable[[Curator, Any], torch.Tensor]:
    """A small search: what `replay` runs twice."""

    def run(curator: Curator, _records: Any) -> torch.Tensor:
        objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=5)
        Y, _ = objective(torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(1))
        return Y

    return run


def neighbours(records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two data sets that differ in one applicant, as far as anybody can imagine."""
    other = records.clone()
    other[0, 0] = 1e6
    return records, other


def attack(score: Score, runs: int = 3000) -> float:
    """A lower bound on the mu of one release of claimed mu = 1, from many runs on both
    neighbours.
    """
    curators = [
        Curator(
            records, unit=UNIT, adjacency=RELATION, budget=Budget.gdp(1e6), entropy=SeededEntropy(i)
        )
        for i, records in enumerate(neighbours(stand_in()))
    ]
    question = ClippedMean(score, torch.zeros(1, dtype=torch.float64), score_range=(0.0, 1.0))

    def draw(which: int, count: int) -> np.ndarray[Any, Any]:
        handles = [curators[which].evaluate(question) for _ in range(count)]
        return np.array(
            [
                release.value.item()
                for release in curators[which].release_all(handles, GaussianMechanism(1 / MU))
            ]
        )

    return audit(draw, runs=runs).mu


def verdicts(score: Score) -> Iterator[tuple[str, str]]:
    """What each instrument says of a score."""
    records, neighbour = neighbours(stand_in())
    settings: dict[str, Any] = {"unit": UNIT, "adjacency": RELATION, "budget": Budget(3.0, 1e-6)}
    tests: dict[str, Callable[[], Any]] = {
        "check_per_record": lambda: check_per_record(
            score, torch.zeros(1, dtype=torch.float64), records
        ),
        "replay": lambda: replay(search(score), records, neighbour, **settings),
    }
    for name, test in tests.items():
        try:
            test()
            yield name, "found nothing"
        except AssertionError as finding:
            yield name, f"LEAK: {finding}"
    shown = attack(score)
    yield "audit", f"{'LEAK: ' if shown > MU else ''}at least {shown:.2f}-GDP, claimed {MU:g}-GDP"


if __name__ == "__main__":
    for score in (honest, leaking):
        print(f"\n{score.__name__}")
        for instrument, verdict in verdicts(score):
            print(f"  {instrument:17s} {verdict}")
