"""The ledger's terms in the words of a reader who is no programmer: a privacy officer. What has no
words here keeps its name.
"""

import contextlib
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpbo.accounting import GDPFilter, Planned, PureFilter, RDPFilter, ZCDPFilter
from dpbo.accounting.filters import Accounting
from dpbo.errors import InputError
from dpbo.events import Event, RolesEvent
from dpbo.space import Space

_ACCOUNTING = {
    PureFilter: (
        "Costs are added up as epsilons, by pure differential privacy, which needs no delta."
    ),
    GDPFilter: "Costs are added up by Gaussian differential privacy.",
    ZCDPFilter: "Costs are added up by zero-concentrated differential privacy.",
    RDPFilter: "Costs are added up by Renyi differential privacy.",
    Planned: (
        "All releases were listed before the first one, and the list as a whole keeps the budget."
    ),
}
_MECHANISMS = {
    "gaussian": "Gaussian noise",
    "laplace": "Laplace noise",
    "l2-laplace": "Laplace noise of a vector's length",
    "exponential": "private choice (exponential mechanism)",
    "permute-and-flip": "private choice (permute-and-flip)",
    "thresholded exponential": "private choice of a candidate or none (thresholded exponential)",
    "poisson-gaussian": "Gaussian noise on random samples",
    "private-selection": "best of a hidden number of runs",
    "none": "exact answers, without privacy",
    "declassified": "exact answers, under an assumption about the data",
}
_QUESTIONS = {
    "ClippedMean": "mean score",
    "ClippedSum": "sum of scores",
    "CellMeans": "shares of the records in cells",
    "CandidateScores": "choice of the best candidate",
    "PrivateSelection": "best of a hidden number of runs",
}
_TERMS = {
    "evaluations": "releases allowed",
    "budget": "share of the budget",
    "candidates": "candidates",
    "divisor": "public number that sums are divided by",
    "estimator": "kind of model",
    "initial": "configurations tried before any result is used",
    "max_records_per_unit": "weight of a unit",
    "n_iter": "configurations tried",
    "noise_std": "standard deviation of the noise of a run's score",
    "one table, split by position": (
        "one table, split by position into training and protected records"
    ),
    "options": "settings of the method",
    "query": "question",
    "role": "use of the records",
    "rows": "numbers of the candidates, in the order in which the choice counts them",
    "runs": "distribution of the number of runs",
    "score_range": "scores are clipped to",
    "scoring": "score",
    "seed": "seed of public random choices, such as the configurations tried",
    "space": "parameters and their ranges",
    "strategy": "method",
    "worst": "a score that is not a number counts as",
}
_METHODS = {
    "bo": "search on noisy scores",
    "choice": "one private choice among candidates",
    "weighted_cv": "training records weighted like the protected ones",
    "free": "training records alone",
}


def accounting_in_words(accounting: Accounting) -> str:
    """How costs are added up."""
    return _ACCOUNTING[type(accounting)]


def mechanism_in_words(event: Event) -> str:
    """The noise of an event; of several roles, that of each."""
    if isinstance(event, RolesEvent):
        noises = []
        for role in event.roles:
            different = dict.fromkeys(map(mechanism_in_words, event.of(role)))
            noises.append(f"{role} records: {', '.join(different)}")
        return "; ".join(noises)
    return _MECHANISMS.get(event.mechanism, event.mechanism)


def question_in_words(query: str) -> str:
    """What was asked, from the name of a query."""
    return _QUESTIONS.get(query) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", query).lower()


def rarity(probability: float) -> str:
    """A small probability as one in so many, rounded to the larger probability."""
    return f"one in {math.floor(1 / Fraction(repr(probability))):,}"


def terms_in_words(terms: Mapping[str, Any]) -> dict[str, str]:
    """What a reservation declared public. What is not set, or says nothing more than another term
    does, is left out.
    """
    left_out = {"parameters"} if "space" in terms else set()
    # of one score
    if terms.get("weights") in ([], [1.0]):
        left_out.add("weights")
    if terms.get("max_records_per_unit") == 1 and "score_range" in terms:
        terms = {
            **terms,
            "max_records_per_unit": "all alike; of several records of one unit, the mean counts",
        }
    shown = dict[str, str]()
    for name, value in terms.items():
        if value is not None and name not in left_out:
            label = _TERMS.get(name, name.replace("_", " "))
            shown[label if label not in shown and label not in terms else name] = _term_in_words(
                name, value, terms
            )
    return shown


def _specs_of(text: str) -> dict[str, Any] | None:
    """The distributions and lists of a space; None where JSON only names some of its values."""
    with contextlib.suppress(InputError):
        return dict(Space.from_json(text).specs)
    return None


def _spec_in_words(spec: Any) -> str:
    if not hasattr(spec, "dist"):
        return str(spec)
    keywords = [f"{name}={value}" for name, value in spec.kwds.items()]
    return f"{spec.dist.name}({', '.join([*map(str, spec.args), *keywords])})"


def _term_in_words(name: str, value: Any, terms: Mapping[str, Any]) -> str:
    match name, value:
        case _, bool():
            if value:
                return "yes"
            return "no"
        case "budget", str() if re.fullmatch(r"[0-9]+(/[1-9][0-9]*)?", value):
            return f"{float(100 * Fraction(value)):.4g} %"
        case "candidates", str():
            return f"fingerprint {value}"
        case "estimator", str() if re.fullmatch(r"\w+ [0-9a-f]{16}", value):
            return value.replace(" ", ", fingerprint ")
        case "query", str():
            return question_in_words(value)
        case "score_range", [int() | float() as low, int() | float() as high]:
            return f"{low:g} to {high:g}"
        case "score_range", [[_, _], *_] if all(
            isinstance(ends, list) and len(ends) == 2 for ends in value
        ):
            return ", ".join(_term_in_words(name, ends, terms) for ends in value)
        case "space", str() if (specs := _specs_of(value)) is not None:
            return "; ".join(
                f"{parameter}: {_spec_in_words(spec)}" for parameter, spec in specs.items()
            )
        # a DPSearch
        case "strategy", str() if "estimator" in terms:
            return _METHODS.get(value, value)
        case "worst", "lower" | "upper":
            return f"the {value} end of that range"
        case _, dict():
            return "; ".join(
                f"{one.replace('_', ' ')}: {held}"
                for one, held in value.items()
                if held is not None
            )
        case _, [int() | float() | str(), *_] if all(
            isinstance(one, (int, float, str)) for one in value
        ):
            return ", ".join(map(str, value))
    return str(value)
