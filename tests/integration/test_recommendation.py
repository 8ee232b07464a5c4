"""The test that a recommendation passes, at its worst case: a candidate whose clipped scores differ
from the default model's by nothing in the mean.
"""

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.base import BaseEstimator, ClassifierMixin

from dpbo import Budget, Curator
from dpbo.curator.pricing import noise_std, priced
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.queries import ClippedMean
from dpbo.search.recommendation import Recommendation, exceeded
from dpbo.search.scorings import scoring_named
from dpbo.search.training import Trainer
from dpbo.testing import SeededEntropy
from dpbo.testing.mechanism_contract import LEVEL
from tests.attacks.marks import attack
from tests.integration.test_search import searched

RISK = 0.1
DRAWS = 400_000
X, Y = np.arange(200.0)[:, None], np.arange(200) % 2


class Constant(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """It gives each record the same class: one is right where another is wrong, on half of all."""

    def __init__(self, value=0):
        self.value = value

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.value)


class Drawn:
    """A reservation of the search's test that draws anew in each release."""

    def __init__(self, curator, mechanism, reserved, noise):
        self.curator = curator
        self.mechanism = mechanism
        self.reserved = reserved
        self.noise = noise
        self.values: list[object] = []
        self.remaining = 1

    @property
    def noise_std(self):
        return self.std_of(self.reserved)

    def std_of(self, query):
        return noise_std(self.curator, self.mechanism, query)

    def release(self, query, **_):
        difference = float(self.std_of(query)[0]) * next(self.noise)
        return {"value": [difference]}


def offline(budget):
    search = searched(Constant(), {"value": [0, 1]}, budget=budget, verbose=0)
    curator = Curator.rehearsal(
        torch.zeros(200), unit="record", adjacency="replace-one", budget=budget
    )
    trainer = Trainer.of(search, X, Y)
    scoring = scoring_named("accuracy", None, Y)
    return search._problem(curator, trainer, scoring, None, split=False, whole=True)


def std_of(curator, mechanism, query):
    found = noise_std(curator, mechanism, query)
    assert found is not None
    return float(found[0])


def drawn(mechanism, query, curator, count):
    """So many draws of the noise of a release, as it is drawn and published."""
    law = mechanism.distribution(query.sensitivity(curator.adjacency), query.quanta(200))
    scale = np.full(count, law.scale[0] / law.grid[0])
    steps = mechanism.noise(np.zeros(count), scale, SeededEntropy(1))
    return mechanism.publish(steps, law, query.affine(200))[0]


@attack("A10")
def test_noise_alone_exceeds_the_threshold_with_the_stated_risk():
    """Within a twentieth, and never more often, by Laplace and Gaussian noise as it is drawn."""
    curator = offline(Budget.gdp(0.3)).curator
    query = ClippedMean(lambda *_: None, score_range=(-0.25, 0.25))
    kinds: list[Any] = [LaplaceMechanism, GaussianMechanism]
    for kind, risk in itertools.product(kinds, (0.02, 0.1, 0.5)):
        mechanism = next(priced(curator, [kind], 1.0))
        std = std_of(curator, mechanism, query)
        differences = drawn(mechanism, query, curator, DRAWS)
        threshold = exceeded(mechanism, std, risk)
        recommended = int((differences > threshold).sum())
        assert 0.95 * risk * DRAWS < recommended < 1.05 * risk * DRAWS
        assert binomtest(recommended, DRAWS, risk, alternative="greater").pvalue > LEVEL
        # A gain below what was told is the same event, whatever the true gain.
        for gain in (0.0, 0.01):
            told = gain + differences - threshold
            assert (told > gain).sum() == pytest.approx(recommended, abs=2)


@attack("A10")
@pytest.mark.parametrize("kind", [LaplaceMechanism, GaussianMechanism])
def test_a_candidate_that_is_no_better_is_recommended_with_the_stated_risk(kind):
    """Through the search: a clip of the whole width, whose noise is twice that of a score."""
    problem = offline(Budget.gdp(0.3))
    mechanism = next(priced(problem.curator, [kind], 1.0))
    query = problem.score_query()
    draws = drawn(mechanism, query, problem.curator, 1500)
    std = std_of(problem.curator, mechanism, query)
    test = Drawn(problem.curator, mechanism, query, iter((draws - query.origins()[0]) / std))
    one = problem.space.encode({"value": 1})
    recommended = 0
    for _ in range(1500):
        x, told = problem.recommend(test, one, RISK)
        assert told.clip == 1.0
        assert told.kept is (x is None) is (told.gain == 0.0)
        recommended += not told.kept
    assert binomtest(recommended, 1500, RISK).pvalue > LEVEL
    assert binomtest(recommended, 1500, 0.6 * RISK).pvalue <= LEVEL, "the test has no power"


def test_the_sentence_says_what_was_tested_and_what_was_not():
    kept = Recommendation({}, kept=True, risk=0.05, gain=0.0)
    assert str(kept) == (
        "your default model was kept: no candidate was shown to be better (risk 0.05)"
    )
    found = functools.partial(Recommendation, {"C": 2.0}, kept=False)
    shown = found(risk=0.1, gain=0.0123, difference=0.02, clip=0.25)
    assert str(shown) == (
        "recommended: C=2.0; at least 0.012 better than your model on the protected records, by"
        " differences clipped at 0.25 (risk 0.1)"
    )
    chosen = found(risk=0.1, clip=0.25)
    assert "C=2.0; better than your model" in str(chosen)
    alone = found(untested="strategy 'weighted_cv' makes no test")
    assert str(alone) == (
        "recommended: C=2.0; not tested against your model: strategy 'weighted_cv' makes no test"
    )


def test_a_bound_is_shown_rounded_down_and_names_what_its_sum_was_divided_by():
    for gain, shown in ((0.01451, "0.014"), (0.0955, "0.095"), (0.1386, "0.13"), (1.99, "1.9")):
        told = Recommendation({"a": 1}, False, 0.1, gain, clip=0.25)
        assert f"at least {shown} better" in str(told)
    assert "divided by 250" in str(dataclasses.replace(told, divisor=250.0))
