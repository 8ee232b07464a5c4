"""What the ledger keeps of a search tells it from every other, and is the same in every process."""

import functools
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import loguniform, rv_histogram
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from dpbo.describing import described_estimator, described_scoring, described_space


def power(model, X, y, p=1):
    return abs(model.predict(X) - y) ** p


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MLPClassifier((10,)), MLPClassifier((500,))),
        (LogisticRegression(class_weight={0: 1, 1: 5}), LogisticRegression(class_weight={0: 5, 1: 1})),
        (RandomForestClassifier(max_depth=np.int64(1)), RandomForestClassifier(max_depth=np.int64(9))),
        (Pipeline([("c", DecisionTreeClassifier(splitter="random"))]), Pipeline([("c", ExtraTreeClassifier(splitter="random"))])),
        (BaggingClassifier(DecisionTreeClassifier()), BaggingClassifier(DecisionTreeClassifier(max_depth=2))),
    ],
    ids=str,
)
def test_estimators_are_told_apart(one, other):
    assert described_estimator(one) != described_estimator(other)
    assert described_estimator(one) == described_estimator(one.__sklearn_clone__())


def test_spaces_are_told_apart():
    assert described_space({"a": [(10,), (50,)]}) != described_space({"a": [(7,), (50,)]})
    assert described_space({"a": [DecisionTreeClassifier(max_depth=1)]}) != described_space({"a": [DecisionTreeClassifier(max_depth=2)]})
    assert described_space({"a": np.array([1, 2])}) != described_space({"a": np.array([1, 3])})
    one, other = (rv_histogram(np.histogram(values)) for values in ([1.0, 2.0, 3.0], [1.0, 2.0, 9.0]))
    assert described_space({"a": one}) != described_space({"a": other})
    assert described_space({"a": loguniform(1e-2, np.float64(1.0))}) == described_space({"a": loguniform(1e-2, 1.0)})


def test_scorings_of_ones_own_are_told_apart():
    assert described_scoring(lambda m, X, y: y) != described_scoring(lambda m, X, y: -y)
    assert described_scoring(functools.partial(power, p=2)) != described_scoring(functools.partial(power, p=1))
    assert described_scoring(power) == described_scoring(power)
    assert described_scoring("f1") == "f1"


def test_another_process_says_the_same():
    code = (
        "from dpbo.describing import described_estimator as e, described_scoring as s\n"
        "from sklearn.pipeline import Pipeline\nfrom sklearn.preprocessing import FunctionTransformer\n"
        "f = lambda m, X, y: [v in {'a', 'b', 'c'} for v in y]\n"
        "print(e(Pipeline([('t', FunctionTransformer(f)), ('c', None)])), s(f))"
    )
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(said) == 1
