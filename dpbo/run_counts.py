"""How many runs a private selection makes: public laws of the random number K, with what the accounting and the draw need of each.

    TruncatedNegativeBinomial.of_mean(30.0, shape=1.0)      geometric; shape 0 is logarithmic, larger shapes are more concentrated
    PoissonRuns(10.0)                                       may be no run at all

With f(x) = E x^K, the best of K runs of law P has, at a score level whose lower set has mass a, density f'(a) times that of one run. So all
that privacy depends on is `slope`, f' at 1 - u, written in the complement u because the tail of good scores is where digits matter.

    law                  P(K = k)                                                       f'(1 - u)
    negative binomial    (1-g)^k / (g^-s - 1) prod_{l<k} (l+s)/(l+1),      k >= 1       m (g / (g + (1-g) u))^(1+s)
    Poisson              e^-m m^k / k!                                                  m e^(-m u)
    truncated Poisson    e^-r r^k / k! / (1 - e^-r),                       k >= 1       m e^(-r u)
    binomial             C(n, k) c^k (1-c)^(n-k)                                        n c (1 - c u)^(n-1)
    fixed                1 at n                                                         n (1 - u)^(n-1)

Parameters are floats taken exactly. Sources: Liu & Talwar 2019; Papernot & Steinke 2022.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import mpmath
import numpy as np
from numpy.typing import NDArray

from dpbo._mpmath import precision
from dpbo.errors import InputError
from dpbo.validation import at_least, checked

Array = NDArray[np.float64]
_MOST = 1e6  # expected runs
_LEAST = 1e-100  # of a shape or rate whose digits floats keep in differences


@checked
@dataclass(frozen=True)
class RunLaw(abc.ABC):
    """Something public that decides, apart from the records, when runs end; `slope` weighs the winner's density."""

    name: ClassVar[str]
    none: ClassVar[float] = 0.0
    _hooks: ClassVar[frozenset[str]] = frozenset({"generating", "ratio", "slope"})

    @abc.abstractmethod
    def slope(self, u: Array) -> Array:
        """f'(1 - u) for u in [0, 1]; it falls with u."""

    @property
    @abc.abstractmethod
    def most(self) -> float:
        """The slope at u = 0: expected runs."""

    def to_json(self) -> dict[str, Any]:
        """Readable by `law_from_json` and by people."""
        return {"law": self.name, **dataclasses.asdict(self)}


@checked
@dataclass(frozen=True)
class CountLaw(RunLaw):
    """A law of K, drawn before any run."""

    @property
    def mean(self) -> float:
        """Expected number of runs."""
        return self.most

    @abc.abstractmethod
    def generating(self, x: Array) -> Array:
        """f(x) = E x^K for x in [0, 1]."""

    @abc.abstractmethod
    def first(self) -> tuple[int, Any]:
        """The least k and its probability, at mpmath's working precision, within a few of its units."""

    @abc.abstractmethod
    def ratio(self, k: Any) -> Any:
        """P(K = k + 1) / P(K = k), of an integer (then in mpmath) or of a float array."""

    def probabilities(self, count: Annotated[int, at_least(1, 10**8)]) -> tuple[int, Array]:
        """The least k, and the probabilities of `count` values from there on, in floats."""
        start, at_start = self.first()
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(self.ratio(start + np.arange(count - 1.0)), 0.0))
        return start, np.exp(float(mpmath.log(at_start)) + np.concatenate([[0.0], np.cumsum(logs)]))

    def quantile(self, p: float) -> int:
        """Least k with P(K <= k) >= p, for p in (0, 1)."""
        if not isinstance(p, (int, float)) or not 0.0 < p < 1.0:
            raise InputError("p", p, "in (0, 1)")
        count = 2 * math.ceil(self.most) + 16
        while True:
            start, masses = self.probabilities(count)
            reached = np.flatnonzero(np.cumsum(masses) >= p)
            if len(reached):
                return start + int(reached[0])
            count *= 2


@checked
@dataclass(frozen=True)
class TruncatedNegativeBinomial(CountLaw):
    """At least one run. Shape 1 is geometric, 0 logarithmic; at a fixed mean, ever larger shapes end at the truncated Poisson.

    Args:
        shape: above -1.
        gamma: in (0, 1); smaller means more runs.
    """

    shape: float
    gamma: float
    name: ClassVar[str] = "truncated-negative-binomial"

    def __post_init__(self) -> None:
        _require_float("shape", self.shape, -1.0 < self.shape <= 1e4, "a float above -1, at most 10,000")
        apart = self.shape == 0.0 or abs(self.shape) >= _LEAST
        _require_float("shape", self.shape, apart, f"0 or at least {_LEAST:g} away from it", "Floats this small lose their digits.")
        _require_float("gamma", self.gamma, 1e-9 <= self.gamma < 1.0, "a float in [1e-9, 1)")
        _require_float("gamma", self.gamma, self.most <= _MOST, f"large enough for at most {_MOST:g} expected runs")

    @classmethod
    def of_mean(cls, mean: float, *, shape: float = 1.0) -> Self:
        """The law of this shape whose expected number of runs is `mean` > 1, up to float rounding."""
        if not isinstance(mean, (int, float)) or not 1.0 < mean <= _MOST:
            raise InputError("mean", mean, f"above 1 and at most {_MOST:g}")
        _require_float("shape", float(shape), -1.0 < shape <= 1e4, "a float above -1, at most 10,000")
        low, high = math.log(1e-9), -1e-12
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if _tnb_mean(float(shape), math.exp(middle)) > mean else (low, middle)
        law = cls(float(shape), math.exp(high))
        if abs(law.mean - mean) > 1e-6 * mean:
            raise InputError("mean", mean, f"at most {law.mean:g} for shape {shape:g}", "Choose a larger shape.")
        return law

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
        with precision(mpmath.mp.prec):  # expm1 sets it meanwhile
            g, s = mpmath.mpf(self.gamma), mpmath.mpf(self.shape)
            return 1, (1 - g) / -mpmath.log(g) if s == 0 else s * (1 - g) / mpmath.expm1(-s * mpmath.log(g))

    def ratio(self, k: Any) -> Any:
        if isinstance(k, int):
            return (1 - mpmath.mpf(self.gamma)) * (k + mpmath.mpf(self.shape)) / (k + 1)
        return (1 - self.gamma) * (k + self.shape) / (k + 1)


@checked
@dataclass(frozen=True)
class PoissonRuns(CountLaw):
    """Poisson; with probability e^-rate there is no run, and "nothing" is released."""

    rate: float
    name: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        _require_float("rate", self.rate, 0.0 < self.rate <= _MOST, f"a float above 0, at most {_MOST:g}")

    @property
    def most(self) -> float:
        return self.rate

    @property
    def none(self) -> float:  # type: ignore[override]
        """P(K = 0)."""
        return math.exp(-self.rate)

    def slope(self, u: Array) -> Array:
        return self.rate * np.exp(-self.rate * u)

    def generating(self, x: Array) -> Array:
        return np.exp(-self.rate * (1 - x))

    def first(self) -> tuple[int, Any]:
        return 0, mpmath.exp(-mpmath.mpf(self.rate))

    def ratio(self, k: Any) -> Any:
        return (mpmath.mpf(self.rate) if isinstance(k, int) else self.rate) / (k + 1)


@checked
@dataclass(frozen=True)
class TruncatedPoisson(CountLaw):
    """Poisson of this rate, given that it is not 0."""

    rate: float
    name: ClassVar[str] = "truncated-poisson"

    def __post_init__(self) -> None:
        _require_float(
            "rate", self.rate, _LEAST <= self.rate <= _MOST, f"a float from {_LEAST:g} to {_MOST:g}", "Floats this small lose their digits."
        )

    @classmethod
    def of_mean(cls, mean: float) -> Self:
        """The law whose expected number of runs is `mean` > 1, up to float rounding."""
        if not isinstance(mean, (int, float)) or not 1.0 < mean <= _MOST:
            raise InputError("mean", mean, f"above 1 and at most {_MOST:g}")
        low, high = 1e-12, float(mean)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if -middle / math.expm1(-middle) > mean else (middle, high)
        return cls(low)

    @property
    def most(self) -> float:
        return -self.rate / math.expm1(-self.rate)

    def slope(self, u: Array) -> Array:
        return self.most * np.exp(-self.rate * u)

    def generating(self, x: Array) -> Array:
        return np.exp(-self.rate * (1 - x)) * np.expm1(-self.rate * x) / math.expm1(-self.rate)

    def first(self) -> tuple[int, Any]:
        with precision(mpmath.mp.prec):  # expm1 sets it meanwhile
            rate = mpmath.mpf(self.rate)
            return 1, rate / mpmath.expm1(rate)

    def ratio(self, k: Any) -> Any:
        return (mpmath.mpf(self.rate) if isinstance(k, int) else self.rate) / (k + 1)


@checked
@dataclass(frozen=True)
class BinomialRuns(CountLaw):
    """So many coins, each a run with probability `chance`: never more than `trials` runs."""

    trials: int
    chance: float
    name: ClassVar[str] = "binomial"

    def __post_init__(self) -> None:
        _require_runs("trials", self.trials)
        _require_float("chance", self.chance, 0.0 < self.chance < 1.0, "a float in (0, 1)", "FixedRuns is the law with chance 1.")

    @property
    def most(self) -> float:
        return self.trials * self.chance

    @property
    def none(self) -> float:  # type: ignore[override]
        """P(K = 0)."""
        return float((1 - self.chance) ** self.trials)

    def slope(self, u: Array) -> Array:
        return self.most * (1 - self.chance * u) ** (self.trials - 1)

    def generating(self, x: Array) -> Array:
        return (1 - self.chance * (1 - x)) ** self.trials

    def first(self) -> tuple[int, Any]:
        return 0, (1 - mpmath.mpf(self.chance)) ** self.trials

    def ratio(self, k: Any) -> Any:
        chance = mpmath.mpf(self.chance) if isinstance(k, int) else self.chance
        return chance / (1 - chance) * (self.trials - k) / (k + 1)


@checked
@dataclass(frozen=True)
class FixedRuns(CountLaw):
    """Always so many runs; dear, because nothing hides how far the best of them was chosen."""

    runs: int
    name: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        _require_runs("runs", self.runs)

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
        return mpmath.mpf(0) if isinstance(k, int) else 0.0 * k


@checked
@dataclass(frozen=True)
class ThresholdStop(RunLaw):
    """Not a count: the first run whose score reaches a public threshold is released; after each other one a coin ends with probability
    `gamma`, and nothing is released. With s the mass that reaches, the winner's density is that of one run over gamma + (1 - gamma) s.

    Source: Liu & Talwar 2019, Theorem 3.1.
    """

    gamma: float
    name: ClassVar[str] = "threshold-stop"

    def __post_init__(self) -> None:
        _require_float("gamma", self.gamma, 1.0 / _MOST <= self.gamma <= 1.0, f"a float in [{1 / _MOST:g}, 1]")

    @property
    def most(self) -> float:
        return 1.0 / self.gamma

    def slope(self, u: Array) -> Array:
        return 1.0 / (self.gamma + (1 - self.gamma) * u)


def _tnb_mean(shape: float, gamma: float) -> float:
    """s (1-g) / (g (1 - g^s)); at shape 0 its limit."""
    log = math.log(gamma)
    if shape == 0.0:
        return (1 - gamma) / gamma / -log
    return shape * (1 - gamma) / gamma / -math.expm1(shape * log)


def _require_float(name: str, value: Any, within: bool, allowed: str, remedy: str = "") -> None:
    if not isinstance(value, float) or not within:
        raise InputError(name, value, allowed, remedy)


def _require_runs(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise InputError(name, value, f"a whole number from 1 to {_MOST:g}")


_KINDS: dict[str, type[RunLaw]] = {
    kind.name: kind for kind in (TruncatedNegativeBinomial, PoissonRuns, TruncatedPoisson, BinomialRuns, FixedRuns, ThresholdStop)
}


@checked
def law_from_json(body: Any) -> RunLaw:
    """The law that `to_json` wrote. Raises InputError, a ValueError, on an unknown law or content."""
    kind = _KINDS.get(body["law"]) if isinstance(body, dict) and isinstance(body.get("law"), str) else None
    if kind is None or {field.name for field in dataclasses.fields(kind)} != set(body) - {"law"}:
        raise InputError("body", "an unknown law of runs", "what to_json wrote", "Was it written by a newer dpbo?")
    return kind(**{name: value for name, value in body.items() if name != "law"})
