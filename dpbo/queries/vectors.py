"""From one real vector a unit to an exact sum of clipped integer vectors.

A unit's vector is a public linear map of its numbers, g = W (y - center). Units are taken in chunks of one fixed shape, padded with zeros,
so that the bits of a unit's vector depend on its own numbers alone: a matrix product's bits depend on its shape, and on whether a column
stands in a whole tile (products.py sees to that), not on what stands beside. On a GPU one fused pass takes their place, fused.py.

From g to whole numbers, each step elementwise or exact, so that equal g make equal integers on every device and in every order. With K =
floor(B / q) and a = max(B, max |g_j|): k = g ((B/q) / a), rounded to whole numbers; s = sum k^2, exact in int64; where s > K^2, k becomes
k (t / sqrt(s)), rounded, with t = K (1 - 2^-40) - sqrt(d) / 2. Every float64 operation here rounds correctly (IEEE 754: product, quotient,
root), each by at most 2^-53 relative, and rounding to whole numbers moves a vector by at most sqrt(d) / 2: so its length is then at most
t (1 + 2^-50) + sqrt(d) / 2 < K, and |g| counts as at most K q <= B. The squares are summed once more all the same, exactly: a vector that
is longer, whatever the floats did, counts as zero, and so does one that is not finite.

Sizes: q is a power of two with (B/q)^2 d <= 2^62 and B/q <= 2^28, so squares fit int64, and so do sums over 2^33 units.
Cost: 2 n N d flops in the product; every other pass is over n d numbers, chunk by chunk in cache. Extra memory: a few chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from dpbo.queries.fused import can_fuse, fused_sum
from dpbo.queries.products import by_columns

_ROWS = {"cpu": 3840}  # whole tiles of a product, 12, 16 or 24 wide: what is left over beside them is added up in another order
_DEVICE_ROWS = 1 << 16
_BITS = 28
_SHORTER = 1.0 - 2.0**-40


def quantum_of(clip: float, dimension: int) -> float:
    """q, from public numbers."""
    bits = min(_BITS, (62 - math.ceil(math.log2(dimension))) // 2)
    return math.ldexp(1.0, math.frexp(clip)[1] - bits)


def clipped_sum(columns: Sequence[torch.Tensor], weights: torch.Tensor, clip: float, quantum: float, center: float = 0.0) -> torch.Tensor:
    """Sum over units of clip(W (y - center), B) in multiples of the quantum: int64 of shape `d`.

    Args:
        columns: N tensors of shape `units`, y_j of every unit.
        weights: W, `d x N`, float64.
        clip, quantum: B and q.
        center: taken off every number.
    """
    if can_fuse(columns[0].device, len(weights)):
        return fused_sum(columns, weights, clip, quantum, center, aim=aim_of(math.floor(clip / quantum), len(weights)))
    total = torch.zeros(len(weights), dtype=torch.int64, device=columns[0].device)
    for vectors, count in _products(columns, weights, center):
        total += _clipped(vectors, clip, quantum)[:, :count].sum(1)
    return total


def lengths(columns: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """|W y| of every unit, `units`; each from its own numbers alone, as above."""
    return torch.cat([vectors.square().sum(0).sqrt()[:count] for vectors, count in _products(columns, weights, 0.0)])


def _products(columns: Sequence[torch.Tensor], weights: torch.Tensor, center: float) -> Iterator[tuple[torch.Tensor, int]]:
    """(W (y - center) of one full chunk, `d x rows`, how many of its columns are units): every operation on it has one fixed shape."""
    units, device, d = len(columns[0]), columns[0].device, len(weights)
    rows = _ROWS.get(device.type, _DEVICE_ROWS)
    W = torch.zeros(max(d, 2), len(columns), dtype=torch.float64, device=device)  # one row would take another product's path
    W[:d] = weights
    buffer = torch.zeros(len(columns), rows, dtype=torch.float64, device=device)
    for start in range(0, units, rows):
        count = min(rows, units - start)
        for row, column in zip(buffer, columns, strict=True):
            row[:count].copy_(column[start : start + count])
        if center:
            buffer.sub_(center)
        buffer[:, count:] = 0.0
        yield by_columns(W, buffer)[:d], count


def aim_of(most: int, dimension: int) -> float:
    """t: the length, in quanta, that floats aim at, so that no rounding passes K."""
    return most * _SHORTER - math.sqrt(dimension) / 2


def _clipped(g: torch.Tensor, clip: float, quantum: float) -> torch.Tensor:
    """Columns as whole multiples of the quantum, of squared length at most floor(B/q)^2: `d x units`, int64."""
    most = math.floor(clip / quantum)
    largest = g.abs().amax(0).clamp_(min=clip)
    finite = largest.isfinite()
    k = g * (g.new_tensor(clip / quantum) / largest)  # a number over a tensor would be its reciprocal's product
    if not bool(finite.all()):  # a branch for time alone: whoever is finite keeps every bit
        k = torch.where(finite, k, 0.0)
    whole, squares = _rounded(k)
    if bool((squares > most**2).any()):
        ratio = g.new_tensor(aim_of(most, len(g))) / squares.to(torch.float64).sqrt()
        whole, squares = _rounded(k.mul_(torch.where(squares > most**2, ratio, 1.0)))
    return torch.where(squares > most**2, 0, whole)


def _rounded(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns rounded, in place and as int64, and their exact squared lengths."""
    whole = k.round_().to(torch.int64)
    return whole, whole.square().sum(0)
