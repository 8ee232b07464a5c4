"""Every dominating pair is the law of its own loss: against integrals over outputs, from the
definitions alone.
"""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpbo.accounting.dominating_pairs import GaussianPair, LaplacePair, PoissonPair, ResponsePair
from tests.attacks.marks import attack

ADD = "add-or-remove-one"
REPLACE = "replace-one"


def sampled(sigma, rate, relation, reverse):
    """Densities of P and Q at x."""

    def mixed(x, shift):
        return (1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, shift, sigma)

    def other(x):
        return norm.pdf(x, 0, sigma) if relation == ADD else mixed(x, -1.0)

    return (other, lambda x: mixed(x, 1.0)) if reverse else (lambda x: mixed(x, 1.0), other)


TERMS = [
    (0.8, 0.2, ADD, False),
    (0.8, 0.2, ADD, True),
    (0.8, 0.2, REPLACE, False),
    (2.0, 0.6, ADD, False),
    (2.0, 0.6, ADD, True),
    (1.5, 0.9, REPLACE, False),
]
CONTINUOUS = [
    *(
        (GaussianPair(mu), lambda x, mu=mu: norm.pdf(x, mu), norm.pdf, 1.0)
        for mu in (0.3, 1.0, 2.5)
    ),
    *((PoissonPair(*terms), *sampled(*terms), terms[0]) for terms in TERMS),
]


@attack("A15")
def test_masses_tails_and_spread_are_those_of_the_densities():
    for pair, p, q, wide in CONTINUOUS:
        x = np.linspace(-14 * wide - 2, 14 * wide + 2, 200_001)
        step = x[1] - x[0]
        P = p(x) * step
        Q = q(x) * step
        loss = np.log(p(x)) - np.log(q(x))
        low, high = pair.span(1e-6)
        edges = np.linspace(low, high, 41)
        own_p, own_q = pair.masses(edges)
        cells = np.digitize(loss, edges)
        for own, true in ((own_p, P), (own_q, Q)):
            counted = np.bincount(cells, true, 42)[1:-1]
            assert np.abs(own - counted).max() < 3e-4 * counted.max() + step, (
                f"{pair}, but for grid points at the edges"
            )
        for level in edges[1:-1:7]:
            assert pair.beyond(float(level)) == pytest.approx(
                P[loss > level].sum(), rel=2e-3, abs=2 * P.max()
            ), pair
        assert (
            max(P[loss > high].sum(), P[loss < low].sum(), pair.beyond(high), 1 - pair.beyond(low))
            <= 1.001e-6
        ), pair
        assert pair.variance() == pytest.approx(P @ (loss - P @ loss) ** 2, rel=0.02), pair
        assert np.all(own_q <= own_p * np.exp(-edges[:-1]) * (1 + 1e-9) + 1e-18), (
            "Q-mass is P-mass times e^-loss"
        )
        assert np.all(own_q >= own_p * np.exp(-edges[1:]) * (1 - 1e-9) - 1e-18)


@attack("A15")
def test_a_response_is_right_with_e_to_epsilon_to_one():
    for epsilon in (0.01, 0.5, 3.0, 20.0):
        pair = ResponsePair(epsilon)
        right = math.exp(epsilon) / (1 + math.exp(epsilon))
        (up, often), (down, rare) = pair.atoms()
        assert (up, down) == pair.span(1e-9)[::-1] == (epsilon, -epsilon)
        assert [often, rare] == pytest.approx([right, math.exp(-epsilon) * right], rel=1e-9, abs=0)
        assert pair.beyond(epsilon) == 0.0
        assert not np.any(pair.masses(np.linspace(-epsilon, epsilon, 5)))
        assert pair.variance() == pytest.approx(4 * epsilon**2 * right * (1 - right), rel=1e-6)


@attack("A15")
def test_laplace_noise_on_numbers_one_apart():
    """Lap(0, 1/e) against Lap(1, 1/e): loss e where x < 0, -e where x > 1, e (1 - 2 x) between."""
    for epsilon in (0.05, 1.0, 4.0):
        pair = LaplacePair(epsilon)
        assert pair.atoms() == [(epsilon, 0.5), (-epsilon, pytest.approx(0.5 * math.exp(-epsilon)))]
        edges = np.linspace(-epsilon, epsilon, 33)
        p, q = pair.masses(edges)
        # x of each edge, from 0 to 1
        between = (1 - edges[::-1] / epsilon) / 2
        assert p == pytest.approx(
            np.diff(0.5 * (1 - np.exp(-epsilon * between)))[::-1], rel=1e-9, abs=1e-15
        )
        assert q == pytest.approx(
            np.diff(0.5 * np.exp(-epsilon * (1 - between)))[::-1], rel=1e-9, abs=1e-15
        )
        assert p.sum() + sum(mass for _, mass in pair.atoms()) == pytest.approx(1.0, rel=1e-12)
        wider = pair.masses(np.array([-2 * epsilon, *edges, 2 * epsilon]))
        assert wider[0][[0, -1]].tolist() == wider[1][[0, -1]].tolist() == [0.0, 0.0]
        assert pair.beyond(epsilon) == 0.0
        assert 0.3 < pair.variance() / min(epsilon, 1.0) ** 2 < 3


@attack("A15")
def test_far_tails_keep_their_digits():
    """Cells far to either side are measured from the nearer tail."""
    pair = GaussianPair(1.0)
    for edge in (-12.0, 12.0):
        p, q = pair.masses(np.array([edge, edge + 0.5]))
        far = abs(edge) - (0.5 if edge < 0 else 0.0)
        sign = 1 if edge > 0 else -1
        assert p[0] == pytest.approx(
            norm.sf(far - sign * 0.5) - norm.sf(far + 0.5 - sign * 0.5), rel=1e-9, abs=0
        )
        assert q[0] == pytest.approx(
            norm.sf(far + sign * 0.5) - norm.sf(far + 0.5 + sign * 0.5), rel=1e-9, abs=0
        )
