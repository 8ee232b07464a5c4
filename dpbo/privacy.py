"""What a guarantee is made of: who is protected, against which change of the data, and up to which
budget.

`PrivacyUnit("patient", groups=ids)` protects all rows of a patient together; `Budget(epsilon=3.0,
delta=1e-6)` caps the privacy loss. The unit and the adjacency have no default, because a guarantee
without them means nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from dpbo.errors import InputError, UsageError
from dpbo.validation import Positive, Probability, Within, between, checked, require, warn

# a factor that makes up for the rounding of a few float64 operations
ROUND_UP = 1.0 + 1e-15


class Adjacency(enum.Enum):
    """Which pairs of data sets must be indistinguishable.

    REPLACE_ONE: one unit's records are replaced by any others; the number of units is public.
    ADD_OR_REMOVE_ONE: one unit is added or removed; the number of units is private.
    BOUNDED_ROW_CHANGE: one row moves by a bounded distance; it protects less than a whole row
    (PO-GP-UCB, see `RowChange`).
    """

    REPLACE_ONE = "replace-one"
    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    BOUNDED_ROW_CHANGE = "bounded-row-change"

    @classmethod
    def of(cls, value: Adjacency | RowChange | str) -> Adjacency:
        """The relation itself, the one of this name ("replace-one"), or that of a RowChange. Raises
        InputError on any other text.
        """
        if isinstance(value, RowChange):
            return cls.BOUNDED_ROW_CHANGE
        try:
            return cls(value)
        except ValueError:
            raise InputError("adjacency", value, f"one of {[one.value for one in cls]}") from None

    @property
    def replaces(self) -> bool:
        """Whether neighbours have the same number of units, which is then public. Every result for
        REPLACE_ONE applies.
        """
        return self is not Adjacency.ADD_OR_REMOVE_ONE


_EXAMPLE = "For example PrivacyUnit('record')."
_UNIT = Within(
    "a non-empty word of printable letters for the protected unit",
    lambda name: bool(name.strip()) and name.isprintable(),
    _EXAMPLE,
)
_BudgetDelta = Annotated[
    float,
    Within(
        "in [0, 1)",
        lambda delta: 0.0 <= delta < 1.0,
        "Choose it well below 1/units, for example 1e-6.",
    ),
]


@checked
@dataclass(frozen=True)
class RowChange:
    """The relation BOUNDED_ROW_CHANGE with how far the row may move: by at most `norm`, while the
    rest of the record may change at will.

    Args:
        norm: bound in l2, in the units of the table that the curator holds; at least 2^-24 of the
            diameter.
        diameter: diameter of the public set that rows lie in, in the same units; the statement
            compares `norm` with it.
        table: key or position of that table among records that are a dict or a tuple; omitted, the
            records are the table.
    """

    norm: float
    diameter: Annotated[float, between(1e-100, 1e100)]
    table: str | int | None = None

    def __post_init__(self) -> None:
        require(
            "norm", self.norm, Annotated[float, between(self.diameter * 2.0**-24, self.diameter)]
        )


@checked
@dataclass(frozen=True)
class PrivacyUnit:
    """Who is protected: one record (`groups=None`), or all records with the same label.

    Args:
        name: the name of a unit in the statement, e.g. "patient".
        groups: one label a record. They are private: only the curator reads them, and nothing shows
            them.
    """

    _remedy: ClassVar[str] = _EXAMPLE
    name: Annotated[str, _UNIT]
    groups: Any = field(default=None, repr=False, compare=False, kw_only=True)

    @classmethod
    def of(cls, value: PrivacyUnit | str) -> PrivacyUnit:
        """The unit itself, or one record a unit, called by this name."""
        if isinstance(value, PrivacyUnit):
            return value
        return cls(value)


@checked
@dataclass(frozen=True)
class Budget:
    """What may be spent at most: (epsilon, delta), or mu of Gaussian differential privacy.

    >>> import dpbo
    >>> print(dpbo.Budget(epsilon=3.0, delta=1e-6), dpbo.Budget(mu=1.0))
    Budget(epsilon=3.0, delta=1e-06, mu=None) Budget(epsilon=None, delta=None, mu=1.0)

    Args:
        epsilon: positive and finite; left out with mu.
        delta: in [0, 1). Gaussian noise needs delta > 0. With mu, in (0, 1), it only chooses where
            the statement prints epsilon.
        mu: positive and finite, in place of epsilon.

    Raises:
        InputError: a number outside its range, or both epsilon and mu.
        UsageError: neither epsilon with delta nor mu.
    """

    _remedy: ClassVar[str] = "For example Budget(epsilon=3.0, delta=1e-6), or Budget(mu=1.0)."
    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.mu is None:
            if self.epsilon is None or self.delta is None:
                raise UsageError(f"a budget needs epsilon and delta, or mu. {self._remedy}")
            require("epsilon", self.epsilon, Positive)
            require("delta", self.delta, _BudgetDelta)
            return
        if self.epsilon is not None:
            raise InputError("mu", self.mu, "left out where epsilon is given")
        require("mu", self.mu, Positive)
        require("delta", self.delta, Probability | None)

    @classmethod
    def gdp(cls, mu: Positive, *, delta: Probability | None = None) -> Budget:
        """`Budget(mu=mu, delta=delta)`."""
        return cls(mu=mu, delta=delta)

    def to_json(self) -> dict[str, float | None]:
        """The numbers that define this budget; JSON keeps floats exactly."""
        return {"epsilon": self.epsilon, "delta": self.delta, "mu": self.mu}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Budget:
        """The budget that `to_json` wrote. Raises InputError on other fields."""
        if set(body) != {"epsilon", "delta", "mu"}:
            raise InputError(
                "body",
                type(body).__name__,
                "a mapping of epsilon, delta and mu",
                "Give what Budget.to_json() wrote.",
            )
        return cls(**body)


BudgetOrShare = Budget | float | Fraction


def describe_budget(budget: BudgetOrShare) -> str:
    """A budget as the ledger keeps it: 1, 1.0 and Fraction(1) are one share."""
    return str(budget if isinstance(budget, Budget) else exact_share(budget))


def exact_share(share: float | Fraction, name: str = "budget") -> Fraction:
    """A share as the decimal the user wrote (0.9 is 9/10, not the float next to it), in (0, 1]."""
    if (
        not isinstance(share, (int, float, Fraction))
        or isinstance(share, bool)
        or not 0 < share <= 1
    ):
        raise InputError(name, share, "in (0, 1]")
    return Fraction(str(share))


class DeltaWarning(UserWarning):
    """The delta of a budget is larger than one over the public number of units."""


def warn_of_delta(budget: Budget, units: int | None, unit: str = "unit") -> None:
    """Warns of a delta above 1/units, where the number of units is public; None stands for a
    private number, of which nothing is said.
    """
    if units and budget.epsilon is not None and budget.delta and budget.delta > 1 / units:
        text = (
            f"delta={budget.delta:g} is above 1/{units}, one over the number of units: (epsilon,"
            f" delta) alone would allow publishing all records of one {unit}. Choose a delta well"
            f" below it, such as {min(1e-6, 0.1 / units):.0e}."
        )
        warn(text, DeltaWarning)


@checked
@dataclass(frozen=True)
class Sensitivity:
    """How far a released vector can move between neighbours, in the l1, l2 and l-infinity norms of
    its own units.

    The bounds hold for `vector / scale`: coordinate j is measured in multiples of `scale[j]`, at
    most 1; scale (1.0,) serves all coordinates. With `block` the vector is a table: neighbours
    differ in one block of this many successive coordinates, the bounds hold for that block, and
    `scale` has one entry for each coordinate of a block.
    """

    l1: float
    l2: float
    linf: float
    scale: tuple[float, ...] = (1.0,)
    block: int | None = None

    @classmethod
    def of_l2(cls, l2: float, scale: tuple[float, ...], block: int | None = None) -> Sensitivity:
        """The bounds that follow from one in l2: linf is at most l2, and l1 of k coordinates at
        most sqrt(k) l2.
        """
        return cls(l2 * math.sqrt(len(scale)) * ROUND_UP, l2, l2, scale, block)

    @classmethod
    def of_linf(cls, linf: float, coordinates: int) -> Sensitivity:
        """The bounds where each of so many coordinates may move by `linf`, all at once."""
        return cls(
            linf * coordinates, linf * math.sqrt(coordinates) * ROUND_UP, linf, (1.0,) * coordinates
        )
