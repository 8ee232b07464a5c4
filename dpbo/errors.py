"""Typed errors. Each names the parameter, its value, the allowed range and the remedy; none carries a private number."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST = 200  # letters of a value that are shown


class PrivacyError(Exception):
    """Base of every error that dpbo raises on purpose. All survive the way back from a worker."""

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[PrivacyError], args: tuple[Any, ...], attributes: dict[str, Any]) -> PrivacyError:
    error = kind.__new__(kind, *args)
    error.args, error.__dict__ = args, attributes
    return error


@dataclass(frozen=True)
class Unshown:
    """What stands for a value that may be a secret or private: its type alone is told."""

    value: Any


class InputError(PrivacyError, ValueError):
    """A public argument is outside its allowed range.

    Attributes:
        parameter: name of the argument.
        value: what was given, as shown: numbers, words and short tuples of them; of anything else, which may be private, only the type,
            and of arrays and tensors the dtype and the number of dimensions.
        allowed: what would have been accepted.
    """

    def __init__(self, parameter: str, value: Any, allowed: str, remedy: str = "") -> None:
        self.parameter, self.value, self.allowed, self.remedy = parameter, _showable(value), allowed, remedy
        advice = f" {remedy}" if remedy else ""
        super().__init__(f"{parameter}={self.value} is not allowed: {parameter} must be {allowed}.{advice}")


def _showable(value: Any) -> str:
    if isinstance(value, Unshown):
        return f"<{type(value.value).__name__}>"
    plain = (int, float, str, enum.Enum, type(None))
    short = isinstance(value, (tuple, list)) and len(value) <= 8 and all(isinstance(part, (int, float)) for part in value)
    if not (isinstance(value, plain) or short):
        return _kind(value)
    try:
        shown = repr(value)
    except Exception:  # a whole number of thousands of digits, or a class of the user's own
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def _kind(value: Any) -> str:
    """Its type. Of an array, how many rows there are may be private, and how long its longest text."""
    kind = type(value)
    if kind.__module__.partition(".")[0] not in ("numpy", "torch") or not getattr(value, "ndim", 0):
        return f"<{kind.__name__}>"
    dtype = getattr(getattr(value.dtype, "type", None), "__name__", str(value.dtype))
    return f"<{kind.__name__}, {dtype}, {value.ndim}-d>"


class BudgetExceeded(PrivacyError):
    """A release, or a reservation, asks for more than is left. Nothing was drawn and nothing was charged.

    Attributes:
        requested, remaining, budget: public numbers in one unit, `unit` (slots, or mu^2).

    The message ends with `account`: the budget in epsilon and delta, and what was spent on what.
    """

    def __init__(self, requested: float, remaining: float, budget: float, unit: str, what: str, account: str) -> None:
        self.requested, self.remaining, self.budget, self.unit = requested, remaining, budget, unit
        super().__init__(
            f"{what} asks for {requested:.6g} {unit}, but {remaining:.6g} of {budget:.6g} {unit} are left. Nothing was charged. {account} "
            "What is spent does not come back: beyond this budget these records may not be asked again, in this ledger or in another."
        )


class ScoreError(PrivacyError):
    """The score failed on public stand-in records (zeros, or `example=`), before any private record was read."""


class PrivateFailure(PrivacyError):
    """The score failed on private records in a way that cannot be confined to single units.

    What happened there is itself private, so no detail is shown and the ledger notes nothing: see `score-total` in every statement.
    """


class ReleaseLost(PrivacyError):
    """This handle was charged but its value was never delivered; it is never drawn a second time."""


class OpacityError(PrivacyError, TypeError):
    """Somebody asked a curator or a handle for its private content, or tried to pickle it."""


class LedgerError(PrivacyError):
    """The ledger cannot be used as asked."""


class LedgerUnavailable(LedgerError):
    """The ledger's storage cannot be reached, is locked, or is not writable.

    Attributes:
        uncertain: whether the failure came while committing, so that the record may or may not have been kept.
    """

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        self.uncertain = uncertain
        super().__init__(message)


class LedgerMismatch(LedgerError):
    """The ledger was opened for another data set, unit, adjacency, budget or plan than it was born with."""

    def __init__(self, field: str, stored: Any, given: Any, remedy: str) -> None:
        self.field, self.stored, self.given = field, stored, given
        super().__init__(f"the ledger has {field}={stored!r}, but {field}={given!r} was given. {remedy}")


class PlanChanged(LedgerMismatch):
    """A plan is resumed with other records, or another score or training, than it began with. Nothing was charged.

    Attributes:
        plan, field: its name, and what differs.
    """

    def __init__(self, plan: str, field: str) -> None:
        self.plan, self.field = plan, field
        PrivacyError.__init__(
            self,
            f"{field}: the plan {plan!r} began with others, and its released values answer those. Nothing was charged. Give what it began "
            "with, or choose another name. What a score refers to is part of it, numbers and words too; where the question is the same "
            "nevertheless, delete the file of fingerprints beside the ledger.",
        )


class LedgerCorrupt(LedgerError):
    """The hash chain does not hold, or its file is damaged: a record was changed, removed, reordered, cut off or put back."""


class RanksError(PrivacyError):
    """Processes that share the records cannot go on together."""


class RanksDisagree(RanksError):
    """Ranks asked for different things. Nothing was evaluated, charged or drawn, and all may go on.

    Attributes:
        asked: what each rank asked for, in words. apart: ranks that differ from the first, perhaps in a public number alone.
    """

    def __init__(self, asked: Sequence[str], apart: Sequence[int]) -> None:
        self.asked, self.apart = tuple(asked), tuple(apart)
        told = f"rank 0 asked to {self.asked[0]}; " + ", ".join(f"rank {rank} to {self._told(rank)}" for rank in self.apart)
        super().__init__(
            f"ranks asked for different things ({told}). Nothing was charged. Every rank must run the same code with the same settings, "
            "seeds and versions, on machines of one kind."
        )

    def _told(self, rank: int) -> str:
        return "do so with other public numbers" if self.asked[rank] == self.asked[0] else self.asked[rank]


class RankFailed(RanksError):
    """Another rank raised an error of its own, which this one cannot show.

    Attributes:
        rank: which. error: the type's name.
    """

    def __init__(self, rank: int, error: str) -> None:
        self.rank, self.error = rank, error
        super().__init__(f"rank {rank} raised {error}: look there. The step was given up on every rank.")


class RankLost(RanksError):
    """Another rank is gone, or did not come within the timeout. These ranks cannot go on: end them, and start anew on the same ledger.

    A value that was stored is resumed and costs nothing again; a charge without a value is lost, and nothing is drawn twice.
    """

    def __init__(self, while_: str) -> None:
        super().__init__(
            f"a rank was lost, or did not come within the timeout, while ranks were to {while_}. End all processes and start them anew on "
            "the same ledger: what was released is resumed, nothing is charged or drawn twice."
        )
