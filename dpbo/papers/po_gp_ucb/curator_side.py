"""The curator's side of outsourced Bayesian optimisation: a table of rows, released once, and
outcomes of single rows.

    table = RowTable(center, radius, row_change=change)
    rows = release_rows(curator, table, L2LaplaceMechanism.of(3.0))
    outcomes = Outcomes(curator, outcome, value_range=(0.0, 1.0), budget=0.25)
    # the same request again gives the same answer, also after a crash
    answer = outcomes.value(17, request="8c1f...")
    write_release("release", rows, facts, curator.statement())

Both are reservations in the curator's ledger, so what was drawn once is read from there ever after.
The guarantee holds without assumptions (for `declassified` outcomes there is none). It is the sound
method beside PO-GP-UCB's transform, whose guarantee is broken: see `transform`.

The modeler reads the folder by `read_release` and needs no curator. rows.npz holds Z (and A, where
rows were projected), release.json the law of the noise and the public facts that the curator adds,
statement.json and statement.txt the guarantee. Each file is replaced as a whole, so a curator that
is stopped leaves no half of one.
"""

import functools
import io
import json
import os
import pathlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from dpbo.accounting.gdp import epsilon_at
from dpbo.curator.curator import Curator
from dpbo.curator.pricing import priced
from dpbo.errors import BudgetExceeded, InputError, ReleaseLost
from dpbo.ledger.birth import reservation_terms
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.objective import NoiseWarning
from dpbo.papers.po_gp_ucb.rows import RowOutcome, RowTable
from dpbo.planning import COARSE, FINE, detectable_difference
from dpbo.privacy import Budget
from dpbo.queries.query import copy_mutable
from dpbo.statement import Statement
from dpbo.validation import Count, Name, checked, named_file, require_json, warn

FORMAT = 1
_KINDS: tuple[type[AdditiveMechanism], ...] = (GaussianMechanism, LaplaceMechanism)


@checked
@dataclass(frozen=True, eq=False)
class ReleasedRows:
    """A released table; public.

    Attributes:
        Z: `n x k`, float64.
        variance: variance of the noise of each released coordinate, the same for all.
        distribution: of the noise, as the ledger has it.
        projection: A, `d x k`, where rows were projected.
    """

    Z: torch.Tensor
    variance: float
    distribution: dict[str, Any]
    projection: torch.Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """One outcome; public. `variance` is that of the noise alone."""

    row: int
    value: float
    variance: float


@checked
def write_release(
    folder: str | os.PathLike[str],
    rows: ReleasedRows,
    facts: Mapping[str, Any],
    statement: Statement,
) -> None:
    """Write or replace the folder's files.

    Args:
        facts: more public JSON values for the modeler, by name.

    Raises:
        InputError: facts that are not JSON, or a folder that cannot be made or written to.
    """
    require_json("facts", facts)
    place = pathlib.Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError("folder", str(place), "a folder, or where one can be made") from error
    arrays = {"Z": rows.Z.numpy()}
    if rows.projection is not None:
        arrays["projection"] = rows.projection.numpy()
    table = io.BytesIO()
    np.savez_compressed(table, **arrays)  # type: ignore[arg-type]
    release = {
        "format": FORMAT,
        "rows": list(rows.Z.shape),
        "variance": rows.variance,
        "distribution": rows.distribution,
        **facts,
    }
    files = {
        "rows.npz": table.getvalue(),
        "release.json": json.dumps(release, indent=2).encode(),
        "statement.json": statement.to_json().encode(),
        "statement.txt": f"{statement}\n".encode(),
    }
    for name, content in files.items():
        draft = place / f".{name}.{os.getpid()}"
        with named_file("folder", place, "a folder that can be written to"):
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(place / name)


@checked
def read_release(folder: str | os.PathLike[str]) -> tuple[ReleasedRows, dict[str, Any]]:
    """The table and the facts that `write_release` wrote. Raises InputError where the folder holds
    no release of this format.
    """
    place = pathlib.Path(folder)
    try:
        facts = json.loads((place / "release.json").read_text())
        with np.load(place / "rows.npz", allow_pickle=False) as arrays:
            Z = torch.from_numpy(arrays["Z"])
            A = torch.from_numpy(arrays["projection"]) if "projection" in arrays else None
        if facts["format"] != FORMAT or list(Z.shape) != facts["rows"]:
            raise ValueError("another format")
        return ReleasedRows(Z, float(facts["variance"]), facts["distribution"], A), facts
    except (OSError, ValueError, KeyError, TypeError) as error:
        allowed = f"a folder with a release of format {FORMAT}"
        raise InputError("folder", str(place), allowed, "`write_release` writes one.") from error


@dataclass(frozen=True)
class RowsPlan:
    """What a modeler can do with rows that are released with noise; `str()` says it.

    Attributes:
        noise: standard deviation of the noise of each released coordinate.
        radius: largest norm of a row, before its noise.
        detectable_distance: how far two rows must lie apart to be told apart along the line between
            them, with an error of .05: `detectable_difference` of `dpbo.plan`.
        epsilon: that of a release whose rows are told apart from a tenth of their diameter on, for
            the rows alone; None where this release is as good, or the budget names no delta.
        fewer: whether fewer coordinates would have less noise.
    """

    noise: float
    radius: float
    detectable_distance: float
    epsilon: float | None
    fewer: bool

    @property
    def share(self) -> float:
        """The detectable distance as a share of the rows' diameter."""
        return self.detectable_distance / (2 * self.radius)

    def __str__(self) -> str:
        told = f"noise {self.noise:.2g} a coordinate on rows of norm up to {self.radius:g}:"
        apart = (
            f"rows are told apart from a distance of {self.detectable_distance:.2g} on,"
            f" {self.share:.2g} of their diameter"
        )
        if self.share <= FINE:
            return f"{told} the best row can be found; {apart}."
        if self.share <= COARSE:
            return f"{told} a good row can be found, the best one hardly; {apart}."
        needed = [] if self.epsilon is None else [f"epsilon >= {self.epsilon:.2g}"]
        needed += ["fewer coordinates"] * self.fewer
        needs = f"; {' or '.join(needed)} would be needed" if needed else ""
        return f"{told} the best row will hardly be found{needs}; {apart}."


@checked
def plan_rows(curator: Curator, table: RowTable, mechanism: AdditiveMechanism) -> RowsPlan:
    """What the release of these rows with this noise would be good for; reads no record.

    Raises:
        InputError: a table that is not of the curator's relation.
    """
    moved = mechanism.norm(table.sensitivity(curator.adjacency))
    noise = mechanism.noise_multiplier * moved * mechanism.std(table.dimension)
    radius = table.spectral_norm() * table.radius
    distance = detectable_difference(noise)
    # how many times less noise it would take
    factor = distance / (COARSE * 2 * radius)
    gaussian = isinstance(mechanism, GaussianMechanism)
    needed = factor / mechanism.noise_multiplier
    epsilon: float | None = None
    if factor > 1 and not gaussian:
        epsilon = needed
    elif factor > 1 and curator.budget.delta is not None:
        epsilon = epsilon_at(needed, curator.budget.delta)
    return RowsPlan(noise, radius, distance, epsilon, table.dimension > 1 and not gaussian)


@checked
def release_rows(
    curator: Curator,
    table: RowTable,
    mechanism: AdditiveMechanism,
    *,
    name: str = "rows",
    terms: Mapping[str, Any] | None = None,
) -> ReleasedRows:
    """The table, released now or, under the same name and terms, earlier.

    Args:
        name: name of the reservation in the ledger.
        terms: more public JSON values that the ledger keeps and compares, such as how the curator's
            table was scaled, under names that dpbo does not use itself.

    Raises:
        BudgetExceeded: more than is left.
        ReleaseLost: it was charged, but its value was lost.
        NoiseWarning: as a warning, where `plan_rows` says that the best row will hardly be found.
        LedgerMismatch: other terms, or (ReservationChanged) other records, or another order of
            them.
    """
    planned = plan_rows(curator, table, mechanism)
    if planned.share > COARSE:
        warn(str(planned), NoiseWarning)
    held = reservation_terms(
        {**table.public_inputs(), "records": curator.units},
        terms or {},
        also=("projection", "table"),
    )
    row = curator.reserve(name, mechanism, slots=1, given={}, ordered=True, terms=held).release(
        table
    )
    Z = torch.tensor(row["value"], dtype=torch.float64, device="cpu")
    return ReleasedRows(Z, max(row["variance"]), row["distribution"], table.projection)


@checked
class Outcomes:
    """Outcomes of single rows with noise, from one reservation.

    Distinct rows compose in parallel; each is answered `repeats` times at most.

    Args:
        curator: owner of the records.
        outcome: `outcome(records)`, a number, from the one record it gets in the records' own
            container.
        value_range: public (lower, upper) of an outcome.
        budget: what protects each row's outcomes, a Budget or a share in (0, 1] of the curator's;
            the less noisy of Gaussian and Laplace noise is taken.
        declassified: instead of a budget, the reason why outcomes need no protection; needs
            `allow_conditional=True` of the curator.
        repeats: how often a row may be asked.
        limit: how many answers there are in all; omitted, no limit but `repeats` of each row.
        worst: the outcome where there is no number: the "lower" end, the "upper" one, or a number
            inside the range.
        terms: more public JSON values that the ledger keeps and compares, under names that dpbo
            does not use itself.
        name: name of the reservation in the ledger; the same name and terms resume it.

    Raises:
        InputError: an argument outside its range.
        BudgetExceeded: the budget is not left.
        LedgerMismatch: the name belongs to another reservation, or (ReservationChanged) to one that
            began with other records, another order of them, or another outcome.
    """

    def __init__(
        self,
        curator: Curator,
        outcome: Callable[[Any], Any],
        *,
        value_range: tuple[float, float],
        budget: Budget | float | Fraction | None = None,
        declassified: str | None = None,
        repeats: Count = 1,
        limit: Count | None = None,
        worst: str | float = "lower",
        terms: Mapping[str, Any] | None = None,
        name: str = "outcomes",
    ) -> None:
        if (budget is None) is (declassified is None):
            raise InputError(
                "budget", budget, "given, or `declassified` with the reason, and not both"
            )
        self.curator, self.name, self.repeats, self._limit = curator, name, repeats, limit
        self._query = functools.partial(
            RowOutcome,
            outcome=outcome,
            value_range=copy_mutable(value_range),
            declassified=declassified,
            worst=worst,
        )
        self._lock = threading.Lock()
        query = self._query(row=0)
        noise: Mechanism = NoNoise(allow_not_private=True)
        if budget is not None:
            noise = min(
                priced(curator.ledger, _KINDS, budget, repeats),
                key=lambda noise: noise.noise_multiplier * noise.std(1),
            )
        held = reservation_terms(query.public_inputs(), terms or {})
        self._reservation = curator.reserve(
            name,
            noise,
            slots=repeats,
            query=query,
            given={"outcome": outcome},
            terms=held,
            parallel=True,
            limit=limit,
        )
        self.mechanism = self._reservation.mechanism
        self._known = self._stored()

    @property
    def variance(self) -> float:
        """Variance of an answer's noise."""
        return float(self._reservation.noise_std) ** 2

    def value(self, row: int, *, request: Name) -> Answer:
        """The outcome of a row.

        Args:
            row: index of the row.
            request: a name for this question, at most 200 letters. The same name again gives the
                same answer and costs nothing.

        Raises:
            InputError: no such row, or a name that was used for another row.
            BudgetExceeded: the row, or the whole reservation, was asked as often as is allowed;
                nothing was charged.
            ReleaseLost: the answer to this request was charged, but its value was lost.
        """
        with self._lock:
            if request not in self._known:
                self._known[request] = self._answer(row, request)
            answer = self._known[request]
        if answer.row != row:
            raise InputError(
                "request",
                request,
                "a name of its own for each question",
                "This one was used for another row.",
            )
        return answer

    def history(self) -> list[Answer]:
        """Everything answered so far, by this process or earlier ones."""
        return list(self._stored().values())

    def _stored(self) -> dict[str, Answer]:
        """The ledger's answers by request, in order."""
        stored = {}
        for value in self._reservation.values:
            asked = value["details"]
            answer = Answer(asked["row"], value["value"][0], value["variance"][0])
            stored[asked["request"]] = answer
        return stored

    def _answer(self, row: int, request: str) -> Answer:
        """An answer that this object does not know: charged before, or made now."""
        charged = []
        for record in self.curator.ledger.charges(self.name):
            charged += record.body["slots"]
        # stored only afterwards, or by another process
        if any(slot["details"]["request"] == request for slot in charged):
            self.curator.deliver()
            if (answer := self._stored().get(request)) is None:
                raise ReleaseLost(
                    "this question was charged but its answer was never delivered, and it is never"
                    " drawn twice."
                )
            return answer
        # refuse before the outcome is computed, which may be an experiment; the ledger checks again
        account = self.curator.ledger.account
        if self._limit is not None and len(charged) >= self._limit:
            raise BudgetExceeded(
                1,
                self._limit - len(charged),
                self._limit,
                "answers",
                f"the reservation {self.name!r}",
                account(),
            )
        if (done := sum(slot["part"] == row for slot in charged)) >= self.repeats:
            raise BudgetExceeded(
                1,
                self.repeats - done,
                self.repeats,
                "slots",
                f"row {row} of the reservation {self.name!r}",
                account(),
            )
        handle = self.curator.evaluate(self._query(row=row), row=row, request=request)
        (release,) = self._reservation.release_all([handle])
        return Answer(row, float(release.value), float(release.variance))
