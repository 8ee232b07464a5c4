"""A26: labels that compare by identity, by type or by encoding. Each kind gives the true number of
units or is refused by name.
"""

import datetime
import uuid

import numpy as np
import pandas as pd
import pytest
import torch

from dpbo import Budget, PrivacyUnit
from dpbo.errors import InputError, UsageError
from dpbo.records.labels import hash_labels, require_disjoint
from tests.attacks.marks import attack
from tests.attacks.setups import owner
from tests.setups import DOUBLE

pytestmark = attack("A26")
IDS = [i // 200 for i in range(1000)]
DAYS = [datetime.date(2020, 1, 1 + i) for i in IDS]


def noon(day, hours):
    """Twelve o'clock in Greenwich as a clock in a zone so many hours further east shows it."""
    zone = datetime.timezone(datetime.timedelta(hours=hours))
    return datetime.datetime(day.year, day.month, day.day, 12 + hours, tzinfo=zone)


def each(label):
    """A label for each record."""
    return list(map(label, IDS))


def in_turns(first, second):
    """Labels of two kinds, one record after the other."""
    return [first(i) if n % 2 else second(i) for n, i in enumerate(IDS)]


NAMES = each("p{}".format)
KINDS = {
    "a tensor": torch.tensor(IDS),
    "an array": np.array(IDS),
    "nullable integers": pd.Series(IDS, dtype="Int64"),
    "categories": pd.Series(NAMES).astype("category"),
    "bools": each(lambda i: i > 1),
    "text": NAMES,
    "an array of text": np.array(NAMES),
    "bytes": each(b"%d".__mod__),
    "dates": DAYS,
}


class Named:
    """An object that Python compares by identity."""


REFUSED = {
    "objects": each(lambda _: Named()),
    "floats": torch.tensor(IDS).double(),
    "bools and numbers": in_turns(bool, int),
    "a list of 0-d tensors": list(torch.tensor(IDS)),
    "times with a zone": pd.Series(pd.to_datetime(DAYS)).dt.tz_localize("Europe/Paris"),
    "one instant in two zones": [noon(day, hours=n % 2) for n, day in enumerate(DAYS)],
    "UUIDs": each(lambda i: uuid.UUID(int=i)),
    "durations": np.array(IDS, dtype="timedelta64[s]"),
    "masked": np.ma.array(IDS, mask=np.arange(len(IDS)) % 2 == 0),
}


def curator(groups):
    records = torch.zeros(len(IDS), dtype=DOUBLE)
    return owner(records, unit=PrivacyUnit("patient", groups=groups), budget=Budget(4.38, 1e-5))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_label_gives_the_true_number_of_units(kind):
    """Before, 5 patients became 1,000 units: replacing one moved the mean by 200 of 1,000 shares
    and paid for one.
    """
    assert curator(KINDS[kind]).units == (2 if kind == "bools" else 5)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_compare_by_value_is_refused_by_name(kind):
    with pytest.raises(
        UsageError,
        match="groups must be one label a record: whole numbers, text, bytes, dates or bools",
    ):
        curator(REFUSED[kind])


@pytest.mark.parametrize(
    "pair", [("é", "e\N{COMBINING ACUTE ACCENT}"), ("p1", "p1 "), ("P1", "p1"), ("p1", "p\u200b1")]
)
def test_text_that_looks_alike_is_warned_of(pair):
    with pytest.warns(UserWarning, match="differ only in case, spaces or the form of letters"):
        assert curator([pair[i % 2] for i in IDS]).units == 2


def test_people_on_both_sides_are_found_whatever_their_labels_are_made_of():
    for private in (torch.tensor([1, 2, 3]), pd.Series([1, 2, 3])):
        with pytest.raises(InputError, match="without any label of `groups`"):
            require_disjoint(private, [3, 4, 5], 3)
        require_disjoint(private, torch.tensor([4, 5]), 2)
    for private, public in ((["1", "2"], [2]), (DAYS[:2], ["2020-01-01"])):
        with pytest.raises(InputError, match="of the same kind as `groups`"):
            require_disjoint(private, public, 1)
    with pytest.raises(InputError, match="without any label of `groups`"):
        require_disjoint(["anna"], ["Anna "], 1)
    with pytest.raises(InputError, match="one label for each training record"):
        require_disjoint([1], [], 1)


def test_a_missing_label_is_told_and_every_error_is_typed():
    late = datetime.datetime(9999, 12, 31, 23, 59)
    assert curator([late] * len(IDS)).units == 1
    for labels in (
        ["a", float("nan")] * (len(IDS) // 2),
        pd.Series([1, pd.NA] * (len(IDS) // 2), dtype="Int64"),
        np.array(["2020-01-01", "NaT"] * (len(IDS) // 2), dtype="datetime64[D]"),
        [None] * len(IDS),
    ):
        with pytest.raises(InputError, match="present for every record"):
            curator(labels)
    with pytest.raises(InputError, match="groups"):
        curator(list(torch.zeros(len(IDS), dtype=torch.bfloat16)))


def test_equal_dates_of_other_resolutions_are_one_unit_on_all_ranks():
    days = np.array(["2020-01-01", "2021-06-30"])
    forms = [days.astype(f"datetime64[{unit}]") for unit in ("D", "s", "ns")] + [
        list(map(datetime.date.fromisoformat, days))
    ]
    first, first_kind = hash_labels(forms[0], b"key")
    for form in forms[1:]:
        hashes, kind = hash_labels(form, b"key")
        assert kind == first_kind
        assert torch.equal(hashes.sort(0).values, first.sort(0).values)
