"""Records as exact whole numbers inside a public ball, so that whatever is multiplied and added afterwards is exact.

A record x counts as z = matrix (x - center) / radius, clipped to the unit ball and rounded to whole multiples of 2^-b; the lattice vector
is then clipped once more in whole numbers, so |z| <= 1 holds exactly (in l2, or by coordinate for the cube), whatever the floats did.
A record that is not finite, or beyond 1e100 radii, counts as nothing at all: it is absent from every sum.

Degrees: products of weights in whole 2^-a with up to p coordinates of z are multiples of 2^-(a + p b). With a + p b <= 41, a chunk of at
most 2^12 rows sums to less than 2^53, so a float64 matrix product over it is exact in every order, on every device and library; chunks
add up in int64, where a + p b <= 62 - log2(units). So a sum's bits depend on the records' own lattice vectors and weights alone.
Rounding moves a coordinate by at most half a step, 2^-16 of the radius for degree 2 and up to two million records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from dpbo.errors import InputError
from dpbo.privacy import require_positive
from dpbo.queries.integers import MOST_UNITS, by_columns
from dpbo.validation import checked

_MOST_ROWS = 1 << 12
LARGEST_CHUNK = 1 << 20  # rows, on a GPU
MOST_DIMENSION = 1 << 13
_CHUNK_BITS = 41
_LATTICE_BITS = 44  # fine beside any noise, coarse enough for the mechanisms' shifts
_MOST_BITS = 20  # MOST_DIMENSION squares of 2^40 stay below 2^53
_HUGE = 1e100


@checked
@dataclass(frozen=True, eq=False)
class Ball:
    """Where records are clipped to; public, fixed without looking at the data or made from released values.

    Args:
        radius: of the ball around `center`, in the units of matrix (x - center).
        center: `d`, float64; omitted, zero.
        matrix: `d x d`, float64, invertible, such as a whitening; omitted, the identity.
        norm: "l2" for the ball, "linf" for the cube of half side `radius`.
    """

    radius: float
    center: torch.Tensor | None = field(default=None, kw_only=True)
    matrix: torch.Tensor | None = field(default=None, kw_only=True)
    norm: str = field(default="l2", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", require_positive("radius", self.radius, 1e-100, 1e100))
        if self.norm not in ("l2", "linf"):
            raise InputError("norm", self.norm, "'l2' or 'linf'")
        for name, value in (("center", self.center), ("matrix", self.matrix)):
            if value is not None:
                require_float64(name, value)
                object.__setattr__(self, name, value.detach().cpu().clone())
        if self.center is not None and self.center.ndim != 1:
            raise InputError("center", tuple(self.center.shape), "of shape d")
        if self.matrix is not None and (self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1]):
            raise InputError("matrix", tuple(self.matrix.shape), "of shape d x d")

    def require_dimension(self, d: int) -> None:
        """Raises InputError where center or matrix are of another dimension."""
        for name, value in (("center", self.center), ("matrix", self.matrix)):
            if value is not None and len(value) != d:
                raise InputError(name, tuple(value.shape), f"of dimension {d}")

    def inward(self, X: torch.Tensor) -> torch.Tensor:
        """Public points `n x d` in the ball's own coordinates, not clipped."""
        moved = X if self.center is None else X - self.center.to(X.device)
        return (moved if self.matrix is None else moved @ self.matrix.T.to(X.device)) / self.radius

    def outward(self, Z: torch.Tensor) -> torch.Tensor:
        """Back to x: `n x d`."""
        moved = Z * self.radius
        if self.matrix is not None:
            moved = torch.linalg.solve(self.matrix.to(Z.device), moved.T).T
        return moved if self.center is None else moved + self.center.to(Z.device)

    def log_volume(self, d: int) -> float:
        """log |dz/dx|: what a density in the ball's coordinates gains in x's own."""
        own = 0.0 if self.matrix is None else float(torch.linalg.slogdet(self.matrix).logabsdet)
        return own - d * math.log(self.radius)


@dataclass(frozen=True)
class Resolution:
    """Weights are whole multiples of 2^-weight_bits, coordinates of 2^-bits; sums are kept as multiples of 2^-lattice_bits."""

    weight_bits: int
    bits: int
    lattice_bits: int

    @classmethod
    def of(cls, degree: int, components: int, units: int | None) -> Resolution:
        """The finest steps that cannot overflow; `units` None: private, 2^32 stand in. One component needs no weights."""
        spare = math.ceil(math.log2(MOST_UNITS if units is None else units))
        lattice = min(_LATTICE_BITS, 62 - spare)
        room = min(_CHUNK_BITS, lattice)
        least = math.ceil(2 * math.log2(components))  # so that rounding never asks more than the largest weight has
        weights = 0 if components == 1 else max(min(11, room // 3), least)
        return cls(weights, min((room - weights) // degree, _MOST_BITS), lattice)


def chunk_rows(width: int, device: str = "cpu") -> int:
    """Rows of a chunk, public, so that `width` numbers a row stay in cache, or on a GPU keep it busy.

    Whole tiles of a matrix product, whether those are 12, 16 or 24 rows wide: what is left over beside them would be added up in another
    order, so a record's bits would depend on its place, and that on who else is there.
    """
    bits = math.ceil(math.log2(width))
    if device == "cpu":
        return 15 * min(_MOST_ROWS >> 4, max(16, (1 << 13) >> bits))
    return min(LARGEST_CHUNK, max(_MOST_ROWS, (1 << 27) >> bits))


def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B' of whole numbers below 2^41 in all their products, `a x rows` and `b x rows`: `a x b`, int64, exact."""
    if A.shape[1] <= _MOST_ROWS:
        return (A @ B.T).to(torch.int64)
    first, second = (part.reshape(len(part), -1, _MOST_ROWS).transpose(0, 1) for part in (A, B))
    return (first @ second.mT).to(torch.int64).sum(0)


def lattice_chunks(pieces: Iterable[torch.Tensor], ball: Ball, bits: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(whole numbers `d x rows` as float64, which of the columns are records `rows`), every chunk of one shape.

    Pieces are `n x d`; what is missing in the last chunk, and every record that counts as nothing, is a zero column.
    """
    for piece in pieces:
        d, device = piece.shape[1], piece.device
        buffer = torch.zeros(d, rows, dtype=torch.float64, device=device)
        place = _Placer(ball, d, device)
        for start in range(0, len(piece), rows):
            count = min(rows, len(piece) - start)
            buffer[:, :count].copy_(piece[start : start + count].T)
            buffer[:, count:] = math.nan
            yield _whole(place(buffer), ball.norm, bits)


class _Placer:
    """x -> matrix (x - center) / radius by columns, in one fixed shape."""

    def __init__(self, ball: Ball, d: int, device: torch.device) -> None:
        self._center = None if ball.center is None else ball.center.to(device).unsqueeze(1)
        self._matrix, self._radius = None, ball.radius
        if ball.matrix is not None:
            self._matrix = torch.zeros(max(d, 2), d, dtype=torch.float64, device=device)  # one row would take another product's path
            self._matrix[:d] = ball.matrix.to(device) / ball.radius

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        moved = X if self._center is None else X - self._center
        return moved / self._radius if self._matrix is None else by_columns(self._matrix, moved)[: len(X)]


def _whole(Z: torch.Tensor, norm: str, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns rounded to whole multiples of 2^-bits inside the unit ball or cube, and which of them are finite."""
    size, steps = (Z.abs().amax(0) if norm == "linf" else Z.square().sum(0).sqrt_()), float(1 << bits)
    alive = size < _HUGE  # NaN is not
    scale = steps if norm == "linf" else (1.0 / size).clamp_(max=1.0).mul_(steps)
    k = torch.where(alive, Z * scale, 0.0).round_().clamp_(-steps, steps)
    return (k, alive) if norm == "linf" else (_shortened(k, steps), alive)


def _shortened(k: torch.Tensor, most: float) -> torch.Tensor:
    """Columns of whole numbers, each of squared length at most most^2: exact, as every number here is whole and below 2^53."""
    squares = k.square().sum(0)
    long = squares > most * most
    root = squares.sqrt().floor_() + 2.0  # above the true root by one at least, which is more than what the quotient's rounding takes
    return torch.where(long, (k * (most / root)).trunc_(), k)


def require_float64(name: str, value: torch.Tensor) -> None:
    """Raises InputError unless `value` is finite float64."""
    if value.dtype != torch.float64:
        raise InputError(name, value.dtype, "float64", "Use .double().")
    if not bool(value.isfinite().all()):
        raise InputError(name, "with NaN or infinite entries", "finite")
