"""Generation strategies for Ax: Sobol points first, then its modular BoTorch with one acquisition function.

    client.set_generation_strategy(gp_ucb(SrinivasCompact(dimension=3, side=1.0, a=1.0, b=5.0, delta=0.1)))
    client.set_generation_strategy(gradient_information(space, at={"C": 1.0, "gamma": 0.1}))

Ax hands its models the unit cube (of the logarithms, where a parameter is on a log scale) and standardised scores, with the noise that came
with them: so a schedule's side is 1, its b is in standard deviations of the scores a box width, and gradients are those by the cube.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from ax.adapter.registry import Cont_X_trans, Generators, Y_trans
from ax.core.trial_status import TrialStatus
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_acquisition_function, register_model
from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY, acqf_input_constructor
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from torch import Tensor

from dpbo.acquisition.gradient_information import GradientInformation
from dpbo.acquisition.ucb import GPUCB, Schedule, SrinivasCompact, SrinivasFinite
from dpbo.errors import InputError
from dpbo.models.gradient_gp import GradientGP
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.privacy import require_count
from dpbo.space import Space
from dpbo.validation import checked

# ========== MERGED dpbo's acquisition functions for Ax's modular BoTorch: how each is built from a surrogate, and its name in Ax's storage.
#
# Everything is in the model's own coordinates and maximises. BoTorch refuses a class that is registered twice, so a module that is loaded
# again leaves the first constructor where it is.
#

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


@checked
def noisy_improvement(*, initial: int = 8, seed: int = 0) -> GenerationStrategy:
    """Sobol points, then qLogNEI: what dpbo's own loop does.

    Keyword args:
        initial: trials of the design, 2 or more.
        seed: of the design.
    """
    return _strategy(qLogNoisyExpectedImprovement, {}, initial, seed)


@checked
def gp_ucb(schedule: SrinivasFinite | SrinivasCompact, *, initial: int = 8, seed: int = 0) -> GenerationStrategy:
    """Sobol points, then GP-UCB. Trials that are running count as seen at their posterior mean (GP-BUCB)."""
    return _strategy(GPUCB, {"schedule": stored(schedule)}, initial, seed)


@checked
def gradient_information(space: Space, *, at: Mapping[str, Any] | None = None, initial: int = 8, seed: int = 0) -> GenerationStrategy:
    """Sobol points, then those that tell most about the gradient at one place, on a GradientGP.

    Args:
        space: continuous parameters only.
        at: parameters where the gradient is wanted; omitted, the released point of highest posterior mean, anew for each trial.

    Raises:
        InputError: a space with lists or whole numbers, or parameters that are not of it.
    """
    if space.discrete_dims or space.cat_dims:
        raise InputError("space", "with lists or whole numbers", "of continuous parameters", "There is no gradient by the others.")
    options = {} if at is None else {"theta": _in_the_cube(space, at)}
    surrogate = SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=GradientGP, input_transform_classes=None, name="GradientGP")])
    # the cube is made by Ax's adapter, not by the model: a model that transforms its inputs has no gradient by them
    return _strategy(GradientInformation, options, initial, seed, surrogate_spec=surrogate, transforms=[*Cont_X_trans, *Y_trans])


def _in_the_cube(space: Space, parameters: Mapping[str, Any]) -> list[float]:
    """A point of the space in Ax's unit cube: both are linear in the same scale, but a quantile's ends are not 0 and 1."""
    lower, upper = space.bounds
    cube: torch.Tensor = (space.encode(dict(parameters)) - lower) / (upper - lower)
    return [float(u) for u in cube]


def _strategy(acquisition: type, options: dict[str, Any], initial: int, seed: int, **generator: Any) -> GenerationStrategy:
    """The search begins once the design is out and two of its values, of whichever trials, are in."""
    initial, kept = require_count("initial", initial, 2), [TrialStatus.FAILED, TrialStatus.ABANDONED]
    begins = [
        MinTrials(threshold=initial, transition_to="BO", use_all_trials_in_exp=True, not_in_statuses=kept),
        MinTrials(threshold=2, transition_to="BO", use_all_trials_in_exp=True, only_in_statuses=[TrialStatus.COMPLETED]),
    ]
    sobol = GeneratorSpec(generator_enum=Generators.SOBOL, generator_kwargs={"seed": require_count("seed", seed, 0)})
    settings = {"botorch_acqf_class": acquisition, "botorch_acqf_options": options, **generator}
    modular = GeneratorSpec(generator_enum=Generators.BOTORCH_MODULAR, generator_kwargs=settings)
    return GenerationStrategy(
        name=f"Sobol+{acquisition.__name__}",
        nodes=[
            GenerationNode(name="Sobol", generator_specs=[sobol], transition_criteria=begins),
            GenerationNode(name="BO", generator_specs=[modular]),
        ],
    )
