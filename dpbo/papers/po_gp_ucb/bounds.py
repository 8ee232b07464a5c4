"""PO-GP-UCB's Lemma 1, Theorems 2 and 3 and Definition 3 as functions of public numbers
(Kharkovskii et al. 2020).

They are about utility. Theorem 1, the privacy of Algorithm 1, is false: `transform` says why. None
of what follows gives any privacy.

Lemma 1 and Theorem 2 are right [checked]. Theorem 3 is right in its structure, with 1 + log T for
log T; its C1 and C2 are O() in the paper, whose appendix was not available, so they are arguments
here. It says nothing about the paper's own experiments: with diameter 50 and l = 1.25 it asks for
nu <= 0.00125 and r >= 1.1e8 columns, where 3 to 50 are used, and diagonal dominance fails for any
two near inputs.

Common arguments: count = n, rows of X; r = columns of Z; nu = relative error of squared distances,
in (0, 1/2); mu = failure probability of the random projection; sigma_min = least singular value of
the centred X; omega = the threshold of Algorithm 1.
"""

import math
from typing import Annotated, NamedTuple

import torch

from dpbo.errors import InputError
from dpbo.validation import POINTS, NotNegative, Positive, Probability, at_least, between, checked

Nu = Annotated[float, between(1e-9, 0.5)]


@checked
def columns_needed(*, count: Annotated[int, at_least(2)], nu: Nu, mu: Probability) -> int:
    """Lemma 1: the least r >= 8 log(n^2 / mu) / nu^2, for which all squared distances keep within 1
    +- nu with probability 1 - mu.

    A pair fails with probability at most 2 exp(-r nu^2 / 8) (a chi-square tail, for nu < 1/2), and
    there are fewer than n^2 / 2 pairs.
    """
    return math.ceil(8.0 * math.log(count**2 / mu) / nu**2)


@checked
def distance_factors(*, nu: Nu, sigma_min: Positive, omega: Positive) -> tuple[float, float]:
    """Theorem 2: (1 - nu, (1 + nu) C'): between these |z - z'|^2 / |x - x'|^2 lies for all pairs,
    with probability 1 - mu.

    C' = 1, or 1 + omega^2 / sigma_min^2 where sigma_min < omega and Algorithm 1 raises the singular
    values. r as in `columns_needed`.
    """
    stretched = 1.0 + (omega / sigma_min) ** 2 if sigma_min < omega else 1.0
    return 1.0 - nu, (1.0 + nu) * stretched


@checked
def is_diagonally_dominant(covariance: Annotated[torch.Tensor, POINTS]) -> bool:
    """Definition 3: k_xx >= (sqrt(m - 1) + 1) sum of |k_xx'| over the other x', for all m rows of a
    covariance `m x m`.

    Raises:
        InputError: not square.
    """
    m = len(covariance)
    if covariance.shape[1] != m:
        raise InputError("covariance", tuple(covariance.shape), "square")
    diagonal = covariance.diagonal()
    return bool(
        (diagonal >= (math.sqrt(m - 1) + 1.0) * (covariance.abs().sum(1) - diagonal.abs())).all()
    )


class Needs(NamedTuple):
    """What Theorem 3 asks of Algorithm 1: `nu`, and `columns`, the least r."""

    nu: float
    columns: int


@checked
def theorem_3_needs(
    *,
    count: Annotated[int, at_least(2)],
    diameter: Positive,
    lengthscale: Positive,
    largest: Positive,
    error: Positive,
    delta: Probability,
) -> Needs:
    """nu = min(error / (2 sqrt(3) d^2 L), 2 / d^2, 1/2) with d = diameter / lengthscale, and r of
    Lemma 1 at mu = delta / 2.

    Args:
        largest: L >= |y_t|, in units of y.
        error: epsilon_ucb, what the projection may add to the regret, in units of y.
        delta: delta_ucb.
    """
    d = diameter / lengthscale
    nu = min(error / (2.0 * math.sqrt(3.0) * d**2 * largest), 2.0 / d**2, 0.5)
    return Needs(nu, math.ceil(8.0 * math.log(2.0 * count**2 / delta) / nu**2))


@checked
def remark_2(
    *,
    diameter: Positive,
    lengthscale: Positive,
    largest: Positive,
    nu: Nu,
    sigma_min: Positive,
    omega: Positive,
) -> float:
    """What takes epsilon_ucb's place in `theorem_3` where sigma_min < omega: 2 sqrt(3) L eta, in
    units of y [derived].

    eta = max(1 - exp(-((1 + nu) C' - 1) d^2 / 2), exp(nu d^2 / 2) - 1), d = diameter / lengthscale.
    Proof. By Theorem 2 the squared distance of two rows, D^2 <= d^2 in length scales, becomes one
    between (1 - nu) D^2 and (1 + nu) C' D^2. So k = exp(-D^2 / 2) becomes k times a number between
    exp(-((1 + nu) C' - 1) d^2 / 2) and exp(nu d^2 / 2), and moves by at most eta k. Theorem 3 has
    nu d^2 >= eta for C' = 1 and nu d^2 <= 2, and its epsilon_ucb is 2 sqrt(3) L nu d^2.

    The paper's own constant is in its appendix, which was not available, and so is the proof of
    Theorem 3, on which the rest of that bound depends.

    Args:
        largest: L >= |y_t|, in units of y.
        nu, sigma_min, omega: as in `distance_factors`.
    """
    d = diameter / lengthscale
    _, most = distance_factors(nu=nu, sigma_min=sigma_min, omega=omega)
    shorter = -math.expm1(-(most - 1.0) * d**2 / 2.0)
    try:
        longer = math.expm1(nu * d**2 / 2.0)
    except OverflowError:
        longer = math.inf
    return 2.0 * math.sqrt(3.0) * largest * max(shorter, longer)


@checked
def theorem_3(
    *,
    error: NotNegative,
    evaluations: Annotated[int, at_least(2)],
    beta: NotNegative,
    gamma: NotNegative,
    noise: Positive,
    c1: NotNegative,
    c2: NotNegative,
) -> float:
    """Bound on the simple regret after T evaluations, with probability 1 - delta_ucb, in units of
    y.

    sqrt(epsilon_ucb^2 + 24 (C2 + C1 sqrt(beta_T))^2 (1 + log T) / T + 24 / log(1 + 1 / sigma_n^2)
    beta_T gamma_T / T). The paper prints log T for 1 + log T, its bound on sum 1 / t, which is
    above log T [derived].

    Assumes: sigma_min >= omega; r and nu of `theorem_3_needs`; |y_t| <= L; diagonally dominant
    covariances of all visited inputs.

    Args:
        error: epsilon_ucb.
        evaluations: T.
        beta: beta_T of `SrinivasFinite` at delta_ucb / 2.
        gamma: a bound on gamma_T, in nats.
        noise: sigma_n^2, in units where sigma_y = 1.
        c1, c2: C1 = O(sigma_y sqrt(sigma_y^2 + sigma_n^2) (sigma_y^2 / sigma_n^2 + 1)) and C2 = O(L
            sigma_y^2 / sigma_n^2): not explicit.
    """
    T = evaluations
    projected = 24.0 * (c2 + c1 * math.sqrt(beta)) ** 2 * (1.0 + math.log(T)) / T
    return math.sqrt(error**2 + projected + 24.0 / math.log1p(1.0 / noise) * beta * gamma / T)
