"""One history of DP-SGD and releases, inside Opacus' own engine."""

import copy
import io
import itertools
import math
import warnings

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import GDPFilter, Planned, RDPFilter, compose
from dpbo.dpsgd import DPSGDConfig, LedgerAccountant, PrivateEngine
from dpbo.dpsgd._opacus import load_opacus
from dpbo.errors import BudgetExceeded, InputError, LedgerError, OpacityError, UsageError
from dpbo.events import GaussianEvent, LaplaceEvent, PoissonGaussianEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from examples.dpsgd_one_ledger import main
from tests.attacks.marks import attack
from tests.setups import steps_charged

SIGMA, RATE = 1.1, 0.125
ACCURACY = ClippedMean(lambda _, r: r[0].argmax(1) == r[1], score_range=(0.0, 1.0))


def step_event(relation="add-or-remove-one", count=1):
    return PoissonGaussianEvent(SIGMA, count, rate=RATE, relation=relation)


def make(steps=6, adjacency=Adjacency.REPLACE_ONE, **settings):
    plan = Planned([step_event(adjacency.value, steps), GaussianEvent(10.0)])
    terms = {
        "unit": PrivacyUnit("record"),
        "budget": Budget(8.0, 1e-5),
        "accounting": plan,
        "role": "training",
        **settings,
    }
    return Curator(data(), adjacency=adjacency, **terms)


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 4, generator=generator), torch.randint(0, 2, (64,), generator=generator)


def train(engine, steps, **arguments):
    """Some steps of DP-SGD on 64 records at rate 1/8; returns the model and optimizer."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, **arguments
        )
        for _, (X, y) in zip(range(steps), itertools.chain(loader, loader), strict=False):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(X), y).backward()
            optimizer.step()
    return model, optimizer


def opacus(accountant=None):
    """Opacus' own engine, with this accountant in place of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = load_opacus().PrivacyEngine(accountant="dpbo")
    engine.accountant = accountant or engine.accountant
    return engine


def private(curator, steps=6):
    """dpbo's engine, over the first of two passes and some of the second; terms have whole
    passes.
    """
    engine = PrivateEngine(
        curator, DPSGDConfig(noise_multiplier=SIGMA, epochs=2, batches=8, batch_size=8)
    )
    engine.accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=steps)
    return engine


def counted(*, steps=0, noise_multiplier=SIGMA, sample_rate=RATE, accountant=None):
    accountant = LedgerAccountant() if accountant is None else accountant  # an empty one is false
    for _ in range(steps):
        accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    return accountant


def whole(*events):
    """What these events cost at delta 1e-5, as a statement prints it."""
    return compose(events, delta=1e-5, refine=True).epsilon


def test_by_itself_it_says_what_opacus_says():
    ours, theirs = LedgerAccountant(), load_opacus("opacus.accountants").PRVAccountant()
    for accountant in (ours, theirs):
        counted(steps=16, accountant=accountant)
        counted(steps=40, noise_multiplier=0.9, sample_rate=0.05, accountant=accountant)
    assert ours.get_epsilon(1e-5) == pytest.approx(
        theirs.get_epsilon(1e-5, eps_error=0.01), rel=0.02
    )
    assert ours.history == theirs.history
    assert len(ours) == 56
    assert LedgerAccountant().get_epsilon(1e-5) == 0.0


def test_releases_join_the_steps_and_full_batches_are_plain_gaussians():
    accountant = counted(steps=16)
    for event in (GaussianEvent(5.0), LaplaceEvent(2.0)):
        accountant.add(event)
    assert accountant.get_epsilon(1e-5) == whole(
        step_event(count=16), GaussianEvent(5.0), LaplaceEvent(2.0)
    )
    assert (
        counted(steps=1, noise_multiplier=2.0, sample_rate=1.0).get_epsilon(1e-5)
        == compose([GaussianEvent(2.0)], delta=1e-5).epsilon
    )
    curator = make(accounting=Planned([GaussianEvent(1.0, 5)]), budget=Budget(20.0, 1e-5))
    bound = LedgerAccountant(curator, noise_multiplier=2.0, steps=5)
    bound.reserve(1.0)  # under replace-one a gradient moves twice as far: half the multiplier
    counted(steps=1, noise_multiplier=2.0, sample_rate=1.0, accountant=bound)
    assert curator.ledger.head().body["event"]["noise_multiplier"] == 1.0


@attack("A16")
def test_steps_of_another_run_are_charged_once_and_beside_those_of_this_one():
    """Equal steps, one known run: what the ledger knows of it pays for nothing of the other."""
    curator = make(steps=12)
    other, bound = counted(steps=3), LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)
    bound.reserve(RATE)
    counted(steps=4, accountant=bound)

    assert steps_charged(curator.ledger) == 4
    for _ in range(2):  # once is as good as twice
        bound.load_state_dict(other.state_dict())
        assert steps_charged(curator.ledger) == 7
    counted(steps=1, accountant=other)
    bound.load_state_dict(other.state_dict())
    assert steps_charged(curator.ledger) == 8
    LedgerAccountant(curator, noise_multiplier=SIGMA, steps=2).load_state_dict(bound.state_dict())
    assert steps_charged(curator.ledger) == 8, "known steps are not charged twice"
    other.add(GaussianEvent(10.0))
    with pytest.raises(UsageError, match="releases"):
        bound.load_state_dict(other.state_dict())
    with pytest.raises(InputError, match="curator itself"):
        bound.add(GaussianEvent(10.0))


@attack("A16")
def test_steps_are_charged_in_blocks_before_they_are_taken_and_never_left_out(monkeypatch):
    """What is charged is never less than what was taken: also after a checkpoint, in a forked
    process and at the end of the plan.
    """
    curator = make(steps=405, budget=Budget(60.0, 1e-5))
    bound = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=405)
    bound.reserve(RATE)

    def charged():
        return curator.ledger.used()["dp-sgd"]

    for taken in range(1, 7):
        counted(steps=1, accountant=bound)
        assert charged() == 4 * -(-taken // 4)
    state = bound.state_dict()
    bound.load_state_dict(state)
    with pytest.raises(BudgetExceeded):
        bound.load_state_dict(counted(steps=398).state_dict())
    counted(steps=1, accountant=bound)
    assert charged() == 8, "one that tells nothing new of this run takes no paid step away"
    (run,) = (run for run, steps in state["runs"].items() if steps)
    bound.load_state_dict({**state, "runs": {run: [(SIGMA, RATE, 8)]}})
    assert charged() == 8
    counted(steps=1, accountant=bound)
    assert charged() == 12, "steps of this run that it tells of are those that were paid for"
    # As in a forked process.
    monkeypatch.setattr(bound, "_process", -1)
    counted(steps=1, accountant=bound)
    assert charged() == 16
    counted(steps=3 + 384 + 5, accountant=bound)
    assert charged() == 405
    with pytest.raises(BudgetExceeded):
        counted(steps=1, accountant=bound)


def test_it_works_in_the_privacy_engine_and_opacus_calibrates_with_it():
    from opacus.accountants.utils import get_noise_multiplier

    engine = opacus()
    train(engine, 10, noise_multiplier=SIGMA)
    assert isinstance(engine.accountant, LedgerAccountant)
    assert engine.accountant.history == [(SIGMA, RATE, 10)]
    assert engine.get_epsilon(1e-5) == whole(step_event(count=10))
    sigma = get_noise_multiplier(
        target_epsilon=3.0, target_delta=1e-5, sample_rate=0.1, steps=50, accountant="dpbo"
    )
    assert (
        2.9 < whole(PoissonGaussianEvent(sigma, 50, rate=0.1, relation="add-or-remove-one")) <= 3.0
    )


def test_bound_to_a_curator_steps_are_planned_first_and_share_its_ledger(on_disk):
    curator = make(**on_disk)
    engine = private(curator)
    train(engine, 4)
    kinds = [record.kind for record in curator.ledger.records()]
    assert [kind for kind in kinds if kind not in ("assume", "void")] == [
        "birth",
        "reserve",
        *["charge"] * 4,
    ]
    assert curator.ledger.head().body["attested"] == "Poisson"
    curator.release(ACCURACY, GaussianMechanism(10.0))
    assert engine.get_epsilon(1e-5) == curator.spent.epsilon
    assert curator.statement().guarantee.epsilon == whole(*curator.accounting.events)
    assert "replace-one" in str(curator.statement())
    assert "dpsgd-attested" in curator.statement().assumptions, "what dpbo cannot check is named"
    assert "each protected record once" in str(curator.statement())
    # what the proof of the sum's sensitivity leaves: rounding by others' number moved it by 6 clips
    assert "less than 2^-11 of the clip" in str(curator.statement())
    assert not curator.statement().void
    again = private(make(**on_disk))
    model, _ = train(again, 2)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(BudgetExceeded):
        train(again, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), (
        "a step beyond the plan was applied"
    )


def test_a_plan_beyond_the_budget_says_how_to_find_one_within_it():
    curator = make(budget=Budget(1.0, 1e-5), accounting=RDPFilter(16.0))
    dear = LedgerAccountant(curator, noise_multiplier=0.5, steps=1000)
    with pytest.raises(BudgetExceeded) as raised:
        dear.reserve(0.5)
    told = " ".join(raised.value.__notes__)
    assert "calibrate" in told
    assert "about 24 needs the least" in told
    assert not curator.ledger.used()


def test_each_relation_and_filter_pays_for_steps_in_its_own_way():
    engine = private(make(adjacency=Adjacency.ADD_OR_REMOVE_ONE))
    train(engine, 3)
    assert engine.get_epsilon(1e-5) == whole(step_event(count=3))
    curator = make(accounting=RDPFilter(6.0))
    train(private(curator), 2)
    assert curator.statement().guarantee.epsilon <= 8.0
    with pytest.raises(UsageError, match="GDPFilter"):
        train(private(make(accounting=GDPFilter())), 1)


@attack("A16")
def test_a_checkpoint_is_merged_and_never_takes_anything_back(tmp_path):
    engine = opacus()
    model, optimizer = train(engine, 5, noise_multiplier=SIGMA)
    buffer = io.BytesIO()
    engine.save_checkpoint(path=buffer, module=model, optimizer=optimizer)
    accountant = counted(steps=3, accountant=engine.accountant)
    buffer.seek(0)
    engine.load_checkpoint(path=buffer, module=model, optimizer=optimizer)
    buffer.seek(0)
    assert (
        torch.load(buffer, weights_only=True)["privacy_accountant_state_dict"]["mechanism"]
        == "dpbo"
    )
    assert len(engine.accountant) == 8, "loading an older checkpoint must not refund steps"
    fresh = counted(steps=1)
    for _ in range(2):  # twice is once
        fresh.load_state_dict(accountant.state_dict())
    assert len(fresh) == 9
    with pytest.raises(LedgerError, match="grow"):
        fresh.history = []
    with pytest.raises(InputError, match="state_dict"):
        fresh.load_state_dict({"mechanism": "prv", "history": []})


def test_a_copy_counts_for_itself_and_another_history_of_one_run_is_refused():
    first = LedgerAccountant()
    first.history = [(1.0, 0.01, 100)]
    second = copy.deepcopy(first)
    counted(steps=40, noise_multiplier=1.0, sample_rate=0.01, accountant=first)
    counted(steps=40, noise_multiplier=0.5, sample_rate=0.01, accountant=second)
    first.load_state_dict(second.state_dict())
    assert sorted(first.history) == [(0.5, 0.01, 40), (1.0, 0.01, 140)]
    next(iter(first.state_dict()["runs"].values())).clear()
    assert len(first) == 180, "a state is a copy"
    bound = LedgerAccountant(make(steps=6), noise_multiplier=SIGMA, steps=4)
    bound.reserve(RATE)
    counted(steps=2, accountant=bound)
    for accountant in (first, bound):
        state = accountant.state_dict()
        with pytest.raises(LedgerError, match="contradicts a run"):
            accountant.load_state_dict(
                {**state, "runs": {run: [(9.0, 0.01, 500)] for run in state["runs"]}}
            )
    with pytest.raises(OpacityError):
        copy.deepcopy(bound)


@attack("A19")
def test_beside_a_release_that_rests_on_assumptions_epsilon_is_infinite():
    class Smooth(ClippedMean):
        def data_assumptions(self):
            return {"gp-prior": "the objective is a draw of the declared prior"}

    curator = make(allow_conditional=True)
    accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)
    assert accountant.get_epsilon(1e-5) < math.inf
    curator.release(
        Smooth(lambda _, r: r[0].argmax(1) == r[1], score_range=(0.0, 1.0)), GaussianMechanism(10.0)
    )
    assert accountant.get_epsilon(1e-5) == math.inf


def test_groups_and_unplanned_steps_are_refused():
    unit, adjacency = PrivacyUnit("patient", groups=np.arange(64) // 2), Adjacency.REPLACE_ONE
    with pytest.raises(InputError, match="unit"):
        LedgerAccountant(
            Curator(data(), unit=unit, adjacency=adjacency, budget=Budget(8.0, 1e-5)),
            noise_multiplier=SIGMA,
            steps=3,
        )
    bound = LedgerAccountant(make(), noise_multiplier=SIGMA, steps=6)
    for rate in (RATE, 1.0):
        with pytest.raises(InputError, match="must be as reserved"):
            bound.step(noise_multiplier=SIGMA, sample_rate=rate)
    bound.reserve(RATE)
    with pytest.raises(InputError, match="must be as reserved"):
        bound.step(noise_multiplier=0.5, sample_rate=RATE)
    for wrong in (
        {"noise_multiplier": None, "steps": 3},
        {"noise_multiplier": 1.0},
        {"noise_multiplier": 1.0, "steps": 0},
    ):
        with pytest.raises(InputError):
            LedgerAccountant(make(), **wrong)


@pytest.mark.deep
def test_the_example_runs():
    result = main(epochs=2)
    assert result.accuracy > 0.5
    assert "training" in result.statement
