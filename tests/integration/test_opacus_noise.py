"""The optimizer of dpbo's Opacus engine: clipped sums of bounded sensitivity, exact noise, one
fresh sample a step.
"""

import copy
import math
import pickle
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import Planned
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, noise
from dpbo.dpsgd.noise import NoisedOptimizer, PoissonSamples
from dpbo.dpsgd.rebuilding import PublicCopy
from dpbo.errors import BudgetExceeded, InputError, OpacityError, UsageError
from tests.attacks.marks import attack
from tests.contracts.mechanism_contract import assert_law
from tests.setups import DOUBLE, of, steps_charged

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CLIP, D = 0.7, 2500  # more than two blocks of a norm
TERMS = DPSGDConfig(noise_multiplier=1.0, epochs=2, batches=4, batch_size=16)
X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2


def optimizer(size, *, count=64, samples=None, multiplier=1.0, dtype=torch.float32):
    """Of one parameter, after a sample of all records."""
    samples = samples or PoissonSamples(count, 1.0, 1)
    next(iter(samples))
    settings: Any = {
        "noise_multiplier": multiplier,
        "max_grad_norm": CLIP,
        "expected_batch_size": 1,
        "loss_reduction": "sum",
    }
    parameter = nn.Parameter(torch.zeros(size, dtype=dtype))
    model = PublicCopy(nn.ParameterList([parameter]), [parameter])
    plain = torch.optim.SGD([parameter], 1.0)
    return (
        NoisedOptimizer(plain, model=model, samples=samples, charge=lambda _: None, **settings),
        parameter,
    )


def summed(gradients):
    made, parameter = optimizer(gradients.shape[1:], count=len(gradients), dtype=gradients.dtype)
    parameter.grad_sample = gradients
    made.clip_and_accumulate()
    return parameter.summed_grad


def exact_norm(vector):
    return math.sqrt(sum(Fraction(value) ** 2 for value in vector.flatten().tolist()))


def hostile_rows(generator, dtype):
    """Gradients of any size: far too long, just as long as the clip, short, tiny, a single
    coordinate, and not finite.
    """
    rows = torch.randn(24, D, generator=generator).to(dtype)
    scales = (
        [1e30, 1e18, 1e8, CLIP, 1e-3, 1e-12, 1e-20, 1e-37]
        if dtype != torch.float16
        else [1e4, 1.0, CLIP, 1e-4]
    )
    rows = rows * torch.tensor(scales, dtype=DOUBLE)[
        torch.randint(len(scales), (24,), generator=generator)
    ][:, None].to(dtype)
    rows[3] = 0
    rows[3, 1700] = 1e4
    rows[4, 7] = math.nan
    rows[5, 2400] = math.inf
    return rows


@attack("A4", "A5", "A9")
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE, torch.float16])
def test_a_record_moves_the_float_sum_by_at_most_the_clip_and_one_nearly_does(
    dtype,
):
    generator = torch.Generator().manual_seed(5)
    largest = 0.0
    for trial in range(6):
        rows = hostile_rows(generator, dtype)
        if trial == 0:
            rows[-1] = 9 * torch.ones(D, dtype=dtype)
        moved = summed(rows).double() - summed(rows[:-1]).double()
        largest = max(largest, exact_norm(moved))
        assert moved.isfinite().all()
    assert 0.99 * CLIP < largest <= CLIP
    for which in (4, 5):  # a gradient that is not finite counts as zero
        assert not summed(rows[which : which + 1]).any()


@attack("A1", "A2")
def test_the_noise_is_gaussian_on_a_public_grid_and_fresh_at_every_draw():
    drawn = []
    for _ in range(2):
        made, parameter = optimizer((200, 200), multiplier=1.3)
        parameter.grad_sample = torch.zeros(64, 200, 200)
        parameter.grad_sample[0, 0, 0] = CLIP / 3
        made.clip_and_accumulate()
        total = parameter.summed_grad.clone()
        parameter.data = parameter.data.double()  # the noised sum is cast to this at last
        made.add_noise()
        drawn.append((parameter.grad - total).flatten().numpy() / (1.3 * CLIP))
        steps = parameter.grad / (2.0 ** math.floor(math.log2(1.3 * CLIP)) / 2**20)
        assert torch.equal(steps, steps.round()), "whatever the sum's own low bits"
    assert_law(np.concatenate(drawn), scipy.stats.norm().cdf)
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.04


def test_sums_are_what_opacus_would_sum():
    rows = torch.randn(64, D) * 0.02
    expected = torch.einsum("i,ij->j", (CLIP / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0), rows)
    assert torch.allclose(summed(rows).float(), expected, rtol=0.005, atol=0.005)


@pytest.fixture
def flushing_denormals():
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@attack("A4")
@pytest.mark.usefixtures("flushing_denormals")
@pytest.mark.parametrize(
    ("records", "part"),
    [(1, 1), (129, 129), (1000, 1000), (20000, 64)],
)
def test_sums_are_exact_within_what_the_proof_of_their_sensitivity_allows(records, part):
    """2^-11 of the clip, for records that are all alike, so that errors have one sign, for random
    ones, and for some so long that float32 has no normal number for their factor; a sample in parts
    is no less exact than in one.
    """
    # For one number alone a processor's order of adding may happen to make no error.
    alike = [torch.full((records, 3), number) for number in (1 / 3, 0.7, 1.1, 5.3)]
    some = torch.randn(records, 50)
    # A single number has a norm where more would overflow.
    long = some[:, :1].clone()
    long[::2] = 3e38
    for rows in (*alike, some, long):
        made, parameter = optimizer(rows.shape[1:], count=records)
        for piece in torch.split(rows, part):
            parameter.grad_sample = piece
            made.clip_and_accumulate()
        factors = noise._factors([rows], CLIP).numpy()
        terms = factors.astype(np.longdouble)[:, None] * rows.numpy().astype(np.longdouble)
        error = parameter.summed_grad.numpy() - terms.sum(0)
        assert exact_norm(error.astype(float)) <= 2.0**-11 * CLIP


@attack("A4")
def test_no_records_factor_depends_on_how_many_there_are_or_how_they_lie_in_memory():
    """Gradients were joined by how many numbers they have. So one record more took each norm in
    other blocks, and the sum of 2^19 others moved by .05 C of its own.
    """

    def factor(count):
        gradients = [torch.full((count, 1), number) for number in (5.3, 2.9)]
        return noise._factors([torch.cat(group, 1) for group in noise._groups(gradients)], CLIP)[0]

    assert factor(1 << 19) == factor((1 << 19) + 1)
    rows = torch.randn(64, 1000)
    assert torch.equal(summed(rows), summed(rows.T.contiguous().T))


@attack("A4")
def test_a_sum_that_underflows_raises_nothing_after_its_charge():
    with np.errstate(all="raise"):
        noise._noised(torch.full((2,), 1e-305, dtype=DOUBLE), noise.MOST_NORM)


def session(module=None):
    module = module or nn.Linear(4, 2)
    return Session(TensorDataset(X, Y), TERMS).make_private(
        module, torch.optim.SGD(module.parameters(), 0.1), max_grad_norm=1.0
    )


def private(
    curator=None, terms=TERMS, records=(X, Y), module=None, optimizer=torch.optim.SGD, **arguments
):
    curator = curator or owner(records, terms)
    module = module or nn.Linear(4, 2)
    engine = PrivateEngine(curator, terms)
    prepared = engine.make_private(
        module=module,
        optimizer=optimizer(module.parameters(), 0.1),
        **{"max_grad_norm": 1.0, "data_loader": DataLoader(TensorDataset(*records)), **arguments},
    )
    return (curator, *prepared)


def owner(records, terms=TERMS, relation=Adjacency.ADD_OR_REMOVE_ONE):
    plan = Planned([terms.event(relation)])
    return Curator(
        records,
        unit=PrivacyUnit("record"),
        adjacency=relation,
        budget=Budget(30.0, 1e-5),
        accounting=plan,
        role="training",
    )


def after_birth(curator):
    _, *records = curator.ledger.records()
    return [(record.kind, record.name, record.body) for record in records]


def backward(module, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(batch[0]), batch[1]).backward()


@attack("A27")
def test_a_second_step_on_one_sample_is_refused_and_charges_nothing():
    curator, *prepared = private()
    for module, noised, loader in (session(), prepared):
        batch = next(iter(loader))
        backward(module, noised, batch)
        noised.step()
        before = [parameter.clone() for parameter in module.parameters()]
        backward(module, noised, batch)
        with pytest.raises(UsageError, match="next batch"):
            noised.step()
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert steps_charged(curator.ledger) == 1
    curator, _, _, loader = private()
    _, module, noised, _ = private(curator)
    backward(module, noised, next(iter(loader)))
    with pytest.raises(UsageError, match="sample"):
        noised.step()


class Spare(nn.Module):
    """A classifier with a layer that its output does not depend on."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 2)
        self.spare = nn.Linear(2, 3)

    def forward(self, x):
        return self.used(x)


class Other(Spare):
    """A second output, which the loss leaves out."""

    def forward(self, x):
        output = self.used(x)
        return output, self.spare(output)


@attack("A27")
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
@pytest.mark.parametrize("kind", [Spare, Other])
def test_a_parameter_without_a_gradient_is_named_before_a_charge(kind, mode):
    curator, model, made, loader = private(module=kind(), grad_sample_mode=mode)
    x, y = next(iter(loader))
    output = model(x)
    nn.functional.cross_entropy(output[0] if kind is Other else output, y).backward()
    with pytest.raises(UsageError, match=r"'spare\.weight' has no gradient.*requires_grad_"):
        made.step()
    assert curator.ledger.used() == {"dp-sgd": 0}


@pytest.mark.parametrize("kind", [Spare, Other])
def test_a_trainable_parameter_that_the_optimizer_lacks_is_named_before_anything_is_reserved(kind):
    module = kind()
    curator = owner((X, Y))

    def of_one_layer(*_):
        return torch.optim.SGD(module.used.parameters(), 0.1)

    with pytest.raises(UsageError, match=r"'spare\.weight'.*freeze the others"):
        private(curator, module=module, optimizer=of_one_layer)
    assert curator.ledger.used() == {}
    module.spare.requires_grad_(False)
    private(curator, module=module, optimizer=of_one_layer)


def test_a_hook_of_the_users_displaces_no_charge():
    curator, module, noised, loader = private()
    noised.attach_step_hook(lambda _: None)
    for batch in loader:
        backward(module, noised, batch)
        noised.step()
    assert steps_charged(curator.ledger) == TERMS.batches


def test_a_copy_of_the_optimizer_is_refused_and_the_run_goes_on():
    """torch's copy of it failed halfway, and so did the process' next steps."""
    curator, module, noised, loader = private()
    scheduler = torch.optim.lr_scheduler.StepLR(noised, 2)
    for batch in loader:
        backward(module, noised, batch)
        noised.step()
        scheduler.step()
        for thing in (noised, scheduler):
            with pytest.raises(OpacityError, match="state_dict"):
                copy.deepcopy(thing)
            with pytest.raises(OpacityError, match="state_dict"):
                pickle.dumps(thing)
            copy.deepcopy(thing.state_dict())
    assert steps_charged(curator.ledger) == TERMS.batches


@attack("A27")
@pytest.mark.parametrize("norm", [0.0, math.inf])
def test_a_schedule_of_the_norm_bound_that_leaves_its_range_makes_no_step(norm):
    curator, module, noised, loader = private()
    backward(module, noised, next(iter(loader)))
    noised.max_grad_norm = norm
    with pytest.raises(InputError, match="max_grad_norm"):
        noised.step()
    assert steps_charged(curator.ledger) == 0


@attack("A27")
def test_gradients_of_two_samples_or_not_one_for_each_record_make_no_step():
    """A soft prompt of two rows, each the sum over all records; half of a sample; a frozen
    parameter's own gradient.
    """

    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt = nn.Embedding(2, 4)

        def forward(self, x):
            return x + self.prompt(torch.arange(2)).sum(0)

    curator, module, noised, loader = private(module=Prompt())
    noised.zero_grad()
    module(next(iter(loader))[0]).sum(1).mean().backward()
    with pytest.raises(UsageError, match="the Poisson sample"):
        noised.step()
    _, module, noised, loader = private(curator)
    batch = next(iter(loader))
    backward(module, noised, [part[: len(part) // 2] for part in batch])
    with pytest.raises(UsageError, match="the Poisson sample"):
        noised.step()
    noised.zero_grad()  # and what was broken off is forgotten
    backward(module, noised, batch)
    frozen = module._module.bias
    before = module._module.bias.clone()
    frozen.requires_grad_(False)
    noised.step()
    assert torch.equal(frozen, before)
    assert steps_charged(curator.ledger) == 1
    _, module, noised, loader = private()
    batches = iter(loader)
    first = next(batches)
    backward(module, noised, first)
    noised.signal_skip_step()
    noised.step()
    backward(module, noised, first)
    with pytest.raises(UsageError, match="the Poisson sample"):
        noised.step()
    with pytest.raises(UsageError, match="before a step on the last one"):
        next(batches)
    with pytest.raises(ValueError, match="accumulation"):  # Opacus'
        nn.functional.cross_entropy(module(first[0]), first[1]).backward()


def test_what_decides_by_gradients_before_their_noise_is_refused():
    _, module, noised, loader = private()
    batch = next(iter(loader))
    backward(module, noised, batch)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with pytest.raises(UsageError, match="GradScaler"):
        scaler.step(noised)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        backward(module, noised, batch)
    with pytest.raises(InputError, match="half precision"):
        noised.step()
    with pytest.raises(InputError, match="optimizer"):
        private(optimizer=torch.optim.LBFGS)


def test_parts_of_a_sample_that_fit_into_memory_are_one_step():
    curator, module, noised, loader = private()
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=3, optimizer=noised
    ) as parts:
        sizes = []
        for batch in parts:
            sizes.append(len(batch[0]))
            backward(module, noised, batch)
            noised.step()
    assert max(sizes) <= 3
    assert len(sizes) > TERMS.batches == steps_charged(curator.ledger)


class Told(TensorDataset):
    """Records that say what a worker drew when it read them."""

    own = random.Random()

    def __getitem__(self, place):
        drawn = (torch.rand(()), np.random.rand(), random.random(), self.own.random())
        return (*super().__getitem__(place), torch.tensor([float(number) for number in drawn]))


def seed_all(_worker):
    # The seed that PyTorch's documentation gives other libraries.
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.own = random.Random(torch.initial_seed())
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@attack("A17", "A27")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_load_ahead_and_a_sample_counts_where_the_loop_gets_it(persistent):
    workers = of(
        num_workers=2, persistent_workers=persistent, worker_init_fn=seed_all, prefetch_factor=2
    )
    drawn = []
    left = []
    for _ in range(2):
        curator = owner(records := Told(X, Y))
        _, module, optimizer, loader = private(curator, data_loader=DataLoader(records, **workers))
        torch.manual_seed(5)
        for _ in range(TERMS.epochs):
            for batch in loader:
                assert len(batch[0]) == loader.batch_sampler.size
                assert all(bool((X == row).all(1).any()) for row in batch[0])
                drawn.append(batch[2])
                backward(module, optimizer, batch)
                optimizer.step()
        left.append(torch.get_rng_state())
        assert steps_charged(curator.ledger) == TERMS.steps
        backward(module, optimizer, next(iter(loader)))
        with pytest.raises(BudgetExceeded):
            optimizer.step()
    numbers = torch.cat(drawn)
    assert all(len(column.unique()) == len(numbers) for column in numbers.T), (
        "workers draw by no seed of the caller's, and by none twice"
    )
    assert torch.equal(*left), "records do not move the caller's generators"


@attack("A27")
@pytest.mark.parametrize("workers", [0, 1])
def test_passes_that_were_begun_together_count_their_own_samples(workers):
    loader = DataLoader(TensorDataset(X, Y), num_workers=workers)
    curator, module, optimizer, loader = private(data_loader=loader)
    passes = [iter(loader) for _ in range(3)]
    for taken in (*passes, *passes):
        batch = next(taken)
        assert len(batch[0]) == loader.batch_sampler.size
        backward(module, optimizer, batch)
        optimizer.step()
    assert steps_charged(curator.ledger) == 6


class Broken(TensorDataset):
    """Records of which none can be read from some time on."""

    broken = False

    def __getitem__(self, place):
        if self.broken:
            raise ValueError("no such file")
        return super().__getitem__(place)


@attack("A27")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_could_not_be_loaded_is_not_left_out(workers):
    records = Broken(X, Y)
    curator = owner(records)
    _, module, optimizer, loader = private(
        curator, data_loader=DataLoader(records, num_workers=workers)
    )
    backward(module, optimizer, next(iter(loader)))
    optimizer.step()
    records.broken = True
    with pytest.raises(ValueError, match="no such file"):
        next(iter(loader))
    records.broken = False
    with pytest.raises(UsageError, match="step on each sample"):
        next(iter(loader))


@attack("A27")
def test_workers_and_opacus_parts_of_a_sample_go_together_only_without_a_step():
    """Opacus' loader takes the places of ours, which then counts no sample."""
    curator, module, noised, loader = private(
        data_loader=DataLoader(TensorDataset(X, Y), num_workers=1)
    )
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=64, optimizer=noised
    ) as parts:
        backward(module, noised, next(iter(parts)))
        with pytest.raises(UsageError, match="before the first sample"):
            noised.step()
    assert steps_charged(curator.ledger) == 0


@attack("A6", "A7")
def test_steps_follow_from_noised_sums_alone(monkeypatch):
    """The same noised sums on neighbouring records: the same weights and ledger. And each exact sum
    moves by at most the clip.
    """
    terms = DPSGDConfig(noise_multiplier=1.0, epochs=3, batches=1, batch_size=64)
    sums = list[list[Any]]()
    played = list[torch.Tensor]()

    def noised(total, std):
        place = len(sums[-1])
        sums[-1].append(total)
        if len(sums) == 1:
            played.append(total + std * torch.randn_like(total))
        return played[place]

    monkeypatch.setattr(noise, "_noised", noised)
    public = []
    for records in (
        (X, Y),
        (torch.cat([9 * X[:1], X[1:]]), Y.flip(0)[:1].repeat(64).where(torch.arange(64) == 0, Y)),
    ):
        sums.append([])
        torch.manual_seed(0)
        curator, module, optimizer, loader = private(
            owner(records, terms, Adjacency.REPLACE_ONE), terms, records
        )
        for _ in range(terms.epochs):
            for batch in loader:
                backward(module, optimizer, batch)
                optimizer.step()
        rows = after_birth(curator)
        public.append(
            (
                {name: value.tolist() for name, value in module.state_dict().items()},
                [{**row[2], "run": 0} for row in rows],
            )
        )
    assert public[0] == public[1]
    moved = (torch.stack(sums[0]) - torch.stack(sums[1])).norm(dim=1)
    assert len(moved) == 3
    assert 0 < float(moved.min()) <= float(moved.max()) <= 2.0


@attack("A8", "A29")
def test_nothing_public_tells_one_record_more():
    told = []
    for count in (63, 64):
        curator, _, noised, loader = private(records=(X[:count], Y[:count]))
        rows = after_birth(curator)
        told.append((rows, len(loader), noised.expected_batch_size))
    assert told[0] == told[1]


class Noisy(TensorDataset):
    """Each look at a record gives it another shape of its own, as augmentation does."""

    def __getitem__(self, place):
        rows, label = super().__getitem__(place)
        return rows + torch.rand(4), label


class Named(TensorDataset):
    def __getitem__(self, place):
        return dict(zip(("rows", "label"), super().__getitem__(place), strict=True))


@attack("A8", "A27")
def test_a_loader_of_other_records_than_the_curators_is_refused_without_their_number():
    """Each record ten times would cost ten times what is charged."""
    shuffled = torch.randperm(64)
    others: list[Any] = [
        TensorDataset(X.repeat(10, 1), Y.repeat(10)),
        TensorDataset(X[:63], Y[:63]),
        TensorDataset(X, 1 - Y),
        TensorDataset(torch.cat([X[:1], X[:1], X[2:]]), Y),
        Subset(TensorDataset(X, Y), [0] * 64),
        Noisy(X, Y),
        [str(row) for row in X],
    ]
    for dataset in others:
        curator = owner((X, Y))
        with pytest.raises(InputError, match="of the curator's records") as refused:
            private(curator, data_loader=DataLoader(dataset))
        assert not any(character.isdigit() for character in str(refused.value))
        assert not curator.ledger.used(), "nothing is reserved"
    for dataset in (
        TensorDataset(X[shuffled], Y[shuffled]),
        Subset(TensorDataset(X, Y), shuffled.tolist()),
        Named(X, Y),
    ):
        private(data_loader=DataLoader(dataset))
    private(owner(noisy := Noisy(X, Y)), data_loader=DataLoader(noisy))


@attack("A21")
@pytest.mark.parametrize("kind", [TensorDataset, Named])
def test_an_empty_sample_has_the_form_of_others_and_nothing_tells_of_it(kind, caplog):
    terms = DPSGDConfig(noise_multiplier=1.0, epochs=20, batches=1000, batch_size=1)
    session = Session(kind(X[:2], Y[:2]), terms)
    plain = nn.Linear(4, 2)
    module, noised, loader = session.make_private(
        plain, torch.optim.SGD(plain.parameters(), 0.1), max_grad_norm=1.0
    )
    batch = next(iter(loader))
    batch = [*batch.values()] if isinstance(batch, dict) else batch
    assert [(part.shape[1:], part.dtype) for part in batch] == [
        ((4,), torch.float32),
        ((), torch.int64),
    ]
    backward(module, noised, batch)
    noised.step()
    assert caplog.records == []
