"""A31, A33: what leaves beside the noise. Layers that keep their records, and loops that look at a loss before its noise.

The noise of these trainings is ten thousand times as large as the norm bound, so noised parameters tell nothing of a record: whatever does
is read elsewhere.
"""

import array
import collections
import functools
import io
import itertools
import math
import operator
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Budget, Curator, Space
from dpbo.accounting import Planned, RDPFilter
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, noise, private_selection, tune
from dpbo.dpsgd.planning import TuningPlan
from dpbo.errors import InputError, UsageError
from dpbo.events import GaussianEvent, RolesEvent, SelectionEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.privacy import Adjacency
from dpbo.queries import ClippedMean
from dpbo.run_counts import FixedRuns

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CONFIG = DPSGDConfig(noise_multiplier=1e4, epochs=3, batches=1, batch_size=60)
X, Y = 50 + torch.rand(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
GIVEN = {"lr": 0.1}
PLAN = TuningPlan(
    "once", CONFIG, 1e4, 1.0, 1.0, 1, 1.0,
    (
        RolesEvent(costs=(("training", (CONFIG.event(Adjacency.REPLACE_ONE),)),)),
        RolesEvent(1e4, 1, costs=(("validation", (GaussianEvent(1.0),)),)),
    ),
    Budget(8.0, 1e-5), Adjacency.REPLACE_ONE, 60, (0.0, 1.0),
)  # fmt: skip


class Keeps(nn.Module):
    """Gives its input on, after `keep(self, rows)`."""

    def __init__(self, keep, **attributes):
        super().__init__()
        self.keep = keep
        self.register_buffer("mean", torch.zeros(4))
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, rows):
        self.keep(self, rows)
        return rows


class Words(nn.Module):
    """Looks up each record's place among ten words."""

    def __init__(self, table, look_up=None):
        super().__init__()
        self.table, self.look_up = table, look_up or (lambda table, words: table(words))

    def forward(self, rows):
        words = (rows.detach()[:, :1] * 1000).long() % 10
        return self.look_up(self.table, words).flatten(1)


def untracked():
    """Normalises by its public statistics in evaluation mode, and by the sample in the other, where it changes none of them."""
    norm = nn.BatchNorm1d(4, affine=False).eval()
    norm.track_running_stats = False
    return norm


def turned_on(layer, rows):
    layer.norm.train()
    return layer.norm(rows)


def seen(rows):
    """Not zero for zeros, which stand in for records in a trial."""
    return 1 + rows.detach().mean(0)


def shortened(table, words):
    return nn.functional.embedding(words, table.weight, max_norm=0.1)


def first_place(*, to_hook):
    layer = nn.Identity()
    layer.register_buffer("mean", torch.zeros(4))
    layer.register_forward_hook(to_hook)
    return layer


class Box:
    value: Any = None


class Same:
    """Its attribute is in no dict, and copies of it are itself."""

    __slots__ = ("value",)

    def __deepcopy__(self, memo):
        return self


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 0.0


def closed_over(layer):
    layer.act = lambda rows: layer.mean + rows
    return layer


def into_array():
    kept: Any = np.zeros(1)
    return lambda _, rows: operator.setitem(kept, 0, float(seen(rows)[0]))


def into_closure():
    kept = {"mean": 0.0}
    return lambda _, rows: kept.update(mean=float(seen(rows)[0]))


KEPT: dict[str, Any] = {"mean": 0.0}
LAST = 0.0


def into_global(rows):
    global LAST
    LAST = float(seen(rows)[0])


class Remembers(Keeps):
    last: Any = None


KINDS: dict[str, Any] = {
    "attribute of a parameter": lambda: Keeps(
        lambda self, rows: setattr(self.inner.weight, "kept", seen(rows)), inner=nn.Linear(4, 4).requires_grad_(False)
    ),
    "array of numbers": lambda: Keeps(lambda self, rows: operator.setitem(self.seen, 0, float(seen(rows)[0])), seen=array.array("d", [0])),
    "namespace": lambda: Keeps(lambda self, rows: setattr(self.seen, "mean", seen(rows)), seen=types.SimpleNamespace(mean=0.0)),
    "class": lambda: Remembers(lambda self, rows: setattr(Remembers, "last", seen(rows))),
    "class of an object": lambda: Keeps(lambda self, rows: setattr(Box, "value", seen(rows)), box=Box()),
    "in a global dict": lambda: Keeps(lambda self, rows: KEPT.update(mean=float(seen(rows)[0]))),
    "global": lambda: Keeps(lambda self, rows: into_global(rows)),
    "count": lambda: Keeps(lambda self, rows: next(self.seen), seen=itertools.count()),
    "iterator": lambda: Keeps(lambda self, rows: next(self.seen), seen=iter(range(1000))),
    "iterator that hides where it stands": lambda: Keeps(lambda self, rows: next(self.seen), seen=itertools.cycle([1, 2])),
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm, frozen": lambda: nn.BatchNorm1d(4).requires_grad_(False),
    "batch norm without parameters": lambda: nn.BatchNorm1d(4, affine=False),
    "batch norm without parameters or statistics": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "batch norm that does not count its batches": lambda: Counts(nn.BatchNorm1d(4, affine=False)),
    "batch norm in another mode": lambda: Keeps(turned_on, norm=untracked()),
    "batch norm of several processes": lambda: nn.SyncBatchNorm(4, affine=False),
    "lazy batch norm": lambda: nn.LazyBatchNorm1d(affine=False),
    "lazy layer": lambda: nn.LazyLinear(4),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()),
    "batch norm in a list": lambda: Keeps(lambda self, rows: self.hidden[0](rows), hidden=[nn.BatchNorm1d(4, affine=False)]),
    "observer": lambda: torch.ao.quantization.MinMaxObserver(),
    "fake quantisation": lambda: torch.ao.quantization.FakeQuantize(),
    "embedding": lambda: Words(nn.Embedding(10, 4, max_norm=0.1)),
    "embedding bag": lambda: Words(nn.EmbeddingBag(10, 4, max_norm=0.1).requires_grad_(False)),
    "embedding by function": lambda: Words(nn.Embedding(10, 4).requires_grad_(False), shortened),
    "buffer": lambda: Keeps(lambda self, rows: self.mean.copy_(seen(rows))),
    "buffer past the counter": lambda: Keeps(lambda self, rows: self.mean.data.copy_(seen(rows))),
    "new buffer": lambda: Keeps(lambda self, rows: setattr(self, "mean", seen(rows))),
    "attribute": lambda: Keeps(lambda self, rows: setattr(self, "loss", float(seen(rows)[0]))),
    "list": lambda: Keeps(lambda self, rows: self.seen.append(len(rows)), seen=[]),
    "deque": lambda: Keeps(lambda self, rows: self.seen.append(float(seen(rows)[0])), seen=collections.deque()),
    "bytes": lambda: Keeps(lambda self, rows: self.seen.extend(bytes(len(rows))), seen=bytearray()),
    "set": lambda: Keeps(lambda self, rows: self.seen.add(float(seen(rows)[0])), seen=set()),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).requires_grad_(False),
    "dict": lambda: Keeps(lambda self, rows: self.seen.update(mean=float(seen(rows)[0])), seen={"mean": 0.0}),
    "object": lambda: Keeps(lambda self, rows: setattr(self.box, "value", float(seen(rows)[0])), box=Box()),
    "array": lambda: Keeps(lambda self, rows: operator.setitem(self.array, 0, float(seen(rows)[0])), array=np.zeros(1)),
    "closure": lambda: Keeps(into_closure()),
    "closure over itself": lambda: closed_over(Keeps(lambda self, rows: self.act(rows))),
    "closure over an array": lambda: Keeps(into_array()),
    "default": lambda: Keeps(lambda self, rows, kept=[]: kept.append(float(seen(rows)[0]))),
    "object that is never copied": lambda: Keeps(lambda self, rows: setattr(self.box, "value", float(seen(rows)[0])), box=Same()),
    "object with slots": lambda: Keeps(lambda self, rows: setattr(self.box, "value", float(seen(rows)[0])), box=Slotted()),
    "method of a list": lambda: Keeps(lambda self, rows: self.push(float(seen(rows)[0])), push=[].append),
    "partial": lambda: Keeps(lambda self, rows: self.part.keywords.update(mean=float(seen(rows)[0])), part=functools.partial(print)),
    "hook": lambda: first_place(to_hook=lambda layer, _, out: layer.mean.copy_(seen(out))),
}


class Counts(nn.Module):
    def __init__(self, norm):
        super().__init__()
        norm.num_batches_tracked = None
        self.norm = norm

    def forward(self, rows):
        return self.norm(rows)


def fit(parameters, session, layer, loop=None):
    """Trains a linear layer behind another one."""
    network = nn.Sequential(layer(), nn.Flatten(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), parameters["lr"])
    module, optimizer, loader = session.make_private(network, optimizer, max_grad_norm=1.0)
    (loop or plain)(module, optimizer, loader)
    return module


def plain(module, optimizer, loader, stop=lambda loss: False, skip=lambda loss: False):
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(rows), labels)
        loss.backward()
        if skip(loss):
            continue
        if stop(loss):
            break
        optimizer.step()


def tuned(fit, records=(X, Y), *, try_first=False, score=None):
    given: dict[str, Any] = {"validation": torch.zeros(60, 1), "space": Space(lr=[0.1, 0.2]), "plan": PLAN, "parameters": GIVEN}
    score = score or (lambda model, records: torch.zeros(len(records)))
    return tune(fit, score, training=TensorDataset(*records), try_first=try_first, allow_repeated=True, **given).model


@pytest.mark.attack("A31")
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_keeps_its_records_is_refused_by_name(kind):
    trained = functools.partial(fit, layer=KINDS[kind])
    with pytest.raises(InputError, match=r"^module[\w.]*="):
        tuned(trained, try_first=True)
    assert tuned(trained) is None, "neither without the trial"


@pytest.mark.attack("A31")
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_takes_no_step_and_charges_nothing_with_such_a_layer(kind):
    curator, engine = private()
    with pytest.raises(InputError, match=r"^module"):
        fit(GIVEN, Opened(engine, (X, Y)), KINDS[kind])
    assert not [record for record in curator.ledger.records() if record.kind == "charge"]


class Opened:
    """A PrivateEngine with a session's `make_private`."""

    def __init__(self, engine, records):
        self.engine, self.records = engine, records

    def make_private(self, module, optimizer, **settings):
        loader = DataLoader(TensorDataset(*self.records))
        return self.engine.make_private(module=module, optimizer=optimizer, data_loader=loader, **settings)


def private(records=(X, Y), relation=Adjacency.REPLACE_ONE):
    terms: dict[str, Any] = {"unit": "record", "budget": Budget(30.0, 1e-5), "role": "training", "allow_repeated": True}
    curator = Curator(records, adjacency=relation, accounting=Planned([CONFIG.event(relation)]), **terms)
    return curator, PrivateEngine(curator, CONFIG)


HONEST: dict[str, Any] = {
    "nothing": nn.Identity,
    "dropout": lambda: nn.Dropout(0.3),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2), nn.Flatten()),
    "public statistics": lambda: nn.BatchNorm1d(4).requires_grad_(False).eval(),
    "constants": lambda: Keeps(lambda self, rows: None, box=Box(), array=np.ones(3), seen=[1, "a", math.nan]),
    "words": lambda: Words(nn.Embedding(10, 4)),
}


@pytest.mark.attack("A31", "A7")
@pytest.mark.parametrize("kind", HONEST)
def test_the_model_that_leaves_follows_from_noised_parameters_alone(kind, monkeypatch):
    """Its file, byte by byte, when one marked record is replaced and the noised sums are replayed."""
    noised = list[torch.Tensor]()
    replayed = list[Any]()

    def draws(total, std):
        if not replayed:
            noised.append(total + std * torch.randn_like(total))
            return noised[-1]
        return next(replayed[0])

    monkeypatch.setattr(noise, "_noised", draws)
    files = []
    for first in (X[:1], -1e3 * X[:1]):
        torch.manual_seed(1)
        model = tuned(functools.partial(fit, layer=HONEST[kind], loop=last_look), (torch.cat([first, X[1:]]), Y))
        model[0].keep = None  # a function of this test, which no file can hold
        model[0].look_up = None
        file = io.BytesIO()
        torch.save(model, file)
        files.append(file.getvalue())
        replayed.append(iter(noised))
    assert files[0] == files[1]
    assert len(noised) > 0


def last_look(module, optimizer, loader):
    """Whatever the loop leaves on the module does not leave with it."""
    plain(module, optimizer, loader)
    optimizer.zero_grad()
    module(X).sum().backward()
    module.eval()


@pytest.mark.attack("A31")
@pytest.mark.parametrize("kept", [lambda module: module, lambda module: module._module, lambda module: {"m": [module._module[-1]]}])
def test_a_private_selection_releases_no_trained_module_but_the_rebuilt_one(kept):
    base, law = (CONFIG.event(Adjacency.REPLACE_ONE),), FixedRuns(2)

    def selected(released):
        def train(parameters):
            session = Session(TensorDataset(X, Y), CONFIG)
            module = fit(parameters, session, nn.Identity)
            return session.released() if released else kept(module), 1.0

        accounting = Planned([SelectionEvent(base=base, run_count=law)])
        terms: dict[str, Any] = {"unit": "record", "budget": Budget(8.0, 1e-5), "allow_repeated": True, "role": "training"}
        curator = Curator((X, Y), adjacency=Adjacency.REPLACE_ONE, accounting=accounting, **terms)
        return private_selection(curator, train, space=Space(lr=[0.1, 0.2]), run_count=law, base=base).output

    assert selected(released=False) is None
    assert isinstance(selected(released=True), nn.Sequential)


def registers(module, where):
    """A hook that shows the layer's output to the caller, registered after `make_private`."""
    if where == "all":
        return nn.modules.module.register_module_forward_hook(lambda layer, _, out: None)
    layer = {"wrapper": module, "module": module._module, "layer": module._module[-1]}[where.partition(" ")[0]]
    return getattr(layer, where.partition(" ")[2])(lambda *_: None)


@pytest.mark.attack("A31")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "where", ["all", "wrapper register_forward_hook", "module register_forward_pre_hook", "layer register_full_backward_hook"]
)
def test_a_hook_after_make_private_is_refused(where, late):
    curator, engine = private()

    def loop(module, optimizer, loader):
        if late:
            plain(module, optimizer, loader)
        handles.append(registers(module, where))
        if late:
            engine.released()
        plain(module, optimizer, loader)

    handles = list[Any]()
    try:
        with pytest.raises(InputError, match="without hooks"):
            fit(GIVEN, Opened(engine, (X, Y)), nn.Identity, loop)
    finally:
        handles[0].remove()
    assert ("charge" in [record.kind for record in curator.ledger.records()]) == late


class Own(torch.optim.SGD):
    """Its step may write anything."""


STEPS = {
    "own class": lambda optimizer: setattr(optimizer.original_optimizer, "__class__", Own),
    "own step": lambda optimizer: setattr(optimizer.original_optimizer, "step", lambda: None),
    "hook before": lambda optimizer: optimizer.original_optimizer.register_step_pre_hook(lambda *_: None),
    "hook after": lambda optimizer: optimizer.original_optimizer.register_step_post_hook(lambda *_: None),
    "hook of Opacus": lambda optimizer: optimizer.attach_step_hook(lambda _: None),
    "hook of all": lambda _: register_optimizer_step_post_hook(lambda *_: None),
}


@pytest.mark.attack("A31")
@pytest.mark.parametrize("kind", STEPS)
def test_code_within_the_optimizers_step_is_refused(kind):
    """It could write to noised parameters where nobody compares them."""
    curator, engine = private()
    handles = list[Any]()

    def loop(module, optimizer, loader):
        handles.append(STEPS[kind](optimizer))
        plain(module, optimizer, loader)

    with pytest.raises(InputError, match="optimizer="):
        fit(GIVEN, Opened(engine, (X, Y)), nn.Identity, loop)
    if kind == "hook of all":
        handles[0].remove()
    assert not [record for record in curator.ledger.records() if record.kind == "charge"]


@pytest.mark.attack("A31")
def test_an_optimizer_of_the_callers_is_refused_and_a_schedule_of_torch_is_not():
    def made(module, kind):
        optimizer = kind(module.parameters(), 0.1)
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return Opened(private()[1], (X, Y)).make_private(module, optimizer, max_grad_norm=1.0)

    with pytest.raises(InputError, match="optimizer='Own'"):
        made(nn.Linear(4, 2), Own)
    plain(*made(nn.Linear(4, 2), torch.optim.SGD))


DRAWS: dict[str, Any] = {
    "nothing declared": ((GaussianEvent(1e6),), CONFIG),
    "another run's steps": ((GaussianEvent(1e4, 2),), CONFIG),
    "a sampled run": ((GaussianEvent(1e2),), DPSGDConfig(noise_multiplier=1e4, epochs=3, batches=2, batch_size=30)),
    "enough": ((CONFIG.event(Adjacency.REPLACE_ONE),), CONFIG),
    "enough, in parts": ((CONFIG.event(Adjacency.REPLACE_ONE).repeated(1),) * 3, CONFIG),
}


@pytest.mark.attack("A19", "A21")
@pytest.mark.parametrize("kind", DRAWS)
def test_a_hidden_run_whose_base_does_not_pay_for_its_session_fails(kind):
    """A session on the ledger's own records that no event paid for let 19 of 20 guesses be right."""
    base, config = DRAWS[kind]
    law = FixedRuns(2)

    def train(parameters):
        session = Session(TensorDataset(X, Y), config)
        fit(parameters, session, nn.Identity)
        return session.released(), 1.0

    terms: dict[str, Any] = {"unit": "record", "budget": Budget(8.0, 1e-5), "allow_repeated": True, "role": "training"}
    curator = Curator((X, Y), adjacency=Adjacency.REPLACE_ONE, accounting=RDPFilter(8.0), **terms)
    best = private_selection(curator, train, space=Space(lr=[0.1, 0.2]), run_count=law, base=base)
    assert (best.output is not None) == (best.score is not None) == kind.startswith("enough")


@pytest.mark.attack("A19", "A21")
@pytest.mark.parametrize("paid", [False, True])
@pytest.mark.parametrize("way", ["curator", "hidden draws"])
def test_a_hidden_run_whose_base_does_not_pay_for_its_releases_fails(way, paid):
    law, mechanism = FixedRuns(2), GaussianMechanism(1e3)
    question = ClippedMean(lambda _, rows: rows[:, 0] / 100, score_range=(0.0, 1.0))
    terms: dict[str, Any] = {"unit": "record", "budget": Budget(8.0, 1e-5), "allow_repeated": True, "adjacency": Adjacency.REPLACE_ONE}
    curator = Curator(X, accounting=RDPFilter(8.0), **terms)

    def train(_):
        if way == "hidden draws":
            return curator.hidden_draws("selection")(question, mechanism), 1.0
        return Curator(X, accounting=RDPFilter(8.0), **terms).release(question, mechanism).value, 1.0

    base = [GaussianEvent(1e3 if paid else 1e6)]
    best = private_selection(curator, train, space=Space(lr=[0.1, 0.2]), run_count=law, base=base)
    assert (best.output is not None) == paid


class Mixes(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.mix = mix

    def forward(self, rows):
        return self.mix(rows)


MIXED = {
    "mean": lambda rows: rows - rows.mean(0),
    "normalised": lambda rows: nn.functional.batch_norm(rows, None, None, training=True),
    "sorted": lambda rows: rows.sort(0).values,
    "rolled": lambda rows: rows + 0.1 * rows.roll(1, 0),
    "attention": lambda rows: torch.softmax(rows @ rows.T, 1) @ rows,
}


@pytest.mark.attack("A27")
@pytest.mark.parametrize("kind", MIXED)
def test_code_that_mixes_the_records_of_a_sample_is_refused_whatever_they_are(kind):
    """On equal records nothing is mixed, so it does not depend on the records whether training fails."""
    curator, engine = private((torch.zeros(60, 4), Y))
    with pytest.raises(InputError, match="not depend on other records"):
        fit(GIVEN, Opened(engine, (torch.zeros(60, 4), Y)), lambda: nn.Sequential(Mixes(MIXED[kind]), nn.Dropout(0.3)))
    assert not [record for record in curator.ledger.records() if record.kind == "charge"]


@pytest.mark.attack("A31")
def test_what_a_loop_leaves_on_a_model_refuses_it_and_a_fit_returns_its_model_alone():
    def leaves(module, optimizer, loader):
        plain(module, optimizer, loader)
        vars(module._module[-1])["loss"] = float(X.mean())

    def returns(thing):
        return lambda parameters, session: [fit(parameters, session, nn.Identity), thing][1]

    assert tuned(functools.partial(fit, layer=nn.Identity, loop=leaves)) is None
    for thing in (None, 0.7, X, nn.Linear(4, 2), {"weight": X}, [nn.Linear(4, 2)], X.numpy()):
        with pytest.raises(UsageError, match="make_private's module"):
            tuned(returns(thing), try_first=True)
        assert tuned(returns(thing)) is None


@pytest.mark.attack("A31")
@pytest.mark.parametrize("kind", ["batch norm, frozen", "instance norm", "embedding", "embedding bag", "lazy batch norm", "hook"])
def test_layers_that_are_known_are_refused_before_a_forward_pass(kind):
    """So it never depends on the records whether training fails."""
    with pytest.raises(InputError, match=r"^module"):
        fit(GIVEN, Opened(private()[1], (X, Y)), KINDS[kind], loop=lambda *_: pytest.fail("it was made private"))


WRITES = {
    "in place": lambda bias: bias.add_(X.mean()),
    "data": lambda bias: bias.data.copy_(X.mean()),
    "NumPy": lambda bias: operator.setitem(bias.detach().numpy(), 0, float(X.mean())),
    "out": lambda bias: torch.add(X[0, :2], 1.0, out=bias.data),
}


@pytest.mark.attack("A31")
@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_loop_that_writes_to_parameters_gives_no_model(way, frozen):
    def layer():
        return nn.Linear(4, 4).requires_grad_(False) if frozen else nn.Identity()

    def writes(module, optimizer, loader):
        plain(module, optimizer, loader)
        with torch.no_grad():
            WRITES[way](module._module[0 if frozen else -1].bias)

    assert tuned(functools.partial(fit, layer=layer, loop=writes)) is None


LOOPS = {
    "skips": functools.partial(plain, skip=lambda loss: not bool(loss.isfinite())),
    "stops": functools.partial(plain, stop=lambda loss: not bool(loss.isfinite())),
}


@pytest.mark.attack("A33")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_skips_or_stops_for_its_loss_gives_no_model(loop):
    """One record whose loss is not finite: the weights would tell how many steps were taken."""
    marked = torch.cat([torch.full((1, 4), math.nan), X[1:]])
    trained = functools.partial(fit, layer=nn.Identity, loop=LOOPS[loop])
    assert tuned(trained, (X, Y)) is not None
    assert tuned(trained, (marked, Y)) is None
    assert tuned(functools.partial(fit, layer=nn.Identity), (marked, Y)) is not None, "its gradient counts as zero by itself"


def skips_each_epoch(module, optimizer, loader):
    for _ in range(2):
        LOOPS["skips"](module, optimizer, loader)


@pytest.mark.attack("A33")
def test_an_engine_refuses_the_next_sample_and_the_statement_names_what_a_loop_must_not_do():
    marked = torch.cat([torch.full((1, 4), math.nan), X[1:]]), Y
    curator, engine = private(marked)
    with pytest.raises(UsageError, match="before a step on the last one") as refused:
        fit(GIVEN, Opened(engine, marked), nn.Identity, skips_each_epoch)
    assert not any(character.isdigit() for character in str(refused.value)), "nothing tells how many steps there were"
    text = str(curator.statement())
    for forbidden in ("stop", "fail", "skip a step", "change a rate"):
        assert forbidden in text
