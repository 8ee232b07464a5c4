"""What a notebook shows of a curator, an objective and fitted estimators, and the budget that a
curator says is left.
"""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.tree import DecisionTreeClassifier

from dpbo import Budget, DPSearch, Privacy, PrivateObjective
from dpbo.accounting import GDPFilter, Planned, PureFilter, RDPFilter, ZCDPFilter
from dpbo.errors import BudgetExceeded
from dpbo.events import GaussianEvent
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans
from tests.setups import DOUBLE, itself, of, owner

HOSTILE = "<script>alert(1)</script>"


def make(**changes):
    records = torch.rand(2000, dtype=DOUBLE)
    return owner(records, **{"unit": "patient", "allow_repeated": True, **changes})


def objective(curator, name, budget):
    return PrivateObjective(
        curator, itself, score_range=(0.0, 1.0), evaluations=4, name=name, budget=budget
    )


def test_the_epsilon_that_is_left_can_be_taken_and_is_all_that_is_left():
    for accounting in (GDPFilter(), PureFilter(), ZCDPFilter(), RDPFilter(12.0)):
        curator = make(accounting=accounting)
        objective(curator, "first", 0.5)(torch.rand(2, 2, dtype=DOUBLE))
        left = curator.remaining_epsilon
        with pytest.raises(BudgetExceeded):
            objective(curator, "too much", Budget(1.0001 * left, 1e-6))
        objective(curator, "rest", Budget(left, 1e-6))
        assert curator.remaining_epsilon == 0.0, accounting
    assert make(budget=Budget.gdp(1.0, delta=1e-5)).remaining_epsilon == pytest.approx(
        4.377178, rel=1e-6
    )
    assert make(budget=Budget.gdp(1.0)).remaining_epsilon is None, "no delta is named"
    slots = make(accounting=Planned([GaussianEvent(20.0, 4)]))
    assert slots.remaining_epsilon is None, "slots are counted"


def test_a_curator_and_an_objective_show_public_facts_escaped(tmp_path):
    curator = make(unit=HOSTILE, dataset=HOSTILE, ledger=str(tmp_path / "l.db"))
    search = objective(curator, HOSTILE, 0.5)
    search(torch.rand(1, 2, dtype=DOUBLE))
    for shown in (curator._repr_html_(), search._repr_html_()):
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown
    assert "<th" in curator._repr_html_()
    assert "50 %: epsilon 2.047 at delta 1e-06" in curator._repr_html_()
    assert "12.5 %: (" in curator._repr_html_()
    assert "1 of 4 charged" in search._repr_html_()


def test_fitted_estimators_show_their_guarantee_under_scikit_learns_diagram():
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = X[:, 0] > 0
    budget = Budget(8.0, 1e-6)
    privacy = Privacy(unit=HOSTILE, allow_repeated=True)
    settings = of(budget=budget, n_iter=2, strategy="choice", privacy=privacy)
    tree = DPSearch(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2]}, **settings)
    em = of(budget=budget, radius=3.0, random_state=0)
    models = [
        DPGaussianMixture(2, max_iter=2, **em),
        DPKMeans(2, max_iter=2, **em),
        DPFactorAnalysis(1, max_iter=2, **em),
    ]
    estimators: list[Any] = [tree, *models]
    for estimator in estimators:
        name = type(estimator).__name__
        assert f"{name} after fit" not in estimator._repr_html_()
        (
            estimator.fit(X[:100], y[:100], X[100:], y[100:])
            if estimator is tree
            else estimator.fit(X[100:])
        )
        for shown in (estimator._repr_html_(), estimator._repr_mimebundle_()["text/html"]):
            facts = shown[shown.index(f"{name} after fit") :]
            assert "(8.000, " in facts
            assert "<script" not in facts
        with config_context(display="text"):
            assert not hasattr(estimator, "_repr_html_")
            assert "text/html" not in estimator._repr_mimebundle_()
    assert "max_depth = " in tree._repr_html_()
