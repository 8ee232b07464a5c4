"""The next point by any BoTorch acquisition function, on exact values that stay private.

    best_yet = lambda model: LogExpectedImprovement(model, best_f=model.train_targets.max())

Theorem 1 and Theorem 7 do not ask how a point was chosen from the values before it; Theorems 3 and
5 rest on the regret of one search, and allow no other.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor

from dpbo.errors import InputError
from dpbo.isolation import mute_warnings
from dpbo.validation import POINTS

Acquisition = Callable[[SingleTaskGP], AcquisitionFunction]
"""Gives the function whose maximiser is evaluated next, of the model of the values so far: the
search's own kernel and noise, mean 0, not fitted. Its `train_inputs` and `train_targets` serve
whoever wants another model."""
Box = Annotated[Tensor, POINTS]
# candidates whose acquisition values are computed together
_CHUNK = 1024
_STARTS = 4
_SAMPLES = 64


def next_index(
    acquisition: Acquisition,
    candidates: Tensor,
    indices: Sequence[int],
    values: Sequence[float],
    kernel: Kernel,
    noise: float,
) -> int:
    """Index of the candidate to evaluate next; before any value it is 0."""
    if not values:
        return 0
    with torch.no_grad(), mute_warnings():
        wanted = acquisition(_model(candidates[list(indices)], values, kernel, noise))
        parts = [wanted(chunk.unsqueeze(1)) for chunk in torch.split(candidates, _CHUNK)]
    return int(torch.cat(parts).argmax())


def next_point(
    acquisition: Acquisition,
    box: Tensor,
    points: Sequence[Tensor],
    values: Sequence[float],
    kernel: Kernel,
    noise: float,
) -> Tensor:
    """The point of the box to evaluate next, `d`; before any value it is the middle."""
    if not values:
        return box.mean(0)
    with mute_warnings():
        wanted = acquisition(_model(torch.stack(list(points)), values, kernel, noise))
        found, _ = optimize_acqf(wanted, box, q=1, num_restarts=_STARTS, raw_samples=_SAMPLES)
    return found[0].detach()


def require_acquisition(
    acquisition: Acquisition, candidates: Tensor, kernel: Kernel, noise: float
) -> None:
    """Tries it on a made-up value: an error of its own shows here, and not on private values.

    Raises:
        InputError: it is an acquisition function itself, of a model that knows no value.
    """
    if isinstance(acquisition, AcquisitionFunction):
        raise InputError(
            "acquisition",
            type(acquisition).__name__,
            "a function that makes one of the model of the values so far",
            "For example: lambda model: LogExpectedImprovement(model, best_f=0.0).",
        )
    next_index(acquisition, candidates[:2], [0], [0.0], kernel, noise)


def require_box(box: Tensor, dimension: int) -> None:
    """Raises InputError where the rows are no lower and upper corner."""
    if box.shape != (2, dimension) or not bool((box[0] < box[1]).all()):
        raise InputError(
            "box", tuple(box.shape), f"of shape 2 x {dimension}, lower corner below upper"
        )


def _model(X: Tensor, values: Sequence[float], kernel: Kernel, noise: float) -> SingleTaskGP:
    Y = X.new_tensor(values).unsqueeze(1)
    return SingleTaskGP(
        X,
        Y,
        torch.full_like(Y, noise),
        covar_module=copy.deepcopy(kernel),
        mean_module=ZeroMean(),
        outcome_transform=None,
    ).eval()
