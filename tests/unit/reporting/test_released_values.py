"""The model of many released values, and of several at one point, tells what all of them tell."""

import dataclasses
from typing import Any

import pytest
import scipy.stats
import torch

from dpbo import Space
from dpbo.errors import UsageError
from dpbo.models.builders import gp_of_unknown_noise
from dpbo.reporting.charts import ConvergenceChart
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


def all_at_once(released, X):
    """Mean and standard deviation at X by Bayes' rule, from every single value, under the kernel,
    mean and scale of the fitted model."""
    gp = released.model
    with torch.no_grad():
        known = gp.covar_module(released.X).to_dense()
        between = gp.covar_module(X, released.X).to_dense()
        y, noise = gp.outcome_transform(released.Y, released.Yvar)
        weights = torch.linalg.solve(known + noise[:, 0].diag(), between.T).T
        mean = gp.mean_module(X) + weights @ (y[:, 0] - gp.mean_module(released.X))
        variance = gp.covar_module(X, diag=True) - (weights * between).sum(1)
        scale = gp.outcome_transform.stdvs[0, 0]
        return mean * scale + gp.outcome_transform.means[0, 0], variance.sqrt() * scale


@pytest.mark.parametrize(
    ("released", "tolerance"),
    [
        pytest.param(values(40, repeats=3), 1e-6, id="repeated"),
        pytest.param(values(30, repeats=2, category=True), 1e-6, id="repeated, categories"),
        pytest.param(values(600), 1e-3, id="many"),
    ],
)
def test_the_posterior_is_that_of_every_value(released, tolerance):
    X = released.space.sample(50, seed=1)
    for ours, theirs in zip(released.posterior(X), all_at_once(released, X), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=tolerance)
    assert torch.allclose(released.mean, all_at_once(released, released.X)[0], atol=tolerance)


def test_many_values_without_noise_are_told_as_they_are():
    released = values(520)
    exact = dataclasses.replace(released, Yvar=torch.zeros_like(released.Yvar))
    assert (exact.mean - exact.Y[:, 0]).square().mean() < 0.1 * exact.Y.var()


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


def test_a_chart_of_many_values_draws_some_and_every_step_of_the_mean():
    released = values(20, repeats=225)
    chart = ConvergenceChart.of(released)
    assert chart.step == 3
    assert len(chart.dots) == 1500
    assert chart.dots[1].text.startswith("evaluation 4: ")
    steps = released.best_so_far.unique()
    assert chart.path.count("V") == len(steps) - 1
