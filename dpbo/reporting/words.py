"""The ledger's terms in the words of a reader who is no programmer: a privacy officer. What has no
words here keeps its name.
"""

import contextlib
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from dpbo.accounting import GDPFilter, Planned, PureFilter, RDPFilter, ZCDPFilter
from dpbo.accounting.filters import Accounting
from dpbo.events import Event, OneOfEvent, RolesEvent
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
    "discrete-laplace": "Laplace noise in shares of several ranks",
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
    "candidates": "candidates, or their fingerprint",
    "divisor": "public number that sums are divided by",
    "estimator": "kind of model, and its fingerprint",
    "initial": "configurations tried before any result is used",
    "max_records_per_unit": "largest weight of a unit, in records",
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
    "worst": "what counts where a score is no number",
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


def shares_in_words(accounting: Accounting) -> str:
    """What shares of a budget are shares of."""
    match accounting:
        case Planned():
            return "Shares are of the releases that were planned, of the kind that is used most."
        case PureFilter():
            return "Shares are of epsilon."
    unit = accounting.unit.removeprefix("of ")
    return f"Shares are of {unit}, in which the costs of releases add up. Epsilons do not add up."


def mechanism_in_words(event: Event) -> str:
    """The noise of an event; of several roles, that of each."""
    if isinstance(event, RolesEvent):
        noises = []
        for role in event.roles:
            different = dict.fromkeys(map(mechanism_in_words, event.of(role)))
            noises.append(f"{role} records: {', '.join(different)}")
        return "; ".join(noises)
    if isinstance(event, OneOfEvent):
        return " or ".join(dict.fromkeys(map(mechanism_in_words, event.candidates)))
    return _MECHANISMS.get(event.mechanism, event.mechanism)


def question_in_words(query: str) -> str:
    """What was asked, from the name of a query."""
    return _QUESTIONS.get(query) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", query).lower()


def rarity(probability: float) -> str:
    """A small probability as one in so many, rounded to the larger probability."""
    return f"one in {math.floor(1 / Fraction(repr(probability))):,}"


def terms_in_words(terms: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reservation declared public, but for what is not set."""
    # pairs, as a term of the caller's may have the words of another
    return [
        (_TERMS.get(name, name.replace("_", " ")), _term_in_words(name, value))
        for name, value in terms.items()
        if value is not None and not (name == "parameters" and "space" in terms)
    ]


def _term_in_words(name: str, value: Any) -> str:
    # what does not have the form of its name is told as it is
    with contextlib.suppress(TypeError, ValueError):
        match name:
            case "budget":
                return percent(float(Fraction(value)))
            case "query":
                return question_in_words(value)
            case "score_range":
                ranges = np.reshape(value, (-1, 2)).tolist()
                return ", ".join(f"{low:g} to {high:g}" for low, high in ranges)
            case "space":
                specs = Space.from_json(value).specs
                return "; ".join(f"{one}: {_spec_in_words(spec)}" for one, spec in specs.items())
            case "strategy":
                return _METHODS.get(value, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return "; ".join(f"{one.replace('_', ' ')}: {held}" for one, held in value.items())
    return str(value)


def _spec_in_words(spec: Any) -> str:
    if not hasattr(spec, "dist"):
        return str(spec)
    keywords = [f"{name}={value}" for name, value in spec.kwds.items()]
    return f"{spec.dist.name}({', '.join([*map(str, spec.args), *keywords])})"


def percent(share: float) -> str:
    """A share in percent, with three digits: 12.5 %."""
    # what rounding leaves is nothing
    return f"{round(100 * share, 6):.3g} %"


def with_noise(value: float, std: float) -> str:
    """A value and the standard deviation of its noise, to two digits of the latter."""
    if not (math.isfinite(std) and std > 0):
        return f"{value:.6g}"
    decimals = 1 - math.floor(math.log10(std))
    if not -4 <= decimals <= 8:
        return f"{value:.4g} \u00b1 {std:.2g}"
    return f"{value:.{max(decimals, 0)}f} \u00b1 {std:.{max(decimals, 0)}f}"
