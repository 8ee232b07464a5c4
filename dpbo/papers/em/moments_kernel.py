"""`MixtureMoments.sum_points` in one pass on a GPU: places, whole numbers, weights and sums, without a record's statistics in memory.

A program takes ROWS records at a time, one a thread. They become whole numbers by the steps of ball.py, in float64 and in the same order:
without a matrix they are those of the CPU. Logits are float64, exponentials float32, which is enough for weights of eleven bits. They
become whole weights that sum to 2^a exactly as on the CPU, and differ from the CPU's by a step where rounding is that close. Products of
whole weights and coordinates are exact in float64, and so are sums over 2^11 blocks, which then add up in int64. A record's part depends on
its own numbers alone, and whether this path is taken depends on public things: device, dimension, components, covariance.

Reads each record once. Instructions a record at d = 2, K = 5, F = 6, counted in the code compiled for sm_90: 338, of them 119 in float64
(2 K F are the multiply-adds of logits and sums) and K exponentials. From 41 sums on theta is read again for each record and leaves its
registers to the sums: nothing spills to K = 10 at d = 2, nor at d = 9, K = 3, diagonal (test_compiled.py). Above 64: the torch path.
"""

import functools
import math

import torch

from dpbo.papers.em.moment_features import width_of
from dpbo.queries.ball import Ball, Resolution
from dpbo.queries.gpu.device import multiprocessors, passes_trial

_MOST_SUMS = 64  # each takes two registers in every thread
_ROWS = 128
_TOGETHER = 1 << 11  # blocks between two flushes: products are below 2^41 (ball.py)
_PROGRAMS = 4  # per multiprocessor


def can_sum_in_one_pass(device: torch.device, components: int, dimension: int, covariance: str) -> bool:
    """Whether the moments of records on this device are summed in one pass."""
    few = components * width_of(covariance, dimension) <= _MOST_SUMS
    return device.type == "cuda" and few and _works(device, components, dimension, covariance)


@functools.cache
def _works(device: torch.device, components: int, dimension: int, covariance: str) -> bool:
    """Whether the kernel of these sizes compiles and gives right counts, tried once; if not, a warning says why."""
    kernel, steps = f"moments kernel of {components} components in {dimension} dimensions", Resolution(2, 2, 2)
    natural = torch.zeros(components, width_of(covariance, dimension), dtype=torch.float64)

    def is_right() -> bool:
        X = torch.tensor([0.5, math.nan, 2.0], dtype=torch.float64, device=device).unsqueeze(1).repeat(1, dimension)
        found = one_pass_moments(X, natural, Ball(1.0), steps, covariance)
        return int(found.view(components, -1)[:, 0].sum()) == 2 << steps.weight_bits

    return passes_trial(kernel, device, is_right)


def one_pass_moments(X: torch.Tensor, natural: torch.Tensor, ball: Ball, steps: Resolution, covariance: str) -> torch.Tensor:
    """Sums over records of gamma_k phi_f in whole numbers: int64 of shape `K F`.

    Args:
        X: records, shape `n x d`.
        natural: theta for whole coordinates, shape `K x F`, float64.
        steps: the resolution of weights and coordinates.
    """
    from dpbo.queries.gpu.kernels import moment_sum

    X = (X if X.dtype in (torch.float32, torch.float64) else X.double()).resolve_neg()
    units, d, K = len(X), X.shape[1], len(natural)
    # in memory: Triton counts in 32 bits for arguments and compiles anew for what divides them, and the number of units is private
    shape = torch.tensor([units, *X.stride()])
    center = [0.0] * d if ball.center is None else ball.center.tolist()
    matrix = [1.0 / ball.radius] if ball.matrix is None else (ball.matrix / ball.radius).flatten().tolist()
    numbers = [float(1 << steps.bits), ball.radius, *center, *matrix, *natural.flatten().tolist()]
    there = torch.cat([shape, torch.tensor(numbers, dtype=torch.float64).view(torch.int64)]).to(X.device)  # one copy
    total = torch.zeros(natural.numel(), dtype=torch.int64, device=X.device)
    programs = min(math.ceil(units / _ROWS), _PROGRAMS * multiprocessors(X.device))
    if programs:
        with torch.cuda.device_of(X):  # type: ignore[no-untyped-call]  # Triton launches on the current device
            moment_sum[(programs,)](
                X, total, there[3:].view(torch.float64), there[:3],
                D=d, K=K, COVARIANCE=covariance, TURNED=ball.matrix is not None, WHOLE=1 << steps.weight_bits,
                ROWS=_ROWS, TOGETHER=_TOGETHER, num_warps=_ROWS // 32, enable_fp_fusion=False,
            )  # fmt: skip
    return total
