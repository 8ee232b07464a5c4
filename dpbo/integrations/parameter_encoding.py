"""Parameters of a `Space` in another program's terms: what its studies, plots and storage show of
each parameter, and the way back.

    parameter                    is shown as
    C = loguniform(1e-2, 1e3)    C, a real number in its range, searched on a log scale
    depth = randint(2, 10)       depth, a whole number
    kernel = ["rbf", "poly"]     kernel, one of these
    lag = norm(3, 1)             "lag (quantile)", a number in (0, 1): other programs do not know
                                 the normal distribution, and even steps in the quantile follow it
"""

import enum
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.space import Space, clamp_rounding

Expressible = Callable[[Any, Sequence[Any]], bool]
"""Whether the other program can take a value as it is, given all values of the parameter."""


class Kind(enum.Enum):
    """The kind of parameter in the other program."""

    REAL = "a real number"
    LOG = "a positive real number, on a log scale"
    WHOLE = "a whole number"
    ORDERED = "one of some numbers"
    CATEGORY = "one of some values without order"


@dataclass(frozen=True, eq=False)
class Parameter:
    """One coordinate of the space, with the name and the values that the other program shows.

    Attributes:
        name: the name shown.
        low, high, step: range of a REAL, LOG or WHOLE parameter.
        labels: values shown of an ORDERED or CATEGORY parameter.
    """

    name: str
    kind: Kind
    low: float = math.nan
    high: float = math.nan
    step: int = 1
    labels: tuple[Any, ...] = ()
    # this parameter alone; None if labels or the coordinate itself are shown
    _axis: Space | None = None

    def shown(self, u: float) -> Any:
        """The value shown for coordinate u."""
        if self.labels:
            return self.labels[min(max(round(u * self._ends), 0), len(self.labels) - 1)]
        value = u if self._axis is None else _decoded(self._axis, u)
        if self.kind is Kind.WHOLE:
            return int(value)
        return min(max(float(value), self.low), self.high)

    def coordinate(self, shown: Any) -> float:
        """The coordinate of a value shown."""
        if self.labels:
            if shown not in self.labels:
                raise InputError(self.name, shown, "one of the values of this space")
            return self.labels.index(shown) / self._ends
        if self._axis is not None:
            return float(self._axis.encode({self._axis.names[0]: shown})[0])
        try:
            return clamp_rounding(shown, self.low, self.high)
        except (ValueError, TypeError, OverflowError):
            raise InputError(
                self.name, shown, f"a number from {self.low:g} to {self.high:g}"
            ) from None

    @property
    def _ends(self) -> int:
        """Largest coordinate in steps of one label: categories have coordinates 0, 1, ...; ordered
        values lie evenly in [0, 1].
        """
        if self.kind is Kind.CATEGORY:
            return 1
        return max(len(self.labels) - 1, 1)


class ParameterEncoding:
    """All parameters of a space in another program's terms.

    Args:
        space: the search space.
        expressible: whether the other program can take a value as it is; other values are shown by
            their `repr`.

    Raises:
        InputError: values whose `repr` does not tell them apart.
    """

    def __init__(self, space: Space, expressible: Expressible) -> None:
        self.space = space
        self.parameters = tuple(
            _parameter(name, spec, space, expressible) for name, spec in space.specs.items()
        )

    def point(self, shown: Mapping[str, Any]) -> torch.Tensor:
        """The point, `d`, of the parameters shown. Raises InputError if one is missing or outside
        the space.
        """
        missing = [parameter.name for parameter in self.parameters if parameter.name not in shown]
        if missing:
            raise InputError(
                "parameters",
                ", ".join(missing),
                "all given",
                "The study or experiment must be over this Space.",
            )
        return self.space.bounds.new_tensor([p.coordinate(shown[p.name]) for p in self.parameters])

    def holds(self, shown: Mapping[str, Any]) -> bool:
        """Whether the parameters shown are complete and inside the space."""
        try:
            self.point(shown)
        except InputError:
            return False
        return True

    def holds_point(self, x: torch.Tensor) -> bool:
        """Whether a released point, `d`, lies in the space, but for rounding: shown as a trial,
        another one would be a different point.
        """
        if x.shape != self.space.bounds[0].shape or not bool(x.isfinite().all()):
            return False
        try:
            self.space.require_inside("x", x)
        except InputError:
            return False
        return True

    def shown(self, x: torch.Tensor) -> dict[str, Any]:
        """The parameters shown for a point, `d`."""
        return {p.name: p.shown(float(u)) for p, u in zip(self.parameters, x, strict=True)}


def _parameter(name: str, spec: Any, space: Space, expressible: Expressible) -> Parameter:
    axis = Space(**{name: spec})
    i = space.names.index(name)
    lower, upper = space.bounds[:, i].tolist()
    if axis.cat_dims:
        choices = tuple(_decoded(axis, u) for u in axis.cat_dims[0])
        return Parameter(name, Kind.CATEGORY, labels=_labels(name, choices, expressible))
    if axis.discrete_dims:
        numbers = tuple(_decoded(axis, u) for u in axis.discrete_dims[0])
        whole = all(isinstance(number, int) for number in numbers)
        steps = {b - a for a, b in itertools.pairwise(numbers)}
        if whole and len(steps) == 1:
            return Parameter(name, Kind.WHOLE, numbers[0], numbers[-1], steps.pop(), _axis=axis)
        # one for all: other programs cast them to the type of the first
        kind = int if whole else float
        return Parameter(name, Kind.ORDERED, labels=tuple(map(kind, numbers)))
    distribution = getattr(getattr(spec, "dist", None), "name", "")
    low, high = map(float, spec.support())
    if distribution == "uniform":
        return Parameter(name, Kind.REAL, low, high, _axis=axis)
    if distribution == "randint":
        # too many to be steps
        return Parameter(name, Kind.WHOLE, int(low), int(high), 1, _axis=axis)
    logarithmic = distribution in ("loguniform", "reciprocal") and low > 0
    # not shifted
    if logarithmic and math.isclose(spec.ppf(0.5), math.sqrt(low * high), rel_tol=1e-9):
        return Parameter(name, Kind.LOG, low, high, _axis=axis)
    return Parameter(f"{name} (quantile)", Kind.REAL, lower, upper)


def _decoded(axis: Space, u: float) -> Any:
    """The value at a coordinate of a space of one parameter."""
    (value,) = axis.decode(axis.bounds.new_tensor([u])).values()
    return value


def _labels(name: str, choices: tuple[Any, ...], expressible: Expressible) -> tuple[Any, ...]:
    """What is shown of the choices. 1, 1.0 and True are one value to programs that look values up
    by equality.
    """
    numbers = [choice for choice in choices if isinstance(choice, (bool, int, float))]
    labels = list[Any]()
    for choice in choices:
        if expressible(choice, choices) and numbers.count(choice) < 2:
            labels.append(choice)
        else:
            labels.append(repr(choice))
    if len(set(map(repr, labels))) < len(labels) or any(
        isinstance(label, str) and " at 0x" in label for label in labels
    ):
        raise InputError(
            name,
            choices,
            "values with distinct `repr`s",
            "List names, and look the values up in `fit`.",
        )
    return tuple(labels)
