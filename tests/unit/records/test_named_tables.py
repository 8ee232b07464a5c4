"""What a function's code takes of the variables that it names: for each function the tables."""

import functools
import types
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from dpbo import InputError
from dpbo.records.named_tables import named_tables
from dpbo.records.protected_records import require_unnamed

X = np.random.default_rng(7).normal(size=(100, 3))
PUBLIC = X[:20].copy()
SPLIT = 20
TABLES = {"train": PUBLIC, "val": X[20:]}
FRAME = pd.DataFrame(X, columns=list("abc"))


class People(NamedTuple):
    train: Any
    val: Any

    def size(self):
        return len(self.train)


class Study:
    """Both parts, as attributes."""

    def __init__(self):
        self.X_train, self.X_val = PUBLIC, X[20:]
        self.calls = 0

    @property
    def computed(self):
        pytest.fail("code of the caller's ran")

    def fit(self, x):
        self.calls += 1
        self.model = x
        return self.trained(lambda: self.X_train)

    def trained(self, rows):
        return rows() if self.calls else self.X_train.mean(0)

    def fit_whole(self, x):
        return self.fit(self.scored())

    def scored(self):
        return self.X_val

    def fit_computed(self, x):
        return self.computed

    def fit_itself(self, x):
        return passed(self)


def passed(thing):
    return thing


def defaults(x, rows=PUBLIC, tables=TABLES):
    return rows, tables["train"]


def bound_again(x, count=SPLIT):
    count = max(count, x)
    return X[:count]


def given(rows, x):
    return rows


def require(fit, records=X[20:]):
    require_unnamed("fit", fit, records, "validation", "Split the table first.")


STUDY = Study()
PEOPLE = People(PUBLIC, X[20:])
SPLITS = [PUBLIC, X[20:]]
NESTED = types.SimpleNamespace(data={"digits": (PUBLIC, X[20:])})
TRAIN = np.arange(20)
X_val = "the name of an attribute"

TAKE_PUBLIC = {
    "slice by a variable": lambda x: passed(X[:SPLIT, 1:]),
    "places": lambda x: X[TRAIN],
    "rows of a column": lambda x: FRAME["a"][:20] + FRAME.b.iloc[:20],
    "memory": lambda x: torch.from_numpy(X[:20]),
    "key": lambda x: [*TABLES["train"]],
    "the other of two": lambda x: (x or SPLITS)[0],
    "nested": lambda x: NESTED.data["digits"][0],
    "named tuple": lambda x: (PEOPLE.train, PEOPLE[0], PEOPLE.size()),
    "self": STUDY.fit,
    "attribute of another thing": lambda x: x.X + x.TABLES,
    "defaults": defaults,
    "partial": functools.partial(given, PUBLIC),
}
TAKE_PROTECTED = {
    "number of rows": lambda x: X.shape[0],
    "slice": lambda x: passed(X[:30]),
    "unknown rows": lambda x: FRAME.iloc[x],
    "columns": lambda x: FRAME[["a", "b"]],
    "key": lambda x: TABLES["val"],
    "all keys": lambda x: TABLES | {},
    "one of two": lambda x: (SPLITS or x)[0],
    "nested": lambda x: NESTED.data["digits"][1],
    "named tuple": lambda x: PEOPLE.val,
    "method": lambda x: STUDY.fit_whole(x),
    "property": STUDY.fit_computed,
    "self": STUDY.fit_itself,
    "bound again": bound_again,
    "keyword": functools.partial(given, rows=X),
    "list": lambda x: [row for table in SPLITS for row in table],
}


@pytest.mark.parametrize("kind", TAKE_PUBLIC)
def test_code_that_takes_the_public_part_alone_is_accepted(kind):
    require(TAKE_PUBLIC[kind])


@pytest.mark.parametrize("kind", TAKE_PROTECTED)
def test_code_that_takes_protected_rows_is_refused(kind):
    with pytest.raises(InputError, match="names none of the validation records"):
        require(TAKE_PROTECTED[kind])


def test_any_part_of_the_protected_table_itself_counts():
    labels = X[:, 0] > 0.0
    with pytest.raises(InputError, match="'labels' has some"):
        require(lambda x: labels[:5], (X, labels))


class Pictures(Dataset[torch.Tensor]):
    """On a disk."""

    def __len__(self):
        return 100

    def __getitem__(self, place):
        pytest.fail("it was read")


def test_datasets_are_compared_in_memory_or_by_identity():
    pictures = Pictures()
    train, val = random_split(pictures, [60, 40])
    require(lambda x: DataLoader(train), val)
    loader = DataLoader(train, batch_size=4)
    require(lambda x: next(iter(loader)))
    require(lambda x: next(iter(loader)), val)
    taken: Any
    for taken in (pictures, val, Subset(val, [0]), DataLoader(val)):
        with pytest.raises(InputError, match="has some"):
            require(lambda x, taken=taken: passed(taken), val)
    rows = TensorDataset(torch.from_numpy(X), torch.arange(100))
    first = Subset(rows, range(40))
    public = Subset(first, range(20))
    require(lambda x: passed(public))
    for taken in (rows, first, DataLoader(first)):
        with pytest.raises(InputError, match="has some"):
            require(lambda x, taken=taken: passed(taken))
    samples = [rows[place] for place in range(100)]
    with pytest.raises(InputError, match="'samples' has some"):
        require(lambda x: passed(samples), samples[20:])
    require(lambda x: passed(samples[:20]), samples[20:])


def test_each_table_has_the_name_that_leads_to_it():
    found = named_tables(lambda x: (X[:20], NESTED.data["digits"][1], STUDY.scored(), PEOPLE.train))
    names = {name for name, _ in found}
    assert names == {"X[...]", "NESTED.data[...][...]", "self.X_val", "PEOPLE.train"}
