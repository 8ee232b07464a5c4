"""What a search cannot do is said before anything is reserved, and what it does not look at is not taken in silence."""

import numpy as np
import pytest
import scipy.sparse
import scipy.stats as st
import torch
from sklearn.datasets import make_classification
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score, make_scorer
from sklearn.tree import DecisionTreeClassifier

from dpbo import Adjacency, Budget, Curator, DPSearch, PrivacyUnit
from dpbo.curator import Ledger
from dpbo.errors import BudgetExceeded, InputError
from dpbo.integrations.tuning import strategies
from dpbo.integrations.tuning.tables import require_apart

X, Y = make_classification(900, 6, random_state=0)
TRAIN, VALIDATION = (X[:300], Y[:300]), (X[300:], Y[300:])
BUDGET = Budget(3.0, 1e-6)


def make(**changed):
    terms = {"budget": BUDGET, "n_iter": 3, "n_initial": 2, "param_distributions": {"max_depth": [1, 2, 3, 4]}}
    return DPSearch(**{"estimator": DecisionTreeClassifier(random_state=0), **terms, **changed})


def smooth(**changed):
    terms = {"estimator": LogisticRegression(), "param_distributions": {"C": st.loguniform(0.01, 1)}, "n_iter": 6}
    return {**terms, "strategy": "gibo", "scoring": "neg_log_loss", **changed}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scoring": make_scorer(f1_score), "score_range": (0.0, 1.0)}, "one real number a record"),
        ({"estimator": Ridge(), "param_distributions": {"alpha": [1.0, 2.0]}, "scoring": "neg_log_loss"}, "predict_proba"),
        (smooth(strategy_options={"clip": -1.0}), "clip="),
        (smooth(strategy_options={"nonsense": 1.0}), "strategy_options="),
        (smooth(strategy_options={"bounds": 1.0}), "strategy_options="),
        ({"name": "x" * 193}, "name="),
        ({"param_distributions": {"max_depth": [-1, -2]}}, "max_depth"),
        ({"param_distributions": {"max_depth": [-1, -2]}, "strategy": "grid", "n_iter": 2}, "max_depth"),
        ({"param_distributions": {"criterion": ["gini"]}}, "param_distributions="),
        ({"param_distributions": {"max_depth": [2], "criterion": ["gini"]}}, "param_distributions="),
        ({"param_distributions": {"ccp_alpha": st.uniform(0, -1)}}, "ccp_alpha="),
    ],
)
def test_nothing_is_reserved_for_what_cannot_work(changed, message, tmp_path):
    with pytest.raises(Exception, match=message):
        make(dataset="d", ledger=str(tmp_path / "l.db"), **changed).fit(*TRAIN, *VALIDATION)
    assert not (tmp_path / "l.db").exists() or Ledger.existing(str(tmp_path / "l.db")).head().seq == 0


@pytest.mark.parametrize(
    ("tables", "parameter"),
    [
        ((*TRAIN, VALIDATION[0], VALIDATION[1][:, None]), "y_val"), ((*TRAIN, VALIDATION[0][:, :4], VALIDATION[1]), "X_val"),
        ((*TRAIN, VALIDATION[0].tolist(), VALIDATION[1]), "X_val"), ((TRAIN[0].tolist(), TRAIN[1], X.tolist(), Y), "X_val"),
        ((*TRAIN, VALIDATION[0], VALIDATION[1].astype(str)), "y_val"),
    ],
    ids=["column", "width", "list", "lists", "words"],
)  # fmt: skip
def test_a_validation_table_of_another_form_is_refused(tables, parameter, tmp_path):
    with pytest.raises(InputError, match=f"^{parameter}="):
        make(dataset="d", ledger=str(tmp_path / "l.db")).fit(*tables)
    assert not (tmp_path / "l.db").exists()


def test_other_columns_are_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    with pytest.raises(InputError, match=r"^X_val="):
        make().fit(frame[:300], Y[:300], frame[list("abcdfe")][300:], Y[300:])


def test_what_would_not_be_looked_at_is_refused():
    curator = Curator(VALIDATION, unit=PrivacyUnit("p", groups=np.arange(600) // 2), adjacency=Adjacency.REPLACE_ONE, budget=BUDGET)
    with pytest.raises(InputError, match=r"^groups_train="):
        make(budget=0.5).fit(*TRAIN, curator, groups_train=np.arange(300))
    with pytest.raises(InputError, match=r"^y_val="):
        make(budget=0.5).fit(*TRAIN, curator, VALIDATION[1])
    with pytest.raises(InputError, match=r"^y_train="):
        make(test_size=0.5).fit(X)
    assert curator.ledger.head().seq == 0


@pytest.mark.attack("A20")
@pytest.mark.parametrize(
    ("groups", "trained"),
    [
        ([1, "b", 1], [1, 2, 2]),
        ([1, 2, 2], [1, "b", 1]),
        (np.array([1, 2, 2]), ["b", 1.0, 3]),
        (torch.tensor([1, 2, 2]), np.array(["b", 1, None], dtype=object)),
        (["a", 7, 7], np.array(["a", "c", "c"])),
    ],
)
def test_a_unit_on_both_sides_is_seen_whatever_stands_beside_its_label(groups, trained):
    """Made an array as a whole, 1 beside a word would become "1" on that side alone."""
    rows = np.zeros((3, 1))
    with pytest.raises(InputError, match=r"^groups_train="):
        require_apart(rows, rows.copy(), groups, trained)
    require_apart(rows, rows.copy(), groups, [10, 11, "12"])


@pytest.mark.parametrize(
    "labels", [[(1, 2), (3, 4), (5, 6)], [{1}, {2}, {3}], "abc", np.zeros((3, 2))], ids=["pairs", "sets", "word", "table"]
)
def test_what_is_no_label_a_record_is_refused_by_name_and_not_shown(labels):
    rows, good = np.zeros((3, 1)), [1, 2, 3]
    for name, given in (("groups", (labels, good)), ("groups_train", (good, labels))):
        with pytest.raises(InputError, match=rf"^{name}='\w+'") as caught:
            require_apart(rows, rows.copy(), *given)
        assert caught.value.__context__ is None


def test_a_name_that_begins_another_is_no_sign_that_a_search_has_begun():
    """It would reserve the last release of a search that cannot be paid for."""
    curator = Curator(VALIDATION, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=BUDGET)
    make(budget=0.9, name="a: b").fit(*TRAIN, curator)
    before = curator.ledger.head().seq
    with pytest.raises(BudgetExceeded):
        make(budget=0.5, name="a").fit(*TRAIN, curator)
    assert curator.ledger.head().seq == before


@pytest.mark.parametrize("strategy", ["bo", "turbo"])
def test_a_search_that_cannot_propose_is_refused_before_anything_is_reserved(strategy, tmp_path, monkeypatch):
    def failing(*_args, **_settings):
        raise RuntimeError("no neighbours")

    for name in ("next_point", "trust_region_point"):
        monkeypatch.setattr(strategies, name, failing)
    with pytest.raises(RuntimeError, match="no neighbours"):
        make(strategy=strategy, dataset="d", ledger=str(tmp_path / "l.db")).fit(*TRAIN, *VALIDATION)
    assert Ledger.existing(str(tmp_path / "l.db")).head().seq == 0


@pytest.mark.parametrize("strategy", ["bo", "turbo"])
def test_a_word_alone_beside_a_continuous_parameter_is_held(strategy):
    space = {"ccp_alpha": st.loguniform(1e-4, 1e-1), "criterion": ["gini"]}
    search = make(param_distributions=space, strategy=strategy, n_iter=4).fit(*TRAIN, *VALIDATION)
    assert search.best_params_["criterion"] == "gini"
    assert len(search.results_["params"]) == 4


@pytest.mark.parametrize("fixed", [[2], ["gini"]], ids=str)
def test_a_parameter_of_one_value_is_held(fixed):
    name = "min_samples_leaf" if fixed == [2] else "criterion"
    search = make(param_distributions={"max_depth": [1, 2, 3], name: fixed}, n_iter=4).fit(*TRAIN, *VALIDATION)
    assert search.best_params_[name] == fixed[0]


def test_sparse_tables_with_a_bad_record_and_a_number_of_numpys():
    broken = VALIDATION[0].copy()
    broken[7, 2] = np.inf
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.coo_matrix):
        search = make().fit(kind(TRAIN[0]), TRAIN[1], kind(broken), VALIDATION[1])
        assert search.best_score_ > 0.5, "the record alone counts as worst"
    assert make(test_size=np.int64(600)).fit(X, Y).statement().units == 600


def test_features_are_those_of_the_recommended_estimator():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    search = make()
    assert not hasattr(search, "n_features_in_")
    search.fit(frame[:300], Y[:300], frame[300:], Y[300:])
    assert search.n_features_in_ == 6
    assert search.feature_names_in_.tolist() == list("abcdef")
    assert not hasattr(make().fit(*TRAIN, *VALIDATION), "feature_names_in_")


def test_scikit_learns_own_checks():
    """All but those that ask for what a private search must not or cannot do."""
    from sklearn.utils.estimator_checks import check_estimator

    search = DPSearch(
        DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}, budget=Budget.gdp(50.0), n_iter=2, n_initial=2, test_size=0.5
    )
    lists, columns = "a list has no type of its own", "labels are one number or word a record"
    known = {"check_classifiers_train": lists, "check_supervised_y_2d": columns}
    known["check_fit_score_takes_y"] = "there are two tables"
    checks = check_estimator(search, expected_failed_checks=known, on_skip=None)
    assert sum(check["status"] == "passed" for check in checks) > 40


def test_a_search_in_which_nothing_can_be_fitted_still_states_what_it_spent():
    search = make(param_distributions={"max_depth": [-1, -2]}, error_score="worst")
    with pytest.warns(FitFailedWarning), pytest.raises(InputError, match=r"^error_score="):
        search.fit(*TRAIN, *VALIDATION)
    assert search.statement().units == 600
    assert len(search.results_["params"]) == 3
