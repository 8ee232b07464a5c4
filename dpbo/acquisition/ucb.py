"""GP-UCB: evaluate next where mean + sqrt(beta_t) sd is largest.

beta_t grows slowly, so that with probability 1 - delta the function stays below the bound at all
times. The papers differ in it only: three schedules, each the confidence of one theorem. `GPUCB` is
BoTorch's upper confidence bound with beta_t of the observation to come; over a `FiniteGP`,
`suggest_ucb` reads the candidates' posterior instead of computing it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models.model import Model
from torch import Tensor

from dpbo.errors import InputError
from dpbo.isolation import without_default_device
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.models.finite import FiniteGP
from dpbo.queries.score_evaluation import Score
from dpbo.queries.utilities import CandidateScores
from dpbo.release import CuratorLike, Release
from dpbo.validation import POINTS, Count, NotNegative, Positive, Probability, checked, require

# candidates whose bounds are computed together
_CHUNK = 4096

Schedule = Callable[[int], float]
"""beta_t for the choice of the t-th observation, t = 1, 2, ..."""


@checked
@dataclass(frozen=True, kw_only=True)
class SrinivasFinite:
    """beta_t = 2 log(count t^2 pi^2 / (6 delta)): over `count` candidates all bounds hold at all t
    with probability 1 - delta.

    Source: Srinivas et al. 2010, Lemma 5.1 and Theorem 1.
    """

    count: Count
    delta: Probability

    def __call__(self, t: Count) -> float:
        return 2.0 * math.log(self.count * t**2 * math.pi**2 / (6.0 * self.delta))


@checked
@dataclass(frozen=True, kw_only=True)
class SrinivasCompact:
    """beta_t = 2 log(2 t^2 pi^2 / (3 delta)) + 2 d log(t^2 d b r sqrt(log(4 d a / delta))) over [0,
    r]^d.

    Assumes P(sup |df/dx_j| > s) <= a exp(-s^2/b^2) for each j. Source: Srinivas et al. 2010,
    Theorem 2.

    Keyword args:
        dimension: d.
        side: r, in units of x.
        a, b: of the tail of the derivatives; b in units of y / x.
        delta: in (0, 1).
    """

    dimension: Count
    side: Positive
    a: Positive
    b: Positive
    delta: Probability

    def __post_init__(self) -> None:
        if 4.0 * self.dimension * self.a <= self.delta:
            raise InputError(
                "a", self.a, "above delta / (4 d)", "A larger a only weakens the assumption."
            )

    def __call__(self, t: Count) -> float:
        squared = float(t**2)
        d = self.dimension
        reach = (
            squared * d * self.b * self.side * math.sqrt(math.log(4.0 * d * self.a / self.delta))
        )
        # the cover needs at least one point a coordinate: a logarithm below 0 would promise more
        # than the proof gives
        return 2.0 * math.log(2.0 * squared * math.pi**2 / (3.0 * self.delta)) + 2.0 * d * max(
            0.0, math.log(reach)
        )


@checked
def kusner_beta(count: Count, delta: Probability) -> SrinivasFinite:
    """The schedule of Kusner et al. 2015, Algorithm 1: 2 log(2 count t^2 pi^2 / (3 delta)), a
    confidence of 1 - delta/4, so that the four events of Theorem 3 together fail with probability
    delta [derived]. The paper prints one of 1 - delta/2.
    """
    return SrinivasFinite(count=count, delta=delta / 4.0)


@checked
class GPUCB(UpperConfidenceBound):  # type: ignore[misc]
    """mean + sqrt(beta_t) sd with t one more than the model's observations, for `optimize_acqf` and
    the like: q = 1, t-batches and batches of models.

    Args:
        model: a single-outcome GPyTorch regression model in float64, or a `FiniteGP`.
        schedule: beta by t.

    Raises:
        InputError: a model of another dtype than float64, or a schedule that gives no beta.

    Source: Kusner et al. 2015, equation 3 (the standard deviation outside the root; the workshop
    version prints it inside).
    """

    def __init__(self, model: Model, schedule: Schedule) -> None:
        beta = _beta(model, schedule)
        with without_default_device():
            # a bare float would pass through float32
            super().__init__(model, beta=torch.tensor(beta, dtype=torch.float64, device="cpu"))
        self.schedule = schedule

    def forward(self, X: Tensor) -> Tensor:
        """The bound at X, `batch_shape x 1 x d`, as `batch_shape`, by the beta of the model's
        observations now: a `FiniteGP` observes in place.
        """
        self.beta.fill_(_beta(self.model, self.schedule))
        return super().forward(X)

    def argmax_query(
        self,
        score: Score,
        candidates: Annotated[Tensor, POINTS],
        *,
        score_range: tuple[float, float],
        finalists: Count = 16,
        fit: Any = None,
    ) -> CandidateScores:
        """The query for the candidate, of the `finalists` with the largest bounds, that scores best
        over all units; free and public.

        The model ranks (it has seen released values only, so the finalists are public), the records
        decide: release it by a choice mechanism, which gives an index into `best_of(candidates,
        finalists)`. Few finalists cost few fits, and lose less to the choice's noise, which grows
        with the logarithm of their number. The sensitivity is that of `CandidateScores`, proven
        there.

        Args:
            score, score_range, fit: as in `CandidateScores`; x is a candidate, float64 of shape
                `d`.
            candidates: `n x d`, float64, public.

        Raises:
            InputError: an argument out of range, or a batch of models.
        """
        return self._finals(score, candidates, score_range, finalists, fit)[1]

    def release_argmax(
        self,
        curator: CuratorLike,
        score: Score,
        candidates: Annotated[Tensor, POINTS],
        *,
        score_range: tuple[float, float],
        mechanism: ChoiceMechanism,
        finalists: Count = 16,
        fit: Any = None,
    ) -> tuple[int, Release]:
        """Choose one candidate privately: `argmax_query` and its release, charged once.

        Law. Which candidates are finalists follows from the model, hence from released values, and
        is public. A neighbour moves the sums of all their scores by at most D at once, D = b - a or
        (b - a) / 2 for scores in [a, b] (`CandidateScores`). The choice is then that of the
        mechanism at epsilon, whatever D is: epsilon-DP. The exponential mechanism's privacy loss
        has range epsilon, so it is (epsilon^2 / 8)-zCDP, too; permute-and-flip is not.

        Args:
            curator: owner of the records, a `Curator`.
            score, candidates, score_range, finalists, fit: as in `argmax_query`.
            mechanism: how to choose, such as `PermuteAndFlipMechanism.of(1.0)`.

        Returns:
            index: of the chosen candidate, in `candidates`.
            release: what the ledger was charged for; its value is the place among the finalists.

        Raises:
            InputError: as in `argmax_query`.
            BudgetExceeded: more than is left; nothing was charged.
        """
        if mechanism.may_choose_none:
            raise InputError("mechanism", type(mechanism).__name__, "one that chooses in any case")
        among, query = self._finals(score, candidates, score_range, finalists, fit)
        release = curator.release(query, mechanism)
        return int(among[int(release.value)]), release

    @torch.no_grad()
    def best_of(self, candidates: Annotated[Tensor, POINTS], count: Count) -> Tensor:
        """Indices of the (at most) `count` candidates, of `n x d`, with the largest bounds for each
        model, largest first; ties in their order: `batch_shape x count`.
        """
        models = (1,) * len(self.model.batch_shape)
        bounds = [
            self(chunk.view(-1, *models, 1, chunk.shape[-1]))
            for chunk in torch.split(candidates, _CHUNK)
        ]
        order = torch.cat(bounds).sort(dim=0, descending=True, stable=True).indices
        # a view would be saved with the whole order
        return order[:count].movedim(0, -1).clone()

    def _finals(
        self, score: Score, candidates: Tensor, score_range: Any, finalists: int, fit: Any
    ) -> tuple[Tensor, CandidateScores]:
        """Indices of the finalists, and the query for the best of them."""
        if self.model.batch_shape:
            raise InputError(
                "model",
                tuple(self.model.batch_shape),
                "one model for a private choice, not a batch",
                "Make a GPUCB of each run's own model.",
            )
        among = self.best_of(candidates, finalists)
        query = CandidateScores(score, list(candidates[among]), score_range=score_range, fit=fit)
        return among, query


def _beta(model: Model, schedule: Schedule) -> float:
    """beta of the observation to come. Raises InputError for a model without one count of
    observations, of another dtype than float64, or for a schedule that gives no beta.
    """
    if isinstance(model, FiniteGP):
        observations = model.num_observations
    else:
        inputs = getattr(model, "train_inputs", None)
        points = inputs[0] if isinstance(inputs, (tuple, list)) and inputs else None
        if not isinstance(points, Tensor):
            allowed = "a GPyTorch regression model of one outcome, or a FiniteGP"
            raise InputError("model", type(model).__name__, allowed)
        if points.dtype != torch.float64:
            raise InputError("model", str(points.dtype), "in float64", "Call model.double().")
        observations = int(points.shape[-2])
    return require("schedule", schedule(observations + 1), NotNegative)


@checked
def suggest_ucb(model: FiniteGP, schedule: Schedule, *, exclude: Tensor | None = None) -> Tensor:
    """The index of the best candidate of each run outside `exclude` (`batch_shape x k` indices),
    the first of equals: `batch_shape`. 4 n flops and 32 n bytes a run.
    """
    return model.argmax_upper(schedule(model.num_observations + 1), exclude=exclude)
