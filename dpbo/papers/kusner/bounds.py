"""Kusner et al.'s Theorems 1 to 6 as functions: what a budget buys, before anything runs. Public inputs and numbers only.

Each sensitivity bounds how far one released number moves between data sets that differ in the value of one record, each utility bound
how far the release is from the best value. Both hold with the stated probability over the prior: Assumption 1 makes all functions
f_V ~ GP(0, k1(V, V') k2(x, x')), k1(V, V) = k2(x, x) = 1, observed with noise N(0, sigma^2). So the first are no sensitivities in the
sense of differential privacy: for a fixed pair of data sets nothing is promised. Theorems 7 and 8, which need no prior, are in
`lipschitz`, gamma_T in `dpbo.models.finite`.

Sources: the ICML 2015 paper and its supplement unless a docstring says otherwise. "paper" is what they print. "corrected" (the default)
repairs the failure probabilities [derived]: the value's noise is a maximum over T observations of both data sets, not one, and each
theorem's events together must fail with probability delta.

Common arguments: count = |X| candidates; kappa = the least k1(V, V') of neighbours, in [0, 1]; observations = T; noise = sigma^2 in
units of y^2; gamma = a bound on gamma_T in nats; delta in (0, 1); y has prior standard deviation 1.
"""

from __future__ import annotations

import math

from dpbo.acquisition.ucb import SrinivasCompact, kusner_beta
from dpbo.errors import InputError
from dpbo.privacy import require_count, require_positive, require_probability


def neighbour_gap(*, count: int, kappa: float, delta: float, share: float) -> float:
    """c = 2 sqrt((1 - kappa) log(share count / delta)) >= max_x |f_V(x) - f_V'(x)|, failing with probability delta / share.

    f_V - f_V' ~ N(0, 2 (1 - kappa)) at each candidate; a two-sided Gaussian tail and a union bound. Source: Theorem 1's second term.
    """
    require_probability("delta", delta)
    if not isinstance(kappa, float) or not 0.0 <= kappa <= 1.0:
        raise InputError("kappa", kappa, "a float in [0, 1]")
    return 2.0 * math.sqrt((1.0 - kappa) * math.log(share * require_count("count", count) / delta))


def theorem_1(*, count: int, observations: int, kappa: float, delta: float, constants: str = "corrected") -> float:
    """Sensitivity of the posterior mean: |mu'_T(x) - mu_T(x)| at all candidates x, with probability 1 - delta.

    "paper": 2 sqrt(beta_{T+1}) + c. "corrected": 2 sqrt(2 log(3 count / delta)) + c, which is tighter and free of T, because the
    bound is used at one time only [derived]. c has share 3. Assumes the prior; both data sets' observations are noisy.
    """
    c = neighbour_gap(count=count, kappa=kappa, delta=delta, share=3.0)
    require_count("observations", observations)
    if is_paper(constants):
        return 2.0 * math.sqrt(kusner_beta(count, delta, constants="paper")(observations + 1)) + c
    return 2.0 * math.sqrt(2.0 * math.log(3.0 * count / delta)) + c


def theorem_2(*, count: int, sensitivity: float, epsilon: float, a: float) -> float:
    """Loss of the chosen candidate: max mu_T - mu_T(chosen) <= (2 sensitivity / epsilon)(log count + a), probability 1 - e^-a.

    The exponential mechanism's own theorem (McSherry and Talwar 2007): no prior enters, so no delta is lost; the paper adds one.
    The workshop version bounds f(x*) - mu_T(chosen) instead, by this plus 2 sqrt(beta_T) + q.
    """
    scale = 2.0 * require_positive("sensitivity", sensitivity) / require_positive("epsilon", epsilon)
    return scale * (math.log(require_count("count", count)) + require_positive("a", a))


def regret(*, count: int, observations: int, noise: float, gamma: float, delta: float, constants: str = "corrected") -> float:
    """Omega / T = sqrt(C1 beta_T gamma_T / T) >= f(x*) - max_t f(x_t) of GP-UCB, C1 = 8 / log(1 + 1/noise).

    Fails with probability delta / 2 ("paper") or delta / 4 ("corrected"). Source: Srinivas et al. 2010, Theorem 1. Assumes the prior
    of f, k2(x, x) = 1, and that beta_t of the same `constants` was used in the search.
    """
    beta = kusner_beta(count, delta, constants=constants)(observations)
    return mean_regret(observations=observations, noise=noise, gamma=gamma, beta=beta)


def mean_regret(*, observations: int, noise: float, gamma: float, beta: float) -> float:
    """sqrt(C1 beta gamma / T), C1 = 8 / log(1 + 1/noise)."""
    c1 = 8.0 / math.log1p(1.0 / require_positive("noise", noise))
    return math.sqrt(c1 * beta * require_positive("gamma", gamma) / require_count("observations", observations))


def noise_gap(*, observations: int, noise: float, delta: float, constants: str = "corrected") -> float:
    """q: how much the noise of both best observations can add to the difference of the best values.

    "paper": sigma sqrt(8 log(3/delta)), a bound for one noise of each data set (the workshop prints 4 for 8); it fails, because the best
    of T observations carries a noise near the maximum of T. "corrected": 2 sigma sqrt(2 log(8 T / delta)), failing with probability
    delta / 4 [derived].
    """
    require_probability("delta", delta)
    many = 3.0 if is_paper(constants) else 8.0 * require_count("observations", observations)
    return math.sqrt(8.0 * require_positive("noise", noise) * math.log(many / delta))


def theorem_3(
    *, count: int, observations: int, kappa: float, noise: float, gamma: float, delta: float, constants: str = "corrected"
) -> float:
    """Sensitivity of the best observation: |max_t v'_t - max_t v_t| <= Omega/T + c + q with probability 1 - delta.

    "paper": c of share 3, beta of confidence delta/2 and its q; its failures add up to 5/3 delta even if q held. "corrected": two
    regrets, c (share 4) and q at delta/4 each [derived].
    """
    c = neighbour_gap(count=count, kappa=kappa, delta=delta, share=3.0 if is_paper(constants) else 4.0)
    q = noise_gap(observations=observations, noise=noise, delta=delta, constants=constants)
    return regret(count=count, observations=observations, noise=noise, gamma=gamma, delta=delta, constants=constants) + c + q


def theorem_4(
    *,
    count: int,
    observations: int,
    kappa: float,
    noise: float,
    gamma: float,
    delta: float,
    epsilon: float,
    a: float,
    constants: str = "corrected",
) -> float:
    """|released value - f(x*)| with probability 1 - (delta + e^-a), for Laplace noise of scale theorem_3 / epsilon.

    noise term + Omega/T + a theorem_3 / epsilon. The noise term is sigma sqrt(8 log(1/delta)) in "paper", which fails for large T;
    "corrected" is the workshop's sigma sqrt(2 log(2 T / delta')) with delta' = 3/4 delta beside the regret's delta/4 [derived].
    """
    shared = {"count": count, "observations": observations, "noise": noise, "gamma": gamma, "delta": delta, "constants": constants}
    scale = theorem_3(kappa=kappa, **shared) / require_positive("epsilon", epsilon)  # type: ignore[arg-type]
    log = 4.0 * math.log(1.0 / delta) if is_paper(constants) else math.log(8.0 * observations / (3.0 * delta))
    return math.sqrt(2.0 * noise * log) + regret(**shared) + require_positive("a", a) * scale  # type: ignore[arg-type]


def noise_free_regret(*, observations: int, dimension: int, amplitude: float, tau: float) -> float:
    """Omega = A exp(-T tau / (log T)^{d/4}) >= f(x*) - f(x_T) of the noise-free search, T >= 2.

    Source: de Freitas et al. 2012. A (`amplitude`, units of y) and tau depend on f near its maximum: they must be known without the
    data and hold for both data sets. A = 0 where every candidate is evaluated and the best released [derived].
    """
    if not isinstance(amplitude, float) or not 0.0 <= amplitude < math.inf:
        raise InputError("amplitude", amplitude, "a finite float, 0 or more")
    log = math.log(require_count("observations", observations, least=2))
    return amplitude * math.exp(-observations * require_positive("tau", tau) / log ** (require_count("dimension", dimension) / 4.0))


def theorem_5(*, count: int, kappa: float, delta: float, regret: float, constants: str = "corrected") -> float:
    """Sensitivity of the noise-free last value: |f'(x'_T) - f(x_T)| <= Omega + c with probability 1 - delta.

    `regret`: Omega of `noise_free_regret`, holding for one data set with probability 1 - delta/2 ("paper") or 1 - delta/3 ("corrected").
    "paper": c of share 2; its failures add up to 3/2 delta. "corrected": share 3 [derived]. The workshop prints the case T = 2.
    """
    return _not_negative("regret", regret) + neighbour_gap(count=count, kappa=kappa, delta=delta, share=2.0 if is_paper(constants) else 3.0)


def theorem_6(*, count: int, kappa: float, delta: float, regret: float, epsilon: float, a: float, constants: str = "corrected") -> float:
    """|released value - f(x*)| <= Omega + a theorem_5 / epsilon with probability 1 - (delta + e^-a); arguments as in `theorem_5`."""
    scale = theorem_5(count=count, kappa=kappa, delta=delta, regret=regret, constants=constants) / require_positive("epsilon", epsilon)
    return regret + require_positive("a", a) * scale


def is_paper(constants: str) -> bool:
    """Whether "paper" rather than "corrected" is asked for."""
    if constants not in ("paper", "corrected"):
        raise InputError("constants", constants, "'paper' or 'corrected'")
    return constants == "paper"


def require_demonstration(constants: str, allow_not_private: bool) -> bool:
    """Whether a question is asked with the paper's constants, which only a demonstration may do: their bounds do not always hold.

    Such a question is charged as one without any guarantee (`NotPrivateEvent`), so the statement says "not bounded".
    """
    paper = is_paper(constants)
    if paper and allow_not_private is not True:
        remedy = "The paper's bounds do not always hold: leave `constants` out."
        raise InputError("allow_not_private", allow_not_private, "True, to release without any guarantee", remedy)
    return paper


def _not_negative(name: str, value: float) -> float:
    return 0.0 if value == 0 else require_positive(name, value)


# ========== MERGED Kusner et al.'s Algorithm 1 over [0, r]^d: the search is continuous, what is promised goes through a public grid
# [derived].
#
# The papers announce this case and do not contain it. The grid has N points a coordinate, N^d in all, so that every x is within r d / N of
# one in the l1 norm; P(sup |df/dx_j| > s) <= a exp(-s^2/b^2) for each j (Srinivas et al. 2010, Theorem 2) carries bounds from the grid to
# the rest. Assumptions and status are those of `bounds`; failures are summed in the docstrings.
#
# Arguments beyond `bounds`: points = N; dimension = d; side = r, units of x; a; b, units of y / x.
#


def grid_choice_sensitivity(*, points: int, dimension: int, kappa: float, delta: float) -> float:
    """Theorem 1 (corrected) for a choice among the N^d grid points, whatever points the search observed; probability 1 - delta."""
    count = require_count("points", points) ** require_count("dimension", dimension)
    return theorem_1(count=count, observations=1, kappa=kappa, delta=delta)


def grid_loss(*, points: int, dimension: int, side: float, a: float, b: float, delta: float) -> float:
    """max over [0, r]^d of f minus max over the grid <= b sqrt(log(2 d a / delta)) r d / N, with probability 1 - delta/2."""
    slope = _slope(a, b, 2.0 * dimension * a / require_probability("delta", delta))
    return slope * _spacing(points, dimension, side)


def compact_gap(*, points: int, dimension: int, side: float, a: float, b: float, kappa: float, delta: float) -> float:
    """c over the whole box: sup |f_V - f_V'| with probability 1 - delta, half of it at the grid points, half for the slopes.

    f_V - f_V' is a GP of kernel 2 (1 - kappa) k2: sqrt(2 (1 - kappa)) [sqrt(2 log(2 N^d / delta)) + b (r d / N) sqrt(log(2 d a / delta))].
    """
    count = require_count("points", points) ** require_count("dimension", dimension)
    at_grid = neighbour_gap(count=count, kappa=kappa, delta=delta, share=2.0)
    slope = _slope(a, b, 2.0 * dimension * a / delta)
    return at_grid + math.sqrt(2.0 * (1.0 - kappa)) * slope * _spacing(points, dimension, side)


def compact_value_sensitivity(
    *,
    points: int,
    dimension: int,
    side: float,
    a: float,
    b: float,
    observations: int,
    kappa: float,
    noise: float,
    gamma: float,
    delta: float,
) -> float:
    """Theorem 3 over the box: Omega/T + 2/T + c + q with probability 1 - delta; two regrets, c and q fail with delta/4 each.

    The search must use `SrinivasCompact` at delta/4. `gamma` bounds gamma_T over the box: the greedy bound of a grid does not.
    """
    beta = SrinivasCompact(dimension=dimension, side=side, a=a, b=b, delta=require_probability("delta", delta) / 4.0)(observations)
    found = mean_regret(observations=observations, noise=noise, gamma=gamma, beta=beta) + 2.0 / observations
    c = compact_gap(points=points, dimension=dimension, side=side, a=a, b=b, kappa=kappa, delta=delta / 4.0)
    return found + c + noise_gap(observations=observations, noise=noise, delta=delta)


def _slope(a: float, b: float, odds: float) -> float:
    require_positive("a", a)
    if odds <= 1.0:
        raise InputError("a", a, "above delta / (2 d)", "A larger a only weakens the assumption.")
    return require_positive("b", b) * math.sqrt(math.log(odds))


def _spacing(points: int, dimension: int, side: float) -> float:
    return require_positive("side", side) * require_count("dimension", dimension) / require_count("points", points)
