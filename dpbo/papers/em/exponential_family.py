"""Private EM for any model whose complete data have an exponential family.

    # theta is public: the start, then what `m_step` makes of released moments
    def statistics(theta, records): ...  # the expected statistics of each record: n x F
    def m_step(moments, noise): ...      # the next theta
    em = DPEM(statistics, 1.5, m_step, start=theta, size=F, budget=Budget(1.0, 1e-6)).fit(X)
    em.parameters_

DPGaussianMixture and DPFactorAnalysis are the paper's two instances, and keep queries of their
own. The exact l2 sensitivity of a mixture's moments is sqrt 6, where twice their length would be 2
sqrt 3; that of factor analysis' second moment is sqrt 2, for 2. And both are summed by products of
whole numbers, without a table of n x F statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import torch

from dpbo.papers.em.estimator import Iterations, PrivateEstimator, record_count
from dpbo.papers.em.point_sums import VectorSum
from dpbo.queries.ball import MOST_DIMENSION, Ball
from dpbo.queries.score_evaluation import ask
from dpbo.validation import Name, Positive, at_least

# of the number of records, where it is private: this adds a quarter to the variance of a moment
_COUNT_WEIGHT = 0.5


@dataclass(eq=False, repr=False)
class DPEM(PrivateEstimator):
    """The DP-EM paper's general algorithm (Park, Foulds, Chaudhuri & Welling 2017, section 3): each
    iteration releases the moments M = (1/N) sum_i E[s(x_i, z_i)], and takes the next parameters
    from them.

    A record with statistics that are not finite is in no sum. The number of the others is released
    with the sum, and where it lies further from a public N than its noise explains, M is their
    mean: the noise of M is then that of the sum over the released number.

    Theorem (l2; unit: one record). Let |s| be cut to at most C = `bound`. REPLACE_ONE: N is public,
    and M moves by at most 2 C / N; with `nonnegative` by sqrt 2 C / N. ADD_OR_REMOVE_ONE: N is
    private, so M itself is not released: a quotient by the exact N moves with N, too. The number of
    records and the sum of the statistics are released together, weighted 1/2 to 1, and M is their
    quotient: the sum gets noise for sqrt(5)/2 C.
    Proof. theta is a function of what was released before, so it is the same for both data sets
    (adaptive composition). Given theta, only the one record's statistics differ, because
    `statistics` makes each from its own record, and they are cut, whatever it returns: see
    `VectorSum`. The paper bounds C by sup |s(x, z)|, which is right: an expectation over z lies in
    the convex hull of what it averages.

    Args:
        statistics: `statistics(theta, records)`, the expected statistics of each record under
            theta, `n x F`: a tensor or an array. A record with any that is not finite counts as
            nothing.
        bound: C, public; longer statistics are shortened to it.
        m_step: `m_step(moments, noise)`, the next theta, from the moments and the standard
            deviation of their noise, `F` each; the same for the same numbers.
        start: the first theta; public.
        size: F.
        nonnegative: count statistics below zero as zero, for less noise under REPLACE_ONE: for
            responsibilities and counts.
        max_iter: iterations, one release each.
        budget, mechanism, adjacency, accounting, name: as in DPGaussianMixture.

    Attributes:
        parameters_: the last theta. statement_: the guarantee. n_iter_: max_iter.
    """

    statistics: Callable[[Any, Any], Any]
    bound: Positive
    m_step: Callable[[torch.Tensor, torch.Tensor], Any]
    _: KW_ONLY
    start: Any
    size: Annotated[int, at_least(1, MOST_DIMENSION)]
    nonnegative: bool = False
    max_iter: Iterations = 10
    name: Name = "em"

    def fit(self, X: Any, y: Any = None) -> DPEM:
        """Reserve the releases, run EM, and keep its parameters. X: `n x d`, or a Curator.

        Raises:
            InputError: an argument outside its range.
            BudgetExceeded: the budget is not left.
        """
        curator = self._open(X)
        query = self._question(self.start)
        terms = self._settings("bound", "size", "nonnegative", "max_iter")
        given = self._settings("statistics", "m_step", "start")
        reservation = self._reserve(X, curator, self.max_iter, [query], terms, given)
        theta = self.start
        for _ in range(self.max_iter):
            value, std = self._release(reservation, self._question(theta), "em")
            count = record_count(curator.units, value[0], std[0])
            theta = self.m_step(value[1:] * (self.bound / count), std[1:] * (self.bound / count))
        self.parameters_ = theta
        self.noise_multiplier_ = getattr(reservation.mechanism, "noise_multiplier", 0.0)
        self.statement_ = curator.statement()
        self.n_iter_ = self.max_iter
        return self

    def _question(self, theta: Any) -> VectorSum:
        """One iteration's question."""
        return VectorSum(
            self.size,
            ball=Ball(float(self.bound)),
            weights=(_COUNT_WEIGHT, 1.0),
            nonnegative=self.nonnegative,
            vectors=functools.partial(ask, self.statistics, theta),
        )
