"""A31 and others: what a hostile reader made leave a private training, or moved its sum by,
although every test was green.
"""

import random
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Budget, Curator, Space
from dpbo.accounting import Planned
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, plan_tuning, tune
from dpbo.dpsgd.outputs import copied_output
from dpbo.dpsgd.trained import is_rebuilt
from dpbo.errors import InputError
from dpbo.privacy import Adjacency
from tests.attacks.marks import attack
from tests.setups import charges, of

CONFIG = DPSGDConfig(noise_multiplier=1e4, epochs=3, batches=1, batch_size=60)
X = torch.rand(61, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(61) % 2
ADDED = Adjacency.ADD_OR_REMOVE_ONE

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Opened:
    """A PrivateEngine on so many records, with a session's `make_private`."""

    def __init__(self, records=(X, Y), config=CONFIG, relation=ADDED):
        terms = of(unit="record", budget=Budget(1e6, 1e-6), role="training", allow_repeated=True)
        self.curator = Curator(
            records, adjacency=relation, accounting=Planned([config.event(relation)]), **terms
        )
        self.records = records
        self.engine = PrivateEngine(self.curator, config)

    def make_private(self, module, optimizer, **settings):
        loader = DataLoader(TensorDataset(*self.records))
        return self.engine.make_private(
            module=module, optimizer=optimizer, data_loader=loader, **settings
        )

    def released(self):
        return self.engine.released()

    def charges(self):
        return len(charges(self.curator.ledger))


def step(module, optimizer, rows, labels):
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(rows), labels).backward()
    optimizer.step()


def prepared(run, module, kind=torch.optim.SGD, **settings):
    optimizer = kind(
        [parameter for parameter in module.parameters() if parameter.requires_grad], lr=0.1
    )
    return run.make_private(module, optimizer, **{"max_grad_norm": 1.0, **settings})


def numbers():
    """The next ones of the global generators."""
    return float(torch.rand(())), float(np.random.rand()), random.random()


def seed_all():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def a_session():
    return Session(TensorDataset(X, Y), CONFIG)


RUNS = of(engine=Opened, session=a_session)


@attack("A27", "A17")
@pytest.mark.parametrize("run", RUNS)
def test_a_seed_before_or_between_samples_does_not_make_masks_known(run):
    seed_all()
    known = [numbers()]
    drawn = list[Any]()
    for _ in range(2):
        seed_all()
        module, optimizer, loader = prepared(RUNS[run](), nn.Linear(4, 2))
        for rows, labels in loader:
            drawn.append(numbers())
            step(module, optimizer, rows, labels)
            seed_all()
    flat = [number for each in known + drawn for number in each]
    assert len(drawn) == (6 if run == "session" else 2)
    assert len(set(flat)) == len(flat)


@attack("A8", "A17")
@pytest.mark.parametrize("stops", [False, True])
def test_the_callers_generators_are_the_same_after_a_training_of_any_size(stops):
    after = list[Any]()
    for count in (60, 61):
        seed_all()
        module, optimizer, loader = prepared(
            Opened((X[:count], Y[:count])), nn.Sequential(nn.Dropout(), nn.Linear(4, 2))
        )
        for sample in loader:
            numbers()
            step(module, optimizer, *sample)
            if stops:
                break
        after.append(numbers())
    assert after[0] == after[1]


class Features(nn.Module):
    """Random features, drawn when it is made."""

    omega: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("omega", torch.randn(4, 8))
        self.drop = nn.Dropout()
        self.out = nn.Linear(8, 2)

    def forward(self, rows):
        return self.out(self.drop(torch.cos(rows @ self.omega)))


@attack("A8", "A31")
def test_a_buffer_drawn_in_a_later_run_does_not_tell_the_number_of_records(tmp_path):
    """A mask of dropout for each record moved the generator that the next run's model is drawn
    from.
    """
    config = DPSGDConfig(epochs=1, batches=1, batch_size=60)
    plan = plan_tuning(
        Budget(0.5, 1e-5), config, runs=2, validation=40, adjacency=ADDED, score_range=(0.0, 1.0)
    )["search"]

    def fit(parameters, session):
        module, optimizer, loader = prepared(session, Features())
        for rows, labels in loader:
            step(module, optimizer, rows, labels)
        # A last look, as for a log.
        module(rows)
        return module

    def drawn(count, folder):
        seed_all()
        terms = of(
            space=Space(lr=[0.1, 0.2]), plan=plan, initial=2, try_first=False, allow_repeated=True
        )
        records = of(training=TensorDataset(X[:count], Y[:count]), validation=torch.zeros(40, 1))
        tune(
            fit, lambda model, records: torch.zeros(len(records)), folder=folder, **records, **terms
        )
        return sorted(
            torch.load(file, weights_only=False).omega.tolist() for file in folder.glob("*.pt")
        )

    assert drawn(60, tmp_path / "fewer") == drawn(61, tmp_path / "more")


class Adapter(nn.Module):
    """A trainable float32 layer below a frozen one."""

    def __init__(self, frozen):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.outer = nn.Linear(8, 2).requires_grad_(False)
        self.frozen = frozen

    def forward(self, rows):
        return self.frozen(self, self.inner(rows)).float()


def in_bfloat16(layer, rows):
    return layer.outer(rows.bfloat16())


def under_autocast(layer, rows):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layer.outer(rows)


def for_a_moment(layer, rows):
    return layer.outer(rows.half().float())


HALVES = {"a frozen layer": in_bfloat16, "autocast": under_autocast, "between layers": for_a_moment}


@attack("A4", "A27")
@pytest.mark.parametrize("kind", HALVES)
def test_a_mean_loss_is_refused_in_half_precision(kind):
    """One record more rounded (p - y) / n of all records another way: the sum moved by 51 clips."""

    def trained(reduction):
        run, network = Opened(), Adapter(HALVES[kind])
        if kind == "a frozen layer":
            network.outer.bfloat16()
        module, optimizer, loader = prepared(run, network, loss_reduction=reduction)
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(rows), labels, reduction=reduction).backward()
            optimizer.step()
        return run

    with pytest.raises(InputError, match="loss_reduction='mean'"):
        trained("mean")
    assert trained("sum").charges() == 1


class Centred(nn.Module):
    """Centres its records at the sample's mean, and gives what `gives` makes of its outputs."""

    def __init__(self, classes, gives):
        super().__init__()
        self.out = nn.Linear(4, classes)
        self.gives = gives

    def forward(self, rows):
        return self.gives(rows, self.encode(rows))

    def encode(self, rows):
        return self.out(rows - rows.mean(0))


def fails_on_what_is_made_up(rows, outputs):
    if len(rows) in (11, 13):
        raise ValueError
    return outputs


MIXING: dict[str, Any] = {
    "eleven classes": lambda: Centred(11, lambda _, outputs: outputs),
    "a loss": lambda: Centred(2, lambda _, outputs: outputs.square().mean()),
    "a table of all pairs": lambda: Centred(2, lambda _, outputs: outputs @ outputs.T),
    "fails": lambda: Centred(2, fails_on_what_is_made_up),
}


@attack("A27")
@pytest.mark.parametrize("kind", MIXING)
def test_a_module_that_mixes_records_or_whose_trial_shows_nothing_is_refused(kind):
    """With eleven classes the sum moved by 1,410 times what one record may move it."""
    run = Opened()
    module, _, loader = prepared(run, MIXING[kind]())
    with pytest.raises(InputError, match=r"^module"):
        module(next(iter(loader))[0])
    assert run.charges() == 0


@attack("A27")
def test_a_loop_that_calls_a_method_of_the_module_takes_no_step():
    run = Opened()
    module, optimizer, loader = prepared(run, Centred(2, lambda rows, _: rows))
    rows, labels = next(iter(loader))
    nn.functional.cross_entropy(module._module.encode(rows), labels).backward()
    with pytest.raises(InputError, match="called before each step"):
        optimizer.step()
    assert run.charges() == 0


class Lengths(nn.Module):
    """Refuses records without a length, as packed sequences do."""

    def __init__(self, mixes):
        super().__init__()
        self.out = nn.Linear(4, 2)
        self.mixes = mixes

    def forward(self, rows, lengths):
        if bool((lengths < 1).any()):
            raise ValueError("lengths must be above zero")
        return {
            "logits": self.out(rows - rows.mean(0) * self.mixes),
            "weights": None,
            "steps": [rows.T.expand(3, -1, -1)],
        }


@attack("A27")
@pytest.mark.parametrize("mixes", [False, True])
def test_a_module_that_fails_on_made_up_records_is_tried_on_an_example(mixes):
    def step_with(example):
        run = Opened()
        module, optimizer, loader = prepared(run, Lengths(mixes), example=example)
        for rows, labels in loader:
            nn.functional.cross_entropy(module(rows, labels + 1)["logits"], labels).backward()
            optimizer.step()
        return run.charges()

    with pytest.raises(InputError, match="example="):
        step_with(None)
    for example in (
        (X[:3], torch.tensor([2, 1, 1])),
        {"rows": X[:3], "lengths": torch.tensor([2, 1, 1])},
    ):
        if mixes:
            with pytest.raises(InputError, match="not depend on other records"):
                step_with(example)
        else:
            assert step_with(example) == 1


def trained_in(session):
    """The trained module and its optimizer, after a look at the records as for a log."""
    module, optimizer, loader = prepared(session, nn.Sequential(nn.Linear(4, 2)))
    for rows, labels in loader:
        step(module, optimizer, rows, labels)
    nn.functional.cross_entropy(module(X), Y).backward()
    return module, optimizer


@pytest.fixture(scope="module")
def trained():
    session = a_session()
    return session, *trained_in(session)


@attack("A31")
def test_what_is_listed_leaves(trained):
    session, module, _ = trained
    released = session.released()
    fitted = LogisticRegression().fit(X.numpy(), Y.numpy())
    tree = DecisionTreeClassifier(max_depth=2).fit(X.numpy(), Y.numpy())
    weight = module._module[0].weight
    memory = torch.arange(8.0)
    unfitted = list[str]()
    left = copied_output(
        {
            "model": released,
            "state": module.state_dict(),
            "fitted": [fitted],
            "unfitted": make_pipeline(StandardScaler(), tree),
            "views": (memory[2:4], memory.numpy()[2:4], np.float32(0.5), nn.Parameter(memory[:1])),
            "weight": weight,
            "graph": 2 * weight,
            "plain": {1, "a", None, (2.5, b"b")},
            "dtype": torch.float32,
        },
        unfitted,
    )
    assert torch.equal(left["model"](X), released(X))
    assert left["model"] is not released
    assert torch.equal(left["state"]["_module.0.weight"], released[0].weight)
    assert (left["fitted"][0].predict(X.numpy()) == fitted.predict(X.numpy())).all()
    assert left["unfitted"][-1].max_depth == 2
    assert not hasattr(left["unfitted"][-1], "tree_")
    assert unfitted == ["Pipeline"]
    tensor, array, number, parameter = left["views"]
    assert tensor.tolist() == array.tolist() == [2.0, 3.0]
    assert tensor.untyped_storage().nbytes() == 8, "without the rest of its memory"
    assert array.base is None
    assert number == 0.5
    assert parameter.untyped_storage().nbytes() == 4
    assert not vars(left["weight"]), "without each record's gradient"
    assert left["weight"].grad is None
    assert left["graph"].grad_fn is None
    assert left["plain"] == {1, "a", None, (2.5, b"b")}
    assert left["dtype"] == torch.float32


@attack("A31")
def test_a_released_module_that_is_trained_on_does_not_leave(trained):
    released = trained[0].released().train()
    module, _, loader = prepared(a_session(), released)
    module(next(iter(loader))[0])
    assert not is_rebuilt(released)
    with pytest.raises(InputError, match="what may leave"):
        copied_output(released, [])
    # A layer that a session trained, in a module that was rebuilt.
    again = trained[0].released()
    again.append(module._module[0])
    with pytest.raises(InputError, match="what may leave"):
        copied_output(again, [])


def closes_over(rows):
    return lambda parameters, session: pytest.fail(str(rows.mean(0)))


def defaults_to(rows):
    return lambda parameters, session, rows=rows: pytest.fail(str(rows.mean(0)))


def closes_over_loader(loader):
    return lambda parameters, session: pytest.fail(str(next(iter(loader))))


FITS = {
    "closure": closes_over(X[:3]),
    "default": defaults_to({"rows": [X]}),
    "a loader": closes_over_loader(DataLoader(TensorDataset(X, Y))),
    "validation": closes_over(Y),
}


@attack("A31")
@pytest.mark.parametrize("kind", FITS)
def test_a_fit_whose_code_leads_to_the_records_is_refused(kind):
    """It registered the records' exact mean as a buffer, which was released."""
    config = DPSGDConfig(epochs=1, batches=1, batch_size=60)
    plan = plan_tuning(Budget(0.5, 1e-5), config, runs=2, validation=61)["once"]
    given = of(space=Space(lr=[0.1, 0.2]), plan=plan, parameters={"lr": 0.1}, allow_repeated=True)
    records = of(training=TensorDataset(X[:60], X[:60]), validation=(torch.zeros(61, 1), Y))
    with pytest.raises(InputError, match=r"names none of the (training|validation) records"):
        tune(FITS[kind], lambda model, _: torch.zeros(61), **records, **given)
