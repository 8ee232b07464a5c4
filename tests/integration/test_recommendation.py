"""The test that a recommendation passes, at its worst case: a candidate whose clipped scores differ
from the default model's by nothing in the mean.
"""

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.base import BaseEstimator, ClassifierMixin

from dpbo import Budget, Curator
from dpbo.curator.pricing import noise_std, priced
from dpbo.errors import LedgerMismatch, ReleaseLost
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.queries import ClippedMean
from dpbo.search import Choice
from dpbo.search.problem import Problem
from dpbo.search.recommendation import Recommendation, exceeded
from dpbo.search.scorings import scoring_named
from dpbo.search.training import Trainer
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.contracts.mechanism_contract import LEVEL
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
        return noise_std(self.curator.ledger, self.mechanism, query)

    def release(self, query, **_):
        std = self.std_of(query)
        return {"value": (std * next(self.noise)).tolist(), "variance": (std**2).tolist()}


def offline(budget):
    search = searched(Constant(), {"value": [0, 1]}, budget=budget, verbose=0)
    curator = Curator.rehearsal(
        torch.zeros(200), unit="record", adjacency="replace-one", budget=budget
    )
    trainer = Trainer.of(search, X, Y)
    scoring = scoring_named("accuracy", None, Y)
    return Problem.of(search._task(trainer, scoring, None, split=False), curator, Fraction(1))


def std_of(curator, mechanism, query):
    found = noise_std(curator.ledger, mechanism, query)
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
        mechanism = next(priced(curator.ledger, [kind], 1.0))
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
    mechanism = next(priced(problem.curator.ledger, [kind], 1.0))
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


def test_a_bound_is_shown_rounded_down_and_names_what_its_sum_was_divided_by():
    for gain, shown in ((0.01451, "0.014"), (0.0955, "0.095"), (0.1386, "0.13"), (1.99, "1.9")):
        told = Recommendation({"a": 1}, False, 0.1, gain, clip=0.25)
        assert f"at least {shown} better" in str(told)
    assert "divided by 250" in str(dataclasses.replace(told, divisor=250.0))


ALL_ONES = np.ones(200, dtype=np.int64)


def found(labels, budget=50.0, **settings):
    """A search of which class to say where half of the public records have each."""
    groups = settings.pop("groups", None)
    given = {"budget": Budget(budget, 1e-6), "verbose": 0, "n_iter": 2, **settings}
    search = searched(Constant(), {"value": [0, 1]}, **given)
    return search.fit(X, Y, X + 0.5, labels, groups=groups)


def test_a_choice_that_keeps_the_default_model_gains_nothing_and_without_a_risk_it_is_no_test():
    # At the default risk a candidate that is no better is chosen with probability up to .1.
    strategy = Choice(risk=1e-6)
    kept = found(1 - ALL_ONES, strategy=strategy)
    assert kept.recommendation_.kept
    assert kept.best_gain_ == 0.0
    chosen = found(ALL_ONES, strategy=strategy)
    assert not chosen.recommendation_.kept
    assert math.isnan(chosen.best_gain_)
    assert [each.recommendation_.untested for each in (kept, chosen)] == ["", ""]
    untested = found(ALL_ONES, strategy=Choice(risk=None)).recommendation_
    assert str(untested) == (
        "recommended: value=1; not tested against your model: a choice with risk=None makes no test"
    )


def test_the_released_number_is_not_called_the_gain():
    told: list[Any] = []
    search = found(ALL_ONES, callbacks=told.append)
    (line,) = [str(each) for each in told if each.part == "test"]
    shown = search.recommendation_
    assert f"noised gain, before the margin, {shown.difference:.4g}" in line
    assert shown.gain < shown.difference


def test_a_resumed_search_is_tested_by_the_clip_and_the_noise_of_the_ledger():
    problem = offline(Budget.gdp(0.3))
    one = problem.space.encode({"value": 1})
    assert problem.clip(one) == 1.0
    query = problem.score_query()
    mechanism = next(priced(problem.curator.ledger, [LaplaceMechanism], 1.0))
    stored: Any = Drawn(problem.curator, mechanism, query, iter(()))
    row = {"details": {"x": one.tolist(), "clip": 0.5}, "value": [0.3], "variance": [0.01]}
    stored.values.append(row)
    stored.remaining = 0
    stored.release = lambda *_, **details: row if details == row["details"] else None
    _, told = problem.recommend(stored, one, RISK)
    assert (told.clip, told.difference) == (0.5, pytest.approx(0.3))
    assert told.noise_std == pytest.approx(0.1)
    assert told.gain == pytest.approx(0.3 - 0.1 / math.sqrt(2) * math.log(5), rel=1e-5)


class Lost(Drawn):
    """Charged, and never delivered."""

    def release(self, query, **_):
        raise ReleaseLost("gone")


@pytest.mark.parametrize("scoring", ["accuracy", "f1"])
def test_a_test_whose_release_is_lost_is_told_as_that(scoring):
    problem = dataclasses.replace(offline(Budget.gdp(0.3)), scoring=scoring_named(scoring, None, Y))
    query = problem.score_query()
    mechanism = next(priced(problem.curator.ledger, [GaussianMechanism], 1.0))
    one = problem.space.encode({"value": 1})
    x, told = problem.recommend(Lost(problem.curator, mechanism, query, iter(())), one, RISK)
    lost = "the release was charged and lost, and is never drawn again"
    if scoring == "accuracy":
        assert x is None
        assert str(told) == f"your default model was kept: {lost}"
        assert (told.gain, told.risk) == (0.0, None)
    else:
        assert x is one
        assert str(told).endswith(f"is no mean of one number per record; {lost}")


@dataclasses.dataclass(repr=False)
class OlderChoice(Choice):
    """As an earlier version had it, under the same name."""

    handicap: float = 4.0


def test_a_search_begun_with_other_options_of_its_strategy_is_refused_uncharged(tmp_path):
    file = str(tmp_path / "l.db")
    kept = {"dataset": "older", "ledger": file, "allow_repeated": True}
    found(ALL_ONES, strategy=OlderChoice(), **kept)
    ledger = Ledger.open(file)
    before = ledger.head()
    with pytest.raises(LedgerMismatch, match="Another version of dpbo began this search"):
        found(ALL_ONES, strategy=Choice(), **kept)
    assert ledger.head() == before
