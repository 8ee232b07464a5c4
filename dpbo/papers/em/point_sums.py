"""Sums over records that are points in a public ball: `PointSums` in general, their number and sum,
the clusters of k-means, and the second moment.

A record contributes one vector of whole numbers, which depends on its own coordinates and on public
parameters. The sum over records is exact, whatever the order, chunk, shard or device. These queries
are not made for units that are groups of records (`Query.per_unit`): a unit's mean of whole numbers
is not whole, so the exact sensitivities would not hold. Reduce each unit to one record first.
"""

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np
import torch

from dpbo.errors import InputError
from dpbo.privacy import ROUND_UP, Adjacency, Sensitivity
from dpbo.queries import score_evaluation
from dpbo.queries.ball import (
    FLOAT64,
    LARGEST_CHUNK,
    MOST_DIMENSION,
    Ball,
    Box,
    Resolution,
    chunk_rows,
    lattice_chunks,
    product,
)
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import at_least, between, checked_constructor

BlockWeight = Annotated[float, between(1e-3, 1e3)]
# of whole numbers `d x rows`, and of which of these columns are valid records
ChunkSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_FARTHEST = 1e100  # a centre this far away is nearest to no record, and far from overflow
# rows whose coordinates of 20 bits are added in float64, where 2^33 would still be exact
_MOST_TOGETHER = 1 << 14
# bits of a centre's coordinate plus log2 d: 53 minus the 20 of a record's coordinate
_PRODUCT_BITS = 33


@dataclass(frozen=True, eq=False)
class PointSums(Query):
    """Base of queries that sum whole-number statistics of z, the record's place in the unit ball.
    The sum is published undivided.

    Args:
        dimension: d, public.
        ball: the public ball that records are clipped to.
        vectors: `vectors(records)` returns the points, `n x d`, each from its own record; by
            default the records are the points.
        box: public bounds; the points are scaled by them and clipped there before they are clipped
            to the ball, which is then in units of the box. Sensitivities are those of the ball,
            whatever each record was mapped to.
    """

    dimension: Annotated[int, at_least(1, MOST_DIMENSION)]
    _: KW_ONLY
    ball: Ball
    vectors: Callable[[Any], Any] | None = None
    box: Box | None = None

    def __post_init__(self) -> None:
        self.ball.require_dimension(self.dimension)
        if self.box is not None:
            self.box.require_dimension(self.dimension)

    def _require_l2(self, answer: str) -> None:
        if self.ball.norm != "l2":
            raise InputError("norm", self.ball.norm, f"'l2' for {answer}")

    @property
    def components(self) -> int:
        """K, the number of weights that a record is shared among. One-hot weights need no bits of
        their own, so they count as one.
        """
        return 1

    @abc.abstractmethod
    def squared_l2(self, adjacency: Adjacency) -> float:
        """Squared l2 sensitivity of the answer whose coordinates are divided by
        `coordinate_scale`.
        """

    @abc.abstractmethod
    def coordinate_scale(self) -> torch.Tensor:
        """The scale of each coordinate of the answer, at most 1."""

    @abc.abstractmethod
    def degrees(self) -> torch.Tensor:
        """Degree in z of each coordinate of the answer; one of degree p is a multiple of
        2^-(weight_bits + p bits).
        """

    @abc.abstractmethod
    def chunk_sum(self, resolution: Resolution, device: torch.device) -> ChunkSum:
        """The function that sums one chunk, as int64."""

    def places(
        self, X: torch.Tensor, resolution: Resolution
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Points `n x d` as `chunk_sum` takes them, chunk by chunk."""
        rows = self.rows_together(X.device.type)
        return lattice_chunks(X, self.ball, resolution.bits, rows, box=self.box)

    def sum_points(self, X: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        """The sum over points `n x d` in whole numbers, int64."""
        total = torch.zeros(len(self.coordinate_scale()), dtype=torch.int64, device=X.device)
        sum_of = self.chunk_sum(resolution, X.device)
        for Z, valid in self.places(X, resolution):
            total += sum_of(Z, valid)
        return total

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if adjacency not in (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE):
            raise InputError("adjacency", adjacency, "REPLACE_ONE or ADD_OR_REMOVE_ONE")
        return Sensitivity.of_l2(
            math.sqrt(self.squared_l2(adjacency)) * ROUND_UP,
            tuple(self.coordinate_scale().tolist()),
        )

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,) * len(self.coordinate_scale()), 1.0

    def public_inputs(self) -> dict[str, Any]:
        of_ball = {"dimension": self.dimension, "radius": self.ball.radius, "norm": self.ball.norm}
        return of_ball if self.box is None else {**of_ball, "bounds": self.box.bounds.tolist()}

    def sums_over_units(self) -> bool:
        return True

    def width(self) -> int:
        """Numbers per record that the sum over a chunk works on."""
        return len(self.coordinate_scale()) // self.components

    def rows_together(self, device: str) -> int:
        """Public number of records in a chunk."""
        return chunk_rows(max(self.width(), self.components), device)

    def resolution(self, units: int | None) -> Resolution:
        """The public steps for this public number of units (None: private)."""
        return Resolution.of(int(self.degrees().max()), self.components, units)

    def quanta(self, units: int | None) -> tuple[float, ...]:
        """The public quantum of each coordinate of the answer, the same for all."""
        return (math.ldexp(1.0, -self.resolution(units).lattice_bits),) * len(
            self.coordinate_scale()
        )

    def probe(self, example: Any, count: int, subject: Any) -> None:
        score_evaluation.probe_score(
            self._points,
            None,
            example,
            self.dimension,
            count,
            lambda pieces: self._total(pieces, count),
        )

    def per_record_scores(
        self, subject: Any
    ) -> Sequence[tuple[Any, Any, Sequence[tuple[float, float]]]]:
        if self.vectors is None:
            return ()
        return [(self._points, subject, ())]

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        def there(pieces: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
            """On the records' own device. If the score fails on one record, all pieces come from
            the CPU, and go there in parts that fit.
            """
            for piece in pieces:
                if piece.device == view.device:
                    yield piece
                else:
                    for part in torch.split(piece, LARGEST_CHUNK):
                        yield part.to(view.device)

        def reduce(pieces: Iterable[torch.Tensor]) -> torch.Tensor:
            return self._total_of_view(view, there(pieces)).cpu()

        total = score_evaluation.score_records(self._points, None, view, self.dimension, reduce)
        if isinstance(total, Failure):
            return total
        return IntegerSum(total, self.quanta(view.public_units))

    def _points(self, _subject: Any, records: Any) -> Any:
        if self.vectors is None:
            return records
        return self.vectors(records)

    def _total_of_view(self, view: View, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        """The sum over the pieces that a view's records make."""
        return self._total(pieces, view.public_units)

    def _total(self, pieces: Iterable[torch.Tensor], units: int | None) -> torch.Tensor:
        resolution = self.resolution(units)
        total: torch.Tensor | None = None
        for piece in pieces:
            part = self.sum_points(piece, resolution)
            total = part if total is None else total.add_(part)
        if total is None:
            return torch.zeros(len(self.coordinate_scale()), dtype=torch.int64, device="cpu")
        return total << self._shifts(resolution).to(total.device)

    def _shifts(self, resolution: Resolution) -> torch.Tensor:
        """How many bits the steps of each coordinate's sum are coarser than the answer's."""
        return resolution.lattice_bits - resolution.weight_bits - resolution.bits * self.degrees()


@checked_constructor
@dataclass(frozen=True, eq=False)
class VectorSum(PointSums):
    """The number of records and the sum of their vectors: `1 + d` numbers. The vectors may be
    statistics that each record gives, as in `DPEM`, or the records.

    A record z in the unit ball contributes (1, z), exact in whole numbers; one that is not finite
    contributes zero.

    Theorem (l2, number and sum weighted by q and m; unit: one record). ADD_OR_REMOVE_ONE: sqrt(q^2
    + m^2). REPLACE_ONE: max(2 m, sqrt(q^2 + m^2)); with `nonnegative` max(sqrt 2 m, sqrt(q^2 +
    m^2)). Proof. One record adds (q, m z) with |z| <= 1. Replaced by y it moves the number not at
    all and the sum by m |z - y| <= m (|z| + |y|) <= 2 m, reached by y = -z. If no coordinate is
    negative, z.y >= 0, so |z - y|^2 = |z|^2 + |y|^2 - 2 z.y <= 2, reached by two axes. A record
    that counts as nothing is as if it were not there, in both relations. The radial clip keeps
    signs, and with `nonnegative` whole numbers below zero become zero, which lengthens no vector:
    nothing is assumed about the vectors. Cost: 2 n d flops.

    Args:
        weights: (q, m), each from 1e-3 to 1e3: a block of twice the weight gets half the noise.
        nonnegative: count coordinates below zero as zero.
        dimension, ball, vectors, box: as in `PointSums`; the ball's norm must be "l2".
    """

    _: KW_ONLY
    weights: tuple[BlockWeight, BlockWeight] = (1.0, 1.0)
    nonnegative: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_l2("sums of vectors")

    def squared_l2(self, adjacency: Adjacency) -> float:
        q, m = in_least(self.weights)
        one_record = q * q + m * m
        if adjacency is not Adjacency.REPLACE_ONE:
            return one_record
        furthest = 2.0 if self.nonnegative else 4.0
        return max(furthest * m * m, one_record)

    def coordinate_scale(self) -> torch.Tensor:
        q, m = (min(self.weights) / weight for weight in self.weights)
        return torch.tensor([q] + [m] * self.dimension, dtype=torch.float64, device="cpu")

    def degrees(self) -> torch.Tensor:
        return torch.tensor([0] + [1] * self.dimension, device="cpu")

    def public_inputs(self) -> dict[str, Any]:
        own = {"weights": list(self.weights), "nonnegative": self.nonnegative}
        return {**super().public_inputs(), **own}

    def chunk_sum(self, resolution: Resolution, device: torch.device) -> ChunkSum:
        def sum_of(Z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            if self.nonnegative:
                Z = Z.clamp(min=0.0)
            return torch.cat([valid.sum().reshape(1), Z.sum(1).to(torch.int64)])

        return sum_of


def in_least(weights: Sequence[float]) -> list[float]:
    """Weights in units of the smallest."""
    least = min(weights)
    return [weight / least for weight in weights]


def of_counts_and_sums(
    general: Sensitivity, q: float, m: float, longest: float, adjacency: Adjacency
) -> Sensitivity:
    """The sensitivity of counts and sums weighted by q and m, with its l1 and l-infinity norms.

    A record that counts in one component moves its count by q and its sum by m z, so by q + m
    |z|_1 in l1, where |z|_1 <= `longest`, and by max(q, m) in one number. Replaced, it moves twice
    as much in l1; in one number 2 m, as the count of one component moves by q alone. Shares of a
    record among components are averages of these, and norms are convex.
    """
    times = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    l1 = times * (q + m * longest) * ROUND_UP
    return Sensitivity(l1, general.l2, max(q, times * m) * ROUND_UP, general.scale)


@checked_constructor
@dataclass(frozen=True, eq=False)
class ClusterSums(PointSums):
    """One step of k-means: how many records lie nearest to each public centre, and the sum of these
    records; `K x (1 + d)`, row by row.

    A record z in the unit ball or cube contributes (e_k, e_k z) for its nearest centre k, exact in
    whole numbers; one that is not finite contributes zero. Sensitivity with weights (q, m) on
    counts and sums, scaled so that the smaller one is 1 (unit: one record):

    | | two centres or more, l2 | same centre, l2 | l1 (q = m = 1) |
    |---|---|---|---|
    | ball, ADD_OR_REMOVE_ONE | sqrt(q^2 + m^2) | | 1 + sqrt d |
    | ball, REPLACE_ONE | sqrt(2 q^2 + 2 m^2) | 2 m | 2 (1 + sqrt d) |
    | cube, ADD_OR_REMOVE_ONE | sqrt(q^2 + d m^2) | | 1 + d |
    | cube, REPLACE_ONE | sqrt(2 q^2 + 2 d m^2) | 2 sqrt(d) m | 2 (1 + d) |

    Proof. Different centres have disjoint coordinates, so squared lengths (for l1: lengths) add.
    With the same centre the counts cancel and opposite vectors are 2 m max|z| apart. The
    sensitivity is the larger of the two columns, and both are attained; with one centre only the
    second arises, or a record that counts as nothing, which is the add-or-remove case and never
    more. At q = m in the ball both are 2: counts cost nothing. For the Laplace mechanism the l1
    norm of the weighted vector is (q + m max|z|_1), once or twice.

    The nearest centre is found with rounded centres: clamped to 1e100, each coordinate a multiple
    of a power of two with m bits beside the centre's largest, m from 20 to 33. With d 2^m 2^b <=
    2^53 for a record's coordinates of b <= 20 bits, products of centres and records are exact in
    every order, on every device and library, so the centre that a record counts at depends on its
    own lattice vector alone. DPLloyd (Blum, Dwork, McSherry & Nissim 2005) is the cube with l1
    noise. Cost: 4 n K d flops.

    Args:
        centers: shape `K x d`, float64, in the ball's coordinates; stored rounded, as above.
        weights: (q, m), each from 1e-3 to 1e3: a block of twice the weight gets half the noise.
        keep: whether the curator of records on a CPU keeps their clipped places, 4 n d bytes, for
            the next step that has this very ball. The records and the ball must not change
            meanwhile.
        dimension, ball, vectors, box: as in `PointSums`.
    """

    _: KW_ONLY
    centers: Annotated[torch.Tensor, FLOAT64]
    weights: tuple[BlockWeight, BlockWeight] = (1.0, 1.0)
    keep: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.centers.ndim != 2
            or self.centers.shape[1] != self.dimension
            or not len(self.centers)
        ):
            raise InputError("centers", tuple(self.centers.shape), f"of shape K x {self.dimension}")
        numbers = self.centers.detach().cpu().clamp(-_FARTHEST, _FARTHEST).numpy()
        bits = _PRODUCT_BITS - math.ceil(math.log2(self.dimension))
        exponents = np.frexp(np.abs(numbers).max(1, keepdims=True))[1] - bits
        object.__setattr__(
            self,
            "centers",
            torch.from_numpy(np.ldexp(np.rint(np.ldexp(numbers, -exponents)), exponents)),
        )

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        general = super().sensitivity(adjacency)  # its l2 is exact; it refuses other adjacencies
        q, m = in_least(self.weights)
        longest = float(self.dimension)
        if self.ball.norm != "linf":
            longest = math.sqrt(longest)
        return of_counts_and_sums(general, q, m, longest, adjacency)

    def squared_l2(self, adjacency: Adjacency) -> float:
        q, m = in_least(self.weights)
        longest = self.dimension if self.ball.norm == "linf" else 1.0
        one_record = q * q + longest * m * m
        if adjacency is not Adjacency.REPLACE_ONE:
            return one_record
        different_centers = 2.0 * one_record if len(self.centers) > 1 else one_record
        return max(different_centers, 4.0 * longest * m * m)

    def coordinate_scale(self) -> torch.Tensor:
        q, m = in_least(self.weights)
        return torch.tensor(
            [1.0 / q] + [1.0 / m] * self.dimension, dtype=torch.float64, device="cpu"
        ).repeat(len(self.centers))

    def degrees(self) -> torch.Tensor:
        return torch.tensor([0] + [1] * self.dimension, device="cpu").repeat(len(self.centers))

    def rows_together(self, device: str) -> int:
        return chunk_rows(self.dimension + len(self.centers), device, _MOST_TOGETHER)

    def public_inputs(self) -> dict[str, Any]:
        return {
            **super().public_inputs(),
            "components": len(self.centers),
            "weights": list(self.weights),
        }

    def places(
        self, X: torch.Tensor, resolution: Resolution
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        rows = self.rows_together(X.device.type)
        return lattice_chunks(X, self.ball, resolution.bits, rows, box=self.box, by_record=True)

    def _total_of_view(self, view: View, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        if not self.keep or self.vectors is not None or view.device.type != "cpu":
            return super()._total_of_view(view, pieces)
        resolution = self.resolution(view.public_units)
        rows = self.rows_together("cpu")

        def places() -> list[tuple[torch.Tensor, torch.Tensor]]:
            kept = []
            for piece in pieces:
                for Z, valid in self.places(piece, resolution):
                    kept.append((Z.to(torch.int32), valid))
            return kept

        total = torch.zeros(len(self.coordinate_scale()), dtype=torch.int64, device="cpu")
        sum_of = self.chunk_sum(resolution, view.device)
        # each chunk is copied into it before it is read
        Z = torch.empty(rows, self.dimension, dtype=torch.float64, device="cpu").T
        key = (self.ball, self.box, self.dimension, resolution.bits, rows)
        for whole, valid in view.keep(key, places):
            total += sum_of(Z.copy_(whole), valid)
        return total << self._shifts(resolution)

    def chunk_sum(self, resolution: Resolution, device: torch.device) -> ChunkSum:
        offset = math.ldexp(0.5, resolution.bits) * self.centers.square().sum(1, keepdim=True)
        offset = offset.to(device, non_blocking=True)
        C = self.centers.to(device, non_blocking=True)

        def on_device(Z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            closeness = (C @ Z).sub_(offset)
            nearest = torch.zeros_like(closeness).scatter_(
                0, closeness.argmax(0, keepdim=True), valid.to(torch.float64).unsqueeze(0)
            )
            rows = torch.cat([torch.ones_like(Z[:1]), Z])
            return product(nearest, rows, resolution.bits).flatten()

        if device.type != "cpu":
            return on_device
        rows = self.rows_together("cpu")
        # a place for the distances of each chunk, which `matmul` writes, and what becomes of them
        nearest = torch.empty(len(C), rows, dtype=torch.float64, device="cpu")

        def on_cpu(Z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            k, marks = Z.numpy(), nearest.numpy()
            np.matmul(C.numpy(), k, out=marks)
            nearest.sub_(offset)
            nearest.ge_(nearest.amax(0))  # 1 where a centre is nearest, else 0
            count = np.count_nonzero(valid.numpy())
            if count < rows:
                nearest.mul_(valid)
            counts = marks.sum(1)
            if counts.sum() != count:  # of several centres that are nearest the first counts
                nearest.mul_(nearest.cumsum(0) == 1.0)
                counts = marks.sum(1)
            return torch.from_numpy(
                np.column_stack([counts, marks @ k.T]).astype(np.int64)
            ).flatten()

        return on_cpu

    def table(self, answer: torch.Tensor) -> torch.Tensor:
        """An answer as one row a centre, `K x (1 + d)`."""
        return answer.reshape(len(self.centers), -1)


@checked_constructor
@dataclass(frozen=True, eq=False)
class SecondMoment(PointSums):
    """The sum over records of z z', as its upper triangle row by row, d(d+1)/2 numbers: for factor
    analysis and principal components. With `counted` the number of these records stands before it.

    A record in the unit ball contributes the upper triangle of z z', exact in whole numbers. In
    svec coordinates an entry off the diagonal counts sqrt 2 times (moment_features.py), so lengths
    are Frobenius norms.

    Theorem (l2; unit: one record). ADD_OR_REMOVE_ONE: |z z'|_F = |z|^2 <= 1. REPLACE_ONE: |z z' - y
    y'|_F^2 = |z|^4 + |y|^4 - 2 (z.y)^2 <= 2, attained by orthogonal unit vectors; a record that
    counts as nothing is z = 0. With the number: ADD_OR_REMOVE_ONE: sqrt(1 + |z|^4) <= sqrt 2.
    REPLACE_ONE: between two records that count it does not move, and from one that counts as
    nothing it is the same sqrt 2, so that it costs nothing there. With noise of standard deviation
    s in the svec coordinates the released entries have s on the diagonal and s / sqrt 2 off it.
    Source: Analyze Gauss (Dwork, Talwar, Thakurta & Zhang 2014), whose noise off the diagonal is
    larger than necessary. Cost: 2 n d^2 flops and two d x d matrices.

    Args:
        counted: answer the number of records, too.
        dimension, ball, vectors, box: as in `PointSums`; the ball's norm must be "l2".
    """

    _: KW_ONLY
    counted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_l2("second moments")

    def squared_l2(self, adjacency: Adjacency) -> float:
        if self.counted or adjacency is Adjacency.REPLACE_ONE:
            return 2.0
        return 1.0

    def coordinate_scale(self) -> torch.Tensor:
        i, j = torch.triu_indices(self.dimension, self.dimension, device="cpu")
        # torch.where of two numbers would be float32
        scale = torch.full((len(i),), math.sqrt(0.5), dtype=torch.float64, device="cpu")
        scale[i == j] = 1.0
        return torch.cat([scale.new_ones(int(self.counted)), scale])

    def public_inputs(self) -> dict[str, Any]:
        return {**super().public_inputs(), "counted": self.counted}

    def width(self) -> int:
        return self.dimension

    def degrees(self) -> torch.Tensor:
        products = self.dimension * (self.dimension + 1) // 2
        return torch.tensor([0] * self.counted + [2] * products, device="cpu")

    def chunk_sum(self, resolution: Resolution, device: torch.device) -> ChunkSum:
        i, j = torch.triu_indices(self.dimension, self.dimension, device=device)

        def sum_of(Z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            number = valid.sum().expand(int(self.counted))
            return torch.cat([number, product(Z, Z)[i, j]])

        return sum_of
