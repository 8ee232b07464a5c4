"""A `Space` in Optuna's words: distributions, suggestions, and the points of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from dpbo.integrations.wording import Kind, Parameter, Wording
from dpbo.space import Space


class Suggestions(Wording):
    """Points of a space as trials suggest and show them.

    Attributes:
        distributions: by name, e.g. for `study.ask(fixed_distributions=...)`.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space, _expressible)
        self.distributions = {parameter.name: _distribution(parameter) for parameter in self.parameters}

    def suggested(self, trial: optuna.Trial) -> torch.Tensor:
        """The point, `d`, that a trial suggests."""
        return self.point({name: _suggest(trial, name, law) for name, law in self.distributions.items()})


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.labels:
        return CategoricalDistribution(parameter.labels)
    if parameter.kind is Kind.WHOLE:
        return IntDistribution(int(parameter.low), int(parameter.high), step=parameter.step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.kind is Kind.LOG)


def _suggest(trial: optuna.Trial, name: str, law: Any) -> Any:
    if isinstance(law, CategoricalDistribution):
        return trial.suggest_categorical(name, law.choices)
    if isinstance(law, IntDistribution):
        return trial.suggest_int(name, law.low, law.high, step=law.step)
    return trial.suggest_float(name, law.low, law.high, log=law.log)


def _expressible(value: Any, _others: Sequence[Any]) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
