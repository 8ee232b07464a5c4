"""Fingerprints of tables: the words and sums of their definition, in any form of the same cells."""

import decimal
import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from dpbo import PrivacyUnit
from dpbo.curator import record_fingerprints
from dpbo.curator.protected_records import require_other_rows
from dpbo.curator.record_fingerprints import Sketch, TableDigest, order_digest, row_digests
from dpbo.curator.records import PrivateView
from dpbo.errors import InputError
from dpbo.fingerprint import fingerprint
from tests.attacks.marks import attack
from tests.setups import DOUBLE

KEY = bytes(range(32))
TEXTS = ["", "a", "a\x00", "\x00", "\x00a", "b", "aa", "ä", "a\u0308", "\ud800", "\U0010ffff"]
TEXTS += ["x" * 64, "x" * 65, "x" * 63 + "\x00", "x" * 64 + "\x00"]
# A block holds fewer rows of one cell.
MANY = 300_000


def rows_of(records):
    return record_fingerprints.rows_of(records)


def digests_of(records):
    found = row_digests(rows_of(records), KEY)
    assert found is not None
    return found.tolist()


def table_digest(rows):
    digest: Any = TableDigest.of(rows, KEY)
    return digest.hex(KEY)


def keys(prefix, count):
    drawn = hashlib.shake_128(prefix + KEY).digest(8 * count)
    return [int.from_bytes(drawn[i : i + 8], "little") for i in range(0, len(drawn), 8)]


def upper_halves(own, words):
    """Of the two sums k_0 + sum of k_j w_j, with the keys of both taken in turns."""
    sums = (
        own[side] + sum(k * w for k, w in zip(own[2 + side :: 2], words, strict=False))
        for side in range(2)
    )
    return [total % 2**64 >> 32 for total in sums]


def words_of(cell):
    if isinstance(cell, float):
        return [int(np.array([cell], np.float32).view(np.uint32)[0]), 0]
    if len(cell) <= 64:
        return upper_halves(keys(b"text", 132), [len(cell), *map(ord, cell)])
    return [int(word) for word in np.frombuffer(fingerprint(cell, key=KEY, size=8), "<u4")]


def test_rows_have_the_fingerprints_of_their_definition():
    numbers = [float(i) for i in range(len(TEXTS))]
    table = pd.DataFrame({"a": numbers, "b": pd.Series(TEXTS, dtype=object)})
    found = digests_of(table)
    own = keys(b"", 2 + 2 * 4)
    for number, text, digest in zip(numbers, TEXTS, found, strict=True):
        # The keys of a cell: both sums' of its first word, then of its second word.
        high, low = upper_halves(own, [*words_of(number), *words_of(text)])
        assert digest == high << 32 | low, text
    assert len({*found}) == len(found)


def test_texts_that_differ_have_other_words():
    found = digests_of(TEXTS)
    assert len({*found}) == len(TEXTS)


def test_one_table_has_one_digest_in_every_form():
    texts = ["b", "a", "b", "xyz"]
    alike = [
        texts,
        np.array(texts),
        np.array([np.str_(text) for text in texts], dtype=object),
        pd.Series(texts),
        pd.Series(texts, dtype=object),
        pd.DataFrame({"t": pd.Series(texts).astype("category")}),
    ]
    assert len({order_digest(rows_of(form), KEY) for form in alike}) == 1
    numbers = [[1.0, -0.0], [float("nan"), 2.5]]
    alike = [
        torch.tensor(numbers),
        torch.tensor(numbers, dtype=DOUBLE),
        np.array(numbers, dtype=object),
        np.abs(np.array(numbers)),
        pd.DataFrame(numbers, dtype=object),
        pd.DataFrame({"a": np.array([1, np.nan], np.float32), "b": [0.0, 2.5]}),
    ]
    assert len({order_digest(rows_of(form), KEY) for form in alike}) == 1
    days = np.array(["1950-03-01", "NaT", "2031-12-24"], dtype="datetime64[s]")
    alike = [pd.DataFrame({"born": days.astype(f"M8[{unit}]")}) for unit in ("s", "ms", "us", "ns")]
    assert len({order_digest(rows_of(form), KEY) for form in alike}) == 1


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
    first, other, third = (table_digest(rows_of(each)) for each in (table, turned, changed))
    assert first == other != third
    digests = [order_digest(rows_of(each), KEY) for each in (table, turned, changed)]
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
        units[name] = table_digest(view)
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
    months = [pd.Period("2020-01", "M") + number + place for place in range(20)]
    return {
        "graphs": [Graph(number + place) for place in range(20)],
        "pictures": pictures,
        "pictures with labels": [(picture, 0) for picture in pictures],
        "pictures in dicts": [{"x": picture} for picture in pictures],
        "pictures in lists": [[picture] for picture in pictures],
        "ids": pd.DataFrame({"id": pd.Series(ids, dtype=object)}),
        "ids in dicts": [{"id": each} for each in ids],
        "months": pd.DataFrame({"month": months}),
    }


def test_objects_count_by_what_they_hold():
    first, again, other = ([*odd_tables(number).items()] for number in (0, 0, 100))
    for (kind, table), (_, same), (_, another) in zip(first, again, other, strict=True):
        digest = table_digest(rows_of(table))
        assert digest == table_digest(rows_of(same)), kind
        assert digest != table_digest(rows_of(another)), kind


def test_objects_are_the_same_however_they_lie_in_memory():
    """Their pickles differ, and a resumed reservation was refused for records of others."""
    one, other = patients(0)
    assert table_digest(rows_of([one])) == table_digest(rows_of([other]))
    assert table_digest(rows_of([one])) != table_digest(rows_of(patients(1)[:1]))


MISSING = (None, float("nan"), pd.NA, pd.NaT, decimal.Decimal("NaN"))


def test_a_missing_value_is_the_same_whatever_stands_for_it():
    tables = [pd.Series(["a", cell, "b"], dtype=object) for cell in MISSING]
    tables.append(pd.Series(["a", None, "b"], dtype="string"))
    assert len({order_digest(rows_of(table), KEY) for table in tables}) == 1


def test_columns_of_people_tell_who_they_are_and_those_of_the_rows_order_do_not():
    random = np.random.default_rng(0)
    ages = random.normal(size=300)
    sparse = np.where(random.random(300) < 0.1, ages, 0.0)
    names = pd.Series([f"p{place}" for place in random.permutation(300)], dtype=object)
    of_people = [ages, ages[:17], ages.repeat(3), sparse, random.integers(0, 40, 300), names]
    row = np.arange(300)
    times = pd.Series([f"{hour:02}:00" for hour in row % 24], dtype=object)
    of_rows = [row, -row, row % 24, row // 4 % 24, row % 168, row % 16, np.sin(row / 58), times]
    for place, column in enumerate(of_people):
        sketch: Any = Sketch.of(rows_of(pd.DataFrame({"c": column})))
        assert sketch.columns, place
    for place, column in enumerate([*of_rows, row % 15, random.integers(0, 15, 300)]):
        sketch = Sketch.of(rows_of(pd.DataFrame({"c": column})))
        assert not sketch.columns, place


@attack("A22")
def test_no_cell_hides_that_records_are_protected_already():
    for cell in (*MISSING, uuid.UUID(int=1), pd.Period("2020-01"), {1, 2}, Picture(0)):
        names: list[Any] = [f"p{place}" for place in range(100)]
        names[7] = cell
        table = pd.DataFrame({"name": pd.Series(names, dtype=object)})
        with pytest.raises(InputError, match="of other records than the validation records"):
            require_other_rows("X_train", table.copy(), rows_of(table), "validation", "")
