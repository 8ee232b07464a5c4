"""Tuning DP-SGD: sessions that cannot overspend, plans that keep each role's budget, searches that
resume, selections that stay hidden.
"""

import collections
import dataclasses
import inspect
import itertools
import math
import pathlib
import zipfile
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from dpbo import Budget, Space
from dpbo.accounting import compose
from dpbo.dpsgd import DPSGDConfig, Session, plan_tuning, tune, tuning
from dpbo.dpsgd.gains import gain_test
from dpbo.dpsgd.planning import settings_of
from dpbo.errors import (
    InputError,
    LedgerMismatch,
    ReleaseLost,
    ReservationChanged,
    ScoreError,
    UsageError,
)
from dpbo.events import OneOfEvent, RolesEvent, SelectionEvent
from dpbo.ledger import Ledger
from dpbo.privacy import Adjacency
from dpbo.run_counts import FixedRuns
from examples.tuning_dpsgd import roles
from tests.attacks.marks import attack
from tests.attacks.setups import fit as train
from tests.integration.test_opacus_releasing import require_bare
from tests.setups import of

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
BUDGET = Budget(4.0, 1e-5)
ADDED = Adjacency.ADD_OR_REMOVE_ONE
TERMS = DPSGDConfig(noise_multiplier=1.0, epochs=2, batches=5, batch_size=60)
SPACE = Space(lr=scipy.stats.loguniform(1e-2, 1e1), clip=[0.5, 1.0])
GIVEN = {"lr": 0.5, "clip": 1.0}
X = torch.randn(700, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).long()
TRAINING = TensorDataset(X[:300], Y[:300])
VALIDATION = (X[300:500], Y[300:500])
FITS: list[dict[str, Any]] = []
STOP: list[bool] = []
# Before how many fits one is interrupted.
KILL: list[int] = []


def private(session, net, lr=0.1, clip=1.0, **settings):
    return session.make_private(
        net, torch.optim.SGD(net.parameters(), lr=lr), max_grad_norm=clip, **settings
    )


def fit(parameters, session):
    if KILL and KILL[0] == len(FITS):
        KILL.clear()
        raise KeyboardInterrupt
    net, optimizer, loader = private(session, nn.Linear(4, 2), **parameters)
    train(net, optimizer, loader)
    FITS.append(parameters)
    return net


def right(net, records):
    if STOP:
        STOP.clear()
        raise KeyboardInterrupt
    with torch.no_grad():
        return net(records[0]).argmax(1) == records[1]


def careless(net, records):
    """Opacus would keep the records, for the model is asked with gradients; and the score keeps
    them itself.
    """
    net.seen = records
    net.eval()
    return (net(records[0]).argmax(1) == records[1]).detach()


def plans(**changed):
    return plan_tuning(
        BUDGET, TERMS, **{"runs": 4, "validation": 200, "adjacency": ADDED, **changed}
    )


def tuned(plan, fit=fit, score=right, **changed):
    terms = {
        "training": TRAINING,
        "validation": VALIDATION,
        "space": SPACE,
        "try_first": False,
        "allow_repeated": "ledger" not in changed,
        **changed,
    }
    return tune(fit, score, plan=plan, **terms)


def given(strategy):
    """What one run needs besides."""
    return {"parameters": GIVEN} if strategy == "once" else {}


def killed(plan, after, **changed):
    """A study that is interrupted before its next fit, `after` fits from its beginning."""
    KILL.append(after)
    with pytest.raises(KeyboardInterrupt):
        tuned(plan, **changed)


def charges(where):
    return [
        record.name for record in Ledger.open(where["ledger"]).records() if record.kind == "charge"
    ]


@pytest.fixture(scope="module")
def four():
    """Every strategy's plan."""
    return plans()


@pytest.fixture
def where(tmp_path):
    FITS.clear()
    return {"dataset": "d", "ledger": str(tmp_path / "l.db"), "folder": tmp_path / "models"}


class TestSession:
    @attack("A23")
    def test_it_gives_out_exactly_its_steps_as_fresh_poisson_samples(self):
        batches = []
        terms = dataclasses.replace(TERMS, epochs=20, batch_size=64)
        session = Session(TensorDataset(torch.arange(300.0).unsqueeze(1), torch.zeros(300)), terms)
        net, optimizer, loader = private(session, nn.Linear(1, 1))
        for inputs, _ in loader:
            batches.append(frozenset(inputs[:, 0].tolist()))
            optimizer.zero_grad()
            net(inputs).sum().backward()
            optimizer.step()
        assert len(batches) == len(set(batches)) == session.config.steps == 100
        assert abs(sum(map(len, batches)) - 6000) < 6 * (30000 * 0.2 * 0.8) ** 0.5
        assert vars(optimizer)["expected_batch_size"] == 64, (
            "the public number, not the 60 that were counted"
        )
        assert vars(optimizer)["noise_multiplier"] == 1.0

    def test_one_step_more_is_refused_before_it_is_taken(self):
        net, optimizer, loader = private(Session(TRAINING, TERMS), nn.Linear(4, 2))
        train(net, optimizer, loader)
        before = net.state_dict()["_module.weight"].clone()
        with pytest.raises(UsageError, match="step"):
            train(net, optimizer, [(X[:9], Y[:9])])
        assert torch.equal(net.state_dict()["_module.weight"], before)
        session = Session(TRAINING, TERMS)
        with pytest.raises(AttributeError):
            session.config = dataclasses.replace(TERMS, noise_multiplier=0.5)  # type: ignore[misc]
        net, optimizer, loader = private(session, nn.Linear(4, 2))
        optimizer.noise_multiplier = 0.5
        with pytest.raises(InputError, match="noise_multiplier"):
            train(net, optimizer, loader)

    def test_what_the_session_decides_and_a_second_model_are_refused(self):
        session = Session(TRAINING, TERMS)
        for name in ("noise_multiplier", "data_loader", "noise_generator", "poisson_sampling"):
            with pytest.raises(UsageError, match=name):
                private(session, nn.Linear(4, 2), **{name: 0.1})
        with pytest.raises(InputError, match="grad_sample_mode"):
            private(session, nn.Linear(4, 2), grad_sample_mode="ghost")
        with pytest.raises(InputError, match="module"):
            private(session, nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2, device="meta")))
        private(session, nn.Linear(4, 2))  # what was refused has not begun the run
        with pytest.raises(InputError, match="first of this run"):
            private(session, nn.Linear(4, 2))

    @attack("A17")
    def test_a_seeded_torch_repeats_neither_samples_nor_noise(self):
        weights = []
        for _ in range(2):
            torch.manual_seed(0)
            weights.append(fit(GIVEN, Session(TRAINING, TERMS)).state_dict()["_module.weight"])
        assert not torch.equal(*weights)
        assert weights[0].shape == (2, 4)


class TestPlans:
    def require_spent(self, four, least):
        """Both roles together, and each alone, spend the budget up to what the search for plans
        leaves, and no more.
        """
        for plan in four.values():
            for role in (None, "training", "validation"):
                events = [
                    one for event in plan.events for one in (event.of(role) if role else [event])
                ]
                assert least < compose(events, delta=1e-5).epsilon <= 4.0, (plan.strategy, role)

    def test_each_role_keeps_the_budget_and_a_selection_needs_less_noise_than_runs(self, four):
        self.require_spent(four, 3.99)
        noise = {name: plan.config.noise_multiplier for name, plan in four.items()}
        assert noise["once"] < noise["selection"] < noise["hypo"]
        assert noise["selection"] < noise["search"]
        assert four["selection"].runs == pytest.approx(4.0)
        assert four["selection"].usually > 4
        assert str(four).startswith(
            "epsilon 4, delta 1e-05, add-or-remove-one; 200 validation records"
        )

    @attack("A15")
    @pytest.mark.deep  # three plans and their check take the accountant seconds
    def test_plans_spend_the_whole_budget_under_either_relation_and_another_law_of_runs(self):
        added = plans()
        replaced = plans(adjacency=Adjacency.REPLACE_ONE)
        fixed = plans(run_count=FixedRuns(3))
        for found in (added, replaced, fixed):
            self.require_spent(found, 3.99)
        assert (
            replaced["once"].config.noise_multiplier > 1.1 * added["once"].config.noise_multiplier
        )
        assert replaced["once"].score_std == pytest.approx(2 * added["once"].score_std, rel=1e-3), (
            "of a range, not of half"
        )
        plan = fixed["selection"]
        assert (plan.runs, plan.usually) == (3, 3)
        assert isinstance(plan.events[0], RolesEvent)
        assert all(
            isinstance(event, SelectionEvent)
            for role in plan.events[0].roles
            for event in plan.events[0].of(role)
        )

    def test_a_budget_without_epsilon_is_refused(self):
        with pytest.raises(InputError, match="epsilon"):
            plan_tuning(Budget.gdp(1.0), TERMS, runs=4, validation=200)


@attack("A28")
def test_removing_a_record_moves_no_other_from_one_role_to_another():
    """The default fits any split by place; the example's split is by each record alone."""
    assert inspect.signature(plan_tuning).parameters["adjacency"].default is Adjacency.REPLACE_ONE
    rows = load_digits(return_X_y=True)[0]
    assert torch.equal(roles(rows, 0)[1:], roles(rows[1:], 0))
    assert roles(rows, 0).bincount().tolist() == pytest.approx([1100, 350, 347], abs=60)


class TestTuning:
    @pytest.mark.parametrize("strategy", ["selection", "hypo"])
    def test_hidden_runs_release_one_run_and_one_entry(self, four, where, strategy):
        found = tuned(four[strategy], **where)
        assert found.model is not None
        assert found.score is not None
        assert (
            abs(found.score - float(right(found.model, VALIDATION).double().mean()))
            < 6 * four[strategy].score_std
        ), "of this very model"
        assert charges(where) == ["selection"]
        epsilon = math.ceil(1000 * compose(four[strategy].events, delta=1e-5).epsilon) / 1000
        for word in (
            "validation and training records",
            f"({epsilon:.3f}, 1e-05)-DP",
            "dpsgd-attested",
            "runs-hidden",
            "roles-by-record",
        ):
            assert word in str(found.statement)
        if strategy == "selection":
            again = tuned(four[strategy], **where)
            assert torch.equal(again.model.weight, found.model.weight), "kept in the folder"
            assert again.file in [*where["folder"].iterdir()]
            assert (again.score, again.score_std) == (found.score, four[strategy].score_std)

    def test_a_point_that_a_small_space_gives_twice_costs_one_score(self, four):
        """All scores that were left went to the model of that point, and runs that were paid for
        were never begun.
        """
        space = Space(lr=[0.5, 1.0, 2.0], clip=[1.0])
        for seed in itertools.count():
            design = space.sample(3, seed=seed)
            if torch.equal(design[0], design[1]) and not torch.equal(design[1], design[2]):
                break
        FITS.clear()
        found = tuned(four["search"], space=space, initial=3, seed=seed)
        assert torch.equal(found.X[:3], design)
        assert len(found.X) == 4
        assert len(FITS) == len({tuple(x) for x in found.X.tolist()})

    def test_once_is_one_run_of_given_parameters_inside_the_space(self, four, where):
        for name, given in [
            ("once", None),
            ("selection", GIVEN),
            *(("once", GIVEN | {"lr": lr}) for lr in (20.0, float("nan"))),
        ]:
            with pytest.raises(InputError, match="parameters"):
                tuned(four[name], parameters=given, **where)
        with pytest.raises(InputError, match="parameters"):
            tuned(four["once"], parameters=GIVEN | {"clip": 2.0}, **where)
        assert not (where["folder"].parent / "l.db").exists(), "refused before there is a ledger"
        assert tuned(four["once"], parameters=GIVEN).parameters == pytest.approx(GIVEN)

    def test_a_search_goes_on_from_its_ledger_and_keeps_its_models(self, four, where):
        killed(four["search"], 2, **where)
        FITS.clear()
        found = tuned(four["search"], **where)
        assert len(found.X) == 3, "the interrupted run is paid for and not run again"
        assert len(FITS) == 1
        assert (charges(where).count("training"), charges(where).count("scores")) == (4, 3)
        FITS.clear()
        again = tuned(four["search"], **where)
        assert FITS == []
        assert again.file == found.file
        kept = torch.load(found.file, weights_only=False)
        assert torch.equal(kept.weight, found.model.weight), "the recommended model's file"
        assert torch.equal(again.Y, found.Y)
        assert torch.equal(right(again.model, VALIDATION), right(found.model, VALIDATION))

    def test_a_model_that_another_study_paid_for_is_not_taken_for_ones_own(self, four, where):
        given = of(parameters=GIVEN, folder=where["folder"])
        quiet = dataclasses.replace(four["once"].config, noise_multiplier=0.5)
        events = (
            RolesEvent(costs=(("training", (quiet.event(Adjacency.ADD_OR_REMOVE_ONE),)),)),
            four["once"].events[1],
        )
        other = tuned(
            dataclasses.replace(
                four["once"], configs=(quiet,), events=events, budget=Budget(30.0, 1e-5)
            ),
            **given,
        )
        FITS.clear()
        found = tuned(four["once"], **given)
        assert len(FITS) == 1, "at the same point, with the noise of this plan"
        assert not torch.equal(found.model.weight, other.model.weight)
        assert len(list(where["folder"].iterdir())) == 2

    def test_a_model_that_was_trained_and_not_scored_is_scored(self, four, where):
        STOP.append(True)
        with pytest.raises(KeyboardInterrupt):
            tuned(four["search"], **where)
        FITS.clear()
        found = tuned(four["search"], **where)
        assert len(FITS) == 3
        assert len(found.X) == 4

    def test_a_run_that_fails_is_paid_for_and_worst_and_says_nothing(self, four, capsys):
        row = X[7].tolist()

        def fails(parameters, session):
            if parameters["clip"] == 1.0:
                raise ValueError(f"record {row}")
            return fit(parameters, session)

        found = tuned(four["search"], fit=fails)
        assert len(found.X) == 4
        assert found.parameters["clip"] == 0.5
        assert "record" not in capsys.readouterr().err
        with pytest.warns(UserWarning, match="tune returns no model"):
            everything = tuned(four["selection"], fit=lambda parameters, session: 1 / 0)
        assert everything.model is None
        assert everything.score is None

    @attack("A21")
    @pytest.mark.parametrize("strategy", ["once", "search", "selection"])
    def test_the_model_and_its_files_hold_numbers_alone(self, four, tmp_path, strategy):
        """Opacus leaves gradients by record and records on a module, and torch.save writes them."""
        kept: list[nn.Module] = []

        def keeps(parameters, session):
            kept.append(fit(parameters, session))
            return kept[-1]

        found = tuned(four[strategy], fit=keeps, score=careless, folder=tmp_path, **given(strategy))
        files = [torch.load(path, weights_only=False) for path in tmp_path.iterdir()]
        assert len(files) == (4 if strategy == "search" else 1)
        for model in (found.model, *files):
            require_bare(model, X)
            assert type(model) is nn.Linear
            assert not model.training
            assert not hasattr(model, "seen")
        if strategy == "once":
            for path in tmp_path.iterdir():
                with zipfile.ZipFile(path) as file:
                    assert sorted(
                        len(file.read(name)) for name in file.namelist() if "/data/" in name
                    ) == [4 * 2, 4 * 8]

    @attack("A16")
    def test_a_run_is_paid_for_before_it_sees_a_record(self, four, where):
        paid: list[int] = []

        def fails(parameters, session):
            paid.append(len(Ledger.open(where["ledger"]).charges("training")))
            raise ValueError

        with pytest.warns(UserWarning, match="tune returns no model"):
            tuned(four["search"], fit=fails, **where)
        assert paid == [1, 2, 3, 4]

    @attack("A16")
    @pytest.mark.parametrize(
        ("strategy", "told"), [("selection", None), ("once", "every training run")]
    )
    def test_a_study_whose_only_release_was_killed_is_lost(self, four, where, strategy, told):
        killed(four[strategy], 0, **given(strategy), **where)
        with pytest.raises(ReleaseLost, match=told):
            tuned(four[strategy], **given(strategy), **where)
        assert FITS == []

    @attack("A16")
    @pytest.mark.parametrize(
        ("after", "told"), [(2, "runs resumed: 2, lost: 1"), (3, "runs resumed: 3, lost: 1")]
    )
    def test_the_log_tells_of_a_run_that_was_killed(
        self, four, where, after, told, caplog, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("DPBO_STATE", str(tmp_path))
        killed(four["search"], after, **where)
        with caplog.at_level("INFO", "dpbo.dpsgd"):
            tuned(four["search"], **where)
        left = 4 - after - 1
        logged = [each for each in caplog.records if each.name.startswith("dpbo.dpsgd")]
        assert [record.getMessage() for record in logged] == [
            f"'training': {told} (charged, and ended before their score), runs left: {left}"
        ]

    @attack("A30")
    @pytest.mark.parametrize(("strategy", "other"), [("search", "fit"), ("selection", "score")])
    def test_another_fit_or_score_is_refused_on_the_same_ledger(self, four, where, strategy, other):
        """A search mixed models of two kinds, a selection gave the earlier one."""
        tuned(four[strategy], **where)
        others = of(
            fit=lambda parameters, session: fit({**parameters, "lr": 0.1}, session), score=careless
        )
        with pytest.raises(ReservationChanged, match=f"began with another {other}"):
            tuned(four[strategy], **{other: others[other]}, **where)


class Readable(TensorDataset):
    """Training records of which only the first may be read."""

    def __getitem__(self, place):
        assert place == 0
        return super().__getitem__(place)


class Words(TensorDataset):
    """Training records without zeros."""

    def __getitem__(self, place):
        return "a", 1


class TestTrial:
    """`fit` and `score` are tried on stand-in records; where they fail there is no ledger yet."""

    def refused(self, plan, where, error, match, **changed):
        terms = {**given(plan.strategy), **where, **changed}
        with pytest.raises(error, match=match) as raised:
            tuned(plan, try_first=True, **terms)
        assert not pathlib.Path(where["ledger"]).exists()
        return "".join(getattr(raised.value, "__notes__", []))

    @pytest.mark.parametrize("strategy", ["selection", "once"])
    def test_a_failing_fit_or_score_is_raised_as_it_is_and_costs_nothing(
        self, four, where, strategy
    ):
        plan = four[strategy]

        def fails(parameters, session):
            fit(parameters, session)
            raise ValueError("boom")

        training = Readable(X[:300], Y[:300])
        note = self.refused(plan, where, ValueError, "boom", fit=fails, training=training)
        assert "Nothing was charged" in note
        assert "example=(training, validation)" in note
        assert len(FITS) == 1
        one_number = "one real number a record"
        self.refused(plan, where, ScoreError, one_number, score=lambda net, records: 0.5)
        no_model = "make_private's module"
        self.refused(plan, where, UsageError, no_model, fit=lambda parameters, session: None)

    def test_it_takes_all_steps_on_zeros_at_both_ends_and_moves_no_generator(self, four, where):
        seen = []

        def notes(parameters, session):
            net, optimizer, loader = private(session, nn.Linear(4, 2), **parameters)
            assert len(loader) == session.config.steps
            for inputs, labels in loader:
                seen.append(torch.cat([inputs.flatten(), labels.double()]))
                train(net, optimizer, [(inputs, labels)])
            if len(seen) == 24:
                raise LookupError("last")
            return net

        torch.manual_seed(5)
        first = torch.rand(1)
        torch.manual_seed(5)
        self.refused(four["selection"], where, LookupError, "last", fit=notes)
        assert torch.equal(torch.rand(1), first)
        assert len(seen) == 24, "ten at either end, and two at two more points"
        assert not torch.cat(seen).any()
        # five numbers a record
        sizes = [len(each) / 5 for each in seen]
        whole = [*sizes[:2], *sizes[10:12], *sizes[20:]]
        assert 0.5 * 60 < np.mean(whole) < 2 * 60, "samples of the configured size"
        assert max(*sizes[2:10], *sizes[12:20]) <= 2

    @pytest.mark.parametrize("strategy", ["selection", "once"])
    def test_a_fit_that_takes_fewer_steps_than_configured_is_refused_before_a_charge(
        self, four, where, strategy
    ):
        def stops(parameters, session):
            steps = parameters["steps"]
            net, optimizer, loader = private(session, nn.Linear(4, 2), lr=parameters["lr"])
            train(net, optimizer, itertools.islice(loader, steps))
            return net

        space = Space(lr=[0.1], steps=[3, *[10] * 40])
        terms = {"parameters": {"lr": 0.1, "steps": 3}} if strategy == "once" else {}
        self.refused(
            four[strategy], where, UsageError, "fewer steps", fit=stops, space=space, **terms
        )

    @pytest.mark.parametrize(
        ("strategy", "early"),
        [
            *itertools.product(["selection"], [1, 2, "default"]),
            ("once", 2),
        ],
    )
    def test_a_configuration_or_default_that_stops_early_is_refused_wherever_it_is(
        self, several, where, strategy, early
    ):
        """Configurations within, and the default, were not run through: a loop of 40 steps was paid
        for where 50 were configured.
        """
        middle = dataclasses.replace(CONFIGS[0], epochs=5, batches=2)
        configs = CONFIGS[0], middle, CONFIGS[1]
        plan = dataclasses.replace(several[strategy], configs=configs)
        seen = []

        def stops(parameters, session):
            net, optimizer, loader = private(session, nn.Linear(4, 2), lr=0.1)
            by_default = parameters["lr"] == pytest.approx(0.3)
            stopped = by_default if early == "default" else session.config is configs[early]
            train(net, optimizer, itertools.islice(loader, 2 if stopped else None))
            seen.append(stopped)
            return net

        terms = {"default": {"lr": 0.3, "clip": 1.0, "epochs": 1, "batches": 20}}
        if strategy == "once":
            terms["parameters"] = {**GIVEN, "epochs": 1, "batches": 20}
        self.refused(plan, where, UsageError, "fewer steps", fit=stops, **terms)
        assert seen == [False] * (len(seen) - 1) + [True], "and at the first such run"

    def test_records_without_zeros_need_an_example_or_no_trial(self, four, where):
        once = four["once"]
        words = {"training": Words(X[:300], Y[:300])}
        for changed in (words, {"validation": ["a"] * 200}):
            self.refused(once, where, InputError, "made up", **changed)

        def nowhere_zero(parameters, session):
            net, optimizer, loader = private(session, nn.Linear(4, 2), **parameters)
            for inputs, labels in loader:
                assert inputs.all(), "zeros"
                train(net, optimizer, [(inputs, labels)])
            return net

        self.refused(once, where, AssertionError, "zeros", fit=nowhere_zero)
        public = TensorDataset(X[500:510], Y[500:510]), (X[500:520], Y[500:520])
        found = tuned(once, fit=nowhere_zero, example=public, try_first=True, parameters=GIVEN)
        assert found.model is not None

    def test_records_of_every_common_kind_have_zeros(self):
        Pair = collections.namedtuple("Pair", "a b")
        record = {
            "x": [torch.ones(2), np.ones(2, np.uint8)],
            "y": Pair(3, np.float32(2.0)),
            "z": (True, 0.5),
        }
        zeros = tuning._zeros(record)
        assert not any(np.any(np.asarray(leaf)) for leaf in (*zeros["x"], *zeros["y"], *zeros["z"]))
        for a, b in zip(
            [record["x"][0], *record["y"], *record["z"]],
            [zeros["x"][0], *zeros["y"], *zeros["z"]],
            strict=True,
        ):
            assert type(a) is type(b)
        assert zeros["x"][1].dtype == np.uint8


CONFIGS = [
    DPSGDConfig(epochs=3, batches=1, batch_size=300),
    DPSGDConfig(epochs=1, batches=20, batch_size=15),
]


@pytest.fixture(scope="module")
def several():
    """Every strategy's plan of several configurations, beside a default."""
    return plan_tuning(BUDGET, CONFIGS, runs=3, validation=200, default=True)


class TestSeveralConfigurations:
    """Batch size and epochs are searched with the other parameters, and a default is compared."""

    def test_all_cost_the_same_and_keep_the_budget_whichever_is_drawn(self, several):
        for plan in several.values():
            paid = [event for event in plan.events if "training" in event.roles]
            assert 3.97 < compose(paid, delta=1e-5).epsilon <= 4.0
            runs = [config.event(plan.adjacency) for config in plan.configs]
            one = OneOfEvent(candidates=tuple(runs))
            for event in (event for charge in paid for event in charge.of("training")):
                (run,) = event.base if isinstance(event, SelectionEvent) else (event.repeated(1),)
                assert run == one, "what is charged is the largest of all"
            costs = [compose([run], delta=1e-5).epsilon for run in runs]
            assert 0.75 * plan.run_epsilon < min(costs)
            assert 0.99 * plan.run_epsilon < max(costs) <= plan.run_epsilon * (1 + 1e-4)
            with pytest.raises(UsageError, match="configs"):
                _ = plan.config
        assert str(several).count(", ") > 8, "the noise of each"

    @pytest.mark.parametrize("strategy", ["selection", "search", "once"])
    def test_a_run_has_the_session_of_the_drawn_one_which_is_released(
        self, several, where, strategy
    ):
        plan = several[strategy]
        drawn = []

        def notes(parameters, session):
            drawn.append((parameters, session.config))
            named = {name: parameters[name] for name in GIVEN}
            net, optimizer, loader = private(session, nn.Linear(4, 2), **named)
            train(net, optimizer, loader)
            return net

        default = {**GIVEN, "epochs": 1, "batches": 20}
        terms = {"default": default, **where}
        if strategy == "once":
            terms["parameters"] = {**GIVEN, "epochs": 3, "batches": 1}
        found = tuned(plan, fit=notes, **terms)
        for parameters, config in drawn:
            assert config in plan.configs
            assert {**parameters, **settings_of(config)} == parameters
        first = pytest.approx({**default, "batch_size": 15})
        assert drawn[0][0] == first, "the default is the first of the runs"
        assert found.parameters in [parameters for parameters, _ in drawn]
        assert found.model is not None
        assert found.gain is not None
        assert found.gain >= 0.0
        assert (found.gain == 0.0) <= (found.parameters == drawn[0][0])
        if strategy == "selection":
            assert charges(where) == ["training", "scores", "selection"]
            assert len(found.X) == 1
        else:
            assert charges(where) == ["training", "scores"] * (3 if strategy == "search" else 2)
        drawn.clear()
        again = tuned(plan, fit=notes, **terms)
        assert (again.parameters, again.score, again.gain) == (
            found.parameters,
            found.score,
            found.gain,
        )
        assert not drawn

    @pytest.mark.parametrize("strategy", ["selection", "search", "once"])
    def test_only_a_score_that_noise_does_not_explain_replaces_the_default(self, several, strategy):
        """All scores are 0 or 1 up to noise, for a model says one class or nearly the truth."""
        plan = several[strategy]
        default = {**GIVEN, "epochs": 1, "batches": 20}
        other = {"parameters": {**GIVEN, "lr": 0.1, "epochs": 3, "batches": 1}}
        terms = {"default": default, **(other if strategy == "once" else {})}
        law = plan.run_count or FixedRuns(plan.usually - 1)

        def begins(better):
            def fit(parameters, session):
                good = (parameters == pytest.approx({**default, "batch_size": 15})) != better
                net = nn.Linear(4, 2)
                with torch.no_grad():
                    net.bias.zero_()
                    net.weight.zero_()
                    net.weight[1, 0] = 1e4 if good else -1e4
                    net.weight[1, 1] = 3e3 if good else -3e3
                net, optimizer, loader = private(session, net, lr=1e-3)
                train(net, optimizer, loader)
                return net

            return fit

        kept = tuned(plan, fit=begins(better=False), **terms)
        assert kept.gain == 0.0
        assert kept.parameters == pytest.approx({**default, "batch_size": 15})
        assert kept.score > 0.8
        for risk in (0.1, 1e-6):
            margin = gain_test(law, risk=risk) * plan.score_std
            found = tuned(plan, fit=begins(better=True), risk=risk, **terms)
            assert found.parameters != kept.parameters
            assert abs(found.gain - (1.0 - margin)) < 6 * 2**0.5 * plan.score_std
            if plan.run_count is not None:
                assert found.gain == pytest.approx(found.score - float(found.Y[0]) - margin)

    @pytest.mark.parametrize("strategy", ["selection", "search", "once"])
    def test_a_default_that_fails_has_no_gain_over_it(self, several, strategy):
        default = {**GIVEN, "epochs": 1, "batches": 20}
        other = {"parameters": {**GIVEN, "epochs": 3, "batches": 1}} if strategy == "once" else {}

        def fails(parameters, session):
            if parameters == pytest.approx({**default, "batch_size": 15}):
                raise MemoryError
            return fit({name: parameters[name] for name in GIVEN}, session)

        with pytest.warns(UserWarning, match="tune tells no gain"):
            found = tuned(several[strategy], fit=fails, default=default, **other)
        assert found.gain is None
        assert found.model is not None

    @pytest.mark.parametrize("strategy", ["selection", "search", "once"])
    def test_runs_that_train_by_less_noise_than_was_planned_are_refused(
        self, four, where, strategy
    ):
        quiet = dataclasses.replace(four[strategy].config, noise_multiplier=0.1)
        plan = dataclasses.replace(four[strategy], configs=(quiet,))
        with pytest.raises(InputError, match=r"Planned\(.* can pay for"):
            tuned(plan, **given(strategy), **where)
        assert not FITS
        assert charges(where) == []

    @pytest.mark.parametrize("strategy", ["selection", "search", "once"])
    def test_a_study_goes_on_with_its_own_default_alone(self, several, where, strategy):
        """It answered for the first one."""
        default = {**GIVEN, "epochs": 1, "batches": 20}
        other = {**GIVEN, "epochs": 3, "batches": 1}
        terms = {"default": default, **({"parameters": other} if strategy == "once" else {})}

        def short(parameters, session):
            return fit({name: parameters[name] for name in GIVEN}, session)

        tuned(several[strategy], fit=short, **terms, **where)
        for name in terms:
            changed = {**terms, name: {**terms[name], "lr": 0.2}}
            with pytest.raises(LedgerMismatch, match="points"):
                tuned(several[strategy], fit=short, **changed, **where)

    def test_what_a_configuration_decides_is_no_parameter_and_a_default_is_planned(
        self, four, several
    ):
        for name in ("batches", "epochs", "batch_size", "noise_multiplier"):
            with pytest.raises(InputError, match=r"plan_tuning\(budget, \[DPSGDConfig"):
                tuned(four["selection"], space=Space({"lr": [0.1], name: [1, 2]}))
        for plan, default in ((four["search"], GIVEN), (several["search"], None)):
            with pytest.raises(InputError, match="default=True"):
                tuned(plan, default=default)
        for default, match in (
            ({**GIVEN, "epochs": 3, "batches": 20}, "^default.*one of the plan's configurations"),
            (GIVEN, "^default.*one of the plan's configurations"),
            ({"lr": 0.1, "epochs": 3, "batches": 1}, "the keys lr, clip, epochs, batches. Missing"),
            ({"lr": 99.0, "clip": 1.0, "epochs": 3, "batches": 1}, r"default\['lr'\] must be"),
        ):
            with pytest.raises(InputError, match=match):
                tuned(several["search"], default=default)
        for configs in ([], [CONFIGS[0], dataclasses.replace(CONFIGS[0], noise_multiplier=2.0)]):
            with pytest.raises(InputError, match="config"):
                plan_tuning(BUDGET, configs, runs=3, validation=200)


class TestArguments:
    def test_what_does_not_fit_the_plan_is_refused_with_what_to_do(self, four):
        plan = dataclasses.replace(four["once"], adjacency=Adjacency.REPLACE_ONE, validation=350)
        for changed, match in (
            ({"plan": four}, r"plans\['selection'\]"),
            ({"training": (X[:300], Y[:300])}, r"TensorDataset\(\*training\)"),
            ({"plan": plan}, r"plan_tuning\(..., validation=200\)"),
        ):
            with pytest.raises(UsageError, match=match):
                tuned(**{"plan": four["once"], "parameters": GIVEN, **changed})
