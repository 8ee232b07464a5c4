"""What the benchmarks rest on: problems and compositions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from benchmarks.papers import dpgibo_problems as problems
from benchmarks.papers.dpem_paper import EACH, noise
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
