"""Small base mechanisms whose selections are computed outcome by outcome: what bounds are checked
against.
"""

import numpy as np

from dpbo.accounting.selection_bounds import Profile, RunProfiles
from dpbo.run_counts import FixedRuns, PoissonRuns, TruncatedNegativeBinomial

LAWS = [
    TruncatedNegativeBinomial.of_mean(8.0),
    TruncatedNegativeBinomial.of_mean(20.0, shape=0.0),
    TruncatedNegativeBinomial.of_mean(5.0, shape=0.5),
    TruncatedNegativeBinomial.of_mean(30.0, shape=2.0),
    TruncatedNegativeBinomial.of_mean(3.0, shape=-0.5),
    PoissonRuns(6.0),
    PoissonRuns(0.4),
    FixedRuns(4),
    TruncatedNegativeBinomial(1.0, 0.6),
    TruncatedNegativeBinomial(3.0, 0.9),
]
EPSILONS = np.linspace(0.0, 6.0, 13)
ORDERS = np.array([1.3, 2.0, 5.0, 20.0])


def pairs(count, seed, *, leaks=True):
    """Laws of one run on neighbours, over 2 to 5 outcomes in the order of their scores."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = int(rng.integers(2, 6))
        p = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 3.0])))
        if i % 2:
            q = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 3.0])))
        else:
            q = p * np.exp(rng.choice([-1.0, 1.0], size=n) * rng.choice([0.05, 0.3, 1.0]))
        if leaks and i % 3 == 2:
            (p if i % 2 else q)[rng.integers(n)] = 0.0
        yield p / p.sum(), q / q.sum()


def profile_of_laws(p, q):
    """The profile of two laws on the same few outcomes; losses are rounded up to a grid, so that no
    two are nearly equal.
    """
    both = (p > 0) & (q > 0)
    grain = 2.0**-30
    steps, place = np.unique(np.ceil(np.log(p[both] / q[both]) / grain), return_inverse=True)
    return Profile(
        steps * grain,
        np.bincount(place, p[both], len(steps)).astype(np.float64),
        float(p[q == 0].sum()),
    )


def profiles_of_laws(p, q):
    """The profiles of one run with these laws, in both directions."""
    return RunProfiles(profile_of_laws(p, q), profile_of_laws(q, p))


def best_of(law, p):
    """The winner's law, "nothing" last."""
    levels = np.concatenate([[0.0], np.minimum(np.cumsum(p), 1.0)])
    levels[-1] = 1.0
    return np.append(np.diff(law.generating(levels)), law.none)


def delta(a, b, epsilons=EPSILONS):
    return np.maximum(a - np.exp(epsilons)[:, None] * b, 0.0).sum(1)


def renyi(a, b, orders=ORDERS):
    seen = (a > 0) | (b > 0)
    with np.errstate(divide="ignore"):
        logs = orders[:, None] * np.log(a[seen]) + (1 - orders[:, None]) * np.log(b[seen])
    return np.logaddexp.reduce(logs, axis=1) / (orders - 1)


def curve_of(p, q):
    """Renyi bounds of one run, the larger of both directions."""
    return lambda orders: np.maximum(renyi(p, q, orders), renyi(q, p, orders))
