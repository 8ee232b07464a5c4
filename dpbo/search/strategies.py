"""The strategies of DPSearch: what a search's share of the budget buys.

- `WeightedCV`: one histogram of the protected records over a few cells, by which public
  cross-validated scores are weighted.
- `Choice`: one private choice between the default model and the first candidates by public
  cross-validation, or all, on exact mean scores.
- `Auto`, the default: a candidate by one of these two, then a test against the default model.
- `NoisedSearch`: noised scores, first at Sobol points, then where qLogNEI proposes, perhaps within
  a trust region; then the test.

Each sees released values and public points only, and resumes from the ledger by the search's name.
A strategy of one's own is a subclass of `Strategy`; what it may release stands in `Problem`.
"""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator

from dpbo.accounting.calibration import parts_of
from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.acquisition.trust_region import suggest_in_trust_region
from dpbo.errors import InputError, LedgerMismatch, ReleaseLost, UsageError
from dpbo.fingerprint import fingerprint
from dpbo.objective import NoiseWarning, PrivateObjective
from dpbo.queries.cells import CellMeans
from dpbo.queries.score_evaluation import tensor_of
from dpbo.records.containers import count_records
from dpbo.records.examples import MostlyClipped, examine
from dpbo.search import rehearsal
from dpbo.search.listing import Listing
from dpbo.search.problem import Problem, least_noise
from dpbo.search.public_scores import PublicScores, Shares, public_candidates
from dpbo.search.recommendation import POWER, Recommendation, clip_of, exceeded
from dpbo.search.rehearsal import DRAWS, Population, Rehearsal, Simulated
from dpbo.search.results import SearchResult
from dpbo.search.task import Task
from dpbo.search.training import place_of
from dpbo.validation import (
    Count,
    Risk,
    at_least,
    between,
    named_settings,
    one_of,
    require,
    require_settings,
    warn,
)

# Of the search's share, what pays for a candidate; the rest pays for its test (benchmarks/zoo).
AUTO_SHARE = Fraction(1, 2)
NOISED_SHARE = Fraction(3, 4)
# Of the width: by how much more the cells must be expected to gain. The rehearsal's populations are
# the public records with other weights, which favours them (benchmarks/zoo).
_LEAD = 0.002

# A score is warned of if the standard deviation of its noise is above this share of its range: half
# of the share at which PrivateObjective warns, because ROC AUC uses half of its range.
_LARGE = 0.05
# Noise above this share hides any difference.
_HIDES = 0.1

Several = Annotated[int, at_least(2, 10_000)]


@dataclass(repr=False)
class Strategy(BaseEstimator, abc.ABC):  # type: ignore[misc]
    """One way to spend a search's budget. As an estimator's, its settings are read and set by name.

    Attributes:
        name: a shorthand for the strategy with its defaults, and its name in the ledger.
        few_releases: whether it releases once or twice, for which Laplace noise under pure DP is
            the least. Set it to False where there are more: their noise is then Gaussian.
        needs_default: whether it compares with the default model, which must be fitted.
    """

    name: ClassVar[str]
    few_releases: ClassVar[bool] = True
    needs_default: ClassVar[bool] = False

    @property
    def cross_validates(self) -> bool:
        """Whether it needs `problem.public`, each candidate's public scores. Without these no gain
        is known of a configuration, and its score is released in the end.
        """
        return True

    def require_suitable(self, task: Task) -> None:
        """Raises InputError if the strategy cannot serve the task. There is no ledger yet.

        This one is for strategies that compare means of one number per record.
        """
        require_settings(self)
        require("n_iter", task.n_iter, Annotated[int, at_least(2)])
        if task.mechanism is not None:
            allowed = f"left out with strategy {self.name!r}"
            raise InputError(
                "mechanism", task.mechanism, allowed, "Strategy 'bo' runs without privacy."
            )
        if task.scoring.cells is not None:
            allowed = f"a mean of one number per record for strategy={self.name!r}"
            remedy = "Use strategy='bo', or scoring='neg_log_loss'."
            raise InputError("scoring", task.terms["scoring"], allowed, remedy)
        if self.cross_validates and task.trainer.labels() is None:
            allowed = f"the labels, with strategy {self.name!r}"
            raise InputError("y_train", None, allowed, "Or use strategy 'bo'.")

    def try_out(self, problem: Problem) -> None:
        """Fit the first points and score public rows with them, so that what cannot work raises
        before anything is reserved."""
        chosen = Choice.name in (self.name, self.get_params(deep=False).get("first"))
        if chosen and problem.curator.ledger.birth.federated:
            allowed = "'auto', 'weighted_cv' or 'bo' with Ranks(trust='sum')"
            raise InputError("strategy", self, allowed, "A sum would show every candidate's score.")
        if self.needs_default and problem.trainer.public_model(None) is None:
            allowed = "one that can be fitted as it is given, to all training records"
            remedy = "Others are compared with it."
            raise InputError("estimator", type(problem.trainer.estimator).__name__, allowed, remedy)
        points = public_candidates(problem.space, problem.n_iter, problem.seed)[:3]
        _score_examples(problem, points)

    def decided(self, problem: Problem) -> Problem:
        """The problem with the strategy that runs, and with terms that name it: a search is resumed
        only with the strategy that it began with.

        Raises LedgerMismatch where that was another one.
        """
        begun = problem.begun or {}
        if begun.get("strategy", self.name) != self.name:
            remedy = "Give that one, or another name= for this search."
            raise LedgerMismatch("strategy", begun["strategy"], self.name, remedy)
        settings = self.get_params(deep=False)
        # before anything is reserved: an older version had other options
        if set(begun.get("options", settings)) != set(settings):
            remedy = (
                "Another version of dpbo began this search; what it released is in the ledger. Give"
                " another name= for a new search."
            )
            raise LedgerMismatch("options", sorted(begun["options"]), sorted(settings), remedy)
        content: list[Any] = [settings, problem.n_iter]
        if self.cross_validates:
            content += [problem.public.points.numpy(), *self.resumed_with(problem.public)]
        digest = fingerprint(content).hex()[:16]
        own = {"strategy": self.name, "options": settings, "candidates": digest}
        return dataclasses.replace(problem, strategy=self, terms={**problem.terms, **own})

    def resumed_with(self, public: PublicScores) -> Sequence[Any]:
        """What else must be the same when a search is resumed, because earlier releases mean
        nothing without it.

        Raises InputError where the public scores leave nothing to release.
        """
        return ()

    @abc.abstractmethod
    def run(self, problem: Problem) -> SearchResult:
        """Search, within `problem.share` of the curator's budget."""


@named_settings
@dataclass(repr=False)
class Auto(Strategy):
    """A candidate by weighted cross-validation or by a private choice among all, whichever the
    rehearsal expects to gain more; then one test of it against the default model.

    With half of the budget a candidate is found, with the other half tested: its mean score
    difference to the default model on the protected records is released with noise. It is
    recommended if that is larger than what noise alone exceeds with probability `risk`, else the
    default model is kept (recommendation.py).

    If the protected and the public records are drawn alike (`test_size` in DPSearch, or shift=0)
    and the rehearsal expects the free choice to win, it is taken, and nothing is released.

    Args:
        risk: the probability, at most, that a candidate is recommended that is no better.
        first: what finds the candidate: "weighted_cv", "choice", or None, as the rehearsal says;
            with `Ranks(trust="sum")`, which makes no private choice, None is "weighted_cv".
        cells: as in `WeightedCV`.
        shift: of the rehearsal, the largest simulated difference of the protected population from
            the public one, in standard deviations.
    """

    name: ClassVar[str] = "auto"
    needs_default: ClassVar[bool] = True
    risk: Risk = 0.1
    first: Annotated[str, one_of("weighted_cv", "choice")] | None = None
    cells: Several = 8
    shift: Annotated[float, between(0.0, 10.0)] = 1.0

    def decided(self, problem: Problem) -> Problem:
        """After a rehearsal: with the free choice where that is expected to win, else with what
        finds the candidate."""
        if self.first is None and problem.curator.ledger.birth.federated:
            # Ranks that do not trust each other make no private choice.
            return dataclasses.replace(self, first=WeightedCV.name).decided(problem)
        rehearsal = self.rehearsal(problem)
        problem = dataclasses.replace(problem, rehearsal=rehearsal)
        free = rehearsal.free_wins
        first = self.first_of(rehearsal, problem.width)
        # What the ledger holds decides, not another rehearsal.
        if begun := problem.begun:
            free = begun["strategy"] == FreeChoice.name
            first = begun["options"].get("first", first)
        if free:
            return FreeChoice().decided(problem)
        return Strategy.decided(dataclasses.replace(self, first=self.first or first), problem)

    def first_of(self, rehearsal: Rehearsal, width: float) -> str:
        """What finds the candidate, where the caller does not say: a choice, unless the cells are
        expected to gain clearly more."""
        own = [each for each in rehearsal.methods if each.strategy.name == self.name]
        clear = own[0].gain.mean > own[-1].gain.mean + _LEAD * width
        return own[0].strategy.first if clear else Choice.name

    def resumed_with(self, public: PublicScores) -> Sequence[Any]:
        if self.first == WeightedCV.name:
            return WeightedCV(self.cells).resumed_with(public)
        return ()

    def rehearsal(self, problem: Problem) -> Rehearsal:
        """The strategies in the order of their simulated gain."""
        strategies = [
            FreeChoice(),
            Choice(risk=self.risk),
            dataclasses.replace(self, first="choice"),
        ]
        if problem.public.has_cells(self.cells):
            cells = WeightedCV(self.cells)
            strategies += [cells, dataclasses.replace(self, first=cells.name)]
        rest = parts_of(problem.curator.accounting, problem.share, AUTO_SHARE)[1]
        problem.tell(f"rehearsal: {len(strategies)} methods, simulated on public records")
        mechanism, std = problem.test_noise(rest)
        found = exceeded(mechanism, std, self.risk) + exceeded(mechanism, std, 1 - POWER)
        return rehearsal.simulate(
            [(each, each.simulated(problem)) for each in strategies],
            problem.public,
            units=round(problem.public_units),
            shift=0.0 if problem.split else float(self.shift),
            seed=problem.seed,
            detectable=found * float(np.median(clip_of(problem.public.gains[1:], problem.width))),
        )

    def simulated(self, problem: Problem) -> Simulated:
        first, rest = parts_of(problem.curator.accounting, problem.share, AUTO_SHARE)
        own = dataclasses.replace(problem, share=first)
        if self.first == WeightedCV.name:
            proposed = WeightedCV(self.cells).simulated(own)
        else:
            proposed = Choice(None, problem.width / 4, None).simulated(own)
        if problem.untested:
            return proposed
        gains = problem.public.gains
        clips = clip_of(gains, problem.width)
        kept = np.clip(gains, -clips[:, None], clips[:, None])
        mechanism, std = problem.test_noise(rest)
        threshold = exceeded(mechanism, std, self.risk)

        def recommended(population: Population) -> Any:
            rows = proposed(population)
            noise = std / mechanism.std(1) * mechanism.simulated(DRAWS, population.random)
            gained = population.means(kept)[np.arange(DRAWS), rows]
            return np.where(gained + clips[rows] * noise > clips[rows] * threshold, rows, 0)

        return recommended

    def run(self, problem: Problem) -> SearchResult:
        public = problem.public
        first, rest = parts_of(problem.curator.accounting, problem.share, AUTO_SHARE)
        # Reserved first, so that the first release cannot be paid for in vain.
        test = problem.reserved("test", rest, problem.score_query())
        candidates = public.configurations
        best = public.order[0]
        columns: dict[str, Any] = {"cv_score": public.means}
        # Where the release was lost, the test is paid for all the same.
        with contextlib.suppress(ReleaseLost):
            if self.first == WeightedCV.name:
                own = dataclasses.replace(problem, share=first)
                scores = WeightedCV(self.cells).weighted_scores(own)
                columns["weighted_cv_score"] = scores
                best = int(scores.argmax())
            else:
                rows = range(1, len(candidates))
                c = None if problem.untested else problem.width / 4
                choice = problem.reserved_choice(first)
                best = problem.choose(choice, candidates, rows, largest_difference=c) or 0
        columns["chosen"] = np.arange(len(candidates)) == best
        x, told = problem.recommend(test, candidates[best], self.risk)
        return SearchResult(place_of(x, candidates), candidates, columns, told)


@dataclass(repr=False)
class FreeChoice(Strategy):
    """The candidate with the best public score. Nothing is released."""

    name: ClassVar[str] = "free"

    def simulated(self, problem: Problem) -> Simulated:
        return lambda population: population.order[:1]

    def run(self, problem: Problem) -> SearchResult:
        public = problem.public
        return SearchResult(public.order[0], public.configurations, {"cv_score": public.means})


@named_settings
@dataclass(repr=False)
class WeightedCV(Strategy):
    """One release of how the protected records differ, by which the cross-validated scores are
    weighted. No candidate is compared on the protected records themselves.

    Args:
        cells: number of cells whose shares are released, at most.
    """

    name: ClassVar[str] = "weighted_cv"
    needs_default: ClassVar[bool] = True
    cells: Several = 8

    def resumed_with(self, public: PublicScores) -> Sequence[Any]:
        cells, _ = public.cells(self.cells)
        if not public.has_cells(self.cells):
            allowed = "another one for these training records"
            remedy = "All configurations score the same in all cells: nothing can be chosen."
            raise InputError("strategy", self.name, allowed, remedy)
        tree = cells.tree.tree_
        return tree.feature, tree.threshold, tree.children_left, tree.children_right

    def simulated(self, problem: Problem) -> Simulated:
        members = problem.public.cells(self.cells)[1].inside
        query = CellMeans(problem.scoring, cells=2, divisor=problem.public_units)
        _, std = least_noise(problem.curator, query, problem.share)

        def recommended(population: Population) -> Any:
            shares = Shares(members * population.training[:, None])
            error = population.random.laplace(size=(DRAWS, members.shape[1])) / np.sqrt(2)
            released = population.counts @ members / population.units + std * error
            share = shares.shrunk(released, std, population.units)
            return (share @ shares.means(population.public.scores).T).argmax(1)

        return recommended

    def run(self, problem: Problem) -> SearchResult:
        public = problem.public
        scores = self.weighted_scores(problem)
        return SearchResult(
            int(scores.argmax()),
            public.configurations,
            {"cv_score": public.means, "weighted_cv_score": scores},
        )

    def weighted_scores(self, problem: Problem) -> Any:
        """The weighted cross-validated score of each candidate, after the release."""
        public = problem.public
        cells, shares = public.cells(self.cells)
        query = CellMeans(
            cells, cells=len(cells.leaves), fit=problem.trainer, divisor=problem.divisor
        )
        reservation = problem.reserved("cells", problem.share, query)
        fresh = reservation.remaining > 0
        released = np.array(reservation.release(query)["value"])
        if fresh:
            problem.report("cells", 1, 1, None)
        noise_std = float(reservation.noise_std[0])
        share = shares.shrunk(released, noise_std, problem.public_units)
        return shares.means(public.scores) @ share


@named_settings
@dataclass(repr=False)
class Choice(Strategy):
    """One private choice, by mean scores on the protected records.

    Args:
        candidates: number of candidates, the best by cross-validation on the public records. None:
            all public candidates, without cross-validation.
        largest_difference: scores are paired with those of the default model, and the differences
            clipped to [-c, c]. None: a quarter of the width of the score's range, or plain scores
            with risk=None. A small c needs less noise, but biases the mean if the differences are
            skewed.
        risk: the probability, at most, that a candidate is recommended that is no better than the
            default model, which is kept where none stands out (`ThresholdedExponentialMechanism`).
            None: no test is made, and the default model is one candidate among the others. That is
            so, too, where scores cannot be paired with the default model's.
    """

    name: ClassVar[str] = "choice"
    candidates: Several | None = 16
    largest_difference: float | None = None
    risk: Risk | None = 0.1

    @property
    def cross_validates(self) -> bool:
        return self.candidates is not None

    def require_suitable(self, task: Task) -> None:
        super().require_suitable(task)
        bounds = between(1e-9 * task.width, task.width)
        require("largest_difference", self.largest_difference, Annotated[float, bounds] | None)

    def _terms(self, problem: Problem) -> tuple[float | None, float | None]:
        """The risk and the clip, if scores can be paired."""
        if self.risk is None or problem.untested:
            return None, self.largest_difference
        return self.risk, self.largest_difference or problem.width / 4

    def simulated(self, problem: Problem) -> Simulated:
        risk, clip = self._terms(problem)
        mechanism = problem.choice_mechanism(problem.share, risk)
        bound = clip or problem.width
        gains = np.clip(problem.public.gains, -bound, bound)
        reach = problem.width if clip is None else 2 * clip
        scale = mechanism.noise_multiplier * reach / problem.public_units
        if not problem.curator.adjacency.replaces:
            scale /= 2

        def recommended(population: Population) -> Any:
            rows = np.array(population.order[: self.candidates])
            if self.candidates is None or risk is not None:
                rows = rows[rows > 0]
            chosen = mechanism.simulated(
                population.means(gains)[:, rows] / scale, population.random
            )
            return np.where(chosen < 0, 0, rows[chosen])

        return recommended

    def run(self, problem: Problem) -> SearchResult:
        columns: dict[str, Any] = {}
        risk, clip = self._terms(problem)
        if self.cross_validates:
            configurations = problem.public.configurations
            rows = problem.public.order[: self.candidates]
            columns["cv_score"] = problem.public.means
        else:
            points = public_candidates(problem.space, problem.n_iter, problem.seed)
            configurations = [None, *points]
            rows = list(range(1, len(configurations)))
        if risk is not None:
            rows = [row for row in rows if row]
        choice = problem.reserved_choice(problem.share, risk=risk, rows=rows)
        best = problem.choose(choice, configurations, rows, largest_difference=clip) or 0
        columns["chosen"] = np.arange(len(configurations)) == best
        kept = risk is not None and best == 0
        untested = ""
        if risk is None:
            untested = problem.untested or "a choice with risk=None makes no test"
        told = Recommendation(
            problem.trainer.parameters(configurations[best]),
            kept,
            risk,
            0.0 if kept else math.nan,
            clip=clip,
            untested=untested,
            protected=problem.protected,
        )
        return SearchResult(best, configurations, columns, told)


@named_settings
@dataclass(repr=False)
class NoisedSearch(Strategy):
    """Bayesian optimisation on noised scores. The released point of highest posterior mean is
    tested against the default model with a quarter of the budget, as by `Auto`; scores that cannot
    be paired, such as F1, are released instead.

    Args:
        n_initial: number of Sobol points before the model proposes.
        trust_region: whether points are proposed near the best one, in a region that grows and
            shrinks.
        risk: as in `Auto`.
    """

    name: ClassVar[str] = "bo"
    few_releases: ClassVar[bool] = False
    n_initial: Count = 8
    trust_region: bool = False
    risk: Risk = 0.1

    @property
    def cross_validates(self) -> bool:
        return False

    def require_suitable(self, task: Task) -> None:
        require_settings(self)
        if isinstance(task.space, Listing):
            allowed = "one dict of scipy.stats distributions and lists, with strategy 'bo'"
            remedy = "Several dicts, and objects that are only drawn from, have no distances."
            raise InputError("param_distributions", list(task.space.parameters), allowed, remedy)

    def try_out(self, problem: Problem) -> None:
        _score_examples(problem, problem.space.sample(3, seed=problem.seed))
        _judge_noise(problem)
        if problem.n_iter > max(self.n_initial, 2):
            X = problem.space.sample(2, seed=problem.seed)
            invented = X.sum(1, keepdim=True)
            self._propose(problem, X, invented, torch.ones_like(invented), initial=2)

    def run(self, problem: Problem) -> SearchResult:
        first, rest = parts_of(problem.curator.accounting, problem.share, NOISED_SHARE)
        # Reserved first, so that the search cannot spend its share.
        test = problem.reserved("test", rest, problem.score_query())
        objective = problem.objective("search", problem.n_iter, first)
        # Two points make a model.
        initial = min(max(self.n_initial, 2), problem.n_iter)
        design = problem.space.sample(initial, seed=problem.seed)
        X, y, yvar = _released(problem, objective)
        problem.trainer.fit_ahead(design[len(X) :], problem.n_jobs)
        while objective.remaining:
            t = len(X)
            objective(
                design[t : t + 1] if t < initial else self._propose(problem, X, y, yvar, initial)
            )
            X, y, yvar = _released(problem, objective)
            number = problem.n_iter - objective.remaining
            if problem.report(
                "search", number, problem.n_iter, X[-1], y[-1].item(), yvar[-1].sqrt().item()
            ):
                break
        mean = posterior_mean(problem.space, X, y, yvar)
        columns = {
            "score": y[:, 0].numpy(),
            "noise_std": yvar[:, 0].sqrt().numpy(),
            "posterior_mean": mean.numpy(),
        }
        x, told = problem.recommend(test, X[int(mean.argmax())], self.risk)
        return SearchResult(place_of(x, X), [*X], columns, told)

    def _propose(
        self, problem: Problem, X: torch.Tensor, y: torch.Tensor, yvar: torch.Tensor, initial: int
    ) -> torch.Tensor:
        seed = 1000 * problem.seed + len(X)
        if self.trust_region:
            return suggest_in_trust_region(problem.space, X, y, yvar, seed=seed, initial=initial)
        return suggest(problem.space, X, y, yvar, seed=seed)


BY_NAME = {kind.name: kind for kind in (Auto, WeightedCV, Choice, NoisedSearch, FreeChoice)}


def _score_examples(problem: Problem, points: torch.Tensor) -> None:
    """Try the score on training records, with the models of the first points.

    One configuration may be so bad that most records are clipped, but not each of the first few.
    """
    scoring = problem.scoring
    model = problem.trainer(points[0])
    example = problem.trainer.example()
    if example is None:
        return
    query = scoring.query()
    query.probe(example, count_records(example), model)
    for turn, x in enumerate(points, 1):
        model = problem.trainer(x)
        # Where the fit failed, every score is NaN.
        if model is None:
            continue
        try:
            examine(query.asked, model, example, query.ranges)
            break
        except MostlyClipped:
            if turn == len(points):
                raise
    problem.curator.mark_probed(query)


def _released(
    problem: Problem, objective: PrivateObjective
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Released points, scores and variances: `t x d`, `t x 1`, `t x 1`."""
    X, Y, Yvar = objective.history()
    return X, *problem.scoring.observed(Y, Yvar)


def _judge_noise(problem: Problem) -> None:
    """Warn where a score made from cells will have large noise, though the cells' shares have
    little: as on the training records, with the model of the first point.

    Raises:
        UsageError: the noise hides any difference, and the search was not asked for by name.
    """
    scoring = problem.scoring
    if scoring.cells is None or problem.mechanism is not None or problem.trainer.labels() is None:
        return
    model = problem.trainer(problem.space.sample(2, seed=problem.seed)[0])
    if model is None:
        return
    places = tensor_of(scoring(model, problem.trainer.table())).long()
    shares = torch.bincount(places[places >= 0], minlength=scoring.cells).double() / len(places)
    query = scoring.query(divisor=problem.divisor)
    share = parts_of(problem.curator.accounting, problem.share, NOISED_SHARE)[0]
    _, noise = least_noise(problem.curator, query, share, problem.n_iter)
    variance = torch.full_like(shares, noise**2)
    std = float(scoring.observed(shares.unsqueeze(0), variance.unsqueeze(0))[1].sqrt())
    lower, upper = scoring.bounds
    told = (
        f"each score by scoring={problem.terms['scoring']!r} will have noise of standard deviation "
        f"about {std:.2g}, in a range of ({lower:g}, {upper:g})"
    )
    remedy = (
        "plan fewer evaluations, a larger budget or more units, or tune a score of single records, "
        "such as 'neg_brier_score'."
    )
    if std > _HIDES * problem.width and not problem.by_name:
        raise UsageError(
            f"{told}, which hides any difference. Nothing was charged. To search nevertheless, "
            f"pass strategy='bo'; or {remedy}"
        )
    if std > _LARGE * problem.width:
        warn(f"{told}: {remedy}", NoiseWarning)
