"""A31, A33: what leaves beside the noise. Layers that keep their records, and loops that look at a
loss before its noise.

The noise of these trainings is ten thousand times as large as the norm bound, so noised parameters
tell nothing of a record: whatever does is read elsewhere.
"""

import contextlib
import functools
import io
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Budget, Curator, Space
from dpbo.accounting import Planned, RDPFilter
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, noise, tune
from dpbo.dpsgd.planning import TuningPlan
from dpbo.errors import InputError, UsageError
from dpbo.events import GaussianEvent, RolesEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.privacy import Adjacency
from dpbo.queries import ClippedMean
from dpbo.records.protected_records import protected_tables
from tests.attacks.marks import attack
from tests.attacks.setups import TERMS, best_run, kinds, of, owner, owner_of_runs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CONFIG = DPSGDConfig(noise_multiplier=1e4, epochs=3, batches=1, batch_size=60)
STEPS = CONFIG.event(Adjacency.REPLACE_ONE)
X = 50 + torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 2
SEEN = torch.rand(60, 4)
RATES = Space(lr=[0.1, 0.2])
PLAN = TuningPlan(
    strategy="once",
    configs=(CONFIG,),
    score_multiplier=1e4,
    score_std=1.0,
    runs=1.0,
    usually=1,
    run_epsilon=1.0,
    events=(
        RolesEvent(costs=(("training", (STEPS,)),)),
        RolesEvent(1e4, 1, costs=(("validation", (GaussianEvent(1.0),)),)),
    ),
    budget=Budget(8.0, 1e-5),
    adjacency=Adjacency.REPLACE_ONE,
    validation=60,
    score_range=(0.0, 1.0),
)


class Keeps(nn.Module):
    """Gives its input on, after `keep(self, seen)`, where `seen` is a number that tells of the
    records.

    It is not zero for zeros, which stand in for records in a trial.
    """

    def __init__(self, keep, **attributes):
        super().__init__()
        self.keep = keep
        self.register_buffer("mean", torch.zeros(4))
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, rows):
        self.keep(self, 1 + rows.detach().mean().item())
        return rows


class Through(nn.Module):
    """A layer of a function of the rows."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.through = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, rows):
        return self.through(self, rows)


def words(rows):
    """Each record's place among ten words."""
    return (rows.detach()[:, :1] * 1000).long() % 10


def looked_up(table):
    return Through(lambda self, rows: self.table(words(rows)).flatten(1), table=table)


KINDS: dict[str, Any] = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm, frozen": lambda: nn.BatchNorm1d(4).requires_grad_(False),
    "batch norm without parameters": lambda: nn.BatchNorm1d(4, affine=False),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    ),
    "embedding": lambda: looked_up(nn.Embedding(10, 4, max_norm=0.1)),
    "buffer": lambda: Keeps(lambda self, seen: self.mean.fill_(seen)),
    "new buffer": lambda: Keeps(lambda self, seen: setattr(self, "mean", torch.full((4,), seen))),
}


def train(session, layer=nn.Identity, loop=None):
    """Trains a linear layer behind another one."""
    network = nn.Sequential(layer(), nn.Flatten(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
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


def tuned(layer=nn.Identity, loop=None, records=(X, Y), *, try_first=False, returned=None):
    """The model that `tune` releases, or None."""

    def fit(parameters, session):
        model = train(session, layer, loop)
        return model if returned is None else returned[0]

    given = of(
        validation=torch.zeros(60, 1),
        space=RATES,
        plan=PLAN,
        parameters={"lr": 0.1},
        allow_repeated=True,
    )
    # A fit whose loop names what `training` holds is refused.
    copies = TensorDataset(*(part.clone() for part in records))
    return tune(
        fit, lambda _, held: torch.zeros(len(held)), training=copies, try_first=try_first, **given
    ).model


class Engine:
    """A PrivateEngine with a session's `make_private`."""

    def __init__(self, records=(X, Y)):
        terms = of(budget=Budget(30.0, 1e-5), role="training", allow_repeated=True)
        self.curator = owner(records, accounting=Planned([STEPS]), **terms)
        self.engine = PrivateEngine(self.curator, CONFIG)
        self.loader = DataLoader(TensorDataset(*records))

    def make_private(self, module, optimizer, **settings):
        return self.engine.make_private(
            module=module, optimizer=optimizer, data_loader=self.loader, **settings
        )

    @contextlib.contextmanager
    def refuses(self, words, charged=False):
        with pytest.raises(InputError, match=words) as refused:
            yield refused
        assert ("charge" in kinds(self.curator)) == charged


@attack("A31")
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_keeps_its_records_is_refused_by_name(kind):
    with pytest.raises(InputError, match=r"^module[\w.]*="):
        tuned(KINDS[kind], try_first=True)
    assert tuned(KINDS[kind]) is None, "neither without the trial"


def gives_on(layer, rows, out):
    """A hook that does nothing."""


def hooked():
    layer = nn.Identity()
    layer.register_forward_hook(gives_on)
    return layer


HONEST: dict[str, Any] = {
    "nothing": nn.Identity,
    "dropout": lambda: nn.Dropout(0.3),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2), nn.Flatten()
    ),
    "public statistics": lambda: nn.BatchNorm1d(4).requires_grad_(False).eval(),
    "a mean that it keeps": lambda: Keeps(lambda self, seen: setattr(self, "kept", seen)),
    "words": lambda: looked_up(nn.Embedding(10, 4)),
    "hook": hooked,
}


@attack("A31", "A7")
@pytest.mark.parametrize("kind", HONEST)
def test_the_model_that_leaves_follows_from_noised_parameters_alone(kind, monkeypatch):
    """Its file, byte by byte, when one marked record is replaced and the noised sums are
    replayed.
    """
    noised: list[torch.Tensor] = []
    replayed: list[Any] = []

    def draws(total, std):
        if not replayed:
            noised.append(total + std * torch.randn_like(total))
            return noised[-1]
        return next(replayed[0])

    monkeypatch.setattr(noise, "_noised", draws)
    files = []
    for first in (X[:1], -1e3 * X[:1]):
        torch.manual_seed(1)
        model = tuned(HONEST[kind], last_look, (torch.cat([first, X[1:]]), Y))
        # Functions of this test, which no file can hold.
        model[0].keep = model[0].through = None
        file = io.BytesIO()
        torch.save(model, file)
        files.append(file.getvalue())
        replayed.append(iter(noised))
    assert files[0] == files[1]
    assert len(noised) > 0


def last_look(module, optimizer, loader):
    """What the loop leaves on the module does not leave with it."""
    plain(module, optimizer, loader)
    rows = loader.dataset.tensors[0]
    vars(module._module[-1])["loss"] = float(rows.mean())
    optimizer.zero_grad()
    module(rows).sum().backward()
    module.eval()


def best_session(released, base=(CONFIG,), **terms):
    """The best of two hidden trainings."""

    def one_run(_):
        session = Session(TensorDataset(X, Y), CONFIG)
        return released(train(session), session), 1.0

    curator = owner_of_runs((X, Y), (STEPS,), budget=Budget(8.0, 1e-5), role="training", **terms)
    return best_run(curator, one_run, base, space=RATES)


@attack("A31")
@pytest.mark.parametrize(
    "kept",
    [
        lambda module: module,
        lambda module: module._module,
        lambda module: {"m": [module._module[-1]]},
    ],
)
def test_a_private_selection_releases_no_trained_module_but_the_rebuilt_one(kept):
    assert best_session(lambda module, _: kept(module)).output is None
    assert isinstance(best_session(lambda _, session: session.released()).output, nn.Sequential)


PAID: dict[str, Any] = {
    "its events by hand": (STEPS,),
    "itself": (CONFIG,),
    "itself, and more": (GaussianEvent(1e4), CONFIG),
}


@attack("A19", "A21")
@pytest.mark.parametrize("kind", PAID)
def test_a_hidden_run_trains_in_no_session_but_those_whose_cost_is_computed(kind):
    """A session on the ledger's own records that no event paid for let 19 of 20 guesses be
    right.
    """
    best = best_session(
        lambda _, session: session.released(), PAID[kind], accounting=RDPFilter(8.0)
    )
    assert (best.output is not None) == (best.score is not None) == kind.startswith("itself")


@attack("A19", "A21")
def test_a_second_session_of_one_run_is_paid_for_like_the_first():
    best = best_session(
        lambda _, session: train(Session(TensorDataset(X, Y), CONFIG)) and session.released(),
        accounting=RDPFilter(8.0),
    )
    assert best.score is None


OF_RUNS = of(budget=Budget(8.0, 1e-5), accounting=RDPFilter(8.0), allow_repeated=True)


def hundredth(_, rows):
    return rows[:, 0] / 100


QUESTION = ClippedMean(hundredth, score_range=(0.0, 1.0))


@attack("A32")
def test_hidden_runs_leave_no_table_among_the_protected_ones():
    """Their number told how many runs there were, and pushed out what was protected before."""
    counts = []

    def one_run(_):
        own = Curator(torch.randn(30, 4), **{**TERMS, **OF_RUNS})
        counts.append(len(protected_tables.now()))
        return own.release(QUESTION, GaussianMechanism(1e3)).value, 1.0

    curator = owner(X, **OF_RUNS)
    before = len(protected_tables.now())
    best_run(curator, one_run, [GaussianEvent(1e3)], 5, space=RATES)
    assert len(set(counts)) == 1
    assert len(protected_tables.now()) <= before + 1


MIXED = {
    "mean": lambda _, rows: rows - rows.mean(0),
    "normalised": lambda _, rows: nn.functional.batch_norm(rows, None, None, training=True),
    "attention": lambda _, rows: torch.softmax(rows @ rows.T, 1) @ rows,
}


@attack("A27")
@pytest.mark.parametrize("kind", MIXED)
def test_code_that_mixes_the_records_of_a_sample_is_refused_whatever_they_are(kind):
    """On equal records nothing is mixed, so it does not depend on the records whether training
    fails.
    """
    engine = Engine((torch.zeros(60, 4), Y))
    with engine.refuses("not depend on other records"):
        train(engine, lambda: nn.Sequential(Through(MIXED[kind]), nn.Dropout(0.3)))


@attack("A31")
@pytest.mark.parametrize("thing", [None, nn.Linear(4, 2), {"weight": SEEN}])
def test_a_fit_that_returns_anything_but_its_model_gives_none(thing):
    with pytest.raises(UsageError, match="make_private's module"):
        tuned(try_first=True, returned=[thing])
    assert tuned(returned=[thing]) is None


@attack("A31")
@pytest.mark.parametrize(
    "kind",
    [
        "batch norm",
        "batch norm, frozen",
        "instance norm",
    ],
)
def test_layers_that_are_known_are_refused_before_a_forward_pass(kind):
    """So it never depends on the records whether training fails."""
    with pytest.raises(InputError, match=r"^module"):
        train(Engine(), KINDS[kind], loop=lambda *_: pytest.fail("it was made private"))


WRITES = {
    "in place": lambda bias: bias.add_(SEEN.mean()),
    "other memory": lambda bias: setattr(bias, "data", torch.full_like(bias, float(SEEN.mean()))),
}


@attack("A31")
@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_loop_that_writes_to_parameters_gives_no_model(way, frozen):
    def layer():
        return nn.Linear(4, 4).requires_grad_(False) if frozen else nn.Identity()

    def writes(module, optimizer, loader):
        plain(module, optimizer, loader)
        with torch.no_grad():
            WRITES[way](module._module[0 if frozen else -1].bias)

    assert tuned(layer, writes) is None


LOOPS = {
    "skips": functools.partial(plain, skip=lambda loss: not bool(loss.isfinite())),
    "stops": functools.partial(plain, stop=lambda loss: not bool(loss.isfinite())),
}
# A record whose loss is not finite.
MARKED = torch.cat([torch.full((1, 4), math.nan), X[1:]]), Y


@attack("A33")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_skips_or_stops_for_its_loss_gives_no_model(loop):
    """The weights would tell how many steps were taken."""
    assert tuned(loop=LOOPS[loop]) is not None
    assert tuned(loop=LOOPS[loop], records=MARKED) is None
    assert tuned(records=MARKED) is not None, "its gradient counts as zero by itself"


@attack("A33")
def test_an_engine_refuses_the_next_sample_after_a_skipped_step():
    def skips_each_epoch(module, optimizer, loader):
        for _ in range(2):
            LOOPS["skips"](module, optimizer, loader)

    with pytest.raises(UsageError, match="before a step on the last one") as refused:
        train(Engine(MARKED), loop=skips_each_epoch)
    assert not any(character.isdigit() for character in str(refused.value)), (
        "nothing tells how many steps there were"
    )


@attack("A33")
def test_an_engines_statement_names_what_a_loop_must_not_do():
    engine = Engine()
    train(engine)
    text = str(engine.curator.statement())
    for forbidden in ("stop", "fail", "skip a step", "change a rate"):
        assert forbidden in text
