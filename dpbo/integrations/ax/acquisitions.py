"""dpbo's acquisition functions for Ax's modular BoTorch: how each is built from a surrogate, and its name in Ax's storage.

Everything is in the model's own coordinates and maximises. BoTorch refuses a class that is registered twice, so a module that is loaded
again leaves the first constructor where it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from ax.storage.botorch_modular_registry import register_acquisition_function, register_model
from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY, acqf_input_constructor
from torch import Tensor

from dpbo.acquisition.gradient_information import GradientInformation
from dpbo.acquisition.ucb import GPUCB, Schedule, SrinivasCompact, SrinivasFinite
from dpbo.errors import InputError
from dpbo.models.gradient_gp import GradientGP
from dpbo.models.gradient_posterior import GradientPosterior

_ROUNDED = 1e-3  # relative: Ax's JSON keeps ten decimals, so noises of one plan differ a little after a reload

Numbers = Mapping[str, float]
"""A schedule as Ax stores it: its own arguments."""


def stored(schedule: SrinivasFinite | SrinivasCompact) -> dict[str, float]:
    """A schedule's arguments, which JSON can keep. Raises InputError for any other callable."""
    if not isinstance(schedule, (SrinivasFinite, SrinivasCompact)):
        raise InputError("schedule", schedule, "a SrinivasFinite or SrinivasCompact", "Ax stores its numbers, not its code.")
    return dataclasses.asdict(schedule)


def _restored(schedule: Schedule | Numbers) -> Schedule:
    if not isinstance(schedule, Mapping):
        return schedule
    return SrinivasFinite(**schedule) if "count" in schedule else SrinivasCompact(**schedule)  # type: ignore[arg-type]


def _ucb(
    model: Any, schedule: Schedule | Numbers, X_pending: Tensor | None = None, posterior_transform: Any = None, **_unused: Any
) -> dict[str, Any]:
    """Pending points count as seen at their posterior mean: the mean stays, the bounds narrow (GP-BUCB, Desautels et al. 2014)."""
    _require_maximised(posterior_transform)
    return {"model": model if X_pending is None else _believing(model, X_pending), "schedule": _restored(schedule)}


def _gradient_information(
    model: Any, theta: Any = None, X_pending: Tensor | None = None, posterior_transform: Any = None, **_unused: Any
) -> dict[str, Any]:
    """Without theta: the observed point of highest posterior mean."""
    _require_maximised(posterior_transform)
    at = _incumbent(model) if theta is None else torch.as_tensor(theta, dtype=torch.float64)
    return {"model": _history(model), "theta": at, "X_pending": X_pending}


def _history(model: Any) -> GradientPosterior:
    """The model's kernel, noise and points."""
    noise = model.likelihood.noise.detach()
    if getattr(model, "input_transform", None) is not None or float(noise.max() - noise.min()) > _ROUNDED * float(noise.max()):
        remedy = "Use dpbo.integrations.ax.gradient_information, over values of one plan."
        raise InputError("model", model, "without input transform and of one noise variance", remedy)
    posterior = GradientPosterior(model.covar_module, float(noise.max()))
    posterior.append(model.train_inputs[0])
    return posterior


def _incumbent(model: Any) -> Tensor:
    X = model.train_inputs[0]
    with torch.no_grad():
        return X[model.posterior(X).mean[..., 0].argmax()]


def _believing(model: Any, X: Tensor) -> Any:
    with torch.no_grad():
        mean = model.posterior(X).mean
        return model.condition_on_observations(X, mean, noise=model.likelihood.noise.mean().expand_as(mean))


def _require_maximised(posterior_transform: Any) -> None:
    weights = getattr(posterior_transform, "weights", None)
    if weights is not None and (len(weights) != 1 or float(weights[0]) <= 0):
        raise InputError("objective", "minimised, or of several metrics", "one metric, maximised", "configure_optimization('score').")


for acquisition, constructor in ((GPUCB, _ucb), (GradientInformation, _gradient_information)):
    if acquisition not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
        acqf_input_constructor(acquisition)(constructor)
    register_acquisition_function(acquisition)
register_model(GradientGP)
