"""Kusner et al.'s Algorithm 3 as one question: the best validation value of regularised models. Pure DP, without any prior.

    query = RegularisedBest(loss, fit=fit, grid=grid, lipschitz=0.5, bound=1.0, at_zero=0.5, records=1000)
    release = curator.release(query, LaplaceMechanism(1 / epsilon))

Public training records give w_l = fit(l) for every l of a public grid, in the open. Protected records give f_V(w) = -mean loss(w, z).
Released is max f_V over the visited l, with Laplace noise.

Whole grid (the default): which l are visited depends on nothing, so one record moves each f_V by the width of its loss's range over m, and
the maximum by no more. At w_l a loss that is L-Lipschitz and `at_zero` at w = 0 lies within L r of that, r = 1/l + sqrt(2 gap / l), and in
[0, g*]; it is clipped to that, in integers, and counts as `at_zero` where it is not finite or fails. So the sensitivity min(g*, 2 L r_lmin)
holds by construction, whatever the loss or fit do: pure DP, no assumption.

Adaptive: GP-UCB chooses which l to visit by what it saw, and Theorem 7's far larger first term rests on the loss being finite and
L-Lipschitz in w, between all visited w, for every record there could be. Nothing can enforce that record by record, so it is a data
assumption (`loss-lipschitz`), and the release is conditional.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.kernels import Kernel

from dpbo.acquisition.ucb import argmax_ucb, kusner_beta
from dpbo.errors import InputError
from dpbo.events import Event, NotPrivateEvent
from dpbo.models.finite import FiniteGP
from dpbo.papers.kusner.bounds import is_paper, require_demonstration
from dpbo.privacy import Adjacency, Sensitivity, require_count, require_positive
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.queries.score_evaluation import tensor_of
from dpbo.validation import checked

# ========== MERGED Kusner et al.'s Theorems 7 and 8: the value of a regularised model on private validation records, without any prior.
#
# Public training records give w_l = argmin (l/2) |w|^2 + mean loss(w), with a loss that is convex and 1-Lipschitz in w. The protected
# validation records give f_V(w) = -mean of g(w, z) over m of them, g in [0, g*] and L-Lipschitz in w, g(0, z) the same for all z (as for
# margin losses). Neighbours differ in the value of one record; so these are sensitivities, and a Laplace release is epsilon-DP.
#
# Further assumed: w_l is exact, or within `gap` of the minimum in its objective; m, T, the range of l and the training records are
# public; f_V is noise-free and the search's coins do not depend on V. Source: ICML 2015, Theorems 7 and 8, Corollary 4.
#
# Arguments: least, most = the ends of the range of l; lipschitz = L, units of y / |w|; bound = g*, units of y; records = m; gap = h.
#


def theorem_7(
    *, least: float, most: float, lipschitz: float, bound: float, records: int, gap: float = 0.0, constants: str = "corrected"
) -> float:
    """Total sensitivity: max of |f_V(w_l) - f_V'(w_l')| over neighbours and l, l' in the range; for an adaptive search.

    "paper": L (1/least - 1/most) + min(g*, L / least) / m. Its second term is too small by a factor 2, so that it fails for
    least = most. "corrected" [derived]: min(g*, L (1/least - 1/most) + min(g*, 2 L / most) / m), m >= 2, by way of the larger l, where
    |w| <= 1/l, and |g(w, z) - g(w, z')| <= 2 L |w| through g(0, .); then monotone in l and l'. A solver's gap adds 2 L sqrt(2 h / least).
    """
    _require_range(least, most)
    m, L, top = require_count("records", records, least=2), require_positive("lipschitz", lipschitz), require_positive("bound", bound)
    path = L * (1.0 / least - 1.0 / most)
    inexact = 2.0 * L * _distance(least, gap)
    if is_paper(constants):
        return path + min(top, L / least) / m + inexact
    return min(top, path + min(top, 2.0 * L / most) / m + inexact)


def fixed_grid(*, least: float, lipschitz: float, bound: float, records: int, gap: float = 0.0) -> float:
    """Sensitivity of the best value where the evaluated l do not depend on V (a grid, Sobol points): min(g*, 2 L / least) / m [derived].

    The maximum over fixed points moves no more than its largest part does: the term in the range of l vanishes, which is what adaptive
    search costs. A solver's gap lengthens |w| alone, to at most 1/least + sqrt(2 h / least): the same w is scored on both data sets.
    """
    reach = 1.0 / require_positive("least", least) + _distance(least, gap)
    return min(require_positive("bound", bound), 2.0 * require_positive("lipschitz", lipschitz) * reach) / require_count("records", records)


def theorem_8(*, sensitivity: float, epsilon: float, a: float) -> float:
    """|released value - best found value| <= a sensitivity / epsilon with probability 1 - e^-a: the tail of a Laplace variable."""
    return require_positive("a", a) * require_positive("sensitivity", sensitivity) / require_positive("epsilon", epsilon)


def _distance(least: float, gap: float) -> float:
    """How far w may be from its minimiser, sqrt(2 h / least), by strong convexity."""
    return math.sqrt(2.0 * (0.0 if gap == 0 else require_positive("gap", gap)) / least)


def _require_range(least: float, most: float) -> None:
    if require_positive("least", least) > require_positive("most", most):
        raise InputError("least", least, "at most `most`", "Swap the ends.")


_LIPSCHITZ = {
    "loss-lipschitz": "the validation loss is finite and L-Lipschitz in the model's weights, between all models of the grid, for every "
    "record there could be"
}
_DELTA = 0.1  # of the search's confidence alone: no guarantee rests on it


@checked
@dataclass(frozen=True)
class AdaptiveLipschitz:
    """Visit `observations` of the grid by GP-UCB over log l, gains scaled to [-1, 1]; what it costs is Theorem 7's first term."""

    kernel: Kernel
    noise: float
    observations: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", copy.deepcopy(self.kernel))


@checked
@dataclass(frozen=True, eq=False)
class RegularisedBest(Query):
    """The best value -mean loss over the grid.

    Args:
        loss: `loss(w, records)`, one number in [0, bound] a record. Records must be normalised inside it where that needs |x| <= 1.
        fit: `fit(l) -> w`, the minimiser of (l/2)|w|^2 + mean training loss, which is convex and 1-Lipschitz in w; public records alone.
        grid: regularisations l, above 0, increasing.
        lipschitz: L.
        bound: g*.
        at_zero: the loss of every record at w = 0, in [0, bound].
        records: m, the public number of protected records.
        gap: how far above its minimum a solver may leave the objective.
        adaptive: how to search; omitted, all of the grid is visited.
        constants: of Theorem 7, so with `adaptive` alone: "corrected" (omitted), or "paper", whose second term is too small by a factor 2
            unless lmax >= 2 lmin.
        allow_not_private: must be True for the paper's constants: whoever writes it says that these records need no protection.
    """

    loss: Callable[[Any, Any], Any]
    fit: Callable[[float], Any] = field(kw_only=True)
    grid: Sequence[float] = field(kw_only=True)
    lipschitz: float = field(kw_only=True)
    bound: float = field(kw_only=True)
    at_zero: float = field(kw_only=True)
    records: int = field(kw_only=True)
    gap: float = field(default=0.0, kw_only=True)
    adaptive: AdaptiveLipschitz | None = field(default=None, kw_only=True)
    constants: str | None = field(default=None, kw_only=True)
    allow_not_private: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        grid = tuple(require_positive("grid", regularisation) for regularisation in self.grid)
        if not grid or any(a >= b for a, b in itertools.pairwise(grid)):
            raise InputError("grid", grid, "increasing numbers above 0")
        object.__setattr__(self, "grid", grid)
        self._mean(None)
        if self.adaptive is None and self.constants is not None:
            raise InputError("constants", self.constants, "left out where the whole grid is visited", "No theorem's constants enter there.")
        self._paper()
        if self.adaptive is not None:
            require_count("observations", self.adaptive.observations)
        self.moves()

    def moves(self) -> float:
        """How far the best value moves when one record is replaced."""
        shared = {"least": self.grid[0], "lipschitz": self.lipschitz, "bound": self.bound, "records": self.records, "gap": self.gap}
        if self.adaptive is None:
            return fixed_grid(**shared)  # type: ignore[arg-type]
        return theorem_7(most=self.grid[-1], constants=self.constants or "corrected", **shared)  # type: ignore[arg-type]

    def charged(self, event: Event, adjacency: Adjacency) -> Event:
        return NotPrivateEvent(slots=event.slots) if self._paper() else event

    def data_assumptions(self) -> Mapping[str, str]:
        return {} if self.adaptive is None else _LIPSCHITZ

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if adjacency is not Adjacency.REPLACE_ONE:
            raise InputError("adjacency", adjacency, "REPLACE_ONE", "The theorem compares data sets of one size.")
        quantum = self._mean(None).lattices(self.records)[0].quantum
        truncated = 2 * quantum * (1 if self.adaptive is None else self.records)  # of one record's loss; of every record's, at two w
        widest = max(upper - lower for lower, upper in map(self._range, self.grid))
        total = ((widest if self.adaptive is None else self.moves() * self.records) + truncated) * (1 + 1e-12)
        return Sensitivity(total, total, total)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return self._mean(None).affine(self.records)

    def public_inputs(self) -> dict[str, Any]:
        shared = {"lipschitz": self.lipschitz, "bound": self.bound, "at_zero": self.at_zero, "records": self.records, "gap": self.gap}
        ends = {"least": self.grid[0], "most": self.grid[-1]}
        if self.adaptive is None:
            return {**shared, **ends, "visited": len(self.grid)}
        return {**shared, **ends, "visited": self.adaptive.observations, "constants": self.constants or "corrected"}

    def prepare(self) -> Any:
        return [(self.fit(regularisation), *self._range(regularisation)) for regularisation in self.grid]

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self._mean(None).probe(example, count, subject[0])

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if view.public_units != self.records or view.groups is not None:
            raise InputError("records", self.records, "the public number of units, each one record")
        mean = self._mean(None)
        best: IntegerSum | None = None
        model, schedule = self._model(), kusner_beta(len(self.grid), _DELTA)
        for turn in range(len(self.grid) if model is None else self.adaptive.observations):  # type: ignore[union-attr]
            index = turn if model is None else int(argmax_ucb(model, schedule))
            answer = mean._evaluate(view, subject[index])
            if isinstance(answer, Failure):
                return answer
            if best is None or int(answer.numerators) > int(best.numerators):
                best = answer
            if model is not None:
                model.observe(index, 2 * int(answer.numerators) * answer.quanta[0] / (self.records * self.bound))
        assert best is not None, "the grid is not empty"
        return best

    def _paper(self) -> bool:
        return require_demonstration(self.constants or "corrected", self.allow_not_private)

    def _model(self) -> FiniteGP | None:
        if self.adaptive is None:
            return None
        points = torch.tensor([[math.log(regularisation)] for regularisation in self.grid], dtype=torch.float64)
        return FiniteGP(points, self.adaptive.kernel, self.adaptive.noise)

    def _mean(self, w: Any) -> ClippedMean:
        def value(fitted: Any, records: Any) -> torch.Tensor:
            model, lower, upper = fitted
            return -tensor_of(self.loss(model, records)).to(torch.float64).clamp(lower, upper)

        return ClippedMean(value, w, score_range=(-self.bound, 0.0), worst=-self.at_zero)

    def _range(self, regularisation: float) -> tuple[float, float]:
        """Where the theorem has every loss at w_l."""
        reach = self.lipschitz * (1.0 / regularisation + math.sqrt(2.0 * self.gap / regularisation))
        return max(self.at_zero - reach, 0.0), min(self.at_zero + reach, self.bound)
