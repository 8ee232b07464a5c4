"""BoTorch's Gaussian processes on released values of known noise, over the coordinates of a
`Space`.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Annotated

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import MixedSingleTaskGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo.errors import InputError
from dpbo.isolation import mute_warnings, without_default_device
from dpbo.models.plain_covariance import fit
from dpbo.space import Space
from dpbo.validation import POINTS, checked, require

# largest value of a model's inputs
_LARGEST = 1e100
# as a share of the values' variance
_LEAST_NOISE = 1e-6

ModelBuilder = Callable[[Space, torch.Tensor, torch.Tensor, torch.Tensor], SingleTaskGP]
"""Fits a model to X (`t x d`), Y and Yvar (`t x 1`)."""


@checked
def default_gp(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
    """A fitted SingleTaskGP, or MixedSingleTaskGP where there are categories.

    Args:
        X: `t x d`, float64, points of the space.
        Y, Yvar: `t x m`, values and the variance of their noise.

    Raises:
        InputError: shapes that do not fit, or numbers that are not finite or float64.
    """
    require_values(space, X, Y, Yvar)
    return _fitted(unfitted_gp(space, X, Y, Yvar))


def gp_of_unknown_noise(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor
) -> SingleTaskGP:
    """As `default_gp`, but its noise is fitted, whatever Yvar is: of values such as cross-validated
    scores.
    """
    require_values(space, X, Y, Yvar)
    return _fitted(_gp(space, X, Y, None))


@checked
def sparse_gp(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
    """SAAS, for many coordinates of which few matter: four fits under its half-Cauchy prior with
    fixed global shrinkage, as one mixture.

    The fully Bayesian form needs JAX; hand a builder of `SaasFullyBayesianSingleTaskGP` to
    `suggest` where that is installed.

    Args:
        X, Y, Yvar: as in `default_gp`.

    Raises:
        InputError: as in `default_gp`, or a space with categories.

    Source: Eriksson & Jankowiak 2021, with maximum a posteriori fits in place of its Markov chain.
    """
    require_values(space, X, Y, Yvar)
    if space.cat_dims:
        raise InputError(
            "space",
            [space.names[i] for i in space.cat_dims],
            "without categories for SAAS",
            "Use default_gp.",
        )
    # quantiles of its prior
    shrinkage = 0.1 * torch.tan(
        math.pi / 2 * torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64, device="cpu")
    )
    noise = _noise(Y, Yvar)
    with without_default_device():
        gp = EnsembleMapSaasSingleTaskGP(X, Y, noise, taus=shrinkage.to(X.device))
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    # where it fails, the prior's lengths stay
    with torch.enable_grad(), contextlib.suppress(ModelFittingError):
        fit_gpytorch_mll(mll)
    return gp.eval()


def unfitted_gp(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
    """`default_gp` before its fit."""
    return _gp(space, X, Y, _noise(Y, Yvar))


def _gp(space: Space, X: torch.Tensor, Y: torch.Tensor, noise: torch.Tensor | None) -> SingleTaskGP:
    # X is copied, because a model that keeps a view of a larger tensor saves all of that tensor
    with without_default_device():
        if space.cat_dims:
            return MixedSingleTaskGP(X.clone(), Y, [*space.cat_dims], noise)
        return SingleTaskGP(X.clone(), Y, noise)


def _noise(Y: torch.Tensor, Yvar: torch.Tensor) -> torch.Tensor:
    """Yvar, but at least a small share of the values' variance."""
    return Yvar.clamp_min(_LEAST_NOISE * float(Y.var().clamp_min(1e-12)))


def _fitted(gp: SingleTaskGP) -> SingleTaskGP:
    fit(gp)
    return gp.eval()


def mute_optimizer_warnings() -> contextlib.AbstractContextManager[None]:
    """Mutes the optimizers' warnings of stalled line searches and jitter, after which BoTorch tries
    again by itself.
    """
    return mute_warnings(RuntimeWarning, BotorchWarning)


def require_values(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, least: int = 1
) -> None:
    """Raises InputError unless X is `t x d`, Y and Yvar `t x m`, float64, finite and on one device,
    d the space's, t at least `least`, no variance below 0.
    """
    if X.ndim and len(X) < least:
        remedy = "Begin with space.sample(8, seed=0)."
        raise InputError("X", tuple(X.shape), f"of {least} released values or more", remedy)
    for name, value in (("X", X), ("Y", Y), ("Yvar", Yvar)):
        require(name, value, Annotated[torch.Tensor, POINTS])
        require_constant(name, value)
        if value.device != X.device:
            raise InputError(
                name,
                str(value.device),
                f"on the device of X, {X.device}",
                f"Give {name}.to(X.device).",
            )
    if X.shape[1] != len(space.names):
        raise InputError(
            "X", tuple(X.shape), f"of shape t x {len(space.names)}, points of the space"
        )
    space.require_inside("X", X)
    for name, value in (("Y", Y), ("Yvar", Yvar)):
        if len(value) != len(X) or value.shape != Y.shape or float(value.abs().max()) > _LARGEST:
            raise InputError(
                name,
                tuple(value.shape),
                f"of shape {len(X)} x m, a row for each of X, within {_LARGEST:g} of zero",
            )
    if bool((Yvar < 0).any()):
        raise InputError("Yvar", float(Yvar.min()), "at least 0 everywhere")


def require_constant(name: str, value: torch.Tensor) -> None:
    """Raises InputError for a tensor that requires a gradient: the fit would carry it along."""
    if value.requires_grad:
        raise InputError(name, value, "a constant tensor", f"Give {name}.detach().")
