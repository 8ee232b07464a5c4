"""The box-constrained L-BFGS against functions with known minima and against SciPy's."""

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from dpbo.acquisition.lbfgs import minimise

INFINITE = np.full(6, np.inf)


def counted(function, slope, calls):
    def objective(x):
        calls.append(x.copy())
        return float(function(x)), slope(x)

    return objective


def test_a_quadratic_is_solved():
    weights, centre = np.arange(1.0, 7.0), np.linspace(-1.0, 1.0, 6)
    objective = counted(lambda x: weights @ (x - centre) ** 2, lambda x: 2.0 * weights * (x - centre), [])
    np.testing.assert_allclose(minimise(objective, np.zeros(6), -INFINITE, INFINITE, steps=100, close=0.0), centre, atol=1e-7)


def test_a_curved_valley_costs_no_more_than_scipy_twice():
    calls: list[np.ndarray] = []
    found = minimise(counted(rosen, rosen_der, calls), np.full(6, -1.0), -INFINITE, INFINITE, steps=500, close=0.0)
    theirs = minimize(rosen, np.full(6, -1.0), jac=rosen_der, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-8})
    assert rosen(found) < 1e-10 or rosen(found) <= theirs.fun + 1e-10
    assert len(calls) < 2 * theirs.nfev


@pytest.mark.parametrize(("lower", "upper"), [(-0.5, 0.5), (0.2, 0.9), (0.0, np.inf)])
def test_the_box_holds_at_every_call_and_at_the_minimum(lower, upper):
    weights, centre = np.arange(1.0, 7.0), np.linspace(-1.0, 1.0, 6)
    calls: list[np.ndarray] = []
    objective = counted(lambda x: weights @ (x - centre) ** 2, lambda x: 2.0 * weights * (x - centre), calls)
    found = minimise(objective, np.full(6, 0.3), np.full(6, lower), np.full(6, upper), steps=100, close=0.0)
    np.testing.assert_allclose(found, np.clip(centre, lower, upper), atol=1e-7)
    assert all(((x >= lower) & (x <= upper)).all() for x in calls)


def test_values_never_rise_and_steps_are_counted():
    ends = [rosen(minimise(counted(rosen, rosen_der, []), np.zeros(6), -INFINITE, INFINITE, steps=k, close=0.0)) for k in (1, 3, 10, 30)]
    assert ends == sorted(ends, reverse=True)


def test_a_minimum_is_left_alone():
    start = np.ones(6)
    assert np.array_equal(minimise(counted(rosen, rosen_der, []), start, -INFINITE, INFINITE, steps=10, close=0.0), start)
