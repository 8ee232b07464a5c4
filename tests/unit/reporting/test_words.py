"""The ledger's terms for a reader who is no programmer, and the space that they describe."""

import pytest
import scipy.stats

from dpbo import Space
from dpbo.accounting.planned import accounting_named
from dpbo.events import GaussianEvent, LaplaceEvent, RolesEvent
from dpbo.reporting.words import (
    accounting_in_words,
    mechanism_in_words,
    percent,
    question_in_words,
    rarity,
    terms_in_words,
    with_noise,
)


def test_terms_are_told_in_plain_words_and_no_term_hides_another():
    space = Space(lr=scipy.stats.norm(3, scale=2), kernel=["rbf", "poly"])
    assert terms_in_words(
        {
            "evaluations": 30,
            "releases allowed": 7,
            "budget": "9/10",
            "query": "ClippedMean",
            "score_range": [[0.0, 1.0], [-1, 0]],
            "one table, split by position": False,
            "options": {"largest_cells": 4},
            "strategy": "choice",
            "parameters": ["lr", "kernel"],
            "divisor": None,
            "space": space.to_json(),
        }
    ) == [
        ("releases allowed", "30"),
        ("releases allowed", "7"),
        ("share of the budget", "90 %"),
        ("question", "mean score"),
        ("scores are clipped to", "0 to 1, -1 to 0"),
        ("one table, split by position into training and protected records", "no"),
        ("settings of the method", "largest cells: 4"),
        ("method", "one private choice among candidates"),
        ("parameters and their ranges", "lr: norm(3, scale=2); kernel: ['rbf', 'poly']"),
    ]


def test_terms_of_another_program_are_told_as_they_are():
    hostile = {"space": "x", "budget": [], "query": 3, "score_range": [["a"]], "strategy": {}}
    assert [text for _, text in terms_in_words(hostile)] == ["x", "", "3", "['a']", ""]


@pytest.mark.parametrize("name", ["PureFilter", "GDPFilter", "ZCDPFilter", "RDPFilter(4.0)"])
def test_every_accounting_has_a_sentence(name):
    assert accounting_in_words(accounting_named(name)).startswith("Costs are added up")


def test_probabilities_are_rounded_to_the_larger_one_and_events_of_roles_tell_each():
    assert (rarity(1e-6), rarity(0.3)) == ("one in 1,000,000", "one in 3")
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


def test_what_rounding_leaves_of_a_budget_is_nothing():
    assert [percent(share) for share in (0.125, 1e-16, 1e-5)] == ["12.5 %", "0 %", "0.001 %"]


@pytest.mark.parametrize(
    ("value", "std", "text"),
    [
        (0.81234, 0.0123, "0.812 \u00b1 0.012"),
        (5234.0, 310.0, "5234 \u00b1 310"),
        (0.5, 0.0, "0.5"),
        (1.0, 1e-12, "1 \u00b1 1e-12"),
    ],
)
def test_numbers_are_shown_to_the_digits_of_their_noise(value, std, text):
    assert with_noise(value, std) == text
