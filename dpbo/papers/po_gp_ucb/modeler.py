"""The modeler of outsourced Bayesian optimisation: it holds released rows, says which to look at next, and learns what was seen there.

    modeler = Modeler(Z, kernel=noisy_inputs(k, variance, dimension=2), noise=1e-2)
    index = modeler.ask()                  # a row's number, for the curator
    modeler.tell(index, y)                 # what the curator answered

Algorithm 2 of PO-GP-UCB, with two changes that released rows with noise call for: the kernel is that of rows known with noise (see
models/noisy_inputs.py), and a row is asked once, because asking again teaches about that row alone and not about its neighbours.
Everything here is public: a modeler sees numbers that were released, and no curator.

Rows asked and not yet told count as observed at their posterior mean, which leaves the mean everywhere as it is and lowers the variance
around them (GP-BUCB, Desautels et al. 2014), so that several rows can be under way. All state is the list of what was told.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel
from torch import Tensor

from dpbo.acquisition.ucb import Schedule, SrinivasFinite, argmax_ucb
from dpbo.errors import InputError
from dpbo.models.finite import FiniteGP
from dpbo.privacy import require_count
from dpbo.validation import checked, require

Acquisition = Callable[[FiniteGP], AcquisitionFunction]
"""From the model after everything asked so far (`model.observed` are those rows) to any BoTorch acquisition function with q = 1."""

_DELTA = 0.025  # of Algorithm 2's beta: half of the paper's delta_ucb = 0.05, as its Theorem 3 takes it


@checked
class Modeler:
    """Chooses rows of Z, one `ask` at a time, to find where the value is largest.

    Args:
        Z: released rows, `n x d`, float64.

    Keyword args:
        kernel: of the value over rows, float64, public: `noisy_inputs(...)` for rows released with noise.
        noise: variance of an answer y around the row's value, above 0; with the variance of any noise that the curator adds.
        schedule: beta_t of GP-UCB by t; by default Algorithm 2's, 2 log(n t^2 pi^2 / (6 delta')) with delta' = 0.025.
        acquisition: instead of GP-UCB, from the model to a BoTorch acquisition function, which is evaluated on every row. The model is a
            `FiniteGP`; for example `lambda model: LogExpectedImprovement(model, model.posterior(model.observed).mean.max())`.
        repeats: whether a row may be asked again.
        mean: public prior mean of y.
        history: (index, y) of what was told before, to continue from there.
        chunk: rows on which an acquisition function is evaluated together.

    Raises:
        InputError: an argument out of range.
    """

    def __init__(
        self,
        Z: Tensor,
        *,
        kernel: Kernel,
        noise: float,
        schedule: Schedule | None = None,
        acquisition: Acquisition | None = None,
        repeats: bool = False,
        mean: float = 0.0,
        history: Iterable[tuple[int, float]] = (),
        chunk: int = 4096,
    ) -> None:
        if Z.dim() != 2:
            raise InputError("Z", tuple(Z.shape), "of shape n x d")
        if schedule is not None and acquisition is not None:
            raise InputError("schedule", "given", "left out with acquisition", "It is GP-UCB's.")
        self._told = FiniteGP(Z, kernel, noise, mean=mean)
        self._schedule = SrinivasFinite(count=len(Z), delta=_DELTA) if schedule is None else schedule
        self._acquisition, self._repeats, self._chunk = acquisition, repeats, require_count("chunk", chunk)
        self._history: list[tuple[int, float]] = []
        self._pending: list[int] = []
        self._skipped: set[int] = set()
        told = list(history)
        require("history", told, Sequence[tuple[int, float]])
        for index, y in told:
            self.tell(index, y)

    @property
    def model(self) -> FiniteGP:
        """The posterior after what was told. Not to be changed by others."""
        return self._told

    @property
    def history(self) -> list[tuple[int, float]]:
        """(index, y) as told, in order: all that is needed to continue."""
        return list(self._history)

    @property
    def pending(self) -> list[int]:
        """Rows asked and not yet told, in order."""
        return list(self._pending)

    @property
    def best(self) -> tuple[int, float]:
        """The (index, y) of the largest y told.

        Raises:
            InputError: nothing was told.
        """
        if not self._history:
            raise InputError("history", "empty", "of at least one observation", "Tell one first.")
        return max(self._history, key=lambda pair: pair[1])

    @property
    def left(self) -> int:
        """How many rows may be asked now."""
        return len(self._told.candidates) - len(self._asked())

    def ask(self) -> int:
        """The row to look at next. Before any observation all bounds are equal, and it is row 0: tell some first rows to begin elsewhere.

        Raises:
            InputError: every row was asked.
        """
        model, asked = self._model_with_pending(), self._asked()
        if not self.left:
            raise InputError("repeats", False, "True once every row was asked", "Nothing is left to look at.")
        exclude = torch.tensor(asked, device=model.mean.device) if asked else None
        if self._acquisition is None or model.num_observations == 0:
            index = int(argmax_ucb(model, self._schedule, exclude=exclude))
        else:
            index = self._argmax(self._acquisition(model), model.candidates, exclude)
        self._pending.append(index)
        return index

    def tell(self, index: int, y: float) -> None:
        """Learn what was seen at a row, asked here or not (a first design, for example).

        Raises:
            InputError: no row of that number, a value that is not finite, or a second value of a row that is asked once.
        """
        index = self._checked(index)
        self._told.observe(index, y)
        self._history.append((index, float(y)))
        if index in self._pending:
            self._pending.remove(index)

    def forget_pending(self) -> None:
        """Take back what was asked and not told, where the curator will not answer any more; those rows may be asked again."""
        self._pending.clear()

    def skip(self, index: int) -> None:
        """Never ask this row again, whether it was told or not: the curator has no answer left for it."""
        self._skipped.add(index)
        self._pending = [row for row in self._pending if row != index]

    def _checked(self, index: int) -> int:
        n = len(self._told.candidates)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < n:
            raise InputError("index", index, f"a whole number from 0 to {n - 1}")
        if not self._repeats and any(index == told for told, _ in self._history):
            raise InputError("index", index, "of a row not told before", "Set repeats=True where a second value is another observation.")
        return index

    def _asked(self) -> list[int]:
        """What may not be asked now."""
        told = [] if self._repeats else [*(index for index, _ in self._history), *self._pending]
        return list(dict.fromkeys([*told, *self._skipped]))

    def _model_with_pending(self) -> FiniteGP:
        if not self._pending:
            return self._told
        model = copy.deepcopy(self._told)  # what is pending will be learned later, and perhaps in another order
        for index in self._pending:
            model.observe(index, float(model.mean[index]))
        return model

    def _argmax(self, acquisition: AcquisitionFunction, Z: Tensor, exclude: Tensor | None) -> int:
        with torch.no_grad():
            scores = torch.cat([acquisition(rows.unsqueeze(-2)).reshape(-1) for rows in torch.split(Z, self._chunk)])
        if len(scores) != len(Z):
            raise InputError("acquisition", f"{len(scores)} scores", f"one score for each of {len(Z)} rows", "It must take q = 1.")
        if exclude is not None:
            scores[exclude] = -math.inf
        return int(scores.nan_to_num(nan=-math.inf).argmax())
