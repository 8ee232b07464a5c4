"""Queries about single rows: a table in which each row is released on its own (`RowTable`), and one
row's outcome (`RowOutcome`).

The curator of outsourced Bayesian optimisation releases the candidates as a RowTable, and the
modeler asks for their RowOutcomes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import torch

from dpbo.errors import InputError, Unshown
from dpbo.events import DeclassifiedEvent, Event, NotPrivateEvent
from dpbo.fingerprint import fingerprint
from dpbo.isolation import INTERRUPTS
from dpbo.privacy import Adjacency, RowChange, Sensitivity
from dpbo.queries import score_evaluation
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.integers import sum_records
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import Index, ScoreRange, Within, between, checked_constructor

_BITS = 34  # log2 of the sensitivity over the quantum
_WHOLE = 2.0**53  # beyond it, float64 cannot represent every whole number
_UP = 1 + 2.0**-40  # makes up for the rounding of long sums
_NOTHING = torch.tensor([[torch.nan]], dtype=torch.float64, device="cpu")
_CENTER = Within(
    "one number or more, each within 1e100 of zero",
    lambda center: (
        len(center) > 0
        and all(isinstance(number, (int, float)) and abs(number) <= 1e100 for number in center)
    ),
)


@checked_constructor
@dataclass(frozen=True, eq=False)
class RowTable(Query):
    """Every record's row, released as a table `n x k` in the order of the records.

        table = RowTable(center=(0.0, 0.0), radius=25.0, row_change=RowChange(1.0, diameter=50.0))
        # n x d; pure epsilon = 3 for a row that moves by at most 1
        Z = curator.release(table, L2LaplaceMechanism(1 / 3.0)).value

    Row x becomes z = A^T P(x), rounded down to whole multiples of a power-of-two quantum q. P
    clamps the coordinates to [-W, W], W = max(2^53, max |c_j| + R), subtracts c and projects onto
    the ball of radius R; A is a d x k matrix (by default the identity). All of these are public.
    The published value is z with its noise plus A^T c, so without a matrix it is in the rows' own
    coordinates. A row that is not finite counts as the centre.

    Sensitivity, in l2, of the one row that differs (`Sensitivity.block`); all others are equal, so
    it does not grow with n: |A| 2 R under REPLACE_ONE, and |A| r, r = row_change.norm, under
    BOUNDED_ROW_CHANGE. P projects onto two convex sets, a box that holds the ball and the ball, so
    it is 1-Lipschitz and leaves points of the ball unchanged; its image has diameter 2 R. |A| is
    the spectral norm of this very matrix: it holds for every pair of rows, however A was drawn
    without the data. Two terms are added. First, the rounding of P and A in float64: at most (d +
    16) 2^-50 R |A|_F for each of the two rows. Second, the lattice: each coordinate's distance
    grows by at most q, the row's by sqrt(k) q. Whole numbers are converted to float64 first,
    whatever stands beside them; this rounds monotonically, and only numbers beyond 2^53. With W =
    2^53 the clamped row is as if nothing were rounded; else each of the two rows moves by at most
    sqrt(d) 2^-53 W, which is added as well.

    Sources: the relation is PO-GP-UCB's (Kharkovskii, Dai & Low 2020, Definition 1). Projecting
    before adding noise: Kenthapadi et al. 2013, here with the spectral norm instead of their
    largest row norm, which is for changes of one coordinate.

    Args:
        center: c, d numbers, public: a constant or from a release of its own. The same holds for
            `radius` and `projection`.
        radius: R of the ball, from 1e-100 to 1e100, in the rows' units.
        row_change: the curator's, under BOUNDED_ROW_CHANGE; its diameter must be at least 2 R.
        projection: A, shape `d x k`, float64.
        table: key or position of the table among records that are a dict or a tuple; by default
            that of row_change, else the records.
    """

    center: Annotated[Sequence[float], _CENTER]
    radius: Annotated[float, between(1e-100, 1e100)]
    _: KW_ONLY
    row_change: RowChange | None = None
    projection: torch.Tensor | None = None
    table: str | int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", tuple(map(float, self.center)))
        if self.projection is not None:
            A, d = self.projection.detach().clone().cpu(), len(self.center)
            if A.dtype != torch.float64 or A.ndim != 2 or A.shape[0] != d or A.shape[1] < 1:
                raise InputError(
                    "projection", A, f"a float64 tensor of shape {d} x k", "Use .double()."
                )
            if not 1e-100 < float(A.abs().max()) < 1e100:  # false for NaN, which is its own maximum
                raise InputError(
                    "projection", A, "finite, with a largest entry between 1e-100 and 1e100"
                )
            object.__setattr__(self, "projection", A)
        if self.row_change is not None and self.table not in (None, self.row_change.table):
            raise InputError(
                "table",
                self.table,
                f"the one of row_change, {self.row_change.table!r}",
                "The relation is about that table.",
            )
        if self.row_change is not None and self.row_change.diameter < 2 * self.radius:
            raise InputError(
                "radius",
                self.radius,
                f"at most half the diameter {self.row_change.diameter:g} of row_change",
            )

    @property
    def dimension(self) -> int:
        """k, numbers in a released row."""
        if self.projection is None:
            return len(self.center)
        return self.projection.shape[1]

    def spectral_norm(self) -> float:
        """|A|, rounded up."""
        if self.projection is None:
            return 1.0
        return float(torch.linalg.matrix_norm(self.projection, 2)) * _UP

    def moves(self, adjacency: Adjacency) -> float:
        """How far a row's exact z moves, without the rounding of float64 and of the lattice."""
        if adjacency is Adjacency.REPLACE_ONE:
            return self.spectral_norm() * 2 * self.radius
        if adjacency is Adjacency.BOUNDED_ROW_CHANGE and self.row_change is not None:
            return self.spectral_norm() * self.row_change.norm
        raise InputError(
            "adjacency", adjacency, "REPLACE_ONE, or BOUNDED_ROW_CHANGE with the query's row_change"
        )

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        k = self.dimension
        most = self.moves(adjacency)
        if self._box() == _WHOLE:
            converted = 0.0
        else:
            converted = math.sqrt(len(self.center)) * 2.0**-53 * self._box()
        rounding = (
            2 * ((len(self.center) + 16) * 2.0**-50 * self.radius + converted) * self._frobenius()
        )
        l2 = (most + rounding + math.sqrt(k) * self._quantum(most)) * _UP
        return Sensitivity.of_l2(l2, (1.0,) * k, k)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        center = torch.tensor(self.center, dtype=torch.float64, device="cpu")
        return (center if self.projection is None else center @ self.projection).tolist(), 1.0

    def public_inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {} if self.table is None else {"table": self.table}
        inputs.update(center=list(self.center), radius=self.radius)
        if self.projection is not None:
            inputs["projection"] = [*self.projection.shape, fingerprint(self.projection).hex()]
        return inputs

    def needs_row_change(self) -> RowChange | None:
        return self.row_change

    def probe(self, example: Any, count: int, subject: Any) -> None:
        score_evaluation.probe_score(
            self._rows,
            None,
            example,
            len(self.center),
            count,
            lambda pieces: [self._mapped(piece) for piece in pieces],
        )

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        quantum = self._quantum(
            self.moves(
                Adjacency.REPLACE_ONE if self.row_change is None else Adjacency.BOUNDED_ROW_CHANGE
            )
        )

        def reduce(pieces: Iterable[torch.Tensor]) -> torch.Tensor:
            return torch.cat(
                [(self._mapped(piece) / quantum).floor_().to(torch.int64).cpu() for piece in pieces]
            )

        found = score_evaluation.score_records(self._rows, None, view, len(self.center), reduce)
        if isinstance(found, Failure):
            return found
        return IntegerSum(found.reshape(-1), (quantum,) * self.dimension)

    def _rows(self, _: Any, records: Any) -> Any:
        key = self.table if self.row_change is None else self.row_change.table
        if key is None:
            return records
        return records[key]

    def _mapped(self, rows: torch.Tensor) -> torch.Tensor:
        """z of each row, `n x k`, float64."""
        floats = rows.to(torch.float64)
        v = floats.clamp(-self._box(), self._box()) - floats.new_tensor(self.center)
        v = torch.where(floats.isfinite().all(1, keepdim=True), v, 0.0)
        largest = v.abs().amax(1, keepdim=True).clamp_min(1e-300)
        unit = v / largest
        # from 1 to sqrt(d), or 0: nothing overflows before it is compared
        length = unit.norm(dim=1, keepdim=True)
        z = torch.where(largest * length > self.radius, unit / length * self.radius, v)
        if self.projection is None:
            return z
        return z @ self.projection.to(z.device)

    def _box(self) -> float:
        """W, the same for whole numbers and floats: one row of a list may decide which of the two
        all rows are.
        """
        return max(_WHOLE, max(map(abs, self.center)) + self.radius)

    def _quantum(self, most: float) -> float:
        quantum = math.ldexp(1.0, math.frexp(most)[1] - _BITS)
        if self.radius * self._frobenius() / quantum > 2.0**61:
            raise InputError("row_change", self.row_change, "at least 2^-24 of the radius")
        return quantum

    def _frobenius(self) -> float:
        """|A|_F, rounded up. A pairwise sum, because `norm` of millions of entries loses more than
        _UP makes up for.
        """
        if self.projection is None:
            return math.sqrt(self.dimension)
        return math.sqrt(float(self.projection.square().sum())) * _UP


@checked_constructor
@dataclass(frozen=True, eq=False)
class RowOutcome(Query):
    """The outcome y_i = f(x_i) of one record: `RowOutcome(outcome, row=17, value_range=(0.0,
    1.0))`, with noise or declassified.

    The answer depends on record i alone (`part`; that `outcome` looks at nothing else is the
    assumption `score-per-record`), clipped to a public range [a, b]. Whatever replaces that record,
    the answer moves by at most b - a, in every norm: sensitivity b - a. The change of another
    record moves nothing, so the outcomes of distinct rows compose in parallel: a plan
    `parallel=True` costs what one row's outcomes cost.

    Declassified outcomes are published exactly and charged nothing, because the curator declares
    that they need no protection. That is a data assumption (`outcomes-declassified`): the release
    is conditional, and the statement says what holds without it.

    Args:
        outcome: `outcome(records)` returns a number, given a copy of the one record in the records'
            own container. It is called once, and never on stand-in records, because it may be an
            experiment.
        row: position of the record, from 0.
        value_range: public (a, b), in the outcome's units.
        declassified: why outcomes need no protection, in a sentence for the statement; then release
            the query with `NoNoise(allow_not_private=True)`. By default they are protected.
        worst: what counts where `outcome` gives no number: the "lower" end, the "upper" one, or a
            number between them.
    """

    outcome: Callable[[Any], Any]
    _: KW_ONLY
    row: Index
    value_range: ScoreRange
    declassified: (
        Annotated[str, Within("a sentence that says why outcomes need no protection", str.strip)]
        | None
    ) = None
    worst: str | float = "lower"

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if not adjacency.replaces:
            raise InputError(
                "adjacency",
                adjacency,
                "REPLACE_ONE or BOUNDED_ROW_CHANGE",
                "Rows have no public position under another.",
            )
        return self._mean().sensitivity(adjacency)

    def release_event(self, event: Event, adjacency: Adjacency) -> Event:
        exact = isinstance(event, NotPrivateEvent)
        if exact is not (self.declassified is not None):
            raise InputError(
                "declassified", self.declassified, "given for exact outcomes, and for no others"
            )
        if exact:
            return DeclassifiedEvent(count=event.count)
        return event

    def data_assumptions(self) -> Mapping[str, str]:
        if self.declassified is None:
            return {}
        return {
            "outcomes-declassified": (
                f"the curator declares that outcomes need no protection: {self.declassified}"
            )
        }

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return self._mean().affine(units)

    def public_inputs(self) -> dict[str, Any]:
        return {"value_range": list(self.value_range), "worst": self.worst}

    def part(self) -> int | None:
        return self.row

    def scores_one_at_a_time(self) -> bool:
        return True

    def quanta(self, units: int | None = None) -> tuple[float, ...]:
        return tuple(grid.quantum for grid in self._mean().lattices(1))

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if view.public_units is None or self.row >= view.public_units:
            raise InputError("row", self.row, f"below the number of records, {view.public_units}")
        if not view.can_take:
            raise InputError(
                "records", Unshown(view.records), "tensors, arrays, DataFrames or lists of samples"
            )
        try:
            value = (
                score_evaluation.tensor_of(self.outcome(view.single(self.row).records))
                .reshape(1, 1)
                .to(torch.float64)
            )
            if view.unfit is not None and bool(view.unfit[self.row]):
                value = _NOTHING
        except INTERRUPTS:
            raise
        except BaseException:  # whatever it is, it is this record's own
            value = _NOTHING
        return IntegerSum(sum_records([value.cpu()], self._mean().lattices(1)), self.quanta())

    def _mean(self) -> ClippedMean:
        """What lattice, sensitivity and published value are taken from: the mean over one
        record.
        """
        return ClippedMean(
            lambda _, records: self.outcome(records),
            score_range=self.value_range,
            divisor=1.0,
            worst=self.worst,
        )
