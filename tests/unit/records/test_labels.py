"""Labels of one kind are numbered as `np.unique` does; others are refused."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpbo.errors import UsageError
from dpbo.records.labels import numbered


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.array([5, -3, 5, 127, -128], dtype=np.int8), id="int8"),
        pytest.param(np.array([2**64 - 1, 2**64 - 3, 2**64 - 1], dtype=np.uint64), id="high"),
        pytest.param(np.array(["b", "a", "b", "aa"]), id="text"),
        pytest.param(np.array([b"b", b"a", b"b"]), id="bytes"),
        pytest.param(np.array([True, False, True]), id="bools"),
        pytest.param(np.array([], dtype=np.int64), id="none"),
    ],
)
def test_arrays_and_lists_have_their_labels_in_order(labels):
    expected, units = np.unique(labels, return_inverse=True)
    for given in (labels, labels.tolist(), list(labels), pd.Series(labels)):
        values, places = numbered("groups", given)
        assert repr(values) == repr(expected.tolist())
        assert places.tolist() == units.tolist()


def test_labels_that_an_array_of_text_would_cut_stay_apart():
    with pytest.warns(UserWarning, match="differ only in case"):
        assert numbered("groups", ["x\x00", "x", "x"])[1].tolist() == [1, 0, 0]
    assert numbered("groups", [2**70, 2**70 + 1, 2**70])[1].tolist() == [0, 1, 0]


def test_values_of_two_kinds_are_refused():
    later = "2020-01-01T00:00:00.000000000000000000"
    labels: list[list[Any]] = [
        [np.datetime64("2020-01-01"), later],
        [1, "1"],
        [True, 1],
        ["a", b"a"],
    ]
    assert numbered("groups", labels[0][:1])[0] == [later]
    for pair in labels:
        with pytest.raises(UsageError, match="different kinds"):
            numbered("groups", pair)
