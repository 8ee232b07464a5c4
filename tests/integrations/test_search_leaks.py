"""Where a search could carry validation records out, or let one of them count for more than itself."""

import pickle
import threading
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.tree import DecisionTreeClassifier

from dpbo import Budget, DPSearch
from dpbo.integrations.tuning.scorings import scoring_named

X, Y = make_classification(900, 6, random_state=0)
TRAIN, VALIDATION = (X[:300], Y[:300]), (X[300:], Y[300:])


def fitted(estimator, train=TRAIN, validation=VALIDATION, **changed):
    terms = {"budget": Budget(3.0, 1e-6), "n_iter": 3, "n_initial": 2, "param_distributions": {"max_depth": [1, 2, 3, 4]}, **changed}
    return DPSearch(estimator, **terms).fit(*train, *validation)


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


@pytest.mark.parametrize("kind", [Remembering, Unique, Same])
@pytest.mark.parametrize("strategy", ["bo", "grid"])
@pytest.mark.attack("A21")
def test_the_model_that_saw_private_records_is_never_handed_on(kind, strategy):
    best = fitted(kind(random_state=0), strategy=strategy).best_estimator_
    assert not hasattr(best, "seen_")
    assert kind is Unique or X[-1].tobytes() not in pickle.dumps(best)


@pytest.mark.parametrize("scoring", ["accuracy", "neg_log_loss", "balanced_accuracy", "f1", "roc_auc"])
@pytest.mark.attack("A5")
def test_one_label_of_another_type_moves_no_other_records_score(scoring):
    """As one array of numpy's choice, a list's one word would make all its numbers words, and every score wrong."""
    model, scored = DecisionTreeClassifier(max_depth=3).fit(*TRAIN), scoring_named(scoring, None, TRAIN[1])
    labels = VALIDATION[1].tolist()
    before = np.asarray(scored(model, (VALIDATION[0], VALIDATION[1])), dtype=np.float64)
    assert np.array_equal(np.asarray(scored(model, (VALIDATION[0], labels)), dtype=np.float64), before)
    for odd in ("x", 0.5, None, 2**70, (1, 2)):
        after = np.asarray(scored(model, (VALIDATION[0], [odd, *labels[1:]])), dtype=np.float64)
        assert np.array_equal(after[1:], before[1:])


@pytest.mark.attack("A21")
def test_warnings_on_private_records_are_muted_in_every_thread():
    """`catch_warnings` in two threads: the first to leave gave the other one its voice back."""
    first, second, left = threading.Event(), threading.Event(), threading.Event()

    class Telling(DecisionTreeClassifier):  # type: ignore[misc]
        def __init__(self, told=None):
            super().__init__()
            self.told = told

        def predict(self, X):
            self.told()
            warnings.warn(f"unknown category {X[0, 0]}", stacklevel=2)
            return super().predict(X)

    def in_first():
        first.set()
        second.wait(10)

    def in_second():
        second.set()
        left.wait(10)

    scored = scoring_named("accuracy", None, TRAIN[1])
    one, other = (Telling(told).fit(*TRAIN) for told in (in_first, in_second))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        threads = [threading.Thread(target=scored, args=(model, VALIDATION)) for model in (one, other)]
        threads[0].start()
        first.wait(10)
        threads[1].start()
        threads[0].join()
        left.set()
        threads[1].join()
        assert shown == []
        assert list(warnings.filters) == before
        warnings.warn("heard", stacklevel=1)
        assert len(shown) == 1


@pytest.mark.attack("A21")
def test_a_ledgers_password_is_not_shown():
    search = DPSearch(
        DecisionTreeClassifier(), {"max_depth": [1, 2]}, budget=Budget(1.0, 1e-6), dataset="d", ledger="postgresql://u:hunter2@host/db"
    )
    shown = [repr(search), *search._repr_mimebundle_().values()]
    assert all("host/db" in text and "hunter2" not in text for text in shown)
    assert clone(search).ledger == "postgresql://u:hunter2@host/db"
