"""One history of DP-SGD and releases, inside Opacus' own engine."""

import contextlib
import io
import math
import pathlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import GDPFilter, LedgerAccountant, Planned, RDPFilter, compose
from dpbo.accounting.ledger_accountant import _rest
from dpbo.errors import BudgetExceeded, InputError, LedgerError, OpacityError
from dpbo.events import GaussianEvent, LaplaceEvent, PoissonGaussianEvent
from dpbo.loading import load_opacus
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.seeding import seeded

SIGMA, RATE = 1.1, 0.125


def step_event(relation="add-or-remove-one", slots=1):
    return PoissonGaussianEvent(SIGMA, slots, rate=RATE, relation=relation)


def make(steps=6, adjacency=Adjacency.REPLACE_ONE, **settings):
    plan = Planned([step_event(adjacency.value, steps), GaussianEvent(10.0)])
    terms = {"unit": PrivacyUnit("record"), "budget": Budget(8.0, 1e-5), "accounting": plan, "role": "training", **settings}
    return Curator(data(), adjacency=adjacency, **terms)


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 4, generator=generator), torch.randint(0, 2, (64,), generator=generator)


def train(accountant, steps, engine=None):
    """Some steps of DP-SGD on 64 records at rate 1/8; returns the engine, model and optimizer."""
    opacus = load_opacus()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = engine or opacus.PrivacyEngine()
        engine.accountant = accountant
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=SIGMA, max_grad_norm=1.0
        )
        done = 0
        while done < steps:
            for X, y in loader:
                if done == steps:
                    break
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(X), y).backward()
                optimizer.step()
                done += 1
    return engine, model, optimizer


def test_two_stories_are_compared_part_by_part_and_no_longer():
    compared = []

    class Step:
        def __ne__(self, other):
            compared.append(other)
            assert len(compared) <= 3, "each part once, and the longer one's rest never"
            return self is not other

    one, other = Step(), Step()
    assert _rest([(one, 3), (other, 2)], [(one, 1), (one, 2), (other, 5)]) == [(other, 3)]


def test_alone_it_says_what_opacus_says():
    ours, theirs = LedgerAccountant(), load_opacus("opacus.accountants").PRVAccountant()
    for accountant in (ours, theirs):
        for sigma, rate, steps in ((SIGMA, RATE, 16), (0.9, 0.05, 40)):
            for _ in range(steps):
                accountant.step(noise_multiplier=sigma, sample_rate=rate)
    for delta in (1e-5, 1e-6):
        assert ours.get_epsilon(delta) == pytest.approx(theirs.get_epsilon(delta, eps_error=0.001), rel=0.02)
    assert ours.history == theirs.history
    assert len(ours) == 56
    assert LedgerAccountant().get_epsilon(1e-5) == 0.0


def test_releases_join_the_steps():
    accountant = LedgerAccountant()
    for _ in range(16):
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    for event in (GaussianEvent(5.0), LaplaceEvent(2.0)):
        accountant.add(event)
    together = compose([step_event(slots=16), GaussianEvent(5.0), LaplaceEvent(2.0)], delta=1e-5, refine=True).epsilon
    assert accountant.get_epsilon(1e-5) == together


def test_a_checkpoint_brings_its_releases_and_must_be_one_of_ours():
    told = LedgerAccountant()
    told.add(LaplaceEvent(3.0))
    told.step(noise_multiplier=SIGMA, sample_rate=RATE)
    heard = LedgerAccountant()
    heard.add(GaussianEvent(9.0))
    heard.load_state_dict(told.state_dict())
    whole = [step_event(), LaplaceEvent(3.0), GaussianEvent(9.0)]
    assert heard.get_epsilon(1e-5) == compose(whole, delta=1e-5, refine=True).epsilon
    for missing in ("mechanism", "runs"):
        state = {key: value for key, value in told.state_dict().items() if key != missing}
        with pytest.raises(InputError, match="state_dict"):
            LedgerAccountant().load_state_dict(state)


@pytest.mark.attack("A16")
def test_steps_of_another_run_are_charged_beside_those_of_this_one():
    """Equal steps, one known run: what the ledger knows of it pays for nothing of the other."""
    curator = make(steps=12)
    other = LedgerAccountant()
    for _ in range(3):
        other.step(noise_multiplier=SIGMA, sample_rate=RATE)
    accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)
    accountant.get_optimizer_hook_fn(RATE)
    for _ in range(4):
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)

    def charged():
        return sum(record.body["event"]["slots"] for record in curator.ledger.records() if record.kind == "charge")

    assert charged() == 4
    for _ in range(2):  # once is as good as twice
        accountant.load_state_dict(other.state_dict())
        assert charged() == 7
    other.step(noise_multiplier=SIGMA, sample_rate=RATE)
    accountant.load_state_dict(other.state_dict())
    assert charged() == 8


@pytest.mark.parametrize(
    ("known", "told", "rest"),
    [
        ([], [("a", 3)], [("a", 3)]),
        ([("a", 3)], [("a", 3)], []),
        ([("a", 3)], [("a", 5), ("b", 1)], [("a", 2), ("b", 1)]),
        ([("a", 1), ("a", 2)], [("a", 3), ("b", 4)], [("b", 4)]),
        ([("a", 3), ("b", 1)], [("a", 2)], []),
    ],
)
def test_what_a_story_adds_to_another(known, told, rest):
    assert _rest(known, told) == rest
    with pytest.raises(LedgerError, match="another story"):
        _rest([("c", 1), *known], [("a", 1)])


@pytest.mark.parametrize("how", ["assigned", "by name"])
def test_it_works_in_the_privacy_engine(how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = load_opacus().PrivacyEngine(accountant="dpbo") if how == "by name" else None
    accountant = LedgerAccountant() if engine is None else engine.accountant
    engine, *_ = train(accountant, 10, engine)
    assert isinstance(engine.accountant, LedgerAccountant)
    assert engine.accountant.history == [(SIGMA, RATE, 10)]
    assert engine.get_epsilon(1e-5) == compose([step_event(slots=10)], delta=1e-5, refine=True).epsilon


def test_opacus_calibrates_with_it():
    from opacus.accountants.utils import get_noise_multiplier

    sigma = get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.1, steps=50, accountant="dpbo")
    reached = compose([PoissonGaussianEvent(sigma, 50, rate=0.1, relation="add-or-remove-one")], delta=1e-5, refine=True).epsilon
    assert 2.9 < reached <= 3.0


def test_bound_to_a_curator_steps_are_planned_first_and_share_its_ledger(tmp_path):
    curator = make(dataset="d", ledger=str(tmp_path / "l.db"))
    accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)
    engine, model, optimizer = train(accountant, 4)
    kinds = [record.kind for record in curator.ledger.records()]
    assert [kind for kind in kinds if kind not in ("assume", "void")] == ["birth", "reserve", *["charge"] * 4]
    assert curator.ledger.head().body["attested"] == "Poisson"
    curator.release(ClippedMean(lambda _, r: r[0].argmax(1) == r[1], score_range=(0.0, 1.0)), GaussianMechanism(10.0))
    whole = compose(curator.accounting.events, delta=1e-5, refine=True).epsilon
    assert engine.get_epsilon(1e-5) == curator.statement().guarantee.epsilon == whole
    assert "replace-one" in str(curator.statement())
    again = make(dataset="d", ledger=str(tmp_path / "l.db"))
    train(LedgerAccountant(again, noise_multiplier=SIGMA, steps=6), 2)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(data()[0][:8]).sum().backward()
    with pytest.raises(BudgetExceeded):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "a step beyond the plan was applied"


def test_add_or_remove_is_reported_under_add_or_remove():
    curator = make(adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    engine, *_ = train(LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6), 3)
    assert engine.get_epsilon(1e-5) == compose([step_event(slots=6), GaussianEvent(10.0)], delta=1e-5, refine=True).epsilon


def test_a_renyi_filter_pays_for_steps_and_the_default_refuses():
    curator = make(accounting=RDPFilter(6.0))
    train(LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6), 2)
    assert curator.statement().guarantee.epsilon <= 8.0
    with pytest.raises(InputError, match="GDPFilter"):
        train(LedgerAccountant(make(accounting=GDPFilter()), noise_multiplier=SIGMA, steps=6), 1)


def test_full_batches_are_plain_gaussians():
    accountant = LedgerAccountant()
    accountant.step(noise_multiplier=2.0, sample_rate=1.0)
    assert accountant.get_epsilon(1e-5) == compose([GaussianEvent(2.0)], delta=1e-5).epsilon
    curator = make(accounting=Planned([GaussianEvent(1.0, 5)]), budget=Budget(20.0, 1e-5))
    bound = LedgerAccountant(curator, noise_multiplier=2.0, steps=5)
    bound.get_optimizer_hook_fn(1.0)  # under replace-one a gradient moves twice as far: half the multiplier
    bound.step(noise_multiplier=2.0, sample_rate=1.0)
    assert curator.ledger.head().body["event"]["noise_multiplier"] == 1.0


@pytest.mark.attack("A16")
def test_a_checkpoint_is_merged_and_never_takes_anything_back(tmp_path):
    engine, model, optimizer = train(LedgerAccountant(), 5)
    buffer = io.BytesIO()
    engine.save_checkpoint(path=buffer, module=model, optimizer=optimizer)
    accountant = engine.accountant
    for _ in range(3):
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    buffer.seek(0)
    engine.load_checkpoint(path=buffer, module=model, optimizer=optimizer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["privacy_accountant_state_dict"]["mechanism"] == "dpbo"
    assert len(engine.accountant) == 8, "loading an older checkpoint must not refund steps"
    fresh = LedgerAccountant()
    fresh.step(noise_multiplier=SIGMA, sample_rate=RATE)
    for _ in range(2):  # twice is once
        fresh.load_state_dict(accountant.state_dict())
    assert len(fresh) == 9
    with pytest.raises(LedgerError, match="grow"):
        fresh.history = []
    with pytest.raises(InputError, match="state_dict"):
        fresh.load_state_dict({"mechanism": "prv", "history": []})


def test_steps_of_a_checkpoint_are_charged_once_to_the_ledger_that_loads_it():
    alone = LedgerAccountant()
    for _ in range(4):
        alone.step(noise_multiplier=SIGMA, sample_rate=RATE)
    curator = make(steps=6)
    bound = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=2)
    for _ in range(2):
        bound.load_state_dict(alone.state_dict())
    assert str(curator.ledger.verify().total).split() == ["0", "4"]
    alone.step(noise_multiplier=SIGMA, sample_rate=RATE)
    bound.load_state_dict(alone.state_dict())
    assert str(curator.ledger.verify().total).split() == ["0", "5"]
    other = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=2)
    other.load_state_dict(bound.state_dict())
    assert str(curator.ledger.verify().total).split() == ["0", "5"], "known steps are not charged twice"
    alone.add(GaussianEvent(10.0))
    with pytest.raises(InputError, match="releases"):
        bound.load_state_dict(alone.state_dict())
    with pytest.raises(InputError, match="curator itself"):
        bound.add(GaussianEvent(10.0))


def test_a_copy_counts_for_itself_and_other_stories_are_refused():
    import copy

    first = LedgerAccountant()
    first.history = [(1.0, 0.01, 100)]
    second = copy.deepcopy(first)
    for _ in range(40):
        first.step(noise_multiplier=1.0, sample_rate=0.01)
        second.step(noise_multiplier=0.5, sample_rate=0.01)
    first.load_state_dict(second.state_dict())
    assert sorted(first.history) == [(0.5, 0.01, 40), (1.0, 0.01, 140)]
    forged = {**first.state_dict(), "runs": {run: [(9.0, 0.01, 500)] for run in first.state_dict()["runs"]}}
    with pytest.raises(LedgerError, match="another story"):
        first.load_state_dict(forged)
    next(iter(first.state_dict()["runs"].values())).clear()
    assert len(first) == 180, "a state is a copy"
    bound = LedgerAccountant(make(steps=6), noise_multiplier=SIGMA, steps=4)
    bound.get_optimizer_hook_fn(RATE)
    for _ in range(2):
        bound.step(noise_multiplier=SIGMA, sample_rate=RATE)
    story = bound.state_dict()
    with pytest.raises(LedgerError, match="another story"):
        bound.load_state_dict({**story, "runs": {run: [(0.1, 1.0, 5)] for run in story["runs"]}})
    with pytest.raises(OpacityError):
        copy.deepcopy(bound)


@pytest.mark.attack("A17")
def test_what_cannot_be_seen_is_named_and_a_seed_voids_the_statement():
    curator = make()
    state = torch.get_rng_state()
    torch.seed()
    train(LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6), 1)
    statement = curator.statement()
    assert "dpsgd-attested" in statement.assumptions
    assert "each protected record once" in str(statement)
    assert not statement.void
    torch.manual_seed(7)
    train(LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6), 1)
    assert "seeded" in curator.statement().void
    torch.set_rng_state(state)


def test_a_proposal_in_another_thread_during_training_voids_the_statement_and_one_between_trainings_does_not():
    curator = make()
    accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)

    def propose():
        with seeded(7):
            pass

    with _unpredictable(), ThreadPoolExecutor(1) as other:
        other.submit(propose).result()
        accountant.get_optimizer_hook_fn(RATE)
        accountant._watch(None)
        propose()
        accountant._watch(None)
        assert not curator.statement().void
        other.submit(propose).result()
        accountant._watch(None)
        assert "seeded" in curator.statement().void


@pytest.mark.attack("A17")
@pytest.mark.parametrize(("seed", "person"), [(2**32 - 1, True), (2**32, False)])
def test_a_seed_of_at_most_32_bits_is_taken_for_a_persons(seed, person):
    curator = make()
    accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)
    with _unpredictable():
        torch.manual_seed(seed)
        accountant._watch(None)
    assert bool(curator.statement().void) == person


@pytest.mark.attack("A19")
def test_beside_a_release_that_rests_on_assumptions_no_epsilon_is_told():
    class Smooth(ClippedMean):
        def data_assumptions(self):
            return {"gp-prior": "the objective is a draw of the declared prior"}

    curator = make(allow_conditional=True)
    accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=6)
    assert accountant.get_epsilon(1e-5) < math.inf
    curator.release(Smooth(lambda _, r: r[0].argmax(1) == r[1], score_range=(0.0, 1.0)), GaussianMechanism(10.0))
    assert accountant.get_epsilon(1e-5) == math.inf


@contextlib.contextmanager
def _unpredictable():
    state = torch.get_rng_state()
    torch.seed()
    yield
    torch.set_rng_state(state)


def test_groups_and_unplanned_steps_are_refused():
    grouped = Curator(
        data(), unit=PrivacyUnit("patient", groups=np.arange(64) // 2), adjacency=Adjacency.REPLACE_ONE, budget=Budget(8.0, 1e-5)
    )
    with pytest.raises(InputError, match="unit"):
        LedgerAccountant(grouped, noise_multiplier=SIGMA, steps=3)
    bound = LedgerAccountant(make(), noise_multiplier=SIGMA, steps=6)
    for rate in (RATE, 1.0):
        with pytest.raises(InputError, match="must be as reserved"):
            bound.step(noise_multiplier=SIGMA, sample_rate=rate)
    bound.get_optimizer_hook_fn(RATE)
    with pytest.raises(InputError, match="must be as reserved"):
        bound.step(noise_multiplier=0.5, sample_rate=RATE)
    for wrong in ({"noise_multiplier": None, "steps": 3}, {"noise_multiplier": 1.0}, {"noise_multiplier": 1.0, "steps": 0}):
        with pytest.raises(InputError):
            LedgerAccountant(make(), **wrong)


def test_the_example_runs():
    from examples.dpsgd_one_ledger import main

    result = main(epochs=2)
    assert result.accuracy > 0.5
    assert "training" in result.statement
    assert pathlib.Path("examples/dpsgd_one_ledger.py").exists()
