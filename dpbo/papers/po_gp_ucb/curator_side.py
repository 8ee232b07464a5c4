"""The curator's side of outsourced Bayesian optimisation: a table of rows, released once, and outcomes, one row at a time.

    rows = release_rows(curator, RowTable(center, radius, row_change=change), L2LaplaceMechanism.of(3.0))
    outcomes = Outcomes(curator, outcome, value_range=(0.0, 1.0), budget=0.25)
    answer = outcomes.value(17, request="8c1f...")        # the same request again gives the same answer, also after a crash

Both are plans in the curator's ledger, so what was drawn once is read from there ever after. Outcomes of distinct rows compose in parallel;
a row is answered `repeats` times at most.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from dpbo.accounting.calibration import exact_share
from dpbo.curator.birth import plan_terms
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, InputError, ReleaseLost
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import require_count
from dpbo.queries.query import own
from dpbo.queries.rows import RowOutcome, RowTable
from dpbo.statement import Statement
from dpbo.validation import checked, require_json

# ========== MERGED What goes from the curator to the modeler: a folder with the released table and its statement, and answers about
# single rows.
#
#     write_release("release", rows, facts, statement)          # the curator
#     rows, facts = read_release("release")                     # the modeler; nothing here knows a curator
#
# rows.npz holds Z (and A, where rows were projected), release.json the law of the noise and whatever public facts the curator adds,
# statement.json and statement.txt what is guaranteed. Files are replaced whole, so a curator that is stopped leaves no half of one.
#

FORMAT = 1


@checked
@dataclass(frozen=True, eq=False)
class ReleasedRows:
    """A released table; public.

    Attributes:
        Z: `n x k`, float64.
        variance: of the noise of each released coordinate, the same for all.
        law: of the noise, as the ledger has it.
        projection: A, `d x k`, where rows were projected.
    """

    Z: torch.Tensor
    variance: float
    law: dict[str, Any]
    projection: torch.Tensor | None = None


@dataclass(frozen=True)
class Answer:
    """One outcome; public. `variance` is that of the noise alone."""

    row: int
    value: float
    variance: float


@checked
def write_release(folder: str | os.PathLike[str], rows: ReleasedRows, facts: Mapping[str, Any], statement: Statement) -> None:
    """Write or replace the folder's files. `facts` are JSON values. Raises InputError where they are not, or the folder cannot be made."""
    require_json("facts", facts)
    place = pathlib.Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError("folder", str(place), "a folder, or where one can be made") from error
    arrays = {"Z": rows.Z.numpy()} | ({} if rows.projection is None else {"projection": rows.projection.numpy()})
    table = io.BytesIO()
    np.savez_compressed(table, **arrays)  # type: ignore[arg-type]
    told = {"format": FORMAT, "rows": list(rows.Z.shape), "variance": rows.variance, "law": rows.law, **facts}
    _replace(place / "rows.npz", table.getvalue())
    _replace(place / "release.json", json.dumps(told, indent=2).encode())
    _replace(place / "statement.json", statement.to_json().encode())
    _replace(place / "statement.txt", f"{statement}\n".encode())


@checked
def read_release(folder: str | os.PathLike[str]) -> tuple[ReleasedRows, dict[str, Any]]:
    """The table and the facts. Raises InputError where the folder holds no release of this format."""
    place = pathlib.Path(folder)
    try:
        facts = json.loads((place / "release.json").read_text())
        with np.load(place / "rows.npz", allow_pickle=False) as arrays:
            Z, A = torch.from_numpy(arrays["Z"]), torch.from_numpy(arrays["projection"]) if "projection" in arrays else None
        if facts["format"] != FORMAT or list(Z.shape) != facts["rows"]:
            raise ValueError("another format")
        return ReleasedRows(Z, float(facts["variance"]), facts["law"], A), facts
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "`python -m dpbo curate` writes one."
        raise InputError("folder", str(place), f"a folder with a release of format {FORMAT}", remedy) from error


def _replace(path: pathlib.Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


_LAWS: tuple[type[AdditiveMechanism], ...] = (GaussianMechanism, LaplaceMechanism)


@checked
def release_rows(
    curator: Curator, table: RowTable, mechanism: AdditiveMechanism, *, name: str = "rows", terms: Mapping[str, Any] | None = None
) -> ReleasedRows:
    """The table, released now or, under the same name and terms, earlier.

    Args:
        terms: more public JSON values that the ledger shall hold to, such as how the curator's table was scaled, by other names than
            those that dpbo states itself.

    Raises:
        BudgetExceeded: more than is left. ReleaseLost: it was charged, but what was drawn is lost. LedgerMismatch: other terms.
    """
    own = {**table.public_inputs(), "records": curator.units}
    held = plan_terms(own, terms or {}, known=name in curator.ledger.head().used, also=("projection", "table"))
    event = curator.reserve(name, mechanism.event(), slots=1, terms=held)
    if curator.ledger.head().used[name] == 0:
        same = type(mechanism)(event.noise_multiplier)
        curator.release_all([curator.evaluate(table)], same, name=name, plan=name, used=0)
    curator.deliver()
    known = curator.ledger.values(name)
    if not known:
        raise ReleaseLost(f"the table {name!r} was charged but never delivered, and it is never drawn twice. Release under another name.")
    Z = torch.tensor(known[0]["value"], dtype=torch.float64)
    return ReleasedRows(Z, max(known[0]["variance"]), known[0]["law"], table.projection)


@checked
class Outcomes:
    """Answers about single rows, by a plan of the ledger.

    Args:
        curator: owner of the records.
        outcome: `outcome(records)`, a number, from the one record it gets in the records' own container.
        value_range: public (lower, upper) of an outcome.
        budget: part of the budget that protects each row's outcomes; the less noisy of Gaussian and Laplace is taken.
        declassified: instead of a share, why outcomes need no protection; needs `allow_conditional=True` of the curator.
        repeats: how often a row may be asked.
        limit: how many answers there are in all; omitted, no limit but `repeats` of each row.
        worst: what counts where there is no number: the "lower" end, the "upper" one, or a number inside the range.
        terms: more public JSON values that the ledger shall hold to, by other names than those that dpbo states itself.
        name: the plan's name in the ledger; the same name and terms resume it.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left. LedgerMismatch: the name belongs to another plan.
    """

    def __init__(
        self,
        curator: Curator,
        outcome: Callable[[Any], Any],
        *,
        value_range: tuple[float, float],
        budget: float | Fraction | None = None,
        declassified: str | None = None,
        repeats: int = 1,
        limit: int | None = None,
        worst: str | float = "lower",
        terms: Mapping[str, Any] | None = None,
        name: str = "outcomes",
    ) -> None:
        if (budget is None) is (declassified is None):
            raise InputError("budget", budget, "given, or `declassified` with the reason, and not both")
        self.curator, self.name, self.repeats = curator, name, require_count("repeats", repeats)
        self._limit = None if limit is None else require_count("limit", limit)
        self._asked: dict[str, Any] = {"outcome": outcome, "value_range": own(value_range), "declassified": declassified, "worst": worst}
        self._lock = threading.Lock()
        planned = NoNoise(allow_not_private=True) if budget is None else self._planned(exact_share(budget))
        self.mechanism = self._reserved(planned, terms or {})
        self._known = self._stored()

    @property
    def variance(self) -> float:
        """Of an answer's noise."""
        any_row = self._query(0)
        law = self.mechanism.law(any_row.scale(self.curator.adjacency), any_row.quanta())
        return float(law.std[0]) ** 2

    def value(self, row: int, *, request: str) -> Answer:
        """The outcome of a row. `request` names this question: asked again by the same name, it gives the same answer and costs nothing.

        Raises:
            InputError: no such row, or a name that was used for another row. BudgetExceeded: the row, or the whole plan, was asked as
            often as is allowed; nothing was charged. ReleaseLost: the answer to this request was charged, but what was drawn is lost.
        """
        if not isinstance(request, str) or not 0 < len(request) <= 200:
            raise InputError("request", request, "a word of at most 200 letters")
        with self._lock:
            if request not in self._known:
                self._known[request] = self._answered(row, request)
            answer = self._known[request]
        if answer.row != row:
            raise InputError("request", request, "a name of its own for each question", "This one was used for another row.")
        return answer

    def history(self) -> list[Answer]:
        """Everything answered so far, by this process or earlier ones."""
        return [_answer(value) for value in self.curator.ledger.values(self.name)]

    def _stored(self) -> dict[str, Answer]:
        return {value["details"]["request"]: _answer(value) for value in self.curator.ledger.values(self.name)}

    def _answered(self, row: int, request: str) -> Answer:
        """An answer that is not known here: charged before, or made now."""
        charged = [slot for record in self.curator.ledger.charges(self.name) for slot in record.body["slots"]]
        if any(slot["details"]["request"] == request for slot in charged):
            return self._late(request)
        self._require_left(row, charged)
        return self._fresh(row, request)

    def _late(self, request: str) -> Answer:
        """What was charged for this question before, and stored only afterwards or by another process."""
        self.curator.deliver()
        if (answer := self._stored().get(request)) is None:
            raise ReleaseLost("this question was charged but its answer was never delivered, and it is never drawn twice.")
        return answer

    def _fresh(self, row: int, request: str) -> Answer:
        handle = self.curator.evaluate(self._query(row), row=row, request=request)
        (release,) = self.curator.release_all([handle], self.mechanism, name=self.name, plan=self.name)
        return Answer(row, float(release.value), float(release.variance))

    def _require_left(self, row: int, charged: Sequence[dict[str, Any]]) -> None:
        """Refuses before the outcome is looked at, which may take time or be an experiment; the ledger will look again."""
        account = self.curator.ledger.account
        if self._limit is not None and len(charged) >= self._limit:
            raise BudgetExceeded(1, self._limit - len(charged), self._limit, "answers", f"the plan {self.name!r}", account())
        if (done := sum(slot["part"] == row for slot in charged)) >= self.repeats:
            raise BudgetExceeded(1, self.repeats - done, self.repeats, "slots", f"row {row} of the plan {self.name!r}", account())

    def _reserved(self, planned: AdditiveMechanism | NoNoise, terms: Mapping[str, Any]) -> AdditiveMechanism | NoNoise:
        """The plan, and its mechanism as the ledger has it."""
        query, curator = self._query(0), self.curator
        declared = dict(query.data_assumptions())
        own = {**query.public_inputs(), **({"assumptions": declared} if declared else {})}
        held = plan_terms(own, terms, known=self.name in curator.ledger.head().used)
        event = query.charged(planned.event(), curator.adjacency)
        kept = curator.reserve(self.name, event, slots=self.repeats, terms=held, parallel=True, limit=self._limit)
        return planned if isinstance(planned, NoNoise) else type(planned)(kept.noise_multiplier)

    def _query(self, row: int) -> RowOutcome:
        return RowOutcome(row=row, **self._asked)

    def _planned(self, share: Fraction) -> AdditiveMechanism:
        """The least noisy law that the accounting can pay for."""
        accounting, available = self.curator.accounting, self.curator.ledger.cap * share
        priced = ((law, accounting.multiplier(law.kind, self.repeats, available)) for law in _LAWS)
        laws = [law(multiplier) for law, multiplier in priced if multiplier is not None]
        if not laws:
            raise InputError("accounting", accounting.name, "one that can pay for Gaussian or Laplace noise")
        return min(laws, key=lambda law: law.noise_multiplier * law.std(1))


def _answer(stored: dict[str, Any]) -> Answer:
    return Answer(stored["details"]["row"], stored["value"][0], stored["variance"][0])
