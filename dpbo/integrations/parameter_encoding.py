"""A `Space` in another program's words: what that program's studies, plots and storage show of each parameter, and the way back.

C = loguniform(1e-2, 1e3)     is C, a real number between its ends, searched on a log scale
depth = randint(2, 10)        is depth, a whole number
kernel = ["rbf", "poly"]      is kernel, one of these
lag = norm(3, 1)              is "lag (quantile)", a number in (0, 1): other programs know no such law, and even steps in it follow the law
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.space import Space, inside

Expressible = Callable[[Any, Sequence[Any]], bool]
"""Whether the other program takes a value as it is, beside the parameter's other ones."""


class Kind(enum.Enum):
    """What a parameter is in the other program."""

    REAL = "a real number"
    LOG = "a positive real number, on a log scale"
    WHOLE = "a whole number"
    ORDERED = "one of some numbers"
    CATEGORY = "one of some values without order"


@dataclass(frozen=True, eq=False)
class Parameter:
    """One coordinate of the space under the name, and in the values, that the other program shows.

    Attributes:
        name: as shown.
        low, high, step: of REAL, LOG and WHOLE ones.
        labels: of ORDERED and CATEGORY ones: the values as shown.
    """

    name: str
    kind: Kind
    low: float = math.nan
    high: float = math.nan
    step: int = 1
    labels: tuple[Any, ...] = ()
    _axis: Space | None = None  # of this parameter alone; None where labels or the coordinate itself are shown

    def shown(self, u: float) -> Any:
        """What the program shows for coordinate u."""
        if self.labels:
            return self.labels[min(max(round(u * self._ends), 0), len(self.labels) - 1)]
        value = u if self._axis is None else next(iter(self._axis.decode(torch.tensor([u], dtype=torch.float64)).values()))
        return int(value) if self.kind is Kind.WHOLE else min(max(float(value), self.low), self.high)

    def coordinate(self, shown: Any) -> float:
        """The coordinate of what the program shows."""
        if self.labels:
            if shown not in self.labels:
                raise InputError(self.name, shown, "one of the values of this space")
            return self.labels.index(shown) / self._ends
        if self._axis is not None:
            return float(self._axis.encode({self._axis.names[0]: shown})[0])
        try:
            return inside(shown, self.low, self.high)
        except (ValueError, TypeError, OverflowError):
            raise InputError(self.name, shown, f"a number from {self.low:g} to {self.high:g}") from None

    @property
    def _ends(self) -> int:
        """Labels a unit of the coordinate: categories count 0, 1, ..., ordered values lie evenly in [0, 1]."""
        return 1 if self.kind is Kind.CATEGORY else max(len(self.labels) - 1, 1)


class Wording:
    """All parameters of a space, and points to and fro.

    Args:
        space: where is searched.
        expressible: what the other program takes as it is; anything else is shown by its `repr`.

    Raises:
        InputError: a value that only an address in memory tells from others.
    """

    def __init__(self, space: Space, expressible: Expressible) -> None:
        self.space = space
        self.parameters = tuple(_parameter(name, spec, space, expressible) for name, spec in space.specs.items())

    def point(self, shown: Mapping[str, Any]) -> torch.Tensor:
        """The point, `d`, of parameters as shown. Raises InputError where one is missing or not of this space."""
        missing = [parameter.name for parameter in self.parameters if parameter.name not in shown]
        if missing:
            raise InputError("parameters", ", ".join(missing), "all there", "The study or experiment must be one over this Space.")
        return torch.tensor([p.coordinate(shown[p.name]) for p in self.parameters], dtype=torch.float64)

    def holds(self, shown: Mapping[str, Any]) -> bool:
        """Whether parameters as shown are there and of this space."""
        try:
            self.point(shown)
        except InputError:
            return False
        return True

    def shown(self, x: torch.Tensor) -> dict[str, Any]:
        """The parameters at a point, `d`, as shown."""
        return {p.name: p.shown(float(u)) for p, u in zip(self.parameters, x, strict=True)}


def _parameter(name: str, spec: Any, space: Space, expressible: Expressible) -> Parameter:
    axis, i = Space(**{name: spec}), space.names.index(name)
    lower, upper = space.bounds[:, i].tolist()
    if axis.cat_dims:
        choices = tuple(axis.decode(torch.tensor([u]))[name] for u in axis.cat_dims[0])
        return Parameter(name, Kind.CATEGORY, labels=_labels(name, choices, expressible))
    if axis.discrete_dims:
        numbers = tuple(axis.decode(torch.tensor([u], dtype=torch.float64))[name] for u in axis.discrete_dims[0])
        return _numbers(name, numbers, axis)
    scale = _scale(spec)
    if scale is None:
        return Parameter(f"{name} (quantile)", Kind.REAL, lower, upper)
    low, high = spec.support()
    return Parameter(name, scale, float(low), float(high), _axis=axis)


def _numbers(name: str, numbers: tuple[Any, ...], axis: Space) -> Parameter:
    """Whole numbers in even steps, else one of some numbers."""
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if all(isinstance(number, int) for number in numbers) and len(steps) == 1:
        return Parameter(name, Kind.WHOLE, numbers[0], numbers[-1], steps.pop(), _axis=axis)
    plain = int if all(isinstance(number, int) for number in numbers) else float  # of one type: programs cast the others to the first's
    return Parameter(name, Kind.ORDERED, labels=tuple(map(plain, numbers)))


def _scale(spec: Any) -> Kind | None:
    """REAL or LOG for the two laws that other programs know by name."""
    law = getattr(getattr(spec, "dist", None), "name", "")
    low, high = map(float, spec.support())
    if law == "uniform":
        return Kind.REAL
    unshifted = law in ("loguniform", "reciprocal") and low > 0 and math.isclose(spec.ppf(0.5), math.sqrt(low * high), rel_tol=1e-9)
    return Kind.LOG if unshifted else None


def _labels(name: str, choices: tuple[Any, ...], expressible: Expressible) -> tuple[Any, ...]:
    labels = tuple(value if expressible(value, choices) and not _mistaken(value, choices) else repr(value) for value in choices)
    if len(set(map(repr, labels))) < len(labels) or any(isinstance(label, str) and " at 0x" in label for label in labels):
        raise InputError(name, choices, "of values that have words of their own", "List names, and look the values up in `fit`.")
    return labels


def _mistaken(value: Any, choices: tuple[Any, ...]) -> bool:
    """Whether other programs, which look values up by equality, would take a number for another one: 1, 1.0 and True are one to them."""
    return isinstance(value, (bool, int, float)) and sum(isinstance(o, (bool, int, float)) and o == value for o in choices) > 1
