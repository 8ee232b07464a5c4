"""Where to look next, many times over: qLogNEI as in `next_point`, with lengths that are fitted anew only now and then.

propose = Proposer(space)
x = propose(X, Y, Yvar, pending, seed=7)           # 1 x d

Between two fits the new values are conditioned on, under the lengths of the last fit. When to fit follows from the number of values
alone, which is public. An asynchronous search proposes whenever a job is done, so a proposal must cost little beside an evaluation. Of
`next_point`'s time at 60 values fitting is a third (in mixed spaces, two thirds); the rest is L-BFGS over qLogNEI, 2 to 3 ms a call in
continuous spaces and some 25 to 60 calls, most of them in line searches where little is left to gain. Hence few fits, two starts, short
line searches, and in mixed spaces one round between the discrete and the continuous coordinates.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError

from dpbo.acquisition.mixed import Effort, best_point, require_history, require_pending
from dpbo.checking import checked
from dpbo.models.observed import quiet, unfitted_gp
from dpbo.privacy import require_count, require_positive
from dpbo.space import Space

_FIT = {"maxiter": 50, "ftol": 1e-6}  # of the likelihood: lengths to about a per cent
_MIXED = {"initialization_strategy": "random", "maxiter_alternating": 1}  # a third of the time, and the same acquisition values
_SEARCH = {"maxls": 5}  # where hardly anything is left to gain, line searches stall


class Proposes(Protocol):
    """What an asynchronous search asks for a point: X `t x d`, Y and Yvar `t x 1`, pending `k x d`; the answer is `1 x d`."""

    def __call__(self, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, pending: torch.Tensor, *, seed: int) -> torch.Tensor: ...


@checked
class Proposer:
    """`next_point` with a memory for its lengths.

    Args:
        space: where to look.

    Keyword args:
        growth: fit anew when there are by this share more values than at the last fit, or fewer than then; 0 fits each time.
        restarts, raw_samples, steps: L-BFGS runs over qLogNEI, Sobol points to start them from, most steps of each.

    Raises:
        InputError: an argument outside its range.
    """

    def __init__(self, space: Space, *, growth: float = 0.2, restarts: int = 2, raw_samples: int = 64, steps: int = 15) -> None:
        if growth != 0:
            require_positive("growth", growth, most=10.0)
        self._space, self._growth = space, growth
        require_count("steps", steps)
        self._effort = Effort(
            restarts=require_count("restarts", restarts),
            raw_samples=require_count("raw_samples", raw_samples, restarts),
            continuous={"maxiter": steps, **_SEARCH},
            mixed={"maxiter_continuous": steps, **_MIXED},
            again=False,
        )
        self._lengths: dict[str, Any] | None = None
        self._seen = 0

    def __call__(self, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, pending: torch.Tensor, *, seed: int) -> torch.Tensor:
        """The next point beside those pending (`k x d`), `1 x d`. InputError: fewer than two values, or shapes that do not fit."""
        require_history(self._space, X, Y, Yvar, least=2)
        require_pending(self._space, pending)
        with quiet():
            return best_point(self._space, self._model(X, Y, Yvar), X, pending, seed=seed, effort=self._effort)

    def _model(self, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
        gp = unfitted_gp(self._space, X, Y, Yvar)
        if self._lengths is None or not self._seen <= len(X) < (1.0 + self._growth) * self._seen:
            _fit(gp)
            self._lengths, self._seen = {name: value.clone() for name, value in _parameters(gp).items()}, len(X)
        gp.load_state_dict({**gp.state_dict(), **self._lengths})
        return gp.eval()


def _fit(gp: SingleTaskGP) -> None:
    """Maximise the likelihood from the prior's lengths; where that fails, they stay."""
    with torch.enable_grad(), contextlib.suppress(ModelFittingError, NanError, NotPSDError):
        fit_gpytorch_mll_scipy(ExactMarginalLogLikelihood(gp.likelihood, gp), options=_FIT)


def _parameters(gp: SingleTaskGP) -> dict[str, torch.Tensor]:
    """Of the kernel and the mean: neither the noise nor the scale of the values, which come with the values."""
    return {name: value.detach() for name, value in gp.named_parameters() if name.startswith(("covar_module", "mean_module"))}
