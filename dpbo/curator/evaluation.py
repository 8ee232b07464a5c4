"""One evaluation, as a picklable job for this process or a worker: fit in the open, then score inside.

A worker belongs to the trusted side. What it sends back is a message of clipped integer sums, with the raw losses where a question keeps
them for later ones, and never noise, so a job that dies or runs twice costs nothing.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.curator.records import PrivateView, count_records, guarded, versions
from dpbo.errors import ScoreError
from dpbo.queries.query import Failure, IntegerSum, Query


@dataclass(frozen=True, eq=False)
class Job:
    """Evaluate one query. Errors of its public part are raised; what fails on private records comes back as a Failure.

    Its id tells it from every other job: an executor that runs equal calls once (Dask's default) would give two releases one Poisson
    sample, and the second were no fresh one.
    """

    query: Query
    view: PrivateView = field(repr=False)
    example: Any = field(repr=False)
    home: int = field(default_factory=os.getpid)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self) -> IntegerSum | Failure:
        if os.getpid() != self.home:
            torch.set_num_threads(1)  # one thread a worker: nested threads starve each other
        subject = self.query.prepare()
        if self.example is not None:
            self._probe(subject)
        try:
            before = self.view.versions()
        except BaseException:  # a Source may name records in what it raises
            return Failure("source")
        outcome = self.query._evaluate(self.view, subject)
        return outcome if self.view.versions() == before else Failure("mutated")

    def _probe(self, subject: Any) -> None:
        before = versions(self.example)
        self.query.probe(guarded(self.example), count_records(self.example), subject)
        if versions(self.example) != before:
            raise ScoreError("score must not change records in place; on public stand-in records it did. Score a copy.")
