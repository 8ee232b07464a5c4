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
from dpbo.models.finite import FiniteGP
from dpbo.queries.score_evaluation import Score
from dpbo.queries.utilities import CandidateScores
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
def kusner_beta(
    count: Count, delta: Probability, *, constants: str = "corrected"
) -> SrinivasFinite:
    """The schedule of Kusner et al. 2015, Algorithm 1.

    "paper": 2 log(count t^2 pi^2 / (3 delta)), a confidence of 1 - delta/2. "corrected": 2 log(2
    count t^2 pi^2 / (3 delta)), a confidence of 1 - delta/4, so that the four events of Theorem 3
    together fail with probability delta [derived].
    """
    shares = {"paper": 2.0, "corrected": 4.0}
    if constants not in shares:
        raise InputError("constants", constants, "'paper' or 'corrected'")
    return SrinivasFinite(count=count, delta=delta / shares[constants])


@checked
class GPUCB(UpperConfidenceBound):  # type: ignore[misc]
    """mean + sqrt(beta_t) sd with t one more than the model's observations, for `optimize_acqf` and
    the like.

    Args:
        model: a single-outcome GPyTorch regression model.
        schedule: beta by t.

    Source: Kusner et al. 2015, equation 3 (the standard deviation outside the root; the workshop
    version prints it inside).
    """

    def __init__(self, model: Model, schedule: Schedule) -> None:
        beta = schedule(int(model.train_inputs[0].shape[-2]) + 1)
        require("schedule", beta, NotNegative)
        with without_default_device():
            super().__init__(model, beta=beta)

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
        """
        return CandidateScores(
            score,
            list(candidates[self.best_of(candidates, finalists)]),
            score_range=score_range,
            fit=fit,
        )

    @torch.no_grad()
    def best_of(self, candidates: Annotated[Tensor, POINTS], count: Count) -> Tensor:
        """Indices of the (at most) `count` candidates, of `n x d`, with the largest bounds, largest
        first; ties in their order.
        """
        bounds = torch.cat([self(chunk.unsqueeze(-2)) for chunk in torch.split(candidates, _CHUNK)])
        return bounds.sort(descending=True, stable=True).indices[:count]


@checked
def suggest_ucb(model: FiniteGP, schedule: Schedule, *, exclude: Tensor | None = None) -> Tensor:
    """The index of the best candidate outside `exclude` (`k` indices), the first of equals: 4 n
    flops and 32 n bytes.
    """
    return model.argmax_upper(schedule(model.num_observations + 1), exclude=exclude)
