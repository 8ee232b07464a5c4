"""Scores that get one record at a time: whatever they do with a batch, a record's score is its
own.
"""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dpbo import PrivacyUnit
from dpbo.errors import InputError, LedgerMismatch, PrivateFailure, ScoreError
from dpbo.gibo import ClippedGradient
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.po_gp_ucb import RowTable
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import CellMeans, ClippedMean, ClippedSum
from tests.attacks.marks import attack
from tests.setups import DOUBLE, FIRST_MEAN, owner, point
from tests.unit.testing.test_per_record import FRAME, LEAKS

RECORDS = torch.linspace(0.0, 1.0, 8, dtype=DOUBLE)[:, None]


def make(records=RECORDS, **terms):
    return owner(records, allow_repeated=True, **{"one_at_a_time": True, **terms})


def exact_sum(score, records, subject=None, **settings):
    curator = make(records, **settings)
    answer = curator._answer(curator.evaluate(ClippedSum(score, subject, score_range=(0.0, 1.0))))[
        1
    ]
    return answer.numerators.item() * answer.quanta[0]


@attack("A9", "A34")
@pytest.mark.parametrize("name", LEAKS)
def test_a_score_over_the_batch_sees_no_other_record(name):
    alone = [exact_sum(LEAKS[name], FRAME[i : i + 1], schema=FRAME) for i in range(len(FRAME))]
    assert exact_sum(LEAKS[name], FRAME, schema=FRAME) == pytest.approx(sum(alone), abs=1e-8)


@attack("A9")
def test_a_model_in_training_mode_starts_anew_for_each_record():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = 0.0

        def forward(self, X):
            self.seen += float(X.sum())
            return X[:, 0] * 0 + self.seen

    model = Counting()

    class Scored:
        total = 0.0

        def __call__(self, model, records):
            self.total += float(records.sum())
            return model(records) / 2 + self.total / 2

    expected = RECORDS.sum().item()
    zeros = torch.zeros(5, 1, dtype=DOUBLE)
    assert exact_sum(Scored(), RECORDS, model, example=zeros) == pytest.approx(expected, abs=1e-6)
    paired = ClippedMean(
        lambda own, records: own(records),
        Counting(),
        score_range=(0.0, 1.0),
        reference=Counting(),
        largest_difference=0.5,
    )
    curator = make()
    assert curator._answer(curator.evaluate(paired))[1].numerators.item() == 0
    assert model.seen == 0.0, "not even a public record is left in it"


def test_a_record_that_fails_is_the_worst_and_one_that_all_fail_is_an_error():
    def failing(_, records):
        return 1.0 / (records[:, 0] != 1.0).double() if float(records[0, 0]) != 1.0 else [][0]

    assert exact_sum(failing, RECORDS) == 7.0
    with pytest.raises(PrivateFailure):
        exact_sum(
            lambda _, records: records[:, 0] if float(records.max()) < 1 else [][0], RECORDS + 1.0
        )

    class Cells:
        def __call__(self, _, records):
            return [0.0] if float(records[0, 0]) < 0.5 else [][0]

        def worst_cell(self, records):
            return [1.0]

    curator = make(example=RECORDS[:1])
    answer = curator._answer(curator.evaluate(CellMeans(Cells(), cells=2)))[1]
    assert (answer.numerators * torch.tensor(answer.quanta)).tolist() == pytest.approx([4.0, 4.0])


def test_every_query_of_a_score_takes_part_and_others_are_refused():
    curator = make()
    told = []

    def score(_, records):
        told.append(len(records))
        return records[:, 0]

    mean = ClippedMean(score, score_range=(0.0, 1.0), divisor=8)
    points = point(0.0)
    gradient = ClippedGradient(score, points, weights=point(1.0), clip=1.0)
    for query in (
        mean,
        gradient,
        RowOutcome(lambda r: score(None, r)[0], row=1, value_range=(0.0, 1.0)),
    ):
        curator.evaluate(query)
    assert set(told) == {1, 10}, "ten made-up records, on which a score is tried"

    class Own(ClippedMean):
        pass

    for refused in (RowTable((0.0,), 1.0), Own(score, score_range=(0.0, 1.0))):
        with pytest.raises(InputError, match=r"^query=.*one_at_a_time"):
            curator.evaluate(refused)
    with pytest.raises(InputError, match=r"^one_at_a_time="):
        make(range(5))


def test_what_cannot_be_scored_alone_is_refused_before_any_private_record():
    class Locked:
        def __deepcopy__(self, memo):
            raise TypeError("no copy")

    for score, subject in (
        (lambda _, r: r[:, 0] if len(r) > 1 else [][0], None),
        (lambda _, r: r[:, 0], Locked()),
    ):
        curator = make()
        with pytest.raises(ScoreError, match="score a single record"):
            curator.evaluate(ClippedMean(score, subject, score_range=(0.0, 1.0)))


@attack("A19")
def test_the_statement_rests_on_less_and_a_ledger_is_for_one_way_of_scoring(on_disk, tmp_path):
    mean = FIRST_MEAN
    curator = make(**on_disk)
    assert curator.release(mean, GaussianMechanism(20.0)).value.isfinite()
    statement = curator.statement()
    assert "score-per-record" not in str(statement) + statement.to_json()
    assert "score-keeps-nothing" in statement.assumptions
    again = make(**on_disk)
    assert "score-keeps-nothing" in again.statement().assumptions
    with pytest.raises(LedgerMismatch, match="one_at_a_time"):
        make(**on_disk, one_at_a_time=False)
    other = {**on_disk, "ledger": str(tmp_path / "m.db")}
    plain = make(**other, one_at_a_time=False)
    assert "score-per-record" in plain.statement().assumptions
    with pytest.raises(LedgerMismatch, match="one_at_a_time"):
        make(**other)


def test_it_gives_what_all_at_once_gives_where_each_record_is_scored_by_itself():
    X = np.random.default_rng(0).normal(size=(20, 3))
    y = (X[:, 0] > 0).astype(int)
    model = LogisticRegression().fit(X, y)
    units = PrivacyUnit("person", groups=np.arange(20) // 3)

    def right(model, records):
        return model.predict(records[0]) == records[1]

    for unit in (PrivacyUnit("record"), units):
        one, all_at_once = (
            exact_sum(right, (X, y), model, unit=unit, one_at_a_time=way) for way in (True, False)
        )
        assert one == all_at_once
