"""Which of hidden runs wins. A file of few names: each selection notes every name of its caller's
file.
"""

import scipy.stats

from dpbo.dpsgd.hidden_runs import best_of
from dpbo.run_counts import FixedRuns, TruncatedNegativeBinomial
from dpbo.space import Space
from dpbo.testing import SeededEntropy

SPACE = Space(lr=scipy.stats.uniform(0.0, 1.0))


def winner(work, law, seed):
    """The runner alone, without a curator."""
    return best_of(work, SPACE, law, SeededEntropy(seed))


def test_winners_follow_the_law_of_the_best_of_many():
    law = TruncatedNegativeBinomial.of_mean(6.0)
    found = [winner(lambda p: (None, p["lr"]), law, seed).score for seed in range(150)]
    assert scipy.stats.kstest(found, law.generating).pvalue > 1e-6, (
        "of a uniform score: P(best <= x) = f(x)"
    )
    for other in (TruncatedNegativeBinomial.of_mean(2.0), TruncatedNegativeBinomial.of_mean(18.0)):
        assert scipy.stats.kstest(found, other.generating).pvalue < 1e-6, (
            "another number of runs would be seen"
        )


def test_chance_decides_between_equal_scores():
    firsts = 0
    for seed in range(60):
        order = list[float]()

        def noting(parameters, order=order):
            order.append(parameters["lr"])
            return None, 0.5

        best = winner(noting, FixedRuns(2), seed)
        firsts += SPACE.decode(best.x)["lr"] == order[0]
    assert 12 <= firsts <= 48
