"""Theorems 1 to 6: the printed numbers, their coverage under the prior, and where the paper's own constants fail."""

import math
from typing import Any

import pytest
import torch

from dpbo.acquisition import argmax_ucb, kusner_beta
from dpbo.algorithms.kusner import bounds
from dpbo.errors import InputError
from dpbo.models import FiniteGP, information_gain_bound, squared_exponential

DOUBLE = torch.float64
COUNT, OBSERVATIONS, KAPPA, NOISE, DELTA = 100, 20, 0.9, 0.01, 0.1
SETTING: dict[str, Any] = {"count": COUNT, "observations": OBSERVATIONS, "noise": NOISE, "delta": DELTA}
PAIRS = 300


def test_printed_numbers():
    wide: dict[str, Any] = {"count": 1000, "observations": 50, "kappa": 1.0, "delta": 0.01}  # kappa = 1 leaves the first term alone
    assert bounds.theorem_1(**wide, constants="paper") == pytest.approx(12.83, abs=5e-3)
    assert bounds.theorem_1(**wide) == pytest.approx(10.04, abs=5e-3)
    losses = []
    for count in (100, 1000):
        sensitivity = bounds.theorem_1(count=count, observations=20, kappa=0.9, delta=0.1, constants="paper")
        losses.append(bounds.theorem_2(count=count, sensitivity=sensitivity, epsilon=1.0, a=3.0))
    assert losses == pytest.approx([189.3, 267.9], abs=0.1)
    assert bounds.theorem_1(count=100, observations=20, kappa=0.9, delta=0.1, constants="paper") == pytest.approx(12.44, abs=5e-3)
    assert bounds.theorem_1(count=100, observations=20, kappa=0.9, delta=0.1) == pytest.approx(9.79, abs=5e-3)


def test_c_and_q_as_printed():
    c = bounds.neighbour_gap(count=1000, kappa=0.9, delta=0.01, share=3.0)
    assert c == pytest.approx(math.sqrt(2 * 0.1) * math.sqrt(2 * math.log(3 * 1000 / 0.01)))
    assert c == pytest.approx(2 * math.sqrt(0.1 * math.log(3 * 1000 / 0.01)))
    paper = bounds.noise_gap(observations=50, noise=0.04, delta=0.1, constants="paper")
    assert paper == pytest.approx(0.2 * math.sqrt(8 * math.log(3 / 0.1)))
    assert bounds.noise_gap(observations=50, noise=0.04, delta=0.1) == pytest.approx(2 * 0.2 * math.sqrt(2 * math.log(8 * 50 / 0.1)))


def test_the_noise_of_the_best_of_50_exceeds_the_papers_q_but_not_the_corrected():
    noise = torch.randn(20_000, 2, 50, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    one = noise[:, 0].amax(-1)  # the noise at the best of 50 observations of a flat function
    paper = bounds.noise_gap(observations=50, noise=1.0, delta=0.1, constants="paper") / 2.0
    share = float((one > paper).double().mean())
    assert share == pytest.approx(0.20, abs=0.01), "the printed counter-example; 0.033 was allowed"
    corrected = bounds.noise_gap(observations=50, noise=1.0, delta=0.1)
    assert float((noise.abs().amax((1, 2)) > corrected / 2.0).double().mean()) <= 0.1 / 4.0


@pytest.fixture(scope="module")
def searches():
    """GP-UCB on pairs of functions of neighbouring data sets, as Assumption 1 draws them: two models and the functions."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(COUNT, 2, generator=generator, dtype=DOUBLE)
    kernel = squared_exponential(0.3)
    L = torch.linalg.cholesky(kernel(X).to_dense() + 1e-10 * torch.eye(COUNT, dtype=DOUBLE))
    f, g = (torch.randn(PAIRS, COUNT, generator=generator, dtype=DOUBLE) @ L.mT for _ in range(2))
    F = torch.stack([f, KAPPA * f + math.sqrt(1 - KAPPA**2) * g], dim=1)  # correlation kappa, variance 1
    models = {}
    for constants in ("paper", "corrected"):
        model, best = FiniteGP(X, kernel, NOISE, batch_shape=(PAIRS, 2)), torch.full((PAIRS, 2), -math.inf, dtype=DOUBLE)
        schedule = kusner_beta(COUNT, DELTA, constants=constants)
        for _ in range(OBSERVATIONS):
            index = argmax_ucb(model, schedule)
            noise = math.sqrt(NOISE) * torch.randn(PAIRS, 2, generator=generator, dtype=DOUBLE)
            value = F.gather(-1, index.unsqueeze(-1)).squeeze(-1) + noise
            model.observe(index, value)
            best = best.maximum(value)
        models[constants] = (model.mean.clone(), best)
    return F, models, information_gain_bound(X, kernel, NOISE, OBSERVATIONS)


@pytest.mark.parametrize("constants", ["paper", "corrected"])
def test_theorem_1_covers(searches, constants):
    mean = searches[1][constants][0]
    moved = (mean[:, 0] - mean[:, 1]).abs().amax(-1)
    bound = bounds.theorem_1(count=COUNT, observations=OBSERVATIONS, kappa=KAPPA, delta=DELTA, constants=constants)
    assert float((moved <= bound).double().mean()) >= 1.0 - DELTA
    assert 0.3 < float(moved.median()) < 1.5, "the bound is valid and wide: about 0.7 is usual"


def test_theorems_3_and_4_cover_corrected(searches):
    F, models, gamma = searches
    best = models["corrected"][1]
    sensitivity = bounds.theorem_3(**SETTING, kappa=KAPPA, gamma=gamma)
    assert float(((best[:, 0] - best[:, 1]).abs() <= sensitivity).double().mean()) >= 1.0 - DELTA
    laplace = torch.distributions.Laplace(torch.zeros((), dtype=DOUBLE), sensitivity / 2.0)
    torch.manual_seed(0)
    error = (best[:, 0] + laplace.sample((PAIRS,)) - F[:, 0].amax(-1)).abs()
    utility = bounds.theorem_4(**SETTING, kappa=KAPPA, gamma=gamma, epsilon=2.0, a=2.0)
    assert float((error <= utility).double().mean()) >= 1.0 - DELTA - math.exp(-2.0)


def test_the_regret_bound_covers_and_stays_finite_as_noise_vanishes(searches):
    F, models, gamma = searches
    gap = F[:, 0].amax(-1) - (models["corrected"][1][:, 0] - 4.0 * math.sqrt(NOISE))
    assert float((gap <= bounds.regret(**SETTING, gamma=gamma) + 8.0 * math.sqrt(NOISE)).double().mean()) >= 1.0 - DELTA
    X = torch.rand(COUNT, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    small = information_gain_bound(X, squared_exponential(0.3), 1e-8, OBSERVATIONS)
    assert bounds.mean_regret(observations=OBSERVATIONS, noise=1e-8, gamma=small, beta=1.0) <= 2.0 + 1e-6


def test_theorem_2_needs_no_prior():
    generator, count, epsilon, sensitivity, a = torch.Generator().manual_seed(0), 50, 3.0, 1.0, 1.0
    mu = torch.randn(count, generator=generator, dtype=DOUBLE)
    law = torch.softmax(epsilon * mu / (2.0 * sensitivity), dim=0)
    allowed = bounds.theorem_2(count=count, sensitivity=sensitivity, epsilon=epsilon, a=a)
    assert float(law[mu < mu.max() - allowed].sum()) <= math.exp(-a)


def test_theorems_5_and_6():
    omega = bounds.noise_free_regret(observations=10, dimension=2, amplitude=1.5, tau=0.2)
    assert omega == pytest.approx(1.5 * math.exp(-10 * 0.2 / math.log(10) ** 0.5))
    shared: dict[str, Any] = {"count": 100, "kappa": 0.9, "delta": 0.05}
    paper = bounds.theorem_5(**shared, regret=omega, constants="paper")
    assert paper == pytest.approx(omega + 2 * math.sqrt(0.1 * math.log(2 * 100 / 0.05)))
    assert bounds.theorem_5(**shared, regret=omega) == pytest.approx(omega + 2 * math.sqrt(0.1 * math.log(3 * 100 / 0.05)))
    assert bounds.theorem_5(**shared, regret=0.0) == pytest.approx(bounds.neighbour_gap(**shared, share=3.0))
    released = bounds.theorem_6(**shared, regret=omega, epsilon=0.5, a=3.0, constants="paper")
    assert released == pytest.approx(omega + 3.0 * paper / 0.5)


def test_theorem_4_as_printed():
    q, gamma = bounds.noise_gap(observations=OBSERVATIONS, noise=NOISE, delta=DELTA, constants="paper"), 5.0
    found = math.sqrt(8 / math.log(1 + 1 / NOISE) * kusner_beta(COUNT, DELTA, constants="paper")(OBSERVATIONS) * gamma / OBSERVATIONS)
    c = bounds.neighbour_gap(count=COUNT, kappa=KAPPA, delta=DELTA, share=3.0)
    utility = bounds.theorem_4(**SETTING, kappa=KAPPA, gamma=gamma, epsilon=2.0, a=3.0, constants="paper")
    assert utility == pytest.approx(math.sqrt(NOISE * 8 * math.log(1 / DELTA)) + found + 3.0 * (found + c + q) / 2.0)
    corrected = bounds.theorem_4(**SETTING, kappa=KAPPA, gamma=gamma, epsilon=2.0, a=3.0)
    assert corrected > utility, "what the noise's maximum and the union of failures cost"


def test_corrected_theorems_3_and_4_as_derived():
    beta = 2 * math.log(2 * COUNT * OBSERVATIONS**2 * math.pi**2 / (3 * DELTA))
    found = math.sqrt(8 / math.log(1 + 1 / NOISE) * beta * 5.0 / OBSERVATIONS)
    c = 2 * math.sqrt((1 - KAPPA) * math.log(4 * COUNT / DELTA))
    q = 2 * math.sqrt(NOISE) * math.sqrt(2 * math.log(8 * OBSERVATIONS / DELTA))
    assert bounds.theorem_3(**SETTING, kappa=KAPPA, gamma=5.0) == pytest.approx(found + c + q)
    one = math.sqrt(NOISE) * math.sqrt(2 * math.log(2 * OBSERVATIONS / (0.75 * DELTA)))
    utility = bounds.theorem_4(**SETTING, kappa=KAPPA, gamma=5.0, epsilon=2.0, a=3.0)
    assert utility == pytest.approx(one + found + 3.0 * (found + c + q) / 2.0)


def test_what_is_refused():
    for make in (
        lambda: bounds.theorem_1(count=0, observations=5, kappa=0.5, delta=0.1),
        lambda: bounds.theorem_1(count=10, observations=0, kappa=0.5, delta=0.1),
        lambda: bounds.theorem_1(count=10, observations=5, kappa=1.5, delta=0.1),
        lambda: bounds.theorem_1(count=10, observations=5, kappa=0.5, delta=0.0),
        lambda: bounds.theorem_1(count=10, observations=5, kappa=0.5, delta=0.1, constants="other"),
        lambda: bounds.noise_gap(observations=5, noise=0.0, delta=0.1),
        lambda: bounds.noise_free_regret(observations=1, dimension=2, amplitude=1.0, tau=0.1),
        lambda: bounds.noise_free_regret(observations=3, dimension=2, amplitude=-1.0, tau=0.1),
        lambda: bounds.theorem_5(count=10, kappa=0.5, delta=0.1, regret=-1.0),
    ):
        with pytest.raises(InputError):
            make()
