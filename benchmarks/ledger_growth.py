"""What a ledger costs as it grows: an objective's call, `remaining`, `history`, a parallel answer,
`statement`, opening.

In milliseconds, medians: by number of releases under one reservation, then by number of
reservations. A file's charge and value each wait for the disk; `--memory 1` leaves the disk out.
`--full 1` goes to 100,000 releases and 10,000 reservations.
"""

import pathlib
import tempfile
from typing import Any

import torch

from benchmarks.harness import interleaved, options, record, table
from dpbo import Adjacency, Budget, Curator, PrivateObjective
from dpbo.events import GaussianEvent
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import LaplaceMechanism
from dpbo.papers.po_gp_ucb.rows import RowOutcome

HEADER = ("call", "remaining", "parallel answer", "history", "statement", "open")


def score(x: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """A score of each record that costs next to nothing."""
    return 1 - (records - x[0]).abs()


class Study:
    """One ledger with an objective and a parallel reservation."""

    def __init__(self, url: str | None) -> None:
        place: dict[str, Any] = {} if url is None else {"dataset": "growth", "ledger": url}
        self.url = url
        self.curator = Curator(
            torch.linspace(0, 1, 1000, dtype=torch.float64),
            unit="record",
            adjacency=Adjacency.REPLACE_ONE,
            budget=Budget.gdp(10**4, delta=1e-6),
            **place,
        )
        self.objective = PrivateObjective(
            self.curator,
            score,
            score_range=(0.0, 1.0),
            evaluations=10**6,
            budget=0.5,
            progress=False,
        )
        self.mechanism = LaplaceMechanism(1000.0)
        event = self.mechanism.event()
        self.curator.reserve("rows", event, slots=10**6, terms={}, parallel=True)
        self.row = 0
        self.point = torch.rand(1, 2, dtype=torch.float64)

    def call(self) -> None:
        """Evaluate and release one point."""
        self.objective(self.point)

    def grow(self, releases: int) -> None:
        """Release until so many evaluations are charged, each in an entry of its own."""
        while 10**6 - self.objective.remaining < releases:
            self.call()

    def reserve(self, names: range) -> None:
        """One small reservation for each number."""
        for number in names:
            self.curator.reserve(f"plan {number}", GaussianEvent(10**4), slots=1, terms={})

    def answer(self) -> None:
        """One answer about one record."""
        self.row = (self.row + 1) % 1000
        query = RowOutcome(lambda records: records, row=self.row, value_range=(0.0, 1.0))
        self.curator.release_all(
            [self.curator.evaluate(query)], self.mechanism, name="rows", reservation="rows"
        )

    def times(self, repetitions: int) -> list[float]:
        """Median milliseconds of each call."""
        opened = (
            self.curator.ledger.verify if self.url is None else lambda: Ledger.open(str(self.url))
        )
        quick = interleaved(
            self.call,
            lambda: self.objective.remaining,
            self.answer,
            self.objective.history,
            repetitions=5 * repetitions,
        )
        slow = interleaved(self.curator.statement, opened, repetitions=repetitions)
        return [1000 * sorted(seconds)[len(seconds) // 2] for seconds in (*quick, *slow)]


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, full=0, memory=0)
    torch.set_num_threads(1)
    torch.manual_seed(chosen.seed)
    most = 1 if chosen.smoke else 5 if chosen.full else 3
    releases = [10**k for k in range(1, most + 1)]
    plans = [10**k for k in range(most)]
    found: dict[str, list[list[float]]] = {"releases": [], "reservations": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in (("releases", releases), ("reservations", plans)):
            study = Study(None if chosen.memory else str(pathlib.Path(folder) / f"{name}.db"))
            before = 0
            for size in sizes:
                if name == "releases":
                    study.grow(size)
                else:
                    study.reserve(range(before, size))
                before = size
                found[name].append([size, *study.times(1 if chosen.smoke else 5)])
            print(table([name, *HEADER], found[name]), "\n")
    record("ledger_growth", found, chosen)


if __name__ == "__main__":
    main()
