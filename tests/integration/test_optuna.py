"""Optuna over a private objective: nothing overspent, nothing told but releases, nothing paid for
lost, also by several processes.
"""

import contextlib
import itertools
import math
import pathlib
import sqlite3
import threading

import optuna
import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from dpbo import Space
from dpbo.errors import BudgetExceeded, InputError, UsageError
from dpbo.integrations.optuna import (
    NoiseAwareSampler,
    StudyEnded,
    TrialObjective,
    recommended_trial,
)
from dpbo.integrations.optuna.trials import BudgetSpent, Suggestions
from dpbo.integrations.recommendation import recommended
from dpbo.ledger.ledger import Ledger
from dpbo.queries import CellMeans
from dpbo.reporting.released_values import ReleasedValues
from dpbo.testing import replay
from tests.attacks.marks import attack
from tests.integration.processes import started
from tests.integration.searches import (
    CANARY,
    RECORDS,
    SPACE,
    TERMS,
    curator,
    failing_score,
    main,
    objective,
    released,
    released_by,
    score,
)
from tests.integration.test_wording import SPECS
from tests.setups import DOUBLE, EXACT

optuna.logging.set_verbosity(optuna.logging.WARNING)
# a stalled line search, which BoTorch tries again
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


OPENED: list[optuna.storages.RDBStorage] = []


@pytest.fixture(autouse=True)
def storages_are_closed():
    """Optuna leaves its databases open, of which Python 3.13 warns in whatever test runs then."""
    yield
    while OPENED:
        OPENED[-1].remove_session()
        OPENED.pop().engine.dispose()


def a_study(url=None, sampler=None, **settings):
    storage = url and optuna.storages.RDBStorage(url)
    if storage:
        OPENED.append(storage)
    sampler = sampler or optuna.samplers.RandomSampler(seed=0)
    settings = {"direction": "maximize", "pruner": optuna.pruners.NopPruner(), **settings}
    return optuna.create_study(
        storage=storage, study_name="search", load_if_exists=True, sampler=sampler, **settings
    )


def told(study):
    return {
        t.user_attrs["entry"]: (t.value, t.user_attrs["yvar"])
        for t in study.get_trials(states=(TrialState.COMPLETE,))
    }


@pytest.mark.parametrize(
    "sampler",
    [optuna.samplers.TPESampler(seed=0), NoiseAwareSampler(SPACE, initial=4)],
    ids=["TPE", "ours"],
)
def test_a_study_stops_when_the_plan_is_used_up(sampler):
    private = TrialObjective(objective(), SPACE)
    study = a_study(sampler=sampler)
    study.optimize(private, n_trials=50)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 6, (
        "no trial too many, none that failed"
    )
    assert told(study) == released(private)
    assert all(
        trial.user_attrs.keys() == {"entry", "yvar"} and not trial.intermediate_values
        for trial in study.trials
    )
    X, Y, _ = private.objective.history()
    assert torch.equal(Y[:, 0], torch.tensor([trial.value for trial in study.trials], dtype=DOUBLE))
    for x, trial in zip(X, study.trials, strict=True):
        assert SPACE.decode(x) == pytest.approx(trial.params, rel=1e-9)
    study.optimize(private, n_trials=50)
    assert [trial.state for trial in study.trials[6:]] == [TrialState.PRUNED], (
        "one trial finds nothing left, and ends without a value"
    )
    with pytest.raises(
        BudgetExceeded, match="needs 1 evaluation; 0 of 6 evaluations are left"
    ) as caught:
        private(study.ask())
    assert isinstance(caught.value, BudgetSpent)


def test_parallel_trials_share_one_plan_and_assume_that_durations_tell_nothing():
    for workers in (1, 3):
        first = iter(range(workers))
        meet = threading.Barrier(workers)

        def together(x, first=first, meet=meet):
            """None of the first trials ends before all have begun."""
            if next(first, None) is not None:
                meet.wait(60)
            return x

        private = TrialObjective(objective(evaluations=7, fit=together), SPACE)
        study = a_study()
        study.optimize(private, n_trials=40, n_jobs=workers)
        assert ("durations-tell-nothing" in private.objective.curator.statement().assumptions) == (
            workers > 1
        )
        assert told(study) == released(private)
        assert len(told(study)) == 7
        assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}


@attack("A13")
def test_studies_that_do_not_fit_are_refused_before_anything_is_fitted():
    def never(x):
        raise AssertionError("fitted")

    private = TrialObjective(objective(fit=never), SPACE)
    for settings, word in (
        ({"pruner": None}, "pruner='MedianPruner' is not allowed.*NopPruner"),
        ({"direction": "minimize"}, "direction='minimize'.*'maximize'"),
        (
            {"direction": None, "directions": ["maximize", "maximize"]},
            "direction='maximize, maximize'",
        ),
    ):
        study = a_study(**settings)
        for refused in (
            lambda study=study: study.optimize(private, n_trials=1),
            lambda study=study: private.resume(study),
        ):
            with pytest.raises(InputError, match=word):
                refused()
    study = a_study()
    study.ask().report(0.5, step=1)
    with pytest.raises(UsageError, match="trial 0 has intermediate values"):
        study.optimize(private, n_trials=1)
    with pytest.raises(InputError, match="FixedTrial"):
        private(optuna.trial.FixedTrial({"rate": 1.0, "shift": 0.0}))
    assert private.objective.remaining == 6
    with pytest.raises(InputError, match="of one metric"):
        TrialObjective(objective(score=CellMeans(score, cells=3), score_range=None), SPACE)


@attack("A21")
def test_a_report_from_within_the_fit_is_never_released():
    def reporting(x):
        trial.report(0.5, step=1)
        return x

    trial = a_study().ask()
    private = TrialObjective(objective(fit=reporting), SPACE)
    with pytest.raises(UsageError, match="has intermediate values"):
        private(trial)
    assert private.objective.remaining == 6


def test_a_fit_that_raises_is_a_failed_trial_at_no_charge():
    def fit(x):
        if x[1] < 0.5:
            raise ValueError("no such shift")
        return x

    private = TrialObjective(objective(fit=fit), SPACE)
    study = a_study()
    study.optimize(private, n_trials=40, catch=(ValueError,))
    states = [trial.state for trial in study.trials]
    assert states.count(TrialState.COMPLETE) == 6
    assert states.count(TrialState.FAIL) == len(states) - 6 > 0
    assert all(not trial.user_attrs for trial in study.trials if trial.state is TrialState.FAIL)


@attack("A21")
def test_a_failing_score_leaves_nothing_private_behind(tmp_path, caplog):
    owner = curator(str(tmp_path / "l.db"), RECORDS + float(CANARY))
    private = TrialObjective(objective(owner, 3, score=failing_score), SPACE)
    file = tmp_path / "study.db"
    study = a_study(f"sqlite:///{file}")
    optuna.logging.enable_propagation()
    try:
        for workers in (1, 2):
            with pytest.raises(StudyEnded, match="failed on private records"):
                study.optimize(private, n_trials=5, n_jobs=workers, catch=(Exception,))
    finally:
        optuna.logging.disable_propagation()
    assert {trial.state for trial in study.trials} == {TrialState.RUNNING}, (
        "as if the process had been killed"
    )
    assert len(study.trials) <= 4, "nothing goes on after a failure"
    assert not any(trial.user_attrs or trial.system_attrs for trial in study.trials)
    assert private.objective.remaining == 3
    assert "The study ends" in caplog.text
    assert CANARY not in caplog.text
    for word in (CANARY, "Failure", "failed"):
        assert not any(word.encode() in path.read_bytes() for path in tmp_path.iterdir()), word
    study.set_user_attr("control", float(CANARY))
    assert CANARY.encode() in file.read_bytes(), "a canary that is stored is found"


def contents(file: pathlib.Path, ledger):
    """Every table of the study's storage, without clocks, and with handles by their order."""
    order = {value["handle"]: f"entry {i}" for i, value in enumerate(ledger.values("search"))}
    with contextlib.closing(sqlite3.connect(file)) as database:
        names = [
            row[0]
            for row in database.execute(
                "select name from sqlite_master where type = 'table' order by name"
            )
        ]
        tables = {
            name: database.execute(f"select * from {name} order by 1").fetchall() for name in names
        }
        columns = {
            name: [c[1] for c in database.execute(f"pragma table_info({name})")] for name in names
        }
    shown = {
        name: [
            [v for c, v in zip(columns[name], row, strict=True) if not c.startswith("datetime")]
            for row in rows
        ]
        for name, rows in tables.items()
    }
    text = repr(shown)
    for handle, place in order.items():
        text = text.replace(handle, place)
    return text


@attack("A6", "A7", "A21")
def test_replay_of_a_study(tmp_path):
    neighbour = RECORDS.clone()
    runs: list[pathlib.Path] = []
    neighbour[200] = 0.0

    def run(owner, _records):
        file = tmp_path / f"{len(runs)}.db"
        runs.append(file)
        study = a_study(f"sqlite:///{file}", NoiseAwareSampler(SPACE, seed=1, initial=3))
        study.optimize(TrialObjective(objective(owner, evaluations=4), SPACE))
        best = recommended_trial(study, SPACE)
        return contents(file, owner.ledger), best.params, best.mean

    assert len(replay(run, RECORDS, neighbour, **TERMS)) == 4


def test_what_was_paid_for_comes_back():
    owner = curator()
    private = TrialObjective(objective(owner, evaluations=9), SPACE)
    study = a_study()
    study.optimize(private, n_trials=2)
    # released outside the study, jointly
    private.objective(SPACE.sample(3, seed=5))
    lost = study.ask()
    # released, but never told
    private(lost)
    assert private.resume(study) == 4
    assert private.resume(study) == 0
    assert told(study) == released(private)
    fresh = a_study()
    assert private.resume(fresh) == 6
    assert told(fresh) == released(private)
    by_entry = {trial.user_attrs.get("entry"): trial for trial in fresh.trials}
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        assert by_entry[trial.user_attrs["entry"]].params == pytest.approx(trial.params, rel=1e-9)
    # told after all: in the study twice, counted once
    study.tell(lost, released(private)[lost.user_attrs["entry"]][0])
    X, _, _ = private.objective.history()
    best = recommended_trial(study, SPACE)
    assert any(torch.allclose(best.x, x) for x in X)
    fresh.optimize(private)
    assert len(released(private)) == 9


def test_study_and_ledger_want_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    private = TrialObjective(objective(curator(str(tmp_path / "both.db"))), SPACE)
    for url in (f"sqlite:///{tmp_path / 'both.db'}", "sqlite:///both.db"):
        with pytest.raises(InputError, match="another file"):
            private.resume(a_study(url))
    assert private.resume(a_study("sqlite:///other.db")) == 0


def test_a_mixed_space_is_searched_and_stored(tmp_path):
    space = Space(**SPECS)
    laws = Suggestions(space).distributions
    seen = []
    assert (laws["C"], laws["momentum"]) == (
        FloatDistribution(1e-2, 1e3, log=True),
        FloatDistribution(0.5, 0.9),
    )
    assert (laws["depth"], laws["layers"]) == (IntDistribution(2, 9), IntDistribution(2, 6, step=2))
    assert laws["lag (quantile)"] == FloatDistribution(1e-3, 1 - 1e-3)
    assert laws["batch"] == CategoricalDistribution((16, 32, 128))
    assert laws["sizes"] == CategoricalDistribution(("(10,)", "(20, 20)", None))

    def fit(x):
        seen.append(space.decode(x))
        return torch.tensor([0.4, 0.5], dtype=DOUBLE)

    private = TrialObjective(objective(evaluations=4, fit=fit), space)
    study = a_study(f"sqlite:///{tmp_path / 's.db'}", NoiseAwareSampler(space, initial=3))
    study.optimize(private)
    assert len(study.trials) == len(seen) == 4
    for trial, parameters in zip(study.trials, seen, strict=True):
        for name in ("depth", "layers", "batch", "kernel", "flag"):
            assert trial.params[name] == parameters[name]
        assert trial.params["C"] == pytest.approx(parameters["C"], rel=1e-9)
        assert parameters["sizes"] in SPECS["sizes"]


def add(study, x, value, variance, entry, constraints=None):
    suggestions = Suggestions(SPACE)
    study.add_trial(
        optuna.trial.create_trial(
            params=suggestions.shown(torch.tensor(x, dtype=DOUBLE)),
            distributions=suggestions.distributions,
            value=value,
            user_attrs={"entry": entry, "yvar": variance},
            system_attrs=stored(constraints or {}),
        )
    )


def stored(constraints):
    """Constraints as Optuna stores them, which has no public way for all versions."""
    if hasattr(optuna.trial.Trial, "set_constraint"):
        return {f"constraints:{name}": value for name, value in constraints.items()}
    return {"constraints": list(constraints.values())}


def constrain(study, trial_id, constraints):
    for name, value in stored(constraints).items():
        study._storage.set_trial_system_attr(trial_id, name, value)


def grid_study(sampler=None):
    study = a_study(sampler=sampler)
    for i, u in enumerate(torch.linspace(0, 1, 9).tolist()):
        add(study, [u, 0.5], 1 - (u - 0.4) ** 2, 1e-6, f"known {i}")
    return study


def test_a_trial_outside_the_space_costs_nothing_and_stops_no_later_one():
    private = TrialObjective(objective(evaluations=5), SPACE)
    study = a_study(sampler=NoiseAwareSampler(SPACE, initial=2))
    study.optimize(private, n_trials=2)
    study.enqueue_trial({"rate": 1e7, "shift": 0.0})
    with pytest.warns(UserWarning, match="out of range"), pytest.raises(InputError, match="rate"):
        study.optimize(private)
    assert private.objective.remaining == 3
    wide = {"rate": FloatDistribution(1e-3, 1e9, log=True), "shift": FloatDistribution(-1, 1)}
    older = {"entry": "an older one, recorded where it was not evaluated", "yvar": 1e-6}
    outside = {"rate": 1e7, "shift": 0.0}
    study.add_trial(
        optuna.trial.create_trial(params=outside, distributions=wide, value=5.0, user_attrs=older)
    )
    study.optimize(private)
    assert len(released(private)) == 5
    assert recommended_trial(study, SPACE).params["rate"] <= 1e1


def test_the_luckiest_trial_is_not_recommended():
    study = grid_study()
    add(study, [0.97, 0.5], 1.2, 1.0, "lucky")
    assert study.best_trial.user_attrs["entry"] == "lucky"
    assert recommended_trial(study, SPACE).x[0] == pytest.approx(0.375)
    with pytest.raises(InputError, match="one released point"):
        recommended_trial(a_study(), SPACE)


def size(params):
    """A public constraint, broken where the rate is above 0.01: the score is best at 0.1."""
    return math.log10(params["rate"]) + 2


def told_before(private, trial):
    trial.suggest_float("rate", 1e-3, 1e1, log=True)
    trial.set_constraint("size", size(trial.params))
    return private(trial)


def told_after(private, trial):
    value = private(trial)
    trial.set_constraint("size", size(trial.params))
    trial.set_constraint("always met", -math.inf)
    return value


def told_by_sampler(private, trial):
    return private(trial)


FILE = "sqlite:///study.db"
new_in_5 = pytest.mark.skipif(
    not hasattr(optuna.trial.Trial, "set_constraint"), reason="Optuna 5 has set_constraint"
)


@pytest.mark.filterwarnings("ignore:.*constraints_func.*", "ignore:.*is experimental")
@pytest.mark.parametrize(
    ("told_how", "sampler", "url"),
    [
        pytest.param(told_before, NoiseAwareSampler, None, marks=new_in_5, id="before"),
        pytest.param(told_after, NoiseAwareSampler, FILE, marks=new_in_5, id="after"),
        pytest.param(told_by_sampler, optuna.samplers.TPESampler, None, id="TPE"),
    ],
)
def test_a_trial_that_breaks_a_constraint_is_not_recommended(
    tmp_path, monkeypatch, told_how, sampler, url
):
    """The highest posterior mean of all trials breaks it, whichever way Optuna was told."""

    monkeypatch.chdir(tmp_path)
    if sampler is NoiseAwareSampler:
        made = sampler(SPACE, initial=6)
    else:
        made = sampler(seed=1, constraints_func=lambda trial: (size(trial.params),))
    private = TrialObjective(objective(evaluations=9, mechanism=EXACT), SPACE)
    study = a_study(url, made)
    study.optimize(lambda trial: told_how(private, trial))
    assert len(study.trials) == 9
    best = recommended_trial(study, SPACE)
    assert size(best.params) <= 0
    assert size(recommended(SPACE, *private.objective.history()).params) > 0, "no power"
    highest = max(trial.value for trial in study.trials if size(trial.params) <= 0)
    assert best.mean == pytest.approx(highest, abs=1e-2)
    shown = ReleasedValues.of(study)
    assert size(shown.parameters(shown.best)) <= 0, "the report's"


def test_a_trial_that_lacks_a_constraint_does_not_count_as_meeting_it():
    study = a_study()
    for u, value, constraints in (
        (0.1, 0.2, {"size": -1.0, "time": 0.0}),
        (0.4, 0.9, {"size": -1.0}),
        (0.5, 0.9, {}),
        (0.6, 0.9, {"size": -1.0, "time": 1e-9}),
    ):
        add(study, [u, 0.5], value, 1e-6, f"known {u}", constraints)
    assert recommended_trial(study, SPACE).x[0] == pytest.approx(0.1)
    # the value of a killed worker's trial, which resume added without its constraints
    late = study.ask()
    late.set_user_attr("entry", "known 0.5")
    constrain(study, late._trial_id, {"size": -1.0, "time": -1.0})
    assert recommended_trial(study, SPACE).x[0] == pytest.approx(0.5)
    none = a_study()
    add(none, [0.1, 0.5], 0.2, 1e-6, "broken", {"size": 1.0})
    with pytest.raises(UsageError, match="no released point is known to meet every constraint"):
        recommended_trial(none, SPACE)
    with pytest.raises(UsageError, match="no released point is known to meet every constraint"):
        _ = ReleasedValues.of(none).best


def test_the_sampler_proposes_where_constraints_are_met():
    """The values alone are best at 0.7, and the constraint holds below 0.5."""
    bounds = {"none": math.inf, "huge": 1e300, "infinite": math.inf}
    for kind, largest in bounds.items():
        study = a_study(sampler=NoiseAwareSampler(SPACE, seed=3, initial=2))
        for i, u in enumerate(torch.linspace(0, 1, 9).tolist()):
            broken = {"size": (u - 0.45) * (largest if u > 0.45 else 1.0)}
            broken["constant"] = 0.0
            # a constraint that one trial has: too few for a model
            if i == 0:
                broken["rare"] = -1.0
            constraints = {} if kind == "none" else broken
            add(study, [u, 0.5], 1 - (u - 0.7) ** 2, 1e-6, f"known {i}", constraints)
        point = Suggestions(SPACE).suggest(study.ask())
        assert bool(point[0] > 0.5) is (kind == "none"), kind


def test_the_sampler_draws_one_sobol_design():
    study = a_study(sampler=NoiseAwareSampler(SPACE, seed=7, initial=4))
    points = torch.stack([Suggestions(SPACE).suggest(study.ask()) for _ in range(4)])
    torch.testing.assert_close(points, SPACE.sample(4, seed=7), rtol=1e-9, atol=1e-9)


def test_points_that_are_under_way_or_failed_are_not_asked_again_at_once():
    study = grid_study(NoiseAwareSampler(SPACE, initial=2))
    points = []
    for state in (None, None, TrialState.FAIL, None):
        trial = study.ask()
        points.append(Suggestions(SPACE).suggest(trial))
        if state is not None:
            study.tell(trial, state=state)
    assert min(float((a - b).norm()) for a, b in itertools.combinations(points, 2)) > 0.02


@attack("A16")
def test_a_killed_process_of_two_loses_nothing_that_was_paid_for(tmp_path, capsys, monkeypatch):
    """One worker is killed between a release and telling Optuna; then two, of which this process is
    one, resume and finish at once.
    """
    monkeypatch.setenv("DPBO_STATE", str(tmp_path))
    file = f"sqlite:///{tmp_path / 'study.db'}"
    books = str(tmp_path / "ledger.db")
    study = a_study(file)

    dying = started(tmp_path, "log", main, "die", file, books, "a")
    dying.join(timeout=300)
    assert dying.exitcode == -9, (tmp_path / "log").read_text()
    assert len(released_by(Ledger.open(books))) == 3
    assert len(told(study)) == 2, "the third was never told"
    beside = started(tmp_path, "resumed", main, "resume", file, books, "a")
    main("resume", file, books, "b")
    beside.join(timeout=300)
    log = (tmp_path / "resumed").read_text()
    assert beside.exitcode == 0, log
    assert sorted(map(int, (log, capsys.readouterr().out))) == [
        0,
        1,
    ], "two who resume at once bring it back once"
    ledger = Ledger.open(books)
    ledger.verify()
    assert sum(record.body["event"]["count"] for record in ledger.charges("search")) == 8
    assert told(study) == released_by(ledger)
    states = [trial.state for trial in study.trials]
    assert states.count(TrialState.PRUNED) <= 2, (
        "whoever came too late ended quietly, one trial a worker at most"
    )
    assert set(states) <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING}
    assert states.count(TrialState.RUNNING) == 1, "of the killed worker"
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert all(len(trial.params) == 2 for trial in done)
    assert len({tuple(trial.params.items()) for trial in done}) == len(done) == 8


def test_an_empty_study_gets_the_released_trials_and_spends_no_evaluation_on_it(tmp_path):
    """As after a lost study file: the first trial adds what the ledger has; an enqueued one is
    still evaluated.
    """
    books = str(tmp_path / "ledger.db")
    first = TrialObjective(objective(curator(books), evaluations=6), SPACE)
    again = a_study()
    first(a_study().ask())
    first.objective(SPACE.sample(1, seed=5))
    private = TrialObjective(objective(curator(books), evaluations=6), SPACE)
    again.optimize(private, n_trials=2)
    assert [trial.state for trial in again.trials] == [
        TrialState.PRUNED,
        *[TrialState.COMPLETE] * 3,
    ]
    assert told(again) == released(private)
    queued = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner())
    queued.enqueue_trial(again.trials[1].params)
    queued.optimize(private, n_trials=1)
    assert [trial.state for trial in queued.trials] == [TrialState.COMPLETE] * 4
    assert told(queued) == released(private)
    assert private.objective.remaining == 2


def test_a_released_point_outside_the_space_becomes_no_trial():
    """As where the space was narrowed: its value would stand at another point."""
    private = TrialObjective(objective(curator(), evaluations=4), SPACE)
    rounded, outside = SPACE.bounds[1:] + 1e-7, SPACE.bounds[1:] + 2.0
    private.objective(torch.cat([SPACE.sample(1, seed=5), outside, rounded]))
    study = a_study()
    assert private.resume(study) == 2
    assert len(told(study)) == 2


def test_a_study_of_another_space_is_refused_in_our_words_and_uncharged():
    """Optuna's own words are of a "dynamic value space"."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner())
    trial = study.ask()
    trial.suggest_categorical("kind", ["a", "b"])
    study.tell(trial, 0.5)
    asked = objective(curator())
    space = Space(kind=["x", "y", "z"])
    with pytest.raises(UsageError, match=r"other values of 'kind'.*a study of its own"):
        study.optimize(TrialObjective(asked, space), n_trials=1)
    assert asked.remaining == asked.evaluations


def test_a_pruned_point_is_never_proposed_again():
    """By the Sobol design, which meets the few points of a list again, and by the model."""

    def to_point(_):
        return torch.tensor([0.4, 0.5], dtype=DOUBLE)

    few = Space(kind=["a", "b", "c"])
    for space, pruned_at in (
        (few, lambda trial: trial.params["kind"] == "a"),
        (SPACE, lambda trial: trial.number % 2),
    ):
        private = TrialObjective(objective(evaluations=6, fit=to_point), space)

        def asked(trial, private=private, pruned_at=pruned_at):
            private.suggestions.suggest(trial)
            if pruned_at(trial):
                raise optuna.TrialPruned
            return private(trial)

        study = a_study(sampler=NoiseAwareSampler(space, initial=6))
        study.optimize(asked, n_trials=10)
        pruned = []
        for trial in study.trials:
            assert trial.params not in pruned, trial.number
            if pruned_at(trial):
                pruned.append(trial.params)
        assert len(pruned) == (1 if space is few else 5)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_that_optuna_tries_again_after_a_kill_is_paid_for_once():
    retry = (
        getattr(optuna.storages, "RetryHeartbeatStaleTrialCallback", None)
        or optuna.storages.RetryFailedTrialCallback
    )
    for released_before in (False, True):
        private = TrialObjective(objective(), SPACE)
        release = private.objective.release
        study = a_study()
        trial = study.ask()

        def killed(handle, first=release if released_before else None):
            if first is not None:
                first(handle)
            raise KeyboardInterrupt

        private.objective.release = killed  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            private(trial)
        private.objective.release = release  # type: ignore[method-assign]
        left = private.objective.remaining
        stale = study.trials[0]
        study.tell(stale.number, state=TrialState.FAIL)
        retry()(study, stale)
        study.optimize(private, n_trials=1)
        again = study.trials[-1]
        assert again.state is TrialState.COMPLETE
        assert again.params == stale.params
        assert private.objective.remaining == left - (not released_before)
        value, variance = released(private)[again.user_attrs["entry"]]
        assert (again.value, again.user_attrs["yvar"]) == (value, variance)
