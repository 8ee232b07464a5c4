"""The model of released values: of many, of several at one point, and of unknown noise."""

import dataclasses
from typing import Any

import pytest
import scipy.stats
import torch

from dpbo import Space
from dpbo.errors import UsageError
from dpbo.models.builders import gp_of_unknown_noise
from dpbo.reporting.released_values import ReleasedValues
from tests.setups import DOUBLE


def values(points, dimension=2, repeats=1, category=False):
    """Noised values of a smooth function, several at each point, in mixed order."""
    parameters: dict[str, Any] = {f"a{i}": scipy.stats.uniform(0, 1) for i in range(dimension)}
    if category:
        parameters["kind"] = ["a", "b", "c"]
    space = Space(**parameters)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(points * repeats, generator=generator)
    X = space.sample(points, seed=0).repeat(repeats, 1)[order]
    Yvar = 0.01 * (1 + torch.rand(len(X), 1, dtype=DOUBLE, generator=generator))
    noise = Yvar.sqrt() * torch.randn(len(X), 1, dtype=DOUBLE, generator=generator)
    Y = torch.sin(4 * X[:, :1]) - X[:, 1:2] ** 2 + noise
    return ReleasedValues("s", space, X, Y, Yvar)


def test_a_model_sees_repeated_values_and_not_all_of_many():
    repeated = values(20, repeats=3, category=True)
    assert len(repeated.model.train_targets) == 60
    many = values(600)
    assert len(many.model.train_targets) == 500
    X = many.space.sample(200, seed=1)
    mean, std = many.posterior(X)
    error = mean - (torch.sin(4 * X[:, 0]) - X[:, 1] ** 2)
    assert (error / std).square().mean().sqrt() < 2
    assert len(many.mean) == 600


def test_many_scores_of_unknown_noise_are_not_taken_for_exact():
    scores = dataclasses.replace(
        values(520), Yvar=torch.zeros(520, 1).double(), builder=gp_of_unknown_noise, released=False
    )
    X = scores.space.sample(200, seed=1)
    mean, std = scores.posterior(X)
    error = mean - (torch.sin(4 * X[:, 0]) - X[:, 1] ** 2)
    assert (error / std).square().mean().sqrt() < 2


def test_values_of_one_point_have_their_weighted_mean_and_no_model():
    X = torch.full((3, 1), 0.5, dtype=DOUBLE)
    Y = torch.tensor([[1.0], [2.0], [4.0]], dtype=DOUBLE)
    Yvar = torch.tensor([[1.0], [1.0], [0.5]], dtype=DOUBLE)
    released = ReleasedValues("s", Space(a=scipy.stats.uniform(0, 1)), X, Y, Yvar)
    assert released.mean.tolist() == pytest.approx([11 / 4] * 3)
    with pytest.raises(UsageError, match="one point only"):
        _ = released.model
