"""What a search is given: the protected records' owner, the training side, and its share of the
budget."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from dpbo.accounting.calibration import parts_of
from dpbo.curator.curator import Curator
from dpbo.curator.pricing import noise_std, priced
from dpbo.curator.reservation import Reservation
from dpbo.errors import InputError
from dpbo.fingerprint import fingerprint
from dpbo.isolation import raised_by_signal
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.objective import PrivateObjective
from dpbo.progress import say
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.utilities import CandidateScores
from dpbo.search.results import Callback, SearchRelease
from dpbo.search.scorings import Scoring
from dpbo.search.training import Configuration, Trainer, place_of, point_of
from dpbo.space import Space

if TYPE_CHECKING:
    from dpbo.search.public_scores import Array

# A score is released at the end if the standard deviation of its noise is at most this share of
# its range.
_PLAIN = 1 / 100


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What every strategy is given.

    Attributes:
        curator: owner of the protected records.
        space: the candidates, as points of shape `d` in the unit cube; None stands for the default
            model.
        trainer: `trainer(x)` is a model of the point x to score protected records with;
            `trainer.public_model(x)`, `trainer.table()` and `trainer.parameters(x)` are public.
        scoring: the score of each record, its range and its query.
        n_iter: number of configurations to fit.
        share, final_share: shares of the curator's budget, for the search and for the last release.
        mechanism: `NoNoise` for a baseline without privacy, else None.
        divisor: public number of units that means are divided by, if one was given.
        seed, name, n_jobs, verbose, callbacks: as in `DPSearch`.
        terms: public facts of the search, for the ledger.
        groups_train: labels of the training records, if they are known.
        by_name: whether the user named a strategy other than "auto".
        split: whether public and protected records are one table's, so that the populations are the
            same.
        begun: the terms with which an earlier session began this search; None for a new one.
        public: the `PublicScores` of its candidates, for strategies that cross-validate.
        strategy: the one that runs; None until it is decided.
        rehearsal: what `Auto` simulated; None for others.
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
    by_name: bool
    split: bool
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
    def public_units(self) -> float:
        """The public number of units that means are divided by.

        Raises:
            InputError: there is none.
        """
        units = self.divisor or self.curator.units
        if units is None:
            raise InputError(
                "divisor",
                None,
                "a public number of units, where adjacency keeps their number private",
            )
        return float(units)

    @property
    def has_reference(self) -> bool:
        """Whether the default model can be fitted and copied, so that scores can be paired with
        its own.
        """
        try:
            return copy.deepcopy(self.trainer.public_model(None)) is not None
        except Exception as error:
            if raised_by_signal(error):
                raise
            return False

    def cross_validated(self) -> Self:
        """The same with its candidates' public scores."""
        # It loads scikit-learn's trees, which only a fit needs.
        from dpbo.search.public_scores import PublicScores

        if self.verbose > 1:
            # It may take most of the time, and a bar is shown on a terminal alone.
            say(f"cross-validating up to {self.n_iter + 1} configurations on public records")
        return replace(self, public=PublicScores.of(self))

    def _name_of(self, part: str) -> str:
        """The name of a part in the ledger, by which a later session finds the search."""
        if ": " in part:
            raise InputError("part", part, "a name without ': '")
        return f"{self.name}: {part}"

    def objective(self, part: str, evaluations: int, share: Fraction) -> PrivateObjective:
        """A private objective of the scoring, with so many evaluations, reserved or resumed."""
        return PrivateObjective(
            self.curator,
            self.score_query(),
            evaluations=evaluations,
            budget=share,
            mechanism=self.mechanism,
            name=self._name_of(part),
            progress=self.verbose > 0,
            terms=self.terms,
        )

    def report(self, part: str, number: int, planned: int, x: Configuration, *score: float) -> bool:
        """Tell of one release, with its score and the noise's standard deviation if it has them.

        Prints a line if wanted, and calls each callback. Returns whether one of them returned True,
        to stop the search.
        """
        parameters = {} if part == "cells" else self.trainer.parameters(x)
        release = SearchRelease(part, number, planned, parameters, *score)
        if self.verbose > 1:
            say(str(release))
        answers = [callback(release) for callback in self.callbacks]
        return any(answer is True for answer in answers)

    def reserved(self, part: str, share: Fraction, query: ClippedMean) -> Reservation:
        """The reservation of one noised answer to this question, made now or resumed."""
        return self.curator.reserve(
            self._name_of(part),
            self.mechanism or (GaussianMechanism, LaplaceMechanism),
            slots=1,
            budget=None if self.mechanism else share,
            query=query,
            given={},
            terms=self.terms,
        )

    def choice_mechanism(self, share: Fraction) -> ChoiceMechanism:
        """The choice mechanism with the least noise that this share of the budget pays for."""
        kinds = (PermuteAndFlipMechanism, ExponentialMechanism)
        payable = priced(self.curator, kinds, share)
        return min(payable, key=lambda mechanism: mechanism.noise_multiplier)

    def choice_scale(self, noise_multiplier: float) -> float:
        """Scale of the noise of a choice among mean scores of range 1, by a mechanism with this
        multiplier."""
        # Of the range, by one unit.
        moved = 1.0 if self.curator.adjacency.replaces else 0.5
        return moved * noise_multiplier / self.public_units

    def reserved_choice(self, share: Fraction, part: str = "choice", **terms: Any) -> Reservation:
        """The reservation of one private choice (`choose`), made now or resumed.

        Args:
            part: its name within the search. A second choice needs another one, or it is answered
                as the first was.
            terms: what the ledger is to tell of it, and a later session to repeat.
        """
        return self.curator.reserve(
            self._name_of(part),
            self.choice_mechanism(share),
            slots=1,
            given={},
            terms={**self.terms, **terms},
        )

    def choose(
        self,
        reservation: Reservation,
        configurations: Sequence[Configuration],
        rows: Sequence[int],
        *,
        largest_difference: float | None = None,
        offsets: Sequence[float] | None = None,
    ) -> int:
        """The row of the configuration that one private choice takes by the mean scores on the
        protected records, now or in an earlier session.

        Args:
            reservation: from `reserved_choice`.
            rows: the candidates' places among the configurations.
            largest_difference: scores are paired with the default model's, and the differences
                clipped to [-c, c]; None: plain scores.
            offsets: as in `CandidateScores`.
        """
        reference = None
        if largest_difference is not None:
            reference = self.trainer(None)
        query = CandidateScores(
            self.scoring,
            rows,
            score_range=self.scoring.bounds,
            fit=lambda row: self.trainer(configurations[row]),
            reference=reference,
            largest_difference=largest_difference,
            offsets=offsets,
        )
        fresh = reservation.remaining > 0
        if fresh:
            self.trainer.fit_ahead([configurations[row] for row in rows], self.n_jobs)
        # Else a second choice, among others, would get the answer of the first.
        asked = fingerprint([point_of(configurations[row]) for row in rows]).hex()[:16]
        best = rows[int(reservation.release(query, candidates=asked)["value"][0])]
        if fresh:
            self.report("choice", 1, 1, configurations[best])
        return best

    def last_releases(self) -> dict[str, Reservation]:
        """The reservations of what is released of the recommended configuration: its "gain" over
        the default model, its score ("final"), or both.

        The gain needs little noise, because differences are clipped. Half of the final share goes
        to the score where its noise is small beside its range. A search without cross-validated
        candidates, or whose default model cannot be copied, releases the score alone.
        """
        share = self.final_share
        if not share:
            return {}
        score = self.score_query()
        if self.public is None or not self.has_reference:
            return {"final": self.reserved("final", share, score)}
        half, rest = parts_of(self.curator.accounting, share, Fraction(1, 2))
        if released_std(self.curator, score, rest) > _PLAIN * self.width:
            return {"gain": self.reserved("gain", share, score)}
        return {
            "gain": self.reserved("gain", half, score),
            "final": self.reserved("final", rest, score),
        }

    def score_query(self) -> ClippedMean:
        """The question of a configuration's score."""
        return self.scoring.query(fit=self.trainer, divisor=self.divisor)

    def gains_of(self, x: Configuration) -> "Array | None":
        """Score differences of x to the default model on the public records; None if it was not
        cross-validated."""
        if self.public is None:
            return None
        row = place_of(x, self.public.configurations)
        return None if row is None else self.public.gains[row]

    def _gain(self, reservation: Reservation, x: Configuration) -> ClippedMean:
        """The question of x's gain over the default model, clipped by what the public records
        say."""
        # With scikit-learn's trees, which only a fit needs.
        from dpbo.search.rehearsal import gain_clip

        clip = self.width
        gains = self.gains_of(x)
        if gains is not None:
            scale = float(reservation.noise_std[0]) / self.width
            populations = None if self.rehearsal is None else self.rehearsal.populations
            clip = gain_clip(gains, scale, self.width, populations)
        return ClippedMean(
            self.scoring,
            score_range=self.scoring.bounds,
            fit=self.trainer,
            divisor=self.divisor,
            reference=self.trainer(None),
            largest_difference=clip,
        )

    def asked_before(self, last: Mapping[str, Reservation], x: Configuration) -> Configuration:
        """The configuration that an earlier session released a last number of, else x."""
        for reservation in last.values():
            for row in reservation.values:
                asked = row["details"]["x"]
                return None if asked is None else self.space.bounds.new_tensor(asked)
        return x

    def release_last(
        self, part: str, reservation: Reservation, x: Configuration
    ) -> tuple[float, float]:
        """Release a number of x, or read the one that was released earlier: the number, and the
        standard deviation of its noise.

        The default model's gain over itself is 0, which needs no release.

        Raises:
            ReleaseLost: an earlier session paid for it, and its value was never stored.
        """
        fresh = reservation.remaining > 0
        if part == "gain" and fresh and x is None:
            return 0.0, 0.0
        query = self.score_query() if part == "final" else self._gain(reservation, x)
        row = reservation.release(query.about(x), x=None if x is None else x.tolist())
        value = self.space.bounds.new_tensor([row["value"]])
        variance = reservation.std_of(query).unsqueeze(0) ** 2
        if part == "final":
            value, variance = self.scoring.observed(value, variance)
            value = value.clamp(*self.scoring.bounds)
        number = value.item()
        noise_std = variance.sqrt().item()
        if fresh:
            self.report(part, 1, 1, x, number, noise_std)
        return number, noise_std


def released_std(curator: Curator, query: ClippedMean, share: Fraction, releases: int = 1) -> float:
    """Standard deviation of the query's first mean in one of so many releases, which this share of
    the budget pays for together.
    """
    kinds = (GaussianMechanism, LaplaceMechanism)
    std = noise_std(curator, next(priced(curator, kinds, share, releases, query)), query)
    assert std is not None
    return float(std[0])
