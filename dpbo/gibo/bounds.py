"""DP-GIBO's Theorems 3.2, 3.3 and B.2 and Corollaries 3.4 and 3.6, as functions of public numbers
(Sopa et al. 2025, arXiv 2502.06044).

    V = noise_term(units=5000, dimension=10, iterations=25, clip=1.0, mu=1.0, delta=0.05)
    mean_squared_gradient(gap=0.3, iterations=25, step=0.5, norm=2.0, traces=0.01, noise_term=V)

They say how far T steps of gradient descent with fixed step eta get, with the private gradients of
`dpbo.DPGIBO`. They hold for `GIBOSettings.paper()` with torch.optim.SGD; not for AdaGrad, which
both settings use by default. The algorithm itself is `dpbo.gibo.algorithm`, and its privacy needs
none of what follows.

Assumptions. 2.7: every unit's loss lies in the Hilbert space (RKHS) of the kernel, with norm at
most C. 2.8: every unit's loss is L-smooth. 2.9: every unit's gradient has length at most B, the
clip. 2.10, where it is named: the mean loss is tau-strongly convex. They hold on a ball around the
minimum that contains all iterates (`ball_radius`); with 2.10 its radius is at most B / tau. eta <=
1 / L; losses without noise. Nobody can check C, L and tau on the protected records: they are taken
on trust.

Common arguments: units = n; dimension = d; iterations = T; clip = B, in units of y / x; mu = of the
whole run, in Gaussian DP; delta = failure probability, over the noise; gap = F_0 = f(theta_0) - min
f, in units of y; step = eta, in units of x^2 / y; norm = C; convexity = tau, in units of y / x^2;
traces = total variance of the posterior gradient at each step, a number for all or T numbers:
`GradientPosterior.covariance(theta)`'s trace, public. With Algorithm 2 at tolerance eps_tol all are
at most eps_tol: Corollary 3.6.

Where the paper is wrong as printed [derived]: Theorem 3.2 and Corollary 3.6 print 2 F_0 L / T for
every eta <= 1/L, but their proof gives 2 F_0 / (eta T), which is larger below eta = 1/L. Corollary
3.4 lacks a factor 2 under its root: on f = tau theta^2 / 2 without noise and eta tau < 1/2, theta_1
is outside the printed bound. Lemma A.4's proof takes a smaller loss for a smaller distance. "Each
term equals zero for b > d": the least trace is zero in the limit of points that meet; with jitter
s2 the best simplex (RBF, whitened units, d >= 2) leaves about 2 d sqrt(s2 (1 - c/2) / c), c = (d +
1) / d.
"""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from dpbo.errors import InputError
from dpbo.validation import Count, NotNegative, Positive, Probability, checked, one_of

Traces = float | Sequence[float]
Constants = Annotated[str, one_of("paper", "corrected")]


@checked
def gradient_bias(*, norm: NotNegative, trace: NotNegative) -> float:
    """Lemma A.2: C sqrt(trace) >= the length of (estimated mean gradient, clipped, without noise)
    minus (true mean gradient).

    Each unit's estimate errs by at most C sqrt(trace) (Wu et al. 2024, Lemma 1), and projecting it
    onto the ball of radius B, which holds the true gradient, brings it no farther from that. The
    error in direction u is the inner product of the loss and a function of squared norm u^T Cov u.
    So the largest eigenvalue of the gradient's covariance may take the place of the trace, and that
    bound is attained [derived].
    """
    return norm * math.sqrt(trace)


@checked
def longest_noise(
    *,
    units: Count,
    dimension: Count,
    iterations: Count,
    clip: Positive,
    mu: Positive,
    delta: Probability,
    constants: Constants = "corrected",
) -> float:
    """M / B >= the length of every step's noise, with probability 1 - delta: 2 B sqrt(T) / (n mu)
    times a bound on max |w_t|.

    "paper": 4 sqrt(d) + 2 sqrt(2 log(T / delta)), Lemma A.3, for sub-Gaussian w. "corrected", a
    quarter to a half of it: sqrt(d) + sqrt(2 log(T / delta)), as |w| is 1-Lipschitz in a Gaussian w
    and has a mean of at most sqrt(d); a union bound over the steps.
    """
    tail = math.sqrt(2.0 * math.log(iterations / delta))
    if constants == "paper":
        longest = 4.0 * math.sqrt(dimension) + 2.0 * tail
    else:
        longest = math.sqrt(dimension) + tail
    return 2.0 * clip * math.sqrt(iterations) / (units * mu) * longest


@checked
def noise_term(
    *,
    units: int,
    dimension: int,
    iterations: int,
    clip: float,
    mu: float,
    delta: float,
    constants: Constants = "corrected",
) -> float:
    """V = M (2 + M / (2 B^2)), M of `longest_noise`, in units of squared gradients: what the noise
    adds to each step's bound.

    Above B^2 / 2 the theorems say nothing that Assumption 2.9 does not say already. Source: Theorem
    3.2; Lemma B.1 prints a looser one.
    """
    M = clip * longest_noise(
        units=units,
        dimension=dimension,
        iterations=iterations,
        clip=clip,
        mu=mu,
        delta=delta,
        constants=constants,
    )
    return M * (2.0 + M / (2.0 * clip**2))


@checked
def ball_radius(
    *,
    distance: NotNegative,
    norm: NotNegative,
    trace: NotNegative,
    longest_noise: NotNegative,
    convexity: Positive,
) -> float:
    """Lemma A.4, by another proof: max(|theta_0 - theta*|, (C sqrt(trace) + M / B) / tau) holds all
    iterates with probability 1 - delta.

    An exact step of eta <= 1/L brings theta nearer by the factor 1 - eta tau; bias and noise move
    it by at most eta (C sqrt(trace) + M / B).

    Args:
        distance: |theta_0 - theta*|.
        trace: the largest of all steps.
        longest_noise: M / B, with its delta.
    """
    return max(distance, (norm * math.sqrt(trace) + longest_noise) / convexity)


@checked
def mean_squared_gradient(
    *,
    gap: NotNegative,
    iterations: Count,
    step: Positive,
    norm: NotNegative,
    traces: Traces,
    noise_term: NotNegative,
) -> float:
    """Theorem 3.2: 2 F_0 / (eta T) + C^2 mean(traces) + 2 V >= mean of |grad f(theta_t)|^2 over t <
    T, with probability 1 - delta.

    Args:
        noise_term: V, with its delta.
    """
    each = _traces(traces, iterations)
    return (
        2.0 * gap / (step * iterations) + norm**2 * math.fsum(each) / iterations + 2.0 * noise_term
    )


@checked
def suboptimality(
    *,
    gap: NotNegative,
    iterations: Count,
    step: Positive,
    convexity: Positive,
    norm: NotNegative,
    traces: Traces,
    noise_term: NotNegative,
) -> float:
    """Theorem 3.3: (1 - eta tau)^T F_0 + r >= f(theta_T) - min f, with probability 1 - delta, under
    Assumption 2.10 as well.

    r = C^2 eta / 2 sum_t (1 - eta tau)^(T-1-t) trace_t + V / tau. With equal traces eps_tol: at
    most C^2 eps_tol / (2 tau) + V / tau, Corollary 3.6.

    Raises:
        InputError: eta tau above 1, which eta <= 1/L excludes.
    """
    kept = 1.0 - step * convexity
    if kept < 0.0:
        raise InputError("step", step, f"at most 1 / convexity = {1.0 / convexity:g}")
    bias = math.fsum(
        kept ** (iterations - 1 - t) * trace for t, trace in enumerate(_traces(traces, iterations))
    )
    return kept**iterations * gap + norm**2 * step / 2.0 * bias + noise_term / convexity


@checked
def distance(*, suboptimality: NotNegative, convexity: Positive) -> float:
    """Corollary 3.4, corrected: sqrt(2 suboptimality / tau) >= |theta_T - theta*|; the paper prints
    it without the 2.

    Strong convexity gives f(theta) - f(theta*) >= tau/2 |theta - theta*|^2.
    """
    return math.sqrt(2.0 * suboptimality / convexity)


class Enough(NamedTuple):
    """What Theorem B.2 asks for: `tolerance` of the design, `iterations` T and `units` n."""

    tolerance: float
    iterations: int
    units: int


@checked
def theorem_b_2(
    *,
    target: Positive,
    gap: Positive,
    step: Positive,
    convexity: Positive,
    norm: Positive,
    prior_trace: Positive,
    points: Count,
    batch_size: Count,
    dimension: Count,
    clip: Positive,
    mu: Positive,
    delta: Probability,
) -> Enough:
    """Iterations and units with which f(theta_T) - min f < target, with probability 1 - delta,
    after the lattice design's points.

    Theorem 3.3's three terms are brought below target / 3 each: the traces by the design (of this
    tolerance, target tau / (3 C^2)) and by enough steps after it, the start's by enough steps, the
    noise's by enough units: V / tau <= target / 3, solved exactly. (The paper's n drops a factor 2
    of its Lemma A.3; with the bound for Gaussian noise it is enough.)

    Args:
        prior_trace: trace of the gradient's prior covariance.
        points: number of the design's points.
        batch_size: b, the points of one iteration.
    """
    kept = 1.0 - step * convexity
    if not 0.0 < kept:
        raise InputError("step", step, f"below 1 / convexity = {1.0 / convexity:g}")
    first = math.ceil(points / batch_size)
    settled = math.log(min(1.0, target * convexity / (3.0 * norm**2 * prior_trace))) / math.log(
        kept
    )
    started = math.log(min(1.0, target / (3.0 * gap))) / math.log(kept)
    iterations = max(first + 1 + math.ceil(settled), math.ceil(started), 1)
    M = 2.0 * clip**2 * (math.sqrt(1.0 + convexity * target / (6.0 * clip**2)) - 1.0)
    one = clip * longest_noise(
        units=1, dimension=dimension, iterations=iterations, clip=clip, mu=mu, delta=delta
    )
    return Enough(target * convexity / (3.0 * norm**2), iterations, math.ceil(one / M))


def _traces(traces: Traces, iterations: int) -> list[float]:
    if isinstance(traces, (int, float)):
        each = [float(traces)] * iterations
    else:
        each = list(map(float, traces))
    if len(each) != iterations or not all(0.0 <= trace < math.inf for trace in each):
        raise InputError("traces", len(each), f"a number, or {iterations} numbers, at least 0")
    return each
