"""What the benchmarks rest on: problems and compositions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from benchmarks.papers import dpgibo_problems as problems
from benchmarks.papers import po_gp_ucb_problems
from benchmarks.papers.dpem_paper import EACH, noise
from benchmarks.papers.dpgibo_baselines import METHODS, Choice, Regression, poisson_sample
from benchmarks.papers.po_gp_ucb_r import largest_r
from tests.setups import DOUBLE

DELTA = 1e-4
J = 10
# As in the DP-EM paper.
K = 3


def test_the_losses_are_what_they_say():
    """The length-scale loss against scikit-learn, and the Huber gradient against autograd."""
    problem = problems.length_scales(1, n=20, d=3, train=15)
    lengths = torch.tensor([0.7, 1.5, 3.0], dtype=DOUBLE)
    loss: Any = problem.loss
    train, y = (loss.keywords[name].numpy() for name in ("train", "targets"))
    peer = GaussianProcessRegressor(RBF(lengths.numpy()), alpha=0.01, optimizer=None).fit(train, y)
    expected = np.minimum(
        (problem.records[:, -1].numpy() - peer.predict(problem.records[:, :-1].numpy())) ** 2, 1.0
    )
    np.testing.assert_allclose(problem.loss(lengths, problem.records).numpy(), expected, atol=1e-10)
    records = problems.huber_regression(2).records
    theta = torch.full((4,), 0.3, dtype=DOUBLE, requires_grad=True)
    problems.huber(theta, records).sum().backward()
    assert theta.grad is not None
    torch.testing.assert_close(problems.huber_gradient(theta.detach(), records).sum(0), theta.grad)


def test_the_papers_settings_give_the_numbers_of_its_formulas():
    assert noise("zCDP", "GGG", 1.0, DELTA, J, K).multiplier == pytest.approx(36.9, abs=0.05)
    each = 1.0 / (J * (2 * K + 1))
    assert noise("linear", "LLG", 1.0, DELTA, J, K).multiplier == pytest.approx(
        math.sqrt(2 * math.log(1.25 * J * K / DELTA)) / each
    )
    advanced = noise("advanced", "GGG", 1.0, DELTA, J, K).multiplier
    e = math.sqrt(2 * math.log(1.25 / EACH)) / advanced
    M = J * (2 * K + 1)
    rest = DELTA - J * (2 * K + 1) * EACH
    assert M * e * math.expm1(e) + math.sqrt(2 * M * math.log(1 / rest)) * e == pytest.approx(1.0)
    with pytest.raises(ValueError, match="GDP does not apply"):
        noise("GDP", "LLG", 1.0, DELTA, J, K)


def test_the_baselines_see_the_problems_losses_and_clipped_gradients():
    task = Regression(3, n=40, d=5)
    z = torch.rand(2, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    records = task.problem.records
    for own, found, clipped in zip(
        -5.0 + 10.0 * z, task.losses(z), task.gradient(z, torch.full((2, 1), 3.0)), strict=True
    ):
        torch.testing.assert_close(found, problems.huber(own, records))
        each = 10.0 * problems.huber_gradient(own, records)
        assert 3.0 < each.norm(dim=1).max() <= 10.0 * math.sqrt(2.0)
        short = each / (each.norm(dim=1, keepdim=True) / 3.0).clamp_min(1.0)
        torch.testing.assert_close(clipped, short.mean(0))
    everybody = task.losses(z)
    sampled = task.losses_of([torch.tensor([3, 7]), torch.tensor([5])], z.unsqueeze(-1))
    expected = torch.stack([everybody[0, [3, 7]], everybody[1, [5, 5]]])
    expected[1, 1] = 0.0
    torch.testing.assert_close(sampled.squeeze(-1), expected)


def test_a_poisson_sample_takes_each_person_alone_with_its_share():
    generator = torch.Generator().manual_seed(0)
    taken = torch.zeros(4000, 30)
    for row in taken:
        row[poisson_sample(30, 0.1, generator)] = 1.0
    # standard errors of a share and of a correlation: .0047 and .0158
    assert (taken.mean(0) - 0.1).abs().max() < 0.024
    assert (taken.T.corrcoef() - torch.eye(30)).abs().max() < 0.08


@pytest.mark.parametrize("name", METHODS)
def test_every_baseline_descends_without_noise_and_not_with_much(name):
    task = Regression(0, n=300, d=4)
    (start,) = task.excess(task.starts)
    for mu, near in ((1e4, True), (1e-3, False)):
        z = METHODS[name][0](task, 40, mu, [Choice(True, 0.3, 1.0)] * 2, [0, 1])
        assert all((excess < start / 5) is near for excess in task.excess(z))


def test_the_largest_number_of_columns_that_the_guideline_allows():
    """The paper tested 10, 15 and 20 of these, and 15, 20 and 30 beyond them."""
    X = po_gp_ucb_problems.synthetic(5.0, 100, 1, 1, 0).X
    found = [largest_r(X, epsilon=math.exp(log), delta=1e-5) for log in (1.1, 1.3, 1.5)]
    assert found == [11, 15, 22]
