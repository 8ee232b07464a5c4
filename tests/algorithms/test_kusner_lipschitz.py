"""Theorem 7 against the counter-example and 200 random problems: the corrected bound holds, the paper's does not."""

import math
from typing import Any

import numpy as np
import pytest

from dpbo.algorithms.kusner.lipschitz import fixed_grid, theorem_7, theorem_8
from dpbo.errors import InputError

RAMP: dict[str, Any] = {"lipschitz": 0.5, "bound": 1.0}  # g = clip(1/2 - y w x / 2, 0, 1) for |x| <= 1


def ramp(w, x, y):
    return np.clip(0.5 - 0.5 * y * w * x, 0.0, 1.0)


def trained(regularisation, x, y):
    """argmin of l/2 w^2 + mean hinge(1 - y w x), d = 1, exactly: it is a kink, or the stationary point of a piece between kinks."""
    pull = x * y
    kinks = np.sort(1.0 / pull)
    within = np.concatenate([[kinks[0] - 1.0], 0.5 * (kinks[1:] + kinks[:-1]), [kinks[-1] + 1.0]])
    stationary = (pull * (pull * within[:, None] < 1.0)).mean(1) / regularisation
    w = np.concatenate([kinks, stationary])
    objective = 0.5 * regularisation * w**2 + np.clip(1.0 - pull * w[:, None], 0.0, None).mean(1)
    return w[objective.argmin()]


def test_the_counter_example():
    w = trained(4.0, np.ones(1), np.ones(1))
    assert w == pytest.approx(0.25)
    changed = abs(float(ramp(w, 1.0, 1.0) - ramp(w, 1.0, -1.0))) / 5  # one of five labels is flipped
    assert changed == pytest.approx(0.05)
    setting: dict[str, Any] = {"least": 4.0, "most": 4.0, "records": 5, **RAMP}
    assert theorem_7(**setting, constants="paper") == pytest.approx(0.025)
    assert theorem_7(**setting) == pytest.approx(0.05)
    assert fixed_grid(least=4.0, records=5, **RAMP) == pytest.approx(0.05)


def largest_change(rng):
    """A random problem, and the largest |f_V(w_l) - f_V'(w_l')| over a grid of l, l' and all changes of one record."""
    m, least = int(rng.integers(2, 6)), float(10 ** rng.uniform(-1, 1))
    most, n = least * float(rng.uniform(1, 4)), int(rng.integers(1, 4))
    if rng.random() < 0.3:
        most = least
    x, y = rng.uniform(0.2, 1.0, n) * rng.choice([-1, 1], n), rng.choice([-1.0, 1.0], n)
    w = np.array([trained(float(value), x, y) for value in np.linspace(least, most, 30)])
    vx, vy = rng.uniform(-1, 1, m), rng.choice([-1.0, 1.0], m)
    scores = ramp(w[:, None], vx, vy)  # l x m
    worst = 0.0
    for replaced in range(m):
        rest = scores.sum(1) - scores[:, replaced]
        for new_x in (-1.0, 0.0, 1.0):
            for old in (vx[replaced] * vy[replaced], -new_x, 1.0, -1.0):
                before, after = rest + ramp(w, old, 1.0), rest + ramp(w, new_x, 1.0)
                worst = max(worst, float(np.abs(before[:, None] - after[None, :]).max()) / m)
    return {"least": least, "most": most, "records": m, **RAMP}, worst


def test_200_random_problems():
    rng = np.random.default_rng(0)
    problems = [largest_change(rng) for _ in range(200)]
    assert all(worst <= theorem_7(**setting) + 1e-9 for setting, worst in problems)
    broken = sum(worst > theorem_7(**setting, constants="paper") + 1e-9 for setting, worst in problems)
    assert broken >= 10, "the paper's bound is too small"
    fixed = [(setting, worst) for setting, worst in problems if setting["least"] == setting["most"]]
    assert len(fixed) > 30
    for setting, worst in fixed:
        assert worst <= fixed_grid(**{name: setting[name] for name in ("least", "records", *RAMP)}) + 1e-9


def test_the_path_in_l_is_tight():
    """One record, hinge never met: w = 1/l, and a score of slope L between gives exactly L (1/least - 1/most)."""
    weights = [trained(value, np.ones(1), np.ones(1)) for value in (1.0, 4.0)]
    assert weights == pytest.approx([1.0, 0.25])
    assert theorem_7(least=1.0, most=4.0, lipschitz=1.0, bound=10.0, records=10**9) == pytest.approx(0.75, abs=1e-6)


def test_where_most_is_twice_least_the_papers_scale_suffices():
    for most in (2.0, 3.0, 100.0):
        for records in (2, 10, 1000):
            setting: dict[str, Any] = {"least": 1.0, "most": most, "records": records, **RAMP}
            assert theorem_7(**setting) <= theorem_7(**setting, constants="paper") + 1e-15


def test_never_above_the_trivial_bound_and_a_solvers_gap_is_charged():
    tiny: dict[str, Any] = {"least": 1e-3, "most": 10.0, "records": 100, **RAMP}
    assert theorem_7(**tiny) == 1.0
    assert theorem_7(**tiny, constants="paper") == pytest.approx(0.5 * (1000 - 0.1) + 0.01)
    setting: dict[str, Any] = {"least": 1.0, "most": 1.5, "records": 100, "lipschitz": 0.5, "bound": 10.0}
    assert theorem_7(**setting, gap=1e-4) - theorem_7(**setting) == pytest.approx(2 * 0.5 * math.sqrt(2e-4))
    grid: dict[str, Any] = {"least": 1.0, "records": 100, "lipschitz": 0.5, "bound": 10.0}
    assert fixed_grid(**grid, gap=1e-4) == pytest.approx(2 * 0.5 * (1 + math.sqrt(2e-4)) / 100)


def test_theorem_8_is_the_laplace_tail():
    assert theorem_8(sensitivity=0.2, epsilon=0.5, a=3.0) == pytest.approx(1.2)


def test_what_is_refused():
    for wrong in ({"least": 3.0}, {"least": 0.0}, {"records": 1}, {"bound": 0.0}, {"lipschitz": -1.0}, {"gap": -1.0}, {"constants": "x"}):
        with pytest.raises(InputError):
            theorem_7(**{"least": 1.0, "most": 2.0, "records": 5, **RAMP, **wrong})
