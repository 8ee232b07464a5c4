"""Each unit's own gradient, clipped and summed: the question of DP-GIBO (arXiv 2502.06044, Algorithm 1).

The gradient at theta of a unit's loss is estimated by a public linear map of its losses at N points, g_i = W (y_i - center): the posterior
mean of a Gaussian process's gradient, where W comes from points and kernel alone. It is clipped to length B, and integers are summed
(vectors.py).
Sensitivity, in l2: a unit contributes one vector of length at most B that depends on its own records alone (assumption
`score-per-record`). REPLACE_ONE: 2B, reached by opposite vectors; ADD_OR_REMOVE_ONE: B. So linf is the same, l1 sqrt(d) times it.

Losses are minimised, so there is no worst one to fall to: a record whose loss is not finite at any of the points makes its unit contribute
the zero vector. With `loss_range` losses are clipped to it, and a unit's are the means of its records', on its lattice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity, require_positive, require_range
from dpbo.queries import score_evaluation
from dpbo.queries.gpu.gradient import can_fuse, fused_sum
from dpbo.queries.integers import Lattice, by_columns, unit_means
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import Finite, checked

# ========== MERGED From one real vector a unit to an exact sum of clipped integer vectors.
#
# A unit's vector is a public linear map of its numbers, g = W (y - center). Units are taken in chunks of one fixed shape, padded with
# zeros,
# so that the bits of a unit's vector depend on its own numbers alone: a matrix product's bits depend on its shape, and on whether a column
# stands in a whole tile (products.py sees to that), not on what stands beside. On a GPU one fused pass takes their place, fused.py.
#
# From g to whole numbers, each step elementwise or exact, so that equal g make equal integers on every device and in every order. With K =
# floor(B / q) and a = max(B, max |g_j|): k = g ((B/q) / a), rounded to whole numbers; s = sum k^2, exact in int64; where s > K^2, k becomes
# k (t / sqrt(s)), rounded, with t = K (1 - 2^-40) - sqrt(d) / 2. Every float64 operation here rounds correctly (IEEE 754: product,
# quotient,
# root), each by at most 2^-53 relative, and rounding to whole numbers moves a vector by at most sqrt(d) / 2: so its length is then at most
# t (1 + 2^-50) + sqrt(d) / 2 < K, and |g| counts as at most K q <= B. The squares are summed once more all the same, exactly: a vector that
# is longer, whatever the floats did, counts as zero, and so does one that is not finite.
#
# Sizes: q is a power of two with (B/q)^2 d <= 2^62 and B/q <= 2^28, so squares fit int64, and so do sums over 2^33 units.
# Cost: 2 n N d flops in the product; every other pass is over n d numbers, chunk by chunk in cache. Extra memory: a few chunks.
#

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


Loss = Callable[[torch.Tensor, Any], Any]
_UP = 1 + 1e-15


@checked
@dataclass(frozen=True, eq=False)
class ClippedGradient(Query):
    """The mean over units of clip(W y, B), divided in public.

    Args:
        loss: `loss(x, records)`, one number a record, smaller is better; each record by itself. x is float64 of shape `d`.
        X: points where the losses are wanted now, `b x d`.
        weights: W, `d x N`, float64: columns for the points of `earlier` answers first, then for X.
        clip: B, in units of the loss over those of the coordinates that W's rows stand for.
        center: public prior mean of the loss, taken off every loss.
        divisor: public number of units to divide by; omitted, their number, which only REPLACE_ONE makes public.
        earlier: handles whose losses are used again, in the order of W's columns. They stay with the curator.
        keep: whether this answer's losses stay with the curator for later ones.
        loss_range: public (lower, upper) to clip a record's loss to; required where units are groups of records.
    """

    loss: Loss
    X: torch.Tensor
    weights: torch.Tensor = field(kw_only=True)
    clip: float = field(kw_only=True)
    center: Finite = field(default=0.0, kw_only=True)
    divisor: float | None = field(default=None, kw_only=True)
    earlier: Sequence[Any] = field(default=(), kw_only=True)
    keep: bool = field(default=False, kw_only=True)
    loss_range: tuple[float, float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", require_positive("clip", self.clip, 1e-100, 1e100))
        object.__setattr__(self, "earlier", tuple(self.earlier))
        for name in ("X", "weights"):
            _require_matrix(name, getattr(self, name))
            object.__setattr__(self, name, getattr(self, name).detach().clone())
        if self.weights.shape[1] < len(self.X):
            raise InputError("weights", tuple(self.weights.shape), f"of shape d x N with N at least the {len(self.X)} points of X")
        if self.divisor is not None:
            require_positive("divisor", self.divisor, 1.0, 1e18)
        if self.loss_range is not None:
            object.__setattr__(self, "loss_range", require_range("loss_range", self.loss_range))

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        match adjacency:
            case Adjacency.REPLACE_ONE:
                l2 = 2 * self.clip
            case Adjacency.ADD_OR_REMOVE_ONE:
                l2 = self.clip
            case _:
                raise InputError("adjacency", adjacency, "REPLACE_ONE or ADD_OR_REMOVE_ONE")
        d = len(self.weights)
        return Sensitivity(l2 * math.sqrt(d) * _UP, l2, l2, (1.0,) * d)

    def require_public(self, adjacency: Adjacency) -> None:
        if self.divisor is None and adjacency is not Adjacency.REPLACE_ONE:
            raise InputError("divisor", None, "a public number under this adjacency", "Give a number fixed without looking at the data.")

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        divisor = self.divisor if self.divisor is not None else units
        assert divisor is not None, "require_public has run"
        return (0.0,) * len(self.weights), 1.0 / divisor

    def public_inputs(self) -> dict[str, Any]:
        return {
            "clip": self.clip,
            "center": self.center,
            "divisor": self.divisor,
            "loss_range": None if self.loss_range is None else list(self.loss_range),
        }

    def probe(self, example: Any, count: int, subject: Any) -> None:
        score_evaluation.try_on(
            self.loss, self.X[0].clone(), example, 1, count, lambda pieces: torch.cat([piece[:, 0] for piece in pieces])
        )

    def scored(self, subject: Any) -> tuple[Any, Any, Sequence[tuple[float, float]]]:
        return self.loss, self.X[0].clone(), ()

    def adds_up(self) -> bool:
        return True

    def quanta(self) -> tuple[float, ...]:
        """The public lattice of the released sum."""
        return (quantum_of(self.clip, len(self.weights)),) * len(self.weights)

    def handles(self) -> Sequence[Any]:
        return self.earlier

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if self.loss_range is None and view.groups is not None:
            raise InputError("loss_range", None, "a public pair (lower, upper) where units are groups of records")
        fresh: list[torch.Tensor] = []
        own = view.storages()
        for x in self.X:
            column = score_evaluation.over_records(self.loss, x.clone(), view, 1, lambda pieces: self._column(pieces, view, own))
            if isinstance(column, Failure):
                return column
            fresh.append(column)
        columns = [*(column for kept in view.kept for column in kept), *fresh]
        if len(columns) != self.weights.shape[1]:
            raise InputError("weights", tuple(self.weights.shape), f"of shape d x N with N = {len(columns)} points in all")
        total = clipped_sum(columns, self.weights, self.clip, self.quanta()[0], self.center)
        return IntegerSum(total.cpu(), self.quanta(), tuple(fresh) if self.keep else None)

    def _column(self, pieces: Iterable[torch.Tensor], view: View, own: frozenset[int]) -> torch.Tensor:
        """Each unit's loss at one point; NaN where one of its records has none."""
        losses = collected(pieces, view.device, own, self._stored(view.device))
        if self.loss_range is None:
            return losses
        grid = Lattice.over(*self.loss_range, origin=0.0, worst="upper", units=view.public_units)
        losses = losses if view.groups is None else losses.to(view.groups.device)
        means = unit_means([losses.unsqueeze(1)], grid, view.groups, view.rows).to(torch.float64) * grid.quantum
        broken = ~losses.isfinite()
        means[broken if view.groups is None else view.groups[broken]] = torch.nan
        return means.to(self._stored(view.device))

    def _stored(self, device: torch.device) -> torch.dtype:
        """What losses are kept as; public, as every unit's numbers are rounded to it: float32 where the fused kernel reads them."""
        return torch.float32 if can_fuse(device, len(self.weights)) else torch.float64


def collected(pieces: Iterable[torch.Tensor], device: torch.device, own: frozenset[int], dtype: torch.dtype) -> torch.Tensor:
    """One column of all records on the records' device: a copy, because a loss may use its buffer again, but for a view of the records.

    Every number goes through float64: so do those that were scored on the CPU because the loss failed on one record, and all others'
    bits must not tell of that. A view is taken as it is where that changes no number.
    """
    parts = []
    for piece in pieces:
        lent = device == piece.device and piece.untyped_storage().data_ptr() in own and dtype in (torch.float64, piece.dtype)
        parts.append(piece[:, 0] if lent else piece[:, 0].to(device, torch.float64, copy=True).to(dtype))
    if not parts:
        return torch.zeros(0, dtype=dtype, device=device)
    return parts[0] if len(parts) == 1 else torch.cat([part.to(dtype) for part in parts])


def _require_matrix(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.ndim != 2 or 0 in value.shape:
        raise InputError(
            name, tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__, "a tensor of two dimensions"
        )
    if value.dtype != torch.float64:
        raise InputError(name, value.dtype, "float64", "Use .double().")
    if not bool(value.isfinite().all()):
        raise InputError(name, "with NaN or infinite entries", "finite")
