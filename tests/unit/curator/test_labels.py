"""Units of labels that are numbered together are those of labels that are read one by one."""

import random
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dpbo.curator.labels import _value, is_missing, kind_of, numbered
from dpbo.errors import UsageError

POOLS: dict[str, list[Any]] = {
    "text": ["a", "A", "b", "é", "e\u0301", "ﬁ", "fi", " a", "\u200ba", "x\x00", "x", "ß", "ss"],
    "numpy text": [np.str_("a"), np.str_("b")],
    "bytes": [b"a", b"a\x00", np.bytes_(b"b")],
    "whole numbers": [1, 2, -1, -2, 0, 2**53, 2**61 - 1, 2**70, True, False],
    "floats": [1.0, 2.0, -0.0, 0.0, 1.5, 2.0**53],
    "missing": [float("nan"), np.nan, None, pd.NaT, pd.NA],
    "numpy numbers": [np.int64(1), np.int8(2), np.float16(4.0), np.float16(2048.0), np.bool_(True)],
    "numbers in containers": [torch.tensor(1), np.array(2)],
    "tuples": [(1, "a"), (1.0, "a"), (True, "a"), ("a", None)],
    "dates": [np.datetime64("2020-01-01"), pd.Timestamp("2020-01-01"), np.datetime64("2020-01")],
}


def one_by_one(labels):
    """The places, or None where the labels are refused."""
    try:
        values = [_value(label) for label in labels]
    except TypeError:
        return None
    if len({kind_of(value) for value in values if not is_missing(value)}) > 1:
        return None
    found: dict[Any, int] = {}
    return [found.setdefault(value, len(found)) for value in values]


def all_together(labels):
    """The same as `dpbo` finds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            values, places = numbered("groups", labels)
        except UsageError:
            return None
    assert len(values) == len({*places.tolist()})
    return places.tolist()


@pytest.mark.parametrize("kind", POOLS)
def test_labels_of_one_and_of_two_kinds_have_the_units_of_labels_read_one_by_one(kind):
    choose = random.Random(kind)
    for other in POOLS:
        for size in (1, 2, 3, 30):
            pool = choose.sample(POOLS[kind] + POOLS[other], 2 if size < 3 else 4)
            labels = [choose.choice(pool) for _ in range(size)]
            assert all_together(labels) == one_by_one(labels), labels


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.array([5, -3, 5, 127, -128], dtype=np.int8), id="int8"),
        pytest.param(np.array([2**64 - 1, 2**64 - 3, 2**64 - 1], dtype=np.uint64), id="high"),
        pytest.param(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64), id="far apart"),
        pytest.param(np.array([2.0, np.nan, -0.0, 0.0]), id="floats"),
        pytest.param(np.array(["b", "a", "b", "aa"]), id="text"),
        pytest.param(np.array([b"b", b"a", b"b"]), id="bytes"),
        pytest.param(np.array([], dtype=np.int64), id="none"),
    ],
)
def test_arrays_have_their_labels_in_order(labels):
    values, places = numbered("groups", labels)
    expected, units = np.unique(labels, return_inverse=True)
    assert repr(values) == repr(expected.tolist())
    assert places.tolist() == units.tolist()


def test_equal_values_of_two_kinds_are_refused():
    class Later(str):
        pass

    labels: Any = [np.datetime64("2020-01-01"), Later("2020-01-01T00:00:00.000000000000000000")]
    assert numbered("groups", labels[:1])[0] == labels[1:]
    with pytest.raises(UsageError, match="different kinds"):
        numbered("groups", labels)
