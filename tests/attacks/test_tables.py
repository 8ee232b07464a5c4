"""One cell of a private table must not change the form, and with it the scores, of other records.
Each attack here won once.
"""

import contextlib
import decimal
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from dpbo import DPSearch, Privacy, PrivacyUnit, Source
from dpbo.errors import InputError, ScoreError, UsageError
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import ClippedMean, ClippedSum, IntegerSum
from dpbo.records.form import Form
from dpbo.records.view import PrivateView
from tests.attacks.marks import attack
from tests.attacks.setups import EXACT, TERMS, of, owner

pytestmark = attack("A34")
ROWS = 6
HOSTILE: list[Any] = [
    None,
    math.nan,
    math.inf,
    2**70,
    "a word",
    "",
    b"bytes",
    True,
    1j,
    pd.Timestamp("2020-05-05", tz="Asia/Tokyo"),
    np.datetime64("9999-01-01"),
    pd.NA,
    decimal.Decimal("1.5"),
    (1, 2),
    np.float32(3.0),
    object(),
]


def public_table():
    dates = pd.to_datetime(
        ["2020-01-01", "2021-06-01", "2022-01-01", "2020-01-01", "2021-06-01", "2020-03-01"]
    )
    return pd.DataFrame(
        {
            "whole": [1, 2, 3, 1, 2, 7],
            "float": [0.5, 1.0, math.nan, 2.0, 3.0, 0.5],
            "flag": [True, False, True, True, False, False],
            "text": ["a", "b", "c", "7", "b", "a word"],
            "object": pd.Series(["x", "y", None, "x", "y", "x"], dtype=object),
            "counts": pd.Series([1, None, 2, 3, 3, 1], dtype=object),
            "category": pd.Categorical(["u", "v", "w", "u", None, "v"], categories=["w", "u", "v"]),
            "zoned": dates.tz_localize("Europe/Berlin"),
            "date": dates,
            "absent": [math.nan] * ROWS,
        }
    )


PUBLIC = public_table()


def column_of(cells):
    """Cells of any kind, as they are."""
    return pd.Series(np.fromiter(cells, dtype=object, count=len(cells)), dtype=object)


@pytest.mark.parametrize("name", PUBLIC)
def test_one_cell_changes_no_other_record_of_a_column(name):
    """Whether the column comes as objects, or as what pandas infers from all of its cells."""
    public = PUBLIC[[name]]
    form = Form.of(public)
    expected = [*map(repr, form.cast(public)[0][name])]
    for hostile in HOSTILE:
        cells = PUBLIC[name].tolist()
        cells[1] = hostile
        column = column_of(cells).set_axis(np.arange(ROWS) + 5)
        privates = [column]
        # Such cells are no categories, and pandas 2 infers nothing from a whole number beyond all
        # floats.
        for make in (column.infer_objects, lambda column=column: column.astype("category")):
            with contextlib.suppress(TypeError, ValueError, ArithmeticError):
                privates.append(make())
        for private in privates:
            cast, unfit = form.cast(private.to_frame(name))
            assert cast[name].dtype == PUBLIC[name].dtype
            assert [*map(repr, cast[name].drop(index=1))] == expected[:1] + expected[2:], hostile
            assert unfit.sum() == unfit[1], hostile


ARRAYS = {
    "floats": np.array([[0.5, 1.0], [2.0, 3.0], [1.0, 1.0], [0.0, 2.0]]),
    "words": np.array(["a", "b", "c", "a"]),
    "objects": np.array([["a", "1"], ["b", "2"], ["c", None], ["a", "1"]], dtype=object),
    "dates": np.array(
        ["2020-01-01", "2021-01-01", "2020-01-01", "2022-01-01"], dtype="datetime64[s]"
    ),
    "series": pd.Series([1, 2, 3, 1], name="age"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_one_cell_changes_no_other_record_of_an_array_or_a_series(kind):
    public = ARRAYS[kind]
    form = Form.of({"part": (public,)})
    expected = form.cast({"part": (public,)})[0]["part"][0]
    for hostile in HOSTILE:
        # As Python's objects, but for dates.
        cells = [*public] if kind == "dates" else [*np.asarray(public, dtype=object).ravel()]
        cells[-1] = hostile
        private: Any = column_of(cells).to_numpy().reshape(public.shape)
        if isinstance(public, pd.Series):
            private = column_of(cells)
            with contextlib.suppress(OverflowError):
                private = private.infer_objects()
        cast, unfit = form.cast({"part": (private,)})
        found = cast["part"][0]
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        assert [*map(repr, found[:3])] == [*map(repr, expected[:3])], hostile
        assert not unfit[:3].any()


@pytest.mark.parametrize(
    "public",
    [
        pytest.param(np.zeros(2, dtype=[("age", "i4"), ("job", "U5")]), id="named fields"),
        pytest.param(np.array([["a", 1], ["b", 2]], dtype=object), id="array of text and numbers"),
        pytest.param(pd.DataFrame({"a": [1, "one"]}), id="column of text and numbers"),
    ],
)
def test_public_cells_of_several_types_are_refused_by_name(public):
    with pytest.raises(InputError, match=r"^schema.*as a DataFrame"):
        Form.of(public, "schema")


def test_sparse_records_are_cast():
    whole = csr_matrix(np.array([[1, 0], [0, 2]]))
    cast, unfit = Form.of(whole).cast(
        csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0], [math.nan, 0.0]]))
    )
    assert cast.dtype == whole.dtype
    # A half becomes the nearest whole number: 0, the even one.
    assert unfit.tolist() == [False, False, True]


def test_tensors_are_cast():
    cast, unfit = Form.of(torch.tensor([1, 2])).cast(torch.tensor([1.0, math.nan, 1e30, 2.5]))
    assert cast.dtype == torch.int64
    assert cast[[0, 3]].tolist() == [1, 2]
    assert unfit.tolist() == [False, True, True, False]


FRAME = PUBLIC[["whole", "float"]]


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(FRAME, id="table"),
        pytest.param(FRAME["whole"], id="column"),
        pytest.param((FRAME, np.zeros(ROWS)), id="in a tuple"),
        pytest.param({"a": {"b": (np.zeros(ROWS), FRAME)}}, id="in dicts"),
        pytest.param(np.array([1, None] * 3, dtype=object), id="objects"),
        pytest.param(Source(lambda: FRAME), id="source"),
    ],
)
def test_without_public_records_no_form_that_follows_from_all_cells_is_taken(records):
    with pytest.raises(InputError, match=r"^records=.*example="):
        owner(records)


@pytest.mark.parametrize(
    "records",
    [
        np.zeros(ROWS),
        torch.zeros(ROWS),
        [{"a": 1}] * ROWS,
        csr_matrix(np.eye(ROWS)),
    ],
    ids=["floats", "tensor", "list", "sparse"],
)
def test_records_of_one_dtype_need_no_public_form(records):
    owner(records)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 2, 2)])
def test_an_array_without_rows_is_cast(shape):
    """Such as the shard of a rank that holds no record."""
    cast, unfit = Form.of(np.ones((2, *shape[1:]))).cast(np.zeros(shape, dtype=np.float32))
    assert cast.shape == shape
    assert cast.dtype == np.float64
    assert len(unfit) == 0


def test_a_form_without_rows_is_a_public_form():
    owner(FRAME, schema=FRAME.iloc[:0])


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pd.Series([1, None], dtype="Int64"), id="nullable numbers"),
        pytest.param(pd.Series(pd.arrays.SparseArray([0, 1])), id="sparse"),
        pytest.param(pd.Series(pd.Categorical([1, None], categories=[1, 2])), id="categories"),
    ],
)
def test_a_public_form_whose_dtype_follows_from_missing_values_is_refused(column):
    with pytest.raises(UsageError, match=r"^example.*'age'"):
        Form.of(column.to_frame("age"))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_table_of_floats_is_cast_as_its_columns_are(dtype):
    """All cells at once, where a column of text beside them has each column cast by itself."""
    odd = [None, "1e3", "text", decimal.Decimal("0.1"), True, 10**30, float("inf"), 1e-8]
    tables = [
        pd.DataFrame({"a": odd, "b": odd[::-1]}, dtype=object),
        pd.DataFrame({"b": [0.1, np.nan], "a": np.array([1e-45, 7.0], dtype="float32"), "z": 1}),
    ]
    public = pd.DataFrame({"a": [0.5], "b": [0.25]}, dtype=dtype)
    for table in tables:
        given = table.copy()
        found, unfit = Form.of(public).cast(table)
        alone, _ = Form.of(public.assign(word="x")).cast(table.assign(word="x"))
        pd.testing.assert_frame_equal(found, alone.drop(columns="word"), check_exact=True)
        assert found.to_numpy().flags.f_contiguous
        assert not unfit.any()
        found.iloc[:] = 0.0
        pd.testing.assert_frame_equal(table, given)


def test_a_public_form_with_two_columns_of_one_name_is_refused():
    with pytest.raises(InputError, match="columns have different names"):
        Form.of(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_columns_come_in_the_public_order():
    form = Form.of(PUBLIC[["whole", "text"]])
    cast, _ = form.cast(PUBLIC[["text", "date", "whole"]])
    assert [*cast.columns] == ["whole", "text"]


def test_a_column_that_lacks_is_named_and_a_private_one_is_not():
    with pytest.raises(UsageError, match=r"^example.*one column 'text'") as refused:
        Form.of(PUBLIC[["whole", "text"]]).cast(PUBLIC[["whole", "date"]])
    assert "date" not in str(refused.value)


@pytest.mark.parametrize(
    "public",
    [PUBLIC.to_numpy(), [1] * ROWS, (PUBLIC,), {"a": PUBLIC}],
    ids=["array", "list", "tuple", "dict"],
)
def test_a_public_form_of_another_kind_is_refused(public):
    with pytest.raises(UsageError, match=r"^schema"):
        Form.of(public, "schema").cast(PUBLIC)


def joined(_subject, table):
    """Whether the text of a record ends as the public ones do: with ".0" it does not."""
    return ~(table["age"].astype(str) + "!").str.contains(".", regex=False)


def exact_sum(records, score=joined, **settings):
    curator = owner(records, allow_repeated=True, **settings)
    return number(curator._answer(curator.evaluate(ClippedSum(score, score_range=(0.0, 1.0))))[1])


def number(answer):
    assert isinstance(answer, IntegerSum)
    return answer.numerators.item() * answer.quanta[0]


def test_a_missing_value_moves_the_exact_sum_by_one_at_most():
    public = pd.DataFrame({"age": [30, 41, 57]})
    private = pd.DataFrame({"age": np.arange(300) % 90})
    neighbour = private.astype(object)
    neighbour.loc[7, "age"] = None
    assert exact_sum(private, example=public) == 300.0
    for records in (neighbour, neighbour.infer_objects(), Source(neighbour.infer_objects)):
        assert exact_sum(records, example=public) == 299.0, "the record without an age is the worst"


AGES = pd.DataFrame({"age": [30, 41]})
ONE_UNFIT = pd.DataFrame({"age": pd.Series([1, None, 3, 4], dtype=object)})


def total(view, score=lambda _, table: table["age"]):
    return number(ClippedSum(score, score_range=(-10.0, 10.0))._evaluate(view, None))


def viewed(groups=None):
    return PrivateView.of(
        ONE_UNFIT, PrivacyUnit("p", groups=groups), units_are_public=True, form=Form.of(AGES)
    )


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(viewed, 1 - 10 + 3 + 4, id="all"),
        pytest.param(lambda: viewed().single(1), -10.0, id="single"),
        pytest.param(lambda: viewed([0, 0, 1, 1]), (1 - 10) / 2 + (3 + 4) / 2, id="groups"),
    ],
)
def test_only_an_unfit_record_counts_as_the_worst(view, expected):
    assert total(view()) == expected


def test_only_an_unfit_record_counts_as_the_worst_where_the_score_fails_on_another():
    score = lambda _, table: [1.0 / (age - 4) for age in table["age"]]  # noqa: E731
    assert total(viewed(), score) == pytest.approx(-1 / 3 - 10 - 1 - 10)


def test_the_outcome_of_an_unfit_record_is_the_worst():
    outcome = RowOutcome(
        lambda table: float(table["age"].iloc[0]), row=1, value_range=(0.0, 50.0), worst="upper"
    )
    assert owner(ONE_UNFIT, example=AGES).evaluate(outcome) is not None
    assert number(outcome._evaluate(viewed(), None)) + outcome.affine(4)[0][0] == 50.0


@attack("A5", "A26")
def test_a_label_that_no_training_record_has_is_the_worst_score_of_its_record():
    """It is not refused: that would tell of the record."""
    random = np.random.default_rng(1)
    X = random.normal(size=(300, 2))
    y = random.integers(0, 2, 300)
    rows = np.vstack([X[200:], X[:1]])
    for odd, container in (
        (math.nan, pd.Series),
        (2, list),
        ("x", lambda label: np.array(label, dtype=object)),
    ):
        privacy = Privacy(mechanism=EXACT)
        search = DPSearch(
            LogisticRegression(), {"C": [1.0, 2.0]}, privacy=privacy, strategy="bo", n_iter=2
        )
        search.fit(X[:200], y[:200], rows, container([*y[200:].tolist(), odd]))
        results = search.results_
        for parameters, score in zip(results["params"], results["mean_test_score"], strict=True):
            model = LogisticRegression(**parameters).fit(X[:200], y[:200])
            right = (model.predict(X[200:]) == y[200:]).sum()
            assert score == pytest.approx(right / 101, abs=1e-3), odd


@attack("A28")
def test_one_table_whose_dtypes_follow_from_both_parts_is_not_split():
    y = np.arange(20) % 2
    settings = of(budget=TERMS["budget"], test_size=0.5, n_iter=2)
    for table, labels, name in (
        (pd.DataFrame({"a": y}), y, "X_train"),
        (y[:, None], pd.Series(y), "y_train"),
    ):
        with pytest.raises(InputError, match=rf"^{name}=.*Read the two parts apart"):
            DPSearch(LogisticRegression(), {"C": [1.0, 2.0]}, **settings).fit(table, labels)


GROUPED = {
    "mean of a group": lambda table: table.groupby("zip")["income"].transform("mean") > 50.0,
    "largest of a group": lambda table: (
        table["income"] >= table.groupby("zip")["income"].transform("max")
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_statistic_of_a_group_is_noticed_where_no_two_public_records_share_one(name):
    public = pd.DataFrame({"zip": list("abcde"), "income": [20.0, 40.0, 60.0, 80.0, 99.0]})
    private = pd.DataFrame({"zip": list("aabbc"), "income": [20.0, 40.0, 60.0, 80.0, 99.0]})
    curator = owner(private, example=public, allow_repeated=True)
    with pytest.raises(ScoreError, match="does not score each record by itself"):
        curator.evaluate(
            ClippedMean(
                lambda _, table: GROUPED[name](table).to_numpy(), None, score_range=(0.0, 1.0)
            )
        )
    assert curator.evaluate(
        ClippedMean(
            lambda _, table: table["income"].to_numpy() > 50.0, None, score_range=(0.0, 1.0)
        )
    )
