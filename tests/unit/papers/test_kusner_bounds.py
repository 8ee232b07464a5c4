"""The theorems: the printed numbers, the corrected ones as derived, and where the paper's own
constants fail.

Theorems 1 to 6 first, then their discretisation for infinite sets, then Theorem 7 against its
counter-example and 200 random problems.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.papers import kusner_printed as printed
from dpbo.acquisition.ucb import SrinivasCompact
from dpbo.papers.kusner import bounds
from dpbo.papers.kusner.regularised import fixed_grid, theorem_7, theorem_8
from tests.setups import DOUBLE, of

COUNT = 100
EVALUATIONS = 20
KAPPA = 0.9
NOISE = 0.01
DELTA = 0.1
SETTING = of(count=COUNT, evaluations=EVALUATIONS, noise=NOISE, delta=DELTA)


def test_printed_numbers():
    # kappa = 1 leaves the first term alone
    wide = of(count=1000, kappa=1.0, delta=0.01)
    assert printed.theorem_1(**wide, evaluations=50) == pytest.approx(12.83, abs=5e-3)
    assert bounds.theorem_1(**wide) == pytest.approx(10.04, abs=5e-3)
    losses = []
    for count in (100, 1000):
        sensitivity = printed.theorem_1(count=count, evaluations=20, kappa=0.9, delta=0.1)
        losses.append(bounds.theorem_2(count=count, sensitivity=sensitivity, epsilon=1.0, a=3.0))
    assert losses == pytest.approx([189.3, 267.9], abs=0.1)
    at_20 = printed.theorem_1(count=100, evaluations=20, kappa=0.9, delta=0.1)
    assert at_20 == pytest.approx(12.44, abs=5e-3)
    assert bounds.theorem_1(count=100, kappa=0.9, delta=0.1) == pytest.approx(9.79, abs=5e-3)


def test_the_noise_of_the_best_of_50_exceeds_the_papers_q_but_not_the_corrected():
    noise = torch.randn(20_000, 2, 50, dtype=DOUBLE)
    # the noise at the best of 50 observations of a flat function
    one = noise[:, 0].amax(-1)
    paper = printed.noise_gap(noise=1.0, delta=0.1) / 2.0
    share = float((one > paper).double().mean())
    assert share == pytest.approx(0.20, abs=0.01), "the printed counter-example; 0.033 was allowed"
    corrected = bounds.noise_gap(evaluations=50, noise=1.0, delta=0.1)
    assert float((noise.abs().amax((1, 2)) > corrected / 2.0).double().mean()) <= 0.1 / 4.0


def test_theorem_2_needs_no_prior():
    count = 50
    epsilon = 3.0
    sensitivity = 1.0
    a = 1.0
    mu = torch.randn(count, dtype=DOUBLE)
    law = torch.softmax(epsilon * mu / (2.0 * sensitivity), dim=0)
    allowed = bounds.theorem_2(count=count, sensitivity=sensitivity, epsilon=epsilon, a=a)
    assert float(law[mu < mu.max() - allowed].sum()) <= math.exp(-a)


def test_theorems_5_6_and_8():
    assert theorem_8(sensitivity=0.2, epsilon=0.5, a=3.0) == pytest.approx(1.2), "the Laplace tail"
    omega = bounds.noise_free_regret(evaluations=10, dimension=2, amplitude=1.5, tau=0.2)
    assert omega == pytest.approx(1.5 * math.exp(-10 * 0.2 / math.log(10) ** 0.5))
    shared = of(count=100, kappa=0.9, delta=0.05)
    paper = printed.theorem_5(**shared, regret=omega)
    assert paper == pytest.approx(omega + 2 * math.sqrt(0.1 * math.log(2 * 100 / 0.05)))
    assert bounds.theorem_5(**shared, regret=omega) == pytest.approx(
        omega + 2 * math.sqrt(0.1 * math.log(3 * 100 / 0.05))
    )
    assert bounds.theorem_5(**shared, regret=0.0) == pytest.approx(
        bounds.neighbour_gap(**shared, share=3.0)
    )
    released = bounds.theorem_6(regret=omega, sensitivity=paper, epsilon=0.5, a=3.0)
    assert released == pytest.approx(omega + 3.0 * paper / 0.5)


def test_theorem_3_as_printed_and_theorems_3_and_4_as_derived():
    def regret_and_gap(failures):
        """By unions of so many times the failures that the paper counts."""
        beta = 2 * math.log(failures * COUNT * EVALUATIONS**2 * math.pi**2 / (3 * DELTA))
        found = math.sqrt(8 / math.log(1 + 1 / NOISE) * beta * 5.0 / EVALUATIONS)
        return found, 2 * math.sqrt((1 - KAPPA) * math.log((2 + failures) * COUNT / DELTA))

    found, c = regret_and_gap(1)
    q = math.sqrt(NOISE) * math.sqrt(8 * math.log(3 / DELTA))
    paper = printed.theorem_3(**SETTING, kappa=KAPPA, gamma=5.0)
    assert paper == pytest.approx(found + c + q)
    found, c = regret_and_gap(2)
    q = 2 * math.sqrt(NOISE) * math.sqrt(2 * math.log(8 * EVALUATIONS / DELTA))
    sensitivity = bounds.theorem_3(**SETTING, kappa=KAPPA, gamma=5.0)
    assert sensitivity == pytest.approx(found + c + q)
    assert sensitivity > paper, "what the noise's maximum and the union of failures cost"
    one = math.sqrt(NOISE) * math.sqrt(2 * math.log(2 * EVALUATIONS / (0.75 * DELTA)))
    utility = bounds.theorem_4(
        evaluations=EVALUATIONS,
        noise=NOISE,
        delta=DELTA,
        regret=bounds.regret(**SETTING, gamma=5.0),
        sensitivity=sensitivity,
        epsilon=2.0,
        a=3.0,
    )
    assert utility == pytest.approx(one + found + 3.0 * sensitivity / 2.0)


# the slope of SE is N(0, 1/l^2); on [0, 1] its supremum obeys P(sup > s) <= a exp(-s^2/b^2) with
# b^2 = 2/l^2 and a from Rice's formula
LENGTH = 0.2
BOX = of(
    dimension=1, side=1.0, a=2.0 + math.sqrt(3.0) / (math.pi * LENGTH), b=math.sqrt(2.0) / LENGTH
)


def test_parts_of_the_discretisation():
    assert bounds.grid_choice_sensitivity(
        points=10, dimension=3, kappa=KAPPA, delta=DELTA
    ) == pytest.approx(
        2 * math.sqrt(2 * math.log(3000 / DELTA)) + 2 * math.sqrt(0.1 * math.log(3000 / DELTA))
    )
    gap = bounds.compact_gap(points=50, **BOX, kappa=KAPPA, delta=DELTA)
    slope = BOX["b"] * math.sqrt(math.log(BOX["a"] / (DELTA / 2)))
    assert gap == pytest.approx(
        math.sqrt(0.2) * (math.sqrt(2 * math.log(50 / (DELTA / 2))) + slope / 100)
    )
    assert bounds.grid_loss(points=50, **BOX, delta=DELTA) == pytest.approx(slope / 100)
    shared = {"points": 50, **BOX, "kappa": KAPPA}
    whole = bounds.compact_value_sensitivity(
        **shared, evaluations=30, noise=0.01, gamma=8.0, delta=DELTA
    )
    beta = SrinivasCompact(**BOX, delta=DELTA / 4)(30)
    found = bounds.mean_regret(evaluations=30, noise=0.01, gamma=8.0, beta=beta) + 2 / 30
    q = bounds.noise_gap(evaluations=30, noise=0.01, delta=DELTA)
    assert whole == pytest.approx(found + bounds.compact_gap(**shared, delta=DELTA / 4) + q)


def test_a_grid_loses_and_neighbours_differ_by_no_more_than_promised():
    """Draws of the prior on 2,001 points of [0, 1], and grids of middles among them."""
    x = torch.linspace(0, 1, 2001, dtype=DOUBLE)
    values, vectors = torch.linalg.eigh((-0.5 * (x[:, None] - x) ** 2 / LENGTH**2).exp())
    root = vectors * values.clamp_min(0.0).sqrt()
    f, other = (torch.randn(2, 400, 2001, dtype=DOUBLE) @ root.T).unbind()
    moved = (f - (KAPPA * f + math.sqrt(1 - KAPPA**2) * other)).abs()
    for points in (4, 20):
        middles = (2000 * (torch.arange(points) + 0.5) / points).long()
        lost = f.amax(1) - f[:, middles].amax(1)
        assert (
            float((lost > bounds.grid_loss(points=points, **BOX, delta=DELTA)).double().mean())
            <= DELTA / 2
        )
        gap = bounds.compact_gap(points=points, **BOX, kappa=KAPPA, delta=DELTA)
        assert float((moved.amax(1) > gap).double().mean()) <= DELTA
    assert float(lost.max()) > 0.0


# g = clip(1/2 - y w x / 2, 0, 1) for |x| <= 1
RAMP = of(lipschitz=0.5, bound=1.0)


def ramp(w, x, y):
    return np.clip(0.5 - 0.5 * y * w * x, 0.0, 1.0)


def trained(regularisation, x, y):
    """argmin of l/2 w^2 + mean hinge(1 - y w x), d = 1, exactly: it is a kink, or the stationary
    point of a piece between kinks.
    """
    pull = x * y
    kinks = np.sort(1.0 / pull)
    within = np.concatenate([[kinks[0] - 1.0], 0.5 * (kinks[1:] + kinks[:-1]), [kinks[-1] + 1.0]])
    stationary = (pull * (pull * within[:, None] < 1.0)).mean(1) / regularisation
    w = np.concatenate([kinks, stationary])
    objective = 0.5 * regularisation * w**2 + np.clip(1.0 - pull * w[:, None], 0.0, None).mean(1)
    return w[objective.argmin()]


def test_the_counter_example_and_a_path_in_l_that_attains_the_bound():
    """One record, hinge never met: w = 1/l, and a score of slope L between gives exactly L (1/least
    - 1/most).
    """
    w = trained(4.0, np.ones(1), np.ones(1))
    assert w == pytest.approx(0.25)
    # one of five labels is flipped
    changed = abs(float(ramp(w, 1.0, 1.0) - ramp(w, 1.0, -1.0))) / 5
    assert changed == pytest.approx(0.05)
    setting: dict[str, Any] = {"least": 4.0, "most": 4.0, "records": 5, **RAMP}
    assert printed.theorem_7(**setting) == pytest.approx(0.025)
    assert theorem_7(**setting) == pytest.approx(0.05)
    assert fixed_grid(least=4.0, records=5, **RAMP) == pytest.approx(0.05)
    assert trained(1.0, np.ones(1), np.ones(1)) == pytest.approx(1.0)
    assert theorem_7(
        least=1.0, most=4.0, lipschitz=1.0, bound=10.0, records=10**9
    ) == pytest.approx(0.75, abs=1e-6)


def largest_change(rng):
    """A random problem, and the largest |f_V(w_l) - f_V'(w_l')| over a grid of l, l' and all
    changes of one record.
    """
    m = int(rng.integers(2, 6))
    least = float(10 ** rng.uniform(-1, 1))
    most = least * float(rng.uniform(1, 4))
    n = int(rng.integers(1, 4))
    if rng.random() < 0.3:
        most = least
    x = rng.uniform(0.2, 1.0, n) * rng.choice([-1, 1], n)
    y = rng.choice([-1.0, 1.0], n)
    w = np.array([trained(float(value), x, y) for value in np.linspace(least, most, 30)])
    vx = rng.uniform(-1, 1, m)
    vy = rng.choice([-1.0, 1.0], m)
    # l x m
    scores = ramp(w[:, None], vx, vy)
    worst = 0.0
    for replaced in range(m):
        rest = scores.sum(1) - scores[:, replaced]
        for new_x in (-1.0, 0.0, 1.0):
            for old in (vx[replaced] * vy[replaced], -new_x, 1.0, -1.0):
                before = rest + ramp(w, old, 1.0)
                after = rest + ramp(w, new_x, 1.0)
                worst = max(worst, float(np.abs(before[:, None] - after[None, :]).max()) / m)
    return {"least": least, "most": most, "records": m, **RAMP}, worst


def test_200_random_problems():
    rng = np.random.default_rng(0)
    problems = [largest_change(rng) for _ in range(200)]
    assert all(worst <= theorem_7(**setting) + 1e-9 for setting, worst in problems)
    broken = sum(worst > printed.theorem_7(**setting) + 1e-9 for setting, worst in problems)
    assert broken >= 10, "the paper's bound is too small"
    fixed = [(setting, worst) for setting, worst in problems if setting["least"] == setting["most"]]
    assert len(fixed) > 30
    for setting, worst in fixed:
        assert (
            worst
            <= fixed_grid(**{name: setting[name] for name in ("least", "records", *RAMP)}) + 1e-9
        )


def test_never_above_the_trivial_bound_and_a_solvers_gap_is_charged():
    tiny: dict[str, Any] = {"least": 1e-3, "most": 10.0, "records": 100, **RAMP}
    assert theorem_7(**tiny) == 1.0
    assert printed.theorem_7(**tiny) == pytest.approx(0.5 * (1000 - 0.1) + 0.01)
    setting = of(least=1.0, most=1.5, records=100, lipschitz=0.5, bound=10.0)
    assert theorem_7(**setting, gap=1e-4) - theorem_7(**setting) == pytest.approx(
        2 * 0.5 * math.sqrt(2e-4)
    )
    grid = of(least=1.0, records=100, lipschitz=0.5, bound=10.0)
    assert fixed_grid(**grid, gap=1e-4) == pytest.approx(2 * 0.5 * (1 + math.sqrt(2e-4)) / 100)


def test_theorem_2_against_the_best_value_covers_and_is_below_the_workshops():
    """On posteriors of the prior: f exceeds mu_T anywhere by more than z in at most delta of the
    draws, whatever was evaluated.
    """
    points = torch.linspace(0, 1, 40, dtype=DOUBLE)
    K = (-0.5 * (points[:, None] - points).square() / 0.05**2).exp()
    root = torch.linalg.cholesky(K + 1e-9 * torch.eye(40, dtype=DOUBLE))
    f = torch.randn(4000, 40, dtype=DOUBLE) @ root.mT
    seen = torch.tensor([3, 20, 33])
    noise = 0.1 * torch.randn(4000, 3, dtype=DOUBLE)
    inner = K[seen][:, seen] + 0.01 * torch.eye(3, dtype=DOUBLE)
    mean = (f[:, seen] + noise) @ torch.linalg.solve(inner, K[seen])
    bound = bounds.theorem_2_against_best(
        count=40, delta=0.1, sensitivity=1e-9, epsilon=1.0, a=1e-9
    )
    failed = float(((f - mean).amax(1) > bound).double().mean())
    assert 0.0 < failed <= 0.1
    for T in (1, 30, 500):
        workshop = 2.0 * math.sqrt(printed.beta(40, 0.1)(T))
        assert bound < workshop


def test_the_noise_term_of_theorem_4_needs_a_union_over_the_evaluations():
    for delta, first in ((0.1, 11_896), (0.01, 15_686_172)):
        term = printed.theorem_4_noise(noise=1.0, delta=delta)
        once = 0.5 * math.erfc(term / math.sqrt(2.0))
        most = math.log1p(-delta) / math.log1p(-once)
        assert int(most) == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("records", [2, 100])
@pytest.mark.parametrize("ratio", [2.0, 1e4])
def test_corollary_4_holds_where_the_range_of_l_is_twofold(records, ratio):
    """The corrected sensitivity is then within the paper's noise scale, and below it is not."""

    def both(factor):
        terms = of(least=0.1, most=0.1 * factor, lipschitz=0.5, bound=100.0, records=records)
        return theorem_7(**terms), printed.theorem_7(**terms)

    corrected, paper = both(ratio)
    assert corrected <= paper * (1 + 1e-12)
    corrected, paper = both(1.0)
    assert corrected == pytest.approx(2 * paper)
