"""What a search is to do. It is public: nothing here knows the protected records."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpbo.isolation import INTERRUPTS
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.progress import say
from dpbo.queries.clipped import ClippedMean
from dpbo.search.results import Callback, SearchRelease
from dpbo.search.scorings import Scoring
from dpbo.search.training import Configuration, Trainer
from dpbo.space import Space


@dataclass(frozen=True, kw_only=True)
class Task:
    """The terms of a search.

    Attributes:
        space: the candidates, as points of shape `d` in the unit cube; None stands for the default
            model.
        trainer: `trainer(x)` is a model of the point x to score protected records with;
            `trainer.public_model(x)`, `trainer.table()` and `trainer.parameters(x)` are public.
        scoring: the score of each record, its range and its query.
        n_iter: number of configurations to fit.
        mechanism: `NoNoise` for a baseline without privacy, else None.
        divisor: public number of units that means are divided by, if one was given.
        seed, name, n_jobs, verbose, callbacks: as in `DPSearch`.
        terms: public facts of the search, for the ledger.
        groups_train: labels of the training records, if they are known.
        by_name: whether the user named a strategy other than "auto".
        split: whether public and protected records are one table's, so that the populations are the
            same.
    """

    space: Space
    trainer: Trainer
    scoring: Scoring
    n_iter: int
    mechanism: NoNoise | None
    divisor: float | None
    seed: int
    name: str
    terms: Mapping[str, Any]
    groups_train: Any
    by_name: bool
    split: bool
    n_jobs: int | None
    verbose: int
    callbacks: tuple[Callback, ...]

    @property
    def width(self) -> float:
        """The width of the score's range."""
        return self.scoring.bounds[1] - self.scoring.bounds[0]

    def tell(self, text: str) -> None:
        """Print a line with verbose=2: of what takes time, before it begins."""
        if self.verbose > 1:
            say(text)

    def report(self, part: str, number: int, planned: int, x: Configuration, *score: float) -> bool:
        """Tell of one release, with its score and the noise's standard deviation if it has them.

        Prints a line if wanted, and calls each callback. Returns whether one of them returned True,
        to stop the search.
        """
        parameters = {} if part == "cells" else self.trainer.parameters(x)
        release = SearchRelease(part, number, planned, parameters, *score)
        self.tell(str(release))
        answers = [callback(release) for callback in self.callbacks]
        return any(answer is True for answer in answers)

    def score_query(self, **settings: Any) -> ClippedMean:
        """The question of a configuration's score, with further settings of `ClippedMean`."""
        return self.scoring.query(fit=self.trainer, divisor=self.divisor, **settings)

    @property
    def untested(self) -> str:
        """Why no candidate can be compared with the default model on each record; else ""."""
        if self.scoring.cells is not None:
            return f"scoring={self.terms['scoring']!r} is no mean of one number per record"
        try:
            model = copy.deepcopy(self.trainer.public_model(None))
        except Exception as error:
            if isinstance(error, INTERRUPTS):
                raise
            model = None
        return "your model cannot be fitted and copied" if model is None else ""
