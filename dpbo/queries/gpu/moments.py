"""`MixtureMoments.sum_points` in one pass on a GPU: places, whole numbers, weights and sums, without a record's statistics in memory.

A program takes ROWS records at a time, one a thread. They become whole numbers by the steps of ball.py, in float64 and in the same order:
without a matrix they are those of the CPU. Logits are float64, exponentials float32, which is enough for weights of eleven bits. They
become whole weights that sum to 2^a exactly as on the CPU, and differ from the CPU's by a step where rounding is that close. Products of
whole weights and coordinates are exact in float64, and so are sums over 2^11 blocks, which then add up in int64. A record's part depends on
its own numbers alone, and whether this path is taken depends on public things: device, dimension, components, covariance.

Reads each record once. Operations a record at d = 2, K = 5, F = 6, counted in the code compiled for sm_90: 155 in float64 (2 K F of them
the multiply-adds of logits and sums), K exponentials and about 120 others in float32.
"""

import functools
import math

import torch

from dpbo.queries.ball import Ball, Resolution
from dpbo.queries.gpu.gradient import multiprocessors
from dpbo.queries.moment_features import width_of

_MOST_SUMS = 64  # each takes two registers in every thread
_ROWS = 128
_TOGETHER = 1 << 11  # blocks between two flushes: products are below 2^41 (ball.py)
_PROGRAMS = 4  # per multiprocessor


def can_sum_in_one_pass(device: torch.device, components: int, dimension: int, covariance: str) -> bool:
    """Whether the moments of records on this device are summed in one pass."""
    return device.type == "cuda" and components * width_of(covariance, dimension) <= _MOST_SUMS and _works(device)


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether the kernel compiles and gives a right sum, tried once."""
    try:
        X = torch.tensor([[0.5], [math.nan], [2.0]], dtype=torch.float64, device=device)
        found = one_pass_moments(X, torch.zeros(2, 3, dtype=torch.float64), Ball(1.0), Resolution(2, 2, 2), "full")
        return found.tolist() == [4, 12, 40] * 2
    except torch.OutOfMemoryError:  # not cached: there may be memory the next time
        raise
    except Exception:
        return False


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
    shape = torch.tensor([units, *X.stride()], dtype=torch.int64, device=X.device)
    center = [0.0] * d if ball.center is None else ball.center.tolist()
    matrix = [] if ball.matrix is None else (ball.matrix / ball.radius).flatten().tolist()
    numbers = [float(1 << steps.bits), ball.radius, *center, *matrix, *natural.flatten().tolist()]
    total = torch.zeros(natural.numel(), dtype=torch.int64, device=X.device)
    programs = min(math.ceil(units / _ROWS), _PROGRAMS * multiprocessors(X.device))
    if programs:
        with torch.cuda.device_of(X):  # type: ignore[no-untyped-call]  # Triton launches on the current device
            moment_sum[(programs,)](
                X, total, torch.tensor(numbers, dtype=torch.float64, device=X.device), shape,
                D=d, K=K, COVARIANCE=covariance, TURNED=ball.matrix is not None, WHOLE=1 << steps.weight_bits,
                ROWS=_ROWS, TOGETHER=_TOGETHER, num_warps=_ROWS // 32, enable_fp_fusion=False,
            )  # fmt: skip
    return total
