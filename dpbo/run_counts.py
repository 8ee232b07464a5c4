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
    binomial            C(n, k) c^k (1-c)^(n-k)                         n c (1 - c u)^(n-1)
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
from dpbo.validation import Probability, Within, at_least, between, checked, checked_constructor

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
class StoppingRule(abc.ABC):
    """A public rule, independent of the records, that decides when the runs end.

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
    def most(self) -> float:
        """The slope at u = 0, which is the expected number of runs."""

    def to_json(self) -> dict[str, Any]:
        """Readable by `run_count_from_json` and by people."""
        return {"distribution": self.name, **dataclasses.asdict(self)}


@checked_constructor
@dataclass(frozen=True)
class RunCountDistribution(StoppingRule):
    """A distribution of K, which is drawn before any run."""

    @property
    def mean(self) -> float:
        """Expected number of runs."""
        return self.most

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
        count = 2 * math.ceil(self.most) + 16
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
        if self.most > _MOST:
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
    def most(self) -> float:
        return _tnb_mean(self.shape, self.gamma)

    def slope(self, u: Array) -> Array:
        return self.most * (self.gamma / (self.gamma + (1 - self.gamma) * u)) ** (1 + self.shape)

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
    def most(self) -> float:
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
class BinomialRuns(RunCountDistribution):
    """Binomial: at most `trials` runs, each made with probability `chance`. FixedRuns is the case
    of chance 1.
    """

    trials: Runs
    chance: Probability
    name: ClassVar[str] = "binomial"

    @property
    def most(self) -> float:
        return self.trials * self.chance

    @property
    def none(self) -> float:  # type: ignore[override]
        return float((1 - self.chance) ** self.trials)

    def slope(self, u: Array) -> Array:
        return self.most * (1 - self.chance * u) ** (self.trials - 1)

    def generating(self, x: Array) -> Array:
        return (1 - self.chance * (1 - x)) ** self.trials

    def first(self) -> tuple[int, Any]:
        return 0, (1 - mpmath.mpf(self.chance)) ** self.trials

    def ratio(self, k: Any) -> Any:
        chance = _beside(k, self.chance)
        return chance / (1 - chance) * (self.trials - k) / (k + 1)


@checked_constructor
@dataclass(frozen=True)
class FixedRuns(RunCountDistribution):
    """Always the same number of runs: far more privacy than a random one of this mean costs."""

    runs: Runs
    name: ClassVar[str] = "fixed"

    @property
    def most(self) -> float:
        return float(self.runs)

    def slope(self, u: Array) -> Array:
        return self.runs * (1.0 - u) ** (self.runs - 1)

    def generating(self, x: Array) -> Array:
        return x**self.runs

    def first(self) -> tuple[int, Any]:
        return self.runs, mpmath.mpf(1)

    def ratio(self, k: Any) -> Any:
        return 0 * k


@checked_constructor
@dataclass(frozen=True)
class ThresholdStop(StoppingRule):
    """Releases the first run whose score reaches a public threshold; after each other run it stops
    with probability `gamma`.

    Nothing is released where it stops. With s the probability that a run reaches the threshold, the
    winner's density is that of one run over gamma + (1 - gamma) s. Source: Liu & Talwar 2019,
    Theorem 3.1.

    Args:
        gamma: from 1e-6 to 1.
    """

    gamma: Annotated[float, between(1 / _MOST, 1.0)]
    name: ClassVar[str] = "threshold-stop"
    # Its winner is bounded as that of a negative binomial of this shape.
    shape: ClassVar[float] = 0.0

    @property
    def most(self) -> float:
        return 1.0 / self.gamma

    def slope(self, u: Array) -> Array:
        return 1.0 / (self.gamma + (1 - self.gamma) * u)


def _beside(k: Any, number: float) -> Any:
    """The number as one of mpmath's for an int, as a float for an array."""
    return mpmath.mpf(number) if isinstance(k, int) else number


def _tnb_mean(shape: float, gamma: float) -> float:
    """s (1-g) / (g (1 - g^s)), the mean of a truncated negative binomial; at shape 0 its limit."""
    log = math.log(gamma)
    if shape == 0.0:
        return (1 - gamma) / gamma / -log
    return shape * (1 - gamma) / gamma / -math.expm1(shape * log)


_KINDS: dict[str, type[StoppingRule]] = {
    kind.name: kind
    for kind in (TruncatedNegativeBinomial, PoissonRuns, BinomialRuns, FixedRuns, ThresholdStop)
}


@checked
def run_count_from_json(body: Any) -> StoppingRule:
    """The rule that `to_json` wrote. Raises InputError, a ValueError, on other content."""
    remedy = "Was it written by a newer dpbo?"
    fields = dict(body) if isinstance(body, dict) else {}
    name = fields.pop("distribution", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or {field.name for field in dataclasses.fields(kind)} != fields.keys():
        raise InputError("body", body, "what to_json wrote", remedy)
    return kind(**fields)
