"""What scikit-learn's users expect of a search: its columns, workers, progress, callbacks, and
clear refusals of what cannot be had.
"""

import contextlib
import io
import math
import re
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import dpbo
from dpbo import Budget, Curator, progress
from dpbo.errors import InputError
from dpbo.ledger import Ledger
from dpbo.search import NoisedSearch, SearchRelease
from dpbo.search.results import results_table
from dpbo.search.scorings import scoring_named
from dpbo.testing import SeededEntropy
from tests.integration.test_search import TERMS, TRAIN, VALIDATION, make

DEPTHS = {"max_depth": scipy.stats.randint(1, 9)}


SCORED: list[int] = []  # in this process; a worker has lists of its own
FITTED: list[int] = []


class Watched(DecisionTreeClassifier):  # type: ignore[misc]
    def fit(self, X, y):
        FITTED.append(self.max_depth)
        return super().fit(X, y)

    def predict(self, X):
        if len(X) == len(VALIDATION[0]):
            SCORED.append(self.max_depth)
        return super().predict(X)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def made(**changed):
    return make(
        **{
            "param_distributions": DEPTHS,
            "n_iter": 3,
            "strategy": NoisedSearch(n_initial=2),
            "verbose": 0,
            **changed,
        }
    )


def fitted(**changed):
    return made(**changed).fit(*TRAIN, *VALIDATION)


# joblib's workers, since Python 3.12
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.attack("A21")
def test_workers_find_the_same_and_protected_records_stay_in_this_process():
    unlucky = {"max_depth": [2, 4], "min_samples_split": [2, -7]}  # -7 is refused by the tree
    for settings in (
        {"strategy": "choice", "param_distributions": unlucky, "error_score": "worst", "n_iter": 4},
        {},
    ):
        found = []
        fits = []
        for n_jobs in (None, 2):
            SCORED.clear()
            FITTED.clear()
            curator = Curator(VALIDATION, **TERMS, entropy=SeededEntropy(1))
            warned = (
                pytest.warns(FitFailedWarning, match="counts as worst")
                if "error_score" in settings
                else contextlib.nullcontext()
            )
            with warned:
                search = made(
                    estimator=Watched(random_state=0), budget=1.0, n_jobs=n_jobs, **settings
                ).fit(*TRAIN, curator)
            found.append(repr((SCORED, search.results_, search.best_score_, search.best_params_)))
            fits.append(len(FITTED))
        assert SCORED, settings
        assert fits[1] < fits[0], "the others are fitted by the workers"
        assert found[0] == found[1], settings


def test_a_table_of_results_has_scikit_learns_columns():
    table = results_table(
        [{"sizes": (1, 2)}, {"sizes": (3, 4)}, {"sizes": None}],
        score=[0.1, 0.3, 0.1],
        noise_std=[0.1] * 3,
    )
    names = ("param_sizes", "params", "mean_test_score", "std_test_score", "rank_test_score")
    assert (*table,)[:5] == names
    assert [*table["param_sizes"]] == [(1, 2), (3, 4), None]
    assert [*table["rank_test_score"]] == [2, 1, 2]
    with pytest.raises(AttributeError, match="not fitted"):
        _ = make().cv_results_


@pytest.mark.attack("A21")
def test_verbose_shows_released_values_and_no_times(monkeypatch, capsys):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    for verbose, lines in ((0, 0), (2, 4)):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", terminal := Terminal())
            search = fitted(verbose=verbose)
            fitted(verbose=verbose, strategy="choice")
        said = capsys.readouterr().out
        assert ("public cross-validation: 4" in said) is (verbose == 2), "also into a file"
        told = [line for line in said.splitlines() if line.startswith(("search", "test"))]
        assert len(told) == lines
        assert ("cross-validation: " in terminal.getvalue()) is (verbose > 0)
        assert not re.search(r"\d:\d\d|it/s|s/it", terminal.getvalue())
        for line, score, depth in zip(
            told,
            search.results_["mean_test_score"],
            search.results_["param_max_depth"],
            strict=False,
        ):
            assert f"/3: score {score:.4g}, noise " in line
            assert line.endswith(f"max_depth={depth}")


def test_callbacks_are_told_each_release_and_may_end_the_search(tmp_path):
    told: list[SearchRelease] = []

    def stop(release):
        return release.number == 2

    kept = {"ledger": tmp_path / "l.db", "dataset": "trees", "allow_repeated": False, "n_iter": 5}
    search = fitted(callbacks=[told.append, stop], **kept)
    assert [release.part for release in told] == ["search", "search", "test"]
    assert [(release.number, release.planned) for release in told] == [(1, 5), (2, 5), (1, 1)]
    assert [release.score for release in told[:2]] == search.results_["mean_test_score"].tolist()
    assert [release.noise_std for release in told[:2]] == search.results_["std_test_score"].tolist()
    tested = search.recommendation_
    assert (told[2].score, told[2].noise_std) == (tested.difference, tested.noise_std)
    assert told[2].parameters in search.results_["params"]
    told.clear()
    again = fitted(callbacks=told.append, **kept)
    assert [release.number for release in told] == [
        3,
        4,
        5,
    ], "what was planned is resumed; the test was made"
    assert len(again.results_["params"]) == 5
    for strategy, part in (("choice", "choice"), ("weighted_cv", "cells")):
        told.clear()
        fitted(strategy=strategy, callbacks=told.append)
        (release,) = told
        assert (release.part, release.score) == (part, None)
        assert bool(release.parameters) is (part == "choice"), "cells are of no configuration"
        assert ("shares of the protected records" in str(release)) is (part == "cells")


def test_a_model_without_probabilities_is_scored_by_the_order_of_its_decisions():
    search = fitted(
        estimator=RidgeClassifier(),
        param_distributions={"alpha": scipy.stats.loguniform(1e-2, 1e4)},
        scoring="roc_auc",
        budget=Budget.gdp(100.0),
    )
    exact = roc_auc_score(VALIDATION[1], search.decision_function(VALIDATION[0]))
    assert search.best_score_ == pytest.approx(
        exact, abs=0.03 + 6 * search.recommendation_.noise_std
    )
    model = search.best_estimator_
    scored = scoring_named("roc_auc", None, TRAIN[1])
    X, y = VALIDATION[0][:50].copy(), VALIDATION[1][:50]
    before = scored(model, (X, y))
    for extreme in (1e300, -1e300):
        X[0] = extreme
        after = scored(model, (X, y))
        assert 0 <= after.min() <= after.max() < 32, "one of the cells, whatever the decision value"
        assert np.array_equal(after[1:], before[1:])


def test_what_cannot_be_had_is_refused_with_the_way():
    with pytest.raises(InputError, match=r"^budget=0.5 .* for a share give X_val=Curator\("):
        fitted(budget=0.5)
    for name, told in (
        ("sample_weight", "class_weight=.*scoring of your own"),
        ("check_input", "when you make it"),
    ):
        with pytest.raises(InputError, match=f"^{name}=.*{told}"):
            make().fit(*TRAIN, *VALIDATION, **{name: np.ones(400)})
    for name in ("bounds", "cv", "refit"):
        with pytest.raises(TypeError, match=name):
            make(**{name: 3})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_epsilon_that_is_next_to_no_privacy_gives_the_least_noise_that_is_drawn():
    """Some set it to switch privacy off: nothing is refused, and no more is spent."""
    budget = Budget(1e4, 1e-6)
    for strategy in ("auto", "choice", "bo"):
        search = fitted(budget=budget, strategy=strategy)
        told = search.recommendation_
        # of 1,200 records, differences of accuracy: at a noise multiplier of 0.01 about 2e-5
        assert told.noise_std < 1e-3 or strategy == "choice" or told.kept, strategy
        spent = search.statement().spent.epsilon
        assert spent is None or spent <= 1e4, strategy
    (_, *rest) = dpbo.plan(1000, budget, evaluations=3).strategies
    assert rest


MODELS = Pipeline([("model", DecisionTreeClassifier(random_state=0))])
EITHER = [
    {"model": [LogisticRegression()], "model__C": scipy.stats.loguniform(1e-3, 1e2)},
    {"model": [DecisionTreeClassifier(random_state=0)], "model__max_depth": [1, 2, 5]},
]


def test_a_list_of_dicts_may_be_about_several_models():
    """As in scikit-learn; each dict sets what only its own model has."""
    search = fitted(estimator=MODELS, param_distributions=EITHER, n_iter=6, strategy="choice")
    assert set(search.best_params_) <= {"model", "model__C", "model__max_depth"}
    assert isinstance(search.best_estimator_, Pipeline)


class Small(LogisticRegression):  # type: ignore[misc]
    """Its default cannot be fitted to all training records, and to folds of them it can."""

    def fit(self, X, y):
        if self.C == 1.0 and len(X) > 0.9 * len(TRAIN[0]):
            raise ValueError("too many records")
        return super().fit(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")
def test_a_default_that_is_too_small_for_all_records_is_met_before_a_release(tmp_path):
    """What was reserved was lost to a search that could never end."""
    url = str(tmp_path / "l.db")
    terms = {
        "estimator": Small(),
        "param_distributions": {"C": [0.01, 0.1, 0.5]},
        "scoring": "true_class_probability",
        "error_score": "worst",
        "strategy": "auto",
        "dataset": "d",
        "ledger": url,
    }
    with pytest.raises(InputError, match=r"^estimator=.* to all training records"):
        fitted(**terms)
    kinds = {record.kind for record in Ledger.open(url).records()}
    assert not kinds & {"reserve", "charge"}


def test_a_search_whose_first_release_is_lost_goes_on_with_its_test(tmp_path, monkeypatch):
    """The test was reserved and could neither be drawn nor paid for again."""
    terms = {
        "strategy": "auto",
        "n_iter": 6,
        "scoring": "neg_brier_score",
        "dataset": "d",
        "ledger": str(tmp_path / "l.db"),
    }

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dpbo.curator.curator.sampled", dies)
        with pytest.raises(KeyboardInterrupt):
            fitted(**terms)
    parts = list[str]()
    search = fitted(**terms, callbacks=lambda release: parts.append(release.part))
    assert parts == ["test"]
    assert not (math.isnan(search.best_gain_) and math.isnan(search.best_score_))


def test_labels_may_be_one_column():
    """As scikit-learn takes them; it ended in a score of shape (5, 5)."""
    column, table = TRAIN[1][:, None], pd.DataFrame({"label": VALIDATION[1]})
    search = made().fit(TRAIN[0], column, VALIDATION[0], table)
    assert search.recommendation_.clip == 1.0


def both_near(model, X, y):
    return -np.abs(model.predict(X) - y).mean(1)


@pytest.mark.parametrize(("strategy", "kind"), [("auto", pd.DataFrame), ("bo", np.asarray)])
def test_a_score_of_ones_own_may_read_labels_of_several_columns(strategy, kind):
    labels = [kind(np.stack([y, 1 - y], axis=1)) for y in (TRAIN[1], VALIDATION[1])]
    settings = {"scoring": both_near, "score_range": (-1.0, 0.0), "strategy": strategy}
    tree = DecisionTreeRegressor(random_state=0)
    search = made(estimator=tree, **settings).fit(TRAIN[0], labels[0], VALIDATION[0], labels[1])
    assert search.predict(TRAIN[0]).shape == (len(TRAIN[0]), 2)
    # the model that is recommended is near the labels
    assert both_near(search.best_estimator_, TRAIN[0], np.asarray(labels[0])).mean() > -0.4


def test_a_protected_label_of_several_columns_decides_no_refusal():
    labels = [np.stack([y, 1 - y], axis=1).astype(float) for y in (TRAIN[1], VALIDATION[1])]
    odd = labels[1].astype(object)
    odd[7, 1] = "x"
    tree = DecisionTreeRegressor(random_state=0)
    search = made(estimator=tree, scoring=both_near, score_range=(-1.0, 0.0), strategy="choice")
    search.fit(TRAIN[0], labels[0], VALIDATION[0], odd)
    assert search.recommendation_ is not None


def test_labels_of_several_columns_are_numbers():
    words = np.array([["a", "b"]] * len(TRAIN[1]))
    with pytest.raises(InputError, match=r"^y_train=.*public list of its classes"):
        made(scoring=both_near, score_range=(-1.0, 0.0)).fit(TRAIN[0], words, *VALIDATION)


class Other:
    """A table of another library, as it says so itself."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def to_pandas(self):
        return self.table


def polars_frame(table):
    return pytest.importorskip("polars").DataFrame(np.asarray(table))


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (Other, r"by \.to_pandas\(\)"),
        (lambda table: polars_frame(table).lazy(), r"polars\.LazyFrame.* by \.collect\(\)"),
    ],
)
def test_tables_of_other_libraries_are_refused_with_the_call_that_converts_them(kind, call):
    with pytest.raises(InputError, match=rf"^X_val=.*{call}"):
        made().fit(*TRAIN, kind(VALIDATION[0]), VALIDATION[1])
    with pytest.raises(InputError, match=rf"^X_train=.*{call}"):
        made().fit(kind(TRAIN[0]), TRAIN[1], *VALIDATION)
    for records, named in ((kind(TRAIN[0]), "records"), ((TRAIN[0], kind(TRAIN[1])), "records")):
        with pytest.raises(InputError, match=rf"^{named}=.*{call}"):
            Curator(records, **TERMS)


def test_records_of_one_public_person_are_in_one_fold():
    people = np.arange(400) // 40
    scores = [
        made(strategy="choice").fit(*TRAIN, *VALIDATION, groups_train=labels).results_["cv_score"]
        for labels in (None, people, people)
    ]
    assert not np.array_equal(scores[0], scores[1]), "drawn by person"
    assert np.array_equal(scores[1], scores[2])


def test_a_model_without_probabilities_is_told_of_the_way_to_them():
    with pytest.raises(InputError, match="CalibratedClassifierCV"):
        fitted(
            estimator=RidgeClassifier(),
            param_distributions={"alpha": [0.1, 1.0, 10.0]},
            scoring="neg_brier_score",
        )


class Tells:
    """A callback of scikit-learn's, from 1.9 on."""

    def __init__(self):
        self.told = list[str]()

    def setup(self, *_, **__):
        self.told.append("setup")

    def teardown(self, *_, **__):
        self.told.append("teardown")

    on_fit_task_begin = on_fit_task_end = on_fit_begin = on_fit_end = setup


def test_scikit_learns_callbacks_are_for_the_estimator_alone():
    """Its fits are public; the search's own would be told scores before their noise."""
    assert not hasattr(made(), "set_callbacks")
    model = LogisticRegression()
    tells = Tells()
    if not hasattr(model, "set_callbacks"):
        pytest.skip("scikit-learn before 1.9 has no callbacks")
    space = {"C": scipy.stats.loguniform(1e-2, 1e1)}
    fitted(estimator=model.set_callbacks(tells), param_distributions=space)
    assert "teardown" in tells.told
