"""Digests of rows: equal in any form of the same cells, and other ones for other cells."""

import decimal
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import Subset, TensorDataset

from dpbo import PrivacyUnit
from dpbo.errors import InputError
from dpbo.records.digests import MOST_ROWS, RowDigests, RowSet, table_digest
from dpbo.records.protected_records import require_other_rows
from dpbo.records.view import PrivateView
from tests.attacks.marks import attack

KEY = bytes(range(32))
TEXTS = ["a", "b", "aa", "ab", "ba", "ä", "a\u0308", "\ud800", "\U0010ffff", "x" * 64, "x" * 65]
# A block holds fewer rows of one cell.
MANY = 300_000


def read(records):
    found = RowDigests.of(records)
    assert found is not None
    return found


def digests_of(records):
    return read(records).rows.tolist()


def in_order(records):
    return read(records).digest_in_order(KEY)


def test_rows_that_differ_in_a_cell_have_other_digests():
    assert len({*digests_of(TEXTS)}) == len(TEXTS)
    # Objects: where pyarrow is installed, a column of text holds no half of a pair of code units.
    pairs = pd.DataFrame([[one, other] for one in TEXTS for other in TEXTS], dtype=object)
    assert len({*digests_of(pairs)}) == len(TEXTS) ** 2
    codes = np.array(np.meshgrid(*[[0, 1, 2, 3]] * 8)).reshape(8, -1).T
    assert len({*digests_of(codes)}) == 4**8


def test_one_table_has_one_digest_in_every_form():
    texts = ["b", "a", "b", "xyz"]
    alike: list[Any] = [
        texts,
        np.array(texts),
        pd.Series(texts, dtype=object),
        pd.DataFrame({"t": pd.Series(texts).astype("category")}),
    ]
    assert len({in_order(form) for form in alike}) == 1
    numbers = [[1.0, -0.0], [float("nan"), 2.5]]
    table = torch.tensor(numbers)
    alike = [
        table,
        np.array(numbers, dtype=object),
        np.abs(np.array(numbers)),
        pd.DataFrame({"a": np.array([1, np.nan], np.float32), "b": [0.0, 2.5]}),
        [row.numpy() for row in table],
        Subset(TensorDataset(table.flip(0)), [1, 0]),
    ]
    assert len({in_order(form) for form in alike}) == 1
    features, labels = torch.rand(20, 3), torch.arange(20)
    samples = [*zip(features, labels, strict=True)]
    alike = [
        (features, labels),
        {"x": features.numpy(), "y": labels.tolist()},
        samples,
        [{"x": x.numpy(), "y": int(y)} for x, y in samples],
    ]
    assert len({in_order(form) for form in alike}) == 1
    days = np.array(["1950-03-01", "NaT", "2031-12-24"], dtype="datetime64[s]")
    alike = [pd.DataFrame({"born": days.astype(f"M8[{unit}]")}) for unit in ("s", "ms", "us", "ns")]
    assert len({in_order(form) for form in alike}) == 1


def test_of_large_tables_the_same_rows_are_compared():
    rows = read(torch.arange(4 * MOST_ROWS)).rows
    table, few = RowSet.of(rows), RowSet.of(rows[:: MOST_ROWS // 25].copy())
    assert len(table.rows) == MOST_ROWS
    assert table.shares_rows_with(few)
    assert not table.shares_rows_with(RowSet.of(read(torch.arange(0.5, 100.0)).rows))


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(torch.arange(MANY, dtype=torch.float32), id="tensor"),
        pytest.param(pd.DataFrame({"t": [f"p{i}" for i in range(MANY)]}), id="frame"),
        pytest.param(scipy.sparse.eye_array(3000, format="csr"), id="sparse"),
    ],
)
def test_the_digest_of_a_table_knows_every_row_and_no_order(table):
    count = table.shape[0]
    order = np.random.default_rng(0).permutation(count)
    turned, changed = (
        table.iloc[places] if hasattr(table, "iloc") else table[places]
        for places in (order, np.concatenate([[1], np.arange(1, count)]))
    )
    first, other, third = (table_digest(each, KEY) for each in (table, turned, changed))
    assert first == other != third
    digests = [in_order(each) for each in (table, turned, changed)]
    assert len({*digests}) == 3


def test_the_rows_of_a_unit_count_together_across_blocks():
    records = torch.arange(MANY, dtype=torch.float32)
    groups = torch.arange(MANY) % 1000
    units = {}
    for name, labels in (
        ("same", groups),
        ("renamed", 999 - groups),
        ("other", groups.sort().values),
    ):
        view = PrivateView.of(records, PrivacyUnit("p", groups=labels), units_are_public=True)
        units[name] = table_digest(view, KEY)
    assert units["same"] == units["renamed"] != units["other"]


class Picture:
    """As an image library's: its content is neither compared nor shown."""

    def __init__(self, number):
        self.pixels = np.full(4, number)


class Graph:
    """As a library's of graphs."""

    def __init__(self, number):
        self.nodes = torch.full((4,), float(number))
        self.edges = self.nodes.bfloat16()


@dataclass
class Patient:
    codes: set[str]
    town: str
    born_in: str


def patients(number):
    """As a reader of a file makes them, a text anew for each cell, or one for equal cells."""
    town = f"town {number}"
    return [
        Patient({"a", str(number), "b"}, town, born_in=town),
        Patient({"b", str(number), "a"}, town, born_in=f"town {number}"),
    ]


def odd_tables(number):
    """Tables of the kinds of cells that are no plain values, which differ by the number."""
    pictures = [Picture(number + place) for place in range(20)]
    ids = [uuid.UUID(int=number + place) for place in range(20)]
    return {
        "graphs": [Graph(number + place) for place in range(20)],
        "pictures with labels": [(picture, 0) for picture in pictures],
        "pictures in dicts": [{"x": picture} for picture in pictures],
        "ids": pd.DataFrame({"id": pd.Series(ids, dtype=object)}),
    }


def test_objects_count_by_what_they_hold():
    first, again, other = ([*odd_tables(number).items()] for number in (0, 0, 100))
    for (kind, table), (_, same), (_, another) in zip(first, again, other, strict=True):
        digest = table_digest(table, KEY)
        assert digest == table_digest(same, KEY), kind
        assert digest != table_digest(another, KEY), kind


def test_objects_are_the_same_however_they_lie_in_memory():
    """Their pickles differ, and a resumed reservation was refused for records of others."""
    one, other = patients(0)
    assert table_digest([one], KEY) == table_digest([other], KEY)
    assert table_digest([one], KEY) != table_digest(patients(1)[:1], KEY)


MISSING = (None, float("nan"), pd.NA, pd.NaT, decimal.Decimal("NaN"))


def test_a_missing_value_is_the_same_whatever_stands_for_it():
    tables = [pd.Series(["a", cell, "b"], dtype=object) for cell in MISSING]
    tables.append(pd.Series(["a", None, "b"], dtype="string"))
    assert len({in_order(table) for table in tables}) == 1


@attack("A22")
def test_no_cell_hides_that_records_are_protected_already():
    for cell in (*MISSING, uuid.UUID(int=1), pd.Period("2020-01"), {1, 2}, Picture(0)):
        names: list[Any] = [f"p{place}" for place in range(100)]
        names[7] = cell
        table = pd.DataFrame({"name": pd.Series(names, dtype=object)})
        with pytest.raises(InputError, match="of other records than the validation records"):
            require_other_rows("X_train", table.copy(), table, "validation", "")
