"""Where a search could carry validation records out, or let one of them count for more than itself."""

import pickle
import threading

import numpy as np
import pytest
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


class Unique(Remembering):  # type: ignore[misc]
    """It cannot be copied."""

    def fit(self, X, y):
        self.lock_ = threading.Lock()
        return super().fit(X, y)


class Same(Remembering):  # type: ignore[misc]
    """Its copy is itself."""

    def __deepcopy__(self, _memo):
        return self


@pytest.mark.parametrize("kind", [Remembering, Unique, Same])
@pytest.mark.parametrize("strategy", ["bo", "grid"])
def test_the_model_that_saw_private_records_is_never_handed_on(kind, strategy):
    best = fitted(kind(random_state=0), strategy=strategy).best_estimator_
    assert not hasattr(best, "seen_")
    assert kind is Unique or X[-1].tobytes() not in pickle.dumps(best)


@pytest.mark.parametrize("scoring", ["accuracy", "neg_log_loss", "balanced_accuracy", "f1", "roc_auc"])
def test_one_label_of_another_type_moves_no_other_records_score(scoring):
    """As one array of numpy's choice, a list's one word would make all its numbers words, and every score wrong."""
    model, scored = DecisionTreeClassifier(max_depth=3).fit(*TRAIN), scoring_named(scoring, None, TRAIN[1])
    labels = VALIDATION[1].tolist()
    before = np.asarray(scored(model, (VALIDATION[0], VALIDATION[1])), dtype=np.float64)
    assert np.array_equal(np.asarray(scored(model, (VALIDATION[0], labels)), dtype=np.float64), before)
    for odd in ("x", 0.5, None, 2**70, (1, 2)):
        after = np.asarray(scored(model, (VALIDATION[0], [odd, *labels[1:]])), dtype=np.float64)
        assert np.array_equal(after[1:], before[1:])
