"""Typed errors. Each names the parameter, its value, the allowed range and the remedy; none carries
a private number.
"""

import copyreg
import enum
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any

# Characters of a value that are shown.
_LONGEST = 200


class PrivacyError(Exception):
    """Base of every error that dpbo raises on purpose. All can be pickled, so they arrive whole
    from a worker.
    """

    def __reduce__(self) -> Any:
        # A copy is made without __init__, whose arguments `args` does not hold.
        copied: Any = copyreg
        return copied.__newobj__, (type(self), *self.args), self.__dict__


@dataclass(frozen=True)
class Unshown:
    """Wraps a value that may be secret or private: only its type is shown."""

    value: Any


class UsageError(PrivacyError, ValueError):
    """dpbo cannot be used in this way or at this moment. The message says what to do."""


class InputError(UsageError):
    """A public argument is outside its allowed range.

    Attributes:
        parameter: name of the argument.
        value: the value as text. Numbers, text and short tuples of numbers are shown; of other
            values, which may be private, only the type, and for arrays and tensors the dtype and
            the number of dimensions.
        allowed: what is allowed.
        remedy: what to do.
    """

    def __init__(self, parameter: str, value: Any, allowed: str, remedy: str = "") -> None:
        self.parameter = parameter
        self.value = _showable(value)
        self.allowed = allowed
        self.remedy = remedy
        advice = f" {remedy}" if remedy else ""
        super().__init__(
            f"{parameter}={self.value} is not allowed: {parameter} must be {allowed}.{advice}"
        )


def _showable(value: Any) -> str:
    if isinstance(value, Unshown):
        return f"<{type(value.value).__name__}>"
    plain = (int, float, str, enum.Enum, type(None))
    short = (
        isinstance(value, (tuple, list))
        and len(value) <= 8
        and all(isinstance(part, (int, float)) for part in value)
    )
    if not (isinstance(value, plain) or short):
        kind = type(value)
        if kind.__module__.partition(".")[0] not in ("numpy", "torch") or not getattr(
            value, "ndim", 0
        ):
            return f"<{kind.__name__}>"
        # `str(dtype)` has the length of the longest text.
        dtype = getattr(getattr(value.dtype, "type", None), "__name__", str(value.dtype))
        # The number of rows may be private.
        return f"<{kind.__name__}, {dtype}, {value.ndim}-d>"
    try:
        shown = repr(value)
    except Exception:
        # An int of thousands of digits, or a class of the user's own.
        return f"<{type(value).__name__}>"
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[:_LONGEST]}..."


class BudgetExceeded(PrivacyError):
    """A release or a reservation needs more than is left. Nothing was drawn and nothing was
    charged.

    Args:
        requested, remaining, budget: public numbers in one unit; the message gives costs also as
            shares of the budget.
        unit: of these, such as slots or mu^2.
        what: the release or reservation.
        account: the budget in epsilon and delta, and what it was spent on (`Ledger.account`).
        hint: what would have been paid for, in whole sentences.
    """

    def __init__(
        self,
        requested: float,
        remaining: float,
        budget: float,
        unit: str,
        what: str,
        account: str,
        hint: str = "",
    ) -> None:
        # Floats of two exact sums that are equal may differ.
        left = remaining if remaining > 1e-12 * budget else 0
        self.requested = requested
        self.remaining = left
        self.budget = budget
        self.unit = unit
        # A share of a count is no share of the privacy budget.
        counted = isinstance(budget, int) or unit == "slots" or not budget
        if counted:
            share, rest = ("", "")
        else:
            share, rest = (
                f" ({100 * part / budget:.4g} % of the budget)" for part in (requested, left)
            )
        needed = f"{requested:.6g} {unit.removesuffix('s') if requested == 1 else unit}{share}"
        super().__init__(
            f"{what} needs {needed}; {left:.6g} of {budget:.6g} {unit} are left{rest}. Nothing was"
            f" charged. {account}{hint and ' ' + hint} Beyond this budget nothing more may be"
            " released about these records, with this ledger or another."
        )


class ScoreError(PrivacyError):
    """The score failed on public stand-in records (made up, or `example=`), before any private
    record was read.
    """


class PrivateFailure(PrivacyError):
    """The score failed on private records as a whole, not just on single units.

    Why it failed is private, so no detail is shown and the ledger records nothing; see
    `score-total` in every statement.
    """


class ReleaseLost(PrivacyError):
    """This handle was charged but its value was never delivered; it is never drawn a second
    time.
    """


class MissingLibrary(PrivacyError, ModuleNotFoundError):
    """A library that only this part of dpbo needs cannot be imported. Nothing was charged.

    Attributes:
        module: what could not be imported.
        extra: the extra of dpbo that installs it, or "" where none does.
    """

    def __init__(self, module: str, extra: str, remedy: str = "") -> None:
        self.module = module
        self.extra = extra
        advice = remedy or f'Install it with: pip install "dpbo[{extra}]"'
        super().__init__(
            f"{module} is not installed, which this part of dpbo needs. {advice}", name=module
        )


class WorkersDied(PrivacyError, BrokenExecutor):
    """The executor's workers died, and dpbo cannot replace them. Nothing was charged."""


class OpacityError(PrivacyError, TypeError):
    """A curator or a handle was asked for its private content, or pickled."""


class LedgerError(PrivacyError):
    """The ledger cannot be used as asked."""


class LedgerUnavailable(LedgerError):
    """The ledger's storage cannot be reached, is locked, or is not writable.

    Attributes:
        uncertain: whether the commit itself failed, so that the record may or may not be stored.
    """

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        self.uncertain = uncertain
        super().__init__(message)


class LedgerMissing(LedgerUnavailable):
    """No ledger stands at the place: there is no file or table, or it has no first record."""


class LedgerMismatch(LedgerError):
    """The ledger belongs to another data set, unit, adjacency or budget, or the reservation has
    other terms.
    """

    def __init__(self, field: str, stored: Any, given: Any, remedy: str) -> None:
        self.field = field
        self.stored = stored
        self.given = given
        super().__init__(
            f"the ledger has {field}={stored!r}, but {field}={given!r} was given. {remedy}"
        )


ORDER = "order of the records"


class ReservationChanged(LedgerMismatch):
    """A reservation was resumed with other records, another score or another training than it began
    with. Nothing was charged.

    Attributes:
        reservation: the reservation's name.
        field: what differs.
    """

    def __init__(self, reservation: str, field: str) -> None:
        self.reservation = reservation
        self.field = field
        records = field.endswith("records") and field != ORDER
        if records:
            remedy = (
                "Give the records that it began with, in any order, or choose another name for"
                " these."
            )
        else:
            remedy = (
                "Give the same one, or choose another name. It is the same only if the functions,"
                " numbers, text and tables that it refers to are. If only its code was"
                " rewritten and the question is the same, delete the file of fingerprints beside"
                " the ledger, which also notices an older copy of it."
            )
        if field == ORDER:
            remedy = (
                "Give the records in the order in which it began, or choose another name: its"
                " answers are counted by their places."
            )
        article, those = ("other", "those") if records else ("another", "that one")
        began = (
            f"the reservation {reservation!r} began with {article} {field}, and its released values"
            f" belong to {those}. Nothing was charged."
        )
        PrivacyError.__init__(self, f"{began} {remedy}")


class LedgerCorrupt(LedgerError):
    """The hash chain is broken or its file damaged: a record was changed, removed, reordered, cut
    off or restored.
    """


class LedgerRolledBack(LedgerCorrupt):
    """The chain lacks a record that this process saw, or a head that was noted elsewhere: an older
    or another copy stands in its place.
    """


class RanksError(PrivacyError):
    """Processes that share the records cannot continue together."""


class RanksDisagree(RanksError):
    """Ranks requested different steps, or have other code, numbers or models to evaluate.

    Nothing was evaluated, charged or drawn, and all may continue.

    Attributes:
        requested: what each rank requested.
        differing: ranks that differ from rank 0, perhaps in code, a public number or a model only.
    """

    def __init__(self, requested: Sequence[str], differing: Sequence[int]) -> None:
        self.requested = tuple(requested)
        self.differing = tuple(differing)
        others = []
        for r in differing:
            step = requested[r]
            if step == requested[0]:
                step = "do so with other code, numbers or models"
            others.append(f"rank {r} to {step}")
        super().__init__(
            f"ranks requested different steps: rank 0 to {requested[0]}; {', '.join(others)}."
            " Nothing was charged. Every rank must run the same code with the same settings,"
            " seeds, models and versions, on machines of one kind. A score takes its device from"
            " the records. Ranks whose ledgers differ must all be started again."
        )


class RankFailed(RanksError):
    """Another rank raised an error that this rank cannot show: one that is not dpbo's, or any with
    `Ranks(trust="sum")`.

    Attributes:
        rank: the other rank; None with trust="sum", where nobody learns which.
        error: name of the error's type.
    """

    def __init__(self, rank: int | None, error: str) -> None:
        self.rank = rank
        self.error = error
        who = "another rank" if rank is None else f"rank {rank}"
        super().__init__(
            f"{who} raised {error}: see its output. The step was cancelled on every rank."
        )


class RankLost(RanksError):
    """Another rank ended, or did not answer within the timeout. End all ranks and start them again
    on the same ledger.

    Stored values are resumed and cost nothing again; a charge without a value is lost, and nothing
    is drawn twice.
    """

    def __init__(self, step: str) -> None:
        super().__init__(
            f"a rank ended, or did not answer within the timeout, while ranks were to {step}. End"
            " all processes and start them again on the same ledger: released values are resumed,"
            " and nothing is charged or drawn twice."
        )


class RemoteRefusal(PrivacyError):
    """The curator refused a question.

    Attributes:
        status: HTTP status, or 0 if the curator could not be reached. 410: this row has no further
            answer, because all were given or one was lost. 429: no row has one.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"the curator answered {status}: {message}" if status else message)


class CuratorUnavailable(RemoteRefusal):
    """The curator's server cannot be reached, or cannot reach its ledger. Ask again later."""
