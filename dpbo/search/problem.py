"""What a search is given: the protected records' owner, the training side, and its share of the
budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self, cast

from dpbo.curator.curator import Curator
from dpbo.curator.pricing import noise_std, priced
from dpbo.curator.reservation import Reservation
from dpbo.errors import InputError, ReleaseLost
from dpbo.fingerprint import fingerprint
from dpbo.mechanisms.additive import IndependentNoise
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.mechanisms.thresholded_exponential import ThresholdedExponentialMechanism
from dpbo.objective import PrivateObjective
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.score_evaluation import tensor_of
from dpbo.queries.utilities import CandidateScores
from dpbo.search.recommendation import Recommendation, clip_of, exceeded
from dpbo.search.task import Task
from dpbo.search.training import Configuration, place_of, point_of

if TYPE_CHECKING:
    from dpbo.search.public_scores import PublicScores
    from dpbo.search.rehearsal import Rehearsal
    from dpbo.search.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Problem(Task):
    """A task, with the protected records' owner and what may be released of them. What every
    strategy is given.

    Attributes:
        curator: owner of the protected records.
        share: of the curator's budget, what the search may spend.
        begun: the terms with which an earlier session began this search; None for a new one.
        charged: whether that session was charged for something.
        public: the `PublicScores` of its candidates, for strategies that cross-validate.
        strategy: the one that runs; None until it is decided.
        rehearsal: what `Auto` simulated; None for others.
    """

    curator: Curator
    share: Fraction
    begun: Mapping[str, Any] | None = None
    charged: bool = False
    public: "PublicScores | Any" = None
    strategy: "Strategy | Any" = None
    rehearsal: "Rehearsal | Any" = None

    @classmethod
    def of(cls, task: Task, curator: Curator, share: Fraction) -> Self:
        """This task on the curator's records, begun anew or found in its ledger."""
        # A search's reservations in the ledger are named "NAME: PART", a strategy's own parts, too.
        # The caller may have named another reservation alike.
        begun = {
            name: reserved.terms
            for name, reserved in curator.ledger.facts().reservations.items()
            if name.rpartition(": ")[0] == task.name and "strategy" in reserved.terms
        }
        return cls(
            **{each.name: getattr(task, each.name) for each in fields(task)},
            curator=curator,
            share=share,
            begun=next(iter(begun.values()), None),
            charged=any(curator.ledger.counts(name)[0] for name in begun),
        )

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

    def cross_validated(self) -> Self:
        """The same with its candidates' public scores."""
        # It loads scikit-learn's trees, which only a fit needs.
        from dpbo.search.public_scores import PublicScores

        return replace(self, public=PublicScores.of(self))

    def _tell_known(self, part: str, known: int, slots: int) -> None:
        """Tell how many values of a part the ledger has already."""
        if known:
            self.tell(f"{part}: {known} of {slots} read from the ledger")

    def _name_of(self, part: str) -> str:
        """The name of a part in the ledger, by which a later session finds the search."""
        if ": " in part:
            raise InputError("part", part, "a name without ': '")
        return f"{self.name}: {part}"

    def objective(self, part: str, evaluations: int, share: Fraction) -> PrivateObjective:
        """A private objective of the scoring, with so many evaluations, reserved or resumed."""
        objective = PrivateObjective(
            self.curator,
            self.score_query(),
            evaluations=evaluations,
            budget=share,
            mechanism=self.mechanism,
            name=self._name_of(part),
            progress=self.verbose > 0,
            terms=self.terms,
        )
        self._tell_known(part, evaluations - objective.remaining, evaluations)
        return objective

    def reserved(self, part: str, share: Fraction, query: ClippedMean) -> Reservation:
        """The reservation of one noised answer to this question, made now or resumed."""
        reservation = self.curator.reserve(
            self._name_of(part),
            self.mechanism or (GaussianMechanism, LaplaceMechanism),
            slots=1,
            budget=None if self.mechanism else share,
            query=query,
            given={},
            terms=self.terms,
        )
        self._tell_known(part, len(reservation.values), reservation.slots)
        return reservation

    def choice_mechanism(self, share: Fraction, risk: float | None = None) -> ChoiceMechanism:
        """The choice mechanism with the least noise that this share of the budget pays for; with a
        `risk` the one that chooses none where none stands out."""
        if risk is not None:
            kept = (ThresholdedExponentialMechanism,)
            return replace(next(priced(self.curator.ledger, kept, share)), risk=risk)
        kinds = (PermuteAndFlipMechanism, ExponentialMechanism)
        payable = priced(self.curator.ledger, kinds, share)
        return min(payable, key=lambda mechanism: mechanism.noise_multiplier)

    def reserved_choice(
        self, share: Fraction, part: str = "choice", risk: float | None = None, **terms: Any
    ) -> Reservation:
        """The reservation of one private choice (`choose`), made now or resumed.

        Args:
            risk: as in `choice_mechanism`.
            part: its name within the search. A second choice needs another one, or it is answered
                as the first was.
            terms: what the ledger is to tell of it, and a later session to repeat.
        """
        reservation = self.curator.reserve(
            self._name_of(part),
            self.choice_mechanism(share, risk),
            slots=1,
            given={},
            terms={**self.terms, **terms},
        )
        self._tell_known(part, len(reservation.values), reservation.slots)
        return reservation

    def choose(
        self,
        reservation: Reservation,
        configurations: Sequence[Configuration],
        rows: Sequence[int],
        *,
        largest_difference: float | None = None,
    ) -> int | None:
        """The row of the configuration that one private choice takes by the mean scores on the
        protected records, now or in an earlier session; None where it takes none.

        Args:
            reservation: from `reserved_choice`.
            rows: the candidates' places among the configurations.
            largest_difference: scores are paired with the default model's, and the differences
                clipped to [-c, c]; None: plain scores.
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
        )
        fresh = reservation.remaining > 0
        if fresh:
            self.tell(f"choice: {len(rows)} configurations, each fitted to all public records")
            self.trainer.fit_ahead([configurations[row] for row in rows], self.n_jobs)
        # Else a second choice, among others, would get the answer of the first.
        asked = fingerprint([point_of(configurations[row]) for row in rows]).hex()[:16]
        place = int(reservation.release(query, candidates=asked)["value"][0])
        best = None if place < 0 else rows[place]
        if fresh:
            self.report("choice", 1, 1, None if best is None else configurations[best])
        return best

    @property
    def protected(self) -> str:
        """What counts alike in a mean: "records", or "units" of several."""
        return "units" if self.curator.ledger.birth.grouped else "records"

    def clip(self, x: Configuration) -> float:
        """The clip of x's score differences to the default model, by what the public records say:
        out of fold where x was cross-validated, else by the fitted models."""
        row = None if self.public is None else place_of(x, self.public.configurations)
        if row is not None:
            gains = self.public.gains[row]
        elif self.trainer.labels() is None:
            return self.width / 4
        else:
            records = self.trainer.table()
            own, other = (
                tensor_of(self.scoring(self.trainer.public_model(each), records)).double()
                for each in (x, None)
            )
            gains = (own - other).nan_to_num().reshape(-1).numpy()
        return float(clip_of(gains, self.width))

    def test_noise(self, share: Fraction) -> tuple[IndependentNoise, float]:
        """The mechanism of a test that this share of the budget pays for, and the standard
        deviation of its noise by differences clipped at 1."""
        query = ClippedMean(self.scoring, score_range=(-1.0, 1.0), divisor=self.public_units)
        return least_noise(self.curator, query, share)

    def recommend(
        self, reservation: Reservation, x: Configuration, risk: float
    ) -> tuple[Configuration, Recommendation]:
        """What one last release recommends, and its words: x, or the default model where the test
        does not show that x is better (recommendation.py). Where nothing can be tested it is x, and
        its score is released. A search that is resumed recommends what was asked about before, by
        the clip of then.

        Args:
            reservation: `reserved("test", share, problem.score_query())`.
            risk: of the test.
        """
        new = self.space.bounds.new_tensor
        asked = next((row["details"] for row in reservation.values), None)
        if asked is not None:
            x = new(asked["x"])
        own = Recommendation(
            self.trainer.parameters(x), False, risk, divisor=self.divisor, protected=self.protected
        )
        kept = replace(own, parameters=self.trainer.parameters(None), kept=True, gain=0.0)
        if x is None:
            # Its gain over itself is 0, which needs no release.
            return None, kept
        untested = replace(own, risk=None, untested=self.untested)
        if asked is None:
            asked = {"x": x.tolist(), "clip": None if self.untested else self.clip(x)}
        clip = asked["clip"]
        query = self.score_query()
        if clip is not None:
            query = self.score_query(reference=self.trainer(None), largest_difference=clip)
        fresh = reservation.remaining > 0
        try:
            row = reservation.release(query.about(x), **asked)
        except ReleaseLost:
            if clip is None:
                return x, replace(untested, untested=f"{self.untested}; {_LOST}")
            return None, replace(kept, risk=None, untested=_LOST)
        value, variance = self.scoring.observed(new([row["value"]]), new([row["variance"]]))
        released = value.item()
        std = variance.sqrt().item()
        if fresh:
            self.report("final" if clip is None else "test", 1, 1, x, released, std)
        if clip is None:
            return x, replace(untested, score=released, noise_std=std)
        gain = released - exceeded(reservation.mechanism, std, risk)
        if gain <= 0.0:
            x = None
            own = kept
            gain = 0.0
        return x, replace(own, gain=gain, difference=released, noise_std=std, clip=clip)


_LOST = "the release was charged and lost, and is never drawn again"


def least_noise(
    curator: Curator, query: ClippedMean, share: Fraction, releases: int = 1
) -> tuple[IndependentNoise, float]:
    """The mechanism of each of so many releases of the query, which this share of the budget pays
    for together, and the standard deviation of its noise on the first mean.
    """
    kinds: tuple[type[IndependentNoise], ...] = (GaussianMechanism, LaplaceMechanism)
    in_shares = curator.in_shares
    payable = next(priced(curator.ledger, kinds, share, releases, query, in_shares=in_shares))
    # as it will be drawn
    mechanism = cast(IndependentNoise, in_shares(payable))
    std = noise_std(curator.ledger, mechanism, query)
    assert std is not None
    return mechanism, float(std[0])
