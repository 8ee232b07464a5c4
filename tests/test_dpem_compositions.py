"""The compositions of the DP-EM benchmark against closed forms, the paper's table and each other."""

import math

import numpy as np
import pytest

from benchmarks.dpem_compositions import COMPOSITIONS, EACH, joint, noise
from benchmarks.dpem_paper import paper_em
from dpbo.accounting.gdp import epsilon_at

DELTA, J, K = 1e-4, 10, 3


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


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_real_orders_make_the_moments_accountant_zcdp_and_the_exact_curve_beats_both(epsilon):
    exact, real, integer, zcdp = (noise(c, "GGG", epsilon, DELTA, J, K).multiplier for c in ("GDP", "MA real", "MA", "zCDP"))
    assert real == pytest.approx(zcdp, rel=1e-4)
    assert integer >= real * (1 - 1e-4)
    assert exact < real
    assert epsilon_at(math.sqrt(J * (2 * K + 1)) / exact, DELTA) == pytest.approx(epsilon)
    assert joint(epsilon, DELTA, J) * math.sqrt(2 * K + 1) == pytest.approx(exact), "2K + 1 separate releases cost their root"


def test_less_budget_is_more_noise_under_every_composition():
    for law in ("LLG", "GGG"):
        for name in COMPOSITIONS[: 5 if law == "LLG" else 6]:
            small, large = (noise(name, law, epsilon, DELTA, J, K) for epsilon in (0.5, 2.0))
            assert small.multiplier > large.multiplier
            assert small.epsilon < large.epsilon or law == "GGG"


def test_without_noise_the_papers_algorithm_climbs():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0.4, 0.05, (200, 2)), rng.normal(-0.4, 0.1, (200, 2))])
    found = paper_em(X, 2, 30, None, "sound", 3)
    assert sorted(found.weights.tolist()) == pytest.approx([0.5, 0.5], abs=0.02)
    noisy = paper_em(X, 2, 5, noise("zCDP", "LLG", 100.0, DELTA, 5, 2), "paper", 3)
    assert bool(noisy.means.isfinite().all())
