"""DPSearch on few records: rehearsed on public ones, paid for once."""

import dataclasses
import math
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss
from sklearn.tree import DecisionTreeClassifier

import dpbo
from dpbo import Budget, Curator, Privacy, PrivacyUnit
from dpbo.accounting import GDPFilter, PureFilter
from dpbo.errors import InputError, UsageError
from dpbo.objective import NoiseWarning
from dpbo.search import Auto, Choice, WeightedCV, rehearsal
from dpbo.search.problem import Problem
from dpbo.search.public_scores import Features, PublicScores
from dpbo.search.recommendation import clip_of, exceeded
from dpbo.search.scorings import scoring_named
from dpbo.search.training import Trainer
from dpbo.testing import SeededEntropy, replay
from tests.integration.test_search import searched

RANDOM = np.random.default_rng(0)
BUDGET = Budget(1.0, 1e-6)
PAIRED = Choice(candidates=4, largest_difference=0.1)
FOUR_CELLS = WeightedCV(cells=4)


def population(count, share):
    """Records of two overlapping classes; `share` of the second one."""
    y = (RANDOM.random(count) < share).astype(int)
    return RANDOM.normal(size=(count, 4)) + 0.8 * y[:, None], y


TRAIN, PROTECTED, TEST = population(600, 0.2), population(300, 0.8), population(3000, 0.8)
SPACE = {
    "class_weight": [{0: 1.0, 1: w} for w in (0.25, 1.0, 4.0, 16.0)],
    "C": scipy.stats.loguniform(1e-3, 1e2),
}


def make(**changed):
    settings = {"budget": BUDGET, "n_iter": 6, "scoring": "true_class_probability"}
    return searched(LogisticRegression(), SPACE, **{**settings, **changed})


# Laplace noise is beyond six standard deviations once in 5,000 runs.
@pytest.mark.usefixtures("seeded_noise")
def test_it_tunes_for_the_protected_population_where_the_free_choice_does_not():
    """Of the public records a fifth is of the second class, of the protected ones four fifths."""
    search = make().fit(*TRAIN, *PROTECTED)
    probability = scoring_named("true_class_probability", None, TRAIN[1])

    def score(parameters):
        return probability(LogisticRegression(**parameters).fit(*TRAIN), TEST).mean()

    assert score(search.best_params_) > score(search.free_params_) + 0.05
    told = search.recommendation_
    chosen: list[dict[str, Any]] = [search.best_params_, {}]
    models = [LogisticRegression(**each).fit(*TRAIN) for each in chosen]
    gained = np.subtract(*[probability(model, PROTECTED) for model in models])
    clipped = np.clip(gained, -told.clip, told.clip).mean()
    assert told.clip == 0.25
    assert told.difference == pytest.approx(clipped, abs=6 * told.noise_std)
    # of Laplace noise: its scale is the standard deviation over sqrt(2)
    scale = 2 * 0.25 / (300 * 0.5)
    assert told.noise_std == pytest.approx(scale * math.sqrt(2))
    assert told.gain == pytest.approx(told.difference - scale * math.log(1 / 0.2))
    assert search.best_gain_ == told.gain > 0.0
    assert math.isnan(search.best_score_), "no score is released"
    assert str(search.statement().guarantee).startswith("(1.000, 0.0)-DP")
    assert len(search.results_["cv_score"]) == len(search.results_["params"]) == 7
    sentence = (
        f"; at least {told.gain:.2g} better than your model on the protected records, by"
        " differences clipped at 0.25 (risk 0.1)"
    )
    for shown in (search, told, search.statement()):
        assert str(shown).endswith(sentence)


def test_the_default_model_stays_where_nothing_is_better_and_gains_nothing():
    """The protected records are of one class of which the default model is sure."""
    sure = LogisticRegression(C=1e2, class_weight={0: 1.0, 1: 16.0})
    worse = {"C": [1e-4, 1e-3], "class_weight": [None]}
    ones = TEST[0][TEST[1] == 1][:300]
    search = searched(
        sure, worse, n_iter=4, budget=Budget(3.0, 1e-6), scoring="true_class_probability"
    ).fit(*TRAIN, ones, np.ones(len(ones), dtype=int))
    assert search.best_index_ == 0
    assert search.best_params_ == {"C": 1e2, "class_weight": {0: 1.0, 1: 16.0}}
    assert search.best_gain_ == 0.0
    kept = "your default model was kept: no candidate was shown to be better (risk 0.1)"
    assert str(search).endswith(f"\n{kept}")
    assert search.statement().recommended == kept
    assert "search: test" in search.statement().to_json()


WAYS = [
    pytest.param(FOUR_CELLS, id="weighted_cv"),
    pytest.param(PAIRED, id="choice"),
    pytest.param("auto", id="auto"),
]


@pytest.mark.parametrize("strategy", WAYS)
@pytest.mark.attack("A6", "A7", "A21")
def test_nothing_but_releases_steers_it(strategy):
    other = (
        np.concatenate([[[9.0] * 4], PROTECTED[0][1:]]),
        np.concatenate([[1 - PROTECTED[1][0]], PROTECTED[1][1:]]),
    )

    def run(curator, _records):
        make(strategy=strategy, budget=0.8).fit(*TRAIN, curator)

    terms: dict[str, Any] = {
        "unit": PrivacyUnit("record"),
        "adjacency": "replace-one",
        "budget": BUDGET,
        "accounting": GDPFilter(),
        "allow_repeated": True,
    }
    replay(run, PROTECTED, other, **terms, entropy=SeededEntropy(1))


@pytest.mark.attack("A21")
def test_no_fit_sees_a_protected_record():
    allowed = {row.tobytes() for row in TRAIN[0]}
    strangers = list[Any]()

    class Watched(LogisticRegression):  # type: ignore[misc]
        def fit(self, X, y):
            strangers.extend(row for row in np.asarray(X) if row.tobytes() not in allowed)
            return super().fit(X, y)

    for strategy in (PAIRED, FOUR_CELLS, "auto", "bo"):
        search = make(strategy=strategy)
        search.estimator = Watched()
        search.fit(*TRAIN, *PROTECTED)
    assert not strangers, "also the reference comes from training records alone"


def test_few_records_drawn_alike_are_told_to_cross_validate():
    found = dpbo.rehearse(
        LogisticRegression(),
        SPACE,
        *TRAIN,
        units=50,
        budget=Budget(0.2, 0.0),
        n_iter=8,
        scoring="true_class_probability",
        shift=0.0,
    )
    assert found.free_wins
    free = found.method("free")
    assert free.gain == free.alike
    assert "Nothing needs to be released" in str(found)
    curator = Curator(
        PROTECTED,
        unit=PrivacyUnit("record"),
        adjacency="replace-one",
        budget=Budget(0.2, 1e-6),
        allow_repeated=True,
    )
    search = make(budget=1.0, strategy=Auto(shift=0.0)).fit(*TRAIN, curator)
    assert search.rehearsal_.free_wins
    assert search.best_params_ == search.free_params_
    assert not curator.ledger.used(), "nothing is released"


def test_a_rehearsal_without_records_agrees_with_the_search_in_each_adjacency():
    settings: dict[str, Any] = {"n_iter": 6, "scoring": "true_class_probability"}
    found = dpbo.rehearse(LogisticRegression(), SPACE, *TRAIN, units=300, budget=BUDGET, **settings)
    assert found.methods == make(adjacency="replace-one").fit(*TRAIN, *PROTECTED).rehearsal_.methods
    settings["privacy"] = Privacy(adjacency="add-or-remove-one")
    other = dpbo.rehearse(LogisticRegression(), SPACE, *TRAIN, units=300, budget=BUDGET, **settings)
    names = {method.strategy.name for method in other.methods}
    assert names == {"free", "weighted_cv", "choice", "auto"}
    assert not other.free_wins, "they may differ"
    with pytest.raises(InputError, match=r"^shift="):
        dpbo.rehearse(LogisticRegression(), SPACE, *TRAIN, units=300, budget=BUDGET, shift=-1.0)


def scored(scores, described, labels, features=None):
    """Public scores of candidates without points."""
    points = torch.empty(len(scores) - 1, 0, dtype=torch.float64)
    return PublicScores(
        points=points, scores=scores, features=features, described=described, labels=labels
    )


def offline(public, units, budget=BUDGET):
    """A problem with these public scores of range 1, whose protected records are not there."""
    accounting = PureFilter() if budget.mu is None else GDPFilter()
    curator = Curator.rehearsal(
        torch.zeros(units),
        unit="record",
        adjacency="replace-one",
        budget=budget,
        accounting=accounting,
    )
    search = make(budget=budget)
    trainer = Trainer.of(search, *TRAIN)
    scoring = scoring_named("true_class_probability", None, TRAIN[1])
    problem = Problem.of(search._task(trainer, scoring, None, split=False), curator, Fraction(1))
    return dataclasses.replace(problem, public=public)


def test_the_simulation_draws_what_the_mechanisms_draw():
    """Gains of the private methods, simulated by hand from one population with the same budget:
    4,000 draws against the rehearsal's.
    """
    means = np.array([0.0, 0.02, -0.03, 0.01])
    gains = (
        means[:, None] + 0.2 * RANDOM.standard_normal((4, 2000)) * np.array([0, 1, 1, 1])[:, None]
    )
    gains += means[:, None] - gains.mean(1, keepdims=True)
    public = scored(gains, np.zeros((2000, 1)), np.zeros(2000, dtype=np.int64))
    budget = Budget(2.0, 0.0)
    problem = offline(public, units=500, budget=budget)
    plain, paired = Choice(4, None, None), Choice(4, 0.1, None)
    tested = Auto(first="choice")
    strategies = [plain, paired, tested]
    found = rehearsal.simulate(
        [(each, each.simulated(problem)) for each in strategies],
        public,
        units=500,
        shift=0.0,
        seed=0,
        detectable=0.0,
    )
    simulated = {repr(method.strategy): method.gain.mean for method in found.methods}
    draws = 4000

    def sampled(c):
        kept = np.clip(gains, -c, c)
        return np.stack([kept[:, RANDOM.integers(0, 2000, 500)].mean(1) for _ in range(draws)])

    def tell(strategy, chosen):
        expected = means[chosen].mean()
        error = means[chosen].std() / np.sqrt(rehearsal.POPULATIONS // 3 * rehearsal.DRAWS)
        assert simulated[repr(strategy)] == pytest.approx(expected, abs=5 * error)

    for strategy, c, reach in ((plain, 1.0, 1.0), (paired, 0.1, 0.2)):
        noise = 2 / 2.0 / 500 * reach * RANDOM.exponential(size=(draws, 4))
        tell(strategy, (sampled(c) + noise).argmax(1))
    samples = sampled(0.25)
    noise = 2 / 1.0 / 500 * 0.5 * RANDOM.exponential(size=(draws, 3))
    proposed = 1 + (samples[:, 1:] + noise).argmax(1)
    clips = clip_of(gains, 1.0)[proposed]
    by_clip = {c: sampled(c) for c in set(clips.tolist())}
    gained = np.array(
        [by_clip[c][i, row] for i, (c, row) in enumerate(zip(clips, proposed, strict=True))]
    )
    scale = 2 * clips / 500
    shown = gained + scale * RANDOM.laplace(size=draws) > scale * math.log(1 / 0.2)
    tell(tested, np.where(shown, proposed, 0))


def test_the_gain_that_is_said_to_be_detectable_is_found_eight_times_in_ten():
    gains = np.zeros((3, 1000))
    gains[1:] = 0.1
    problem = offline(scored(gains, np.zeros((1000, 1)), np.zeros(1000, dtype=np.int64)), 400)
    for budget, law in ((Budget(1.0, 0.0), scipy.stats.laplace), (Budget.gdp(0.3), None)):
        problem = offline(problem.public, 400, budget)
        detectable = Auto(first="choice").rehearsal(problem).detectable
        mechanism, std = problem.test_noise(Fraction(1, 2))
        noise = (scipy.stats.norm if law is None else law)(scale=0.25 * std)
        if law is not None:
            noise = law(scale=0.25 * std / math.sqrt(2))
            assert detectable == pytest.approx(2 * 0.25 * math.log(1.25 / 0.1) / (400 * 0.5))
        threshold = 0.25 * exceeded(mechanism, std, 0.1)
        assert noise.sf(threshold) == pytest.approx(0.1, rel=1e-4)
        assert noise.sf(threshold - detectable) == pytest.approx(0.8, rel=1e-4)


def test_a_clip_is_a_quarter_of_the_range_or_more_and_hides_no_few_large_differences():
    gains = np.zeros((4, 1000))
    gains[1, :50] = 0.9
    gains[2, :500] = 0.1
    # right and wrong: any clip tells the same, and the widest tells it in the score's own units
    gains[3, :300] = 1.0
    gains[3, 300:500] = -1.0
    assert clip_of(gains, 1.0).tolist() == [1.0, 0.5, 0.25, 1.0]
    rare = np.zeros((1, 1000))
    rare[0, :50] = -0.9
    rare[0, 50:] = 0.04
    assert clip_of(rare, 1.0).tolist() == [1.0], "at a quarter it would seem to gain"


def test_weights_recover_a_population_that_differs_by_its_labels():
    """From exact shares of a large population with other shares of labels: its mean scores, up to
    the public sample's error.
    """
    X, y = population(20_000, 0.2)
    scores = np.stack(
        [np.where(y == 1, 0.9, 0.1), np.where(y == 1, 0.2, 0.8)]
    ) + 0.1 * RANDOM.standard_normal((2, 20_000))
    features = Features(y, classifier=True)
    public = scored(scores, np.column_stack([X[:, 0], y]), features.codes(y), features)
    cells, shares = public.cells(4)
    other = population(20_000, 0.7)
    inside = cells.cells(np.column_stack([other[0][:, 0], other[1]]))[:, None] == np.arange(
        len(cells.leaves)
    )
    released = inside.mean(0)
    found = shares.means(scores) @ shares.shrunk(released, 0.0, 1e9)
    assert found == pytest.approx([0.7 * 0.9 + 0.3 * 0.1, 0.7 * 0.2 + 0.3 * 0.8], abs=0.01)
    assert shares.shrunk(released, 10.0, 100.0) == pytest.approx(shares.share, abs=1e-3), (
        "noise that drowns the shares: the public ones"
    )


def test_brier_and_the_true_class_probability_are_scikit_learns():
    for labels in (TRAIN[1], RANDOM.integers(0, 3, 600)):
        model = LogisticRegression().fit(TRAIN[0], labels)
        brier, likely = (
            scoring_named(name, None, labels)
            for name in ("neg_brier_score", "true_class_probability")
        )
        predicted = model.predict_proba(TRAIN[0])
        expected = (
            brier_score_loss(labels, predicted[:, 1])
            if len(model.classes_) == 2
            else (((predicted - np.eye(3)[labels]) ** 2).sum(1).mean())
        )
        scores = brier(model, (TRAIN[0], labels))
        assert -scores.mean() == pytest.approx(expected)
        assert brier.bounds[0] <= scores.min()
        assert scores.max() <= 0.0
        assert likely(model, (TRAIN[0], labels)) == pytest.approx(predicted[np.arange(600), labels])
        unseen = likely(model, (TRAIN[0][:1], np.array([7])))
        assert unseen.tolist() == [0.0]


def test_tables_words_and_groups_are_rehearsed():
    frame = pd.DataFrame(TRAIN[0], columns=list("abcd"))
    words = np.where(TRAIN[1] == 1, "yes", "no")
    protected = (
        pd.DataFrame(PROTECTED[0], columns=list("abcd")),
        np.where(PROTECTED[1] == 1, "yes", "no"),
    )
    tree = searched(
        DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3, 5]}, budget=BUDGET, n_iter=4
    ).fit(
        frame,
        words,
        *protected,
        groups=np.arange(300) // 2,
        groups_train=1000 + np.arange(600) // 3,
    )
    assert set(tree.classes_) == {"no", "yes"}


@pytest.mark.attack("A9", "A26")
def test_one_odd_label_in_a_list_moves_no_other_record_to_another_cell():
    features = Features(TRAIN[1], classifier=True)
    model = LogisticRegression().fit(*TRAIN)
    labels = PROTECTED[1].tolist()
    for odd in ("x", None, 1.5, 2**70):
        moved = features(model, PROTECTED[0], [odd, *labels[1:]])
        assert np.array_equal(moved[1:], features(model, PROTECTED[0], labels)[1:]), odd
    assert np.array_equal(features(model, PROTECTED[0], labels), features(model, *PROTECTED))


def test_a_default_configuration_that_cannot_be_fitted_is_refused():
    search = make(error_score="worst")
    search.estimator = LogisticRegression(C=-1.0)
    with pytest.raises(InputError, match=r"^estimator="), pytest.warns(FitFailedWarning):
        search.fit(*TRAIN, *PROTECTED)


def test_a_model_that_cannot_be_copied_is_never_a_reference():
    class Locked(LogisticRegression):  # type: ignore[misc]
        def fit(self, X, y):
            self.lock_ = threading.Lock()
            return super().fit(X, y)

    search = make()
    search.estimator = Locked()
    search.fit(*TRAIN, *PROTECTED)
    assert math.isnan(search.best_gain_)
    assert not math.isnan(search.best_score_)
    assert "not tested against your model: your model cannot" in str(search)
    assert "largest_difference" not in search.statement().to_json()


def test_a_score_that_cannot_be_rehearsed_and_one_that_has_large_noise_are_warned_of():
    """And what an earlier fit of the same search found is gone."""
    search = make(n_iter=4).fit(*TRAIN, *PROTECTED)
    assert search.rehearsal_ is not None
    with (
        pytest.warns(
            UserWarning, match="strategy='auto' cannot rehearse scoring='roc_auc'"
        ) as told,
        pytest.warns(
            NoiseWarning,
            match="each score by scoring='roc_auc' will have noise of standard deviation about",
        ),
    ):
        search.set_params(scoring="roc_auc", budget=Budget(3.0, 1e-6)).fit(*TRAIN, *PROTECTED)
    assert {warning.filename for warning in told} == {__file__}
    assert search.rehearsal_ is search.free_params_ is None
    little = Budget(0.4, 1e-6)
    curator = Curator(
        PROTECTED, unit="record", adjacency="replace-one", budget=little, allow_repeated=True
    )
    hides = r"deviation about .*which hides any difference. Nothing"
    for auto in ("auto", Auto()):
        with (
            pytest.warns(UserWarning, match="cannot rehearse"),
            pytest.raises(UsageError, match=hides),
        ):
            make(n_iter=4, strategy=auto, scoring="roc_auc", budget=1.0).fit(*TRAIN, curator)
    assert not curator.ledger.used()
    assert not curator.spent.epsilon
    # little noise: no warning
    make(n_iter=4, strategy="bo", scoring="roc_auc", budget=Budget.gdp(100.0)).fit(
        *TRAIN, *PROTECTED
    )


class Drawn:
    """An object that can be drawn from, and has no quantiles."""

    def rvs(self, random_state=None):
        return float(10 ** random_state.uniform(-3, 2))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            [{"solver": ["lbfgs"], "C": [0.01, 1.0]}, {"class_weight": SPACE["class_weight"]}],
            id="several dicts",
        ),
        pytest.param({"C": Drawn(), "class_weight": SPACE["class_weight"]}, id="rvs"),
    ],
)
def test_candidates_need_no_space(given):
    search = make()
    search.param_distributions = given
    search.fit(*TRAIN, *PROTECTED)
    assert search.best_estimator_.get_params().items() >= search.best_params_.items()
    columns = {name for name in search.results_ if name.startswith("param_")}
    assert columns >= {"param_C", "param_class_weight"}
    assert len(search.results_["params"]) == 7
    if isinstance(given, list):
        assert search.results_["param_C"].mask.any(), "of the other dict"


def test_rare_classes_and_useless_parameters_are_no_crash():
    y = TRAIN[1].copy()
    y[0] = 2
    search = make(n_iter=3, scoring="neg_brier_score").fit(TRAIN[0], y, PROTECTED[0], PROTECTED[1])
    assert search.classes_.tolist() == [0, 1, 2]
    useless = searched(LogisticRegression(), {"max_iter": [200, 300, 400]}, budget=BUDGET, n_iter=4)
    useless.fit(*TRAIN, *PROTECTED)
    assert {method.strategy.name for method in useless.rehearsal_.methods} == {
        "free",
        "choice",
        "auto",
    }
    with pytest.raises(InputError, match=r"^strategy='weighted_cv' .*nothing can be chosen"):
        useless.set_params(strategy="weighted_cv").fit(*TRAIN, *PROTECTED)
