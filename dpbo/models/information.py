"""How much T observations of a candidate set could tell at most: gamma_T = max over A, |A| = T, of 1/2 log det(I + K_A / noise).

The gain is monotone and submodular, so the greedy choice of the largest variance is within 1 - 1/e of the best (Nemhauser et al. 1978),
and after any i greedy choices the best T gain at most T times the next one beyond them. Both bounds depend on the candidates, the
kernel, the noise and T alone, never on a value that was seen: they may set the scale of noise, which a run's own gain may not.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from dpbo.checking import POINTS, checked
from dpbo.models.finite import FiniteGP
from dpbo.privacy import require_count


def greedy_gains(candidates: Tensor, kernel: Kernel, noise: float, observations: int) -> list[float]:
    """1/2 log(1 + s^2 / noise) of each of `observations` greedy choices, nats; `candidates` `n x d`. Costs n T^2 flops."""
    model = FiniteGP(candidates, kernel, noise, capacity=require_count("observations", observations))
    gains = []
    for _ in range(observations):
        variance, index = model.variance.max(-1)
        gains.append(0.5 * math.log1p(float(variance) / noise))
        model.observe(index, 0.0)  # the variance does not depend on the value
    return gains


@checked
def information_gain_bound(candidates: Annotated[Tensor, POINTS], kernel: Kernel, noise: float, observations: int) -> float:
    """An upper bound on gamma_T in nats, repeated observations included.

    The smaller of greedy / (1 - 1/e) (Kusner et al. cite Srinivas et al. 2010 for the order alone) and, over i, the gain of i greedy
    choices plus T times the next gain [derived from submodularity]; i = 0 gives T/2 log(1 + k(x, x) / noise).

    Raises:
        InputError: an argument out of range.
    """
    gains = torch.tensor(greedy_gains(candidates, kernel, noise, observations), dtype=torch.float64)
    before = gains.cumsum(0) - gains
    return min(float(gains.sum()) / (1.0 - math.exp(-1.0)), float((before + observations * gains).min()))
