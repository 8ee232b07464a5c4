"""Checked arguments: what is let through, what is handed on, what a refusal says, and what a check
costs.
"""

import collections
import decimal
import functools
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
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.gibo import DPGIBO, GIBOSettings
from dpbo.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.objective import NoiseWarning
from dpbo.papers.em import DPKMeans
from dpbo.papers.po_gp_ucb import Modeler, RemoteOutcomes
from dpbo.queries import ClippedMean
from dpbo.validation import Count, Positive, Within, checked
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, box, owner

pytestmark = attack("A5")
Spread = Annotated[tuple[float, float], Within("(low, high)", lambda pair: pair[0] < pair[1])]
X = torch.tensor([0.5, 0.5], dtype=DOUBLE)
PLACES = {"count": 1, "scale": None, "share": 1, "ends": (0.0, 1.0), "weights": ()}


@checked
def got(
    count: Count = 1,
    scale: Positive | None = None,
    share: float | Fraction = 1,
    ends: Spread = (0.0, 1.0),
    weights: Sequence[float] = (),
):
    return count, scale, share, ends, weights


def score(x, rows):
    return 1 - (rows[:, 0] - x[0]).abs()


def make(**settings):
    terms = {"budget": dpbo.Budget(8.0, 1e-5), **settings}
    return owner(torch.rand(40, 2, dtype=DOUBLE), **terms)


def gibo(**settings):
    bounds, ask = (
        box(2),
        {"budget": 1.0, "iterations": 2, "batch_size": 2, **settings},
    )
    return DPGIBO(
        make(),
        lambda x, rows: ((rows - x) ** 2).sum(1),
        bounds=bounds,
        clip=1.0,
        **ask,
    )


def query(score=score):
    return ClippedMean(score, X, score_range=(0.0, 1.0))


GIVEN: list[tuple[str, Any, Any]] = [
    *(("count", number, 3) for number in (np.int64(3), torch.tensor(3))),
    *(("scale", number, 0.5) for number in (np.array(0.5), torch.tensor(0.5), np.float32(0.5))),
    *(("scale", Fraction(1, 2), 0.5), ("scale", 2, 2.0)),
    *(("share", Fraction(1, 3), Fraction(1, 3)), ("share", np.float32(0.25), 0.25)),
    *(("ends", np.array([0.0, 2.0]), (0.0, 2.0)), ("ends", (0, Fraction(1, 2)), (0.0, 0.5))),
    *(("weights", [np.float32(1.5), 2], [1.5, 2.0]), ("weights", torch.tensor([0.5]), (0.5,))),
]


def test_numbers_of_other_libraries_become_pythons_own():
    for name, given, own in GIVEN:
        for made in (got(**{name: given}), got(*{**PLACES, name: given}.values())):
            arrived = made[list(PLACES).index(name)]
            assert arrived == own, (name, given)
            assert type(arrived) is type(own), (name, given)
            if isinstance(own, (tuple, list)):
                assert [type(part) for part in arrived] == [type(part) for part in own], (
                    name,
                    given,
                )


def test_what_is_no_number_is_refused():
    wrong: dict[str, list[Any]] = {
        "count": [True, np.array([3]), torch.tensor(True), np.float64(3.0), Fraction(3), "3"],
        "scale": [True, torch.tensor([0.5]), decimal.Decimal("0.5"), np.float32("nan"), 1j],
    }
    wrong["scale"].append(Fraction(10**400))
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InputError, match=name):
                got(**{name: value})


def test_a_refusal_and_a_warning_point_at_the_callers_line():
    with pytest.raises(InputError) as caught:
        GaussianEvent(cast(Any, 1j), 3)
    files = [
        frame.filename.rpartition("/")[2]
        for frame in traceback.extract_tb(caught.value.__traceback__)
    ]
    assert files == ["test_validation.py", "validation.py", "validation.py"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert (
            dpbo.PrivateObjective(
                make(), score, score_range=(0.0, 1.0), evaluations=500
            ).evaluations
            == 500
        )
        gibo(budget=0.1, iterations=50)
    assert [warning.filename for warning in warned if warning.category is NoiseWarning] == [
        __file__
    ] * 2


def test_a_refused_text_is_not_shown_for_it_may_be_a_password():
    odd = "S3cret\udce9"
    for call, given in (
        (lambda url: make(ledger=url, dataset="d"), f"postgresql://bob:{odd}@db/x"),
        (Ledger.open, f"postgresql://bob:{odd}\0@db/x"),
        (lambda url: RemoteOutcomes(url, "token"), f"http://u:{odd}@h"),
        (lambda token: RemoteOutcomes("http://h", token), odd),
    ):
        with pytest.raises(InputError, match="<str>") as caught:
            call(given)
        assert "S3cret" not in str(caught.value)


def test_uses_that_are_usual_elsewhere_are_taken():
    curator = make()
    law = GaussianMechanism(20.0)
    for kind in (collections.deque, lambda parts: dict(enumerate(parts)).values()):
        handles = kind([curator.evaluate(query()) for _ in range(2)])
        assert len(curator.release_all(handles, law)) == 2
    assert make(allow_conditional=np.bool_(True)).statement().assumptions
    tuned = GIBOSettings(optimizer=functools.partial(torch.optim.SGD, momentum=0.9))
    assert len(gibo(settings=tuned).run().gradients) == 2
    grid = torch.rand(8, 2, dtype=DOUBLE)
    history = zip([0, 1], [0.1, 0.2], strict=True)
    modeler = Modeler(grid, kernel=squared_exponential(0.4), noise=1e-2, history=history)
    modeler.tell(2, cast(Any, torch.tensor(0.3)))
    assert len(modeler.history) == 3
    means = DPKMeans(mechanism=EXACT, radius=2.0, max_iter=1, dimension=2)
    found = GridSearchCV(means, {"n_clusters": np.arange(1, 3)}, cv=2)
    assert found.fit(np.linspace(-1, 1, 80).reshape(40, 2)).best_params_["n_clusters"] in (1, 2)


def test_of_an_array_the_dtype_and_dimensions_are_told_and_never_how_many_rows():
    objective = dpbo.PrivateObjective(make(), score, score_range=(0.0, 1.0), evaluations=3)
    for told, given in {
        "<ndarray, float64, 2-d>": np.zeros((3, 1)),
        "<Tensor, torch.float32, 2-d>": torch.zeros(3, 1),
        "<ndarray, str_, 1-d>": np.array(["a", "secretly long"]),
        "<object>": object(),
    }.items():
        use = r"Use (torch.as_tensor\(X|X.double\(\))"
        with pytest.raises(
            InputError, match=f"float64 tensor, finite, of shape q x d, .*{use}"
        ) as e:
            objective(cast(Any, given))
        assert e.value.value == told


class Endless(Sequence[int]):
    """A sequence that counts how many of its elements are read."""

    read = 0

    def __len__(self):
        return 10**12

    def __getitem__(self, place):
        self.read += 1
        return 0


def test_neither_records_nor_long_sequences_are_read():
    @checked
    def held(records: Any, rows: torch.Tensor, labels: Sequence[int]):
        return records, rows, labels

    # reading it would take memory that nobody has
    rows = torch.zeros(1, dtype=DOUBLE).expand(10**12)
    records, labels = Endless(), Endless()
    assert held(records, rows, labels)[1] is rows
    assert records.read == 0
    assert labels.read <= 1000
