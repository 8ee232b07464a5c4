"""Space: RandomizedSearchCV's words, BoTorch's cube."""

import pytest
import scipy.stats
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.models import MixedSingleTaskGP
from botorch.optim import optimize_acqf_mixed_alternating

from dpbo import Space
from dpbo.errors import InputError

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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a stalled line search
def test_dimensions_are_what_botorch_takes():
    assert set(SPACE.discrete_dims) == {1, 3}
    assert SPACE.discrete_dims[3] == [0.0, 0.5, 1.0]
    assert SPACE.cat_dims == {2: [0.0, 1.0, 2.0]}
    X = SPACE.sample(8, seed=0)
    gp = MixedSingleTaskGP(X, X[:, :1].sin(), cat_dims=list(SPACE.cat_dims), train_Yvar=torch.full((8, 1), 1e-2).double())
    acqf = qLogNoisyExpectedImprovement(gp, X)
    x, _ = optimize_acqf_mixed_alternating(
        acqf, SPACE.bounds, discrete_dims=SPACE.discrete_dims, cat_dims=SPACE.cat_dims, q=1, num_restarts=2, raw_samples=16
    )
    assert torch.allclose(SPACE.encode(SPACE.decode(x[0])), x[0], atol=1e-6)


@pytest.mark.parametrize(
    "spec", [{}, {"a": 3}, {"a": []}, {"a": "rbf"}, {"a": scipy.stats.poisson(3)}, {"a": scipy.stats.randint(0, 10**6)}]
)
def test_what_is_no_search_space_is_refused(spec):
    with pytest.raises(InputError):
        Space(**spec)


def test_points_and_parameters_of_another_space_are_refused():
    with pytest.raises(InputError, match="x="):
        SPACE.decode(torch.zeros(3).double())
    with pytest.raises(InputError, match="parameters"):
        SPACE.encode({"C": 1.0})
    with pytest.raises(InputError, match="parameters"):
        SPACE.encode({**SPACE.decode(SPACE.sample(1, seed=0)[0]), "kernel": "cubic"})


def test_weights_of_single_whole_numbers_are_those_numbers_alone():
    space = Space(k=scipy.stats.rv_discrete(values=([1, 5, 50], [0.3, 0.3, 0.4])))
    assert {space.decode(x)["k"] for x in space.sample(32, seed=0)} == {1, 5, 50}
    for wrong in (scipy.stats.rv_discrete(values=([0.5, 1.5], [0.5, 0.5])), scipy.stats.uniform(0, -1)):
        with pytest.raises(InputError, match=r"^k="):
            Space(k=wrong)
