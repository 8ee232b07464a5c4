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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.checking import Finite, checked
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity, require_positive, require_range
from dpbo.queries import scoring
from dpbo.queries.fused import can_fuse
from dpbo.queries.integers import Lattice, unit_means
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.queries.vectors import clipped_sum, quantum_of

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
        scoring.try_on(self.loss, self.X[0].clone(), example, 1, count, lambda pieces: torch.cat([piece[:, 0] for piece in pieces]))

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
            column = scoring.over_records(self.loss, x.clone(), view, 1, lambda pieces: self._column(pieces, view, own))
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
