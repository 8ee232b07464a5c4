"""Sabotaged questions about points, and the guard that must see each."""

from typing import Any

import pytest
import torch

from dpbo import Adjacency
from dpbo.algorithms.em import plan
from dpbo.queries import ball, cluster_sums, features, mixture_moments, second_moment
from tests.algorithms import test_em_mixture
from tests.queries import test_mixture_moments, test_point_sums
from tests.testing.test_sabotage import must_fail


def test_records_that_are_not_clipped_in_whole_numbers_are_seen(monkeypatch):
    contract: Any = test_mixture_moments.TestSplit()
    monkeypatch.setattr(ball, "_shortened", lambda k, most: k)  # rounding alone then makes a record longer than 1
    must_fail(contract.test_neighbours_stay_within_the_declared_sensitivity)
    must_fail(test_mixture_moments.test_no_record_is_longer_than_one_and_weights_sum_to_one_exactly)


def test_responsibilities_that_do_not_share_one_record_are_seen(monkeypatch):
    contract: Any = test_mixture_moments.TestSplit()
    whole = torch.sigmoid
    monkeypatch.setattr(mixture_moments, "responsibilities", lambda logits, alive, bits: (whole(logits.abs()) * 2.0**bits).round() * alive)
    must_fail(contract.test_neighbours_stay_within_the_declared_sensitivity)


@pytest.mark.parametrize(("contract", "module", "square"), [
    (test_mixture_moments.TestSplit(), mixture_moments.MixtureMoments, 4.5),  # as if all records had one component
    (test_mixture_moments.TestOneComponent(), mixture_moments.MixtureMoments, 4.0),  # as if opposite vectors were the worst
    (test_point_sums.TestSecondMoment(), second_moment.SecondMoment, 1.0),
    (test_point_sums.TestClusters(), cluster_sums.ClusterSums, 3.0),
])  # fmt: skip
@pytest.mark.attack("A9")
def test_a_sensitivity_that_is_too_small_is_seen(monkeypatch, contract, module, square):
    contract.test_worst_case_attains_the_sensitivity()
    honest = module.squared

    def small(self, adjacency):
        return square if adjacency is Adjacency.REPLACE_ONE else honest(self, adjacency)

    monkeypatch.setattr(module, "squared", small)
    must_fail(contract.test_worst_case_attains_the_sensitivity)


@pytest.mark.attack("A4")
def test_sums_of_numbers_that_are_not_whole_depend_on_their_order(monkeypatch):
    guard = test_mixture_moments.test_sums_are_exact_whatever_the_order_and_beside_whomever
    honest = features.features
    monkeypatch.setattr(mixture_moments, "features", lambda Z, one, covariance: honest(Z * 1.1, one, covariance))
    must_fail(guard, "cpu", 10, 3, "full")


def test_noise_drawn_anew_on_resuming_is_seen(monkeypatch, tmp_path):
    honest = plan.Plan.__init__

    def forgetting(self, *arguments, **settings):
        honest(self, *arguments, **settings)
        self._known = []

    monkeypatch.setattr(plan.Plan, "__init__", forgetting)
    with pytest.raises(Exception, match="another process took a step"):
        test_em_mixture.test_a_fit_resumes_from_its_ledger_without_a_second_charge_or_noise(tmp_path, 0)
