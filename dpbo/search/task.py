"""What every search strategy of DPSearch is given, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import torch

from dpbo.curator.curator import Curator
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.objective import PrivateObjective
from dpbo.search.results import Callback, SearchRelease, report
from dpbo.search.scorings import Scoring
from dpbo.search.training import Trainer
from dpbo.space import Space

SEARCHES = ("bo", "turbo", "saas")
REHEARSED = {"auto": ("shift",), "list": ("shift", "candidates", "largest_difference"), "weighted_cv": ("shift", "cells")}  # and options
SHIFT = 1.0  # the largest simulated shift, in standard deviations


@dataclass(frozen=True)
class Task:
    """What every strategy needs. `share` and `final_share` are shares of the curator's budget, for the search and for the last release."""

    curator: Curator
    space: Space
    trainer: Trainer
    scoring: Scoring
    evaluations: int
    initial: int
    share: Fraction
    final_share: Fraction
    baseline: NoNoise | None
    divisor: float | None
    seed: int
    name: str
    terms: Mapping[str, Any]
    options: Mapping[str, Any]
    groups_train: Any
    alike: bool
    n_jobs: int | None
    verbose: int
    callbacks: tuple[Callback, ...]

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return str(self.terms["strategy"])

    def begun(self) -> bool:
        """Whether the ledger has a reservation of this search."""
        parts = {f"{self.name}: {part}" for part in ("final", "search", "choice", "cells")}
        return any(name in parts or name.startswith(f"{self.name}: gradients ") for name in self.curator.ledger.used())

    def objective(self, part: str, evaluations: int, share: Fraction) -> PrivateObjective:
        """A private objective with so many evaluations, reserved or resumed."""
        return PrivateObjective(
            self.curator, self.scoring, score_range=self.scoring.bounds, cells=self.scoring.cells, evaluations=evaluations,
            fit=self.trainer, name=f"{self.name}: {part}", budget=share, divisor=self.divisor, mechanism=self.baseline, terms=self.terms,
            progress=self.verbose > 0,
        )  # fmt: skip

    def final(self) -> PrivateObjective | None:
        """The objective of one evaluation that `final_share` pays for; None without it."""
        return self.objective("final", 1, self.final_share) if self.final_share else None

    def report(self, part: str, number: int, planned: int, x: torch.Tensor, *score: float) -> bool:
        """Tell of one release at point x, with its score and the noise's standard deviation if it has them. Whether to stop."""
        release = SearchRelease(part, number, planned, self.trainer.parameters(x), *score)
        return report(release, self.callbacks, lines=self.verbose > 1)


class Found(NamedTuple):
    """The recommended point, `d`, all points, `n x d`, and the search's results about them: released values and public scores."""

    x: torch.Tensor
    X: torch.Tensor
    results: dict[str, Any]
