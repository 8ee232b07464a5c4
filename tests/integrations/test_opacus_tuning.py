"""Tuning DP-SGD: sessions that cannot overspend, plans that keep each role's budget, searches that resume, selections that tell nothing."""

import dataclasses
import zipfile
from typing import Any

import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpbo import Budget, Space
from dpbo.accounting import compose
from dpbo.curator import Ledger
from dpbo.errors import InputError, LedgerMismatch, ReleaseLost
from dpbo.events import RolesEvent, SelectionEvent
from dpbo.integrations.opacus import DPSGD, Session, plan_tuning, tune
from dpbo.integrations.opacus.training import _HEAD, _WORDS, _seeded
from dpbo.laws import FixedRuns, PoissonRuns
from dpbo.privacy import Adjacency
from tests.integrations.test_opacus_releasing import require_bare

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
BUDGET = Budget(4.0, 1e-5)
TERMS = DPSGD(noise_multiplier=1.0, epochs=2, batches=5, batch_size=60)
SPACE = Space(lr=scipy.stats.loguniform(1e-2, 1e1), clip=[0.5, 1.0])
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(700, 4, generator=DRAW)
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).long()
TRAINING, VALIDATION = TensorDataset(X[:300], Y[:300]), (X[300:500], Y[300:500])
FITS: list[dict[str, Any]] = []


def fit(parameters, session):
    net = nn.Linear(4, 2)
    net, optimizer, loader = session.make_private(
        net, torch.optim.SGD(net.parameters(), lr=parameters["lr"]), max_grad_norm=parameters["clip"]
    )
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    FITS.append(parameters)
    return net


def right(net, records):
    with torch.no_grad():
        return net(records[0]).argmax(1) == records[1]


def careless(net, records):
    """In whatever mode the model is, with gradients, so that Opacus would keep the records; and it keeps them itself."""
    net.seen = records
    net.eval()
    return (net(records[0]).argmax(1) == records[1]).detach()


def plans(**changed):
    return plan_tuning(BUDGET, TERMS, **{"runs": 4, "validation": 200, **changed})


def tuned(plan, **changed):
    terms = {"training": TRAINING, "validation": VALIDATION, "space": SPACE, "budget": BUDGET, "divisor": 200, **changed}
    return tune(
        changed.pop("fit", fit), changed.pop("score", right), plan=plan, **{k: v for k, v in terms.items() if k not in ("fit", "score")}
    )


@pytest.fixture(scope="module")
def four():
    return plans()


class TestSession:
    @pytest.mark.attack("A23")
    def test_it_gives_out_exactly_its_steps_as_fresh_poisson_samples(self):
        batches = []
        terms = dataclasses.replace(TERMS, epochs=20, batch_size=64)
        session = Session(TensorDataset(torch.arange(300.0).unsqueeze(1), torch.zeros(300)), terms)
        net: nn.Module = nn.Linear(1, 1)
        net, optimizer, loader = session.make_private(net, torch.optim.SGD(net.parameters(), lr=0.1), max_grad_norm=1.0)
        for inputs, _ in loader:
            batches.append(frozenset(inputs[:, 0].tolist()))
            optimizer.zero_grad()
            net(inputs).sum().backward()
            optimizer.step()
        assert len(batches) == session.terms.steps == 100
        assert len(set(batches)) == 100
        assert abs(sum(map(len, batches)) - 6000) < 6 * (30000 * 0.2 * 0.8) ** 0.5
        assert vars(optimizer)["expected_batch_size"] == 64, "the public number, not the 60 that were counted"
        assert vars(optimizer)["noise_multiplier"] == 1.0

    def test_one_step_more_is_refused_before_it_is_taken(self):
        session = Session(TRAINING, TERMS)
        net: nn.Module = nn.Linear(4, 2)
        net, optimizer, loader = session.make_private(net, torch.optim.SGD(net.parameters(), lr=0.1), max_grad_norm=1.0)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        before = net.state_dict()["_module.weight"].clone()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[:9]), Y[:9]).backward()
        with pytest.raises(InputError, match="steps=11"):
            optimizer.step()
        assert torch.equal(net.state_dict()["_module.weight"], before)

    def test_a_second_model_and_the_sessions_own_terms_are_refused(self):
        session = Session(TRAINING, TERMS)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for name in ("noise_multiplier", "data_loader", "noise_generator", "poisson_sampling"):
            with pytest.raises(InputError, match="opacus"):
                session.make_private(net, optimizer, max_grad_norm=1.0, **{name: 0.1})
        session.make_private(net, optimizer, max_grad_norm=1.0)
        other = nn.Linear(4, 2)
        with pytest.raises(InputError, match="first of this run"):
            session.make_private(other, torch.optim.SGD(other.parameters(), lr=0.1), max_grad_norm=1.0)

    def test_one_step_takes_one_sample_so_that_no_record_counts_twice(self):
        session = Session(TRAINING, dataclasses.replace(TERMS, batches=1, batch_size=1))
        net: nn.Module = nn.Linear(4, 2)
        net, _, loader = session.make_private(net, torch.optim.SGD(net.parameters(), lr=1.0), max_grad_norm=1.0)
        inputs, labels = next(iter(loader))
        nn.functional.cross_entropy(net(inputs), labels).backward()
        with pytest.raises(ValueError, match="accumulation"):
            nn.functional.cross_entropy(net(inputs), labels).backward()

    def test_ghost_clipping_and_a_model_on_two_devices_are_refused_before_it_begins(self):
        session, net = Session(TRAINING, TERMS), nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(InputError, match="grad_sample_mode"):
            session.make_private(net, optimizer, max_grad_norm=1.0, grad_sample_mode="ghost")
        with pytest.raises(InputError, match="module"):
            session.make_private(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2, device="meta")), optimizer, max_grad_norm=1.0)
        session.make_private(net, optimizer, max_grad_norm=1.0)

    @pytest.mark.attack("A17")
    def test_noise_and_samples_have_more_seeds_than_can_be_tried(self):
        states = [_seeded(torch.device("cpu")).get_state()[_HEAD : _HEAD + 8 * _WORDS].view(_WORDS, 8)[:, :4] for _ in range(2)]
        again = torch.Generator()
        for state in states:  # the recurrence by which a seed of 32 bits would decide all words
            words = state.contiguous().view(torch.int32).flatten().tolist()
            follow = [(1812433253 * ((a & 0xFFFFFFFF) ^ ((a & 0xFFFFFFFF) >> 30)) + i + 1) & 0xFFFFFFFF for i, a in enumerate(words[:-1])]
            assert sum(a == b & 0xFFFFFFFF for a, b in zip(follow, words[1:], strict=True)) < 3
        drawn = torch.randn(100_000, generator=_seeded(torch.device("cpu")))
        assert abs(float(drawn.mean())) < 6 / 100_000**0.5
        assert abs(float(drawn.var()) - 1) < 6 * (2 / 100_000) ** 0.5
        again.manual_seed(5)
        first = again.get_state()[_HEAD : _HEAD + 4].view(torch.int32)
        assert int(first) == 5, "where torch keeps its words"

    @pytest.mark.attack("A17")
    def test_a_seeded_torch_repeats_neither_samples_nor_noise(self):
        weights = []
        for _ in range(2):
            torch.manual_seed(0)
            weights.append(fit({"lr": 0.5, "clip": 1.0}, Session(TRAINING, TERMS)).state_dict()["_module.weight"])
        assert not torch.equal(*weights)
        assert weights[0].shape == (2, 4)


class TestPlans:
    def test_each_role_spends_the_whole_budget_and_no_more(self, four):
        for plan in four.values():
            composed = compose(plan.events, delta=1e-5).epsilon
            assert 3.9 < composed <= 4.0
            for role in ("training", "validation"):
                alone = [one for event in plan.events for one in event.of(role)]
                assert 3.9 < compose(alone, delta=1e-5).epsilon <= 4.0

    def test_a_selection_asks_less_noise_of_a_run_than_paying_for_each(self, four):
        noise = {name: plan.terms.noise_multiplier for name, plan in four.items()}
        assert noise["once"] < noise["selection"] < noise["hypo"]
        assert noise["selection"] < noise["search"]
        assert four["selection"].runs == pytest.approx(4.0)
        assert four["selection"].usually > 4
        assert str(four).count("\n") == 5

    def test_replacing_costs_more_than_adding(self, four):
        replaced = plans(adjacency=Adjacency.REPLACE_ONE)
        assert replaced["once"].terms.noise_multiplier > 1.1 * four["once"].terms.noise_multiplier
        assert replaced["once"].score_std == pytest.approx(2 * four["once"].score_std, rel=1e-3)  # of a range, not of half

    def test_another_law_of_runs(self):
        plan = plans(law=FixedRuns(3))["selection"]
        assert (plan.runs, plan.usually) == (3, 3)
        assert isinstance(plan.events[0], RolesEvent)
        assert all(isinstance(event, SelectionEvent) for role in plan.events[0].roles for event in plan.events[0].of(role))

    @pytest.mark.parametrize("changed", [{"runs": 0}, {"validation": 0}, {"score_range": (1.0, 0.0)}])
    def test_nonsense_is_refused(self, changed):
        with pytest.raises(InputError, match=next(iter(changed))):
            plans(**changed)

    def test_a_budget_without_epsilon_is_refused(self):
        with pytest.raises(InputError, match="epsilon"):
            plan_tuning(Budget.gdp(1.0), TERMS, runs=4, validation=200)


class TestTuning:
    @pytest.mark.parametrize("strategy", ["selection", "hypo"])
    def test_hidden_runs_release_one_run_and_one_entry(self, four, tmp_path, strategy):
        found = tuned(four[strategy], dataset="d", ledger=str(tmp_path / "l.db"))
        assert found.model is not None
        assert found.score is not None
        assert abs(found.score - float(right(found.model, VALIDATION).double().mean())) < 6 * four[strategy].score_std, "of this very model"
        ledger = Ledger.existing(str(tmp_path / "l.db"))
        assert [record.name for record in ledger.records() if record.kind == "charge"] == ["selection"]
        text = str(found.statement)
        assert "validation and training records" in text
        assert "(4.000, 1e-05)-DP" in text
        assert all(name in text for name in ("dpsgd-attested", "runs-hidden"))

    def test_a_search_pays_for_each_run_and_hands_out_a_paid_model(self, four):
        FITS.clear()
        found = tuned(four["search"], initial=3)
        assert len(FITS) == len(found.X) == 4
        assert found.parameters in FITS
        assert found.model is not None
        assert "validation and training records" in str(found.statement)

    def test_once_is_one_run_of_given_parameters(self, four):
        given = {"lr": 0.5, "clip": 1.0}
        found = tuned(four["once"], parameters=given)
        assert found.parameters["clip"] == 1.0
        assert found.parameters["lr"] == pytest.approx(0.5)
        with pytest.raises(InputError, match="parameters"):
            tuned(four["once"])
        with pytest.raises(InputError, match="parameters"):
            tuned(four["selection"], parameters=given)

    @pytest.mark.parametrize("asked", [{"lr": 20.0, "clip": 1.0}, {"lr": 0.5, "clip": 2.0}, {"lr": float("nan"), "clip": 1.0}])
    def test_parameters_outside_the_space_are_refused_before_there_is_a_ledger(self, four, tmp_path, asked):
        with pytest.raises(InputError, match="parameters"):
            tuned(four["once"], parameters=asked, dataset="d", ledger=str(tmp_path / "l.db"))
        assert not (tmp_path / "l.db").exists()

    def test_a_search_goes_on_from_its_ledger_and_keeps_its_models(self, four, tmp_path):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db"), "folder": tmp_path / "models"}
        began: list[Any] = []

        def dies(parameters, session):
            if len(began) == 2:
                raise KeyboardInterrupt
            began.append(parameters)
            return fit(parameters, session)

        with pytest.raises(KeyboardInterrupt):
            tuned(four["search"], fit=dies, **where)
        FITS.clear()
        found = tuned(four["search"], **where)
        assert len(found.X) == 3, "the interrupted run is paid for and not run again"
        assert len(FITS) == 1
        charges = [record.name for record in Ledger.existing(where["ledger"]).records() if record.kind == "charge"]
        assert (charges.count("training"), charges.count("scores")) == (4, 3)
        FITS.clear()
        again = tuned(four["search"], **where)
        assert FITS == []
        assert torch.equal(again.Y, found.Y)
        assert torch.equal(right(again.model, VALIDATION), right(found.model, VALIDATION))

    def test_a_model_that_another_study_paid_for_is_not_taken_for_ones_own(self, four, tmp_path):
        given: dict[str, Any] = {"parameters": {"lr": 0.5, "clip": 1.0}, "folder": tmp_path / "models"}
        dearer = plan_tuning(Budget(30.0, 1e-5), TERMS, runs=4, validation=200)["once"]
        other = tuned(dearer, **given, budget=Budget(30.0, 1e-5))
        FITS.clear()
        found = tuned(four["once"], **given)
        assert len(FITS) == 1, "at the same point, with the noise of this plan"
        assert not torch.equal(found.model.weight, other.model.weight)
        assert len(list((tmp_path / "models").iterdir())) == 2

    def test_a_model_that_was_trained_and_not_scored_is_scored(self, four, tmp_path):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db"), "folder": tmp_path / "models"}

        def interrupted(net, records):
            raise KeyboardInterrupt

        terms: dict[str, Any] = {"training": TRAINING, "validation": VALIDATION, "space": SPACE, "budget": BUDGET, "divisor": 200}
        with pytest.raises(KeyboardInterrupt):
            tune(fit, interrupted, plan=four["search"], **terms, **where)
        FITS.clear()
        found = tuned(four["search"], **where)
        assert len(FITS) == 3
        assert len(found.X) == 4

    def test_a_run_that_fails_is_paid_for_and_worst_and_says_nothing(self, four, capsys):
        def fails(parameters, session):
            if parameters["clip"] == 1.0:
                raise ValueError(f"record {X[7].tolist()}")
            return fit(parameters, session)

        found = tuned(four["search"], fit=fails)
        assert len(found.X) == 4
        assert found.parameters["clip"] == 0.5
        assert "record" not in capsys.readouterr().err
        everything = tuned(four["selection"], fit=lambda parameters, session: 1 / 0)
        assert everything.model is None
        assert everything.score is None

    @pytest.mark.attack("A21")
    @pytest.mark.parametrize("strategy", ["once", "search", "selection", "hypo"])
    def test_the_model_and_its_files_hold_numbers_alone(self, four, tmp_path, strategy):
        """Opacus leaves gradients by record and records on a module, and torch.save writes them."""
        kept: list[nn.Module] = []

        def keeps(parameters, session):
            kept.append(fit(parameters, session))
            return kept[-1]

        given = {"parameters": {"lr": 0.5, "clip": 1.0}} if strategy == "once" else {}
        found = tuned(four[strategy], fit=keeps, score=careless, folder=tmp_path, **given)
        files = [torch.load(path, weights_only=False) for path in tmp_path.iterdir()]
        assert len(files) == {"once": 1, "search": 4}.get(strategy, 0)
        for model in (found.model, *files):
            require_bare(model, X)
            assert type(model) is nn.Linear
            assert model.training, "as fit left it"
            assert not hasattr(model, "seen")
        for module in kept:
            assert all(len(vars(p)["grad_sample"]) > 20 for p in module.parameters()), "what fit still holds is left alone"
        if strategy == "once":
            for path in tmp_path.iterdir():
                with zipfile.ZipFile(path) as file:
                    assert sorted(len(file.read(name)) for name in file.namelist() if "/data/" in name) == [4 * 2, 4 * 8]

    @pytest.mark.attack("A21")
    def test_a_file_of_before_is_read_and_what_it_held_goes_no_further(self, four, tmp_path):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db"), "folder": tmp_path / "models"}
        given = {"parameters": {"lr": 0.5, "clip": 1.0}}
        tuned(four["once"], **given, **where)
        (path,) = (tmp_path / "models").iterdir()
        old = fit({"lr": 0.5, "clip": 1.0}, Session(TRAINING, TERMS))
        torch.save(old, path)
        found = tuned(four["once"], **given, **where)
        require_bare(found.model, X)
        assert torch.equal(found.model.weight, old.state_dict()["_module.weight"])

    @pytest.mark.attack("A16")
    def test_a_run_is_paid_for_before_it_sees_a_record(self, four, tmp_path):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db")}
        paid: list[int] = []

        def fails(parameters, session):
            paid.append(len(Ledger.existing(where["ledger"]).charges("training")))
            raise ValueError

        tuned(four["search"], fit=fails, **where)
        assert paid == [1, 2, 3, 4]

    @pytest.mark.attack("A16")
    def test_a_selection_that_was_killed_is_lost_not_drawn_again(self, four, tmp_path):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db")}

        def interrupted(parameters, session):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tuned(four["selection"], fit=interrupted, **where)
        FITS.clear()
        with pytest.raises(ReleaseLost):
            tuned(four["selection"], **where)
        assert FITS == []

    def test_nothing_may_come_of_a_law_that_allows_it(self):
        plan = plans(law=PoissonRuns(0.01))["selection"]
        found = tuned(plan)
        if found.parameters is None:  # 99 times in 100
            assert found.model is None
            assert found.score is None

    @pytest.mark.parametrize("strategy", ["search", "selection"])
    def test_another_space_on_the_same_ledger_is_refused_before_anything_is_charged(self, four, tmp_path, strategy):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db")}
        tuned(four[strategy], **where)
        before = len(Ledger.existing(where["ledger"]).records())
        with pytest.raises(LedgerMismatch):
            tuned(four[strategy], space=Space(lr=scipy.stats.loguniform(1e3, 1e6), clip=[0.5, 1.0]), **where)
        assert len(Ledger.existing(where["ledger"]).records()) == before

    def test_another_plan_on_the_same_ledger_is_refused(self, four, tmp_path):
        where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db")}
        tuned(four["once"], parameters={"lr": 0.5, "clip": 1.0}, **where)
        with pytest.raises(LedgerMismatch):
            tuned(four["search"], **where)
