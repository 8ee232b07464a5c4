"""A search space in the words of RandomizedSearchCV, as the unit cube that BoTorch optimises over.

    space = Space(C=scipy.stats.loguniform(1e-2, 1e3), depth=scipy.stats.randint(2, 10), kernel=["rbf", "poly"])

Every parameter is one coordinate. Continuous distributions are measured by their own cdf, so a log-uniform one is linear in the
logarithm; whole-number distributions and lists or arrays of numbers are evenly spaced steps in [0, 1]; other lists are categories
0, 1, ... What decodes to a value encodes again, and a value outside the space has no point: nothing is moved into it silently.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch

from dpbo.errors import InputError
from dpbo.validation import FINITE, POINTS, Seed, at_least, checked

_MOST_STEPS = 1000
_TAIL = 1e-3  # an unbounded distribution is searched between these quantiles


class _Axis(abc.ABC):
    """One parameter as one coordinate."""

    lower, upper = 0.0, 1.0
    allowed = "one of the values of this space"

    @abc.abstractmethod
    def decode(self, u: float) -> Any:
        """The parameter's value at coordinate u."""

    @abc.abstractmethod
    def encode(self, value: Any) -> float:
        """The coordinate of a value. Raises ValueError, TypeError or OverflowError where it has none."""


@dataclass(frozen=True)
class _Continuous(_Axis):
    distribution: Any
    ends: tuple[float, float] = field(init=False)  # the values at lower and upper

    def __post_init__(self) -> None:
        low, high = self.distribution.support()
        object.__setattr__(self, "lower", 0.0 if math.isfinite(low) else _TAIL)
        object.__setattr__(self, "upper", 1.0 if math.isfinite(high) else 1.0 - _TAIL)
        object.__setattr__(self, "ends", (float(self.distribution.ppf(self.lower)), float(self.distribution.ppf(self.upper))))

    @property
    def allowed(self) -> str:  # type: ignore[override]  # mypy: a property for an attribute that nobody sets
        return f"a number from {self.ends[0]:g} to {self.ends[1]:g}"

    def decode(self, u: float) -> float:
        value = float(self.distribution.ppf(min(max(u, self.lower), self.upper)))
        return min(max(value, self.ends[0]), self.ends[1])  # ppf rounds, beyond an end too

    def encode(self, value: Any) -> float:
        return min(max(float(self.distribution.cdf(inside(value, *self.ends))), self.lower), self.upper)


@dataclass(frozen=True)
class _Steps(_Axis):
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", float(len(self.values) > 1))

    def decode(self, u: float) -> Any:
        return self.values[min(max(round(u * (len(self.values) - 1)), 0), len(self.values) - 1)]

    def encode(self, value: Any) -> float:
        return self.values.index(value) / max(len(self.values) - 1, 1)

    @property
    def grid(self) -> list[float]:
        return [i / max(len(self.values) - 1, 1) for i in range(len(self.values))]


@dataclass(frozen=True)
class _Categories(_Axis):
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", float(len(self.values) - 1))

    def decode(self, u: float) -> Any:
        return self.values[min(max(round(u), 0), len(self.values) - 1)]

    def encode(self, value: Any) -> float:
        return float(self.values.index(value))


@checked
class Space:
    """Named parameters, each a frozen scipy.stats distribution, a list or a 1-d array, as RandomizedSearchCV takes them.

    Attributes:
        names: parameter of each coordinate.
        specs: each parameter as it was given.
        bounds: `2 x d` float64, for `optimize_acqf`.
        discrete_dims, cat_dims: coordinate -> allowed values, for `optimize_acqf_mixed_alternating`; `list(cat_dims)` for
            `MixedSingleTaskGP`.

    Raises:
        InputError: a parameter that is neither, or without values.
    """

    def __init__(self, **parameters: Any) -> None:
        if not parameters:
            raise InputError("parameters", {}, "at least one named distribution or list")
        self._axes = {name: _axis(name, spec) for name, spec in parameters.items()}
        self.names, self.specs = tuple(self._axes), dict(parameters)
        axes = list(self._axes.values())
        self.bounds = torch.tensor([[a.lower for a in axes], [a.upper for a in axes]], dtype=torch.float64)
        self.discrete_dims = {i: axis.grid for i, axis in enumerate(axes) if isinstance(axis, _Steps)}
        self.cat_dims = {i: [float(k) for k in range(len(a.values))] for i, a in enumerate(axes) if isinstance(a, _Categories)}

    def decode(self, x: Annotated[torch.Tensor, FINITE]) -> dict[str, Any]:
        """Parameters at a point of shape `d`; coordinates between two steps go to the nearer one."""
        if x.shape != (len(self.names),):
            raise InputError("x", tuple(x.shape), f"of shape ({len(self.names)},), one coordinate for each of {self.names}")
        return {name: axis.decode(u) for (name, axis), u in zip(self._axes.items(), x.tolist(), strict=True)}

    def encode(self, parameters: dict[str, Any]) -> torch.Tensor:
        """The point (`d`, float64) of these parameters, e.g. of a library's defaults.

        Raises:
            InputError: other parameters than the space's, or a value outside it: one that no point decodes to, up to rounding. An
                unbounded distribution ends at its quantiles of 0.001 and 0.999.
        """
        if set(parameters) != set(self.names):
            raise InputError("parameters", sorted(parameters), f"exactly {self.names}")
        return torch.tensor([_encoded(name, axis, parameters[name]) for name, axis in self._axes.items()], dtype=torch.float64)

    def sample(self, q: Annotated[int, at_least(1, 2**20)], *, seed: Seed) -> torch.Tensor:
        """`q x d` scrambled Sobol points, rounded to the nearest allowed value: a public initial design."""
        return self.placed(torch.quasirandom.SobolEngine(len(self.names), scramble=True, seed=seed).draw(q, dtype=torch.float64))

    def placed(self, unit: Annotated[torch.Tensor, POINTS]) -> torch.Tensor:
        """`q x d` points of the space from points of the unit cube, such that uniform ones are uniform on the space."""
        if unit.shape[1] != len(self.names):
            raise InputError("unit", tuple(unit.shape), f"of shape q x {len(self.names)}, a column for each of {self.names}")
        X = self.bounds[0] + unit * (self.bounds[1] - self.bounds[0])
        for i, grid in self.discrete_dims.items():
            X[:, i] = (unit[:, i] * len(grid)).floor().clamp(max=len(grid) - 1) / max(len(grid) - 1, 1)
        for i, categories in self.cat_dims.items():
            X[:, i] = (unit[:, i] * len(categories)).floor().clamp(max=len(categories) - 1)
        return X


def inside(value: Any, low: float, high: float) -> float:
    """The number, or the end that it passes by rounding alone, as 0.8 does 0.7 + 0.1. ValueError farther out, TypeError for no number."""
    if not isinstance(value, numbers.Real):
        raise TypeError("no number")
    number = float(value)
    if not (low <= number <= high or math.isclose(number, low) or math.isclose(number, high)):
        raise ValueError("outside")
    return min(max(number, low), high)


def _encoded(name: str, axis: _Axis, value: Any) -> float:
    try:
        return axis.encode(value)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"parameters[{name!r}]", value, axis.allowed) from None


def _axis(name: str, spec: Any) -> _Axis:
    if hasattr(spec, "ppf") and hasattr(spec, "support"):
        low, high = spec.support()
        if not low <= high:
            raise InputError(name, spec, "a distribution whose arguments scipy.stats allows")
        return _Steps(_support(name, spec)) if hasattr(spec, "pmf") else _Continuous(spec)
    listed = spec.tolist() if hasattr(spec, "tolist") and getattr(spec, "ndim", 1) == 1 else spec
    if isinstance(listed, Sequence) and not isinstance(listed, str) and len(listed) > 0:
        values = tuple(value.item() if isinstance(value, (np.number, np.bool_)) else value for value in listed)
        ordered = all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in values)
        return _Steps(tuple(sorted(values))) if ordered else _Categories(values)
    allowed = "a frozen scipy.stats distribution, or a list or 1-d array of one value or more"
    raise InputError(name, spec, allowed, "For example scipy.stats.loguniform(1e-3, 1e3).")


def _support(name: str, distribution: Any) -> tuple[int, ...]:
    low, high = distribution.support()
    if not (math.isfinite(low) and math.isfinite(high)) or high - low >= _MOST_STEPS:
        raise InputError(name, distribution, f"of at most {_MOST_STEPS} whole numbers", "Use a continuous distribution and round.")
    if not (steps := tuple(k for k in range(math.ceil(low), math.floor(high) + 1) if distribution.pmf(k) > 0)):
        raise InputError(name, distribution, "a distribution of whole numbers", "Give a list of the values instead.")
    return steps
