"""Generation strategies for Ax: Sobol points first, then its modular BoTorch with one acquisition
function.

    schedule = SrinivasCompact(dimension=3, side=1.0, a=1.0, b=5.0, delta=0.1)
    client.set_generation_strategy(gp_ucb(schedule))
    # or
    client.set_generation_strategy(gradient_information(space, at={"C": 1.0, "gamma": 0.1}))

Ax gives its models points in the unit cube (in logarithms for a parameter on a log scale) and
standardised scores with their noise. So a schedule's side is 1, its b is in standard deviations of
the scores per width of the box, and gradients are in the cube's coordinates. This module registers
dpbo's acquisition functions with Ax's modular BoTorch: how each is built from a surrogate, and its
name in storage.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from ax.adapter.registry import Cont_X_trans, Generators, Y_trans
from ax.core.trial_status import TrialStatus
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_acquisition_function
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
)
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from torch import Tensor

from dpbo.acquisition.ucb import GPUCB, Schedule, SrinivasCompact, SrinivasFinite
from dpbo.errors import InputError
from dpbo.gibo.gradient_information import GradientInformation
from dpbo.space import Space
from dpbo.validation import Seed, at_least, checked

Numbers = Mapping[str, float]
"""A schedule as Ax stores it: its arguments."""


def _ucb(
    model: Any,
    schedule: Schedule | Numbers,
    X_pending: Tensor | None = None,
    posterior_transform: Any = None,
    **_unused: Any,
) -> dict[str, Any]:
    """Pending points count as observed at their posterior mean: the mean stays, the bounds narrow
    (GP-BUCB, Desautels et al. 2014).
    """
    _require_maximised(posterior_transform)
    if isinstance(schedule, Mapping):
        kind: Any = SrinivasFinite if "count" in schedule else SrinivasCompact
        schedule = kind(**schedule)
    if X_pending is not None:
        with torch.no_grad():
            mean = model.posterior(X_pending).mean
            model = model.condition_on_observations(
                X_pending, mean, noise=model.likelihood.noise.mean().expand_as(mean)
            )
    return {"model": model, "schedule": schedule}


def _gradient_information(
    model: Any,
    theta: Any = None,
    X_pending: Tensor | None = None,
    posterior_transform: Any = None,
    **_unused: Any,
) -> dict[str, Any]:
    """theta omitted: the observed point of highest posterior mean."""
    _require_maximised(posterior_transform)
    if theta is None:
        X = model.train_inputs[0]
        with torch.no_grad():
            theta = X[model.posterior(X).mean[..., 0].argmax()]
    return {
        "model": model,
        "theta": torch.as_tensor(theta, dtype=torch.float64, device="cpu"),
        "X_pending": X_pending,
    }


def _require_maximised(posterior_transform: Any) -> None:
    weights = getattr(posterior_transform, "weights", None)
    if weights is not None and (len(weights) != 1 or float(weights[0]) <= 0):
        raise InputError(
            "objective",
            tuple(weights.tolist()),
            "one metric, maximised",
            "configure_optimization('score').",
        )


for acquisition, constructor in ((GPUCB, _ucb), (GradientInformation, _gradient_information)):
    if acquisition not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
        acqf_input_constructor(acquisition)(constructor)
    register_acquisition_function(acquisition)


@checked
def noisy_improvement(
    *, initial: Annotated[int, at_least(2)] = 8, seed: Seed = 0
) -> GenerationStrategy:
    """Sobol points, then qLogNEI, as in dpbo's own loop.

    Args:
        initial: number of Sobol points, at least 2.
        seed: of the Sobol points.
    """
    return _strategy(qLogNoisyExpectedImprovement, {}, initial, seed)


@checked
def gp_ucb(
    schedule: SrinivasFinite | SrinivasCompact,
    *,
    initial: Annotated[int, at_least(2)] = 8,
    seed: Seed = 0,
) -> GenerationStrategy:
    """Sobol points, then GP-UCB. Running trials count as observed at their posterior mean
    (GP-BUCB).
    """
    return _strategy(GPUCB, {"schedule": dataclasses.asdict(schedule)}, initial, seed)


@checked
def gradient_information(
    space: Space,
    *,
    at: Mapping[str, Any] | None = None,
    initial: Annotated[int, at_least(2)] = 8,
    seed: Seed = 0,
) -> GenerationStrategy:
    """Sobol points, then the points with most information about the gradient at one place, on a
    SingleTaskGP.

    Args:
        space: a space of continuous parameters.
        at: parameters where the gradient is wanted; omitted, the released point of highest
            posterior mean, updated for each trial.

    Raises:
        InputError: a space with lists or whole numbers, or parameters outside it.
    """
    if space.discrete_dims or space.cat_dims:
        raise InputError(
            "space", space, "of continuous parameters", "Other parameters have no gradient."
        )
    options = {}
    # Ax's cube and the space are linear in the same scale, but a quantile's ends are not 0 and 1
    if at is not None:
        lower, upper = space.bounds
        options = {"theta": ((space.encode(dict(at)) - lower) / (upper - lower)).tolist()}
    surrogate = SurrogateSpec(
        model_configs=[
            ModelConfig(
                botorch_model_class=SingleTaskGP, input_transform_classes=None, name="SingleTaskGP"
            )
        ]
    )
    # Ax's adapter maps points to the cube, and through a chain of transforms, as its default model
    # has, no gradient is carried
    return _strategy(
        GradientInformation,
        options,
        initial,
        seed,
        surrogate_spec=surrogate,
        transforms=[*Cont_X_trans, *Y_trans],
    )


def _strategy(
    acquisition: type, options: dict[str, Any], initial: int, seed: int, **generator: Any
) -> GenerationStrategy:
    """The model proposes once `initial` trials were generated and two values, of any trials, are
    known.
    """
    kept = [TrialStatus.FAILED, TrialStatus.ABANDONED]
    begins = [
        MinTrials(
            threshold=initial, transition_to="BO", use_all_trials_in_exp=True, not_in_statuses=kept
        ),
        MinTrials(
            threshold=2,
            transition_to="BO",
            use_all_trials_in_exp=True,
            only_in_statuses=[TrialStatus.COMPLETED],
        ),
    ]
    sobol = GeneratorSpec(generator_enum=Generators.SOBOL, generator_kwargs={"seed": seed})
    settings = {"botorch_acqf_class": acquisition, "botorch_acqf_options": options, **generator}
    modular = GeneratorSpec(generator_enum=Generators.BOTORCH_MODULAR, generator_kwargs=settings)
    return GenerationStrategy(
        name=f"Sobol+{acquisition.__name__}",
        nodes=[
            GenerationNode(name="Sobol", generator_specs=[sobol], transition_criteria=begins),
            GenerationNode(name="BO", generator_specs=[modular]),
        ],
    )
