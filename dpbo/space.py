"""A search space, specified as for RandomizedSearchCV, as the unit cube over which BoTorch
optimises.

    space = Space(
        C=scipy.stats.loguniform(1e-2, 1e3),
        depth=scipy.stats.randint(2, 10),
        kernel=["rbf", "poly"],
    )

Every parameter is one coordinate. The coordinate of a continuous distribution is its cdf, so a
log-uniform one is linear in the logarithm; whole-number distributions and lists or arrays of
numbers are evenly spaced steps in [0, 1], but the cdf where a distribution has more than 1000 of
them; other lists are categories 0, 1, ... Every decoded value can be encoded again. A value outside
the space is refused, not moved into it. Whole numbers on a logarithmic scale are a list:
`numpy.unique(numpy.geomspace(5, 5000, 40).astype(int))`.
"""

import json
import math
import numbers
import reprlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import scipy
import torch
from torch import Tensor

from dpbo.errors import InputError
from dpbo.fingerprint import fingerprint
from dpbo.validation import FINITE, POINTS, Dtype, Seed, at_least, checked, warn

# of a discrete distribution, of which each is a step
_MOST_STEPS = 1000
# beyond it, a cdf's floats do not tell neighbours apart
_MOST_WHOLE = 2**52
# an unbounded distribution is searched between these quantiles
_TAIL = 1e-3
# by which a coordinate may miss its range, as an optimizer's does in float32
_ROUNDING = 1e-6


class _Continuous:
    """A parameter whose coordinate is the distribution's cdf."""

    def __init__(self, distribution: Any) -> None:
        low, high = distribution.support()
        self.distribution = distribution
        self.lower = 0.0 if math.isfinite(low) else _TAIL
        self.upper = 1.0 if math.isfinite(high) else 1.0 - _TAIL
        # the values at lower and upper
        self.ends = float(distribution.ppf(self.lower)), float(distribution.ppf(self.upper))
        self.allowed = f"a number from {self.ends[0]:g} to {self.ends[1]:g}"

    def decode(self, u: float) -> float:
        value = float(self.distribution.ppf(min(max(u, self.lower), self.upper)))
        # ppf rounds, beyond an end too
        return min(max(value, self.ends[0]), self.ends[1])

    def nearest(self, u: float) -> float:
        """The coordinate of the value that u decodes to: of continuous ones u itself."""
        return u

    def encode(self, value: Any) -> float:
        u = float(self.distribution.cdf(clamp_rounding(value, *self.ends)))
        return min(max(u, self.lower), self.upper)


class _Whole(_Continuous):
    """Whole numbers, too many to be steps: a number's coordinate is the middle of its part of the
    cdf.
    """

    def __init__(self, distribution: Any) -> None:
        super().__init__(distribution)
        low, high = distribution.support()
        # an end at which the probability is rounded to 0 counts as infinitely far
        if math.isfinite(low) and not distribution.pmf(low) > 0:
            self.lower = _TAIL
        if math.isfinite(high) and not distribution.pmf(high) > 0:
            self.upper = 1.0 - _TAIL
        below, above = map(float, distribution.ppf([self.lower, self.upper]))
        # the quantile of 0 lies below the support
        self.ends = max(below, low), min(above, high)
        self.allowed = f"a whole number from {self.ends[0]:g} to {self.ends[1]:g}"

    def decode(self, u: float) -> int:
        return int(super().decode(u))

    def nearest(self, u: float) -> float:
        return self.encode(self.decode(u))

    def encode(self, value: Any) -> float:
        number = clamp_rounding(value, *self.ends)
        if number != value or number != round(number) or not self.distribution.pmf(number) > 0:
            raise ValueError("none of them")
        below, up_to = self.distribution.cdf([number - 1.0, number])
        return min(max(float(below + up_to) / 2.0, self.lower), self.upper)


class _Listed:
    """A parameter that is one of a list of values: even steps in [0, 1], or categories 0, 1, ..."""

    def __init__(self, values: tuple[Any, ...], *, categories: bool) -> None:
        self.values = values
        self.categories = categories
        self._spacing = 1 if categories else max(len(values) - 1, 1)
        # the values' coordinates
        self.grid = [i / self._spacing for i in range(len(values))]
        self.lower = 0.0
        self.upper = self.grid[-1]

    @property
    def allowed(self) -> str:
        return f"one of {reprlib.repr(list(self.values))}"

    def nearest(self, u: float) -> float:
        place = round(u * self._spacing)
        return self.grid[min(max(place, 0), len(self.values) - 1)]

    def decode(self, u: float) -> Any:
        return self.values[self.grid.index(self.nearest(u))]

    def encode(self, value: Any) -> float:
        return self.grid[self.values.index(value)]


@checked
class Space:
    """Named parameters, each a frozen scipy.stats distribution, a list or a 1-d array, as
    RandomizedSearchCV takes them.

    `Space({"svc__C": [1, 10]})` takes a dict of them as well.

    A tuple is refused: elsewhere `(1e-4, 1e-1)` is a range, and in scikit-learn two values.

    Attributes:
        names: parameter of each coordinate.
        parameters: the parameters that a configuration may set.
        specs: each parameter as it was given.
        bounds: `2 x d` float64, for `optimize_acqf`: the ends of each coordinate, not of the
            parameter's values.
        discrete_dims, cat_dims: coordinate -> allowed values, for
            `optimize_acqf_mixed_alternating`; `list(cat_dims)` for `MixedSingleTaskGP`.

    Raises:
        InputError: no parameter, or one that is none of these, such as a distribution without its
            arguments, an empty list, or a discrete distribution of other than whole numbers, or of
            larger ones than 2^52.
    """

    def __init__(self, given: Any = None, /, **parameters: Any) -> None:
        if given is not None:
            if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
                allowed = "distributions or lists by their names"
                remedy = "For example Space(C=loguniform(1e-2, 1e3)), or a dict of them."
                raise InputError("parameters", given, allowed, remedy)
            parameters = {**given, **parameters}
        if not parameters:
            raise InputError("parameters", {}, "at least one named distribution or list")
        self._axes = {name: _axis(name, spec) for name, spec in parameters.items()}
        self.names = tuple(self._axes)
        self.parameters = self.names
        self.specs = dict(parameters)
        ends = [(axis.lower, axis.upper) for axis in self._axes.values()]
        self.bounds = torch.tensor(ends, dtype=torch.float64, device="cpu").T.contiguous()
        self.discrete_dims: dict[int, list[float]] = {}
        self.cat_dims: dict[int, list[float]] = {}
        for i, axis in enumerate(self._axes.values()):
            if isinstance(axis, _Listed):
                (self.cat_dims if axis.categories else self.discrete_dims)[i] = axis.grid

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}: {axis.allowed}' for name, axis in self._axes.items())})"

    def decode(self, x: Annotated[Tensor, FINITE]) -> dict[str, Any]:
        """The parameters, by name, at a point of shape `d`; a step is the nearest one.

        Raises:
            InputError: another shape, or a coordinate outside its range.
        """
        if x.shape != (len(self.names),):
            raise InputError(
                "x",
                tuple(x.shape),
                f"of shape ({len(self.names)},), one coordinate for each of {self.names}",
            )
        self.require_inside("x", x)
        decoded = {}
        for (name, axis), u in zip(self._axes.items(), x.tolist(), strict=True):
            decoded[name] = axis.decode(u)
            nearest = axis.nearest(u)
            if isinstance(axis, _Listed) and abs(nearest - u) > _ROUNDING:
                told = (
                    f"{name}: the coordinate {u:.4g} is between those of two values, and decoded as"
                    f" {decoded[name]!r}, at {nearest:.4g}. A model of the points should"
                    " learn that one: give PrivateObjective(space=...), or take"
                    " Space.rounded(X)."
                )
                warn(told, UserWarning)
        return decoded

    def rounded(self, X: Annotated[Tensor, POINTS]) -> Tensor:
        """The points (`q x d`) that these decode to: whole numbers and categories at their own
        coordinates, where an optimizer of continuous ones proposes values between them.

        Raises:
            InputError: another shape, or a coordinate outside its range.
        """
        if X.shape[1] != len(self.names):
            allowed = f"of shape q x {len(self.names)}, a column for each of {self.names}"
            raise InputError("X", tuple(X.shape), allowed)
        self.require_inside("X", X)
        rows = X.detach().tolist()
        nearest = [
            [axis.nearest(u) for axis, u in zip(self._axes.values(), row, strict=True)]
            for row in rows
        ]
        return X.new_tensor(nearest)

    def encode(self, parameters: dict[str, Any]) -> Tensor:
        """The point (`d`, float64) of these parameters, e.g. of a library's defaults.

        Raises:
            InputError: a parameter is missing or unknown, or a value is outside the space: no point
                decodes to it, up to rounding. An unbounded distribution ends at its quantiles of
                0.001 and 0.999.
        """
        if set(parameters) != set(self.names):
            missing = ", ".join(sorted(set(self.names) - set(parameters))) or "none"
            unknown = ", ".join(sorted(map(str, set(parameters) - set(self.names)))) or "none"
            remedy = f"Missing: {missing}. Unknown: {unknown}."
            raise InputError(
                "parameters", parameters, f"a dict with the keys {', '.join(self.names)}", remedy
            )
        point = []
        for name, axis in self._axes.items():
            try:
                point.append(axis.encode(parameters[name]))
            except (ValueError, TypeError, OverflowError):
                raise InputError(f"parameters[{name!r}]", parameters[name], axis.allowed) from None
        return torch.tensor(point, dtype=torch.float64, device="cpu")

    def to_json(self) -> str:
        """The parameters as JSON, from which `from_json` makes the space again: two spaces with the
        same text are the same space.

        JSON can only name some values, such as functions: the text then has their digest, and
        `from_json` refuses it.
        """
        return json.dumps(
            {name: _axis_to_json(self.specs[name], axis) for name, axis in self._axes.items()}
        )

    @classmethod
    def from_json(cls, text: str) -> "Space":
        """The space that `to_json` wrote.

        Raises:
            InputError: another text, or one with values that are only named.
        """
        try:
            return cls(**{name: _axis_from_json(held) for name, held in json.loads(text).items()})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InputError(
                "text", text, "written by Space.to_json, of values that JSON can hold"
            ) from None

    def sample(
        self,
        q: Annotated[int, at_least(1, 2**20)],
        *,
        seed: Seed,
        device: torch.device | str = "cpu",
        dtype: Dtype = torch.float64,
    ) -> Tensor:
        """`q x d` scrambled Sobol points on allowed values: a public initial design."""
        engine = torch.quasirandom.SobolEngine(len(self.names), scramble=True, seed=seed)
        return self.placed(engine.draw(q, dtype=dtype)).to(device)

    def require_inside(self, name: str, X: Tensor) -> None:
        """Raises InputError if a coordinate of points (`... x d`) is outside its range by more than
        rounding. At the nearest end it would have parameters that a model of X does not know of.
        """
        upper = self.bounds[1].clamp(min=1.0).to(X)
        outside = ((X < -_ROUNDING) | (X > upper + _ROUNDING)).nonzero()
        if len(outside):
            place = tuple(outside[0].tolist())
            remedy = (
                "Clamp an optimizer's points to the space's bounds; Space.encode makes a point of"
                " parameters' values."
            )
            raise InputError(
                f"{name}[{', '.join(map(str, place))}]",
                X[place].item(),
                f"from 0 to {upper[place[-1]].item():g}, as a coordinate of"
                f" {self.names[place[-1]]!r}",
                remedy,
            )

    def placed(self, unit: Annotated[Tensor, POINTS]) -> Tensor:
        """`q x d` points of the space from points of the unit cube, such that uniform ones are
        uniform on the space.
        """
        if unit.shape[1] != len(self.names):
            raise InputError(
                "unit",
                tuple(unit.shape),
                f"of shape q x {len(self.names)}, a column for each of {self.names}",
            )
        lower, upper = self.bounds.to(unit.device)
        X = lower + unit * (upper - lower)
        for i, grid in {**self.discrete_dims, **self.cat_dims}.items():
            place = (unit[:, i] * len(grid)).long().clamp(max=len(grid) - 1)
            X[:, i] = X.new_tensor(grid)[place]
        return X


def clamp_rounding(value: Any, low: float, high: float) -> float:
    """The number, or the end that it exceeds by rounding alone, as 0.7 + 0.1 does 0.8. ValueError
    farther out, TypeError for no number.
    """
    if not isinstance(value, numbers.Real):
        raise TypeError("no number")
    number = float(value)
    if not (low <= number <= high or math.isclose(number, low) or math.isclose(number, high)):
        raise ValueError("outside")
    return min(max(number, low), high)


def _axis(name: str, spec: Any) -> _Continuous | _Listed:
    if hasattr(spec, "ppf") and hasattr(spec, "support"):
        try:
            low, high = spec.support()
        except TypeError:
            # scipy's: the distribution's arguments are missing
            remedy = (
                "Give its arguments: scipy.stats.loguniform(1e-2, 1e3), for example, and not"
                " scipy.stats.loguniform."
            )
            raise InputError(name, spec, "a frozen distribution", remedy) from None
        if not low <= high:
            raise InputError(name, spec, "a distribution whose arguments scipy.stats allows")
        if not hasattr(spec, "pmf"):
            return _Continuous(spec)
        if high - low < _MOST_STEPS:
            steps = tuple(k for k in range(math.ceil(low), math.floor(high) + 1) if spec.pmf(k) > 0)
        else:
            try:
                steps = tuple(spec.ppf(np.linspace(_TAIL, 1.0 - _TAIL, _MOST_STEPS)))
            except RuntimeError:
                # scipy's, of some wide laws, such as zipf(1.5)
                steps = ()
            if steps and all(abs(step) < _MOST_WHOLE and step == round(step) for step in steps):
                return _Whole(spec)
            steps = ()
        if not steps:
            raise InputError(
                name,
                spec,
                "a discrete distribution of whole numbers below 2^52, with quantiles in scipy",
                "Give a list of the values instead.",
            )
        return _Listed(steps, categories=False)
    allowed = "a frozen scipy.stats distribution, or a list or 1-d array of one value or more"
    if isinstance(spec, tuple):
        remedy = (
            "A tuple may mean a range or its values. For the range use scipy.stats.uniform(low,"
            " high - low), scipy.stats.loguniform(low, high), or scipy.stats.randint(low, high + 1)"
            " for whole numbers; for the values use a list, [a, b]."
        )
        raise InputError(name, spec, allowed, remedy)
    listed = spec
    if hasattr(spec, "tolist") and getattr(spec, "ndim", 1) == 1:
        listed = spec.tolist()
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) == 0:
        raise InputError(name, spec, allowed, "For example scipy.stats.loguniform(1e-3, 1e3).")
    values = tuple(
        value.item() if isinstance(value, (np.number, np.bool_)) else value for value in listed
    )
    if all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in values):
        return _Listed(tuple(sorted(values)), categories=False)
    return _Listed(values, categories=True)


def _axis_to_json(spec: Any, axis: _Continuous | _Listed) -> dict[str, Any]:
    if hasattr(spec, "dist"):
        arguments = {"args": _to_json(list(spec.args)), "kwds": _to_json(spec.kwds)}
        return {"distribution": spec.dist.name, **arguments}
    if isinstance(axis, _Listed):
        return {"values": _to_json(list(axis.values))}
    return {
        "object": type(spec).__name__,
        "quantiles": [f"{spec.ppf(q):.6g}" for q in (0.1, 0.3, 0.5, 0.7, 0.9)],
    }


def _axis_from_json(held: dict[str, Any]) -> Any:
    if "values" in held:
        return _from_json(held["values"])
    distribution = getattr(scipy.stats, held["distribution"])
    if not isinstance(distribution, scipy.stats.rv_continuous | scipy.stats.rv_discrete):
        raise TypeError("not a distribution")
    return distribution(*_from_json(held["args"]), **_from_json(held["kwds"]))


def _to_json(value: Any) -> Any:
    """A value as JSON; a tuple or dict, or what JSON cannot hold, as a dict of one key that says
    what it is.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return list(map(_to_json, value))
    if type(value) is tuple:
        return {"tuple": _to_json(list(value))}
    if type(value) is dict:
        return {
            "dict": sorted(
                ([_to_json(key), _to_json(held)] for key, held in value.items()), key=str
            )
        }
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return {"object": f"{name} {fingerprint(value, detail='code', size=8).hex()}"}


def _from_json(held: Any) -> Any:
    if isinstance(held, list):
        return list(map(_from_json, held))
    if not isinstance(held, dict):
        return held
    if "tuple" in held:
        return tuple(_from_json(held["tuple"]))
    return dict(_from_json(held["dict"]))
