"""Kusner et al.'s Theorems 7 and 8: the value of a regularised model on private validation records, without any prior.

Public training records give w_l = argmin (l/2) |w|^2 + mean loss(w), with a loss that is convex and 1-Lipschitz in w. The protected
validation records give f_V(w) = -mean of g(w, z) over m of them, g in [0, g*] and L-Lipschitz in w, g(0, z) the same for all z (as for
margin losses). Neighbours differ in the value of one record; so these are sensitivities, and a Laplace release is epsilon-DP.

Further assumed: w_l is exact, or within `gap` of the minimum in its objective; m, T, the range of l and the training records are
public; f_V is noise-free and the search's coins do not depend on V. Source: ICML 2015, Theorems 7 and 8, Corollary 4.

Arguments: least, most = the ends of the range of l; lipschitz = L, units of y / |w|; bound = g*, units of y; records = m; gap = h.
"""

from __future__ import annotations

import math

from dpbo.algorithms.kusner.bounds import is_paper
from dpbo.errors import InputError
from dpbo.privacy import require_count, require_positive


def theorem_7(
    *, least: float, most: float, lipschitz: float, bound: float, records: int, gap: float = 0.0, constants: str = "corrected"
) -> float:
    """Total sensitivity: max of |f_V(w_l) - f_V'(w_l')| over neighbours and l, l' in the range; for an adaptive search.

    "paper": L (1/least - 1/most) + min(g*, L / least) / m. Its second term is too small by a factor 2, so that it fails for
    least = most. "corrected" [derived]: min(g*, L (1/least - 1/most) + min(g*, 2 L / most) / m), m >= 2, by way of the larger l, where
    |w| <= 1/l, and |g(w, z) - g(w, z')| <= 2 L |w| through g(0, .); then monotone in l and l'. A solver's gap adds 2 L sqrt(2 h / least).
    """
    _require_range(least, most)
    m, L, top = require_count("records", records, least=2), require_positive("lipschitz", lipschitz), require_positive("bound", bound)
    path = L * (1.0 / least - 1.0 / most)
    inexact = 2.0 * L * _distance(least, gap)
    if is_paper(constants):
        return path + min(top, L / least) / m + inexact
    return min(top, path + min(top, 2.0 * L / most) / m + inexact)


def fixed_grid(*, least: float, lipschitz: float, bound: float, records: int, gap: float = 0.0) -> float:
    """Sensitivity of the best value where the evaluated l do not depend on V (a grid, Sobol points): min(g*, 2 L / least) / m [derived].

    The maximum over fixed points moves no more than its largest part does: the term in the range of l vanishes, which is what adaptive
    search costs. A solver's gap lengthens |w| alone, to at most 1/least + sqrt(2 h / least): the same w is scored on both data sets.
    """
    reach = 1.0 / require_positive("least", least) + _distance(least, gap)
    return min(require_positive("bound", bound), 2.0 * require_positive("lipschitz", lipschitz) * reach) / require_count("records", records)


def theorem_8(*, sensitivity: float, epsilon: float, a: float) -> float:
    """|released value - best found value| <= a sensitivity / epsilon with probability 1 - e^-a: the tail of a Laplace variable."""
    return require_positive("a", a) * require_positive("sensitivity", sensitivity) / require_positive("epsilon", epsilon)


def _distance(least: float, gap: float) -> float:
    """How far w may be from its minimiser, sqrt(2 h / least), by strong convexity."""
    return math.sqrt(2.0 * (0.0 if gap == 0 else require_positive("gap", gap)) / least)


def _require_range(least: float, most: float) -> None:
    if require_positive("least", least) > require_positive("most", most):
        raise InputError("least", least, "at most `most`", "Swap the ends.")
