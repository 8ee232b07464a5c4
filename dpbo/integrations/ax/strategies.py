"""Generation strategies for Ax: Sobol points first, then its modular BoTorch with one acquisition function.

    client.set_generation_strategy(gp_ucb(SrinivasCompact(dimension=3, side=1.0, a=1.0, b=5.0, delta=0.1)))
    client.set_generation_strategy(gradient_information(space, at={"C": 1.0, "gamma": 0.1}))

Ax hands its models the unit cube (of the logarithms, where a parameter is on a log scale) and standardised scores, with the noise that came
with them: so a schedule's side is 1, its b is in standard deviations of the scores a box width, and gradients are those by the cube.
"""

from __future__ import annotations

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
from botorch.acquisition.logei import qLogNoisyExpectedImprovement

from dpbo.acquisition.gradient_information import GradientInformation
from dpbo.acquisition.ucb import GPUCB, SrinivasCompact, SrinivasFinite
from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.integrations.ax.acquisitions import stored
from dpbo.models.gradient_gp import GradientGP
from dpbo.privacy import require_count
from dpbo.space import Space


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
