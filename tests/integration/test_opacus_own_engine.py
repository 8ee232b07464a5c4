"""Opacus' own engine, in each of its modes, charged to a curator's ledger."""

import functools
import os
import signal
import warnings
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Adjacency, Budget, Curator
from dpbo.accounting import Planned
from dpbo.dpsgd import DPSGDConfig, LedgerAccountant, PrivateEngine
from dpbo.errors import BudgetExceeded, InputError, UsageError
from dpbo.events import PoissonGaussianEvent
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.integration.processes import started
from tests.setups import of, steps_charged

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SIGMA, RATE, STEPS = 1.3, 0.25, 8
X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2
RECORDS = TensorDataset(X, Y)
CROSS_ENTROPY = nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def unknown_seed():
    """The test's own would be refused."""
    torch.seed()


def owner(*, steps=STEPS, rate=RATE, relation=Adjacency.ADD_OR_REMOVE_ONE, records=(X, Y), **place):
    planned = PoissonGaussianEvent(SIGMA, steps, rate=rate, relation=relation.value)
    return Curator(
        records,
        unit="record",
        adjacency=relation,
        budget=Budget(60.0, 1e-5),
        accounting=Planned([planned]),
        role="training",
        **place,
    )


def engine_of(curator, steps=STEPS, name="dp-sgd"):
    with warnings.catch_warnings():
        # About its generators.
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
    engine.accountant = LedgerAccountant(curator, noise_multiplier=SIGMA, steps=steps, name=name)
    return engine


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def prepared(engine, module=None, optimizer=torch.optim.SGD, workers=0, size=16, **opacus):
    module = module or network()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return engine.make_private(
        module=module,
        optimizer=optimizer(trained, lr=0.1),
        data_loader=DataLoader(RECORDS, batch_size=size, shuffle=True, num_workers=workers),
        **{"noise_multiplier": SIGMA, "max_grad_norm": 1.0, **opacus},
    )


def step(module, optimizer, batch, loss=CROSS_ENTROPY):
    optimizer.zero_grad()
    loss(module(batch[0]), batch[1]).backward()
    optimizer.step()


def train(module, optimizer, loader, *, passes=2, after=lambda: None, loss=CROSS_ENTROPY):
    for _ in range(passes):
        for batch in loader:
            step(module, optimizer, batch, loss)
            after()
    return module


def plain(engine, **opacus):
    return train(*prepared(engine, **opacus))


def in_ghost_mode(engine, module=None):
    return prepared(engine, module, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())


def a_clip_a_layer(engine):
    module, optimizer, loader = prepared(engine, clipping="per_layer", max_grad_norm=[0.5] * 4)
    return module, optimizer, CROSS_ENTROPY, loader


def ghost(engine, module=None):
    module, optimizer, loss, loader = in_ghost_mode(engine, module)
    return train(module, optimizer, loader, loss=loss)


def in_parts(engine):
    """Parts of samples, which two workers load."""
    module, optimizer, loader = prepared(engine, workers=2)
    sizes = []
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=3, optimizer=optimizer
    ) as parts:
        for _ in range(2):
            for batch in parts:
                sizes.append(len(batch[1]))
                step(module, optimizer, batch)
    assert max(sizes) <= 3
    assert len(sizes) > STEPS
    return module


def scheduled(engine):
    """A rate and a clip that follow the number of the step."""
    module, optimizer, loader = prepared(engine)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    clips = ExponentialGradClip(optimizer, gamma=0.9)

    def next_step():
        rates.step()
        clips.step()

    train(module, optimizer, loader, after=next_step)
    assert optimizer.param_groups[0]["lr"] < 0.01
    assert optimizer.max_grad_norm < 0.5
    return module


class Trainer:
    """Owns the loop, as Lightning's does; its module has the loss and the optimizer."""

    def __init__(self, engine, passes):
        self.engine, self.passes = engine, passes

    def fit(self, task):
        module, optimizer, loader = prepared(self.engine, task.network, task.configure_optimizers())
        for _ in range(self.passes):
            module.train()
            for batch in loader:
                optimizer.zero_grad()
                task.training_step(module, batch).backward()
                optimizer.step()
            module.eval()
        return module


class Task:
    def __init__(self):
        self.network = network()

    def configure_optimizers(self):
        return torch.optim.AdamW

    def training_step(self, module, batch):
        return CROSS_ENTROPY(module(batch[0]), batch[1])


ADAPTIVE = of(
    clipping="adaptive",
    target_unclipped_quantile=0.5,
    clipbound_learning_rate=0.2,
    max_clipbound=10.0,
    min_clipbound=0.1,
    unclipped_num_std=8.0,
)
KINDS: dict[str, Any] = {
    "hooks": plain,
    "functorch": functools.partial(plain, grad_sample_mode="functorch"),
    "ew": functools.partial(plain, grad_sample_mode="ew"),
    "ghost": ghost,
    "in parts": in_parts,
    "adaptive clipping": functools.partial(plain, **ADAPTIVE),
    "a clip a layer": functools.partial(plain, clipping="per_layer", max_grad_norm=[0.5] * 4),
    "schedulers": scheduled,
    "trainer": lambda engine: Trainer(engine, 2).fit(Task()),
}


@attack("A15", "A27")
def test_every_kind_of_training_is_charged_to_one_ledger_and_names_its_assumptions(tmp_path):
    from dp_accounting.pld import privacy_loss_distribution as pld

    curator = owner(steps=STEPS * len(KINDS), dataset="all", ledger=tmp_path / "ledger.db")
    for kind, trained in KINDS.items():
        engine = engine_of(curator, name=kind)
        module = trained(engine)
        assert all(parameter.isfinite().all() for parameter in module.parameters()), kind
        assert curator.ledger.used()[kind] == STEPS, kind
        assert engine.accountant.history == [(SIGMA, RATE, STEPS)], kind
    statement = curator.statement()
    for named, said in {
        "sampling-attested": "all its parts before the next",
        "noise-of-opacus": "are no ciphers",
        "noise-drawn-on-cpu": "in a second",
    }.items():
        assert said in statement.assumptions[named]
    assert "dpsgd-attested" not in statement.assumptions
    assert not statement.void
    one = functools.partial(
        pld.from_gaussian_mechanism, SIGMA, sampling_prob=RATE, value_discretization_interval=1e-4
    )
    least, most = (
        one(pessimistic_estimate=above).self_compose(STEPS * len(KINDS)).get_epsilon_for_delta(1e-5)
        for above in (False, True)
    )
    epsilon = statement.guarantee.epsilon
    assert epsilon is not None
    assert least <= epsilon <= most + 1e-3
    assert engine.get_epsilon(1e-5) == pytest.approx(epsilon)


@attack("A27")
def test_a_step_beyond_the_plan_raises_before_its_noise_and_however_often_it_is_tried():
    curator = owner(steps=4)
    engine = engine_of(curator, 4)
    module, optimizer, loader = prepared(engine)
    train(module, optimizer, loader, passes=1)
    batch = next(iter(loader))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        CROSS_ENTROPY(module(batch[0]), batch[1]).backward()
        state = torch.get_rng_state()
        with pytest.raises(BudgetExceeded):
            optimizer.step()
        assert torch.equal(torch.get_rng_state(), state), "noise was drawn"
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    with pytest.raises(BudgetExceeded):
        prepared(engine)
    assert curator.ledger.used() == {"dp-sgd": 4}


@attack("A27")
def test_each_optimizer_pays_for_its_own_steps_and_a_later_hook_displaces_no_charge():
    """A generator and a discriminator of one engine, in turn."""
    curator = owner()
    engine = engine_of(curator)
    pair = [prepared(engine) for _ in range(2)]
    for _, optimizer, _ in pair:
        # Before the first step, too.
        optimizer.attach_step_hook(lambda _: None)
    batches = zip(pair[0][2], pair[1][2], strict=True)
    for taken, both in enumerate(batches, 1):
        for (module, optimizer, _), batch in zip(pair, both, strict=True):
            step(module, optimizer, batch)
            optimizer.attach_step_hook(lambda _: None)
        assert steps_charged(curator.ledger) == 2 * taken


@attack("A27")
@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_differs_from_the_plan_changes_no_weight(first):
    engine = engine_of(owner())
    module, optimizer, loader = prepared(engine, noise_multiplier=0.5 if first else SIGMA)
    batches = iter(loader)
    if not first:
        noise = ExponentialNoise(optimizer, gamma=0.9)
        step(module, optimizer, next(batches))
        noise.step()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    with pytest.raises(InputError, match="noise_multiplier that the accountant has"):
        step(module, optimizer, next(batches))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@attack("A27")
@pytest.mark.parametrize("first", [True, False])
def test_a_step_on_two_samples_is_refused_and_says_what_takes_large_ones(first):
    engine = engine_of(owner())
    module, optimizer, loader = prepared(engine)
    batches = iter(loader)
    if not first:
        step(module, optimizer, next(batches))
    # As without Poisson sampling, where Opacus sums what a loop accumulates.
    module.allow_grad_accumulation()
    optimizer.zero_grad()
    for batch in (next(batches), next(batches)):
        CROSS_ENTROPY(module(batch[0]), batch[1]).backward()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    with pytest.raises(UsageError, match=r"sums 2 samples.*BatchMemoryManager"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_a_seed_that_somebody_wrote_is_refused_before_anything_is_reserved():
    curator = owner()
    engine = engine_of(curator)
    torch.manual_seed(42)
    with pytest.raises(UsageError, match=r"Call torch\.seed\(\)"):
        prepared(engine)
    assert not curator.ledger.used()
    torch.seed()
    plain(engine)
    assert curator.ledger.used() == {"dp-sgd": STEPS}


@pytest.mark.parametrize("secure", [True, False])
def test_in_secure_mode_nothing_is_assumed_of_torchs_generator(secure):
    """Its library is of torch 1.8, and what it adds here is a generator alone. Without that
    generator the mode is but a word.
    """
    curator = owner()
    engine = engine_of(curator)
    engine.secure_mode = True
    engine.secure_rng = torch.Generator() if secure else None
    train(*prepared(engine), passes=1)
    assumed = {*curator.statement().assumptions}
    assert "sampling-attested" in assumed
    assert ({"noise-of-opacus", "noise-drawn-on-cpu"} <= assumed) is not secure


@attack("A27")
@pytest.mark.parametrize("made", [in_ghost_mode, a_clip_a_layer])
def test_a_clip_that_no_longer_scales_with_the_noise_is_refused(made):
    """The noise followed a schedule of clips down to a tenth, and the clip did not."""
    module, optimizer, loss, loader = made(engine_of(owner()))
    clips = ExponentialGradClip(optimizer, gamma=0.8)
    batches = iter(loader)
    step(module, optimizer, next(batches), loss)
    clips.step()
    with pytest.raises(UsageError, match="max_grad_norm changed"):
        step(module, optimizer, next(batches), loss)


@attack("A27")
def test_parts_of_a_sample_that_were_clipped_at_other_norms_than_the_noise_has_are_refused():
    module, optimizer, loader = prepared(engine_of(owner()))
    clips = ExponentialGradClip(optimizer, gamma=0.8)
    refused = []
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
    ) as parts:
        for batch in parts:
            try:
                step(module, optimizer, batch)
            except UsageError as error:
                refused.append(str(error))
            clips.step()
    assert any("all gradients that were summed" in text for text in refused)


@attack("A27")
def test_a_loss_that_clips_nothing_in_ghost_mode_is_refused():
    """One record moved the sum by 193 clips."""
    curator = owner()
    module, optimizer, _, loader = in_ghost_mode(engine_of(curator))
    features, labels = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(features), labels).backward()
    with pytest.raises(UsageError, match="were not clipped"):
        optimizer.step()
    assert not steps_charged(curator.ledger)


@attack("A27")
def test_the_sum_of_a_refused_step_is_in_no_later_one():
    module, optimizer, loader = prepared(engine_of(owner()))
    refused = 0
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
    ) as parts:
        for batch in parts:
            torch.manual_seed(3)
            try:
                step(module, optimizer, batch)
            except UsageError:
                refused += 1
                assert all(parameter.summed_grad is None for parameter in optimizer.params)
                assert not optimizer._is_last_step_skipped
    assert refused == len(loader)


def test_a_loader_of_another_number_of_records_is_refused_where_it_is_public():
    for relation in Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE:
        curator = owner(relation=relation, records=(X[:52], Y[:52]))
        if relation is Adjacency.REPLACE_ONE:
            with pytest.raises(InputError, match="whose samples have about 13") as refused:
                prepared(engine_of(curator))
            assert refused.value.parameter == "data_loader"
        else:
            plain(engine_of(curator))


def test_a_generator_of_the_callers_is_refused():
    with pytest.raises(InputError, match=r"^noise_generator="):
        prepared(engine_of(owner()), noise_generator=torch.Generator())


def test_make_private_with_epsilon_is_refused_before_anything_is_reserved():
    curator = owner()
    module = network()
    with pytest.raises(UsageError, match="call make_private with its noise_multiplier"):
        engine_of(curator).make_private_with_epsilon(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(RECORDS, batch_size=16),
            target_epsilon=3.0,
            target_delta=1e-5,
            epochs=2,
            max_grad_norm=1.0,
        )
    assert not curator.ledger.used()


def test_epsilon_is_what_was_spent_of_the_ledger_and_not_its_budget():
    curator = owner()
    engine = engine_of(curator)
    train(*prepared(engine), passes=1)
    config = DPSGDConfig(noise_multiplier=SIGMA, epochs=2, batches=4, batch_size=16)
    other = owner()
    own = PrivateEngine(other, config)
    module = network()
    own_prepared = own.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), 0.1),
        data_loader=DataLoader(RECORDS),
        max_grad_norm=1.0,
    )
    train(*own_prepared, passes=1)
    whole = curator.statement().guarantee.epsilon
    assert whole is not None
    for spent, owned in ((engine.get_epsilon(1e-5), curator), (own.get_epsilon(1e-5), other)):
        assert 0 < spent == owned.spent.epsilon < 0.8 * whole


@attack("A16")
def test_a_checkpoint_that_is_resumed_twice_pays_twice(tmp_path):
    curator = owner(steps=12)
    engine = engine_of(curator, 12)
    module, optimizer, loader = prepared(engine)
    train(module, optimizer, loader, passes=1)
    engine.save_checkpoint(path=tmp_path / "4.pt", module=module, optimizer=optimizer)
    for resumed in (1, 2):
        again = engine_of(curator, 12)
        module, optimizer, loader = prepared(again)
        again.load_checkpoint(path=tmp_path / "4.pt", module=module, optimizer=optimizer)
        train(module, optimizer, loader, passes=1)
        assert steps_charged(curator.ledger) == 4 + 4 * resumed
        assert len(again.accountant) == 8


KILLED_AFTER = 5


class Killed(torch.optim.SGD):
    """Dies when the noise of its fifth step is drawn, and the weights have not changed."""

    taken = 0

    def step(self, closure=None):
        self.taken += 1
        if self.taken == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


def dies(folder):
    torch.seed()
    plain(engine_of(owner(dataset="killed", ledger=folder / "ledger.db")), optimizer=Killed)


@attack("A16")
def test_a_killed_training_goes_on_without_a_lost_charge(tmp_path):
    process = started(tmp_path, "log", dies, tmp_path)
    process.join(300)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert Ledger.open(tmp_path / "ledger.db").used() == {"dp-sgd": KILLED_AFTER}
    curator = owner(dataset="killed", ledger=tmp_path / "ledger.db")
    taken = []
    with pytest.raises(BudgetExceeded):
        train(*prepared(engine_of(curator)), after=lambda: taken.append(1))
    assert len(taken) == STEPS - KILLED_AFTER
    assert curator.ledger.used() == {"dp-sgd": STEPS}


def forked(work, told):
    """7 where a forked process is refused `work()` in these words."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except UsageError as refused:
        os._exit(7 if told in str(refused) else 1)
    finally:
        os._exit(2)


def sweeps(folder):
    """Two forked processes would draw the same noise."""
    torch.seed()
    place = {"dataset": "swept", "ledger": folder / "ledger.db"}
    return forked(lambda: plain(engine_of(owner(**place))), "in a forked process")


@attack("A25", "A27")
def test_a_forked_process_draws_no_noise_from_its_parents_generator(tmp_path):
    process = started(tmp_path, "log", sweeps, tmp_path)
    process.join(300)
    assert process.exitcode == 7, (tmp_path / "log").read_text()


def forks(folder):
    """A training that its parent prepared takes no step in a forked process."""
    torch.seed()
    curator = owner(dataset="forked", ledger=folder / "ledger.db")
    module, optimizer, loader = prepared(engine_of(curator))
    batch = next(iter(loader))
    return forked(lambda: step(module, optimizer, batch), "in the process that trains")


@attack("A17", "A27")
def test_a_forked_process_takes_no_step_that_its_parent_paid_for(tmp_path):
    process = started(tmp_path, "log", forks, tmp_path)
    process.join(300)
    assert process.exitcode == 7, (tmp_path / "log").read_text()
