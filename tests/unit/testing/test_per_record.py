"""Scores that let one record move others are found in every container, for every model, and what
cannot be tried is refused.
"""

import contextlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import LabelEncoder

from dpbo.errors import ScoreError
from dpbo.gibo import ClippedGradient
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import CandidateScores, ClippedMean, QuantileUtilities
from dpbo.records.view import PrivateView
from dpbo.testing import check_per_record
from tests.attacks.marks import attack, slip
from tests.setups import DOUBLE, owner

pytestmark = attack("A9", "A34")
AGES = [31, 45, 45, 62, 28, 50]
JOBS = ["nurse", "baker", "clerk", "nurse", "baker", "clerk"]
DOSES = [0.5, 1.5, 2.0, 0.25, 1.0, 3.0]
FRAME = pd.DataFrame({"age": AGES, "job": JOBS, "dose": DOSES})
ROWS = [
    {"age": age, "job": job, "dose": dose} for age, job, dose in zip(AGES, JOBS, DOSES, strict=True)
]
PUBLIC_CODES = {"nurse": 1, "baker": 2, "clerk": 3}
CONTAINERS = {"a table": FRAME, "a list": ROWS}


def column(records, name):
    """As users take it: numpy or pandas then chooses the dtype by all cells."""
    return (
        pd.Series([row[name] for row in records])
        if isinstance(records, list)
        else pd.Series(records[name])
    )


def numbers(records, name):
    return pd.to_numeric(column(records, name), errors="coerce").astype(float)


LEAKS = {
    "mean imputation": lambda _, r: numbers(r, "dose").fillna(numbers(r, "dose").mean()),
    "category codes": lambda _, r: column(r, "job").astype("category").cat.codes.astype(float),
    "LabelEncoder": lambda _, r: LabelEncoder().fit_transform(column(r, "job").astype(str)) * 1.0,
    "the batch's maximum": lambda _, r: numbers(r, "dose") / numbers(r, "dose").max(),
    "rank": lambda _, r: numbers(r, "dose").rank(),
    "factorize": lambda _, r: pd.factorize(column(r, "job"))[0] * 1.0,
    "number of categories": lambda _, r: (
        numbers(r, "age") * 0 + len(set(map(str, column(r, "job"))))
    ),
    "how often": lambda _, r: column(r, "job").map(column(r, "job").value_counts()).astype(float),
    "text of a dtype that pandas chose": lambda _, r: (
        column(r, "job").map(PUBLIC_CODES).astype(str).str.len() * 1.0
    ),
    "the group's mean": lambda _, r: (
        numbers(r, "dose")
        - numbers(r, "dose").groupby(column(r, "job").astype(str)).transform("mean")
    ),
    "any missing": lambda _, r: numbers(r, "age") * 0 + numbers(r, "dose").isna().any(),
}
HONEST = {
    "numbers": lambda _, r: numbers(r, "dose") * 2,
    "texts": lambda _, r: column(r, "job").astype(str).map(len) * 1.0,
    "a public mean": lambda _, r: numbers(r, "dose").fillna(1.0) - 1.0,
    "a public set": lambda _, r: column(r, "job").isin(["nurse", "baker"]) * 1.0,
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_scores_that_depend_on_the_batch_are_found_in_every_container(container):
    records = CONTAINERS[container]
    for score in HONEST.values():
        check_per_record(score, None, records, trials=1)
    missed = []
    for name, score in LEAKS.items():
        with contextlib.suppress(AssertionError):
            check_per_record(score, None, records, trials=1)
            missed.append(name)
    assert not missed


@slip(
    "a score fills by the mean, codes categories as they come, or takes a group's mean",
    "refused before a charge: a trial on copies of `example=`'s records",
)
def test_the_same_scores_are_refused_before_a_charge_on_the_examples_of_a_curator():
    for records in (FRAME, ROWS):
        for score in (
            LEAKS["mean imputation"],
            LEAKS["category codes"],
            LEAKS["the batch's maximum"],
        ):
            curator = owner(records, example=records, allow_repeated=True)
            with pytest.raises(ScoreError, match="each record by itself"):
                curator.evaluate(ClippedMean(score, score_range=(-10.0, 10.0)))
        honest = ClippedMean(HONEST["a public mean"], score_range=(-10.0, 10.0))
        owner(records, example=records, allow_repeated=True).evaluate(honest)


def test_sparse_rows_texts_and_dates_are_replaced_by_hostile_ones_too():
    sparse = csr_matrix(np.eye(6))
    words = np.array(JOBS)
    leaks = [
        (lambda _, r: np.asarray(r.sum(1))[:, 0] + (r.max() > 100), sparse),
        (lambda _, r: np.array([1.0 * ("" in r.tolist())] * len(r)), words),
        (
            lambda _, r: r.astype("datetime64[D]").astype(float) * 0 + np.isnat(r).any(),
            np.array(["2020-01-01"] * 6, dtype="datetime64[s]"),
        ),
    ]
    for leak, records in leaks:
        with pytest.raises(AssertionError, match="moved other records"):
            check_per_record(leak, None, records, trials=2)


class Network(torch.nn.Module):
    """Batch norm and dropout; in training mode its scores are random, and depend on the batch."""

    def __init__(self, dropout=0.5):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.BatchNorm1d(2), torch.nn.Dropout(dropout), torch.nn.Linear(2, 1)
        )

    def forward(self, X):
        return self.layers(X)


def predicted(model, records):
    with torch.no_grad():
        return model(records)[:, 0]


RECORDS = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
EXAMPLE = RECORDS[:6] + 0.5


def ask(score, subject, **changed):
    curator = owner(RECORDS, **{"example": EXAMPLE, "allow_repeated": True, **changed})
    return curator, ClippedMean(score, subject, score_range=(-50.0, 50.0))


def test_a_score_in_training_mode_is_tried_with_fixed_generators():
    """Dropout made it unrepeatable, and what cannot be repeated was passed over: batch norm beside
    it was accepted.
    """
    for model, accepted in (
        (Network(), False),
        (torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1)), True),
        (Network().eval(), True),
    ):
        curator, query = ask(predicted, model)
        if accepted:
            curator.evaluate(query)
        else:
            with pytest.raises(ScoreError, match="each record by itself"):
                curator.evaluate(query)
    check_per_record(predicted, Network().eval(), EXAMPLE, trials=2)


def test_the_generators_are_as_they_were():
    torch.manual_seed(5)
    np.random.seed(5)
    _, query = ask(lambda _, r: r[:, 0] + 0 * torch.rand(len(r)), None)
    before = torch.random.get_rng_state()
    check_per_record(query.score, None, EXAMPLE, trials=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.random.random() == np.random.RandomState(5).random()


def test_what_is_not_repeatable_is_refused():
    source = np.random.default_rng(0)

    def drawn(_, records):
        return records[:, 0] + torch.from_numpy(source.random(len(records)))

    curator, query = ask(drawn, None)
    with pytest.raises(ScoreError, match="not repeatable"):
        curator.evaluate(query)
    curator.mark_probed(query)
    with pytest.raises(ScoreError, match="not repeatable"):
        curator.evaluate(query)
    with pytest.raises(AssertionError, match="not repeatable"):
        check_per_record(drawn, None, EXAMPLE)


def test_every_model_is_tried_also_on_a_used_ledger(on_disk):
    """The first model is in evaluation mode, the second one was left in training mode."""
    kept = {**on_disk, "allow_repeated": False}
    sound = Network(0.0).eval()
    wrong = Network(0.0).train()
    curator, query = ask(predicted, sound, **kept)
    curator.release(query, GaussianMechanism(20.0))
    again, _ = ask(predicted, sound, **kept)
    written = curator.ledger.head().seq
    made_up, _ = ask(predicted, sound, example=None)
    for asked in (curator, again, made_up):
        with pytest.raises(ScoreError, match="each record by itself"):
            asked.evaluate(query.about(wrong))
        asked.evaluate(query.about(sound))
        with pytest.raises(ScoreError, match="each record by itself"):
            asked.evaluate(CandidateScores(predicted, [sound, wrong], score_range=(-50.0, 50.0)))
    assert curator.ledger.head().seq == written


def test_every_query_tries_its_score_for_each_point():
    curator, _ = ask(predicted, None)

    def at(x, records):
        return records[:, 0] if x[0] < 1 else records[:, 0] - records[:, 0].max()

    with pytest.raises(ScoreError, match="each record by itself"):
        curator.evaluate(
            QuantileUtilities(
                lambda _, r: r[:, 0] - r[:, 0].mean(), candidates=(0.0, 1.0), quantile=0.5
            )
        )
    points = torch.tensor([[0.0], [2.0]], dtype=DOUBLE)
    with pytest.raises(ScoreError, match="each record by itself"):
        curator.evaluate(
            ClippedGradient(at, points, weights=torch.ones(1, 2, dtype=DOUBLE), clip=1.0)
        )


SAMPLES, D = 40, 3
X = torch.randn(SAMPLES, D, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
Y = torch.arange(SAMPLES) % 2


def out_of_fold(_, records):
    X, y = records
    return cross_val_predict(LogisticRegression(), X.numpy(), y.numpy(), cv=3) == y.numpy()


def weighted_by_class(_, records):
    X, y = records
    plausible = (X.abs() < 9.0).all(1)
    counts = torch.bincount(y, minlength=2)
    return X[:, 0] * plausible * (len(y) / (2.0 * counts))[y]


FROM_THE_BATCH = {
    "cross_val_predict": out_of_fold,
    "class weights": weighted_by_class,
    "the maximum": lambda _, r: r[0][:, 0] / r[0][:, 0].max(),
    "the label's mean": lambda _, r: r[0][:, 0] - r[0][r[1] == 1][:, 0].mean(),
    "train mode": lambda _, r: torch.nn.BatchNorm1d(D, dtype=DOUBLE)(r[0])[:, 0].detach(),
}


@slip(
    "a score uses the batch: class weights, mean, maximum, `cross_val_predict`, train mode",
    "refused before a charge, without `example=`, too: a trial on made-up records",
)
@pytest.mark.parametrize("name", FROM_THE_BATCH)
def test_without_an_example_the_trial_is_on_made_up_rows_of_every_class(name):
    curator = owner((X, Y), allow_repeated=True)
    with pytest.raises(ScoreError, match="each record by itself"):
        curator.evaluate(ClippedMean(FROM_THE_BATCH[name], score_range=(-10.0, 10.0)))
    assert not any(curator.ledger.used().values())


def test_a_score_by_record_passes_on_made_up_rows_of_tensors_and_arrays():
    for records, score in (
        ((X, Y), lambda _, r: ((r[0][:, 0] > 0) == r[1].bool()).double()),
        (X.numpy(), lambda _, r: r[:, 0]),
        (Y, lambda _, r: torch.eye(2)[r][:, 1]),
    ):
        owner(records, allow_repeated=True).evaluate(ClippedMean(score, score_range=(0.0, 1.0)))


def test_made_up_rows_depend_on_no_record():
    made: list[Any] = [PrivateView.of_records(r).made_up() for r in ((X, Y), (X * 0, 1 + Y * 7))]
    (features, labels), others = made
    assert torch.equal(features, others[0])
    assert torch.equal(labels, others[1])
    assert features.shape[1:] == X.shape[1:]
    assert features.dtype is DOUBLE
    assert set(labels.tolist()) == {0, 1}


def wide_table(width):
    numbers = np.random.default_rng(0).normal(size=(5, width))
    return pd.DataFrame(numbers).add_prefix("column ")


def test_a_wide_table_is_tried_in_few_calls():
    # Each takes time with the width, so one for each column took its square: hours at 2,000.
    def refuses_missing(_, table):
        calls.append(1)
        if table.isna().any(axis=None):
            raise ValueError("missing values")
        return table.to_numpy().mean(1)

    counts = []
    for width in (64, 256):
        calls = list[int]()
        check_per_record(refuses_missing, None, wide_table(width), trials=1)
        counts.append(len(calls))
    assert counts[1] < 1.5 * counts[0]


def test_a_statistic_of_a_group_is_noticed_in_a_wide_table():
    """Whichever two columns it is made of."""
    table = wide_table(70)
    for group, value in ((0, 1), (5, 69), (64, 0)):

        def relative(_, table, group=group, value=value):
            key, number = table.iloc[:, group], table.iloc[:, value]
            return (number > number.groupby(key).transform("mean") + 0.1).to_numpy()

        with pytest.raises(AssertionError, match="moved other records' scores"):
            check_per_record(relative, None, table)


SOURCE = np.random.default_rng(0)
VISITS = pd.DataFrame(
    {
        "v": SOURCE.normal(size=50),
        "visits": SOURCE.integers(1, 30, 50),
        "kind": SOURCE.choice(["a", "b", "c"], 50),
        "gap": np.where(SOURCE.random(50) < 0.1, np.nan, SOURCE.normal(size=50)),
    }
)
FILLED = {
    "the mode of few": lambda _, r: r.kind.fillna(r.kind.mode().iloc[0]).map({"a": 1, "b": 2}),
    "the one before": lambda _, r: r.gap.ffill(),
    "where any is missing": lambda _, r: r.v if r.gap.isna().any() else r.v * 0.5,
    "outliers": lambda _, r: (r.v - r.v.mean()).abs() > 3 * r.v.std(),
    "the most": lambda _, r: r.index.isin(r.v.nlargest(10).index),
}


@slip(
    "a score fills by the mode or the cell above, or marks outliers by the deviation",
    "refused before a charge, with 5 and with 50 examples",
)
@pytest.mark.parametrize("name", FILLED)
def test_what_stands_in_for_missing_cells_is_noticed_with_few_and_many_examples(name):
    for count in (5, 50):
        curator = owner(VISITS, example=VISITS[:count], allow_repeated=True)
        with pytest.raises(ScoreError, match="each record by itself"):
            curator.evaluate(ClippedMean(FILLED[name], score_range=(-50.0, 50.0)))


def test_whole_numbers_stay_between_those_that_are_there():
    """A count of a thousand million kept a score busy for ever."""
    seen = set()

    def discounted(rate, records):
        visits = [int(visit) for visit in column(records, "visits").fillna(0)]
        seen.update(visits)
        return torch.tensor([sum(rate**k for k in range(v)) for v in visits])

    for records in (VISITS, VISITS.to_dict("records")):
        owner(records, example=records[:5], allow_repeated=True).evaluate(
            ClippedMean(discounted, 0.5, score_range=(0.0, 2.0))
        )
    assert max(seen) == VISITS["visits"].max()
