"""From float scores to exact integers, record by record and unit by unit.

Each score becomes a whole multiple of a public power-of-two quantum: truncated toward zero, then
clipped in integers. So the bound on a unit's contribution is exact, and int64 sums have the same
bits in every order, chunk and shard.

Sizes: a lattice number is at most 2^39, and units * bound at most 2^61. With u public units the
quantum is the smallest power of two with width/quantum <= 2^min(39, 61 - ceil(log2 u)); a private
number of units counts as u = 2^32. Truncation moves a sum by at most 2 units * quantum (once per
record, once per unit) and a mean by at most two quanta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from dpbo.errors import InputError

MOST_ROWS_PER_UNIT = 1 << 22
MOST_UNITS = 1 << 32
MOST_SUM = 1 << 61
_BITS = 39
# the sum of this many lattice numbers of 2^39 stays below 2^53
_EXACT_BLOCK = 1 << 13
# rows, by type of device
_CHUNK = {"cpu": 1 << 18}
_DEVICE_CHUNK = 1 << 22


@dataclass(frozen=True)
class Lattice:
    """The public grid of a metric: `origin + k * quantum`, integer k from `low` to `high`."""

    origin: float
    quantum: float
    low: int
    high: int
    worst: int

    @classmethod
    # every evaluation of a search asks for the same
    @functools.lru_cache(maxsize=256)
    def over(
        cls,
        lower: float,
        upper: float,
        *,
        origin: float,
        worst: str | float,
        units: int | None,
        repeats: int = 1,
    ) -> Lattice:
        """The finest grid whose sums cannot overflow. The ends are rounded inward: (high - low) *
        quantum <= upper - lower, exactly.

        Args:
            lower, upper: public range of a score.
            origin: the score that counts as zero.
            worst: what NaN and infinities count as: the "lower" or the "upper" end, or a number
                between them.
            units: public number of units; None if it is private.
            repeats: how many times a unit counts at most.
        """
        below = Fraction(lower) - Fraction(origin)
        above = Fraction(upper) - Fraction(origin)
        if units is None:
            units = MOST_UNITS
        spare = math.ceil(math.log2(units * repeats))
        quantum = _power_of_two(max(abs(below), abs(above)) / 2 ** min(_BITS, 61 - spare))
        low = math.ceil(below / Fraction(quantum))
        high = math.floor(above / Fraction(quantum))
        # the origin is at most 2^93 quanta: floats that differ do so by 2^-54 of it
        if low >= high or quantum < 1e-290:
            raise InputError(
                "score_range",
                (lower, upper),
                "wide enough to be resolved in float64",
                "Rescale the score.",
            )
        if isinstance(worst, str):
            ends = {"lower": low, "upper": high}
            return cls(origin, quantum, low, high, ends[worst])
        step = int((Fraction(worst) - Fraction(origin)) / Fraction(quantum))
        return cls(origin, quantum, low, high, min(max(step, low), high))


def quantise(scores: Tensor, grid: Lattice, out: Tensor) -> Tensor:
    """Lattice numbers of a one-dimensional chunk of scores, as whole float64 numbers in the buffer
    `out`.

    NaN and infinities become `grid.worst`; everything else is truncated toward zero, then clipped.
    """
    steps = out[: len(scores)]
    steps.copy_(scores)
    # a finite sum has finite terms only
    all_finite = scores.device.type == "cpu" and math.isfinite(float(steps.sum()))
    offset = torch.full((), -grid.origin / grid.quantum, dtype=torch.float64, device=scores.device)
    torch.add(offset, steps, alpha=1.0 / grid.quantum, out=steps)
    truncate(steps).clamp_(grid.low, grid.high)
    if all_finite:
        return steps
    return steps.masked_fill_(~scores.isfinite(), grid.worst)


def truncate(numbers: Tensor) -> Tensor:
    """Truncates toward zero in place: on a CPU by numpy, whose loop is vectorised for float64 where
    torch's is not.
    """
    if numbers.device.type != "cpu":
        return numbers.trunc_()
    np.trunc(numbers.numpy(), out=numbers.numpy())
    return numbers


def sum_records(pieces: Iterable[Tensor], grids: Sequence[Lattice]) -> Tensor:
    """Sum of the records' lattice numbers, where each record is a unit: pieces of shape `rows x m`
    to int64 of shape `m`.
    """
    totals = torch.zeros(len(grids), dtype=torch.int64, device="cpu")
    for chunk, buffer in _chunks(pieces):
        sums = [_exact_sum(quantise(chunk[:, j], grid, buffer)) for j, grid in enumerate(grids)]
        totals = totals.to(chunk.device) + torch.stack(sums)
    return totals


def sum_units(
    pieces: Iterable[Tensor],
    grids: Sequence[Lattice],
    groups: Tensor,
    rows: Tensor,
    most: int,
) -> Tensor:
    """Sum over units of trunc(min(most, rows of the unit) * mean of its lattice numbers): int64,
    shape `m`.

    All rows of a unit are added before anything else, so their order cannot matter. With `most = 1`
    a unit counts as its mean.
    """
    return torch.stack(
        [_scaled_mean(sums, rows, most).sum() for sums in _unit_sums(pieces, grids, groups, rows)]
    )


def unit_means(
    pieces: Iterable[Tensor],
    grid: Lattice,
    groups: Tensor | None,
    rows: Tensor | None,
) -> Tensor:
    """Each unit's mean lattice number of a metric, truncated toward zero: int64, `units`."""
    if groups is not None and rows is not None:
        return _scaled_mean(_unit_sums(pieces, [grid], groups, rows)[0], rows, 1)
    numbers = [torch.zeros(0, dtype=torch.int64, device="cpu")]
    for chunk, buffer in _chunks(pieces):
        numbers.append(quantise(chunk[:, 0], grid, buffer).to(torch.int64))
        numbers[0] = numbers[0].to(chunk.device)
    return torch.cat(numbers)


def _unit_sums(
    pieces: Iterable[Tensor],
    grids: Sequence[Lattice],
    groups: Tensor,
    rows: Tensor,
) -> Tensor:
    """Sum of each unit's lattice numbers: `m x units`."""
    sums = torch.zeros(len(grids), len(rows), dtype=torch.int64, device=groups.device)
    start = 0
    for chunk, buffer in _chunks(pieces):
        labels = groups[start : start + len(chunk)]
        start += len(chunk)
        for j, grid in enumerate(grids):
            numbers = quantise(chunk[:, j], grid, buffer).to(torch.int64)
            sums[j].scatter_add_(0, labels, numbers.to(groups.device))
    return sums


def _scaled_mean(sums: Tensor, rows: Tensor, most: int) -> Tensor:
    """trunc(min(most, rows) * sums / rows) without overflow, from the whole part and the remainder
    (both have the sum's sign).
    """
    whole = torch.div(sums, rows, rounding_mode="trunc")
    if most == 1:
        return whole
    times = rows.clamp(max=most)
    return times * whole + torch.div(times * (sums - whole * rows), rows, rounding_mode="trunc")


def _exact_sum(steps: Tensor) -> Tensor:
    """int64 sum of whole float64 of at most 2^39: in blocks of 2^13 every partial sum is a whole
    number below 2^53, so exact.
    """
    even = len(steps) - len(steps) % _EXACT_BLOCK
    rest = steps[even:].sum().to(torch.int64)
    if even:
        return rest + steps[:even].view(-1, _EXACT_BLOCK).sum(1).to(torch.int64).sum()
    return rest


def _chunks(pieces: Iterable[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    """(chunk, float64 buffer of at least its length on its device)."""
    buffer: Tensor | None = None
    for piece in pieces:
        size = _CHUNK.get(piece.device.type, _DEVICE_CHUNK)
        if buffer is None or buffer.device != piece.device or len(buffer) < min(size, len(piece)):
            # each chunk is written into it before it is read
            buffer = torch.empty(min(size, len(piece)), dtype=torch.float64, device=piece.device)
        for chunk in piece.split(size):
            yield chunk, buffer


def _power_of_two(value: Fraction) -> float:
    """The least power of two that is at least `value`."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - 1
    while Fraction(2) ** exponent < value:
        exponent += 1
    return math.ldexp(1.0, exponent)
