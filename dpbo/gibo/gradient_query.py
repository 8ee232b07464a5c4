"""The query of DP-GIBO: each unit's own gradient, clipped and summed (arXiv 2502.06044, Algorithm
1).

`ClippedGradient` is the query. `clipped_sum` turns one real vector a unit into an exact sum of
clipped integer vectors.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np
import torch

from dpbo.errors import InputError
from dpbo.gibo.gradient_kernel import by_points, can_sum_in_one_pass, empty_slab, one_pass_sum
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries import score_evaluation
from dpbo.queries.ball import FLOAT64
from dpbo.queries.clipped import Divisor
from dpbo.queries.integers import Lattice, unit_means
from dpbo.queries.products import deterministic_matmul
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import Finite, ScoreRange, Within, between, checked_constructor

Loss = Callable[[torch.Tensor, Any], Any]
Matrix = Annotated[
    torch.Tensor,
    Within("of two dimensions, none empty", lambda value: value.ndim == 2 and 0 not in value.shape),
    FLOAT64,
]
# units in a chunk: a multiple of 12, 16 and 24, the widths of a product's tiles
_ROWS = {"cpu": 3840}
_DEVICE_ROWS = 1 << 16
# units, and their losses at all points, that are in memory at once
_ROWS_AT_ONCE = 1 << 16
_LOSSES_AT_ONCE = 1 << 23
_BITS = 28
_SHORTER = 1.0 - 2.0**-40


@checked_constructor
@dataclass(frozen=True, eq=False)
class ClippedGradient(Query):
    """The mean over units of each unit's own gradient, clipped to length B. The noised sum is
    divided by `divisor` after the release.

    The gradient at theta of a unit's loss is estimated by a public linear map of its losses at N
    points, g_i = W (y_i - center). It is the posterior mean of a Gaussian process's gradient, where
    W follows from the points and the kernel alone. g_i is clipped to length B, and whole numbers
    are summed (`clipped_sum`).

    Sensitivity, in l2: a unit contributes one vector of length at most B that depends on its own
    records alone (assumption `score-per-record`). REPLACE_ONE: 2B, attained by opposite vectors;
    ADD_OR_REMOVE_ONE: B. linf is the same, l1 sqrt(d) times it.

    Losses are minimised, so there is no worst value that a failed one could count as: a record
    whose loss is not finite at any of the points makes its unit contribute the zero vector. With
    `loss_range` losses are clipped to it, and a unit's loss is the mean of its records', on a
    lattice.

    On the CPU the losses of 2^16 units at all points are in memory at once, of fewer above 128
    points. Where answers are kept, those of all units stay there: 8 bytes a unit and point.

    Args:
        loss: `loss(x, records)` returns one number a record, smaller is better, each record on its
            own. x is float64 of shape `d`.
        X: the b points at which the loss is evaluated, shape `b x d`, float64.
        weights: W, shape `d x N`, float64: columns for the points of `earlier` answers first, then
            for X.
        clip: B, the largest length of one unit's gradient, from 1e-100 to 1e100, in units of the
            loss per unit of the coordinates that W's rows stand for.
        center: public prior mean of the loss, subtracted from every loss.
        divisor: public number of units that the noised sum is divided by; by default their true
            number, which only REPLACE_ONE makes public.
        earlier: handles of earlier answers whose losses are used again, in the order of W's
            columns. The losses stay with the curator.
        keep: whether this answer's losses stay with the curator for later queries.
        loss_range: public (lower, upper) that a record's loss is clipped to; required where units
            are groups of records.
    """

    per_unit = True
    loss: Loss
    X: Matrix
    _: KW_ONLY
    weights: Matrix
    clip: Annotated[float, between(1e-100, 1e100)]
    center: Finite = 0.0
    divisor: Divisor | None = None
    earlier: Sequence[Any] = ()
    keep: bool = False
    loss_range: ScoreRange | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "earlier", tuple(self.earlier))
        for name in ("X", "weights"):
            object.__setattr__(self, name, getattr(self, name).detach().clone())
        if self.weights.shape[1] < len(self.X):
            raise InputError(
                "weights",
                tuple(self.weights.shape),
                f"of shape d x N with N at least the {len(self.X)} points of X",
            )

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if adjacency not in (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE):
            raise InputError("adjacency", adjacency, "REPLACE_ONE or ADD_OR_REMOVE_ONE")
        l2 = self.clip
        if adjacency is Adjacency.REPLACE_ONE:
            l2 = 2 * self.clip
        return Sensitivity.of_l2(l2, (1.0,) * len(self.weights))

    def require_public(self, adjacency: Adjacency) -> None:
        if self.divisor is None and adjacency is not Adjacency.REPLACE_ONE:
            remedy = "Give a number that was fixed without looking at the data."
            raise InputError("divisor", None, "a public number under this adjacency", remedy)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        divisor = self.divisor or units
        assert divisor is not None, "require_public has run"
        return (0.0,) * len(self.weights), 1.0 / divisor

    def public_inputs(self) -> dict[str, Any]:
        return {
            "clip": self.clip,
            "center": self.center,
            "divisor": self.divisor,
            "loss_range": self.loss_range and list(self.loss_range),
        }

    def try_on(self, device: torch.device) -> None:
        can_sum_in_one_pass(device, self.weights, self.clip)

    def probe(self, example: Any, count: int, subject: Any) -> None:
        score_evaluation.probe_score(
            self.loss,
            self.X[0].clone(),
            example,
            1,
            count,
            lambda pieces: torch.cat([piece[:, 0] for piece in pieces]),
        )

    def per_record_scores(
        self, subject: Any
    ) -> Sequence[tuple[Any, Any, Sequence[tuple[float, float]]]]:
        return [(self.loss, x.clone(), ()) for x in self.X]

    def scores_one_at_a_time(self) -> bool:
        return True

    def sums_over_units(self) -> bool:
        return True

    def rows_at_once(self) -> int | None:
        # Losses that are kept for later are in memory in any case.
        if self.keep or self.earlier:
            return None
        return min(_ROWS_AT_ONCE, max(_ROWS["cpu"], _LOSSES_AT_ONCE // len(self.X)))

    def quanta(self, units: int | None = None) -> tuple[float, ...]:
        return (quantum_of(self.clip, len(self.weights)),) * len(self.weights)

    def handles(self) -> Sequence[Any]:
        return self.earlier

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if self.loss_range is None and view.groups is not None:
            raise InputError(
                "loss_range", None, "a public pair (lower, upper) where units are groups of records"
            )
        in_one_pass = can_sum_in_one_pass(view.device, self.weights, self.clip)
        # The dtype is public, as every unit's numbers are rounded to it: float32 where the kernel
        # reads them.
        dtype = torch.float32 if in_one_pass else torch.float64
        fresh: list[torch.Tensor] = []
        own = view.storages()
        for x in self.X:
            column = score_evaluation.score_records(
                self.loss,
                x.clone(),
                view,
                1,
                lambda pieces: self._unit_losses(pieces, view, own, dtype),
            )
            if isinstance(column, Failure):
                return column
            fresh.append(column)
        if in_one_pass:
            fresh = [torch.stack(fresh, out=empty_slab(len(fresh), len(fresh[0]), fresh[0].device))]
        losses = list[torch.Tensor]()
        for center, *earlier in view.earlier:
            if center != self.center:
                moved = self.center - center
                earlier = [(y.to(torch.float64) - moved).to(y.dtype) for y in earlier]
            losses += earlier
        losses += fresh
        points = sum(len(by_points(y)) for y in losses)
        if points != self.weights.shape[1]:
            raise InputError(
                "weights",
                tuple(self.weights.shape),
                f"of shape d x N with N = {points} points in all",
            )
        total = clipped_sum(losses, self.weights, self.clip, self.quanta()[0])
        kept = (self.center, *fresh) if self.keep else None
        return IntegerSum(total.cpu(), self.quanta(), kept)

    def _unit_losses(
        self,
        pieces: Iterable[torch.Tensor],
        view: View,
        own: frozenset[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Each unit's loss at one point, less the center, which could drown it in float32; NaN
        where one of its records has none.
        """
        if self.loss_range is None:
            return loss_column(pieces, view.device, own, dtype, self.center)
        losses = loss_column(pieces, view.device, own, dtype)
        grid = Lattice.over(*self.loss_range, origin=0.0, worst="upper", units=view.public_units)
        broken = ~losses.isfinite()
        if view.groups is not None:
            losses = losses.to(view.groups.device)
            broken = view.groups[broken.to(view.groups.device)]
        steps = unit_means([losses.unsqueeze(1)], grid, view.groups, view.rows)
        means = steps.to(torch.float64) * grid.quantum
        means[broken] = torch.nan
        return means.sub_(self.center).to(dtype)


def loss_column(
    pieces: Iterable[torch.Tensor],
    device: torch.device,
    own: frozenset[int],
    dtype: torch.dtype,
    center: float = 0.0,
) -> torch.Tensor:
    """The losses of all records less `center`, shape `n`, on the records' device.

    They are copied, because a loss may use its buffer again; only a view of the records (storages
    in `own`) is taken as it is. Every number is converted to float64 first: if the loss fails on
    one record, all are scored on the CPU in float64, and the bits of the others must not show that.
    A view is converted too, unless that changes no number.
    """
    parts = []
    for piece in pieces:
        lent = (
            not center
            and device == piece.device
            and piece.untyped_storage().data_ptr() in own
            and dtype in (torch.float64, piece.dtype)
        )
        losses = piece[:, 0]
        if not lent:
            losses = losses.to(device, torch.float64, copy=True).sub_(center).to(dtype)
        parts.append(losses)
    if not parts:
        return torch.zeros(0, dtype=dtype, device=device)
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.to(dtype) for part in parts])


def quantum_of(clip: float, dimension: int) -> float:
    """q, the public quantum of a gradient of this dimension clipped to this length."""
    bits = min(_BITS, (62 - math.ceil(math.log2(dimension))) // 2)
    return math.ldexp(1.0, math.frexp(clip)[1] - bits)


def clipped_sum(
    losses: Sequence[torch.Tensor],
    weights: torch.Tensor,
    clip: float,
    quantum: float,
) -> torch.Tensor:
    """Sum over units of clip(W y, B) in multiples of the quantum q: int64 of shape `d`.

    Units are taken in chunks of one fixed shape, padded with zeros, so that the bits of a unit's
    vector g = W y depend on its own numbers alone (`deterministic_matmul`). On a GPU one
    pass over the losses takes their place (gradient_kernel.py).

    From g to whole numbers every step is elementwise or exact, so that equal g make equal integers
    on every device and in every order. With K = floor(B / q) and a = max(B, max |g_j|): k = g
    ((B/q) / a), rounded to whole numbers; s = sum k^2, exact in int64; where s > K^2, k becomes
    k (t / sqrt(s)), rounded, with t = K (1 - 2^-40) - sqrt(d) / 2. Every float64 operation here
    rounds correctly (IEEE 754: product, quotient, root), each by at most 2^-53 relative, and
    rounding to whole numbers moves a vector by at most sqrt(d) / 2: so its length is then at most
    t (1 + 2^-50) + sqrt(d) / 2 < K, and |g| counts as at most K q <= B. The squares are summed once
    more all the same, exactly: a vector that is longer, whatever the floats did, counts as zero,
    and so does one that is not finite.

    Sizes: q is a power of two with (B/q)^2 d <= 2^62 and B/q <= 2^28, so squares fit int64, and so
    do sums over 2^33 units. Cost: 2 n N d flops in the product; every other pass is over n d
    numbers, chunk by chunk in cache. Extra memory: a few chunks.

    Args:
        losses: tensors of shape `units` or `points x units`, N points in all: y_j of every unit.
        weights: W, `d x N`, float64.
        clip, quantum: B and q.
    """
    if can_sum_in_one_pass(losses[0].device, weights, clip):
        aim = aim_of(math.floor(clip / quantum), len(weights))
        return one_pass_sum(losses, weights, clip, quantum, aim=aim)
    columns = list(itertools.chain.from_iterable(map(by_points, losses)))
    total = torch.zeros(len(weights), dtype=torch.int64, device=columns[0].device)
    whole = None
    for vectors, count in _products(columns, weights):
        if whole is None:
            # `_clipped` writes all of it for each chunk
            whole = torch.empty_like(vectors, dtype=torch.int64)
        total += _clipped(vectors, clip, quantum, whole)[:, :count].sum(1)
    return total


def clipped_sums(
    losses: Sequence[torch.Tensor], weights: torch.Tensor, clip: float, quantum: float
) -> torch.Tensor:
    """`clipped_sum` of several runs at once, `runs x d`, where no record needs protection: products
    are of all units of some runs, in shapes that depend on their numbers.

    Args:
        losses: tensors of shape `runs x points x units`, N points in all.
        weights: W, `runs x d x N`.
        clip, quantum: B and q.
    """
    runs = len(weights)
    units = losses[0].shape[-1]
    device = losses[0].device
    rows = _ROWS.get(device.type, _DEVICE_ROWS)
    total = torch.zeros(weights.shape[:-1], dtype=torch.int64, device=device)
    together = max(1, rows // units)
    for first in range(0, runs, together):
        some = slice(first, first + together)
        for start in range(0, units, rows):
            parts = [part[some, :, start : start + rows] for part in losses]
            vectors = weights[some] @ torch.cat(parts, dim=1)
            whole = torch.zeros_like(vectors, dtype=torch.int64)
            total[some] += _clipped(vectors, clip, quantum, whole).sum(-1)
    return total


def lengths(columns: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """|W y| of every unit, shape `units`; each depends on that unit's own numbers alone."""
    found = []
    for vectors, count in _products(columns, weights):
        found.append(vectors[:, :count].square().sum(0).sqrt())
    return torch.cat(found)


def _products(
    columns: Sequence[torch.Tensor], weights: torch.Tensor
) -> Iterator[tuple[torch.Tensor, int]]:
    """(W y of one chunk, `d x rows`, how many of its columns are units). All chunks have
    one fixed shape.
    """
    units = len(columns[0])
    device = columns[0].device
    d = len(weights)
    rows = _ROWS.get(device.type, _DEVICE_ROWS)
    # a product with one row runs another kernel
    W = torch.zeros(max(d, 2), len(columns), dtype=torch.float64, device=device)
    W[:d] = weights
    buffer = torch.zeros(len(columns), rows, dtype=torch.float64, device=device)
    for start in range(0, units, rows):
        count = min(rows, units - start)
        for row, column in zip(buffer, columns, strict=True):
            row[:count].copy_(column[start : start + count])
        buffer[:, count:] = 0.0
        yield deterministic_matmul(W, buffer)[:d], count


def aim_of(most: int, dimension: int) -> float:
    """t: the length, in quanta, that vectors are shortened to, so that rounding cannot exceed K."""
    return most * _SHORTER - math.sqrt(dimension) / 2


def _clipped(g: torch.Tensor, clip: float, quantum: float, whole: torch.Tensor) -> torch.Tensor:
    """Columns in whole quanta, of squared length at most floor(B/q)^2: `... x d x units`, int64.

    They are written to `whole`, and `g` is overwritten: memory that is taken anew for each chunk
    costs three times what is computed in it.
    """
    most = math.floor(clip / quantum)
    # `aminmax` takes three times as long as both
    largest = torch.maximum(g.amax(-2), -g.amin(-2)).clamp_(min=clip).unsqueeze(-2)
    finite = largest.isfinite()
    # a Python number would be multiplied by the reciprocal
    k = g.mul_(g.new_tensor(clip / quantum) / largest)
    # only saves time: finite vectors keep every bit
    if not bool(finite.all()):
        k.masked_fill_(~finite, 0.0)
    squares = _rounded(k, whole)
    if bool((squares > most**2).any()):
        ratio = g.new_tensor(aim_of(most, g.shape[-2])) / squares.to(torch.float64).sqrt()
        squares = _rounded(k.mul_(torch.where(squares > most**2, ratio, 1.0)), whole)
        if bool((squares > most**2).any()):
            whole.masked_fill_(squares > most**2, 0)
    return whole


def _rounded(k: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Round columns, in place and to `whole`; returns their exact squared lengths, `... x 1 x
    units`.
    """
    whole.copy_(k.round_())
    if whole.device.type == "cpu":
        # a third of torch's time
        numbers = whole.numpy()
        squares = np.einsum("...ij,...ij->...j", numbers, numbers)
        return torch.from_numpy(squares).unsqueeze(-2)
    return whole.square().sum(-2, keepdim=True)
