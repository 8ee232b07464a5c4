"""What a guarantee says of whoever tests for membership."""

import math

import pytest
from scipy.stats import norm

from dpbo.accounting.membership import true_positive_rate
from dpbo.statement import Guarantee


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3, 0.9])
def test_of_mu_it_is_the_normal_curve(mu, rate):
    assert true_positive_rate(Guarantee(mu, None, None), rate) == pytest.approx(norm.cdf(norm.ppf(rate) + mu), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.2, 0.1), (3.0, 0.0), (1000.0, 1e-6), (1.0, 0.3)])
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.3, 0.9])
def test_of_epsilon_and_delta_it_is_where_both_lines_allow(epsilon, delta, rate):
    """t <= e^epsilon f + delta, and 1 - f <= e^epsilon (1 - t) + delta."""
    found = true_positive_rate(Guarantee(None, epsilon, delta), rate)
    growth = math.exp(min(epsilon, 700))
    assert found <= 1.0
    assert found <= (growth * rate + delta) * (1 + 1e-12)
    assert (1 - rate - delta) / growth <= 1 - found + 1e-12
    beyond = found * (1 + 1e-6) + 1e-6
    assert beyond > 1 or beyond > growth * rate + delta or (1 - rate - delta) / growth > 1 - beyond, "and no more"


def test_without_a_bound_everybody_may_be_found():
    assert true_positive_rate(Guarantee(None, None, None), 0.1) == 1.0
    assert true_positive_rate(Guarantee(None, 1.0, None), 0.1) == 1.0
    assert true_positive_rate(Guarantee(None, None, 1e-5), 0.1) == 1.0
