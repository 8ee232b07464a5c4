"""What the benchmarks rest on: problems, peers and compositions; and the outcomes of DP-GIBO's experiments at small size."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from benchmarks import dpgibo_problems as problems
from benchmarks import peers
from benchmarks.dpem_paper import EACH, joint, noise, paper_em
from benchmarks.dpgibo_experiments import HUBER_STEP, SMOKE, huber, location
from benchmarks.harness import difference
from dpbo.accounting.gdp import epsilon_at

DELTA, J, K = 1e-4, 10, 3  # of the DP-EM paper
SMALL = dataclasses.replace(SMOKE, steps_41=90, steps_42=60, peers_of_descents=False)


@pytest.mark.deep
def test_the_normal_location_is_found_and_better_with_less_privacy():
    """4.1 in the median of five seeds; the bias of the gradients is lost in the noise."""
    runs = [location(seed, SMALL) for seed in range(100, 105)]
    median = {name: statistics.median(run.losses[name] for run in runs) for name in runs[0].losses}
    assert median["GIBO paper, mu 2"] < 0.1 * median["start"]
    assert median["GIBO recommended, mu 2"] < 0.1 * median["start"]
    assert median["GIBO paper, mu 2"] < median["GIBO paper, mu 0.5"]
    assert median["GIBO recommended, mu 2"] < median["GIBO recommended, mu 0.5"]
    assert all(run.extra["bias"] < 0.1 * run.extra["noise, mu 0.5"] for run in runs)


@pytest.mark.deep
def test_without_gradients_it_is_hardly_worse_than_noisy_gradient_descent():
    """4.2 at mu = 1: within a factor of the excess of DP-GD, which is told the gradients, and far below the start."""
    runs = [huber(seed, SMALL) for seed in range(100, 104)]
    mean = {name: statistics.fmean(run.losses[name] for run in runs) for name in runs[0].losses}
    assert mean["GIBO paper, mu 1"] < 2 * mean["DP-GD, mu 1"]
    assert max(mean["GIBO paper, mu 1"], mean["GIBO recommended, mu 1"]) < 0.2 * mean["start"]


def test_noisy_gradient_descent_with_hardly_any_noise_ends_at_the_optimum():
    problem = problems.huber_regression(100)
    path = peers.gradient_descent(problem, 100.0, 0, 80, clip=2.0, step=HUBER_STEP)
    assert problem.value(path[-1]) < 1e-3
    assert path.shape == (81, 4)


def test_a_private_turbo_stays_within_its_plan():
    problem = problems.length_scales(100, n=300, d=3, train=40)
    found, curator = peers.privately(problem, peers.turbo, 14, 4, 0, 1.0)
    assert curator.ledger.head().used["objective"] == 14
    assert str(curator.statement().guarantee).endswith("1.000-GDP")
    assert bool(((problem.bounds[0] <= found) & (found <= problem.bounds[1])).all())


def test_an_open_search_beats_its_own_beginning():
    problem = problems.normal_location(100, d=3)
    for search in (peers.turbo, peers.ucb, peers.log_nei):
        found = peers.openly(problem, search, 25, 5, 0)
        assert problem.value(found) < 0.2 * problem.value(problem.start), search.__name__
    assert torch.equal(found, peers.openly(problem, peers.log_nei, 25, 5, 0)), "a seed repeats a search"


def test_the_losses_are_what_they_say():
    """The length-scale loss against scikit-learn, and the Huber gradient against autograd."""
    problem, lengths = problems.length_scales(1, n=20, d=3, train=15), torch.tensor([0.7, 1.5, 3.0], dtype=torch.float64)
    train, y = problem.loss.keywords["train"].numpy(), problem.loss.keywords["targets"].numpy()  # type: ignore[attr-defined]
    peer = GaussianProcessRegressor(RBF(lengths.numpy()), alpha=0.01, optimizer=None).fit(train, y)
    expected = np.minimum((problem.records[:, -1].numpy() - peer.predict(problem.records[:, :-1].numpy())) ** 2, 1.0)
    np.testing.assert_allclose(problem.loss(lengths, problem.records).numpy(), expected, atol=1e-10)
    records = problems.huber_regression(2).records
    theta = torch.full((4,), 0.3, dtype=torch.float64, requires_grad=True)
    problems.huber(theta, records).sum().backward()
    assert theta.grad is not None
    torch.testing.assert_close(problems.huber_gradient(theta.detach(), records).sum(0), theta.grad)


def test_noise_is_one_number_a_point_and_never_in_the_truth():
    seen, truth = problems.noisy(problems.length_scales(0, n=50, d=2, train=10), 0.01, 7)
    x = truth.start
    gap = seen.loss(x, seen.records) - truth.loss(x, truth.records)
    assert gap.std() < 1e-12
    assert 0 < gap.abs().max() < 0.06
    assert torch.equal(seen.loss(x, seen.records), seen.loss(x, seen.records))
    assert not torch.isclose(gap[0], (seen.loss(x + 0.1, seen.records) - truth.loss(x + 0.1, truth.records))[0])


def test_paired_intervals_are_those_of_the_t_test():
    a, b = [1.0, 2.5, 3.0, 4.2], [1.5, 2.0, 4.0, 5.0]
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    found = difference(a, b)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.wins == 3
    assert not found.better
    assert not found.worse
    assert difference([1.0, 2.0, 3.0], [2.0, 3.1, 4.2]).better


def test_the_papers_settings_give_the_numbers_of_its_formulas():
    L = math.log(1 / DELTA)
    rho = (math.sqrt(1 + L) - math.sqrt(L)) ** 2
    assert noise("zCDP", "GGG", 1.0, DELTA, J, K).multiplier == pytest.approx(math.sqrt(J * (2 * K + 1) / (2 * rho)))
    assert noise("zCDP", "GGG", 1.0, DELTA, J, K).multiplier == pytest.approx(36.9, abs=0.05)
    each = 1.0 / (J * (2 * K + 1))
    assert noise("linear", "LLG", 1.0, DELTA, J, K).epsilon == pytest.approx(each)
    assert noise("linear", "LLG", 1.0, DELTA, J, K).multiplier == pytest.approx(math.sqrt(2 * math.log(1.25 * J * K / DELTA)) / each)
    advanced = noise("advanced", "GGG", 1.0, DELTA, J, K).multiplier
    e, M, rest = math.sqrt(2 * math.log(1.25 / EACH)) / advanced, J * (2 * K + 1), DELTA - J * (2 * K + 1) * EACH
    assert M * e * math.expm1(e) + math.sqrt(2 * M * math.log(1 / rest)) * e == pytest.approx(1.0)
    with pytest.raises(ValueError, match="GDP does not apply"):
        noise("GDP", "LLG", 1.0, DELTA, J, K)


def test_real_orders_make_the_moments_accountant_zcdp_and_the_exact_curve_beats_both():
    for epsilon in (0.1, 1.0, 3.0):
        exact, real, integer, zcdp = (noise(c, "GGG", epsilon, DELTA, J, K).multiplier for c in ("GDP", "MA real", "MA", "zCDP"))
        assert real == pytest.approx(zcdp, rel=1e-4)
        assert integer >= real * (1 - 1e-4)
        assert exact < real
        assert epsilon_at(math.sqrt(J * (2 * K + 1)) / exact, DELTA) == pytest.approx(epsilon)
        assert joint(epsilon, DELTA, J) * math.sqrt(2 * K + 1) == pytest.approx(exact), "2K + 1 separate releases cost their root"


def test_without_noise_the_papers_algorithm_climbs():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0.4, 0.05, (200, 2)), rng.normal(-0.4, 0.1, (200, 2))])
    found = paper_em(X, 2, 30, None, "sound", 3)
    assert sorted(found.weights.tolist()) == pytest.approx([0.5, 0.5], abs=0.02)
    noisy = paper_em(X, 2, 5, noise("zCDP", "LLG", 100.0, DELTA, 5, 2), "paper", 3)
    assert bool(noisy.means.isfinite().all())
