"""One cell of a private table must not change the form, and with it the scores, of other records. Each attack here won once."""

import contextlib
import datetime
import decimal
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder

from dpbo import Adjacency, Budget, Curator, DPSearch, Privacy, PrivacyUnit, Source
from dpbo.curator.public_form import Form
from dpbo.curator.records import PrivateView
from dpbo.errors import InputError, ScoreError, UsageError
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import ClippedMean, ClippedSum, IntegerSum
from dpbo.search import Choice

pytestmark = pytest.mark.attack("A34")
TERMS: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget(1.0, 1e-6)}
ROWS = 6
HOSTILE: list[Any] = [
    None, math.nan, math.inf, 2**70, 10**400, "a word", "7", "", "x" * 10_000, "a new category", b"bytes", True, -0.0, 1j,
    pd.Timestamp("2020-05-05", tz="Asia/Tokyo"), datetime.date(2020, 1, 1), datetime.timedelta(1), np.datetime64("9999-01-01"),
    pd.NaT, pd.NA, decimal.Decimal("1.5"), decimal.Decimal("sNaN"), (1, 2), [1, [2]], {"a": 1}, np.float32(3.0), np.int8(2), object(),
]  # fmt: skip


def public_table():
    dates = pd.to_datetime(["2020-01-01", "2021-06-01", "2022-01-01", "2020-01-01", "2021-06-01", "2020-03-01"])
    return pd.DataFrame(
        {
            "whole": [1, 2, 3, 1, 2, 7],
            "float": [0.5, 1.0, math.nan, 2.0, 3.0, 0.5],
            "small": np.array([1, 2, 3, 4, 5, 6], dtype=np.float32),
            "flag": [True, False, True, True, False, False],
            "text": ["a", "b", "c", "7", "b", "a word"],
            "object": pd.Series(["x", "y", None, "x", "y", "x"], dtype=object),
            "mixed": pd.Series([1, "one", 2.5, None, True, "x"], dtype=object),
            "category": pd.Categorical(["u", "v", "w", "u", None, "v"], categories=["w", "u", "v"]),
            "ordered": pd.Categorical([3.0, 1.0, 2.0, 1.0, 1.0, 3.0], categories=[3.0, 1.0, 2.0], ordered=True),
            "code": pd.Categorical([30, 10, 20, 10, 10, 30]),
            "zoned": dates.tz_localize("Europe/Berlin"),
            "date": dates,
            "duration": pd.to_timedelta([1, 2, 3, 1, 2, 3], unit="h"),
            "absent": [math.nan] * ROWS,
        }
    )


PUBLIC = public_table()
ENCODERS = [OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)]
ENCODERS = [encoder.fit(PUBLIC[["whole", "text", "object", "code", "flag"]]) for encoder in ENCODERS]


def seen(table):
    """What encoders, joined texts and category codes make of each record, as text: equal texts are equal bits."""
    words = table.astype(object).map(repr).agg("-".join, axis=1)
    texts = table["whole"].astype(str) + "-" + table["text"].astype(str) + table["object"] + table["category"].astype(str)
    codes = [table[name].cat.codes.map(str) for name in ("category", "ordered", "code")]
    columns = [words, texts, *codes]
    for encoder in ENCODERS:
        encoded = encoder.transform(table[encoder.feature_names_in_])
        dense = encoded.toarray() if hasattr(encoded, "toarray") else encoded
        columns.append(pd.Series([row.tobytes() for row in np.asarray(dense, dtype=np.float64)]))
    numbers = table[["whole", "float", "small"]].to_numpy()
    columns.append(pd.Series([f"{numbers.dtype}{row.tobytes()}" for row in numbers]))
    return [tuple(str(column.iloc[i]) for column in columns) for i in range(len(table))]


@pytest.mark.parametrize("name", PUBLIC)
def test_one_cell_changes_no_other_record_of_a_column(name):
    """Whether the column comes as objects, or as what pandas infers from all of its cells."""
    public = PUBLIC[[name]]
    form = Form.of(public)
    expected = [*map(repr, form.cast(public)[0][name])]
    for hostile in HOSTILE:
        cells = PUBLIC[name].tolist()
        cells[1] = hostile
        column = pd.Series(np.fromiter(cells, dtype=object, count=ROWS), index=np.arange(ROWS) + 5, dtype=object)
        privates = [column]
        # Such cells are no categories, and pandas 2 infers nothing from a whole number beyond all floats.
        for make in (column.infer_objects, lambda column=column: column.astype("category")):
            with contextlib.suppress(TypeError, ValueError, ArithmeticError):
                privates.append(make())
        for private in privates:
            cast, unfit = form.cast(private.to_frame(name))
            assert cast[name].dtype == PUBLIC[name].dtype
            assert [*map(repr, cast[name].drop(index=1))] == expected[:1] + expected[2:], hostile
            assert unfit.sum() == unfit[1], hostile


def test_encoders_texts_and_codes_of_other_records_keep_their_bits():
    form = Form.of(PUBLIC)
    expected = seen(form.cast(PUBLIC)[0])
    for hostile in HOSTILE[::3]:
        table = PUBLIC.astype(object)
        for name in PUBLIC:
            cells = list(PUBLIC[name])
            cells[1] = hostile
            table[name] = pd.Series(np.fromiter(cells, dtype=object, count=ROWS))
        found = seen(form.cast(table)[0])
        assert [found[i] for i in (0, 2, 3, 4, 5)] == [expected[i] for i in (0, 2, 3, 4, 5)], hostile


ARRAYS = {
    "whole numbers": np.array([1, 2, 3, 1]),
    "floats": np.array([[0.5, 1.0], [2.0, 3.0], [1.0, 1.0], [0.0, 2.0]]),
    "words": np.array(["a", "b", "c", "a"]),
    "objects": np.array([["a", 1], ["b", 2], ["c", None], ["a", 1]], dtype=object),
    "dates": np.array(["2020-01-01", "2021-01-01", "2020-01-01", "2022-01-01"], dtype="datetime64[s]"),
    "series": pd.Series([1, 2, 3, 1], name="age"),
    "words in a series": pd.Series(["a", "b", "c", "a"]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_one_cell_changes_no_other_record_of_an_array_or_a_series(kind):
    public = ARRAYS[kind]
    form = Form.of({"part": (public,)})
    expected = form.cast({"part": (public,)})[0]["part"][0]
    for hostile in HOSTILE:
        cells = np.fromiter(np.asarray(public, dtype=object).reshape(-1), dtype=object, count=np.asarray(public).size)
        if kind == "dates":
            cells = np.fromiter(public, dtype=object, count=4)
        cells[-1] = hostile
        cells = cells.reshape(np.asarray(public).shape)
        private = cells
        if isinstance(public, pd.Series):
            private = pd.Series(cells, dtype=object)
            with contextlib.suppress(OverflowError):
                private = private.infer_objects()
        cast, unfit = form.cast({"part": (private,)})
        found = cast["part"][0]
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        assert [*map(repr, found[:3])] == [*map(repr, expected[:3])], hostile
        assert not unfit[:3].any()


def test_structured_sparse_and_torch_records_are_cast_too():
    dtype = np.dtype([("age", "i4"), ("job", "U5"), ("dose", "f4")])
    public = np.array([(30, "baker", 0.5), (40, "nurse", 1.0)], dtype=dtype)
    wide = np.array(
        [(30, "baker", 0.5), (40, "a longer word", 1.0), (2.5, "nurse", math.nan)],
        dtype=[("dose", "f8"), ("job", "U20"), ("age", "f8")][::-1],
    )
    cast, unfit = Form.of(public).cast(wide)
    assert cast.dtype == dtype
    assert cast[0] == public[0]
    assert unfit.tolist() == [False, True, True]
    whole = csr_matrix(np.array([[1, 0], [0, 2]]))
    cast, unfit = Form.of(whole).cast(csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0], [math.nan, 0.0]])))
    assert cast.dtype == whole.dtype
    assert unfit.tolist() == [False, True, True]
    cast, unfit = Form.of(torch.tensor([1, 2])).cast(torch.tensor([1.0, math.nan, 1e30, 2.5]))
    assert cast.dtype == torch.int64
    assert unfit.tolist() == [False, True, True, True]


def test_without_public_records_no_form_that_follows_from_all_cells_is_taken():
    frame = PUBLIC[["whole", "float"]]
    structured = np.zeros(ROWS, dtype=[("a", "i4")])
    for records in (
        frame, frame["whole"], (frame, np.zeros(ROWS)), {"a": {"b": (np.zeros(ROWS), frame)}}, np.array(["a"] * ROWS),
        np.array([1, None] * 3, dtype=object), structured, Source(lambda: frame),
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"^records=.*example="):
            Curator(records, **TERMS)
    for records in (np.zeros(ROWS), np.arange(ROWS), torch.zeros(ROWS), [{"a": 1}] * ROWS, csr_matrix(np.eye(ROWS))):
        Curator(records, **TERMS)
    Curator(frame, **TERMS, schema=frame.iloc[:0])


def test_a_public_form_whose_dtype_follows_from_missing_values_is_refused():
    for column in (
        pd.Series([1, None], dtype="Int64"), pd.Series([True, None], dtype="boolean"), pd.Series(pd.arrays.SparseArray([0, 1])),
        pd.Series(pd.Categorical([1, None], categories=[1, 2])), pd.Series(pd.period_range("2020", periods=2, freq="D")),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"^example.*'age'"):
            Form.of(column.to_frame("age"))
    with pytest.raises(InputError, match="columns have different names"):
        Form.of(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_columns_come_in_the_public_order_and_one_that_lacks_is_named():
    form = Form.of(PUBLIC[["whole", "text"]])
    cast, _ = form.cast(PUBLIC[["text", "date", "whole"]])
    assert [*cast.columns] == ["whole", "text"]
    with pytest.raises(UsageError, match=r"^example.*one column 'text'") as refused:
        form.cast(PUBLIC[["whole", "date"]])
    assert "date" not in str(refused.value)
    for public in (PUBLIC.to_numpy(), PUBLIC["whole"], [1] * ROWS, torch.zeros(ROWS), (PUBLIC,), {"a": PUBLIC}):
        with pytest.raises(UsageError, match=r"^schema"):
            Form.of(public, "schema").cast(PUBLIC)


def joined(_subject, table):
    """Whether the text of a record ends as the public ones do: with ".0" it does not."""
    return ~(table["age"].astype(str) + "!").str.contains(".", regex=False)


def exact_sum(records, score=joined, **settings):
    curator = Curator(records, **TERMS, allow_repeated=True, **settings)
    answer = curator._answer(curator.evaluate(ClippedSum(score, score_range=(0.0, 1.0))))[1]
    return answer.numerators.item() * answer.quanta[0]


def test_a_missing_value_moves_the_exact_sum_by_one_at_most():
    public, private = pd.DataFrame({"age": [30, 41, 57]}), pd.DataFrame({"age": np.arange(300) % 90})
    neighbour = private.astype(object)
    neighbour.loc[7, "age"] = None
    assert exact_sum(private, example=public) == 300.0
    for records in (neighbour, neighbour.infer_objects(), Source(neighbour.infer_objects)):
        assert exact_sum(records, example=public) == 299.0, "the record without an age is the worst"


def test_an_unfit_record_counts_as_worst_alone_in_samples_outcomes_and_groups():
    public = pd.DataFrame({"age": [30, 41]})
    private = pd.DataFrame({"age": pd.Series([1, None, 3, 4], dtype=object)})
    view = PrivateView.of(private, PrivacyUnit("record"), units_are_public=True, form=Form.of(public))
    ages = ClippedSum(lambda _, table: table["age"], score_range=(-10.0, 10.0))

    def total(seen):
        answer = ages._evaluate(seen, None)
        assert isinstance(answer, IntegerSum)
        return answer.numerators.item() * answer.quanta[0]

    assert total(view) == 1 - 10 + 3 + 4
    assert total(view.poisson_sample(1.0)) == 1 - 10 + 3 + 4
    assert total(view.single(1)) == -10.0
    grouped = PrivateView.of(private, PrivacyUnit("p", groups=[0, 0, 1, 1]), units_are_public=True, form=Form.of(public))
    assert total(grouped) == (1 - 10) / 2 + (3 + 4) / 2
    outcome = RowOutcome(lambda table: float(table["age"].iloc[0]), row=1, value_range=(0.0, 50.0), worst="upper")
    answer = outcome._evaluate(view, None)
    assert isinstance(answer, IntegerSum)
    curator = Curator(private, **TERMS, example=public)
    assert curator.evaluate(outcome) is not None
    assert answer.numerators.item() * answer.quanta[0] + outcome.affine(4)[0][0] == 50.0
    failing = ClippedSum(lambda _, table: [1.0 / (age - 4) for age in table["age"]], score_range=(-10.0, 10.0))
    answer = failing._evaluate(view, None)
    assert isinstance(answer, IntegerSum)
    assert answer.numerators.item() * answer.quanta[0] == pytest.approx(-1 / 3 - 10 - 1 - 10), "also where the score fails on another"


def test_a_search_scores_other_records_as_if_the_odd_one_were_not_there():
    """The text of an age, one-hot encoded: with one missing age all became "41.0", which no training record has."""
    random = np.random.default_rng(0)
    ages, told = random.integers(20, 40, 400), list[Any]()
    train, labels = pd.DataFrame({"age": ages[:100]}), (ages > 30).astype(int)
    model = make_pipeline(FunctionTransformer(lambda X: X.astype(str)), OneHotEncoder(handle_unknown="ignore"), LogisticRegression())

    def scoring(model, X, y):
        told.append(model.predict_proba(X)[np.arange(len(y)), y])
        return told[-1]

    def scored(X, y):
        told.clear()
        search = DPSearch(
            model,
            {"logisticregression__C": [1.0, 2.0]},
            budget=TERMS["budget"],
            strategy=Choice(candidates=None),
            n_iter=2,
            scoring=scoring,
            score_range=(0.0, 1.0),
            privacy=Privacy(allow_repeated=True),
        )
        search.fit(train, labels[:100], X, y)
        return [scores for scores in told if len(scores) == 300]

    private, own = pd.DataFrame({"age": ages[100:]}), labels[100:]
    expected = scored(private, own)
    assert expected
    for odd, container in ((None, pd.Series), ("forty", list), (10**30, lambda label: np.array(label, dtype=object))):
        cells, label = private["age"].tolist(), own.tolist()
        cells[3], label[5] = odd, odd
        found = scored(pd.DataFrame({"age": cells}), container(label))
        for before, after in zip(expected, found, strict=True):
            assert np.array_equal(np.delete(before, [3, 5]), np.delete(after, [3, 5])), odd


@pytest.mark.attack("A5", "A26")
def test_a_label_that_is_none_of_the_training_labels_is_the_worst_score_of_that_record_alone():
    """It is not refused: that would tell of the record."""
    random = np.random.default_rng(1)
    X, y = random.normal(size=(300, 2)), random.integers(0, 2, 300)
    rows = np.vstack([X[200:], X[:1]])
    for odd, container in ((math.nan, pd.Series), (2, list), ("x", lambda label: np.array(label, dtype=object))):
        exact = Privacy(mechanism=NoNoise(allow_not_private=True))
        search = DPSearch(LogisticRegression(), {"C": [1.0, 2.0]}, privacy=exact, strategy="bo", n_iter=2)
        search.fit(X[:200], y[:200], rows, container([*y[200:].tolist(), odd]))
        right = (search.best_estimator_.predict(X[200:]) == y[200:]).sum()
        assert search.best_score_ == pytest.approx(right / 101, abs=1e-3), odd


@pytest.mark.attack("A28")
def test_one_table_whose_dtypes_follow_from_both_parts_is_not_split():
    y = np.arange(20) % 2
    settings: dict[str, Any] = {"budget": TERMS["budget"], "test_size": 0.5, "n_iter": 2}
    for table, labels, name in ((pd.DataFrame({"a": y}), y, "X_train"), (y[:, None], pd.Series(y), "y_train")):
        with pytest.raises(InputError, match=rf"^{name}=.*Read the two parts apart"):
            DPSearch(LogisticRegression(), {"C": [1.0, 2.0]}, **settings).fit(table, labels)


def test_the_release_of_a_table_with_an_odd_cell_works_from_end_to_end():
    public, private = pd.DataFrame({"age": [30, 41]}), pd.DataFrame({"age": [1, 2, None]})
    release = Curator(private, **TERMS, example=public).release(ClippedSum(joined, score_range=(0.0, 1.0)), GaussianMechanism(20.0))
    assert release.value.isfinite().all()


GROUPED = {
    "mean of a group": lambda table: table.groupby("zip")["income"].transform("mean") > 50.0,
    "rank in a group": lambda table: table.groupby("zip")["income"].rank() > 1.0,
    "largest of a group": lambda table: table["income"] >= table.groupby("zip")["income"].transform("max"),
}


@pytest.mark.attack("A34")
@pytest.mark.parametrize("name", GROUPED)
def test_a_statistic_of_a_group_is_noticed_on_public_records_of_which_no_two_are_in_one(name):
    public = pd.DataFrame({"zip": list("abcde"), "income": [20.0, 40.0, 60.0, 80.0, 99.0]})
    private = pd.DataFrame({"zip": list("aabbc"), "income": [20.0, 40.0, 60.0, 80.0, 99.0]})
    curator = Curator(private, unit="patient", adjacency="replace-one", budget=Budget(1.0, 1e-6), example=public, allow_repeated=True)
    with pytest.raises(ScoreError, match="does not score each record by itself"):
        curator.evaluate(ClippedMean(lambda _, table: GROUPED[name](table).to_numpy(), None, score_range=(0.0, 1.0)))
    assert curator.evaluate(ClippedMean(lambda _, table: table["income"].to_numpy() > 50.0, None, score_range=(0.0, 1.0)))
