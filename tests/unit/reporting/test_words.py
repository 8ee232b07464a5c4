"""The ledger's terms for a reader who is no programmer, and the space that they describe."""

import pytest
import scipy.stats

from dpbo import Space
from dpbo.accounting.planned import accounting_named
from dpbo.events import GaussianEvent, LaplaceEvent, RolesEvent
from dpbo.reporting.words import (
    accounting_in_words,
    mechanism_in_words,
    question_in_words,
    rarity,
    terms_in_words,
)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(
            scipy.stats.loguniform(1e-2, 1e3), "loguniform(0.01, 1000.0)", id="distribution"
        ),
        pytest.param(scipy.stats.norm(3, scale=2), "norm(3, scale=2)", id="keyword"),
        pytest.param(["rbf", "poly"], "['rbf', 'poly']", id="list"),
    ],
)
def test_a_space_is_told_by_its_distributions_and_lists(spec, words):
    assert terms_in_words({"space": Space(b=spec, a=[1, 2]).to_json()}) == {
        "parameters and their ranges": f"b: {words}; a: [1, 2]"
    }


def test_terms_are_told_in_plain_words_and_no_term_hides_another():
    told = terms_in_words(
        {
            "evaluations": 30,
            "budget": "9/10",
            "weights": [1.0],
            "worst": "lower",
            "score_range": [[0.0, 1.0]],
            "max_records_per_unit": 1,
            "candidates": 9,
            "one table, split by position": False,
            "options": {"cells": 4, "largest_difference": None},
            "strategy": "mine",
            "method": "also mine",
            "parameters": ["lr", "clip"],
            "divisor": None,
            "space": Space(lr=scipy.stats.uniform(0, 1), clip=[1, 2]).to_json(),
        }
    )
    assert told == {
        "releases allowed": "30",
        "share of the budget": "90 %",
        "a score that is not a number counts as": "the lower end of that range",
        "scores are clipped to": "0 to 1",
        "weight of a unit": "all alike; of several records of one unit, the mean counts",
        "candidates": "9",
        "one table, split by position into training and protected records": "no",
        "settings of the method": "cells: 4",
        "strategy": "mine",
        "method": "also mine",
        "parameters and their ranges": "lr: uniform(0, 1); clip: [1, 2]",
    }
    assert terms_in_words({"score_range": [[0.0, 1.0], [-1.0, 0.0]], "weights": [1.0, 2.0]}) == {
        "scores are clipped to": "0 to 1, -1 to 0",
        "weights": "1.0, 2.0",
    }
    hostile = {
        "space": "x",
        "budget": [],
        "estimator": 3,
        "score_range": [[1]],
        "candidates": {},
        "parameters": 4,
        "worst": "w",
        "rows": [[]],
    }
    assert len(terms_in_words(hostile)) == len(hostile) - 1


@pytest.mark.parametrize("name", ["PureFilter", "GDPFilter", "ZCDPFilter", "RDPFilter(4.0)"])
def test_every_accounting_has_a_sentence(name):
    assert accounting_in_words(accounting_named(name)).startswith("Costs are added up")


def test_probabilities_are_rounded_to_the_larger_one_and_events_of_roles_tell_each():
    assert (rarity(1e-6), rarity(3e-6), rarity(0.3)) == (
        "one in 1,000,000",
        "one in 333,333",
        "one in 3",
    )
    roles = RolesEvent(
        costs=(
            ("training", (GaussianEvent(1.0), GaussianEvent(2.0))),
            ("validation", (LaplaceEvent(1.0),)),
        )
    )
    assert (
        mechanism_in_words(roles)
        == "training records: Gaussian noise; validation records: Laplace noise"
    )
    assert question_in_words("ClippedGradient") == "clipped gradient"
