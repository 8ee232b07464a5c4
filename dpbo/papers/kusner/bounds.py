"""Kusner et al.'s Theorems 1 to 6: sensitivities and utility bounds as functions of public numbers,
on a finite set and on a box.

    theorem_3(count=1000, evaluations=30, kappa=0.9, noise=0.01, gamma=12.0, delta=0.01)

A sensitivity bounds how far one released number moves between data sets that differ in one record;
a utility bound says how far the release is from the best value. Both hold with the stated
probability over a prior (Assumption 1): all functions f_V are jointly a draw of GP(0, k1(V, V')
k2(x, x')) with k1(V, V) = k2(x, x) = 1, and each evaluation has noise N(0, sigma^2). For one fixed
pair of data sets they promise nothing, so they are not sensitivities in the sense of differential
privacy. Theorems 7 and 8 need no prior: see `regularised`. A bound on gamma_T is in
`dpbo.models.finite`.

Sources: the ICML 2015 paper and its supplement, unless a docstring says otherwise. Failure
probabilities are corrected [derived]: the value's noise is a maximum over T evaluations on both
data sets, not over one, and all events of a theorem together fail with probability delta. The
printed bounds are in the repository's `benchmarks/papers/kusner_printed.py`.

Common arguments: count = |X|, the number of candidates; kappa = the least k1(V, V') of neighbours;
evaluations = T; noise = sigma^2, in units of y^2; gamma = a bound on gamma_T, in nats; delta =
failure probability. y has prior standard deviation 1.

The last four functions carry the bounds to a box [0, r]^d, which the papers announce and do not
contain [derived]. The search is continuous; what is released goes through a public grid, the
middles of N equal parts a coordinate, so that every x is within r d / (2 N) of a grid point in the
l1 norm. P(sup |df/dx_j| > s) <= a exp(-s^2/b^2) for each j (Srinivas et al. 2010, Theorem 2) bounds
f between grid points. Their arguments: points = N; dimension = d; side = r, in units of x; a; b, in
units of y / x.
"""

import math
from typing import Annotated

from dpbo.acquisition.ucb import SrinivasCompact, kusner_beta
from dpbo.errors import InputError
from dpbo.validation import (
    Count,
    NotNegative,
    Positive,
    Probability,
    at_least,
    between,
    checked,
)

Kappa = Annotated[float, between(0.0, 1.0)]
Candidates = Annotated[int, at_least(1, 2**62)]


@checked
def neighbour_gap(*, count: Candidates, kappa: Kappa, delta: Probability, share: Positive) -> float:
    """c = 2 sqrt((1 - kappa) log(share count / delta)) >= max_x |f_V(x) - f_V'(x)|, failing with
    probability delta / share.

    f_V - f_V' ~ N(0, 2 (1 - kappa)) at each candidate; a two-sided Gaussian tail and a union bound.
    Source: Theorem 1's second term.
    """
    return 2.0 * math.sqrt((1.0 - kappa) * math.log(share * count / delta))


@checked
def theorem_1(*, count: Candidates, kappa: Kappa, delta: Probability) -> float:
    """Sensitivity of the posterior mean: |mu'_T(x) - mu_T(x)| at all candidates x, with probability
    1 - delta.

    2 sqrt(2 log(3 count / delta)) + c, c of share 3. It is smaller than the printed 2
    sqrt(beta_{T+1}) + c and does not depend on T, because the bound is used at one time only
    [derived]. Assumes the prior; both data sets' evaluations are noisy.
    """
    c = neighbour_gap(count=count, kappa=kappa, delta=delta, share=3.0)
    return 2.0 * math.sqrt(2.0 * math.log(3.0 * count / delta)) + c


@checked
def theorem_1_public_design(*, count: Candidates, spread: NotNegative, delta: Probability) -> float:
    """As theorem_1, where the evaluated candidates D were chosen without any value: spread sqrt(2
    log(count / delta)), with probability 1 - delta.

    spread = max_x sqrt(w_x' C w_x), C = 2 (1 - kappa) K_D + 2 sigma^2 I, w_x = (K_D + sigma^2 I)^-1
    k2(D, x).

    Proof [derived]. D is the same for V and V', so mu'_T(x) - mu_T(x) = w_x' (y' - y) with the same
    fixed w_x. Under the prior f' - f ~ GP(0, 2 (1 - k1(V, V')) k2), and both evaluations carry
    fresh noise, so y' - y ~ N(0, C) at k1 = kappa, and with a smaller covariance above it. A
    Gaussian leaves z of its deviations to either side with probability at most e^(-z^2/2); over all
    candidates that is delta at z = sqrt(2 log(count / delta)).

    Theorem 1 compares each posterior with its own function, which costs 2 sqrt(beta): it must, as
    GP-UCB's points depend on the values.
    """
    return spread * math.sqrt(2.0 * math.log(count / delta))


@checked
def theorem_2(*, count: Count, sensitivity: Positive, epsilon: Positive, a: Positive) -> float:
    """Loss of the chosen candidate: max mu_T - mu_T(chosen) <= (2 sensitivity / epsilon)(log count
    + a), with probability 1 - e^-a.

    This is the exponential mechanism's own theorem (McSherry and Talwar 2007). It needs no prior,
    so no delta is lost; the paper adds one. The workshop version's is `theorem_2_against_best`.
    """
    return 2.0 * sensitivity / epsilon * (math.log(count) + a)


@checked
def theorem_2_against_best(
    *, count: Count, delta: Probability, sensitivity: Positive, epsilon: Positive, a: Positive
) -> float:
    """f(x*) - mu_T(chosen) <= sqrt(2 log(count / (2 delta))) + (2 sensitivity / epsilon)(log count
    + a), with probability 1 - (delta + e^-a).

    Proof [derived]. Each evaluated point depends on earlier observations only, so given the T of
    them f(x) ~ N(mu_T(x), sigma_T(x)^2) at every candidate, with sigma_T <= 1. A Gaussian is more
    than z deviations above its mean with probability at most e^(-z^2/2) / 2, so f - mu_T <= z at
    all candidates but for probability count e^(-z^2/2) / 2 = delta; then f(x*) - z <= mu_T(x*) <=
    max mu_T, and theorem_2. Assumes the prior of f.

    The workshop and arXiv versions have 2 sqrt(beta_T) + q for z. It is larger, so that theorem
    holds.
    """
    high = math.sqrt(2.0 * max(math.log(count / (2.0 * delta)), 0.0))
    return high + theorem_2(count=count, sensitivity=sensitivity, epsilon=epsilon, a=a)


def regret(*, count: int, evaluations: int, noise: float, gamma: float, delta: float) -> float:
    """Omega / T = sqrt(C1 beta_T gamma_T / T) >= f(x*) - max_t f(x_t) of GP-UCB, C1 = 8 / log(1 +
    1/noise).

    Fails with probability delta / 4. Source: Srinivas et al. 2010, Theorem 1. Assumes the prior of
    f, k2(x, x) = 1, and that `kusner_beta` was used in the search.
    """
    beta = kusner_beta(count, delta)(evaluations)
    return mean_regret(evaluations=evaluations, noise=noise, gamma=gamma, beta=beta)


@checked
def mean_regret(*, evaluations: Count, noise: Positive, gamma: Positive, beta: float) -> float:
    """sqrt(C1 beta gamma / T), C1 = 8 / log(1 + 1/noise)."""
    return math.sqrt(8.0 / math.log1p(1.0 / noise) * beta * gamma / evaluations)


@checked
def noise_gap(*, evaluations: Count, noise: Positive, delta: Probability) -> float:
    """q = 2 sigma sqrt(2 log(8 T / delta)): how much the noise of both best evaluations can add to
    the difference of the best values; fails with probability delta / 4 [derived].

    The printed q bounds one noise of each data set. That step of the proof fails, because the best
    of T evaluations carries a noise near the maximum of T; no pair is known on which Theorem 3
    itself fails.
    """
    return math.sqrt(8.0 * noise * math.log(8.0 * evaluations / delta))


def theorem_3(
    *, count: int, evaluations: int, kappa: float, noise: float, gamma: float, delta: float
) -> float:
    """Sensitivity of the best evaluation: |max_t v'_t - max_t v_t| <= Omega/T + c + q with
    probability 1 - delta: two regrets, c (share 4) and q fail with delta/4 each [derived].
    """
    found = regret(count=count, evaluations=evaluations, noise=noise, gamma=gamma, delta=delta)
    c = neighbour_gap(count=count, kappa=kappa, delta=delta, share=4.0)
    return found + c + noise_gap(evaluations=evaluations, noise=noise, delta=delta)


@checked
def theorem_4(
    *,
    evaluations: Count,
    noise: Positive,
    delta: Probability,
    regret: NotNegative,
    sensitivity: Positive,
    epsilon: Positive,
    a: Positive,
) -> float:
    """|released value - f(x*)| with probability 1 - (delta + e^-a), for Laplace noise of scale
    sensitivity / epsilon.

    `regret`: of the function of that name; `sensitivity`: of `theorem_3`; both with the same delta.

    noise term + Omega/T + a sensitivity / epsilon. The noise term is the workshop's sqrt(2 log(2 T
    / delta')), which lacks sigma and so holds for sigma <= 1, times sigma, with delta' = 3/4 delta
    beside the regret's delta/4 [derived]. The ICML paper's fails for large T: the largest noise
    exceeds it with probability above delta from T = 11,897 on at delta = 0.1.
    """
    log = math.log(8.0 * evaluations / (3.0 * delta))
    return math.sqrt(2.0 * noise * log) + regret + a * (sensitivity / epsilon)


@checked
def noise_free_regret(
    *,
    evaluations: Annotated[int, at_least(2)],
    dimension: Count,
    amplitude: NotNegative,
    tau: Positive,
) -> float:
    """Omega = A exp(-T tau / (log T)^{d/4}) >= f(x*) - f(x_T) of the noise-free search, T >= 2.

    Source: de Freitas et al. 2012. A (`amplitude`, units of y) and tau depend on f near its
    maximum: they must be known without the data and hold for both data sets. A = 0 where every
    candidate is evaluated and the best released [derived].
    """
    return amplitude * math.exp(-evaluations * tau / math.log(evaluations) ** (dimension / 4.0))


@checked
def theorem_5(*, count: int, kappa: float, delta: float, regret: NotNegative) -> float:
    """Sensitivity of the noise-free last value: |f'(x'_T) - f(x_T)| <= Omega + c with probability 1
    - delta.

    `regret`: Omega of `noise_free_regret`, holding for one data set with probability 1 - delta/3. c
    has share 3; with the printed share 2 the failures add up to 3/2 delta [derived]. The workshop
    prints the case T = 2.
    """
    return regret + neighbour_gap(count=count, kappa=kappa, delta=delta, share=3.0)


@checked
def theorem_6(
    *, regret: NotNegative, sensitivity: Positive, epsilon: Positive, a: Positive
) -> float:
    """|released value - f(x*)| <= Omega + a sensitivity / epsilon with probability 1 - (delta +
    e^-a); `regret` as in `theorem_5`, `sensitivity` of it.
    """
    return regret + a * (sensitivity / epsilon)


@checked
def grid_choice_sensitivity(
    *, points: Count, dimension: Count, kappa: float, delta: float
) -> float:
    """Theorem 1 (corrected) for a choice among the N^d grid points, whatever points the search
    evaluated; probability 1 - delta.
    """
    return theorem_1(count=points**dimension, kappa=kappa, delta=delta)


@checked
def grid_loss(
    *, points: Count, dimension: Count, side: Positive, a: Positive, b: Positive, delta: Probability
) -> float:
    """max over [0, r]^d of f minus max over the grid <= b sqrt(log(2 d a / delta)) r d / (2 N),
    with probability 1 - delta/2.

    So far a draw of unit variance moves at most between any x and its grid point.
    """
    odds = 2.0 * dimension * a / delta
    if odds <= 1.0:
        raise InputError("a", a, "above delta / (2 d)", "A larger a only weakens the assumption.")
    return b * math.sqrt(math.log(odds)) * (side * dimension / (2.0 * points))


@checked
def compact_gap(
    *,
    points: Count,
    dimension: Count,
    side: float,
    a: float,
    b: float,
    kappa: Kappa,
    delta: Probability,
) -> float:
    """c over the whole box: sup |f_V - f_V'| with probability 1 - delta, half of it at the grid
    points, half for the slopes.

    f_V - f_V' is a GP of kernel 2 (1 - kappa) k2:
    sqrt(2 (1 - kappa)) [sqrt(2 log(2 N^d / delta)) + b r d / (2 N) sqrt(log(2 d a / delta))].
    """
    at_grid = neighbour_gap(count=points**dimension, kappa=kappa, delta=delta, share=2.0)
    between_points = grid_loss(points=points, dimension=dimension, side=side, a=a, b=b, delta=delta)
    return at_grid + math.sqrt(2.0 * (1.0 - kappa)) * between_points


@checked
def compact_value_sensitivity(
    *,
    points: int,
    dimension: int,
    side: float,
    a: float,
    b: float,
    evaluations: Count,
    kappa: float,
    noise: float,
    gamma: float,
    delta: Probability,
) -> float:
    """Theorem 3 over the box: Omega/T + 2/T + c + q with probability 1 - delta; two regrets, c and
    q fail with delta/4 each.

    The search must use `SrinivasCompact` at delta/4. `gamma` bounds gamma_T over the box: the
    greedy bound of a grid does not.
    """
    beta = SrinivasCompact(dimension=dimension, side=side, a=a, b=b, delta=delta / 4.0)(evaluations)
    found = (
        mean_regret(evaluations=evaluations, noise=noise, gamma=gamma, beta=beta)
        + 2.0 / evaluations
    )
    c = compact_gap(
        points=points, dimension=dimension, side=side, a=a, b=b, kappa=kappa, delta=delta / 4.0
    )
    return found + c + noise_gap(evaluations=evaluations, noise=noise, delta=delta)
