"""Distributions of the number K of runs that a private selection makes, with what the accounting
and the draw need of each.

    # geometric; shape 0 is logarithmic, larger shapes are more concentrated
    TruncatedNegativeBinomial.of_mean(30.0, shape=1.0)
    # there may be no run
    PoissonRuns(10.0)

With f(x) = E x^K, the best of K runs has, at a score level whose lower set has mass a, density
f'(a) times that of one run. So privacy depends only on `slope`, f' at 1 - u, written in the
complement u because the tail of good scores is where digits matter.

    distribution        P(K = k)                                        f'(1 - u)
    negative binomial   (1-g)^k / (g^-s - 1) prod_{l<k} (l+s)/(l+1)     m (g / (g + (1-g) u))^(1+s)
    Poisson             e^-m m^k / k!                                   m e^(-m u)
    fixed               1 at n                                          n (1 - u)^(n-1)

The first has k >= 1. Parameters are taken exactly as floats. Sources: Liu & Talwar 2019; Papernot &
Steinke 2022.
"""

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import mpmath
import numpy as np
import scipy
from numpy.typing import NDArray

from dpbo._mpmath import precision
from dpbo.errors import InputError
from dpbo.validation import Probability, Within, at_least, checked, checked_constructor

Array = NDArray[np.float64]
# Expected runs.
_MOST = 1e6
# Below it, floats lose the digits of a shape or rate in differences.
_LEAST = 1e-100

Runs = Annotated[int, at_least(1, int(_MOST))]
Mean = Annotated[float, Within(f"above 1 and at most {_MOST:g}", lambda mean: 1.0 < mean <= _MOST)]
_HAS_DIGITS = Within(
    f"0 or at least {_LEAST:g} away from it",
    lambda shape: shape == 0.0 or abs(shape) >= _LEAST,
    "Floats this small lose their digits.",
)
Shape = Annotated[
    float, Within("above -1 and at most 10,000", lambda shape: -1.0 < shape <= 1e4), _HAS_DIGITS
]


@checked_constructor
@dataclass(frozen=True)
class RunCountDistribution(abc.ABC):
    """A public distribution of K, which is drawn before any run.

    Attributes:
        none: P(K = 0), the probability that nothing is released.
    """

    _remedy: ClassVar[str] = "For example PoissonRuns(10.0)."
    name: ClassVar[str]
    none: ClassVar[float] = 0.0

    @abc.abstractmethod
    def slope(self, u: Array) -> Array:
        """f'(1 - u) for u in [0, 1], the factor on the winner's density; it falls with u."""

    @property
    @abc.abstractmethod
    def mean(self) -> float:
        """Expected number of runs, which is the slope at u = 0."""

    def to_json(self) -> dict[str, Any]:
        """Readable by `run_count_from_json` and by people."""
        return {"distribution": self.name, **dataclasses.asdict(self)}

    @abc.abstractmethod
    def generating(self, x: Array) -> Array:
        """f(x) = E x^K for x in [0, 1]."""

    @abc.abstractmethod
    def first(self) -> tuple[int, Any]:
        """The least k and its probability, within a few units of mpmath's working precision."""

    @abc.abstractmethod
    def ratio(self, k: Any) -> Any:
        """P(K = k + 1) / P(K = k), for an int (in mpmath) or an array of floats."""

    @checked
    def probabilities(self, count: Annotated[int, at_least(1, 10**8)]) -> tuple[int, Array]:
        """The least k, and the probabilities of the `count` values from there on, in floats."""
        start, at_start = self.first()
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(self.ratio(start + np.arange(count - 1.0)), 0.0))
        return start, np.exp(float(mpmath.log(at_start)) + np.concatenate([[0.0], np.cumsum(logs)]))

    @checked
    def quantile(self, p: Probability) -> int:
        """Least k with P(K <= k) >= p, for p in (0, 1)."""
        count = 2 * math.ceil(self.mean) + 16
        while True:
            start, masses = self.probabilities(count)
            reached = np.flatnonzero(np.cumsum(masses) >= p)
            if len(reached):
                return start + int(reached[0])
            count *= 2


@checked_constructor
@dataclass(frozen=True)
class TruncatedNegativeBinomial(RunCountDistribution):
    """A negative binomial number of runs, at least one.

    Shape 1 is geometric, 0 logarithmic; larger shapes are more concentrated.

    Args:
        shape: above -1 and at most 10,000.
        gamma: in [1e-9, 1); smaller means more runs, of which at most 1e6 may be expected.
    """

    shape: Shape
    gamma: Annotated[float, Within("in [1e-9, 1)", lambda gamma: 1e-9 <= gamma < 1.0)]
    name: ClassVar[str] = "truncated-negative-binomial"

    def __post_init__(self) -> None:
        if self.mean > _MOST:
            raise InputError(
                "gamma", self.gamma, f"large enough for at most {_MOST:g} expected runs"
            )

    @classmethod
    @checked
    def of_mean(cls, mean: Mean, *, shape: Shape = 1.0) -> Self:
        """The distribution of this shape whose expected number of runs is `mean`, above 1 and at
        most 1e6, up to float rounding.
        """

        def excess(log_gamma: float) -> float:
            return _tnb_mean(shape, math.exp(log_gamma)) - mean

        # it falls with gamma; where no gamma gives the mean, the end is nearest
        low = math.log(1e-9)
        high = -1e-12
        if excess(low) <= 0.0:
            high = low
        elif excess(high) < 0.0:
            high = float(scipy.optimize.brentq(excess, low, high, xtol=1e-15))
        found = cls(shape, math.exp(high))
        if abs(found.mean - mean) > 1e-6 * mean:
            raise InputError(
                "mean",
                mean,
                f"at most {found.mean:g} for shape {shape:g}",
                "Choose a larger shape.",
            )
        return found

    @property
    def mean(self) -> float:
        return _tnb_mean(self.shape, self.gamma)

    def slope(self, u: Array) -> Array:
        return self.mean * (self.gamma / (self.gamma + (1 - self.gamma) * u)) ** (1 + self.shape)

    def generating(self, x: Array) -> Array:
        logs = np.log1p(-(1 - self.gamma) * x)
        if self.shape == 0.0:
            return logs / math.log(self.gamma)
        return np.expm1(-self.shape * logs) / math.expm1(-self.shape * math.log(self.gamma))

    def first(self) -> tuple[int, Any]:
        # `expm1` changes the precision.
        with precision(mpmath.mp.prec):
            g = mpmath.mpf(self.gamma)
            s = mpmath.mpf(self.shape)
            if s == 0:
                return 1, (1 - g) / -mpmath.log(g)
            return 1, s * (1 - g) / mpmath.expm1(-s * mpmath.log(g))

    def ratio(self, k: Any) -> Any:
        return (1 - _beside(k, self.gamma)) * (k + _beside(k, self.shape)) / (k + 1)


@checked_constructor
@dataclass(frozen=True)
class PoissonRuns(RunCountDistribution):
    """Poisson; with probability e^-rate there is no run, and "nothing" is released."""

    rate: Annotated[
        float, Within(f"above 0 and at most {_MOST:g}", lambda rate: 0.0 < rate <= _MOST)
    ]
    name: ClassVar[str] = "poisson"

    @property
    def mean(self) -> float:
        return self.rate

    @property
    def none(self) -> float:  # type: ignore[override]
        return math.exp(-self.rate)

    def slope(self, u: Array) -> Array:
        return self.rate * np.exp(-self.rate * u)

    def generating(self, x: Array) -> Array:
        return np.exp(-self.rate * (1 - x))

    def first(self) -> tuple[int, Any]:
        return 0, mpmath.exp(-mpmath.mpf(self.rate))

    def ratio(self, k: Any) -> Any:
        return _beside(k, self.rate) / (k + 1)


@checked_constructor
@dataclass(frozen=True)
class FixedRuns(RunCountDistribution):
    """Always the same number of runs: far more privacy than a random one of this mean costs."""

    runs: Runs
    name: ClassVar[str] = "fixed"

    @property
    def mean(self) -> float:
        return float(self.runs)

    def slope(self, u: Array) -> Array:
        return self.runs * (1.0 - u) ** (self.runs - 1)

    def generating(self, x: Array) -> Array:
        return x**self.runs

    def first(self) -> tuple[int, Any]:
        return self.runs, mpmath.mpf(1)

    def ratio(self, k: Any) -> Any:
        return 0 * k


def _beside(k: Any, number: float) -> Any:
    """The number as one of mpmath's for an int, as a float for an array."""
    return mpmath.mpf(number) if isinstance(k, int) else number


def _tnb_mean(shape: float, gamma: float) -> float:
    """s (1-g) / (g (1 - g^s)), the mean of a truncated negative binomial; at shape 0 its limit."""
    log = math.log(gamma)
    if shape == 0.0:
        return (1 - gamma) / gamma / -log
    return shape * (1 - gamma) / gamma / -math.expm1(shape * log)


_KINDS: dict[str, type[RunCountDistribution]] = {
    kind.name: kind for kind in (TruncatedNegativeBinomial, PoissonRuns, FixedRuns)
}


@checked
def run_count_from_json(body: Any) -> RunCountDistribution:
    """The distribution that `to_json` wrote. Raises InputError, a ValueError, on other content."""
    remedy = "Was it written by a newer dpbo?"
    fields = dict(body) if isinstance(body, dict) else {}
    name = fields.pop("distribution", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or {field.name for field in dataclasses.fields(kind)} != fields.keys():
        raise InputError("body", body, "what to_json wrote", remedy)
    return kind(**fields)
