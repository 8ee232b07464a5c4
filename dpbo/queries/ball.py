"""Records as exact whole numbers inside a public ball, so that all later products and sums are
exact.

A record x counts as z = matrix (x - center) / radius, rounded to whole multiples of 2^-b and then
clipped in whole numbers, so |z| <= 1 holds exactly (in l2, or in each coordinate for the cube),
whatever the floats did. A record with a coordinate that is not finite, or beyond 1e100 radii,
counts as nothing: it is absent from every sum.

Degrees: products of weights in whole 2^-a with up to p coordinates of z are multiples of 2^-(a + p
b). With a + p b <= 41, a chunk of at most 2^12 rows sums to less than 2^53, so a float64 matrix
product over it is exact in every order, on every device and library; chunks add up in int64, where
a + p b <= 62 - log2(units). So a sum's bits depend on the records' own lattice vectors and weights
alone. Rounding moves a coordinate by at most half a step, 2^-16 of the radius for degree 2 and up
to two million records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dpbo.errors import InputError
from dpbo.queries.integers import MOST_UNITS, truncate
from dpbo.queries.products import deterministic_matmul
from dpbo.validation import Within, between, checked, is_finite_float64

# rows, on a GPU
LARGEST_CHUNK = 1 << 20
MOST_DIMENSION = 1 << 13
_MOST_ROWS = 1 << 12
_CHUNK_BITS = 41
# finer than any noise needs, coarse enough for the mechanisms' shifts
_LATTICE_BITS = 44
# MOST_DIMENSION squares of 2^40 stay below 2^53
_MOST_BITS = 20
_FARTHEST = 1e100

FLOAT64 = Within(
    "of dtype float64 and finite",
    is_finite_float64,
    "Use .double().",
)
_SQUARE = Within(
    "of shape d x d", lambda value: value.ndim == 2 and value.shape[0] == value.shape[1]
)


def _are_bounds(value: Tensor) -> bool:
    if value.ndim != 2 or value.shape[1] != 2:
        return False
    widths = value[:, 1] - value[:, 0]
    return bool((widths >= 1e-100).all() and (widths <= 1e100).all())


@checked
@dataclass(frozen=True, eq=False)
class Box:
    """Public bounds of each column, between which records are scaled to [-1, 1] and clipped there.

    The sensitivity of a sum over records in a ball is unchanged: it is a supremum over all places
    in the ball, and a record's place still follows from the record alone. A coordinate that is not
    finite stays so, and the record counts as nothing.

    Args:
        bounds: shape `d x 2`, float64: the lower and upper bound of each column, apart by 1e-100 to
            1e100, fixed without looking at the data.
    """

    bounds: Annotated[
        Tensor, FLOAT64, Within("of shape d x 2, each lower bound below its upper one", _are_bounds)
    ]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", self.bounds.detach().cpu().clone())

    def require_dimension(self, d: int) -> None:
        """Raises InputError if there are bounds of another number of columns than d."""
        if len(self.bounds) != d:
            raise InputError("bounds", tuple(self.bounds.shape), f"of shape {d} x 2")

    @property
    def middle(self) -> Tensor:
        """Halfway between the bounds: `d`."""
        return self.bounds.mean(1)

    @property
    def half(self) -> Tensor:
        """Half the distance of the bounds: `d`."""
        return (self.bounds[:, 1] - self.bounds[:, 0]) / 2.0

    def inward(self, X: Tensor) -> Tensor:
        """Points `n x d` in units in which the bounds are -1 and 1, not clipped."""
        return (X - self.middle.to(X.device)) / self.half.to(X.device)

    def clipped(self, X: Tensor) -> Tensor:
        """Records `n x d` in these units, each coordinate clipped to [-1, 1]."""
        return torch.where(X.isfinite(), self.inward(X).clamp(-1.0, 1.0), math.nan)

    def outward(self, Z: Tensor) -> Tensor:
        """Points `n x d` in the caller's units."""
        return Z * self.half.to(Z.device) + self.middle.to(Z.device)

    def of(self, ball: Ball) -> Ball:
        """The ball of the caller's points whose place is the one that `ball` gives them in units of
        the box.
        """
        center = torch.zeros_like(self.half) if ball.center is None else ball.center
        scale = torch.diag(1.0 / self.half)
        matrix = scale if ball.matrix is None else ball.matrix @ scale
        return Ball(ball.radius, center=self.outward(center), matrix=matrix, norm=ball.norm)


@checked
@dataclass(frozen=True, eq=False)
class Ball:
    """The public ball that records are clipped to, fixed without looking at the data or made from
    released values.

    Args:
        radius: radius around `center`, from 1e-100 to 1e100, in the units of matrix (x - center).
        center: shape `d`, float64; by default zero.
        matrix: shape `d x d`, float64, invertible, such as a whitening; by default the identity.
        norm: "l2" for the ball, "linf" for the cube whose half side is `radius`.
    """

    radius: Annotated[float, between(1e-100, 1e100)]
    center: (
        Annotated[Tensor, FLOAT64, Within("of shape d", lambda value: value.ndim == 1)] | None
    ) = field(default=None, kw_only=True)
    matrix: Annotated[Tensor, FLOAT64, _SQUARE] | None = field(default=None, kw_only=True)
    norm: str = field(default="l2", kw_only=True)

    def __post_init__(self) -> None:
        if self.norm not in ("l2", "linf"):
            raise InputError("norm", self.norm, "'l2' or 'linf'")
        for name, value in (("center", self.center), ("matrix", self.matrix)):
            if value is not None:
                object.__setattr__(self, name, value.detach().cpu().clone())

    def require_dimension(self, d: int) -> None:
        """Raises InputError if center or matrix have another dimension than d."""
        for name, value in (("center", self.center), ("matrix", self.matrix)):
            if value is not None and len(value) != d:
                raise InputError(name, tuple(value.shape), f"of dimension {d}")

    def inward(self, X: Tensor) -> Tensor:
        """Public points x, `n x d`, in the ball's coordinates z, not clipped."""
        if self.center is not None:
            X = X - self.center.to(X.device)
        if self.matrix is not None:
            X = X @ self.matrix.T.to(X.device)
        return X / self.radius

    def outward(self, Z: Tensor) -> Tensor:
        """Points x, `n x d`, from the ball's coordinates z."""
        X = Z * self.radius
        if self.matrix is not None:
            X = torch.linalg.solve(self.matrix.to(Z.device), X.T).T
        if self.center is not None:
            X = X + self.center.to(Z.device)
        return X

    def log_volume(self, d: int) -> float:
        """log |dz/dx|: add it to a log-density over z to get the one over x."""
        volume = -d * math.log(self.radius)
        if self.matrix is not None:
            volume += float(torch.linalg.slogdet(self.matrix).logabsdet)
        return volume


@dataclass(frozen=True)
class Resolution:
    """Weights are whole multiples of 2^-weight_bits, coordinates of 2^-bits; sums are kept as
    multiples of 2^-lattice_bits.
    """

    weight_bits: int
    bits: int
    lattice_bits: int

    @classmethod
    def of(cls, degree: int, components: int, units: int | None) -> Resolution:
        """The finest steps that cannot overflow. A private number of units (None) counts as 2^32;
        one component needs no weights.
        """
        if units is None:
            units = MOST_UNITS
        spare = math.ceil(math.log2(units))
        lattice = min(_LATTICE_BITS, 62 - spare)
        room = min(_CHUNK_BITS, lattice)
        # so that rounding never asks more than the largest weight has
        least = math.ceil(2 * math.log2(components))
        weights = max(min(11, room // 3), least)
        if components == 1:
            weights = 0
        return cls(weights, min((room - weights) // degree, _MOST_BITS), lattice)


def chunk_rows(width: int, device: str = "cpu", most: int = _MOST_ROWS) -> int:
    """Public number of rows of a chunk, on a CPU at most `most`: `width` numbers a row fit the
    CPU's cache, or keep a GPU busy.

    It is a multiple of 12, 16 and 24, the widths of a matrix product's tiles: rows left over beside
    whole tiles would be added in another order, so a record's bits would depend on its position,
    and its position on the other records.
    """
    bits = math.ceil(math.log2(width))
    if device == "cpu":
        return 15 * min(most >> 4, max(16, (1 << 15) >> bits))
    return min(LARGEST_CHUNK, max(_MOST_ROWS, (1 << 27) >> bits))


def product(A: Tensor, B: Tensor, bits: int = _CHUNK_BITS) -> Tensor:
    """A B', exact int64 `a x b`, for whole `a x rows` and `b x rows` of products up to 2^bits."""
    most = 1 << (53 - bits)
    if A.shape[1] <= most:
        # by numpy, whose library takes two thirds of torch's time for few rows
        if A.device.type == "cpu":
            return torch.from_numpy(A.numpy() @ B.numpy().T).to(torch.int64)
        return (A @ B.T).to(torch.int64)
    first = A.reshape(len(A), -1, most).transpose(0, 1)
    second = B.reshape(len(B), -1, most).transpose(0, 1)
    return (first @ second.mT).to(torch.int64).sum(0)


def lattice_chunks(
    X: Tensor,
    ball: Ball,
    bits: int,
    rows: int,
    *,
    box: Box | None = None,
    by_record: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The records `n x d` in chunks of one shape: (whole numbers `d x rows` as float64, which
    columns are valid records, `rows`). With a box the ball is in its units.

    Columns that pad the last chunk, and records that count as nothing, are zero and not valid. With
    `by_record` the numbers of a record stand together in memory, as they do in X; else those of a
    coordinate. The next chunk may take the memory of the one before.
    """
    d = X.shape[1]
    device = X.device
    steps = float(1 << bits)
    if by_record:
        Z = torch.zeros(rows, d, dtype=torch.float64, device=device).T
    else:
        Z = torch.zeros(d, rows, dtype=torch.float64, device=device)
    center = matrix = None
    if ball.center is not None:
        center = ball.center.to(device).unsqueeze(1)
    if ball.matrix is not None:
        # a product with one row runs another kernel
        matrix = torch.zeros(max(d, 2), d, dtype=torch.float64, device=device)
        matrix[:d] = ball.matrix.to(device) / ball.radius
    for start in range(0, len(X), rows):
        chunk = X[start : start + rows].to(torch.float64)
        if box is not None:
            chunk = box.clipped(chunk)
        chunk = chunk.T
        count = chunk.shape[1]
        moved = Z[:, :count]
        if center is not None:
            chunk = torch.sub(chunk, center, out=moved)
        if matrix is None:
            # steps is a power of two
            torch.div(chunk, ball.radius / steps, out=moved)
            k, valid = _whole(Z, ball.norm, steps)
        else:
            moved.copy_(chunk)
            k, valid = _whole(
                deterministic_matmul(matrix, Z.contiguous())[:d].mul_(steps), ball.norm, steps
            )
        if count < rows:
            k[:, count:] = 0.0
            valid[count:] = False
        yield k, valid


def _whole(Z: Tensor, norm: str, steps: float) -> tuple[Tensor, Tensor]:
    """Columns in multiples of 1/steps, rounded in place to whole ones inside the unit ball or cube,
    and which are valid records.

    On a CPU only the columns that are too long once they are rounded, or hold NaN, are clipped: a
    clip changes no others.
    """
    if Z.device.type != "cpu":
        return _clipped(Z.round_(), norm, steps)
    k = Z.numpy()
    np.rint(k, out=k)
    # lengths up to the reach are exact, whatever the order of the sum
    if norm == "linf":
        lengths = np.abs(k).max(0)
        reach = steps
    else:
        lengths = np.einsum("ij,ij->j", k, k)
        reach = steps * steps
    valid = np.ones(k.shape[1], dtype=bool)
    # True for NaN, too
    if not lengths.max() <= reach:
        others = np.flatnonzero(~(lengths <= reach))
        shorter, kept = _clipped(Z[:, others], norm, steps)
        k[:, others] = shorter.numpy()
        valid[others] = kept.numpy()
    return Z, torch.from_numpy(valid)


def _clipped(k: Tensor, norm: str, steps: float) -> tuple[Tensor, Tensor]:
    """Columns of whole numbers clipped to the ball or cube of radius `steps`, in whole numbers, and
    which are valid.

    For the ball a column with a larger coordinate than `steps` is first scaled until it has none,
    and rounded again. Then its squared length is an exact whole number of at most 2^53. So the
    result depends on the column alone, and on no order of sums.
    """
    largest = k.abs().amax(0)
    # False for NaN
    valid = largest < _FARTHEST * steps
    if norm == "linf":
        k = k.clamp(-steps, steps)
    else:
        k = (k * (steps / largest.clamp(min=steps))).round_()
        squares = k.square().sum(0)
        # above the true root by at least one, which is more than the quotient's rounding error
        root = squares.sqrt().floor_() + 2.0
        k = truncate(k.mul_(torch.where(squares > steps * steps, steps / root, 1.0)))
    return torch.where(valid, k, 0.0), valid
