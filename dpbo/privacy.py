"""The values every guarantee is made of: who is protected, against which change, and up to which budget.

A guarantee without its unit and its adjacency means nothing, so neither has a default.
`PrivacyUnit("patient", groups=ids)` protects all rows of a patient together; `Budget(epsilon=3.0, delta=1e-6)` caps the loss.
"""

from __future__ import annotations

import enum
import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpbo.errors import InputError
from dpbo.validation import checked


class Adjacency(enum.Enum):
    """Which pairs of data sets must be indistinguishable.

    REPLACE_ONE: one unit's records are replaced by any others; the number of units is public.
    ADD_OR_REMOVE_ONE: one unit is added or removed; the number of units is private.
    BOUNDED_ROW_CHANGE: REPLACE_ONE only for rows within a bounded distance, protecting less than a row (PO-GP-UCB); see `RowChange`.
    """

    REPLACE_ONE = "replace-one"
    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    BOUNDED_ROW_CHANGE = "bounded-row-change"

    @classmethod
    def of(cls, value: Adjacency | str) -> Adjacency:
        """The relation itself, or the one of this name ("replace-one"). Raises InputError on any other text."""
        try:
            return cls(value)
        except ValueError:
            raise InputError("adjacency", value, f"one of {[one.value for one in cls]}") from None

    @property
    def replaces(self) -> bool:
        """Whether neighbours have the same number of units, which is then public: all that holds of REPLACE_ONE holds."""
        return self is not Adjacency.ADD_OR_REMOVE_ONE


@checked
@dataclass(frozen=True)
class RowChange:
    """How far a row may move under BOUNDED_ROW_CHANGE: whatever else of a record may change at will, its row moves by at most `norm`.

    Args:
        norm: in l2, in the units of the table that the curator holds.
        diameter: of the public set that rows lie in, in the same units; the statement says how small `norm` is beside it.
        table: key or position of that table among records that are a dict or a tuple; omitted, the records are the table.
    """

    norm: float
    diameter: float
    table: str | int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "diameter", require_positive("diameter", self.diameter, 1e-100, 1e100))
        object.__setattr__(self, "norm", require_positive("norm", self.norm, self.diameter * 2.0**-24, self.diameter))
        if not isinstance(self.table, (str, int, type(None))) or isinstance(self.table, bool):
            raise InputError("table", type(self.table).__name__, "a key, a position, or None")


@checked
@dataclass(frozen=True)
class PrivacyUnit:
    """Who is protected: one record (`groups=None`), or everything that carries one label.

    Args:
        name: what a unit is called in the statement, e.g. "patient".
        groups: one label a record. Private: never shown, handed to the curator at birth.
    """

    _remedy: ClassVar[str] = "For example PrivacyUnit('record')."
    name: str
    groups: Any = field(default=None, repr=False, compare=False, kw_only=True)

    @classmethod
    def of(cls, value: PrivacyUnit | str) -> PrivacyUnit:
        """The unit itself, or the unit of this name with one record each."""
        return value if isinstance(value, PrivacyUnit) else cls(value)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError("name", self.name, "a non-empty word for the protected unit", self._remedy)


@checked
@dataclass(frozen=True)
class Budget:
    """What may be spent at most: (epsilon, delta), or mu of Gaussian differential privacy by `Budget.gdp(mu)`.

    Args:
        epsilon: positive and finite.
        delta: in [0, 1). Gaussian noise needs delta > 0.
    """

    _remedy: ClassVar[str] = "For example Budget(epsilon=3.0, delta=1e-6)."
    epsilon: float | None
    delta: float | None
    mu: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", require_positive("epsilon", self.epsilon))
        if not _is_number(self.delta) or not 0.0 <= float(self.delta) < 1.0:  # type: ignore[arg-type]
            raise InputError("delta", self.delta, "in [0, 1)", "Choose it well below 1/units, for example 1e-6.")
        object.__setattr__(self, "delta", float(self.delta))  # type: ignore[arg-type]

    @classmethod
    def gdp(cls, mu: float, *, delta: float | None = None) -> Budget:
        """A budget stated as mu; `delta` in (0, 1) only chooses where the statement prints epsilon."""
        if delta is not None and not (_is_number(delta) and 0.0 < delta < 1.0):
            raise InputError("delta", delta, "in (0, 1)")
        budget = object.__new__(cls)
        for name, value in (("epsilon", None), ("delta", delta), ("mu", require_positive("mu", mu))):
            object.__setattr__(budget, name, value)
        return budget

    def to_json(self) -> dict[str, float | None]:
        """The numbers that define this budget; floats survive JSON exactly."""
        return {"epsilon": self.epsilon, "delta": self.delta, "mu": self.mu}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Budget:
        """The budget that `to_json` wrote. Raises InputError on other fields."""
        if set(body) != {"epsilon", "delta", "mu"}:
            raise InputError("body", type(body).__name__, "a mapping of epsilon, delta and mu", "Give what Budget.to_json() wrote.")
        if body["mu"] is not None:
            return cls.gdp(body["mu"], delta=body["delta"])
        return cls(body["epsilon"], body["delta"])


@checked
@dataclass(frozen=True)
class Sensitivity:
    """How far a released vector can move between neighbours, in the l1, l2 and l-infinity norms of its own units.

    `scale` gives the coordinates' units: coordinate j of the vector is measured in multiples of `scale[j]`, at most 1, so that
    the bounds hold for `vector / scale`. A query with one unit for everything has scale 1.
    With `block`, the vector is a table: neighbours differ in one block of so many successive coordinates, for which the bounds hold, and
    `scale` has one entry a coordinate of a block.
    """

    l1: float
    l2: float
    linf: float
    scale: tuple[float, ...] = (1.0,)
    block: int | None = None


def require_positive(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """`value` as a float if it is finite, positive and between the two ends, else InputError."""
    if not _is_number(value) or not 0.0 < float(value) < math.inf or not least <= float(value) <= most:
        span = f" from {least:g} to {most:g}" if math.isfinite(most) else ""
        raise InputError(name, value, f"a finite number above 0{span}")
    return float(value)


def require_count(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int if it is a whole number of at least `least`, else InputError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(name, value, f"a whole number of at least {least}")
    return int(value)


def require_probability(name: str, value: Any) -> float:
    """`value` as a float if it is strictly between 0 and 1, else InputError."""
    if not _is_number(value) or not 0.0 < float(value) < 1.0:
        raise InputError(name, value, "in (0, 1)")
    return float(value)


def require_range(name: str, value: Any) -> tuple[float, float]:
    """`value` as (lower, upper), at most 1e100 from zero and at least 1e-100 apart, else InputError."""
    allowed = "a pair (lower, upper) of numbers with lower < upper, within 1e100 of zero and at least 1e-100 apart"
    if not isinstance(value, Sequence) or len(value) != 2 or not all(_is_number(end) for end in value):
        raise InputError(name, value, allowed)
    lower, upper = float(value[0]), float(value[1])
    if not (max(abs(lower), abs(upper)) <= 1e100 and upper - lower >= 1e-100):
        raise InputError(name, value, allowed, "Swap the ends if reversed; rescale the score if it is out of reach.")
    return lower, upper


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return value == value and (isinstance(value, float) or abs(value) <= sys.float_info.max)
