"""What pictures draw: the numbers of real small runs, found again in matplotlib's artists."""

import sys

import numpy as np
import optuna
import pytest
import scipy.stats
import torch
from sklearn.svm import SVC

from dpbo import DPGIBO, Budget, DPSearch, Privacy, PrivateObjective, Space
from dpbo.errors import MissingLibrary, UsageError
from dpbo.planning import noise_per_evaluation
from dpbo.reporting import plots
from dpbo.reporting.released_values import PUBLIC_SCORES, ReleasedValues
from dpbo.search import Choice
from tests.setups import DOUBLE, owner

plt = pytest.importorskip("matplotlib.pyplot")
SPACE = Space(
    rate=scipy.stats.loguniform(1e-3, 1.0),
    depth=scipy.stats.randint(1, 11),
    kernel=["rbf", "poly", "linear"],
)


def score(x, records):
    return (0.9 - (x[0] - 0.3) ** 2 - 0.1 * x[2] + 0.5 * (records - 0.6)).clamp(0, 1)


def objective(**changes):
    records = torch.full((1000,), 0.6, dtype=DOUBLE)
    curator = owner(records, unit="patient", allow_repeated=True)
    return PrivateObjective(
        curator, score, **{"score_range": (0.0, 1.0), "evaluations": 12, "budget": 0.8, **changes}
    )


@pytest.fixture(scope="module")
def run():
    made = objective()
    made(SPACE.sample(10, seed=0))
    return made


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.lines}


def test_convergence_shows_every_value_its_noise_and_the_best_mean_so_far(run):
    axes = plots.plot_convergence(run, space=SPACE)
    _, Y, Yvar = run.history()
    (bars,) = axes.containers
    assert np.allclose(bars.lines[0].get_xydata(), np.column_stack([np.arange(1, 11), Y[:, 0]]))
    ends = np.array([segment[:, 1] for segment in bars.lines[2][0].get_segments()])
    assert np.allclose(np.diff(ends)[:, 0] / 2, Yvar[:, 0].sqrt())
    released = ReleasedValues.of(run, SPACE)
    drawn = lines(axes)
    assert np.allclose(
        drawn["posterior mean of the best point so far"][:, 1],
        np.maximum.accumulate(released.mean.numpy()),
    )
    assert drawn["recommended"].tolist() == [[released.best + 1, float(released.mean.max())]]
    ours = plt.subplots()[1]
    assert plots.plot_convergence(run, ax=ours) is ours


def test_slices_go_through_the_recommended_point(run):
    figure = plots.plot_slices(run, space=SPACE)
    rate, depth, kernel = figure.axes
    released = ReleasedValues.of(run, SPACE)
    best = released.parameters(released.best)
    curve = lines(rate)["model"]
    assert rate.get_xscale() == "log"
    assert curve[[0, -1], 0] == pytest.approx([1e-3, 1.0])
    assert np.interp(np.log(best["rate"]), np.log(curve[:, 0]), curve[:, 1]) == pytest.approx(
        float(released.mean.max()), abs=1e-3
    )
    assert lines(depth)["model"][:, 0].tolist() == list(range(1, 11))
    assert [label.get_text() for label in kernel.get_xticklabels()] == ["rbf", "poly", "linear"]
    shown = rate.collections[-1].get_offsets()
    assert np.allclose(shown[:, 0], [released.parameters(row)["rate"] for row in range(10)])
    assert np.allclose(shown[:, 1], released.Y[:, 0])


def test_a_study_of_the_posterior_means_is_drawn_by_optuna(run):
    released = ReleasedValues.of(run, SPACE)
    study = plots.as_study(run, space=SPACE)
    assert [trial.value for trial in study.trials] == released.mean.tolist()
    assert study.best_params == pytest.approx(released.parameters(released.best))
    style = plt.rcParams.copy()
    axes = plots.plot_parallel_coordinates(run, space=SPACE)
    assert {"rate", "depth", "kernel"} <= {label.get_text() for label in axes.get_xticklabels()}
    plots.plot_importances(run, space=SPACE)
    assert plt.rcParams == style, "pictures of the caller's keep their style"


def test_a_run_of_dpgibo_shows_its_gradients_beside_their_noise():
    def loss(x, records):
        return ((x - 0.3) ** 2).sum() + records[:, 0] * 0

    records = torch.rand(500, 1, dtype=DOUBLE)
    curator = owner(records, unit="patient", allow_repeated=True)
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DOUBLE)
    run = DPGIBO(curator, loss, bounds=box, budget=1.0, iterations=3, batch_size=3, clip=1.0)
    result = run.run()
    for source in (run, result):
        drawn = lines(plots.plot_convergence(source))
        lengths = result.gradients.norm(dim=1).numpy()
        assert np.allclose(drawn["released gradient"], np.column_stack([[1, 2, 3], lengths]))
        noise = drawn["its noise alone, on average"][0, 1]
        assert noise == pytest.approx(result.rho), "the clip is 1"


@pytest.mark.parametrize("strategy", ["weighted_cv", Choice()], ids=str)
def test_a_search_that_released_no_score_draws_what_it_cross_validated(strategy):
    X = np.random.default_rng(0).normal(size=(400, 3))
    y = X[:, 0] + X[:, 1] ** 2 > 0.5
    spaces = {"C": scipy.stats.loguniform(1e-2, 1e2), "kernel": ["rbf", "linear"]}
    search = DPSearch(
        SVC(random_state=0),
        spaces,
        budget=Budget(8.0, 1e-6),
        strategy=strategy,
        n_iter=6,
        verbose=0,
        privacy=Privacy(allow_repeated=True),
    ).fit(X[:150], y[:150], X[150:], y[150:])
    shown = ReleasedValues.of(search)
    column = next(name for name in PUBLIC_SCORES if name in search.results_)
    assert shown.what == PUBLIC_SCORES[column]
    assert set(shown.Y[:, 0].tolist()) <= set(search.results_[column].tolist())
    drawn = lines(plots.plot_convergence(search))
    assert drawn["highest so far"][:, 1].tolist() == shown.Y[:, 0].cummax(0).values.tolist()
    assert drawn[shown.best_is][0].tolist() == [shown.best + 1, float(shown.Y[shown.best])]
    if shown.best_is == "recommended":
        assert repr(shown.parameters(shown.best)["kernel"]) == repr(search.best_params_["kernel"])
    assert len(plots.plot_slices(search).axes) == 2
    bars = plots.plot_importances(search).patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(1.0)


def test_importances_name_the_parameter_that_matters():
    def of_one(x, records):
        return (0.2 + 0.6 * x[0] + 0.5 * (records - 0.6)).clamp(0, 1)

    made = PrivateObjective(
        objective().curator, of_one, score_range=(0.0, 1.0), evaluations=30, budget=0.1, name="one"
    )
    made(SPACE.sample(30, seed=0))
    bars = plots.plot_importances(made, space=SPACE)
    found = {
        label.get_text(): bar.get_width()
        for label, bar in zip(bars.get_yticklabels(), bars.patches, strict=True)
    }
    assert found["rate"] > 0.8
    few = objective()
    few(SPACE.sample(3, seed=0))
    with pytest.raises(UsageError, match="4 values or more"):
        plots.plot_importances(few, space=SPACE)


def test_budget_and_noise(run):
    axes = plots.plot_budget(run.curator)
    drawn = lines(axes)
    assert drawn["used by releases"][-1].tolist() == [10, run.curator.spent.epsilon]
    assert drawn["used by releases"][0].tolist() == [0, 0]
    assert drawn["budget"][0, 1] == pytest.approx(3.0)
    noise = lines(plots.plot_noise(500, evaluations=[10], epsilons=[1.0, 2.0]))["10 evaluations"]
    assert noise[:, 1].tolist() == [
        noise_per_evaluation(500, Budget(e, 1e-6), evaluations=10) for e in (1.0, 2.0)
    ]
    assert len(lines(plots.plot_plan(500, Budget(1.0, 1e-6)))) == 3
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_what_cannot_be_drawn_is_refused_by_name(run, monkeypatch):
    fresh = objective()
    for call in (
        lambda: plots.plot_convergence(fresh),
        lambda: plots.plot_convergence(run, metric=1),
        lambda: plots.plot_slices(run, space=Space(a=[1, 2])),
        lambda: plots.plot_budget(fresh.curator),
        lambda: plots.plot_convergence(optuna.create_study()),
    ):
        with pytest.raises(UsageError):
            call()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingLibrary, match=r"pip install \"dpbo\[plots\]\""):
        plots.plot_convergence(run)
