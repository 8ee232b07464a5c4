"""Ax over a private objective: nothing overspent, nothing told but releases, nothing paid for lost,
and dpbo's acquisitions inside.
"""

import contextlib
import importlib
import logging
import math
import pathlib
import threading
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from botorch.models import SingleTaskGP

from dpbo import PrivateObjective, Space
from dpbo.acquisition import GPUCB, SrinivasFinite
from dpbo.acquisition.ucb import SrinivasCompact
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerUnavailable,
    PrivateFailure,
    UsageError,
)
from dpbo.gibo import GradientInformation, GradientPosterior
from dpbo.integrations.ax import ClientObjective, gp_ucb, gradient_information, noisy_improvement
from dpbo.queries import CellMeans
from dpbo.testing import replay
from tests.attacks.marks import attack
from tests.integration.searches import (
    CANARY,
    RECORDS,
    SPACE,
    TERMS,
    curator,
    failing_score,
    objective,
    released,
    score,
)
from tests.integration.test_wording import SPECS
from tests.setups import DOUBLE, EXACT

Client = importlib.import_module("ax.api.client").Client
Arm = importlib.import_module("ax.core.arm").Arm
_configs = importlib.import_module("ax.api.configs")
ChoiceParameterConfig = _configs.ChoiceParameterConfig
DerivedParameterConfig = _configs.DerivedParameterConfig
RangeParameterConfig = _configs.RangeParameterConfig
Status = importlib.import_module("ax.core.trial_status").TrialStatus
# a stalled line search, which BoTorch tries again
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "ax"]:
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


def a_loop(evaluations=6, space=SPACE, strategy=None, client=None, **settings):
    client = client or Client(random_seed=1)
    return ClientObjective(
        objective(evaluations=evaluations, **settings), space, client, strategy=strategy
    )


def told(loop):
    experiment = loop.client._experiment
    rows = experiment.lookup_data().df.set_index("trial_index")
    done = {i: t for i, t in experiment.trials.items() if t.status is Status.COMPLETED}
    return {
        t.run_metadata["entry"]: (rows.loc[i, "mean"], rows.loc[i, "sem"] ** 2)
        for i, t in done.items()
    }


def statuses(loop):
    return [trial.status for trial in loop.client._experiment.trials.values()]


def assert_told(loop, evaluations):
    assert told(loop).keys() == released(loop).keys()
    for entry, (value, variance) in released(loop).items():
        assert told(loop)[entry] == pytest.approx((value, variance), rel=1e-9)
    assert len(released(loop)) == evaluations


def test_a_run_ends_when_the_plan_is_used_up():
    for workers in (1, 3):
        loop = a_loop(strategy=noisy_improvement(initial=5))
        loop.run(workers=workers)
        assert_told(loop, 6)
        assert statuses(loop) == [Status.COMPLETED] * 6, "none too many, none that failed"
        assert loop.next(5) == [], "with nothing left nothing is generated"
        assert len(statuses(loop)) == 6
        if workers == 1:
            for x, trial in zip(
                loop.objective.history()[0], loop.client._experiment.trials.values(), strict=True
            ):
                assert SPACE.decode(x) == pytest.approx(trial.arm.parameters, rel=1e-9)
        assert loop.recommended().parameters.keys() == {"rate", "shift"}


def test_values_are_released_in_the_order_of_their_trials_unless_told_otherwise():
    def points(ordered, slow_side):
        """On the slow side an evaluation ends after the first release; in order it may be that
        first one itself, so it waits a while.
        """
        begun = threading.Event()

        def slow(x, records):
            if len(records) > 20 and (float(x[0]) > 0.5) == slow_side:
                begun.wait(0.2 if ordered else 60)
            return score(x, records)

        def release(handle):
            values = PrivateObjective.release(private, handle)
            begun.set()
            return values

        loop = a_loop(3, strategy=noisy_improvement(initial=3), score=slow)
        private = loop.objective
        private.release = release
        loop.run(workers=3, ordered=ordered)
        assert_told(loop, 3)
        assert ("durations-tell-nothing" in private.curator.statement().assumptions) == (
            not ordered
        )
        return private.history()[0]

    assert torch.equal(points(True, True), points(True, False))
    assert not torch.equal(points(False, True), points(False, False))


def test_a_value_that_the_ledger_could_not_store_is_not_paid_for_again(monkeypatch):
    loop = a_loop(4, strategy=noisy_improvement(initial=4))
    store = loop.objective.curator.ledger.store
    failures = iter([False, True])

    def failing(*arguments):
        if next(failures, False):
            raise LedgerUnavailable("the disk is full")
        return store(*arguments)

    monkeypatch.setattr(loop.objective.curator.ledger, "store", failing)
    with pytest.raises(LedgerUnavailable, match="disk is full"):
        loop.run()
    loop.run()
    assert_told(loop, 4)
    assert len({tuple(x) for x in loop.objective.history()[0].tolist()}) == 4, "no point twice"


def test_step_by_step():
    loop = a_loop(evaluations=3)
    first, second = loop.next(2)
    with pytest.raises(InputError, match=f"the handle of trial {second}"):
        loop.complete(second, loop.evaluate(first))
    handles = {index: loop.evaluate(index) for index in (first, second)}
    assert loop.objective.remaining == 3, "nothing is charged yet"
    assert loop.running == [first, second]
    assert len(loop.next(2)) == 1, "what is running is paid for in advance"
    assert loop.next(2) == []
    for index in (second, first):
        loop.complete(index, handles[index])
    loop.run()
    assert_told(loop, 3)


def test_a_trial_that_was_released_but_never_told_is_told():
    loop = a_loop()
    (index,) = loop.next()
    handle = loop.evaluate(index)
    loop.client._experiment.trials[index].update_run_metadata({"entry": handle.id})
    # as if the process had died here
    loop.objective.release(handle)
    assert loop.resume() == 1
    assert statuses(loop) == [Status.COMPLETED]
    assert_told(loop, 1)
    loop.run(2)
    assert_told(loop, 3)
    loop.run(1, workers=2)
    assert_told(loop, 4)


def test_the_last_slot_lost_to_another_process():
    loop = a_loop(evaluations=2)
    (index,) = loop.next()
    handle = loop.evaluate(index)
    loop.objective(SPACE.sample(2, seed=0))
    with pytest.raises(BudgetExceeded):
        loop.complete(index, handle)
    assert statuses(loop) == [Status.ABANDONED]
    loop.run()
    assert loop.resume() == 2, "what the other released is learned from the ledger"
    assert_told(loop, 2)


@pytest.mark.usefixtures("seeded_noise")
def test_a_fit_that_raises_ends_its_trial_at_no_charge():
    def fit(x):
        if x[0] > 0.6:
            raise ValueError("no such rate")
        return x

    def never(x):
        raise ValueError("never")

    loop = a_loop(fit=fit, strategy=noisy_improvement(initial=4))
    loop.run(catch=(ValueError,))
    assert_told(loop, 6)
    failed = [
        trial
        for trial in loop.client._experiment.trials.values()
        if trial.status is Status.ABANDONED
    ]
    assert failed
    assert all(trial.run_metadata == {"error": "ValueError"} for trial in failed)
    hopeless = a_loop(fit=never)
    with pytest.raises(ValueError, match="never"):
        hopeless.run(catch=(ValueError,))
    assert statuses(hopeless) == [Status.ABANDONED] * 10
    assert hopeless.objective.remaining == 6


def test_what_does_not_fit_and_what_has_no_gradient_are_refused():
    loop = a_loop()
    with pytest.raises(InputError, match="experiment over C"):
        ClientObjective(
            objective(), Space(C=scipy.stats.uniform()), loop.client
        )._require_suitable()
    # Ax has several clients
    with pytest.raises(InputError, match=r"client must be an ax\.api\.client\.Client"):
        ClientObjective(objective(), SPACE, object())
    with pytest.raises(InputError, match="left out for a client that has an experiment"):
        a_loop(client=loop.client, strategy=noisy_improvement())
    other = a_loop()
    other.client.configure_optimization(objective="-score")
    with pytest.raises(InputError, match="maximises 'score'"):
        other.next()
    early = a_loop()
    early.client.set_early_stopping_strategy(
        importlib.import_module("ax.early_stopping.strategies").PercentileEarlyStoppingStrategy()
    )
    with pytest.raises(InputError, match="early_stopping_strategy"):
        early.next()
    with pytest.raises(InputError, match="of one metric"):
        a_loop(score=CellMeans(score, cells=3), score_range=None)
    assert loop.objective.remaining == other.objective.remaining == early.objective.remaining == 6
    with pytest.raises(InputError, match="continuous parameters"):
        gradient_information(Space(k=["a", "b"]))
    for name, value in (("rate", 1e-9), ("shift", 1.0 + 1e-3), ("shift", math.nan)):
        with pytest.raises(InputError, match=f"'{name}'"):
            gradient_information(SPACE, at={"rate": 0.1, "shift": 0.5, name: value})
    with pytest.raises(InputError, match="SrinivasFinite or a SrinivasCompact"):
        gp_ucb(lambda t: 2.0)  # type: ignore[arg-type]


RATE = RangeParameterConfig("rate", (1e-3, 1e1), "float", scaling="log")
SHIFT = RangeParameterConfig("shift", (-1.0, 1.0), "float")


def configured(parameters=(RATE, SHIFT), parameter_constraints=None, **goal):
    """A client that a user has configured."""
    client = Client(random_seed=1)
    client.configure_experiment(parameters, parameter_constraints=parameter_constraints)
    client.configure_optimization(**{"objective": "score", **goal})
    client.set_generation_strategy(noisy_improvement(initial=3))
    return client


def with_trial(rate=1.0, data=None, state="complete_trial", **details):
    """A client with one trial that the user attached."""
    client = configured()
    index = client.attach_trial({"rate": rate, "shift": 0.0})
    if data is not None:
        client.attach_data(index, raw_data=data, **details)
    if state is not None:
        getattr(client, state)(index)
    return client


def with_two_arms():
    client = configured()
    trial = client._experiment.new_batch_trial()
    for rate in (0.1, 1.0):
        trial.add_arm(Arm({"rate": rate, "shift": 0.0}))
    trial.mark_running(no_runner_required=True)
    return client


STOPPED = "mark_trial_early_stopped"


@pytest.mark.parametrize(
    ("client", "words"),
    [
        pytest.param(
            lambda: configured(outcome_constraints=["latency <= 3"]),
            "outcome_constraints='OutcomeConstraint.latency <= 3.' is not allowed",
            id="constraint",
        ),
        pytest.param(
            lambda: configured(outcome_constraints=["latency <= 0.9 * baseline"]),
            "Only 'score' is released",
            id="relative constraint",
        ),
        pytest.param(
            lambda: configured(objective="score + latency"), "maximises 'score'", id="two metrics"
        ),
        pytest.param(
            lambda: configured(objective="score, -latency"), "maximises 'score'", id="two goals"
        ),
        pytest.param(
            lambda: configured((RangeParameterConfig("rate", (1e-3, 1e6), "float"), SHIFT)),
            "'rate'.* must be a number from 0.001 to 10",
            id="wider range",
        ),
        pytest.param(
            lambda: configured((RATE, RangeParameterConfig("shift", (-1, 2), "int"))),
            "'shift'.* must be a number from -1 to 1",
            id="wider whole numbers",
        ),
        pytest.param(
            lambda: configured(
                (ChoiceParameterConfig("rate", [0.1, 1.0, 99.0], "float", is_ordered=True), SHIFT)
            ),
            "'rate'.*=99",
            id="a choice outside",
        ),
        pytest.param(
            lambda: configured(
                (ChoiceParameterConfig("rate", ["low", "high"], "str", is_ordered=True), SHIFT)
            ),
            "'rate'",
            id="choices of names",
        ),
        pytest.param(
            lambda: configured(
                (RATE, DerivedParameterConfig("shift", "0.1 * rate", parameter_type="float"))
            ),
            "shift=.* must be a range, a choice or a fixed value",
            id="derived",
        ),
        pytest.param(
            lambda: with_trial(rate=1e7, state=None), "trial 0 is outside the space", id="outside"
        ),
        pytest.param(
            lambda: with_trial(data={"score": (0.5, 0.1)}, state=None),
            "trial 0 has data before its release",
            id="data of a running trial",
        ),
        pytest.param(with_two_arms, "trial 0 has 2 arms", id="two arms"),
        pytest.param(with_trial, "completed without a value of 'score'", id="no data"),
        pytest.param(
            lambda: with_trial(data={"latency": (0.5, 0.1)}),
            "completed without a value of 'score'",
            id="data of another metric",
        ),
        pytest.param(
            lambda: with_trial(data={"score": 0.5}), "without its standard error", id="no error"
        ),
        pytest.param(
            lambda: with_trial(data={"score": 0.5}, state=STOPPED, progression=1),
            "without its standard error",
            id="stopped early",
        ),
    ],
)
def test_what_ax_could_not_go_on_from_is_refused_before_a_charge(client, words):
    """Ax's own error came after some releases: it looks at trials and metrics once it fits."""

    def never(x):
        raise AssertionError("fitted")

    private = objective(fit=never)
    for workers in (1, 3):
        with pytest.raises(UsageError, match=words):
            ClientObjective(private, SPACE, client()).run(workers=workers)
    with pytest.raises(UsageError, match=words):
        ClientObjective(private, SPACE, client()).next()
    assert private.remaining == 6


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(
            lambda: configured((RangeParameterConfig("rate", (0.01, 1.0), "float"), SHIFT)),
            id="narrower range",
        ),
        pytest.param(
            lambda: configured((RATE, RangeParameterConfig("shift", (-1, 1), "int"))),
            id="whole numbers",
        ),
        pytest.param(
            lambda: configured(
                (RATE, ChoiceParameterConfig("shift", [0.0, 0.5, 1.0], "float", is_ordered=True))
            ),
            id="choices inside",
        ),
        pytest.param(lambda: with_trial(data={"score": (0.5, 0.1)}), id="public value"),
        pytest.param(
            lambda: with_trial(data={"score": (0.5, 0.1)}, state=STOPPED, progression=1),
            id="public value, stopped early",
        ),
        pytest.param(
            lambda: with_trial(data={"score": 0.5}, state="mark_trial_abandoned"), id="abandoned"
        ),
        pytest.param(
            lambda: with_trial(data={"score": 0.5}, state="mark_trial_failed"), id="failed"
        ),
        pytest.param(
            lambda: with_trial(data={"score": (0.5, 0.1), "latency": 3.0}), id="further metric"
        ),
    ],
)
def test_an_experiment_that_a_user_configured_runs(client):
    loop = a_loop(5, client=client())
    loop.run()
    assert loop.objective.remaining == 0


def test_a_trial_that_was_charged_before_the_experiment_changed_is_refused_too():
    loop = a_loop()
    (index,) = loop.next()
    handle = loop.evaluate(index)
    loop.client.configure_optimization("score", outcome_constraints=["latency <= 3"])
    with pytest.raises(InputError, match="outcome_constraints"):
        loop.complete(index, handle)
    assert loop.objective.remaining == 6
    loop.client.configure_optimization("score")
    loop.complete(index, handle)
    assert_told(loop, 1)


def test_constraints_on_parameters_hold_for_proposals_and_the_recommendation():
    parameters = [RangeParameterConfig("rate", (1e-3, 1e1), "float"), SHIFT]
    client = configured(parameters, ["rate + shift <= 0.0"])
    loop = a_loop(5, client=client, mechanism=EXACT)
    # the best point breaks the constraint
    loop.objective(SPACE.encode({"rate": 0.1, "shift": 0.0}).unsqueeze(0))
    with pytest.raises(UsageError, match="known to meet every constraint"):
        loop.recommended()
    loop.run()
    shown = [trial.arm.parameters for trial in loop.client._experiment.trials.values()]
    assert len(shown) == 4
    for parameters in (*shown, loop.recommended().parameters):
        assert parameters["rate"] + parameters["shift"] <= 1e-6


def test_a_released_point_outside_the_space_becomes_no_trial_and_is_not_recommended():
    """As where the space was narrowed: its value would stand at another point."""
    loop = a_loop()
    # The last but for what an optimizer rounds.
    inside = torch.cat([SPACE.sample(1, seed=5), SPACE.bounds[1:] + 1e-7])
    loop.objective(torch.cat([inside[:1], SPACE.bounds[1:] + 2.0, inside[1:]]))
    assert loop.resume() == 2
    assert loop.recommended().x.tolist() in inside.tolist()


def test_more_trials_than_a_list_has_points_are_refused_before_a_charge():
    def fit(x):
        return torch.tensor([0.4, 0.5], dtype=DOUBLE)

    for space, points in ((Space(k=["a", "b"]), 2), (Space(k=scipy.stats.randint(0, 3)), 3)):
        loop = a_loop(6, space, noisy_improvement(initial=3), fit=fit)
        for trials in (None, points + 1):
            with pytest.raises(UsageError, match=f"{points} points, of which {points} are new"):
                loop.run(trials)
        assert loop.objective.remaining == 6
        loop.run(points)
        assert loop.objective.remaining == 6 - points
        with pytest.raises(UsageError, match="of which 0 are new"):
            loop.run(1)


def test_a_strategy_that_waits_for_values_gets_them():
    """Ax's own strategy asked for data when more workers than its Sobol points were free."""
    client = configured()
    client.configure_generation_strategy(initialization_budget=3)
    loop = a_loop(8, client=client)
    loop.run(workers=6)
    assert_told(loop, 8)


@attack("A21")
def test_a_trial_with_raw_data_is_never_released():
    loop = a_loop()
    (index,) = loop.next()
    loop.client.attach_data(index, raw_data={"score": 0.5}, progression=1)
    with pytest.raises(UsageError, match="trial 0 has data before its release"):
        loop.complete(index, loop.evaluate(index))
    assert loop.objective.remaining == 6


@pytest.mark.parametrize(
    "name", ["noisy", *(pytest.param(name, marks=pytest.mark.deep) for name in ("ucb", "gradient"))]
)
def test_a_reloaded_client_goes_on_and_nothing_is_lost(tmp_path, name):
    strategies = {
        "noisy": lambda: noisy_improvement(initial=3),
        "ucb": lambda: gp_ucb(SrinivasFinite(count=1000, delta=0.1), initial=3),
        "gradient": lambda: gradient_information(SPACE, at={"rate": 0.1, "shift": 0.0}, initial=3),
    }
    owner = curator()
    file = str(tmp_path / "client.json")
    loop = a_loop(owner=owner, strategy=strategies[name]())
    loop.run(3)
    begun = loop.next(2)
    loop.client.save_to_json_file(file)
    assert '"entry"' in pathlib.Path(file).read_text()
    # paid for after the save: the file knows nothing of it
    loop.complete(begun[0], loop.evaluate(begun[0]))
    again = ClientObjective(objective(owner), SPACE, Client.load_from_json_file(file))
    assert again.running == begun
    assert again.resume() == 1
    assert again.resume() == 0
    again.client.mark_trial_abandoned(begun[0])
    # also finishes the other trial that was running
    again.run()
    assert told(again).keys() == released(again).keys()
    for entry, (value, variance) in released(again).items():
        assert told(again)[entry] == pytest.approx((value, variance), rel=1e-3, abs=1e-9), (
            "Ax's JSON keeps ten decimals"
        )
    assert len(released(again)) == 6
    fresh = ClientObjective(objective(owner), SPACE, Client())
    assert fresh.resume() == 6
    assert_told(fresh, 6)


def test_every_kind_of_parameter():
    space = Space(**SPECS)
    seen = []
    lock = threading.Lock()

    def fit(x):
        with lock:
            seen.append(space.decode(x))
        return torch.tensor([0.4, 0.5], dtype=DOUBLE)

    loop = a_loop(4, space, noisy_improvement(initial=3), fit=fit)
    loop.run()
    for trial, parameters in zip(loop.client._experiment.trials.values(), seen, strict=True):
        shown = trial.arm.parameters
        for name in ("depth", "layers", "batch", "kernel", "flag"):
            assert shown[name] == parameters[name]
        assert shown["sizes"] == repr(parameters["sizes"])
        assert shown["C"] == pytest.approx(parameters["C"], rel=1e-9)


def test_every_value_of_a_list_is_tried_as_what_it_is():
    for values in ([0, 0.5, 1], [1.0, 1, "sqrt"], [np.float64(v) for v in (0.001, 0.01, 0.1, 1)]):
        space = Space(a=values, b=scipy.stats.uniform())
        seen: list[Any] = []

        def fit(x, space=space, seen=seen):
            seen.append(space.decode(x)["a"])
            return torch.tensor([0.4, 0.5], dtype=DOUBLE)

        loop = a_loop(8, space, noisy_improvement(initial=8), fit=fit)
        loop.run()
        assert {(str(v), type(v) is int) for v in seen} == {
            (str(v), type(v) is int) for v in space.specs["a"]
        }, values
        for trial, value in zip(loop.client._experiment.trials.values(), seen, strict=True):
            assert (
                float(trial.arm.parameters["a"]) == value
                if value != "sqrt"
                else trial.arm.parameters["a"] == "sqrt"
            )


def acquisition_of(loop):
    """The acquisition function, and the model, of the trial that was generated last."""
    generator = loop.client._generation_strategy.adapter.generator
    return (
        generator._acquisition.acqf if hasattr(generator, "_acquisition") else None
    ), generator.surrogate.model


def test_gp_ucb_counts_the_observations_and_what_is_pending():
    schedule = SrinivasCompact(dimension=2, side=1.0, a=1.0, b=2.0, delta=0.1)
    loop = a_loop(8, strategy=gp_ucb(schedule, initial=4))
    loop.run(5)
    loop.next()
    acquisition, model = acquisition_of(loop)
    assert isinstance(acquisition, GPUCB)
    assert float(acquisition.beta) == pytest.approx(schedule(6))
    X = torch.rand(7, 1, 2, dtype=DOUBLE)
    posterior = model.posterior(X)
    bound = (
        posterior.mean[..., 0, 0] + math.sqrt(schedule(6)) * posterior.variance[..., 0, 0].sqrt()
    )
    torch.testing.assert_close(acquisition(X), bound)
    loop.next()
    pending, model = acquisition_of(loop)
    assert float(pending.beta) == pytest.approx(schedule(7))
    torch.testing.assert_close(
        pending.model.posterior(X).mean, model.posterior(X).mean, rtol=1e-6, atol=1e-6
    )
    assert bool((pending.model.posterior(X).variance <= model.posterior(X).variance + 1e-9).all())


def test_gradient_information_is_about_the_place_that_was_named():
    place = {"rate": 0.1, "lag": 3.7}
    space = Space(rate=scipy.stats.loguniform(1e-3, 1e1), lag=scipy.stats.norm(3, 1))
    loop = a_loop(
        9,
        space,
        gradient_information(space, at=place, initial=4),
        fit=lambda x: torch.tensor([float(x[0]), 0.5]).double(),
    )
    loop.run(5)
    (index,) = loop.next()
    acquisition, model = acquisition_of(loop)
    assert isinstance(acquisition, GradientInformation)
    assert isinstance(model, SingleTaskGP)
    # what Ax itself makes of a trial at that place
    adapter = loop.client._generation_strategy.adapter
    features = importlib.import_module("ax.core.observation").ObservationFeatures
    there = [features({"rate": 0.1, "lag (quantile)": float(scipy.stats.norm(3, 1).cdf(3.7))})]
    for transform in adapter.transforms.values():
        there = transform.transform_observation_features(there)
    cube = torch.tensor(
        [there[0].parameters["rate"], there[0].parameters["lag (quantile)"]], dtype=DOUBLE
    )
    assert adapter.generator.search_space_digest.bounds == [(0.0, 1.0)] * 2, (
        "Ax's model no longer sees the unit cube"
    )
    torch.testing.assert_close(acquisition.theta, cube, rtol=1e-9, atol=1e-9)
    history = GradientPosterior(model.covar_module, float(model.likelihood.noise.max()))
    history.append(model.train_inputs[0])
    expected = GradientInformation(history, cube)
    X = torch.rand(16, 1, 2, dtype=DOUBLE)
    torch.testing.assert_close(acquisition(X), expected(X))
    chosen = loop.client._experiment.trials[index].arm.parameters
    at = torch.tensor(
        [(math.log10(chosen["rate"]) + 3) / 4, (chosen["lag (quantile)"] - 1e-3) / (1 - 2e-3)],
        dtype=DOUBLE,
    )
    assert (
        float(expected(at.view(1, 1, 2)))
        >= float(expected(torch.rand(256, 1, 2, dtype=DOUBLE)).max()) - 1e-3
    )


def test_the_gradient_is_wanted_at_the_best_mean_and_pending_points_count():
    loop = a_loop(9, strategy=gradient_information(SPACE, initial=4))
    loop.run(5)
    loop.next(2)
    acquisition, model = acquisition_of(loop)
    X = model.train_inputs[0]
    assert torch.equal(acquisition.theta, X[model.posterior(X).mean[:, 0].argmax()])
    assert acquisition.X_pending is not None
    assert len(acquisition.X_pending) == 1


def snapshot(loop):
    """What Ax would store, without clocks, seeds of its own and handles."""
    experiment = loop.client._experiment
    rows = (
        experiment.lookup_data()
        .df[["trial_index", "arm_name", "metric_name", "mean", "sem"]]
        .values.tolist()
    )
    trials = [
        (t.index, t.status.name, t.arm.parameters, sorted(t.run_metadata), t._properties)
        for t in experiment.trials.values()
    ]
    return repr((rows, trials, experiment.name, experiment._properties))


@attack("A6", "A7", "A21")
def test_replay_of_an_experiment():
    neighbour = RECORDS.clone()
    neighbour[200] = 0.0

    def run(owner, records):
        loop = a_loop(5, owner=owner, strategy=noisy_improvement(initial=3, seed=1))
        loop.run()
        return snapshot(loop), loop.recommended().parameters

    assert len(replay(run, RECORDS, neighbour, **TERMS)) == 5


@attack("A21")
def test_a_failing_score_leaves_nothing_private_behind(tmp_path, capfd):
    owner = curator(records=RECORDS + float(CANARY))
    file = tmp_path / "client.json"
    loop = a_loop(3, owner=owner, score=failing_score)
    for kinds in ((), (ValueError, RuntimeError)):
        with pytest.raises(PrivateFailure):
            loop.run(catch=kinds)
    assert statuses(loop) == [Status.RUNNING], (
        "as if the process had been killed, and tried again by the next run"
    )
    assert loop.client._experiment.trials[0].run_metadata == {}
    assert loop.objective.remaining == 3
    loop.client.save_to_json_file(str(file))
    for word in (CANARY, "PrivateFailure"):
        assert word not in file.read_text() + "".join(capfd.readouterr())


@attack("A7", "A21")
def test_no_proposal_follows_a_private_failure():
    """`catch=[Exception]` took private failures for those of a fit and went on from them, so that
    points told of the records.
    """

    def broken(x, records):
        # Made-up records are fewer.
        if float(x[0]) > 0.5 and len(records) == 400 and bool((records > 0.1).any()):
            raise ValueError
        return score(x, records)

    points = []
    for records in (RECORDS, RECORDS.clamp(max=0.1)):
        strategy = noisy_improvement(initial=4, seed=1)
        loop = a_loop(4, owner=curator(records=records), strategy=strategy, score=broken)
        for kinds in ([Exception], [ZeroDivisionError, PrivateFailure]):
            with pytest.raises(InputError, match="catch"):
                loop.run(catch=kinds)
        with contextlib.suppress(PrivateFailure):
            loop.run(catch=[RuntimeError])
        points.append([trial.arm.parameters for trial in loop.client._experiment.trials.values()])
    shorter, longer = sorted(points, key=len)
    assert shorter == longer[: len(shorter)]
    assert len(shorter) < len(longer) == 4, "the score failed on one of them"


def test_a_baseline_without_privacy_runs_the_same_experiment():
    for strategy in (noisy_improvement(initial=3), gradient_information(SPACE, initial=3)):
        loop = a_loop(4, strategy=strategy, mechanism=EXACT)
        loop.run()
        assert_told(loop, 4)
