"""Every sampler's law beside OpenDP's, a library written and proven by others."""

import dataclasses
from typing import Any

import numpy as np
import opendp.prelude as dp
import pytest
from scipy.stats import chi2_contingency, ks_2samp

from dpbo.accounting import event_costs
from dpbo.mechanisms import (
    ExponentialMechanism,
    GaussianMechanism,
    L2LaplaceMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from dpbo.privacy import Sensitivity
from dpbo.testing import SeededEntropy

DRAWS, CHOICES, SCALE = 20_000, 1600, 400.0
AGREE = 1e-8  # OpenDP's draws cannot be seeded: equal laws are told apart once in 10^8 runs


@pytest.fixture(autouse=True)
def _contrib():
    dp.enable_features("contrib")


def ours(mechanism, draws=DRAWS):
    """Noise of scale 1 from so many independent coordinates."""
    law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [2.0**-30])
    many = type(law)(law.name, law.scale * draws, law.std * draws, law.grid * draws)
    return (
        mechanism._sample(np.zeros(draws, np.int64), [2.0**-30] * draws, many, SeededEntropy(1))
        * law.grid[0]
        / law.scale[0]
    )


def theirs(make, distance):
    """Integer noise of scale 400, smoothed over its unit and divided."""
    domain = dp.vector_domain(dp.atom_domain(T=int))
    noise = np.array(make(domain, distance, scale=SCALE)([0] * DRAWS), dtype=float)
    return (noise + np.random.default_rng(0).uniform(-0.5, 0.5, DRAWS)) / SCALE


def agree(a, b):
    assert ks_2samp(a, b).pvalue > AGREE
    assert ks_2samp(1.3 * a, b).pvalue <= AGREE, "the comparison has no power"


def test_gaussian_and_laplace():
    agree(ours(GaussianMechanism(2.0)), theirs(dp.m.make_gaussian, dp.l2_distance(T=float)))
    agree(ours(LaplaceMechanism(2.0)), theirs(dp.m.make_laplace, dp.l1_distance(T=int)))


def test_l2_laplace_in_one_dimension_and_its_direction():
    def rows(d):
        """A table of independent rows of d numbers."""
        law = L2LaplaceMechanism(2.0).distribution(
            Sensitivity(float(d), 1.0, 1.0, (1.0,) * d), [2.0**-30] * d
        )
        zeros = np.zeros(8000 * d, np.int64)
        drawn = L2LaplaceMechanism(2.0)._sample(
            zeros, [2.0**-30] * d, dataclasses.replace(law, block=d), SeededEntropy(2)
        )
        return drawn.reshape(8000, d) * law.grid[0] / law.scale[0]

    agree(rows(1)[:, 0], theirs(dp.m.make_laplace, dp.l1_distance(T=int)))
    normal = theirs(dp.m.make_gaussian, dp.l2_distance(T=float))[: 3 * 6000].reshape(-1, 3)
    directions = [x[:, 0] / np.linalg.norm(x, axis=1) for x in (rows(3), normal)]
    assert ks_2samp(*directions).pvalue > AGREE


@pytest.mark.parametrize(
    ("kind", "measure"),
    [
        (PermuteAndFlipMechanism, dp.max_divergence),
        (ExponentialMechanism, dp.zero_concentrated_divergence),
    ],
)
def test_choices(kind, measure):
    """Scores 0, -1, -3, -6 of sensitivity 1 at epsilon 1: the same frequencies, and the same
    cost.
    """
    choose = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int), measure(), scale=2.0
    )
    scores = [0, -1, -3, -6]
    reference = np.bincount([choose(scores) for _ in range(CHOICES)], minlength=4)
    mechanism, quantum = kind.of(1.0), 2.0**-20
    law = mechanism.distribution(Sensitivity(4.0, 2.0, 1.0), [quantum] * 4)
    entropy, utilities = SeededEntropy(3), np.array(scores, dtype=np.int64) << 20
    drawn = np.bincount(
        [int(mechanism._sample(utilities, [quantum], law, entropy)[0]) for _ in range(CHOICES)],
        minlength=4,
    )
    assert chi2_contingency([reference, drawn]).pvalue > AGREE
    levels = np.bincount(-np.array(scores) * law.moves // 2)  # half as far apart
    flat = [mechanism.choose(levels, law.rate, entropy) for _ in range(4 * CHOICES)]
    assert chi2_contingency([reference, np.unique(flat, return_counts=True)[1]]).pvalue <= AGREE, (
        "the comparison has no power"
    )
    cost: Any = event_costs.pure if kind is PermuteAndFlipMechanism else event_costs.rho
    assert float(cost(mechanism.event())) == pytest.approx(choose.map(1), rel=1e-9)
