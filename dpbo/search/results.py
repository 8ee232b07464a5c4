"""What DPSearch shows of a search: a table with the columns of scikit-learn's `cv_results_`, and
each release as it is made.

All of it is public: released values, the noise's standard deviation, and configurations. No time is
shown.
"""

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from dpbo.errors import InputError
from dpbo.search.recommendation import Recommendation
from dpbo.search.training import Configuration
from dpbo.validation import warn


class SearchRelease(NamedTuple):
    """One release of a search, as a callback of DPSearch is given it.

    Attributes:
        part: "search", "cells" (the shares of `WeightedCV`), "choice", "test" (of a candidate
            against the default model) or "final" (the recommended configuration's score).
        number, planned: the release's number within its part, from 1, and how many that part has.
        parameters: the configuration that was evaluated or chosen; none for "cells".
        score, noise_std: the released score, or in a test the noised gain, before the margin is
            taken off; and the standard deviation of its noise. None where no number is released.
    """

    part: str
    number: int
    planned: int
    parameters: Mapping[str, Any]
    score: float | None = None
    noise_std: float | None = None

    def __str__(self) -> str:
        if self.part == "cells":
            return f"cells {self.number}/{self.planned}: shares of the protected records"
        if self.score is None:
            score = ""
        else:
            kind = "noised gain, before the margin," if self.part == "test" else "score"
            score = f"{kind} {self.score:.4g}, noise {self.noise_std:.2g}, "
        parameters = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{self.part} {self.number}/{self.planned}: {score}{parameters}"


Callback = Callable[[SearchRelease], Any]


class SearchResult(NamedTuple):
    """What a strategy found.

    Attributes:
        best: the place of the recommended configuration among them; None for a default model that
            is not one of them.
        configurations: all that were looked at.
        columns: what is known of each, as `results_table` takes it: released values and public
            scores.
        recommendation: what was tested of it; None where nothing was.
    """

    best: int | None
    configurations: Sequence[Configuration]
    columns: Mapping[str, Any]
    recommendation: Recommendation | None = None


def fitting_result(found: Any) -> SearchResult:
    """What a strategy's run returned, with those of its columns that fit its configurations: a
    strategy of one's own may return anything, and what it asked is paid for.

    Raises InputError where it recommends nothing.
    """
    if not isinstance(found, SearchResult):
        allowed = "a dpbo.search.SearchResult"
        raise InputError("what the strategy's run returned", type(found).__name__, allowed)
    count = len(found.configurations)
    try:
        # Also of a number of numpy's or torch's.
        best = None if found.best is None else operator.index(found.best)
    except TypeError:
        best = -1
    if best is not None and not 0 <= best < count:
        allowed = f"a place among its {count} configurations, from 0"
        raise InputError("best, of the strategy's SearchResult,", found.best, allowed)
    columns = {}
    for name, column in found.columns.items():
        if hasattr(column, "__len__") and len(column) == count and name != "parameters":
            columns[name] = column
        else:
            told = f"column {name!r} of the strategy's SearchResult is left out of results_: "
            warn(f"{told}it needs one value for each of {count} configurations", UserWarning)
    return found._replace(best=best, columns=columns)


def results_table(
    parameters: Sequence[Mapping[str, Any]],
    *,
    score: Any = None,
    noise_std: Any = None,
    **columns: Any,
) -> dict[str, Any]:
    """A dict of columns, one entry a configuration, as `cv_results_` is.

    Args:
        parameters: of each configuration.
        score, noise_std: released scores and the standard deviation of their noise; None where no
            score of each was released: NaN then, and all ranks are masked.
        columns: what else is known.
    """
    count = len(parameters)
    table: dict[str, Any] = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(parameters)):
        column = np.ma.array(np.full(count, None), mask=True)
        # One by one: a value may be a sequence.
        for row, given in enumerate(parameters):
            if name in given:
                column[row] = given[name]
        table[f"param_{name}"] = column
    ranks = np.ma.array(np.zeros(count, dtype=np.int32), mask=True)
    if score is None:
        score = noise_std = np.full(count, np.nan)
    else:
        ranks[:] = scipy.stats.rankdata(-np.asarray(score), method="min")
    return {
        **table,
        "params": list(parameters),
        "mean_test_score": np.array(score, dtype=np.float64),
        "std_test_score": np.array(noise_std, dtype=np.float64),
        "rank_test_score": ranks,
        **columns,
    }
