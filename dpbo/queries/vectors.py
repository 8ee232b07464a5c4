"""From one real vector a unit to an exact sum of clipped integer vectors.

A unit's vector is a public linear map of its numbers, g = W y. Units are taken in chunks of one fixed shape, padded with zeros, so that
the bits of a unit's vector depend on its own numbers alone (a matrix product's bits depend on its shape, not on what stands beside).

From g to whole numbers, each step elementwise or exact, so that equal g make equal integers on every device and in every order. With K =
floor(B / q) and a = max(B, max |g_j|): k = g (B/q) / a, truncated toward zero, so |k_j| <= K; s = sum k^2, exact in int64; where s > K^2, k
becomes k K (1 - 2^-40) / sqrt(s), truncated. Every float64 operation here rounds correctly (IEEE 754: product, quotient, root), each by at
most 2^-53 relative, and truncation shortens: so sum k^2 <= K^2 (1 - 2^-40)^2 (1 + 2^-50) < K^2, and every length is at most K q <= B. It is
checked in integers all the same, and cut there if it were longer, whatever the floats did. A vector that is not finite counts as zero.

Sizes: q is a power of two with (B/q)^2 d <= 2^62 and B/q <= 2^28, so squares and products fit int64, and so do sums over 2^33 units.
Cost: 2 n N d flops in the product; every other pass is over n d numbers, chunk by chunk in cache. Extra memory: a few chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from dpbo.queries.fused import can_fuse, fused_sum

_ROWS = {"cpu": 4096}  # a multiple of 16
_DEVICE_ROWS = 1 << 16
_BITS = 28
_SHORTER = 1.0 - 2.0**-40


def quantum_of(clip: float, dimension: int) -> float:
    """q, from public numbers."""
    bits = min(_BITS, (62 - math.ceil(math.log2(dimension))) // 2)
    return math.ldexp(1.0, math.frexp(clip)[1] - bits)


def clipped_sum(
    columns: Sequence[torch.Tensor], weights: torch.Tensor, clip: float, quantum: float, offset: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum over units of clip(W y - offset) in multiples of the quantum: int64 of shape `d`.

    Args:
        columns: N tensors of shape `units`, y_j of every unit.
        weights: W, `d x N`, float64.
        clip, quantum: B and q.
        offset: the same for every unit, `d`.
    """
    if can_fuse(columns, len(weights)):
        shift = torch.zeros(len(weights), dtype=torch.float64) if offset is None else offset
        return fused_sum(columns, weights, clip, quantum, shift, shorter=_SHORTER)
    total = torch.zeros(len(weights), dtype=torch.int64, device=columns[0].device)
    for vectors, count in _products(columns, weights, offset):
        total += _clipped(vectors, clip, quantum)[:, :count].sum(1)
    return total


def lengths(columns: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """|W y| of every unit, `units`; each from its own numbers alone, as above."""
    return torch.cat([vectors.square().sum(0).sqrt()[:count] for vectors, count in _products(columns, weights, None)])


def _products(columns: Sequence[torch.Tensor], weights: torch.Tensor, offset: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, int]]:
    """(W y - offset of one full chunk, `d x rows`, how many of its columns are units): every operation on it has one fixed shape."""
    units, device, d = len(columns[0]), columns[0].device, len(weights)
    rows = _ROWS.get(device.type, _DEVICE_ROWS)
    W = torch.zeros(max(d, 2), len(columns), dtype=torch.float64, device=device)  # one row would take another product's path
    W[:d] = weights
    shift = torch.zeros(d, 1, dtype=torch.float64, device=device) if offset is None else offset.to(device).unsqueeze(1)
    buffer = torch.zeros(len(columns), rows, dtype=torch.float64, device=device)
    for start in range(0, units, rows):
        count = min(rows, units - start)
        for row, column in zip(buffer, columns, strict=True):
            row[:count].copy_(column[start : start + count])
        buffer[:, count:] = 0.0
        yield (W @ buffer)[:d] - shift, count


def _clipped(g: torch.Tensor, clip: float, quantum: float) -> torch.Tensor:
    """Columns as whole multiples of the quantum, of squared length at most floor(B/q)^2: `d x units`, int64."""
    most = math.floor(clip / quantum)
    largest = g.abs().amax(0).clamp_(min=clip)
    scaled = g * (g.new_tensor(clip / quantum) / largest)  # a number over a tensor would be its reciprocal's product
    finite = largest.isfinite()
    if not bool(finite.all()):  # a branch for time alone: whoever is finite keeps every bit
        scaled = torch.where(finite, scaled, 0.0)
    k = scaled.trunc_().clamp_(-most, most)
    squares = _squared(k)
    if bool((squares > most * most).any()):
        k.mul_(torch.where(squares > most * most, g.new_tensor(most * _SHORTER) / squares.to(torch.float64).sqrt(), 1.0)).trunc_()
        squares = _squared(k)
    whole = k.to(torch.int64)
    if bool((squares > most * most).any()):
        root = squares.to(torch.float64).sqrt().to(torch.int64) + 2  # never below the true root
        whole = torch.where(squares > most * most, torch.div(whole * most, root, rounding_mode="trunc"), whole)
    return whole


def _squared(k: torch.Tensor) -> torch.Tensor:
    """Of whole float64 columns, exactly: int64."""
    return k.to(torch.int64).square().sum(0)
