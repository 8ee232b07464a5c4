"""DPSearch: familiar, resumable, steered by nothing but releases, and handing on nothing that saw a
private record.
"""

import contextlib
import dataclasses
import functools
import math
import os
import pickle
import subprocess
import sys
import threading
import types
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    get_scorer,
    make_scorer,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from dpbo import Adjacency, Budget, Curator, DPSearch, Privacy, PrivacyUnit
from dpbo.accounting import Planned
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerMismatch,
    LedgerUnavailable,
    UsageError,
)
from dpbo.events import GaussianEvent
from dpbo.fingerprint import describe_estimator, describe_scoring
from dpbo.isolation import mute_warnings
from dpbo.ledger.ledger import Ledger
from dpbo.search import Auto, Choice, NoisedSearch, SearchResult, Strategy
from dpbo.search.public_scores import public_candidates
from dpbo.search.scorings import scoring_named
from dpbo.search.training import Tables, split_once
from dpbo.space import Space
from dpbo.testing import SeededEntropy, replay

X, Y = make_classification(1600, 8, n_informative=5, random_state=0)
TRAIN, VALIDATION = (X[:400], Y[:400]), (X[400:], Y[400:])
BUDGET = Budget(3.0, 1e-6)
TERMS: dict[str, Any] = {
    "unit": PrivacyUnit("record"),
    "adjacency": Adjacency.REPLACE_ONE,
    "budget": BUDGET,
    "allow_repeated": True,
}
TREE = DecisionTreeClassifier(random_state=0)
NUMBERS = {"max_depth": scipy.stats.randint(1, 9), "ccp_alpha": scipy.stats.loguniform(1e-4, 1e-1)}
# dear: proposals weigh every word of the list
MIXED = {**NUMBERS, "criterion": ["gini", "entropy"]}


SHORT = NoisedSearch(n_initial=6)
ALL = Choice(candidates=None)
NEAR = NoisedSearch(n_initial=6, trust_region=True)
OF_PRIVACY = {part.name for part in dataclasses.fields(Privacy)}


def searched(estimator, param_distributions, **settings):
    """A search whose settings of `Privacy` are given beside its own."""
    terms = {name: settings.pop(name) for name in OF_PRIVACY & settings.keys()}
    privacy = Privacy(**{"allow_repeated": True, **terms})
    return DPSearch(estimator, param_distributions, **settings, privacy=privacy)


def make(**changed):
    settings = {
        "estimator": TREE,
        "param_distributions": NUMBERS,
        "budget": BUDGET,
        "n_iter": 7,
        "strategy": SHORT,
    }
    return searched(**{**settings, **changed})


def fitted(**changed):
    return make(**changed).fit(*TRAIN, *VALIDATION)


def test_it_finds_a_good_tree_in_a_mixed_space():
    search = fitted(param_distributions=MIXED)
    assert search.best_params_["max_depth"] >= 3
    assert search.best_estimator_.score(*VALIDATION) > 0.8
    default = clone(TREE).fit(*TRAIN)
    exact = search.best_estimator_.score(*VALIDATION) - default.score(*VALIDATION)
    told = search.recommendation_
    assert told.clip == 1.0, "of a difference of right and wrong nothing is clipped"
    assert told.difference == pytest.approx(exact, abs=6 * told.noise_std)
    released = {"mean_test_score", "std_test_score", "rank_test_score"}
    assert set(search.results_) == {
        "params",
        "posterior_mean",
        *released,
        *(f"param_{name}" for name in MIXED),
    }
    assert {len(column) for column in search.results_.values()} == {7}
    assert search.cv_results_ is search.results_
    assert search.results_["params"][search.best_index_] == search.best_params_
    assert search.best_index_ == search.results_["posterior_mean"].argmax()
    assert search.results_["rank_test_score"][search.results_["mean_test_score"].argmax()] == 1
    assert (
        search.results_["param_max_depth"]
        == [parameters["max_depth"] for parameters in search.results_["params"]]
    ).all()
    assert search.predict_proba(X[:3]).shape == (3, 2)
    assert search.classes_.tolist() == [0, 1]
    assert str(search.statement().guarantee).startswith("(3.000, 1e-06)-DP")


def test_a_private_choice_among_all_public_candidates():
    search = fitted(strategy=ALL, param_distributions=MIXED, n_iter=12)
    results = search.results_
    assert results["chosen"].sum() == 1
    assert results["chosen"].argmax() == search.best_index_
    assert search.best_params_ == results["params"][search.best_index_]
    assert search.best_estimator_.score(*VALIDATION) > 0.8
    assert np.isnan(results["mean_test_score"]).all(), "the choice alone is released"
    assert results["rank_test_score"].mask.all()
    assert search.free_params_ is None, "nothing was cross-validated"


def test_candidates_are_all_points_of_a_small_space_and_else_different_ones():
    lists = Space(a=[1, 2, 3], b=["x", "y"])
    small = public_candidates(lists, 10, 0)
    assert small.shape == (6, 2)
    assert len({tuple(x) for x in small.tolist()}) == 6
    assert len(public_candidates(lists, 4, 0)) == 4
    assert len(public_candidates(Space(a=scipy.stats.uniform()), 7, 0)) == 7


def test_settings_of_a_strategy_are_set_and_copied_as_an_estimators_are():
    search = make(strategy=NoisedSearch()).set_params(strategy__n_initial=3)
    assert search.get_params()["strategy__n_initial"] == 3
    copied = clone(search)
    assert copied.strategy == NoisedSearch(n_initial=3)
    assert copied.strategy is not search.strategy
    named = make(strategy="auto").set_params(strategy__cells=4)
    assert named.strategy == Auto(cells=4), "also of a name"
    assert make().set_params(strategy="bo", strategy__n_initial=2).strategy.n_initial == 2
    for name in ("privacy__share", "budget__epsilon"):
        with pytest.raises(InputError, match=f"^{name}=0.5 .* given as {name.split('__')[0]}="):
            make().set_params(**{name: 0.5})


@dataclasses.dataclass(repr=False)
class FirstPoints(Strategy):
    """One private choice among the first k points of the space."""

    name = "first points"
    cross_validates = False
    k: int = 3

    def run(self, problem):
        points = list(problem.space.sample(self.k, seed=problem.seed))
        choice = problem.reserved_choice(problem.share)
        return SearchResult(problem.choose(choice, points, range(self.k)), points, {})


def test_a_strategy_of_ones_own_makes_one_private_choice_and_resumes_it():
    curator = Curator(VALIDATION, **TERMS)
    first = make(budget=0.3, strategy=FirstPoints()).fit(*TRAIN, curator)
    again = make(budget=0.3, strategy=FirstPoints()).fit(*TRAIN, curator)
    assert len(first.results_["params"]) == 3
    assert again.best_params_ == first.best_params_
    (charge,) = curator.ledger.charges("search: choice")
    assert charge.body["slots"][0]["query"] == "CandidateScores"
    with pytest.raises(LedgerMismatch, match="options"):
        make(budget=0.3, strategy=FirstPoints(k=4)).fit(*TRAIN, curator)


@dataclasses.dataclass(repr=False)
class Twice(FirstPoints):
    """Two choices, of which the second asks what the first did not."""

    second: str = "choice"

    def run(self, problem):
        points = list(problem.space.sample(3, seed=problem.seed))
        for part, rows in (("choice", [1, 2]), (self.second, [0, 1, 2])):
            choice = problem.reserved_choice(problem.share / 2, part)
            best = problem.choose(choice, points, rows)
        return SearchResult(best, points, {})


@dataclasses.dataclass(repr=False)
class Wrong(FirstPoints):
    """Its result has this in place of what `FirstPoints` found."""

    changed: Any = None

    def run(self, problem):
        found = super().run(problem)
        return found._replace(**self.changed) if self.changed else found.best


class Odd(FirstPoints):
    """Its place is a tensor, and three of its columns fit no configurations."""

    def run(self, problem):
        columns = {"mine": [1.0], "none": None, "parameters": [1, 2, 3], "kept": [1, 2, 3]}
        return super().run(problem)._replace(best=torch.tensor(1), columns=columns)


def test_a_second_question_never_gets_the_first_ones_answer():
    with pytest.raises(LedgerMismatch, match="details of release 1 of 'search: choice'"):
        fitted(strategy=Twice())
    curator = Curator(VALIDATION, **TERMS)
    make(budget=1.0, strategy=Twice(second="again")).fit(*TRAIN, curator)
    assert curator.ledger.used() == {"search: choice": 1, "search: again": 1}


def test_a_strategy_without_a_name_or_with_a_result_that_is_none_is_told():
    nameless = type("Nameless", (Strategy,), {"run": FirstPoints.run})
    with pytest.raises(InputError, match=r"strategy='Nameless' .* a class with a `name`"):
        fitted(strategy=nameless())
    with pytest.raises(InputError, match=r"the class Choice.* such as WeightedCV"):
        fitted(strategy=Choice)
    for changed, told in (
        ({"best": 3}, "a place among its 3 configurations"),
        (None, "run returned='int' .* a dpbo.search.SearchResult"),
    ):
        with pytest.raises(InputError, match=told):
            fitted(strategy=Wrong(changed=changed))
    with pytest.warns(UserWarning, match="needs one value for each of 3") as left_out:
        found = fitted(strategy=Odd())
    assert len(left_out) == 3
    assert found.best_index_ == 1
    assert found.results_["kept"] == [1, 2, 3]
    with pytest.raises(InputError, match=r"^part='pick: a'"):
        fitted(strategy=Twice(second="pick: a"))


SCORINGS = [
    "neg_log_loss",
    "roc_auc",
    "average_precision",
    make_scorer(f1_score, pos_label=0),
    make_scorer(average_precision_score, response_method="predict_proba"),
]


RIGHT = np.arange(1200), VALIDATION[1]


@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_scorings_agree_with_scikit_learns(scoring):
    """The released score; of a mean the released gain over a default model that is a stump."""
    stump = DecisionTreeClassifier(max_depth=1, random_state=0)
    search = fitted(estimator=stump, scoring=scoring, budget=Budget.gdp(200.0), n_iter=6)
    binned = str(scoring).startswith(("roc_auc", "average_precision", "make_scorer(average"))
    bins = 0.02 if binned else 0.0
    scorer = get_scorer(scoring) if isinstance(scoring, str) else scoring
    own = scorer(search.best_estimator_, *VALIDATION)
    told = search.recommendation_
    released = told.score
    if math.isnan(released):
        released = told.difference
        models = search.best_estimator_, stump.fit(*TRAIN)
        exact, other = (
            np.log(np.maximum(model.predict_proba(VALIDATION[0])[RIGHT], np.exp(-3.0)))
            for model in models
        )
        gained = exact - other
        own = np.clip(gained, -told.clip, told.clip).mean()
    assert released == pytest.approx(own, abs=6 * told.noise_std + bins)
    assert 0 < search.recommendation_.noise_std < 0.01


def test_regression_and_a_scoring_of_ones_own():
    rng = np.random.default_rng(0)
    y = X @ rng.normal(size=8)
    for scoring, ends in (
        ("neg_mean_squared_error", (-4.0, 0.0)),
        ("neg_mean_absolute_error", (-2.0, 0.0)),
        (within_one, (0.0, 1.0)),
    ):
        terms = {
            "param_distributions": {"alpha": scipy.stats.loguniform(1e-2, 1e5)},
            "scoring": scoring,
            "score_range": ends,
        }
        search = make(estimator=Ridge(), **terms).fit(X[:400], y[:400], X[400:], y[400:])
        assert search.best_params_["alpha"] < 1e4
    with pytest.raises(InputError, match="score_range"):
        make(estimator=Ridge(), param_distributions={"alpha": [1.0, 2.0]}, scoring=within_one).fit(
            *TRAIN, *VALIDATION
        )


def test_macro_f1_counts_no_class_that_training_lacks_and_a_model_that_fails_as_wrong():
    labels = np.random.default_rng(1).integers(0, 3, 500)
    model = types.SimpleNamespace(predict=lambda _: labels)
    scoring = scoring_named("f1_macro", None, labels)
    assert scoring.measure(model, None, np.full(500, 7)).tolist() == [-1] * 500
    wrong = scoring.measure(None, None, labels)
    assert not (wrong // 3 == wrong % 3).any()


@pytest.mark.parametrize("scoring", ["f1", "average_precision"])
def test_which_class_a_score_is_about_is_asked_for(scoring):
    names = np.where(Y == 1, "good", "bad")
    with pytest.raises(InputError, match="says which of"):
        make(scoring=scoring).fit(X[:400], names[:400], X[400:], names[400:])
    with pytest.raises(InputError, match=r"^pos_label=7"):
        make(scoring=make_scorer(f1_score, pos_label=7)).fit(*TRAIN, *VALIDATION)


@pytest.mark.parametrize(
    ("scoring", "classes"), [("roc_auc", 3), ("f1", 3), ("average_precision", 1), ("f1_macro", 101)]
)
def test_a_score_of_another_number_of_classes_is_refused_by_its_name(scoring, classes):
    with pytest.raises(InputError, match=f"^scoring='{scoring}' is not allowed.*{classes} classes"):
        scoring_named(scoring, None, np.arange(300) % classes)


def test_a_regressor_needs_a_score_and_is_told_so_though_nobody_wrote_the_default():
    search = make(estimator=Ridge(), param_distributions={"alpha": [0.1, 1.0]}, scoring="accuracy")
    with pytest.raises(UsageError, match=r"^accuracy, which DPSearch scores by unless scoring= is"):
        search.fit(*TRAIN, *VALIDATION)


def test_a_share_of_the_budget_leaves_the_rest_for_next_week(tmp_path):
    kept = {
        "dataset": "customers",
        "ledger": str(tmp_path / "l.db"),
        "strategy": "choice",
        "allow_repeated": False,
    }
    first = fitted(**kept, share=0.5, name="this week")
    spent = first.statement().spent.epsilon
    assert spent is not None
    assert 0 < spent <= 1.5
    second = fitted(**kept, share=0.5, name="next week", random_state=1)
    assert second.best_params_
    with pytest.raises(BudgetExceeded):
        fitted(**kept, share=0.1, name="a third")


def within_one(model, features, labels):
    return abs(model.predict(features) - labels) < 1


def test_one_table_is_split_once_and_the_statement_says_what_that_leaves():
    search = make(test_size=0.75).fit(X, Y)
    assert "no scaler" in search.statement().assumptions["rows-stand-alone"]
    assert "only its validation part is protected" in str(search.statement())
    assert search.statement().units == 1200
    assert "only its validation part" not in str(fitted(n_iter=6).statement())
    with pytest.raises(InputError, match="test_size"):
        make().fit(X, Y)
    with pytest.raises(InputError, match="groups"):
        make(test_size=0.5).fit(X, Y, groups=np.arange(1600))
    with pytest.raises(InputError, match="adjacency"):
        make(test_size=0.5, adjacency="add-or-remove-one", divisor=800).fit(X, Y)
    with pytest.raises(InputError, match="X_val"):
        make().fit(*TRAIN, *TRAIN)


@pytest.mark.attack("A6")
def test_labels_do_not_decide_where_a_row_goes():
    rows = np.arange(60).reshape(60, 1)
    places = []
    for labels in (np.arange(60) % 2, np.arange(60) < 20, np.arange(60) % 3):
        trained, trained_y, held, held_y = split_once(
            Tables(rows, labels, None, None), None, None, 0.5, 3, Adjacency.REPLACE_ONE
        )
        assert (trained_y == labels[trained[:, 0]]).all()
        assert (held_y == labels[held[:, 0]]).all()
        places.append(held[:, 0].tolist())
    assert places[0] == places[1] == places[2]


@pytest.mark.slip(
    "one table is split, by `test_size=` or by hand, and a protected cell decides a dtype",
    "the training rows take the dtypes that their own cells need",
)
@pytest.mark.attack("A34")
@pytest.mark.parametrize(
    ("table", "kind", "cells"),
    [
        pytest.param(np.array, int, (0, np.nan, 0.5), id="missing"),
        pytest.param(pd.Series, bool, (True, np.nan), id="missing bool in a frame"),
        pytest.param(np.array, str, ("0", "a much longer word"), id="longest word"),
    ],
)
@pytest.mark.parametrize("of_labels", [False, True])
def test_one_protected_cell_does_not_change_the_dtype_of_training_rows(
    table, kind, cells, of_labels
):
    """`categories_` and `classes_` of the model that is handed out told of it."""
    known = [kind(number % 2) for number in range(60)]
    tree = make_pipeline(OneHotEncoder(handle_unknown="ignore"), clone(TREE))
    told = set()
    for cell in cells:
        changed = [*known[:-1], cell]
        X, y = (known, changed) if of_labels else (changed, known)
        X, y = table(X), table(y)
        X = X.reshape(-1, 1) if table is np.array else X.to_frame("a")
        search = make(
            estimator=tree,
            param_distributions={"decisiontreeclassifier__max_depth": [1, 2]},
            strategy=Choice(candidates=None, risk=None),
            n_iter=2,
        ).fit(X[:40], y[:40], X[40:], y[40:])
        encoder, model = search.best_estimator_
        told.add(pickle.dumps((encoder.categories_, model.classes_)))
    assert len(told) == 1


def test_a_fit_that_fails_is_raised_or_counts_as_worst():
    unlucky = {"max_depth": [2, 4], "min_samples_split": [2, -7]}  # -7 is refused by the tree
    with pytest.raises(ValueError, match="min_samples_split") as raised:
        fitted(param_distributions=unlucky)
    assert any("DPSearch(error_score='worst')" in note for note in raised.value.__notes__)
    with pytest.warns(FitFailedWarning, match="counts as worst"):
        search = fitted(param_distributions=unlucky, error_score="worst", n_iter=8)
    assert search.best_params_["min_samples_split"] == 2
    results = zip(search.results_["params"], search.results_["mean_test_score"], strict=True)
    worst = [score for parameters, score in results if parameters["min_samples_split"] < 0]
    assert worst == pytest.approx([0.0] * len(worst), abs=0.1)


class Interrupted(DecisionTreeClassifier):  # type: ignore[misc]
    left = 7

    def fit(self, X, y):
        Interrupted.left -= 1
        if Interrupted.left == 0:
            raise KeyboardInterrupt
        return super().fit(X, y)


def test_it_resumes_by_name_and_refuses_another_search_under_it(tmp_path):
    terms = {
        "dataset": "d",
        "ledger": str(tmp_path / "l.db"),
        "estimator": Interrupted(random_state=0),
    }
    with pytest.raises(KeyboardInterrupt):
        fitted(**terms)
    first = fitted(**terms)
    assert len(first.results_["params"]) == 7
    entries = first.statement().entries
    again = fitted(**terms)
    assert again.statement().entries == entries, "nothing was charged anew"
    assert again.best_params_ == first.best_params_
    assert again.recommendation_ == first.recommendation_
    smaller = {**NUMBERS, "max_depth": scipy.stats.randint(1, 8)}
    for changed in (
        {"scoring": "f1"},
        {"random_state": 1},
        {"param_distributions": smaller},
        {"n_iter": 11},
        {"strategy": NEAR},
    ):
        with pytest.raises(LedgerMismatch):
            fitted(**{**terms, **changed})
    with pytest.raises(BudgetExceeded):
        fitted(**terms, name="another")


def test_a_share_of_a_curators_budget():
    curator = Curator(VALIDATION, **TERMS)
    make(budget=0.5, n_iter=6).fit(*TRAIN, curator)
    make(budget=0.5, strategy=ALL, name="second").fit(*TRAIN, curator)
    with pytest.raises(BudgetExceeded):
        make(budget=0.1, name="third").fit(*TRAIN, curator)
    with pytest.raises(BudgetExceeded):
        make(name="fourth").fit(*TRAIN, curator)  # a Budget that is the whole of the curator's
    with pytest.raises(InputError, match="groups"):
        make(budget=0.5).fit(*TRAIN, curator, groups=np.arange(1200))


def test_a_search_and_its_last_score_take_what_a_plan_lists_for_each():
    curator = Curator(
        VALIDATION, **TERMS, accounting=Planned([GaussianEvent(12.0, 3), GaussianEvent(9.0)])
    )
    search = make(budget=1.0, n_iter=3).fit(*TRAIN, curator)
    assert search.recommendation_.noise_std == pytest.approx(2 * 9.0 / 1200), "from -1 to 1"
    assert search.results_["std_test_score"] == pytest.approx(12.0 / 1200)
    assert str(curator.ledger.verify().total) == str(curator.ledger.cap)
    with pytest.raises(InputError, match="1 with accounting=Planned"):
        make(budget=0.5, n_iter=3, name="other").fit(*TRAIN, curator)


NEIGHBOUR = (VALIDATION[0].copy(), VALIDATION[1].copy())
NEIGHBOUR[0][5] = 1e3
NEIGHBOUR[1][5] = 1 - NEIGHBOUR[1][5]


def run(curator, _records, **changed):
    told: list[Any] = []
    search = make(budget=0.9, callbacks=told.append, **changed).fit(*TRAIN, curator)
    return (
        search.best_params_,
        str(search.recommendation_),
        search.results_,
        search.best_estimator_,
        told,
    )


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"param_distributions": MIXED}, id="bo"),
        pytest.param({"scoring": "f1"}, id="f1"),
        pytest.param({"strategy": ALL, "param_distributions": MIXED}, id="choice among all"),
        pytest.param({"strategy": NEAR}, id="trust region"),
    ],
)
@pytest.mark.attack("A6", "A7", "A21")
def test_nothing_but_releases_steers_it(changed):
    replay(
        lambda curator, records: run(curator, records, **changed),
        VALIDATION,
        NEIGHBOUR,
        **TERMS,
        entropy=SeededEntropy(1),
    )


def power(model, X, y, p=1):
    return abs(model.predict(X) - y) ** p


def test_what_the_ledger_keeps_of_an_estimator_and_a_scoring_tells_them_apart():
    for one, other in (
        (MLPClassifier((10,)), MLPClassifier((500,))),
        (
            LogisticRegression(class_weight={0: 1, 1: 5}),
            LogisticRegression(class_weight={0: 5, 1: 1}),
        ),
        (
            Pipeline([("c", DecisionTreeClassifier(splitter="random"))]),
            Pipeline([("c", ExtraTreeClassifier(splitter="random"))]),
        ),
    ):
        assert describe_estimator(one) != describe_estimator(other), one
        assert describe_estimator(one) == describe_estimator(one.__sklearn_clone__())
    assert describe_scoring(lambda m, X, y: y) != describe_scoring(lambda m, X, y: -y)
    assert describe_scoring(functools.partial(power, p=2)) != describe_scoring(
        functools.partial(power, p=1)
    )


def test_another_process_describes_a_search_in_the_same_words(capsys):
    code = (
        "from dpbo.fingerprint import describe_estimator as e, describe_scoring as s\nfrom"
        " sklearn.pipeline import Pipeline\nfrom sklearn.preprocessing import"
        " FunctionTransformer\nf = lambda m, X, y: [v in {'a', 'b', 'c'} for v in"
        " y]\nprint(e(Pipeline([('t', FunctionTransformer(f)), ('c', None)])), s(f))"
    )
    exec(code, {"__name__": "__main__"})
    other = {**os.environ, "PYTHONHASHSEED": "12345"}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=other
    ).stdout
    assert told == capsys.readouterr().out


class Remembering(DecisionTreeClassifier):  # type: ignore[misc]
    """As those do that cache what they predict, or draw from a random state as they transform."""

    def predict(self, X):
        self.seen_ = np.array(X)
        return super().predict(X)


class Unique(Remembering):
    """It cannot be copied."""

    def fit(self, X, y):
        self.lock_ = threading.Lock()
        return super().fit(X, y)


class Same(Remembering):
    """Its copy is itself."""

    def __deepcopy__(self, _memo):
        return self


@pytest.mark.attack("A21")
def test_the_model_that_saw_private_records_is_never_handed_on():
    for kind, strategy in ((Remembering, SHORT), (Remembering, ALL), (Unique, ALL), (Same, ALL)):
        best = fitted(estimator=kind(random_state=0), strategy=strategy, n_iter=3).best_estimator_
        assert not hasattr(best, "seen_"), (kind, strategy)
        assert kind is Unique or X[-1].tobytes() not in pickle.dumps(best), (kind, strategy)


class Telling(DecisionTreeClassifier):  # type: ignore[misc]
    def predict(self, X):
        warnings.warn(f"unknown category {X[0, 0]}", stacklevel=2)
        return super().predict(X)


@pytest.mark.attack("A21")
def test_warnings_on_private_records_are_muted_until_the_last_thread_leaves():
    """With `catch_warnings` the first thread to leave would let the other one's warnings be heard
    again.
    """
    model = Telling().fit(*TRAIN)
    scored = scoring_named("accuracy", None, TRAIN[1])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with contextlib.ExitStack() as other:
            with mute_warnings():
                other.enter_context(mute_warnings())
            warnings.warn("muted for the other's sake", stacklevel=1)
        assert warnings.filters == before
        scored(model, VALIDATION)
        assert shown == []
        warnings.warn("heard", stacklevel=1)
        assert len(shown) == 1


@pytest.mark.attack("A21")
def test_a_ledgers_password_is_not_shown():
    for url in (
        "postgresql://u:hunter2@host/db",
        f"postgresql://u@host/db?x={'x' * 300}&password=hunter2",
    ):
        search = clone(make(dataset="d", ledger=url))
        assert search.privacy.ledger == url
        shown = [
            repr(search),
            repr(search.privacy),
            str(search),
            *search._repr_mimebundle_().values(),
        ]
        assert not any("hunter2" in text for text in shown)
    with pytest.raises(LedgerUnavailable) as unreachable:
        Ledger.open(
            "postgresql+psycopg://u@127.0.0.1:9/db"
            "?password=hunter2&sslpassword=hunter2&connect_timeout=2"
        )
    assert "hunter2" not in str(unreachable.value)
