"""The modeler's side of outsourced Bayesian optimisation: it holds released rows, proposes the next
row, and learns its outcome.

    modeler = Modeler(Z, kernel=noisy_inputs(k, variance, dimension=2), noise=1e-2)
    index = modeler.ask()                  # index of the row whose outcome the curator shall give
    modeler.tell(index, y)                 # the curator's answer

This is Algorithm 2 of PO-GP-UCB with two changes for rows that were released with noise: the kernel
is that of inputs known with noise (`dpbo.models.noisy_inputs`), and a row is asked once, because a
second answer says little about its neighbours. With the rows' own kernel and `repeats=True` it is
Algorithm 2 as printed, which may ask a row again. A modeler sees released numbers only, and no
curator, so no guarantee depends on it.

Rows that were asked and not yet told count as observed at their posterior mean, which leaves the
mean everywhere as it is and lowers the variance around them (GP-BUCB, Desautels et al. 2014), so
that several rows can be under way. The history is the whole state.
"""

import collections
import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from dpbo.acquisition.ucb import Schedule, SrinivasFinite, suggest_ucb
from dpbo.errors import BudgetExceeded, InputError, ReleaseLost, RemoteRefusal, UsageError
from dpbo.models.finite import FiniteGP
from dpbo.validation import POINTS, Count, Name, checked, require

if TYPE_CHECKING:
    from dpbo.papers.po_gp_ucb.curator_side import Answer

# of Algorithm 2's beta: half of the paper's delta_ucb = 0.05, as its Theorem 3 takes it
_DELTA = 0.025
# that an interval of a recommendation misses a row's value
_RISK = 0.05
# HTTP
_GONE = 410
_NO_ANSWERS_LEFT = 429


@dataclass(frozen=True)
class RecommendedRow:
    """The row that a search recommends; `str()` says it with a plus-minus.

    Attributes:
        row: of those that were answered, the one with the largest posterior mean.
        mean, std: of its value, in units of y. Its answer alone would be the luckiest one.
        margin: half of the interval around the mean that holds the value with probability .95, for
            all answered rows at once (Bonferroni's inequality).
        average: posterior mean of the value, averaged over all rows: what a row at random gives.
        answers: number of answers.
        found: whether the interval lies above the average; below, where values are minimised.
    """

    row: int
    mean: float
    std: float
    margin: float
    average: float
    answers: int
    found: bool

    def __str__(self) -> str:
        value = f"{self.mean:.3g} +- {self.margin:.2g}"
        if self.found:
            return (
                f"Row {self.row}: {value} (95 %), beside {self.average:.3g} on average over all"
                f" rows; {self.answers} answers."
            )
        return (
            f"Nothing was found: row {self.row}, the best of {self.answers} answers, has {value}"
            f" (95 %), which does not exclude {self.average:.3g}, the average over all rows."
        )


@runtime_checkable
class Answers(Protocol):
    """Who answers for rows: the curator's `Outcomes`, or `RemoteOutcomes`."""

    def value(self, row: int, *, request: str) -> "Answer":
        """The outcome of a row."""


@checked
class Modeler:
    """Chooses rows of Z, one `ask` at a time, to find where the value is largest.

    Args:
        Z: released rows, `n x d`, float64.
        kernel: of the value over rows, float64, public: `noisy_inputs(...)` for rows released with
            noise.
        noise: variance of an answer y around the row's value, above 0; with the variance of any
            noise that the curator adds.
        schedule: beta_t of GP-UCB for each t; by default Algorithm 2's, 2 log(n t^2 pi^2 / (6
            delta')) with delta' = 0.025.
        repeats: whether a row may be asked again, as in Algorithm 2. A curator answers again only
            if its `Outcomes(repeats=)` says so.
        mean: public prior mean of y.
        history: (index, y) of an earlier modeler, to continue from there.

    Raises:
        InputError: an argument out of range.
    """

    def __init__(
        self,
        Z: Annotated[Tensor, POINTS],
        *,
        kernel: Kernel,
        noise: float,
        schedule: Schedule | None = None,
        repeats: bool = False,
        mean: float = 0.0,
        history: Iterable[tuple[int, float]] = (),
    ) -> None:
        self._model = FiniteGP(Z, kernel, noise, mean=mean)
        if schedule is None:
            schedule = SrinivasFinite(count=len(Z), delta=_DELTA)
        self._schedule = schedule
        self._repeats = repeats
        self._history: list[tuple[int, float]] = []
        self._pending: list[int] = []
        self._skipped: set[int] = set()
        for index, y in require("history", list(history), Sequence[tuple[int, float]]):
            self.tell(index, y)

    @property
    def model(self) -> FiniteGP:
        """The posterior after the history. Do not change it."""
        return self._model

    @property
    def history(self) -> list[tuple[int, float]]:
        """(index, y) in the order of `tell`: all that is needed to continue."""
        return list(self._history)

    @property
    def pending(self) -> list[int]:
        """Rows asked and not yet told, in order."""
        return list(self._pending)

    @property
    def best(self) -> tuple[int, float]:
        """The (index, y) of the largest y. Raises UsageError where the history is empty."""
        if not self._history:
            raise UsageError("nothing was observed yet: call tell(index, y) first.")
        return max(self._history, key=lambda pair: pair[1])

    @property
    def left(self) -> int:
        """Number of rows that `ask` may still propose."""
        return len(self._model.candidates) - len(self._excluded())

    def ask(self) -> int:
        """Propose the row whose outcome is wanted next; returns its index.

        Before any observation all bounds are equal, and it is row 0. Call `tell` with the outcomes
        of some rows to begin elsewhere.

        Raises:
            InputError: all rows were already proposed or skipped.
        """
        if not self.left:
            remedy = (
                "All rows were already proposed, or skipped because the curator has no answer for"
                " them."
            )
            raise InputError(
                "repeats",
                self._repeats,
                "True, with a row that was not skipped, to propose more",
                remedy,
            )
        # pending rows are learned later, perhaps in another order
        model = copy.deepcopy(self._model) if self._pending else self._model
        for index in self._pending:
            model.observe(index, float(model.mean[index]))
        excluded = self._excluded()
        exclude = torch.tensor(excluded, device=model.mean.device) if excluded else None
        index = int(suggest_ucb(model, self._schedule, exclude=exclude))
        self._pending.append(index)
        return index

    def tell(self, index: int, y: float) -> None:
        """Learn the outcome of a row, whether it was asked or not (a first design, for example).

        Raises:
            InputError: no row of that number, a value that is not finite, or a second value of a
                row that is asked once.
        """
        n = len(self._model.candidates)
        if not 0 <= index < n:
            raise InputError("index", index, f"a whole number from 0 to {n - 1}")
        if not self._repeats and index in dict(self._history):
            raise InputError(
                "index",
                index,
                "of a row not told before",
                "Set repeats=True where a second value is another observation.",
            )
        self._model.observe(index, y)
        self._history.append((index, float(y)))
        if index in self._pending:
            self._pending.remove(index)

    def recommend(self) -> RecommendedRow:
        """The answered row whose value is expected to be largest. Raises UsageError where the
        history is empty.
        """
        answered = list(dict(self._history))
        if not answered:
            raise UsageError("nothing was observed yet: call tell(index, y) first.")
        mean, variance = self._model.mean, self._model.variance
        row = max(answered, key=lambda index: float(mean[index]))
        std = math.sqrt(float(variance[row]))
        average = float(mean.mean())
        margin = NormalDist().inv_cdf(1 - _RISK / (2 * len(answered))) * std
        best = float(mean[row])
        count = len(self._history)
        return RecommendedRow(row, best, std, margin, average, count, best - margin > average)

    def skip(self, index: int) -> None:
        """Never ask this row again: the curator has no answer left for it."""
        self._skipped.add(index)
        self._pending = [row for row in self._pending if row != index]

    def _excluded(self) -> list[int]:
        """Rows that may not be asked now."""
        used = [] if self._repeats else [*dict(self._history), *self._pending]
        return list(dict.fromkeys([*used, *self._skipped]))


@checked
def search(
    modeler: Modeler,
    outcomes: Answers,
    *,
    steps: Count,
    minimise: bool = False,
    name: Name = "search",
) -> RecommendedRow:
    """Ask until `steps` rows are answered, or no row or answer is left.

    A question's name is that of the search, the row and how often it was asked. So a search that
    was killed continues where it was, at no cost, when it is started again.

    Args:
        modeler: proposes rows and learns from answers; with `minimise` it learns the negatives.
        outcomes: `Outcomes`, or `RemoteOutcomes` of a curator elsewhere.
        steps: number of answers.
        name: of the search; another one asks questions of its own.

    Returns:
        The recommended row, in the outcomes' units.

    Raises:
        RemoteRefusal: a question was refused, other than because its row or all rows have no
            answers left.
        UsageError: no row has an answer.
    """
    sign = -1.0 if minimise else 1.0
    asked: collections.Counter[int] = collections.Counter()
    while asked.total() < steps and modeler.left:
        row = modeler.ask()
        try:
            answer = outcomes.value(row, request=f"{name} {row}.{asked[row]}")
        except BudgetExceeded as refused:
            over = refused.unit == "answers"
        except ReleaseLost:
            over = False
        except RemoteRefusal as refused:
            if refused.status not in (_GONE, _NO_ANSWERS_LEFT):
                raise
            over = refused.status == _NO_ANSWERS_LEFT
        else:
            modeler.tell(row, sign * answer.value)
            asked[row] += 1
            continue
        modeler.skip(row)
        if over:
            break
    found = modeler.recommend()
    return dataclasses.replace(found, mean=sign * found.mean, average=sign * found.average)
