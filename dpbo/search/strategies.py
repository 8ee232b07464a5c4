"""The strategies of DPSearch: what a search's share of the budget buys.

`Auto` rehearses the next three on the public records and runs the one that is expected to win.
`WeightedCV`: one histogram of the protected records over a few cells, by which public
cross-validated scores are weighted. `Choice`: one private choice among the first candidates by
public cross-validation, on exact mean scores, perhaps paired; or among all. `NoisedSearch`: noised
scores, first at Sobol points, then where qLogNEI proposes, perhaps within a trust region.

Each sees released values and public points only, and resumes from the ledger by the search's name.
A strategy of one's own is a subclass of `Strategy`.
"""

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import FitFailedWarning

from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.acquisition.trust_region import suggest_in_trust_region
from dpbo.curator.curator import Curator
from dpbo.curator.examples import MostlyClipped, examine
from dpbo.curator.pricing import noise_std, priced
from dpbo.curator.records import count_records
from dpbo.errors import InputError, ReleaseLost
from dpbo.fingerprint import fingerprint
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.objective import NoiseWarning, PrivateObjective
from dpbo.queries.cells import CellMeans
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.score_evaluation import tensor_of
from dpbo.queries.utilities import CandidateScores
from dpbo.search import rehearsal
from dpbo.search.problem import Problem
from dpbo.search.public_scores import PublicScores, Shares, public_candidates
from dpbo.search.rehearsal import Noise, Population, Rehearsal
from dpbo.search.results import SearchResult
from dpbo.validation import Count, at_least, between, require, require_settings, warn

# What `Auto` compares: numbers of cells; numbers of candidates beside all; largest differences, as
# shares of the score range's width, beside plain scores.
CELLS, LISTS, DIFFERENCES = (4, 8, 16), (4, 16), (0.05, 0.1, 0.25)
# The own search of weighted_cv adds to the gain by these scores; by accuracy it took from it.
_SMOOTH = ("true_class_probability", "neg_brier_score")
# Of the gain (benchmarks.small_data, main_job).
_CLOSE = 0.1
# Differences of 0/1 scores are -1, 0 or 1; those of log losses are skewed, so a clip misleads.
_UNPAIRED = ("accuracy", "neg_log_loss")

Several = Annotated[int, at_least(2, 10_000)]


@dataclass(repr=False)
class Strategy(BaseEstimator):  # type: ignore[misc]
    """One way to spend a search's budget. As an estimator's, its settings are read and set by name.

    Attributes:
        name: a shorthand for the strategy with its defaults, and its name in the ledger.
        few_releases: whether it releases once, so that pure DP needs the least noise.
    """

    name: ClassVar[str]
    few_releases: ClassVar[bool] = True

    @property
    def cross_validates(self) -> bool:
        """Whether it needs `problem.public`."""
        return True

    def fits(self, problem: Problem) -> None:
        """Raises InputError if the strategy cannot serve the problem. Nothing has been reserved.

        These are the bounds of those that compare means of one number per record.
        """
        require_settings(self)
        require("n_iter", problem.n_iter, Annotated[int, at_least(2)])
        if problem.mechanism is not None:
            allowed = f"left out with strategy {self.name!r}"
            raise InputError(
                "mechanism", problem.mechanism, allowed, "Strategy 'bo' runs without privacy."
            )
        if problem.scoring.cells is not None:
            allowed = f"a mean of one number per record for strategy={self.name!r}"
            remedy = "Use strategy='bo', or scoring='neg_log_loss'."
            raise InputError("scoring", problem.terms["scoring"], allowed, remedy)
        if self.cross_validates and problem.trainer.labels() is None:
            allowed = f"the labels, with strategy {self.name!r}"
            raise InputError("y_train", None, allowed, "Or use strategy 'bo'.")

    def try_out(self, problem: Problem) -> None:
        """Fit the first points and score public rows with them, so that what cannot work raises
        before anything is reserved."""
        points = public_candidates(problem.space, problem.n_iter, problem.seed)[:3]
        _score_examples(problem, points)

    def decided(self, problem: Problem) -> Problem:
        """The same with the strategy that runs, of which the terms tell: a search is resumed with
        the same alone."""
        settings = self.get_params(deep=False)
        content: list[Any] = [settings, problem.n_iter]
        if self.cross_validates:
            content += [problem.public.points.numpy(), *self.fixed(problem.public)]
        digest = fingerprint(content).hex()[:16]
        own = {"strategy": self.name, "options": settings, "candidates": digest}
        return dataclasses.replace(problem, strategy=self, terms={**problem.terms, **own})

    def fixed(self, public: PublicScores) -> Sequence[Any]:
        """What else the meaning of its releases depends on. Raises InputError where there would be
        none."""
        return ()

    def rehearse(self, population: Population, noise: Noise) -> Any:
        """The rows of the candidates that it would recommend, one a draw of protected records."""
        raise NotImplementedError

    def run(self, problem: Problem) -> SearchResult:
        """Search, within `problem.share` of the curator's budget."""
        raise NotImplementedError


@dataclass(repr=False)
class Auto(Strategy):
    """What is expected to win: the free choice, `WeightedCV`, `Choice` or `NoisedSearch`, by a
    rehearsal on the public records.

    Args:
        shift: the largest simulated difference of the protected population from the public one, in
            standard deviations.
    """

    name: ClassVar[str] = "auto"
    shift: Annotated[float, between(0.0, 10.0)] = 1.0

    def decided(self, problem: Problem) -> Problem:
        found = self.rehearsal(problem)
        strategy = found.best.strategy
        # What the ledger holds decides, not another rehearsal.
        if problem.begun is not None and problem.begun.get("strategy") in BY_NAME:
            strategy = BY_NAME[problem.begun["strategy"]](**problem.begun["options"])
        return dataclasses.replace(strategy.decided(problem), rehearsal=found)

    def rehearsal(self, problem: Problem) -> Rehearsal:
        """The strategies in the order of their simulated gain."""
        public = problem.public
        units = problem.units
        if units is None:
            raise InputError(
                "divisor",
                None,
                "a public number of units, where adjacency keeps their number private",
            )
        noise = _noise(problem, float(problem.divisor or units))
        count = len(public.scores)
        differences: list[float | None] = [None]
        if problem.terms["scoring"] not in _UNPAIRED:
            # A reference must be copied.
            with contextlib.suppress(Exception):
                copy.deepcopy(problem.trainer(None))
                differences += [share * problem.width for share in DIFFERENCES]
        sizes = sorted({min(size, count) for size in (*LISTS, count)})
        found = rehearsal.simulate(
            [
                FreeChoice(),
                *(
                    WeightedCV(number)
                    for number in CELLS
                    if len(public.cells(number)[0].leaves) > 1
                ),
                *(Choice(size, largest) for largest in differences for size in sizes),
                NoisedSearch(),
            ],
            public,
            noise,
            width=problem.width,
            units=round(units),
            shift=0.0 if problem.alike else float(self.shift),
            seed=problem.seed,
        )
        return dataclasses.replace(
            found, close=_CLOSE if problem.terms["scoring"] in _SMOOTH else 0.0
        )


@dataclass(repr=False)
class FreeChoice(Strategy):
    """The candidate with the best public score. Nothing is released."""

    name: ClassVar[str] = "free"

    def rehearse(self, population: Population, noise: Noise) -> Any:
        return population.order[:1]

    def run(self, problem: Problem) -> SearchResult:
        public = problem.public
        return SearchResult(public.order[0], public.configurations, {"cv_score": public.means})


@dataclass(repr=False)
class WeightedCV(Strategy):
    """One release of how the protected records differ, by which the cross-validated scores are
    weighted.

    Then a Bayesian optimisation of the weighted score, which is public: half as many configurations
    again.

    Args:
        cells: number of cells whose shares are released, at most.
    """

    name: ClassVar[str] = "weighted_cv"
    cells: Several = 8

    def fixed(self, public: PublicScores) -> Sequence[Any]:
        cells, _ = public.cells(self.cells)
        if len(cells.leaves) < 2:
            allowed = "another one for these training records"
            remedy = "All configurations score the same in all cells: nothing can be chosen."
            raise InputError("strategy", self.name, allowed, remedy)
        tree = cells.tree.tree_
        return tree.feature, tree.threshold, tree.children_left, tree.children_right

    def rehearse(self, population: Population, noise: Noise) -> Any:
        members = population.public.cells(self.cells)[1].inside
        shares = Shares(members * population.training[:, None])
        error = population.random.laplace(
            size=(len(population.counts), members.shape[1])
        ) / np.sqrt(2)
        released = population.counts @ members / population.units + noise.cells * error
        share = shares.shrunk(released, noise.cells, population.units)
        return (share @ shares.means(population.public.scores).T).argmax(1)

    def run(self, problem: Problem) -> SearchResult:
        public = problem.public
        cells, shares = public.cells(self.cells)
        query = CellMeans(
            cells, cells=len(cells.leaves), fit=problem.trainer, divisor=problem.divisor
        )
        objective = problem.objective("cells", 1, problem.share, query=query, progress=False)
        more = problem.n_iter // 2
        if objective.remaining:
            objective(problem.trainer.point(None).unsqueeze(0))
            if problem.report("cells", 1, 1, None):
                more = 0
        _, released, variance = objective.history()
        if not len(released):
            told = (
                f"the shares of {problem.name!r} were charged but never delivered. Search under"
                " another name."
            )
            raise ReleaseLost(told)
        noise_std = float(variance[0, 0]) ** 0.5
        share = shares.shrunk(released[0].numpy(), noise_std, float(problem.units or 1.0))
        for _ in range(more):
            try:
                seed = 1000 * problem.seed + len(public.scores)
                x = suggest(
                    problem.space, public.points, *_weighted(public, shares, share), seed=seed
                )
                public = public.with_candidate(problem, x)
            except Exception as error:
                # The shares are paid for.
                told = f"the search on the weighted score ended early: {error!r}"
                warnings.warn(told, FitFailedWarning, stacklevel=2)
                break
        smooth = posterior_mean(problem.space, public.points, *_weighted(public, shares, share))
        best = 0 if float(smooth.max()) < 0 else 1 + int(smooth.argmax())
        columns = {
            "cv_score": public.means,
            "weighted_cv_score": shares.means(public.scores) @ share,
        }
        return SearchResult(best, public.configurations, columns)


@dataclass(repr=False)
class Choice(Strategy):
    """One private choice, by mean scores on the protected records.

    Args:
        candidates: number of candidates, the best by cross-validation on the public records. None:
            all public candidates, without cross-validation.
        largest_difference: scores are paired with those of the default configuration, and the
            differences clipped to [-c, c]; None: plain scores. A small c needs less noise, but
            biases the mean if the differences are skewed.
    """

    name: ClassVar[str] = "choice"
    candidates: Several | None = 16
    largest_difference: float | None = None

    @property
    def cross_validates(self) -> bool:
        return self.candidates is not None

    def fits(self, problem: Problem) -> None:
        super().fits(problem)
        bounds = between(1e-9 * problem.width, problem.width)
        require("largest_difference", self.largest_difference, Annotated[float, bounds] | None)

    def rehearse(self, population: Population, noise: Noise) -> Any:
        rows = np.array(population.order[: self.candidates])
        return rows[population.noised_means(noise, self.largest_difference)[:, rows].argmax(1)]

    def run(self, problem: Problem) -> SearchResult:
        columns: dict[str, Any] = {}
        if self.cross_validates:
            configurations = problem.public.configurations
            rows = problem.public.order[: self.candidates]
            columns["cv_score"] = problem.public.means
        else:
            configurations = [*public_candidates(problem.space, problem.n_iter, problem.seed)]
            rows = list(range(len(configurations)))
        paired: dict[str, Any] = {}
        if self.largest_difference is not None:
            paired = {
                "reference": problem.trainer(None),
                "largest_difference": self.largest_difference,
            }
        query = CandidateScores(
            problem.scoring,
            rows,
            score_range=problem.scoring.bounds,
            fit=lambda row: problem.trainer(configurations[row]),
            **paired,
        )
        choice = problem.curator.reserve(
            f"{problem.name}: choice",
            _choice(problem.curator, problem.share),
            slots=1,
            given={},
            terms={**problem.terms, "rows": rows},
        )
        fresh = choice.remaining > 0
        if fresh:
            problem.trainer.fit_ahead([configurations[row] for row in rows], problem.n_jobs)
        best = rows[int(choice.release(query)["value"][0])]
        if fresh:
            problem.report("choice", 1, 1, configurations[best])
        columns["chosen"] = np.arange(len(configurations)) == best
        return SearchResult(best, configurations, columns)


@dataclass(repr=False)
class NoisedSearch(Strategy):
    """Bayesian optimisation on noised scores. The released point of highest posterior mean is
    recommended.

    Args:
        n_initial: number of Sobol points before the model proposes.
        trust_region: whether points are proposed near the best one, in a region that grows and
            shrinks.
    """

    name: ClassVar[str] = "bo"
    few_releases: ClassVar[bool] = False
    n_initial: Count = 8
    trust_region: bool = False

    @property
    def cross_validates(self) -> bool:
        return False

    def fits(self, problem: Problem) -> None:
        require_settings(self)

    def try_out(self, problem: Problem) -> None:
        _score_examples(problem, problem.space.sample(3, seed=problem.seed))
        if problem.n_iter > max(self.n_initial, 2):
            X = problem.space.sample(2, seed=problem.seed)
            invented = X.sum(1, keepdim=True)
            self._propose(problem, X, invented, torch.ones_like(invented), initial=2)

    def rehearse(self, population: Population, noise: Noise) -> Any:
        means = population.means()[:, 1:]
        values = means + noise.search * population.random.standard_normal(means.shape)
        return 1 + ((values - values.mean(1, keepdims=True)) @ noise.smoother.T).argmax(1)

    def run(self, problem: Problem) -> SearchResult:
        objective = problem.objective("search", problem.n_iter, problem.share)
        # Two points make a model.
        initial = min(max(self.n_initial, 2), problem.n_iter)
        design = problem.space.sample(initial, seed=problem.seed)
        X, y, yvar = _released(problem, objective)
        problem.trainer.fit_ahead(design[len(X) :], problem.n_jobs)
        if not len(X):
            _warn_of_noise(problem, objective, design[0])
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
        return SearchResult(int(mean.argmax()), [*X], columns)

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


def _weighted(
    public: PublicScores, shares: Shares, share: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted means of the gains of the points, and their variances: `n x 1` each."""
    gains = public.gains[1:]
    columns = (shares.means(gains) @ share, shares.variance(gains, share))
    mean, variance = (
        torch.as_tensor(column, dtype=torch.float64).reshape(-1, 1) for column in columns
    )
    return mean, variance


def _choice(curator: Curator, share: Fraction) -> ChoiceMechanism:
    """The choice mechanism with the least noise that the share pays for."""
    payable = priced(curator, (PermuteAndFlipMechanism, ExponentialMechanism), share)
    return min(payable, key=lambda mechanism: mechanism.noise_multiplier)


def _noise(problem: Problem, units: float) -> Noise:
    """The noise of each strategy, from the mechanisms that the curator's accounting pays for with
    the search's share."""
    curator = problem.curator

    def released(query: ClippedMean, releases: int) -> float:
        """Standard deviation of one of so many releases."""
        mechanism = next(
            priced(curator, (GaussianMechanism, LaplaceMechanism), problem.share, releases, query)
        )
        std = noise_std(curator, mechanism, query)
        assert std is not None
        return float(std[0])

    mean = ClippedMean(problem.scoring, score_range=problem.scoring.bounds, divisor=units)
    search = released(mean, problem.n_iter)
    mechanism = _choice(curator, problem.share)
    # Of the range, by one unit.
    moved = 1.0 if curator.adjacency.replaces else 0.5
    return Noise(
        cells=released(CellMeans(problem.scoring, cells=2, divisor=units), 1),
        choice=moved * mechanism.noise_multiplier / units,
        gumbel=isinstance(mechanism, ExponentialMechanism),
        search=search,
        smoother=rehearsal.smoother(problem.space, problem.public, search),
    )


def _warn_of_noise(problem: Problem, objective: PrivateObjective, x: torch.Tensor) -> None:
    """Warn where the score made from cells will have large noise, though the cells' shares have
    little: as on the training records."""
    if (
        problem.scoring.cells is None
        or problem.mechanism is not None
        or problem.trainer.labels() is None
    ):
        return
    model = problem.trainer(x)
    if model is None:
        return
    places = tensor_of(problem.scoring(model, problem.trainer.table())).long()
    shares = torch.bincount(places[places >= 0], minlength=objective.metrics).double() / len(places)
    _, variance = problem.scoring.observed(
        shares.unsqueeze(0), objective.noise_std.unsqueeze(0) ** 2
    )
    std = float(variance.sqrt())
    # Half of the share at which PrivateObjective warns: ROC AUC uses half of its range.
    if std > problem.width / 20:
        lower, upper = problem.scoring.bounds
        text = (
            f"each score by scoring={problem.terms['scoring']!r} will have noise of standard "
            f"deviation about {std:.2g}, more than a twentieth of its range ({lower:g}, "
            f"{upper:g}): plan fewer evaluations, a larger budget or more units, or tune a score "
            "of single records, such as 'neg_brier_score'."
        )
        warn(text, NoiseWarning)
