"""Kusner et al.'s Algorithm 3 as one query: the best validation value of regularised models, and
its sensitivity (Theorems 7 and 8).

    query = RegularisedBest(
        loss, fit=fit, grid=grid, lipschitz=0.5, bound=1.0, at_zero=0.5, records=1000
    )
    release = curator.release(query, LaplaceMechanism(1 / epsilon))

Public training records give w_l = argmin (l/2) |w|^2 + mean loss(w) for every l of a public grid,
with a loss that is convex and 1-Lipschitz in w. The protected validation records give f_V(w) =
-mean of g(w, z) over m of them, with g in [0, g*], L-Lipschitz in w, and g(0, z) the same for all z
(as for margin losses). Released is max f_V over the visited l, with Laplace noise. Neighbours
differ in the value of one record; no prior is needed.

The theorems also assume that w_l is exact, or within `gap` of the minimum in its objective; that m,
T, the range of l and the training records are public; that f_V is noise-free and the search's coins
do not depend on V. Source: ICML 2015, Theorems 7 and 8, Corollary 4.

Arguments of the theorems: least, most = the ends of the range of l; lipschitz = L, units of y /
|w|; bound = g*, units of y; records = m; gap = h.
"""

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel

from dpbo.acquisition.ucb import kusner_beta, suggest_ucb
from dpbo.errors import InputError
from dpbo.isolation import INTERRUPTS
from dpbo.models.finite import FiniteGP
from dpbo.papers.kusner.acquired import Acquisition, next_index, require_acquisition
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.queries.score_evaluation import tensor_of
from dpbo.validation import Count, NotNegative, Positive, at_least, checked, checked_constructor

_LIPSCHITZ = {
    "loss-lipschitz": (
        "the validation loss is finite and L-Lipschitz in the model's weights, between all models"
        " of the grid, for every record there could be"
    )
}
# confidence of the adaptive search; no guarantee rests on it
_DELTA = 0.1


@checked
def theorem_7(
    *,
    least: Positive,
    most: Positive,
    lipschitz: Positive,
    bound: Positive,
    records: Annotated[int, at_least(2)],
    gap: NotNegative = 0.0,
) -> float:
    """Total sensitivity: max of |f_V(w_l) - f_V'(w_l')| over neighbours and l, l' in the range; for
    an adaptive search.

    min(g*, L (1/least - 1/most) + min(g*, 2 L / most) / m), m >= 2, by way of the larger l, where
    |w| <= 1/l, and |g(w, z) - g(w, z')| <= 2 L |w| through g(0, .); then monotone in l and l'
    [derived]. The printed L (1/least - 1/most) + min(g*, L / least) / m is too small by a factor 2
    in its second term, so that it fails for least = most; from most = 2 least on it is no smaller.
    A solver's gap adds 2 L sqrt(2 h / least): by strong convexity w may be sqrt(2 h / least) from
    its minimiser.
    """
    if least > most:
        raise InputError("least", least, "at most `most`", "Swap the ends.")
    path = lipschitz * (1.0 / least - 1.0 / most)
    inexact = 2.0 * lipschitz * math.sqrt(2.0 * gap / least)
    return min(bound, path + min(bound, 2.0 * lipschitz / most) / records + inexact)


@checked
def fixed_grid(
    *, least: Positive, lipschitz: Positive, bound: Positive, records: Count, gap: NotNegative = 0.0
) -> float:
    """Sensitivity of the best value where the evaluated l do not depend on V (a grid, Sobol
    points): min(g*, 2 L / least) / m [derived].

    The maximum over fixed points moves no more than its largest part does: the term in the range of
    l vanishes, which is what adaptive search costs. A solver's gap lengthens |w| alone, to at most
    1/least + sqrt(2 h / least): the same w is scored on both data sets.
    """
    reach = 1.0 / least + math.sqrt(2.0 * gap / least)
    return min(bound, 2.0 * lipschitz * reach) / records


@checked
def theorem_8(*, sensitivity: Positive, epsilon: Positive, a: Positive) -> float:
    """|released value - best found value| <= a sensitivity / epsilon with probability 1 - e^-a: the
    tail of a Laplace variable.
    """
    return a * sensitivity / epsilon


@checked
@dataclass(frozen=True)
class AdaptiveLipschitz:
    """An adaptive search for `RegularisedBest` over log l: GP-UCB, or any BoTorch acquisition
    function. It costs Theorem 7's first term, and its guarantee is conditional.

    The bound holds for any two l of the range, so it does not matter how they were chosen. They are
    chosen from the grid: between its points `fit` would have to run at values of l that depend on
    the records, and what it prints, raises or takes would tell of them. The grid may be fine.

    Args:
        kernel: of the values over log l, which are scaled to [-1, 1].
        noise: variance that the model gives an evaluation.
        evaluations: how many l of the grid are evaluated.
        acquisition: a function that makes BoTorch's acquisition function of a BoTorch model of the
            values over log l; omitted, GP-UCB.
    """

    kernel: Kernel
    noise: float
    evaluations: Count
    acquisition: Acquisition | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", copy.deepcopy(self.kernel))
        if self.acquisition is not None:
            ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu")
            require_acquisition(self.acquisition, ends, self.kernel, self.noise)


@checked_constructor
@dataclass(frozen=True, eq=False)
class RegularisedBest(Query):
    """The best value -mean loss over the grid: release it by LaplaceMechanism under REPLACE_ONE.

    Over the whole grid (the default) the guarantee holds without assumptions. Which l are visited
    depends on nothing, so one record moves each f_V by the width of its loss's range over m, and
    the maximum by no more. At w_l a loss that is L-Lipschitz, and `at_zero` at w = 0, lies within L
    r of `at_zero`, r = 1/l + sqrt(2 gap / l), and in [0, g*]; it is clipped to that, in integers,
    and counts as `at_zero` where it is not finite or fails. So the sensitivity min(g*, 2 L r_lmin)
    holds by construction, whatever the loss or `fit` do.

    With `adaptive` the guarantee is conditional: which l are visited depends on the records, and
    Theorem 7 needs a loss that is finite and L-Lipschitz in w, between all visited w, for every
    record there could be. No clip can enforce that record by record, so it is a data assumption
    (`loss-lipschitz`), and the curator needs `allow_conditional=True`. The whole grid is the sound
    method beside it.

    Args:
        loss: `loss(w, records)`, one number in [0, bound] a record. Records must be normalised
            inside it where that needs |x| <= 1.
        fit: `fit(l) -> w`, the minimiser of (l/2)|w|^2 + mean training loss, which is convex and
            1-Lipschitz in w; public records alone.
        grid: regularisations l, above 0, increasing.
        lipschitz: L.
        bound: g*.
        at_zero: the loss of every record at w = 0, in [0, bound].
        records: m, the public number of protected records.
        gap: how far above its minimum a solver may leave the objective.
        adaptive: how to search; omitted, all of the grid is visited.
    """

    loss: Callable[[Any, Any], Any]
    _: KW_ONLY
    fit: Callable[[float], Any]
    grid: Sequence[Positive]
    lipschitz: Positive
    bound: Positive
    at_zero: float
    records: Count
    gap: NotNegative = 0.0
    adaptive: AdaptiveLipschitz | None = None

    def __post_init__(self) -> None:
        grid = tuple(map(float, self.grid))
        if not grid or not all(a < b for a, b in itertools.pairwise(grid)):
            raise InputError("grid", grid, "increasing numbers above 0")
        object.__setattr__(self, "grid", grid)
        self._mean(None)
        self.value_sensitivity()

    def value_sensitivity(self) -> float:
        """How far the best value moves when one record is replaced, in units of y."""
        numbers: dict[str, Any] = {
            "least": self.grid[0],
            "lipschitz": self.lipschitz,
            "bound": self.bound,
            "records": self.records,
            "gap": self.gap,
        }
        if self.adaptive is None:
            return fixed_grid(**numbers)
        return theorem_7(**numbers, most=self.grid[-1])

    def data_assumptions(self) -> Mapping[str, str]:
        if self.adaptive is None:
            return {}
        return _LIPSCHITZ

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if adjacency is not Adjacency.REPLACE_ONE:
            raise InputError(
                "adjacency", adjacency, "REPLACE_ONE", "The theorem compares data sets of one size."
            )
        quantum = self._mean(None).lattices(self.records)[0].quantum
        # of one record's loss; of every record's, at two w
        truncated = 2 * quantum * (1 if self.adaptive is None else self.records)
        widest = max(upper - lower for lower, upper in map(self._range, self.grid))
        total = (
            (widest if self.adaptive is None else self.value_sensitivity() * self.records)
            + truncated
        ) * (1 + 1e-12)
        return Sensitivity(total, total, total)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return self._mean(None).affine(self.records)

    def public_inputs(self) -> dict[str, Any]:
        return {
            "lipschitz": self.lipschitz,
            "bound": self.bound,
            "at_zero": self.at_zero,
            "records": self.records,
            "gap": self.gap,
            "least": self.grid[0],
            "most": self.grid[-1],
            "visited": self._visits,
        }

    def prepare(self) -> Any:
        return [
            (self.fit(regularisation), *self._range(regularisation)) for regularisation in self.grid
        ]

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self._mean(None).probe(example, count, subject[0])

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if view.public_units != self.records:
            raise InputError("records", self.records, "the public number of units")
        mean = self._mean(None)
        best: IntegerSum | None = None
        search = None if self.adaptive is None else _Search(self.adaptive, self.grid)
        for turn in range(self._visits):
            try:
                index = turn if search is None else search.ask()
            except INTERRUPTS:
                raise
            except BaseException:
                # an acquisition's error shows what it was computed from
                return Failure("exception")
            answer = mean._evaluate(view, subject[index])
            if isinstance(answer, Failure):
                return answer
            if best is None or int(answer.numerators) > int(best.numerators):
                best = answer
            if search is not None:
                search.tell(
                    index,
                    2 * int(answer.numerators) * answer.quanta[0] / (self.records * self.bound),
                )
        assert best is not None, "the grid is not empty"
        return best

    @property
    def _visits(self) -> int:
        if self.adaptive is None:
            return len(self.grid)
        return self.adaptive.evaluations

    def _mean(self, w: Any) -> ClippedMean:
        def value(fitted: Any, records: Any) -> torch.Tensor:
            model, lower, upper = fitted
            return -tensor_of(self.loss(model, records)).to(torch.float64).clamp(lower, upper)

        return ClippedMean(value, w, score_range=(-self.bound, 0.0), worst=-self.at_zero)

    def _range(self, regularisation: float) -> tuple[float, float]:
        """Where the theorem has every loss at w_l."""
        reach = self.lipschitz * (1.0 / regularisation + math.sqrt(2.0 * self.gap / regularisation))
        return max(self.at_zero - reach, 0.0), min(self.at_zero + reach, self.bound)


class _Search:
    """Which l of the grid to visit next, from the values at those before. Private."""

    def __init__(self, how: AdaptiveLipschitz, grid: Sequence[float]) -> None:
        self._points = torch.tensor(
            list(map(math.log, grid)), dtype=torch.float64, device="cpu"
        ).unsqueeze(1)
        self._how = how
        self._model = FiniteGP(self._points, how.kernel, how.noise)
        self._schedule = kusner_beta(len(grid), _DELTA)
        self._indices = list[int]()
        self._values = list[float]()

    def ask(self) -> int:
        how = self._how
        if how.acquisition is None:
            return int(suggest_ucb(self._model, self._schedule))
        return next_index(
            how.acquisition, self._points, self._indices, self._values, how.kernel, how.noise
        )

    def tell(self, index: int, value: float) -> None:
        self._indices.append(index)
        self._values.append(value)
        self._model.observe(index, value)
