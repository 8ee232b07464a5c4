"""Whether replications bear out what a paper says of a difference: one rule for all four papers.

A page writes `{{ verdict("dpgibo > 4.3 > gaps > paper settings minus random", "below") }}`, and
the build puts the word in: the stored row has the paired differences' mean, standard error and
number. A promise to fail seldom is judged by the share of draws in which it failed.
"""

from collections.abc import Sequence
from typing import Literal

from scipy import stats


def verdict(
    difference: float,
    standard_error: float,
    *,
    printed: Literal["below", "above"] | float,
    within: float = 0.0,
    replications: int = 50,
    intervals: int = 1,
) -> str:
    """What the 95 % t interval of a paired difference a - b says of the paper's claim.

    "reproduced": the whole interval agrees with the claim; "differs": none of it does; "not
    reproduced": a part does, so that these replications do not show the claim.

    Args:
        difference: mean of a - b over the replications.
        standard_error: of that mean.
        printed: what the paper says: "below" (a < b), "above" (a > b), or a number that a - b is
            near, 0 where it says that both are equal.
        within: how near, for a number; of an order, the least difference that counts.
        replications: how many there were.
        intervals: how many a claim takes; 95 % is what they hold with together (Bonferroni).
    """
    half = float(stats.t.ppf(1 - 0.025 / intervals, replications - 1)) * standard_error
    low, high = difference - half, difference + half
    if printed == "below":
        agrees, contradicts = high < -within, low > -within
    elif printed == "above":
        agrees, contradicts = low > within, high < within
    else:
        agrees = printed - within <= low and high <= printed + within
        contradicts = high < printed - within or low > printed + within
    if agrees:
        return "reproduced"
    return "differs" if contradicts else "not reproduced"


def verdict_of_share(share: float, draws: int, *, allowed: float, intervals: int = 1) -> str:
    """What the share of so many draws in which a promise failed says of the claim that it fails
    with at most a probability, by Clopper and Pearson's 95 % interval.
    """
    tail = 0.025 / intervals
    failed = round(share * draws)
    low = float(stats.beta.ppf(tail, failed, draws - failed + 1)) if failed else 0.0
    high = float(stats.beta.ppf(1 - tail, failed + 1, draws - failed)) if failed < draws else 1.0
    if high <= allowed:
        return "reproduced"
    return "differs" if low > allowed else "not reproduced"


def of_all(told: Sequence[str]) -> str:
    """The verdict on a claim that has these parts."""
    if "differs" in told:
        return "differs"
    return "not reproduced" if "not reproduced" in told else "reproduced"
