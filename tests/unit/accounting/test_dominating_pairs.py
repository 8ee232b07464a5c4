"""Every dominating pair is the law of its own loss: against integrals over outputs, from the
definitions alone.
"""

import numpy as np
import pytest
from scipy.stats import norm

from dpbo.accounting.dominating_pairs import GaussianPair, PoissonPair
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
