"""Kusner et al.'s bounds as the papers print them, where dpbo has others: for comparison, and to
show that some fail. Arguments as in `dpbo.papers.kusner.bounds`.

Theorem 1 holds, and is larger than it has to be. The proofs of Theorems 3 and 5 do not hold, as
their failures add up to 5/3 delta and 3/2 delta, and q of Theorem 3 bounds one noise where the best
of T evaluations carries nearly the largest of T. Theorem 4 is false for large T, and Theorem 7 by a
factor 2 in its second term, for l and l' close together. docs/papers/kusner.md has the
counter-examples.
"""

import math

from dpbo.acquisition.ucb import SrinivasFinite
from dpbo.papers.kusner import bounds


def beta(count: int, delta: float) -> SrinivasFinite:
    """2 log(count t^2 pi^2 / (3 delta)) of Algorithm 1, a confidence of 1 - delta/2."""
    return SrinivasFinite(count=count, delta=delta / 2.0)


def theorem_1(*, count: int, evaluations: int, kappa: float, delta: float) -> float:
    """2 sqrt(beta_{T+1}) + c, c of share 3."""
    c = bounds.neighbour_gap(count=count, kappa=kappa, delta=delta, share=3.0)
    return 2.0 * math.sqrt(beta(count, delta)(evaluations + 1)) + c


def regret(*, count: int, evaluations: int, noise: float, gamma: float, delta: float) -> float:
    """Omega / T, failing with probability delta / 2."""
    return bounds.mean_regret(
        evaluations=evaluations, noise=noise, gamma=gamma, beta=beta(count, delta)(evaluations)
    )


def noise_gap(*, noise: float, delta: float) -> float:
    """q = sigma sqrt(8 log(3/delta)); the workshop prints 4 for 8."""
    return math.sqrt(8.0 * noise * math.log(3.0 / delta))


def theorem_3(
    *, count: int, evaluations: int, kappa: float, noise: float, gamma: float, delta: float
) -> float:
    """Omega / T + c + q, c of share 3."""
    found = regret(count=count, evaluations=evaluations, noise=noise, gamma=gamma, delta=delta)
    c = bounds.neighbour_gap(count=count, kappa=kappa, delta=delta, share=3.0)
    return found + c + noise_gap(noise=noise, delta=delta)


def theorem_4_noise(*, noise: float, delta: float) -> float:
    """The noise term, sigma sqrt(8 log(1/delta)), beside Omega / T and a sensitivity / epsilon."""
    return math.sqrt(8.0 * noise * math.log(1.0 / delta))


def theorem_5(*, count: int, kappa: float, delta: float, regret: float) -> float:
    """Omega + c, c of share 2."""
    return regret + bounds.neighbour_gap(count=count, kappa=kappa, delta=delta, share=2.0)


def theorem_7(*, least: float, most: float, lipschitz: float, bound: float, records: int) -> float:
    """L (1/least - 1/most) + min(g*, L / least) / m."""
    return lipschitz * (1.0 / least - 1.0 / most) + min(bound, lipschitz / least) / records
