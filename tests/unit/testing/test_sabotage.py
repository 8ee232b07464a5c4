"""Sabotage is applied to the package or to a query, and the test that guards against it must fail."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings

from dpbo import Adjacency
from dpbo.accounting import composition, profiles
from dpbo.accounting.filters import Filter
from dpbo.algorithms.em import plan
from dpbo.curator.ledger import Ledger
from dpbo.queries import ball, cells, cluster_sums, features, integers, mixture_moments, second_moment
from dpbo.testing import LedgerContract
from tests.contracts import test_clipped_contract, test_ledger_contract
from tests.unit.accounting import test_composition
from tests.unit.algorithms import test_em_mixture
from tests.unit.queries import test_cells, test_mixture_moments, test_point_sums


def must_fail(test, *arguments):
    """A guard that fails under hypothesis or plain asserts fails all the same; a random hunt may miss once, and gets five."""
    for _ in range(5):
        try:
            test(*arguments)
        except (AssertionError, pytest.fail.Exception, BaseExceptionGroup):
            return
    pytest.fail("the guard let it pass")


def quick(contract, name):
    """A test of a contract, which finds its counterexample and does not look for a smaller one."""
    test: Any = getattr(contract, name)
    inner = test.__func__
    held = inner._hypothesis_internal_use_settings
    monkey = settings(held, max_examples=500, phases=[Phase.generate], database=None, derandomize=True, report_multiple_bugs=False)

    def run(*arguments):
        inner._hypothesis_internal_use_settings = monkey
        try:
            test(*arguments)
        finally:
            inner._hypothesis_internal_use_settings = held

    return run


NEIGHBOURS, ORDER, WORST = (
    "test_neighbours_stay_within_the_declared_sensitivity",
    "test_order_does_not_change_a_bit",
    "test_worst_case_attains_the_sensitivity",
)


def test_a_dropped_charge_and_a_charge_of_one_slot_for_a_batch_are_seen(monkeypatch):
    contract: Any = test_ledger_contract.TestMemory()
    for name, owner, method, sabotage in (
        ("charges_add_up_to_the_cap_and_not_beyond", Ledger, "_paid", lambda honest: _unpaid),
        ("a_plan_takes_its_slots_from_the_budget_at_once", Filter, "price", lambda honest: lambda s, event: honest(s, event.repeated(1))),
    ):
        guard: Any = getattr(LedgerContract, f"test_{name}")
        guard(contract, None)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, sabotage(getattr(owner, method)))
            must_fail(guard, contract, None)


def _unpaid(ledger, connection, event, what):
    return ledger._head(connection), ledger._head(connection).total


@pytest.mark.attack("A4")
def test_float32_accumulation_depends_on_the_order_and_the_guard_sees_it(monkeypatch):
    def serial(steps):
        total = torch.zeros((), dtype=torch.float32)
        for step in steps.float():
            total = total + step
        return total.to(torch.int64)

    monkeypatch.setattr(integers, "_exact_sum", serial)
    must_fail(quick(test_clipped_contract.TestClippedMeanOfOddRange(), ORDER))


@pytest.mark.attack("A10")
def test_an_exponential_charged_like_any_pure_mechanism_or_for_half_its_range_is_seen(monkeypatch):
    guard = test_composition.test_exponentials_are_half_as_far_as_any_pure_mechanism
    honest = profiles.mu_squared
    for factor in (4, 0.98):
        monkeypatch.setattr(profiles, "mu_squared", lambda event, f=factor: honest(event) * f if event.slots else None)
        composition._composed.cache_clear()
        must_fail(guard)
    monkeypatch.undo()
    composition._composed.cache_clear()


def test_records_in_several_cells_and_a_cells_sensitivity_as_if_a_record_left_for_none_are_seen(monkeypatch):
    rows, declared = cells.OneCell._rows, cells.CellMeans.sensitivity
    sabotages: list[tuple[Any, str, Any]] = [
        (cells.OneCell, "_rows", lambda self, batch: rows(self, batch).double().cumsum(1)),
        (cells.CellMeans, "sensitivity", lambda self, adjacency: dataclasses.replace(declared(self, adjacency), l2=1.0)),
    ]
    for owner, name, sabotage in sabotages:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, sabotage)
            must_fail(quick(test_cells.TestCellMeans(), NEIGHBOURS))


def test_records_not_clipped_in_whole_numbers_and_responsibilities_that_share_no_record_are_seen(monkeypatch):
    whole = torch.sigmoid
    sabotages: list[tuple[Any, str, Any]] = [
        (ball, "_shortened", lambda k, most: k),  # rounding alone then makes a record longer than 1
        (mixture_moments, "responsibilities", lambda logits, alive, bits: (whole(logits.abs()) * 2.0**bits).round() * alive),
    ]
    for owner, name, sabotage in sabotages:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, sabotage)
            must_fail(quick(test_mixture_moments.TestSplit(), NEIGHBOURS))


@pytest.mark.attack("A9")
def test_a_sensitivity_that_is_too_small_is_seen(monkeypatch):
    for contract, query, square in (
        (test_mixture_moments.TestSplit(), mixture_moments.MixtureMoments, 4.5),  # as if all records had one component
        (test_mixture_moments.TestOneComponent(), mixture_moments.MixtureMoments, 4.0),  # as if opposite vectors were the worst
        (test_point_sums.TestSecondMoment(), second_moment.SecondMoment, 1.0),
        (test_point_sums.TestClusters(), cluster_sums.ClusterSums, 3.0),
    ):
        guard, honest = getattr(contract, WORST), query.squared
        guard()

        def small(self, adjacency, honest=honest, square=square):
            return square if adjacency is Adjacency.REPLACE_ONE else honest(self, adjacency)

        with monkeypatch.context() as patch:
            patch.setattr(query, "squared", small)
            must_fail(guard)


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
