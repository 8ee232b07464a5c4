"""What a search is given: the protected records' owner, the training side, and its share of the
budget."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

from tqdm import tqdm

from dpbo.curator.curator import Curator
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.objective import PrivateObjective
from dpbo.queries.clipped import ClippedMean
from dpbo.search.results import Callback, SearchRelease
from dpbo.search.scorings import Scoring
from dpbo.search.training import Configuration, Trainer
from dpbo.space import Space

# Of a search's reservations in the ledger.
PARTS = ("final", "search", "choice", "cells")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What every strategy is given.

    Attributes:
        share, final_share: shares of the curator's budget, for the search and for the last release.
        n_iter: number of configurations to fit.
        mechanism: `NoNoise` for a baseline without privacy, else None.
        terms: public facts of the search, for the ledger.
        alike: whether public and protected records are one table's, so that the populations are the
            same.
        begun: the terms with which an earlier session began this search; None for a new one.
        public: the `PublicScores` of its candidates, for strategies that cross-validate.
        strategy: what was decided.
        rehearsal: by which `Auto` decided.
    """

    curator: Curator
    space: Space
    trainer: Trainer
    scoring: Scoring
    n_iter: int
    share: Fraction
    final_share: Fraction
    mechanism: NoNoise | None
    divisor: float | None
    seed: int
    name: str
    terms: Mapping[str, Any]
    groups_train: Any
    alike: bool
    n_jobs: int | None
    verbose: int
    callbacks: tuple[Callback, ...]
    begun: Mapping[str, Any] | None
    public: Any = None
    strategy: Any = None
    rehearsal: Any = None

    @property
    def width(self) -> float:
        """The width of the score's range."""
        return self.scoring.bounds[1] - self.scoring.bounds[0]

    @property
    def units(self) -> float | None:
        """The public number of units, where there is one."""
        return self.curator.units or self.divisor

    def cross_validated(self) -> Self:
        """The same with its candidates' public scores."""
        # It loads scikit-learn's trees, which only a fit needs.
        from dpbo.search.public_scores import PublicScores

        return replace(self, public=PublicScores.of(self))

    def objective(
        self,
        part: str,
        evaluations: int,
        share: Fraction,
        *,
        query: ClippedMean | None = None,
        progress: bool = True,
    ) -> PrivateObjective:
        """A private objective with so many evaluations, reserved or resumed; of the scoring, or of
        another query.
        """
        return PrivateObjective(
            self.curator,
            self.scoring.query(fit=self.trainer, divisor=self.divisor) if query is None else query,
            evaluations=evaluations,
            budget=share,
            mechanism=self.mechanism,
            name=f"{self.name}: {part}",
            progress=progress and self.verbose > 0,
            terms=self.terms,
        )

    def report(self, part: str, number: int, planned: int, x: Configuration, *score: float) -> bool:
        """Tell of one release, with its score and the noise's standard deviation if it has them.

        Prints a line if wanted, and calls each callback. Returns whether one of them returned True,
        to stop the search.
        """
        release = SearchRelease(part, number, planned, self.trainer.parameters(x), *score)
        if self.verbose > 1:
            tqdm.write(str(release))
        answers = [callback(release) for callback in self.callbacks]
        return any(answer is True for answer in answers)

    def final_score(
        self, final: PrivateObjective, x: Configuration
    ) -> tuple[Configuration, float | None, float | None]:
        """Release the score of x, or read the one that was released earlier.

        Returns:
            The configuration that was scored, its score and the standard deviation of the noise; x
            and None twice where the release was lost.
        """
        fresh = final.remaining > 0
        if fresh:
            final(self.trainer.point(x).unsqueeze(0))
        released, Y, Yvar = final.history()
        if not len(released):
            return x, None, None
        x = self.trainer.configuration(released[0])
        observed, variance = self.scoring.observed(Y, Yvar)
        lower, upper = self.scoring.bounds
        score = min(max(observed.item(), lower), upper)
        noise_std = variance.sqrt().item()
        if fresh:
            self.report("final", 1, 1, x, score, noise_std)
        return x, score, noise_std
