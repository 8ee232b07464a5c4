"""The default is replaced by chance as often as is said, and what is told of a gain is below it."""

import numpy as np
import pytest

from dpbo.dpsgd.gains import gain_test
from dpbo.run_counts import FixedRuns, PoissonRuns, TruncatedNegativeBinomial

DRAWS = 50_000
LAWS = [
    FixedRuns(1),
    FixedRuns(9),
    TruncatedNegativeBinomial.of_mean(10.0, shape=3.0),
    TruncatedNegativeBinomial.of_mean(4.0, shape=1.0),
    PoissonRuns(3.0),
]


def drawn(law, random):
    """Which of the candidates there are, `DRAWS x K`, their noises, and the default's."""
    start, masses = law.probabilities(law.quantile(1 - 1e-7) + 1)
    counts = start + random.choice(len(masses), size=DRAWS, p=masses / masses.sum())
    noises = random.standard_normal((DRAWS, counts.max()))
    return np.arange(counts.max()) < counts[:, None], noises, random.standard_normal(DRAWS)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("risk", [0.1, 0.01])
def test_models_that_are_alike_replace_the_default_with_the_stated_risk(law, risk):
    there, noises, own = drawn(law, np.random.default_rng(0))
    best = np.where(there, noises, -np.inf).max(1)
    replaced = (best - own > gain_test(law, risk=risk)).mean()
    assert abs(replaced - risk) < 5 * (risk * (1 - risk) / DRAWS) ** 0.5


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("most", [0.0, 4.0], ids=["none is better", "some are better"])
def test_what_is_told_is_below_the_gain_where_scores_follow_earlier_noise(law, most):
    """Each candidate is as good as can be where the last one's noise was high, else bad."""
    there, noises, own = drawn(law, np.random.default_rng(1))
    earlier = np.roll(noises, 1, axis=1)
    true = np.where(earlier > 0.0, most, most - 3.0)
    seen = np.where(there, true + noises, -np.inf)
    winners = seen.argmax(1)[:, None]
    told = np.take_along_axis(seen, winners, 1)[:, 0] - own - gain_test(law)
    wrong = (told > 0.0) & (np.take_along_axis(true, winners, 1)[:, 0] < told)
    assert wrong.mean() < 0.1 + 5 * (0.09 / DRAWS) ** 0.5
    if most:
        assert (told > 0.0).mean() > 0.4, "a gain of four deviations is often found"
    else:
        assert wrong.sum() == (told > 0.0).sum() > 0


def test_a_selection_that_mostly_has_no_run_still_compares_scores():
    assert gain_test(PoissonRuns(0.05)) == 0.0
    assert gain_test(FixedRuns(1)) == pytest.approx(2**0.5 * 1.2815515655, abs=1e-5)
