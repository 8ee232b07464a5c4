"""A search says what it cannot do before anything is reserved, and refuses what it would not look
at.
"""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.stats as st
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, f1_score, make_scorer
from sklearn.utils.estimator_checks import check_estimator

from dpbo import Adjacency, Budget, Curator, Privacy, PrivacyUnit
from dpbo.errors import BudgetExceeded, InputError
from dpbo.ledger import Ledger
from dpbo.mechanisms import NoNoise
from dpbo.search import Auto, NoisedSearch, WeightedCV, strategies
from tests.integration.test_search import (
    ALL,
    BUDGET,
    MIXED,
    TERMS,
    TRAIN,
    TREE,
    VALIDATION,
    X,
    Y,
    make,
    searched,
)

FRAME_COLUMNS = list("abcdefgh")
FEW = NoisedSearch(n_initial=2)
NEARBY = NoisedSearch(n_initial=2, trust_region=True)
EXACT = NoNoise(allow_not_private=True)
RIDGE = {"estimator": Ridge(), "param_distributions": {"alpha": [0.1, 1.0]}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"param_distributions": "max_depth", "strategy": ALL}, "^param_distributions="),
    ({"strategy": NoisedSearch(risk=0.6)}, "^risk="),
    ({"strategy": Auto(first="bo")}, "^first="),
    ({"param_distributions": [MIXED]}, "^param_distributions=.* with strategy 'bo'"),
    ({"strategy": ALL, "scoring": "f1"}, "^scoring="),
    ({"strategy": ALL, "mechanism": EXACT}, "^mechanism="),
    ({"param_distributions": {"max_depth": [-1, -2]}, "strategy": ALL, "n_iter": 2}, "max_depth"),
    ({"param_distributions": {"max_depth": [2], "criterion": ["gini"]}}, "param_distributions="),
    ({"param_distributions": {"ccp_alpha": st.uniform(0, -1)}}, "ccp_alpha="),
    ({"param_distributions": {}}, "^param_distributions="),
    ({"param_distributions": [{}]}, "^param_distributions="),
    ({"strategy": WeightedCV(cells=4), "scoring": "f1"}, "^scoring="),
    ({"strategy": WeightedCV(cells=1)}, "^cells="),
    ({"strategy": "auto", "n_iter": 1}, "^n_iter="),
    ({"adjacency": "add-or-remove-one"}, "^divisor="),
    # of the other kind of estimator
    ({"scoring": "neg_mean_absolute_error"}, "^scoring="),
    ({**RIDGE, "scoring": "neg_brier_score"}, "^scoring="),
    ({**RIDGE, "scoring": make_scorer(f1_score)}, "^scoring="),
    # several, and a function of scikit-learn that compares labels
    ({"scoring": {"accuracy": "accuracy", "f1": "f1"}}, "^scoring="),
    ({"scoring": accuracy_score}, "^scoring="),
    # as Optuna and Lightning call theirs
    ({"callbacks": lambda study, trial: None}, "^callbacks="),
    ({"callbacks": 3}, "^callbacks=.*a function of one SearchRelease"),
    ({"random_state": None}, "^random_state="),
    ({"n_jobs": 0}, "^n_jobs=0 .* -1 for all processors"),
    ({"verbose": 3}, "^verbose=3"),
]


def short(**changed):
    return make(
        **{
            "n_iter": 3,
            "strategy": FEW,
            "param_distributions": {"max_depth": [1, 2, 3, 4]},
            **changed,
        }
    )


def test_nothing_is_reserved_for_what_cannot_work(tmp_path):
    for i, (changed, message) in enumerate(REFUSED):
        file = tmp_path / f"{i}.db"
        with pytest.raises(Exception, match=message):
            make(dataset="d", ledger=str(file), **changed).fit(*TRAIN, *VALIDATION)
        kinds = (
            {record.kind for record in Ledger.open(str(file)).records()} if file.exists() else set()
        )
        assert kinds <= {"birth", "assume"}, changed


def test_a_validation_table_of_another_form_and_unused_arguments_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=FRAME_COLUMNS)
    rows, labels = VALIDATION
    for parameter, tables in (
        ("y_val", (*TRAIN, rows, np.stack([labels, labels], axis=1))),
        ("X_val", (*TRAIN, rows[:, :4], labels)),
        ("X_val", (TRAIN[0].tolist(), TRAIN[1], X.tolist(), Y)),
        ("X_val", (frame[:400], TRAIN[1], frame[FRAME_COLUMNS[1:]][400:], labels)),
        ("X_val", (frame[:400], TRAIN[1], rows, labels)),
        ("X_train", (frame[:400].astype("Float64"), TRAIN[1], frame[400:], labels)),
    ):
        with pytest.raises(InputError, match=f"^{parameter}"):
            short(dataset="d", ledger=str(tmp_path / "l.db")).fit(*tables)
    assert not (tmp_path / "l.db").exists()
    curator = Curator(
        VALIDATION,
        unit=PrivacyUnit("p", groups=np.arange(1200) // 2),
        adjacency=Adjacency.REPLACE_ONE,
        budget=BUDGET,
    )
    with pytest.raises(InputError, match=r"^groups_train=.*one label for each of the 400"):
        short(budget=0.5).fit(*TRAIN, curator, groups_train=np.arange(399))
    with pytest.raises(InputError, match=r"^groups_train=.*present for every record"):
        short().fit(*TRAIN, *VALIDATION, groups_train=np.where(np.arange(400), 1.0, np.nan))
    with pytest.raises(InputError, match=r"^groups_train=.*left out with one table"):
        short(test_size=0.5).fit(*TRAIN, groups_train=np.arange(400))
    with pytest.raises(InputError, match=r"^y_val="):
        short(budget=0.5).fit(*TRAIN, curator, VALIDATION[1])
    with pytest.raises(InputError, match=r"^y_train="):
        short(test_size=0.5).fit(X)
    assert curator.ledger.head().seq == 0
    search = short(budget=0.5, strategy="choice", allow_repeated=False)
    with pytest.warns(UserWarning, match="is not compared with the groups of the Curator"):
        search.fit(*TRAIN, curator, groups_train=np.arange(400))


def test_a_name_that_begins_another_is_no_sign_that_a_search_has_begun():
    """It would reserve the last release of a search that cannot be paid for."""
    curator = Curator(VALIDATION, **TERMS)
    short(budget=0.9, name="a: b").fit(*TRAIN, curator)
    before = curator.ledger.head().seq
    with pytest.raises(BudgetExceeded):
        short(budget=0.5, name="a").fit(*TRAIN, curator)
    assert curator.ledger.head().seq == before


def test_a_search_that_cannot_propose_is_refused_before_anything_is_reserved(tmp_path, monkeypatch):
    def failing(*_args, **_settings):
        raise RuntimeError("no neighbours")

    monkeypatch.setattr(strategies, "suggest", failing)
    file = str(tmp_path / "l.db")
    with pytest.raises(RuntimeError, match="no neighbours"):
        short(strategy=FEW, dataset="d", ledger=file).fit(*TRAIN, *VALIDATION)
    assert {record.kind for record in Ledger.open(file).records()} <= {"birth", "assume"}


def test_a_parameter_of_one_value_is_held():
    whole = {"max_depth": [1, 2, 3], "min_samples_leaf": [2]}
    fine = {"ccp_alpha": st.loguniform(1e-4, 1e-1), "criterion": ["gini"]}
    for space, strategy in ((whole, FEW), (fine, NEARBY)):
        search = short(param_distributions=space, strategy=strategy).fit(*TRAIN, *VALIDATION)
        name, (value,) = list(space.items())[1]
        assert search.best_params_[name] == value, (name, strategy)
        assert len(search.results_["params"]) == 3


def test_sparse_tables_with_a_bad_record_and_a_number_of_numpys():
    broken = VALIDATION[0].copy()
    broken[7, 2] = np.inf
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.coo_matrix):
        search = short().fit(kind(TRAIN[0]), TRAIN[1], kind(broken), VALIDATION[1])
        assert abs(search.recommendation_.difference) < 0.5, "the record alone counts as worst"
    assert short(test_size=np.int64(1200)).fit(X, Y).statement().units == 1200


@pytest.mark.deep
def test_scikit_learns_own_checks():
    """All but those that ask for what a private search must not or cannot do."""
    search = searched(
        TREE,
        {"max_depth": [1, 2, 3]},
        budget=Budget(50.0, 1e-6),
        n_iter=2,
        strategy=FEW,
        test_size=0.5,
    )
    known = {
        "check_classifiers_train": "a list has no type of its own",
        "check_fit_score_takes_y": "there are two tables",
    }
    known["check_supervised_y_2d"] = "labels are one number or word a record"
    known["check_fit_idempotent"] = "the noise is fresh in every fit"
    known["check_classifiers_regression_target"] = (
        "labels that the two parts do not share come first"
    )
    for check in (
        "check_dtype_object",
        "check_classifier_data_not_an_array",
        "check_classifiers_classes",
    ):
        known[check] = "the dtypes of one table would follow from protected cells, too"
    checks = check_estimator(search, expected_failed_checks=known, on_skip=None)
    assert sum(check["status"] == "passed" for check in checks) >= 39


def test_a_search_in_which_nothing_can_be_fitted_still_states_what_it_spent():
    search = short(param_distributions={"max_depth": [-1, -2]}, error_score="worst")
    search.estimator = clone(TREE).set_params(max_depth=-3)
    with pytest.warns(FitFailedWarning), pytest.raises(InputError, match=r"^error_score="):
        search.fit(*TRAIN, *VALIDATION)
    assert search.statement().units == 1200
    assert len(search.results_["params"]) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"unit": "patient"},
        {"share": 0.5},
        {"allow_repeated": True},
    ],
    ids=str,
)
def test_what_is_the_curators_own_is_refused_beside_it(given):
    curator = Curator(
        VALIDATION,
        unit="record",
        adjacency="replace-one",
        budget=Budget(1.0, 1e-6),
        allow_repeated="allow_repeated" not in given,
    )
    search = make(budget=0.5, strategy=FEW)
    search.privacy = Privacy(**given)
    (name,) = given
    with pytest.raises(InputError, match=f"^{name}=.*left out with a Curator"):
        search.fit(*TRAIN, curator)
    assert not curator.ledger.used()


def test_a_classifier_is_not_given_measured_labels():
    """They would be told as labels that the tables do not share."""
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        make(test_size=0.25).fit(X, X[:, 0])
