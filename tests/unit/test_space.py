"""Space: RandomizedSearchCV's words, BoTorch's cube."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from dpbo import Space
from dpbo.errors import InputError
from tests.setups import DOUBLE

SPACE = Space(
    C=scipy.stats.loguniform(1e-2, 1e3),
    depth=scipy.stats.randint(2, 10),
    kernel=["rbf", "poly", "linear"],
    k=[30, 10, 100],
    z=scipy.stats.norm(),
)


def test_log_uniform_is_linear_in_the_logarithm():
    x = SPACE.encode({"C": 10**0.5, "depth": 2, "kernel": "rbf", "k": 10, "z": 0.0})
    assert x.tolist() == pytest.approx([0.5, 0.0, 0.0, 0.0, 0.5])


def test_an_end_that_is_off_by_rounding_is_that_end():
    space = Space(a=scipy.stats.uniform(0.7, 0.1), C=scipy.stats.loguniform(1e-2, 1e3))
    assert space.specs["a"].support()[1] < 0.8
    assert space.encode({"a": 0.8, "C": 1e-2 * (1 - 1e-15)}).tolist() == pytest.approx(
        [1.0, 0.0], abs=1e-12
    )


def test_every_sample_round_trips_and_is_allowed():
    X = SPACE.sample(64, seed=1)
    for x in X:
        parameters = SPACE.decode(x)
        assert torch.allclose(SPACE.encode(parameters), x)
        assert parameters["depth"] in range(2, 10)
        assert parameters["kernel"] in ("rbf", "poly", "linear")
        assert abs(parameters["z"]) < 3.1
    assert {SPACE.decode(x)["depth"] for x in X} == set(range(2, 10))
    assert torch.equal(X, SPACE.sample(64, seed=1))
    assert bool(((X >= SPACE.bounds[0]) & (X <= SPACE.bounds[1])).all())


def test_dimensions_are_what_botorch_takes():
    assert set(SPACE.discrete_dims) == {1, 3}
    assert SPACE.discrete_dims[3] == [0.0, 0.5, 1.0]
    assert SPACE.cat_dims == {2: [0.0, 1.0, 2.0]}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(3, id="number"),
        pytest.param([], id="empty-list"),
        pytest.param(np.eye(2), id="2-d"),
        pytest.param(
            scipy.stats.rv_discrete(values=([0.5, 1.5], [0.5, 0.5])), id="no-whole-numbers"
        ),
        pytest.param(scipy.stats.randint(0, 2**60), id="too-large-whole-numbers"),
        pytest.param(scipy.stats.zipf(1.5), id="no-quantiles"),
        pytest.param(scipy.stats.uniform(0, -1), id="negative-width"),
    ],
)
def test_what_is_no_parameter_is_refused(spec):
    with pytest.raises(InputError, match=r"^a="):
        Space(a=spec)


@pytest.mark.parametrize("i", range(5))
@pytest.mark.parametrize("by", [-0.2, 1e-5, 50.0])
def test_a_coordinate_outside_its_range_is_refused_and_its_rounding_is_not(i, by):
    """It had the parameters of the nearest end, and a model saw it as another point."""
    upper = max(SPACE.bounds[1, i].item(), 1.0)
    x = SPACE.sample(1, seed=0)[0]
    x[i] = by if by < 0 else upper + by
    with pytest.raises(InputError, match=rf"^x\[{i}\]=.* as a coordinate of '{SPACE.names[i]}'"):
        SPACE.decode(x)
    x[i] = upper + 1e-7
    assert SPACE.decode(x)
    x[i] = -1e-7
    assert SPACE.decode(x)


def test_points_and_parameters_of_another_space_are_refused():
    with pytest.raises(InputError, match="x="):
        SPACE.decode(torch.zeros(3).double())
    with pytest.raises(InputError, match="parameters"):
        SPACE.encode({"C": 1.0})
    for name, value in OUTSIDE:
        with pytest.raises(InputError, match=rf"^parameters\['{name}'\]="):
            SPACE.encode({**SPACE.decode(SPACE.sample(1, seed=0)[0]), name: value})


OUTSIDE = [
    ("C", 1e3 * (1 + 1e-6)),
    ("C", math.nan),
    ("C", 10**400),
    ("C", "1"),
    ("z", -3.1),
    ("depth", 2.5),
    ("k", 20),
    ("kernel", "cubic"),
]
LAWS = [
    scipy.stats.uniform(0.7, 0.1),
    scipy.stats.uniform(1e9, 1.0),
    scipy.stats.loguniform(1e-300, 1e-290),
    scipy.stats.loguniform(1e-2, 1e3),
    scipy.stats.loguniform(1, 10, loc=3, scale=7),
    scipy.stats.norm(1e6, 1e-3),
    scipy.stats.beta(0.2, 0.3),
    scipy.stats.cauchy(),
    scipy.stats.pareto(0.5),
    scipy.stats.invgauss(0.15),
    scipy.stats.rv_histogram(([1, 0, 2], [0.0, 1.0, 2.0, 3.0])),
    scipy.stats.binom(9, 0.4),
    scipy.stats.randint(-(10**9), 10**9),
    scipy.stats.poisson(5000),
    scipy.stats.nbinom(5, 0.5, loc=-2),
    scipy.stats.rv_discrete(values=([1, 10, 100_000], [0.2, 0.3, 0.5])),
    [0.1, 0.3, 0.7],
]
SPACES = [Space(a=law) for law in LAWS]


# scipy, at an end of the inverse Gaussian
@pytest.mark.filterwarnings("ignore:Error in function boost:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.* between those of two values:UserWarning")
@given(
    st.sampled_from(SPACES),
    st.floats(-1e-6, 1 + 1e-6)
    | st.sampled_from([0.0, 1.0, 1e-3, 1 - 1e-3, math.nextafter(1, 0), 5e-324]),
)
# ppf passes the end there
@example(SPACES[3], 1 - 1e-16)
def test_whatever_a_point_decodes_to_encodes_again(space, u):
    value = space.decode(torch.tensor([u], dtype=DOUBLE))
    x = space.encode(value)
    assert bool(((space.bounds[0] <= x) & (x <= space.bounds[1])).all())


@pytest.mark.parametrize(
    "law",
    [law for law in LAWS if hasattr(law, "pmf") and law.support()[1] - law.support()[0] >= 1000],
)
def test_of_many_whole_numbers_each_is_its_own_point(law):
    space = Space(n=law)
    numbers = law.rvs(200, random_state=0)
    for number in numbers[law.cdf(numbers) < 0.999].tolist():
        decoded = space.decode(space.encode({"n": number}))["n"]
        assert (type(decoded), decoded) == (int, number)
    low, high = space.decode(space.bounds[0])["n"], space.decode(space.bounds[1])["n"]
    for refused in (low - 1, high + 1, low + 0.5, "a"):
        with pytest.raises(InputError, match="must be a whole number from"):
            space.encode({"n": refused})
    drawn = [space.decode(x)["n"] for x in space.sample(512, seed=0)]
    assert abs(np.mean([law.cdf(n) >= 0.5 for n in drawn]) - 0.5) < 0.35, "as the law is"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param([np.int64(5), 3, np.int32(2)], id="numpy-ints"),
        pytest.param(torch.tensor([0.5, 1.5]), id="tensor"),
        pytest.param(np.array([0.5, 1.5], np.float32), id="float-array"),
        pytest.param(range(2, 6), id="range"),
    ],
)
def test_numbers_of_every_library_are_steps_of_pythons_own_numbers(spec):
    space = Space(a=spec)
    assert space.cat_dims == {}
    values = [space.decode(torch.tensor([u], dtype=DOUBLE))["a"] for u in space.discrete_dims[0]]
    assert values == sorted(float(value) for value in spec)
    assert all(type(value) in (int, float) for value in values)
    assert [space.encode({"a": value}).item() for value in values] == space.discrete_dims[0]


@pytest.mark.parametrize(
    "spec", [np.array([True, False]), np.array(["a", "b"]), [1, "a"], [True, 2]]
)
def test_words_and_booleans_are_categories(spec):
    assert Space(a=spec).cat_dims == {0: [0.0, 1.0]}


def test_a_tuple_is_refused_because_it_may_be_a_range_or_its_values():
    for spec in ((1e-4, 1e-1), (1, 10), ("a", "b"), ()):
        with pytest.raises(
            InputError,
            match=r"^lr=.*scipy.stats.loguniform\(low, high\).* for the values use a list",
        ):
            Space(lr=spec)
    assert Space(sizes=[(10,), (20, 20)]).decode(torch.zeros(1).double()) == {"sizes": (10,)}, (
        "tuples in a list are values"
    )


HELD = [
    pytest.param(scipy.stats.loguniform(1, 10, loc=np.float64(3)), id="distribution"),
    pytest.param(
        scipy.stats.rv_discrete(values=([1, 5, 50], [0.3, 0.3, 0.4])), id="nameless-discrete"
    ),
    pytest.param(np.logspace(-3, 0, 4), id="array"),
    pytest.param(["rbf", "poly", True, None], id="words"),
    pytest.param([(10,), (20, (20,)), [3.5]], id="tuples"),
    pytest.param([{0: 1.0, 1: 0.25}, {0: 1.0, 1: 4.0}], id="dicts"),
]


@pytest.mark.parametrize("spec", HELD)
def test_a_space_comes_back_from_its_json(spec):
    space = Space(a=spec, z=[2, 1])
    again = Space.from_json(space.to_json())
    assert again.names == space.names
    assert again.to_json() == space.to_json()
    for x in space.sample(16, seed=1):
        assert again.decode(x) == space.decode(x)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no-json"),
        pytest.param("{}", id="empty"),
        pytest.param('{"a": [1, 2]}', id="list"),
        pytest.param(
            '{"a": {"distribution": "gaussian_kde", "args": [[1.0, 2.0]], "kwds": {"dict": []}}}',
            id="no-distribution",
        ),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_other_texts_are_no_space(text):
    with pytest.raises(InputError, match=r"^text="):
        Space.from_json(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([[10]], [(10,)], id="list-and-tuple"),
        pytest.param(
            [DecisionTreeClassifier(max_depth=1)],
            [DecisionTreeClassifier(max_depth=2)],
            id="estimators",
        ),
        pytest.param(
            scipy.stats.rv_histogram(np.histogram([1.0, 2.0, 3.0])),
            scipy.stats.rv_histogram(np.histogram([1.0, 2.0, 9.0])),
            id="histograms",
        ),
    ],
)
def test_different_spaces_have_different_json(first, second):
    assert Space(a=first).to_json() != Space(a=second).to_json()


def test_a_dict_of_parameters_is_taken_like_names():
    """As DPSearch takes it; names of pipelines are seldom written otherwise."""
    assert repr(Space({"svc__C": [1, 10]}, k=[2, 3])) == repr(Space(svc__C=[1, 10], k=[2, 3]))
    for wrong in (3, [1, 2], {3: [1, 2]}):
        with pytest.raises(InputError, match=r"by their names.*Space\(C=loguniform"):
            Space(wrong)
