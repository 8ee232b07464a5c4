"""What DPSearch shows of a search: a table with the columns of scikit-learn's `cv_results_`, and each release as it is made.

All of it is public: released values, the noise's standard deviation, and configurations. No time is shown.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from tqdm import tqdm


class SearchRelease(NamedTuple):
    """One release of a search, as a callback of DPSearch is given it.

    Attributes:
        part: "search", "gradients", "cells" (the shares of strategy "weighted_cv"), "choice" or "final" (the recommended one's score).
        number, planned: the release's number within its part, from 1, and how many that part has.
        parameters: the configuration that was evaluated or chosen, or at which the gradient was taken.
        score, noise_std: the released score and the standard deviation of its noise; None where no score is released.
    """

    part: str
    number: int
    planned: int
    parameters: Mapping[str, Any]
    score: float | None = None
    noise_std: float | None = None

    def __str__(self) -> str:
        score = "" if self.score is None else f"score {self.score:.4g}, noise {self.noise_std:.2g}, "
        return (
            f"{self.part} {self.number}/{self.planned}: {score}{', '.join(f'{name}={value!r}' for name, value in self.parameters.items())}"
        )


Callback = Callable[[SearchRelease], Any]


def report(release: SearchRelease, callbacks: Sequence[Callback], *, lines: bool) -> bool:
    """Print the release as a line, if wanted, and call each callback with it. Whether one of them returned True, to stop the search."""
    if lines:
        tqdm.write(str(release))
    answers = [callback(release) for callback in callbacks]
    return any(answer is True for answer in answers)


def results_table(parameters: Sequence[Mapping[str, Any]], *, score: Any = None, noise_std: Any = None, **columns: Any) -> dict[str, Any]:
    """A dict of columns, one entry a configuration, as `cv_results_` is.

    Args:
        parameters: of each configuration.
        score, noise_std: released scores and the standard deviation of their noise; None where no score of each was released: NaN then,
            and all ranks are masked.
        columns: what else is known.
    """
    count = len(parameters)
    table: dict[str, Any] = {f"param_{name}": np.ma.array(np.empty(count, dtype=object)) for name in (parameters[0] if count else ())}
    for row, given in enumerate(parameters):
        for name, value in given.items():
            table[f"param_{name}"][row] = value
    unknown, ranks = np.full(count, np.nan), np.ma.array(np.zeros(count, dtype=np.int32), mask=True)
    if score is not None:
        ranks[:] = scipy.stats.rankdata(-np.asarray(score), method="min")
    return {
        **table,
        "params": list(parameters),
        "mean_test_score": unknown if score is None else np.asarray(score, dtype=np.float64),
        "std_test_score": unknown.copy() if noise_std is None else np.asarray(noise_std, dtype=np.float64),
        "rank_test_score": ranks,
        **columns,
    }
