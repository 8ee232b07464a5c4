"""All audits of the package as one family: together they err with probability 1e-6.

Each audit's Clopper-Pearson bounds hold with probability 1 - LEVEL, LEVEL = 1e-6 divided evenly
among the audits listed here (Bonferroni, no independence needed), whatever attack was chosen. A
name that is not listed is refused, so the count is that of the audits that are made.
"""

import dataclasses
from typing import Any

import numpy as np

from dpbo.testing import audit
from dpbo.testing.auditing import Audit

AUDITS = (
    "gaussian 0.5",
    "gaussian 1",
    "gaussian 3",
    "laplace 0.5",
    "laplace 1",
    "laplace 2",
    "l2-laplace",
    "poisson add-or-remove-one",
    "poisson replace-one",
    "permute-and-flip",
    "exponential",
    "private selection",
    "dpgibo",
    "objective",
    "mixture",
    "hospitals",
    "noise 0.7: dpgibo",
    "noise 0.7: objective",
    "noise 0.7: mixture",
    "no clip: dpgibo",
    "no clip: objective",
    "no clip: mixture",
    "visible runs",
    "dp-sgd",
    "tune",
    "several configurations",
)
TOGETHER = 1e-6
LEVEL = TOGETHER / len(AUDITS)


def first(outputs: Any) -> Any:
    return outputs[:, 0]


def audited(name: str, draw: Any, *, runs: int, statistic: Any = first, **settings: Any) -> Audit:
    """`dpbo.testing.audit` at this audit's share of the level."""
    assert name in AUDITS, f"list {name!r} in AUDITS: its level is a share of the family's"
    return audit(draw, runs=runs, level=LEVEL, statistic=statistic, **settings)


def drawn(mechanism: Any, distribution: Any, sums: Any, entropy: Any) -> Any:
    """The mechanism's outputs for these exact sums, whole numbers of 2^-30, with independent
    noise.
    """
    copies = {name: getattr(distribution, name) * len(sums) for name in ("scale", "std", "grid")}
    many = dataclasses.replace(distribution, **copies)
    return (
        mechanism._sample(np.asarray(sums), [2.0**-30] * len(sums), many, entropy)
        * distribution.grid[0]
    )
