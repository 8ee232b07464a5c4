"""DPSearch: familiar, resumable, and steered by nothing but releases."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from dpbo import Adjacency, Budget, Curator, DPSearch, PrivacyUnit
from dpbo.accounting import Planned
from dpbo.curator import Ledger
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.events import GaussianEvent
from dpbo.integrations.tuning import strategies
from dpbo.integrations.tuning.scorings import scoring_named
from dpbo.integrations.tuning.strategies import public_candidates
from dpbo.integrations.tuning.tables import split_once
from dpbo.mechanisms import NoNoise
from dpbo.space import Space
from dpbo.testing import SeededEntropy, replay

X, Y = make_classification(1600, 8, n_informative=5, random_state=0)
TRAIN, VALIDATION = (X[:400], Y[:400]), (X[400:], Y[400:])
BUDGET = Budget(3.0, 1e-6)
TREE = DecisionTreeClassifier(random_state=0)
MIXED = {"max_depth": scipy.stats.randint(1, 9), "ccp_alpha": scipy.stats.loguniform(1e-4, 1e-1), "criterion": ["gini", "entropy"]}
SMOOTH = {"logisticregression__C": scipy.stats.loguniform(1e-4, 1e2)}
LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression())


def sorted_names(changed):
    """Of a case: the same in every process, unlike objects' addresses."""
    return " ".join(sorted(changed))


def make(**changed):
    return DPSearch(**{"estimator": TREE, "param_distributions": MIXED, "budget": BUDGET, "n_iter": 8, "n_initial": 6, **changed})


def fitted(**changed):
    return make(**changed).fit(*TRAIN, *VALIDATION)


def test_it_finds_a_good_tree_in_a_mixed_space():
    search = fitted()
    assert search.best_params_["max_depth"] >= 3
    assert search.score(*VALIDATION) > 0.8
    assert search.best_score_ == pytest.approx(search.score(*VALIDATION), abs=6 * search.best_score_std_)
    assert len(search.results_["params"]) == len(search.results_["released_score"]) == 8
    assert set(search.results_) == {
        "params", "param_max_depth", "param_ccp_alpha", "param_criterion", "released_score", "noise_std", "posterior_mean",
    }  # fmt: skip
    assert search.predict(X[:3]).shape == (3,)
    assert search.predict_proba(X[:3]).shape == (3, 2)
    assert search.classes_.tolist() == [0, 1]
    assert str(search.statement().guarantee).startswith("(3.000, 1e-06)-DP")


@pytest.mark.parametrize("strategy", ["turbo", "saas"])
def test_other_ways_to_look_are_resumed_like_the_first(strategy, tmp_path):
    numbers = {name: spec for name, spec in MIXED.items() if name != "criterion"}
    terms = {"param_distributions": numbers, "strategy": strategy, "ledger": str(tmp_path / "l.db"), "dataset": "trees"}
    first = fitted(**terms)
    assert first.score(*VALIDATION) > 0.8
    again = fitted(**terms)
    assert again.best_params_ == first.best_params_
    assert again.best_score_ == first.best_score_
    with pytest.raises(LedgerMismatch):
        fitted(**{**terms, "strategy": "bo"})


def test_saas_knows_numbers_only():
    with pytest.raises(InputError, match="strategy='saas'"):
        fitted(strategy="saas")


@pytest.mark.parametrize("n_iter", [1, 2, 3])
def test_the_shortest_searches(n_iter):
    assert len(fitted(n_iter=n_iter, n_initial=1).results_["params"]) == n_iter


def test_it_is_an_estimator_like_others():
    search = make(random_state=3)
    assert clone(search).get_params()["random_state"] == 3
    assert clone(search).set_params(n_iter=5, estimator__max_depth=2).estimator.max_depth == 2
    assert not hasattr(search, "decision_function"), "a tree has none"
    with pytest.raises(NotFittedError):
        search.predict(X[:3])


def test_private_gradients_search_a_continuous_space():
    search = fitted(estimator=LOGISTIC, param_distributions=SMOOTH, strategy="gibo", scoring="neg_log_loss", n_iter=12)
    assert search.results_["released_gradient"].shape == (6, 1)
    assert search.best_params_["logisticregression__C"] > 1e-3
    assert -1.0 < search.best_score_ < 0.0


def test_a_private_choice_among_public_candidates():
    search = fitted(strategy="grid", n_iter=12)
    assert search.results_["chosen"].sum() == 1
    assert search.best_params_ == search.results_["params"][int(search.results_["chosen"].argmax())]
    assert search.score(*VALIDATION) > 0.8
    assert "released_score" not in search.results_


def test_candidates_of_a_small_space_of_lists_are_all_of_it():
    small = public_candidates(Space(a=[1, 2, 3], b=["x", "y"]), 10, 0)
    assert small.shape == (6, 2)
    assert len({tuple(x) for x in small.tolist()}) == 6
    assert len(public_candidates(Space(a=[1, 2, 3], b=["x", "y"]), 4, 0)) == 4
    assert len(public_candidates(Space(a=scipy.stats.uniform()), 7, 0)) == 7


@pytest.mark.parametrize("scoring", ["neg_log_loss", "balanced_accuracy", "f1", "roc_auc"])
def test_scorings_agree_with_scikit_learns(scoring):
    from sklearn.metrics import get_scorer

    search = fitted(scoring=scoring, budget=Budget.gdp(200.0), n_iter=6)
    bins = 0.02 if scoring == "roc_auc" else 0.0
    own = get_scorer(scoring)(search.best_estimator_, *VALIDATION)
    if scoring == "neg_log_loss":
        likelihood = search.predict_proba(VALIDATION[0])[np.arange(1200), VALIDATION[1]]
        own = np.log(np.maximum(likelihood, np.exp(-3.0))).mean()
    assert search.best_score_ == pytest.approx(own, abs=6 * search.best_score_std_ + bins)
    assert 0 < search.best_score_std_ < 0.01


def test_regression_and_a_scoring_of_ones_own():
    rng = np.random.default_rng(0)
    y = X @ rng.normal(size=8)
    for scoring, ends in (("neg_mean_squared_error", (-4.0, 0.0)), (within_one, (0.0, 1.0))):
        search = make(
            estimator=Ridge(), param_distributions={"alpha": scipy.stats.loguniform(1e-2, 1e5)}, scoring=scoring, score_range=ends
        )
        search.fit(X[:400], y[:400], X[400:], y[400:])
        assert search.best_params_["alpha"] < 1e4
    with pytest.raises(InputError, match="score_range"):
        make(estimator=Ridge(), param_distributions={"alpha": [1.0, 2.0]}, scoring=within_one).fit(*TRAIN, *VALIDATION)


def within_one(model, features, labels):
    return abs(model.predict(features) - labels) < 1


def test_one_table_is_split_once_and_the_statement_says_what_that_leaves():
    search = make(test_size=0.75).fit(X, Y)
    assert "only its validation part is protected" in str(search.statement())
    assert search.statement().units == 1200
    assert "only its validation part" not in str(fitted(n_iter=6).statement())
    with pytest.raises(InputError, match="test_size"):
        make().fit(X, Y)
    with pytest.raises(InputError, match="groups"):
        make(test_size=0.5).fit(X, Y, groups=np.arange(1600))
    with pytest.raises(InputError, match="adjacency"):
        make(test_size=0.5, adjacency="add-or-remove-one", divisor=800).fit(X, Y)


@pytest.mark.attack("A6")
def test_labels_do_not_decide_where_a_row_goes():
    rows, places = np.arange(60).reshape(60, 1), []
    for labels in (np.arange(60) % 2, np.arange(60) < 20, np.arange(60) % 3):
        trained, trained_y, held, held_y = split_once(rows, labels, 0.5, 3, Adjacency.REPLACE_ONE)
        assert (trained_y == labels[trained[:, 0]]).all()
        assert (held_y == labels[held[:, 0]]).all()
        places.append(held[:, 0].tolist())
    assert places[0] == places[1] == places[2]


def test_groups_are_protected_together_and_must_not_train():
    groups = np.arange(1200) // 4
    search = make(unit="patient").fit(*TRAIN, *VALIDATION, groups=groups, groups_train=np.arange(400) + 1000)
    assert "each patient of the validation records (300 of them" in str(search.statement())
    with pytest.raises(InputError, match="groups_train"):
        make().fit(*TRAIN, *VALIDATION, groups=groups, groups_train=groups[:400])


def test_add_or_remove_needs_a_public_divisor():
    assert "their number is private" in str(fitted(adjacency="add-or-remove-one", divisor=1200).statement())
    with pytest.raises(InputError, match="divisor"):
        fitted(adjacency="add-or-remove-one")


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"cv": 5}, "cv"), ({"refit": True}, "refit"), ({"strategy": "anneal"}, "strategy"), ({"final_share": 1.0}, "final_share"),
        ({"budget": 0.5}, "budget"), ({"n_iter": 0}, "n_iter"), ({"param_distributions": [MIXED]}, "param_distributions"),
        ({"random_state": None}, "random_state"), ({"scoring": "recall"}, "scoring"), ({"error_score": 0.0}, "error_score"),
        ({"strategy": "grid", "scoring": "f1"}, "scoring"), ({"strategy": "grid", "n_iter": 1}, "n_iter"),
        ({"strategy": "gibo", "scoring": "neg_log_loss"}, "strategy"), ({"strategy_options": {"clip": 1.0}}, "strategy_options"),
        ({"adjacency": "both"}, "adjacency"), ({"strategy": "grid", "budget": NoNoise(allow_not_private=True)}, "budget"),
        ({"strategy": "gibo", "estimator": LOGISTIC, "param_distributions": SMOOTH}, "scoring"),
        ({"strategy": "gibo", "estimator": LOGISTIC, "param_distributions": SMOOTH, "scoring": "neg_log_loss", "n_iter": 1}, "n_iter"),
    ],
    ids=sorted_names,
)  # fmt: skip
def test_what_is_refused_costs_nothing(changed, parameter, tmp_path):
    search = make(**changed, dataset="d", ledger=str(tmp_path / "l.db"))
    with pytest.raises(InputError, match=f"^{parameter}="):
        search.fit(*TRAIN, *VALIDATION)
    if (tmp_path / "l.db").exists():
        assert Ledger.existing(str(tmp_path / "l.db")).head().seq == 0, "nothing was reserved"


def test_why_folds_and_refit_are_refused():
    with pytest.raises(InputError, match="no bound on it is known"):
        make(cv=5).fit(*TRAIN, *VALIDATION)
    with pytest.raises(InputError, match="trained on the training records"):
        make(refit=True).fit(*TRAIN, *VALIDATION)
    with pytest.raises(InputError, match="X_val"):
        make().fit(*TRAIN, *TRAIN)


@pytest.mark.parametrize("scoring", ["accuracy", "neg_log_loss", "balanced_accuracy", "f1", "roc_auc"])
@pytest.mark.attack("A13")
def test_no_model_is_worse_than_any(scoring):
    scored = scoring_named(scoring, None, TRAIN[1])
    numbers = torch.from_numpy(np.asarray(scored(None, VALIDATION), dtype=np.float64))
    if scored.cells is None:
        assert numbers.isnan().all(), "which is clipped to the worst end"
    else:
        shares = (numbers[:, None] == torch.arange(scored.cells)).double().mean(0, keepdim=True)
        assert scored.observed(shares, 1e-8 * torch.ones_like(shares))[0].item() == pytest.approx(0.0, abs=1e-4)


def test_a_fit_that_fails_is_raised_or_counts_as_worst():
    unlucky = {"max_depth": [2, 4], "min_samples_split": [2, -7]}  # -7 is refused by the tree
    with pytest.raises(ValueError, match="min_samples_split"):
        fitted(param_distributions=unlucky)
    with pytest.warns(FitFailedWarning, match="counts as worst"):
        search = fitted(param_distributions=unlucky, error_score="worst", n_iter=8)
    assert search.best_params_["min_samples_split"] == 2
    worst = [
        score for p, score in zip(search.results_["params"], search.results_["released_score"], strict=True) if p["min_samples_split"] < 0
    ]
    assert worst == pytest.approx([0.0] * len(worst), abs=0.1)
    with pytest.raises(ValueError, match="Invalid parameter"):
        fitted(param_distributions={"depth": [1, 2]})


class Stop(Exception):
    pass


class Failing(DecisionTreeClassifier):  # type: ignore[misc]
    left = 7

    def fit(self, X, y):
        Failing.left -= 1
        if Failing.left == 0:
            raise Stop
        return super().fit(X, y)


def test_it_resumes_by_name_and_refuses_another_search_under_it(tmp_path):
    terms = {"dataset": "d", "ledger": str(tmp_path / "l.db"), "estimator": Failing(random_state=0)}
    with pytest.raises(Stop):
        fitted(**terms)
    first = fitted(**terms)
    assert len(first.results_["params"]) == 8
    entries = first.statement().entries
    again = fitted(**terms)
    assert again.statement().entries == entries, "nothing was charged anew"
    assert again.best_params_ == first.best_params_
    assert again.best_score_ == first.best_score_
    for changed in ({"scoring": "f1"}, {"random_state": 1}, {"param_distributions": {**MIXED, "criterion": ["gini"]}}, {"n_iter": 11}):
        with pytest.raises(LedgerMismatch):
            fitted(**{**terms, **changed})
    with pytest.raises(BudgetExceeded):
        fitted(**terms, name="another")


def test_a_share_of_a_curators_budget():
    curator = Curator(VALIDATION, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=BUDGET)
    make(budget=0.5, n_iter=6).fit(*TRAIN, curator)
    make(budget=0.5, strategy="grid", name="second").fit(*TRAIN, curator)
    with pytest.raises(BudgetExceeded):
        make(budget=0.1, name="third").fit(*TRAIN, curator)
    with pytest.raises(InputError, match="budget"):
        make().fit(*TRAIN, curator)
    with pytest.raises(InputError, match="groups"):
        make(budget=0.5).fit(*TRAIN, curator, groups=np.arange(1200))


def test_a_search_and_its_last_score_take_what_a_plan_lists_for_each():
    terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": BUDGET}
    curator = Curator(VALIDATION, **terms, accounting=Planned([GaussianEvent(12.0, 3), GaussianEvent(9.0)]))
    search = make(budget=1.0, n_iter=3).fit(*TRAIN, curator)
    assert search.best_score_std_ == pytest.approx(9.0 / 1200)
    assert search.results_["noise_std"] == pytest.approx(12.0 / 1200)
    assert str(curator.ledger.verify().total) == str(curator.ledger.cap)
    with pytest.raises(InputError, match="1 under a plan"):
        make(budget=0.5, n_iter=3, name="other").fit(*TRAIN, curator)


def test_a_baseline_without_privacy_says_so():
    search = fitted(budget=NoNoise(allow_not_private=True), n_iter=6)
    assert "not bounded" in str(search.statement())
    assert search.best_score_ == pytest.approx(search.score(*VALIDATION), abs=1e-6)
    assert fitted(final_share=None, n_iter=6).best_score_ is None


def test_data_frames_and_word_labels():
    pandas = pytest.importorskip("pandas")
    frame, words = pandas.DataFrame(X, columns=list("abcdefgh")), pandas.Series(np.where(Y == 1, "ill", "well"), index=np.arange(1600) + 7)
    for scoring in ("accuracy", "neg_log_loss", "f1", "balanced_accuracy"):
        search = make(scoring=scoring, n_iter=6).fit(frame[:400], words[:400], frame[400:], words[400:])
        assert set(search.predict(frame[:5])) <= {"ill", "well"}


NEIGHBOUR = (VALIDATION[0].copy(), VALIDATION[1].copy())
NEIGHBOUR[0][5], NEIGHBOUR[1][5] = 1e3, 1 - NEIGHBOUR[1][5]
TERMS: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": BUDGET}


def run(curator, _records, **changed):
    """What a reader of the search gets to see."""
    search = make(budget=0.9, **changed).fit(*TRAIN, curator)
    return search.best_params_, search.best_score_, search.best_score_std_, search.results_, search.best_estimator_


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"scoring": "f1"}, {"scoring": "roc_auc"}, {"strategy": "grid"}, {"strategy": "turbo"},
        {"strategy": "saas", "param_distributions": {"ccp_alpha": MIXED["ccp_alpha"]}},
        {"strategy": "gibo", "scoring": "neg_log_loss", "estimator": LOGISTIC, "param_distributions": SMOOTH},
    ],
    ids=["bo", "f1", "roc_auc", "grid", "turbo", "saas", "gibo"],
)  # fmt: skip
@pytest.mark.attack("A6")
@pytest.mark.attack("A7")
@pytest.mark.attack("A21")
def test_nothing_but_releases_steers_it(changed):
    replay(lambda curator, records: run(curator, records, **changed), VALIDATION, NEIGHBOUR, **TERMS, entropy=SeededEntropy(1))


@pytest.mark.attack("A6")
@pytest.mark.attack("A21")
def test_a_recommendation_by_raw_scores_is_seen(monkeypatch):
    """The mutant: among the evaluated points, the one whose exact validation score is highest."""
    records = [VALIDATION]

    def by_raw_scores(task):
        found = strategies.by_search(task)
        X = torch.stack([task.space.encode(p) for p in found.results["params"]])
        exact = [float(np.mean(task.scoring(task.trainer(x), records[0]))) for x in X]
        return found._replace(results={**found.results, "exact": np.array(exact)})

    from dpbo.integrations.tuning import estimator

    monkeypatch.setitem(estimator._STRATEGIES, "bo", by_raw_scores)

    def leaky(curator, own):
        records[0] = own
        return run(curator, own)

    with pytest.raises(AssertionError, match="depends on the records beyond what was released"):
        replay(leaky, VALIDATION, NEIGHBOUR, **TERMS, entropy=SeededEntropy(1))


@pytest.mark.attack("A21")
@pytest.mark.usefixtures("seeded_noise")
def test_the_public_side_never_gets_a_validation_record():
    """Everything the fits and the search's own model are given: training rows, and released values."""
    seen = []

    class Watched(DecisionTreeClassifier):  # type: ignore[misc]
        def fit(self, X, y):
            seen.append((X, y))
            return super().fit(X, y)

    search = fitted(estimator=Watched(random_state=0))
    assert all(np.array_equal(x, TRAIN[0]) and np.array_equal(y, TRAIN[1]) for x, y in seen)
    held = {id(part) for part in VALIDATION}
    assert not any(id(value) in held for value in vars(search).values())
    exact = [np.mean(clone(TREE).set_params(**p).fit(*TRAIN).predict(VALIDATION[0]) == VALIDATION[1]) for p in search.results_["params"]]
    assert not np.isclose(search.results_["released_score"], exact, rtol=0, atol=1e-12).any(), "only noised scores are kept"
