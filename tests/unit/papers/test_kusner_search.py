"""Kusner et al.'s three private loops: what they release, what they charge, what they say, and that
Algorithm 3 keeps its sensitivity.
"""

import math
import signal
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from gpytorch.kernels import RBFKernel, ScaleKernel

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.errors import InputError, PrivateFailure, UsageError
from dpbo.mechanisms import ExponentialMechanism, LaplaceMechanism, NoNoise
from dpbo.models import FiniteGP
from dpbo.papers.kusner import (
    AdaptiveLipschitz,
    KusnerSearch,
    RegularisedBest,
    bounds,
    grid_of_box,
    regularised,
)
from dpbo.records.view import PrivateView

EXACT = NoNoise(allow_not_private=True)


def kernel(length=0.2):
    made = RBFKernel().double()
    made.lengthscale = length
    return made


def gain(x, records):
    """A bump whose place is the records' mean."""
    return 2 * math.exp(-20 * float((x[0] - records.mean()) ** 2)) - 1


def improvement(model):
    return LogExpectedImprovement(model, best_f=model.train_targets.max())


def search(**changes):
    terms = {
        "candidates": torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(1),
        "kernel": kernel(),
        "noise": 1e-3,
        "evaluations": 15,
        "kappa": 0.99,
        "delta": 0.01,
        "value_range": (-3.0, 3.0),
    }
    return KusnerSearch(changes.pop("gain", gain), **{**terms, **changes})


def make(records=None, **settings):
    terms = {
        "unit": PrivacyUnit("record"),
        "adjacency": Adjacency.REPLACE_ONE,
        "budget": Budget(1000.0, 0.0),
        "accounting": PureFilter(),
        "allow_conditional": True,
    }
    data = torch.full((40,), 0.7, dtype=torch.float64) if records is None else records
    return Curator(data, **{**terms, **settings})


def exact(query, records=None, **settings):
    """What is released without noise."""
    return make(records, **settings).release(query, EXACT).value


def linf(query):
    return query.sensitivity(Adjacency.REPLACE_ONE).linf


def on_values(f, noise=0.0, **changes):
    """A search whose gain is f on the 50 candidates, with noise added to each observation."""

    def observed(x, records):
        return float(f[round(49 * float(x[0]))]) + noise * float(torch.randn(()))

    return search(gain=observed, **changes)


def test_the_noise_is_the_papers():
    """The exponential mechanism's sensitivity is theorem 1, the Laplace scale theorem 3 (or 5) over
    epsilon.
    """
    plan = search()
    shared: dict[str, Any] = {"count": 50, "kappa": 0.99, "delta": 0.01}
    value = plan.value()
    assert linf(plan.best()) == pytest.approx(bounds.theorem_1(**shared))
    scale = value.sensitivity(Adjacency.REPLACE_ONE).l1 / 2.0
    release = make().release(value, LaplaceMechanism(0.5))
    assert release.distribution.scale[0] == pytest.approx(scale)
    omega = bounds.noise_free_regret(evaluations=15, dimension=1, amplitude=0.3, tau=0.5)
    assert plan.last(amplitude=0.3, tau=0.5).bound == pytest.approx(
        bounds.theorem_5(**shared, regret=omega)
    )
    with pytest.raises(InputError, match="REPLACE_ONE"):
        search().best().sensitivity(Adjacency.ADD_OR_REMOVE_ONE)


def prior_pairs(count, points, kappa):
    """Draws of (f_V, f_V') of the prior on the candidates."""
    K = kernel()(torch.linspace(0, 1, points, dtype=torch.float64).unsqueeze(1)).to_dense()
    root = torch.linalg.cholesky(K + 1e-9 * torch.eye(points, dtype=torch.float64))
    f, other = (torch.randn(2, count, points, dtype=torch.float64) @ root.mT).unbind()
    return f, kappa * f + math.sqrt(1 - kappa**2) * other


def test_amplitude_zero_is_for_searches_that_see_every_candidate():
    with pytest.raises(InputError, match=r"^amplitude=.*50 candidates"):
        search().last(amplitude=0.0, tau=1.0)
    torch.manual_seed(0)
    plan = search(evaluations=50, delta=0.05, kappa=0.9).last(amplitude=0.0, tau=1.0)
    moved = 0
    half = 0
    assert plan.bound == pytest.approx(
        bounds.neighbour_gap(count=50, kappa=0.9, delta=0.05, share=3.0)
    )
    for pair in zip(*prior_pairs(60, 50, 0.9), strict=True):
        plans = [on_values(f, evaluations=50, delta=0.05, kappa=0.9) for f in pair]
        ends = [float(exact(each.last(amplitude=0.0, tau=1.0))) for each in plans]
        assert ends == pytest.approx([min(3.0, float(f.max())) for f in pair], abs=1e-6)
        moved += abs(ends[0] - ends[1]) > plan.bound
        half += abs(ends[0] - ends[1]) > plan.bound / 3
    assert moved <= 3
    assert half > 3, "a third of the bound would not do"


def test_branch_and_bound_closes_in_on_the_best_and_drops_it_never():
    """Of 40 draws of the prior: the last of 25 values is the best of 50 candidates in all but two,
    which GP-UCB cannot promise.
    """
    torch.manual_seed(1)
    late = []
    early = []
    for f in prior_pairs(40, 50, 0.9)[0].clamp(-3, 3):
        view = PrivateView.of(torch.zeros(3), PrivacyUnit("record"), units_are_public=True)
        values = on_values(f, evaluations=25).run_branch_and_bound(view)
        assert len(values) == 25
        late.append(float(f.max()) - values[-1])
        early.append(float(f.max()) - max(values[:6]))
    assert sum(regret > 1e-6 for regret in late) <= 2
    assert np.median(early) > 1e-3


def test_the_largest_value_of_algorithm_2_lies_between_the_last_and_the_best():
    torch.manual_seed(2)
    better = 0
    for f in prior_pairs(10, 50, 0.9)[0].clamp(-3, 3):
        plan = on_values(f, evaluations=8)
        terms = {"amplitude": 0.5, "tau": 0.1}
        largest = plan.last(**terms, largest=True)
        assert largest.bound == plan.last(**terms).bound
        high = float(exact(largest))
        last = float(exact(plan.last(**terms)))
        assert last <= high <= float(f.max()) + 1e-6
        better += high > last
    assert better > 2


def test_over_a_box_the_candidates_are_a_grid_and_the_theorems_count_its_points():
    grid = grid_of_box(points=30, dimension=1, side=1.0)
    assert grid[[0, -1], 0].tolist() == pytest.approx([1 / 60, 59 / 60])
    plan = search(candidates=grid, evaluations=12)
    assert abs(float(grid[int(exact(plan.best()).argmax())]) - 0.7) <= 1 / 30
    expected = bounds.grid_choice_sensitivity(points=30, dimension=1, kappa=0.99, delta=0.01)
    assert linf(plan.best()) == pytest.approx(expected)
    assert grid_of_box(points=3, dimension=2, side=2.0).shape == (9, 2)
    with pytest.raises(InputError, match=r"^points="):
        grid_of_box(points=2000, dimension=3, side=1.0)


BOX = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


@pytest.mark.parametrize("box", [None, BOX], ids=["candidates", "box"])
def test_any_acquisition_may_choose_the_points_of_algorithm_1(box):
    """Its bound is GP-UCB's, the released means are the posterior of what was visited, and in a box
    points between the candidates are visited.
    """
    visited = []

    def watched(x, records):
        visited.append(float(x[0]))
        return gain(x, records)

    plan = search(gain=watched, acquisition=improvement, box=box)
    means = exact(plan.best())
    assert abs(float(plan.candidates[int(means.argmax())]) - 0.7) < 0.03
    X = torch.tensor(visited, dtype=torch.float64).unsqueeze(1)
    y = torch.tensor([gain(x, torch.tensor([0.7])) for x in X], dtype=torch.float64)
    K = plan.kernel(X).to_dense() + 1e-3 * torch.eye(15, dtype=torch.float64)
    expected = plan.kernel(plan.candidates, X).to_dense() @ torch.linalg.solve(K, y)
    torch.testing.assert_close(means, expected, atol=1e-7, rtol=0.0)
    between = [x for x in visited if abs(49 * x - round(49 * x)) > 1e-6]
    assert bool(between) is (box is not None)
    assert plan.best().sensitivity(Adjacency.REPLACE_ONE) == search().best().sensitivity(
        Adjacency.REPLACE_ONE
    )


def test_after_any_acquisition_the_posterior_means_of_neighbours_are_within_theorem_1():
    torch.manual_seed(3)
    terms = {"evaluations": 5, "delta": 0.05, "kappa": 0.9, "acquisition": improvement}
    allowed = linf(search(**terms).best())
    moved = []
    for pair in zip(*prior_pairs(15, 50, 0.9), strict=True):
        means = [exact(on_values(f, noise=math.sqrt(1e-3), **terms).best()) for f in pair]
        moved.append(float((means[0] - means[1]).abs().max()))
    assert max(moved) <= allowed
    assert max(moved) > 0.1


def test_where_the_bound_is_that_of_one_search_no_other_is_taken():
    plan = search(acquisition=improvement)
    for release, needs in (
        (plan.value, "GP-UCB.*Theorem 3"),
        (lambda: plan.last(amplitude=0.1, tau=1.0), "branch and bound.*Theorem 5"),
    ):
        with pytest.raises(UsageError, match=needs):
            release()
    with pytest.raises(UsageError, match="public design"):
        plan.best(public_design=True)
    with pytest.raises(InputError, match=r"^box=.*acquisition"):
        search(box=BOX)
    with pytest.raises(InputError, match=r"^box=.*corner"):
        search(acquisition=improvement, box=BOX.flip(0))
    with pytest.raises(TypeError, match="beta"):
        search(acquisition=lambda model: UpperConfidenceBound(model))


@pytest.mark.attack("A21")
def test_an_acquisition_that_fails_on_private_values_shows_none_of_them():
    def fails(model):
        if len(model.train_targets) > 2:
            raise ValueError(f"seen {model.train_targets.tolist()}")
        return improvement(model)

    for query, data in (
        (search(acquisition=fails).best(), None),
        (best(40, adaptive=AdaptiveLipschitz(kernel(1.0), 1e-2, 4, fails)), people(40)),
    ):
        with pytest.raises(PrivateFailure) as shown:
            exact(query, data)
        assert "seen" not in str(shown.value)
        assert shown.value.__cause__ is None


def test_what_a_last_value_rests_on_is_named():
    plan = search()
    assert plan.last(amplitude=0.3, tau=0.5).data_assumptions().keys() == {
        "gp-prior",
        "regret-bound",
    }
    assert "0.3 exp(-T 0.5" in plan.last(amplitude=0.3, tau=0.5).data_assumptions()["regret-bound"]
    assert plan.value().data_assumptions().keys() == {"gp-prior"}
    assert search(evaluations=50).last(amplitude=0.0, tau=0.5).data_assumptions().keys() == {
        "gp-prior"
    }


def test_a_gain_that_fails_or_runs_wild_stays_in_its_range():
    def broken(x, records):
        if float(x[0]) < 0.5:
            raise ValueError("private detail")
        return math.nan if float(x[0]) < 0.8 else 1e300

    assert exact(search(gain=broken).value()).item() == pytest.approx(3.0, abs=1e-6)


def ramp(w, records):
    """1-d margin loss in [0, 1], 1/2-Lipschitz in w for |x| <= 1, 1/2 at w = 0."""
    x = records[:, 0].clamp(-1, 1)
    y = records[:, 1]
    return (0.5 - 0.5 * y * w * x).clamp(0, 1)


def hinge_fit(regularisation):
    """argmin (l/2) w^2 + mean hinge on public records x = 1, y = +1: w = min(1, 1/l)."""
    return min(1.0, 1.0 / regularisation)


def best(records, **changes):
    terms = {
        "fit": hinge_fit,
        "grid": [0.5, 1.0, 2.0, 4.0],
        "lipschitz": 0.5,
        "bound": 1.0,
        "at_zero": 0.5,
        "records": records,
    }
    return RegularisedBest(ramp, **{**terms, **changes})


def people(n, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.uniform(-1, 1, n), rng.choice([-1.0, 1.0], n)], axis=1))


SEARCHES = [
    pytest.param(None, id="whole grid"),
    pytest.param(AdaptiveLipschitz(kernel(1.0), 1e-2, 3), id="GP-UCB"),
    pytest.param(AdaptiveLipschitz(kernel(1.0), 1e-2, 3, improvement), id="improvement"),
]


@pytest.mark.parametrize("adaptive", SEARCHES)
def test_the_best_value_is_found_and_unconditional_over_the_whole_grid(adaptive):
    data = people(200)
    data[:, 1] = data[:, 0].sign()
    conditional = adaptive is not None
    query = best(200, adaptive=adaptive)
    truth = max(float(-ramp(hinge_fit(l), data).mean()) for l in (0.5, 1.0, 2.0, 4.0))  # noqa: E741
    assert exact(query, data, allow_conditional=conditional).item() == pytest.approx(
        truth, abs=1e-6 if adaptive is None else 0.1
    )
    release = make(data, allow_conditional=conditional).release(query, LaplaceMechanism(1.0))
    if conditional:
        with pytest.raises(InputError, match="loss-lipschitz"):
            make(data, allow_conditional=False).release(query, LaplaceMechanism(1.0))
    expected = (
        regularised.fixed_grid
        if adaptive is None
        else lambda **k: regularised.theorem_7(most=4.0, **k)
    )
    assert release.distribution.scale[0] / 200 == pytest.approx(
        expected(least=0.5, lipschitz=0.5, bound=1.0, records=200), rel=1e-6
    )


@pytest.mark.parametrize("adaptive", SEARCHES)
@pytest.mark.attack("A5", "A9")
def test_no_neighbour_moves_the_best_value_further_than_declared(adaptive):
    """Replaced records of every kind, among them one that is not finite and one that breaks the
    loss.
    """
    rng = np.random.default_rng(1)
    for trial in range(24):
        m = int(rng.integers(2, 8))
        least = (0.5, 4.0)[trial % 8 < 4]
        data = people(m, seed=trial)
        other = data.clone()
        other[0] = torch.tensor(
            [[1.0, -data[0, 1]], [math.nan, 1.0], [-1e30, 1.0], [0.0, 1.0]], dtype=torch.float64
        )[trial % 4]
        query = best(m, grid=[least, 2 * least, 4 * least], adaptive=adaptive)
        values = [float(exact(query, d)) for d in (data, other)]
        assert abs(values[0] - values[1]) <= query.sensitivity(Adjacency.REPLACE_ONE).l1 / m * (
            1 + 1e-9
        ), trial


def test_terms_that_do_not_fit_are_refused():
    for name, change in (("grid", {"grid": [2.0, 1.0]}), ("worst", {"at_zero": 2.0})):
        with pytest.raises(InputError, match=name):
            best(10, **change)
    with pytest.raises(InputError, match="records"):
        make(people(20), allow_conditional=False).evaluate(best(10))
    scaled = ScaleKernel(kernel()).double()
    scaled.outputscale = 100.0
    with pytest.raises(InputError, match="variance 1"):
        search(kernel=scaled)


@pytest.mark.attack("A19")
def test_over_the_whole_grid_no_broken_promise_breaks_the_sensitivity():
    """The clip holds what the caller promised: without it each of these moved the value ten times
    too far.
    """
    data = torch.tensor([[1.0]] * 5, dtype=torch.float64)
    other = data.clone()
    data[0] = 1e6
    other[0] = -1e6

    def ramp(w, r):
        return (0.5 - 0.5 * r[:, 0] * w).clamp(0, 1)

    def fit(regularisation):
        return 1.0 / regularisation

    causes: dict[str, tuple[Any, Any]] = {
        "a huge record": (ramp, fit),
        "a fit that is too long": (ramp, lambda regularisation: 100.0 / regularisation),
        "a loss that differs at zero": (lambda w, r: torch.sigmoid(5 * r[:, 0]), fit),
    }
    for cause, (loss, fitted) in causes.items():
        query = RegularisedBest(
            loss, fit=fitted, grid=[10.0, 20.0], lipschitz=0.5, bound=1.0, at_zero=0.5, records=5
        )
        values = [float(exact(query, d, allow_conditional=False)) for d in (data, other)]
        assert abs(values[0] - values[1]) <= query.sensitivity(Adjacency.REPLACE_ONE).l1 / 5 * (
            1 + 1e-9
        ), cause
        assert query.sensitivity(Adjacency.REPLACE_ONE).l1 == pytest.approx(0.1, rel=1e-6), cause


@pytest.mark.attack("A21")
def test_an_interrupted_or_writing_gain_lets_nothing_out(ctrl_c):
    def interrupted(x, records):
        secret = records.clone()
        signal.raise_signal(signal.SIGINT)
        return float(secret.sum())

    with pytest.raises(KeyboardInterrupt) as caught:
        make().evaluate(search(gain=interrupted).best())
    assert not str(caught.value)
    frames = []
    traceback = caught.value.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "interrupted" not in frames

    def writing(x, records):
        x -= records.mean()
        return 0.0

    plan = search(gain=writing)
    before = plan.candidates.clone()
    exact(plan.value())
    assert torch.equal(plan.candidates, before)


@pytest.mark.attack("A19")
def test_a_plan_must_say_from_the_start_what_it_rests_on():
    question = search().best()
    mechanism = ExponentialMechanism.of(1.0)
    curator = make()
    curator.reserve("quiet", mechanism.event(), slots=1, terms={})
    handle = curator.evaluate(question)
    with pytest.raises(InputError, match="gp-prior"):
        curator.release_all([handle], mechanism, name="quiet", reservation="quiet")
    assert "conditional-allowed" in curator.statement().assumptions
    terms: dict[str, Any] = {"assumptions": dict(question.data_assumptions())}
    curator.reserve("too sure", mechanism.event(), slots=1, terms=terms)
    with pytest.raises(InputError, match=r"fail with probability 0\.01"):
        curator.release_all([handle], mechanism, name="too sure", reservation="too sure")
    curator.reserve(
        "open",
        mechanism.event(),
        slots=1,
        terms={**terms, "failure_probability": question.failure_probability()},
    )
    statement = curator.statement()
    assert statement.lines[0] == "not bounded"
    assert statement.meaning[0].startswith("only under gp-prior")
    curator.release_all([handle], mechanism, name="open", reservation="open")


def test_the_public_design_moves_the_posterior_mean_as_derived():
    """Against the response of the posterior mean to each observation, and on pairs of the prior."""
    plan = search(evaluations=12, delta=0.05, kappa=0.9, noise=0.01)
    design = plan.design()
    assert design == search(gain=lambda x, r: 0.0, evaluations=12, noise=0.01).design()
    weights = []
    for one in range(12):
        model = FiniteGP(plan.candidates, plan.kernel, plan.noise)
        for t, index in enumerate(design):
            model.observe(index, float(t == one))
        weights.append(model.mean.clone())
    W = torch.stack(weights)
    inner = plan.kernel(plan.candidates[design]).to_dense().detach()
    covariance = 2 * 0.1 * inner + 2 * 0.01 * torch.eye(12, dtype=torch.float64)
    spread = (W.T @ covariance @ W).diagonal().amax().sqrt()
    assert plan.spread() == pytest.approx(float(spread), rel=1e-6)

    torch.manual_seed(0)
    f, other = prior_pairs(4000, 50, 0.9)
    noise = 0.1 * torch.randn(2, 4000, 12, dtype=torch.float64)
    moved = ((f[:, design] + noise[0] - other[:, design] - noise[1]) @ W).abs().amax(1)
    bound = bounds.theorem_1_public_design(count=50, spread=plan.spread(), delta=0.05)
    assert 0.0 < float((moved > bound).double().mean()) <= 0.05
    assert float((moved > bound / 2).double().mean()) > 0.3, "half of it would not do"
    assert bound < bounds.theorem_1(count=50, kappa=0.9, delta=0.05) / 3


def test_a_release_after_the_public_design_has_its_posterior_mean_and_sensitivity():
    plan = search(evaluations=12)
    query = plan.best(public_design=True)
    moved = bounds.theorem_1_public_design(count=50, spread=plan.spread(), delta=0.01)
    assert linf(query) == pytest.approx(moved)
    model = FiniteGP(plan.candidates, plan.kernel, plan.noise)
    records = torch.full((40,), 0.7, dtype=torch.float64)
    for index in plan.design():
        model.observe(index, gain(plan.candidates[index], records))
    assert exact(query).tolist() == pytest.approx(model.mean.tolist(), abs=1e-8)
    with pytest.raises(InputError, match="REPLACE_ONE"):
        query.sensitivity(Adjacency.ADD_OR_REMOVE_ONE)
