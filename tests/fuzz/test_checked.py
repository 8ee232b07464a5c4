"""What the check lets through, what it hands on, and what it costs."""

import collections
import decimal
import functools
import gc
import json
import time
import traceback
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, cast

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV

import dpbo
from dpbo.accounting import compose
from dpbo.algorithms import GIBOSettings
from dpbo.algorithms.em import DPKMeans
from dpbo.algorithms.outsourced import Modeler
from dpbo.checking import Count, Positive, Within, checked
from dpbo.curator import Ledger
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.integrations import RemoteCurator
from dpbo.objective import NoiseWarning
from tests.fuzz import world as w

pytestmark = pytest.mark.attack("A5")
Spread = Annotated[tuple[float, float], Within("(low, high)", lambda pair: pair[0] < pair[1])]


@checked
def got(
    count: Count = 1, scale: Positive | None = None, share: float | Fraction = 1, ends: Spread = (0.0, 1.0), weights: Sequence[float] = ()
):
    return count, scale, share, ends, weights


@pytest.mark.parametrize(
    ("name", "given", "own"),
    [
        ("count", np.int64(3), 3),
        ("count", np.uint8(3), 3),
        ("count", torch.tensor(3), 3),
        ("scale", np.array(0.5), 0.5),
        ("scale", torch.tensor(0.5), 0.5),
        ("scale", np.float32(0.5), 0.5),
        ("scale", np.float64(0.5), 0.5),
        ("scale", np.int64(2), 2.0),
        ("scale", Fraction(1, 4), 0.25),
        ("share", Fraction(1, 3), Fraction(1, 3)),
        ("share", np.float32(0.25), 0.25),
        ("ends", (np.float32(0.0), np.float64(2.0)), (0.0, 2.0)),
        ("ends", (0, Fraction(1, 2)), (0, 0.5)),
        ("weights", [np.float32(1.5), 2.0], [1.5, 2.0]),
        ("weights", np.array([1.5, 2.0]), (1.5, 2.0)),
        ("weights", torch.tensor([0.5]), (0.5,)),
        ("ends", np.array([0.0, 2.0]), (0.0, 2.0)),
    ],
)
@pytest.mark.parametrize("by_name", [True, False])
def test_numbers_of_other_libraries_become_pythons_own(name, given, own, by_name):
    places = ["count", "scale", "share", "ends", "weights"]
    before = dict(zip(places, (1, None, 1, (0.0, 1.0), ()), strict=True))
    made = got(**{name: given}) if by_name else got(*{**before, name: given}.values())
    arrived = made[places.index(name)]
    assert arrived == own
    assert type(arrived) is type(own)
    if isinstance(own, (tuple, list)):
        assert [type(part) for part in arrived] == [type(part) for part in own]


@pytest.mark.parametrize(
    "value", [True, np.array([3]), np.array(3.0), torch.tensor(True), np.float64(3.0), Fraction(3), "3", np.bool_(True)]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InputError, match="count"):
        got(count=value)


@pytest.mark.parametrize(
    "value",
    [True, np.array([0.5]), torch.tensor([0.5]), decimal.Decimal("0.5"), np.float32("nan"), np.float64("inf"), Fraction(10**400), 1j],
)
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError, match="scale"):
        got(scale=value)


def test_numbers_of_numpy_reach_the_ledger():
    terms: dict[str, Any] = {"score_range": (np.float32(0.0), np.float64(1.0)), "evaluations": np.int64(2), "budget_share": Fraction(1, 2)}
    small: Any = np.float32(1e-5)
    curator = w.curator(budget=dpbo.Budget(np.float64(8.0), small))
    objective = dpbo.PrivateObjective(curator, w.score, **terms)
    objective(w.grid(1))
    assert json.loads(curator.statement().to_json())
    assert curator.ledger.verify().kind == "value"


def test_a_refused_number_reserves_nothing():
    curator = w.curator()
    before = curator.ledger.head().hash
    with pytest.raises(InputError, match="evaluations"):
        dpbo.PrivateObjective(curator, w.score, score_range=(0.0, 1.0), evaluations=cast(Any, torch.tensor([3])))
    assert curator.ledger.head().hash == before


def test_a_refusal_shows_the_callers_line_and_two_more():
    with pytest.raises(InputError) as caught:
        GaussianEvent(cast(Any, 1j), 3)
    files = [frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files == ["test_checked.py", "checking.py", "checking.py"]


@pytest.mark.parametrize(
    "call",
    [
        lambda odd: w.curator(ledger=f"postgresql://bob:{odd}@db/x", dataset="d"),
        lambda odd: Ledger.existing(f"postgresql://bob:{odd}\0@db/x"),
        lambda odd: RemoteCurator(f"http://u:{odd}@h", "token"),
        lambda odd: RemoteCurator("http://h", odd),
    ],
)
def test_a_refused_text_is_not_shown_for_it_may_be_a_password(call):
    with pytest.raises(InputError) as caught:
        call("S3cret\udce9")
    assert "S3cret" not in str(caught.value)
    assert "<str>" in str(caught.value)


class Bare(Sequence[Any]):
    """What `Sequence` promises and no more: no slices."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, place: Any) -> Any:
        return self._parts[int(place)]


@pytest.mark.parametrize("kind", [collections.deque, lambda parts: Bare(*parts), tuple, lambda parts: dict(enumerate(parts)).values()])
def test_handles_may_come_in_any_collection(kind):
    curator = w.curator()
    handles = [curator.evaluate(w.query()) for _ in range(2)]
    assert len(curator.release_all(kind(handles), w.GAUSSIAN)) == 2


def test_uses_that_are_usual_elsewhere_are_taken():
    assert compose(collections.deque([w.EVENT]), delta=1e-5).epsilon > 0
    assert w.curator(allow_conditional=np.bool_(True)).statement().assumptions
    tuned = GIBOSettings(optimizer=functools.partial(torch.optim.SGD, momentum=0.9))
    assert len(w.gibo(settings=tuned).run().gradients) == 2
    modeler = Modeler(w.grid(), kernel=w.kernel(), noise=1e-2, history=zip([0, 1], [0.1, 0.2], strict=True))
    modeler.tell(2, cast(Any, torch.tensor(0.3)))
    assert len(modeler.history) == 3
    found = GridSearchCV(DPKMeans(budget=dpbo.Budget.gdp(9.0), radius=2.0, max_iter=1, dimension=2), {"n_clusters": np.arange(1, 3)}, cv=2)
    assert found.fit(np.linspace(-1, 1, 80).reshape(40, 2)).best_params_["n_clusters"] in (1, 2)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("unit", "record", r"must be a PrivacyUnit. For example PrivacyUnit\('record'\)"),
        ("budget", 3.0, r"must be a Budget. For example Budget\(epsilon=3.0, delta=1e-6\)"),
        ("adjacency", "replace-one", "must be Adjacency.REPLACE_ONE or Adjacency.ADD_OR_REMOVE_ONE or Adjacency.BOUNDED_ROW_CHANGE"),
        ("accounting", "gdp", "must be an Accounting or None"),
    ],
)
def test_a_refusal_says_what_is_taken_and_how_to_make_it(name, given, told):
    terms: dict[str, Any] = {"unit": dpbo.PrivacyUnit("x"), "adjacency": w.REPLACE, "budget": w.BUDGET, name: given}
    with pytest.raises(InputError, match=told):
        dpbo.Curator(w.records(), **terms)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (np.zeros((3, 1)), "<ndarray, float64, 2-d>"),
        (torch.zeros(3, 1), "<Tensor, torch.float32, 2-d>"),
        (torch.zeros(3, dtype=torch.float64), "<Tensor, torch.float64, 1-d>"),
        (np.array(["a", "secretly long"]), "<ndarray, str_, 1-d>"),
        (np.array([object()]), "<ndarray, object_, 1-d>"),
        (np.int64(3), "<int64>"),
        (object(), "<object>"),
    ],
)
def test_of_an_array_the_dtype_and_dimensions_are_told_and_never_how_many_rows(given, told):
    objective = dpbo.PrivateObjective(w.curator(), w.score, score_range=(0.0, 1.0), evaluations=3)
    with pytest.raises(
        InputError, match=r"float64 tensor, finite, of shape q x d. Use torch.as_tensor\(X, dtype=torch.float64\)"
    ) as caught:
        objective(given)
    assert caught.value.value == told


def test_details_are_looked_at_before_the_records():
    asked: list[int] = []

    def score(_, rows):
        asked.append(len(rows))
        return rows[:, 0]

    curator = w.curator()
    for wrong in (np.int64(1), {1: 2, "1": 3}, float("nan")):
        with pytest.raises(InputError, match="details"):
            curator.evaluate(w.query(score=score), x=wrong)
    assert asked == []


def test_a_warning_points_at_the_callers_line():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        w_objective = dpbo.PrivateObjective(w.curator(), w.score, score_range=(0.0, 1.0), evaluations=500)
        w.gibo(budget=0.1, iterations=50)
    told = [warning for warning in warned if warning.category is NoiseWarning]
    assert w_objective.evaluations == 500
    assert [warning.filename for warning in told] == [__file__, w.__file__]


class Counted(list[Any]):
    """A list that counts how many of its elements are looked at."""

    looked = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.looked += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self):
        for part in super().__iter__():
            self.looked += 1
            yield part


def test_neither_records_nor_long_sequences_are_read():
    @checked
    def held(records: Any, rows: torch.Tensor, labels: Sequence[str]):
        return records, rows, labels

    records, labels = Counted([0.5] * 10**6), Counted(["a"] * 10**6)
    rows = torch.zeros(1, dtype=torch.float64).expand(10**12)  # reading it would take memory that nobody has
    started = time.process_time()
    assert held(records, rows, labels)[0] is records
    assert (records.looked, labels.looked) <= (0, 1000)
    assert time.process_time() - started < 1.0


def test_a_check_takes_microseconds():
    gc.disable()  # a whole suite's garbage is not the check's
    try:
        started = time.process_time()
        for _ in range(1000):
            got(2, 0.5, 1, (0.0, 1.0))
        spent = time.process_time() - started
    finally:
        gc.enable()
    assert spent < 0.2, "200 microseconds a call, ten times what was measured"
