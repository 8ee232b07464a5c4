"""Each sabotage is applied to the package, and the test that guards against it must fail."""

import dataclasses
from typing import Any

import pytest
import torch

from dpbo.accounting import composition
from dpbo.accounting.filters import Filter
from dpbo.curator import reporting
from dpbo.curator.ledger import Ledger
from dpbo.queries import integers
from dpbo.testing import LedgerContract
from tests import test_statement
from tests.accounting import test_composition
from tests.curator import test_ledger_contract
from tests.queries import test_clipped_contract


def must_fail(test, *arguments):
    """A guard that fails under hypothesis or plain asserts fails all the same; a random hunt may miss once, and gets five."""
    for _ in range(5):
        try:
            test(*arguments)
        except (AssertionError, pytest.fail.Exception, BaseExceptionGroup):
            return
    pytest.fail("the guard let it pass")


def test_a_dropped_charge_is_seen_by_the_ledger_contract(monkeypatch):
    contract: Any = test_ledger_contract.TestMemory()
    guard: Any = LedgerContract.test_charges_add_up_to_the_cap_and_not_beyond
    guard(contract, None)
    monkeypatch.setattr(Ledger, "_paid", lambda self, connection, event, what: (self._head(connection), self._head(connection).total))
    must_fail(guard, contract, None)


def test_a_charge_of_one_slot_for_a_batch_is_seen(monkeypatch):
    contract: Any = test_ledger_contract.TestMemory()
    guard: Any = LedgerContract.test_a_plan_takes_its_slots_from_the_budget_at_once
    guard(contract, None)
    honest = Filter.price
    monkeypatch.setattr(Filter, "price", lambda self, event: honest(self, event.repeated(1)))
    must_fail(guard, contract, None)


@pytest.mark.attack("A4")
def test_float32_accumulation_depends_on_the_order_and_the_guard_sees_it(monkeypatch):
    def serial(steps):
        total = torch.zeros((), dtype=torch.float32)
        for step in steps.float():
            total = total + step
        return total.to(torch.int64)

    guard = test_clipped_contract.TestClippedMeanOfOddRange().test_order_does_not_change_a_bit
    guard()
    monkeypatch.setattr(integers, "_exact_sum", serial)
    must_fail(guard)


@pytest.mark.attack("A15")
def test_a_printed_spent_epsilon_is_seen(monkeypatch):
    guard = test_statement.test_the_guarantee_is_the_cap_whatever_was_spent
    guard()
    honest = reporting.compose_statement

    def spent(ledger, **terms):
        statement = honest(ledger, **terms)
        return dataclasses.replace(statement, guarantee=statement.spent)

    monkeypatch.setattr("dpbo.curator.curator.compose_statement", spent)
    must_fail(guard)


@pytest.mark.attack("A10")
def test_an_exponential_charged_like_any_pure_mechanism_or_for_half_its_range_is_seen(monkeypatch):
    from dpbo.accounting import profiles

    guard = test_composition.test_exponentials_are_half_as_far_as_any_pure_mechanism
    guard()
    honest = profiles.mu_squared
    for factor in (4, 0.98):
        monkeypatch.setattr(profiles, "mu_squared", lambda event, f=factor: honest(event) * f if event.slots else None)
        composition._composed.cache_clear()
        must_fail(guard)
    monkeypatch.undo()
    composition._composed.cache_clear()


@pytest.mark.attack("A16")
def test_a_refunding_checkpoint_is_seen(monkeypatch):
    from dpbo.accounting import LedgerAccountant
    from tests.accounting import test_ledger_accountant

    def overwrite(self, state):
        self._runs, self._releases = dict(state["runs"]), {}

    guard = test_ledger_accountant.test_a_checkpoint_is_merged_and_never_takes_anything_back
    monkeypatch.setattr(LedgerAccountant, "load_state_dict", overwrite)
    must_fail(guard, None)
