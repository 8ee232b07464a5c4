"""A record in two roles, or under two budgets, that paid once: each attack won once."""

import contextlib
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from dpbo import Adjacency, Budget, Space
from dpbo.accounting import Planned
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, plan_tuning, tune
from dpbo.errors import InputError, ReservationChanged, UsageError
from dpbo.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.records.containers import leaves
from dpbo.records.digests import RowDigests
from dpbo.records.protected_records import (
    RepeatedRecordsWarning,
    holds_protected,
)
from dpbo.records.sources import Source
from tests.attacks import setups
from tests.attacks.marks import attack
from tests.attacks.setups import NOISE, owner, right
from tests.attacks.test_holes_search import search, table

pytestmark = [
    attack("A35"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]
CONFIG = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=2, batch_size=30)
SPACE = Space(lr=scipy.stats.loguniform(1e-2, 1e1))
GIVEN = {"lr": 0.5}


class Lines(Dataset[object]):
    """Samples that are made when they are asked for, as mappings; with `shaken`, others each
    time.
    """

    def __init__(self, X, Y, shaken=False):
        self.X = X
        self.Y = Y
        self.shaken = shaken

    def __len__(self):
        return len(self.X)

    def __getitem__(self, place):
        return {"x": self.X[place] + self.shaken * torch.rand(1), "y": int(self.Y[place])}


def people(seed, rows=200):
    X = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return X, (X[:, 0] > 0).long()


def fit(parameters, session):
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=parameters["lr"])
    net, optimizer, loader = session.make_private(net, optimizer, max_grad_norm=1.0)
    batches = (batch.values() if isinstance(batch, dict) else batch for batch in loader)
    return setups.fit(net, optimizer, batches)


@pytest.fixture(scope="module")
def once():
    plans = plan_tuning(
        Budget(4.0, 1e-5), CONFIG, runs=2, validation=100, adjacency=Adjacency.REPLACE_ONE
    )
    return plans["once"]


def tuned(plan, training, validation, **more):
    given = {"space": SPACE, "parameters": GIVEN, "try_first": False, **more}
    return tune(fit, right, training=training, validation=validation, plan=plan, **given)


def joined(first, *others):
    """Tables of several groups of people in one."""
    return tuple(torch.cat(parts) for parts in zip(first, *others, strict=True))


def warned():
    return pytest.warns(RepeatedRecordsWarning, match="larger than either statement says")


@contextlib.contextmanager
def unwarned():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedRecordsWarning)
        yield


def test_a_release_that_was_interrupted_after_its_charge_counts_as_a_budget(monkeypatch):
    """Another curator over the same records was not warned of."""
    records = people(11)

    def made():
        return owner(records, budget=Budget.gdp(1.0))

    curator = made()
    stored = Ledger.store

    def interrupted(ledger, *given):
        stored(ledger, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        curator.release(LABELS_MEAN, GaussianMechanism(20.0))
    monkeypatch.undo()
    with warned():
        made().release(LABELS_MEAN, GaussianMechanism(20.0))


LABELS_MEAN = ClippedMean(lambda _, records: records[1], score_range=(0, 1))


def labels_of_samples(_, samples):
    return [int(leaves(samples[place])[1]) for place in range(len(samples))]


LABELS_MEAN_OF_SAMPLES = ClippedMean(labels_of_samples, score_range=(0, 1))


def test_a_second_budget_over_the_same_training_records_is_refused(once):
    """Five calls stated epsilon 1.000 each, and cost 2.44 together."""
    X, Y = people(1)
    tuned(once, TensorDataset(X, Y), people(2, 100))
    again = [
        TensorDataset(X, Y),
        TensorDataset(X.flip(0), Y.flip(0)),
        Subset(TensorDataset(*joined(people(3), (X, Y))), list(range(150, 350))),
        Lines(X, Y),
    ]
    for number, training in enumerate(again):
        with pytest.raises(UsageError, match=r"^this process has already.*allow_repeated=True"):
            tuned(once, training, people(10 + number, 100))
    allowed = tuned(once, again[0], people(20, 100), allow_repeated=True)
    assert "repeated-records" in allowed.statement.assumptions
    with warned():
        owner((X, Y)).release(LABELS_MEAN, NOISE)
    assert holds_protected((X[:1].numpy(), Y[:1].numpy()))


SAME_PEOPLE = [
    pytest.param(lambda X, Y: (X, 1 - Y), id="another label"),
    pytest.param(lambda X, Y: X, id="without a label"),
    pytest.param(lambda X, Y: (X.flip(0)[20:], Y[20:]), id="some of them in another order"),
]
OTHER_PEOPLE = [
    pytest.param(lambda X, Y: (people(41)[0], Y), id="the same labels"),
    pytest.param(lambda X, Y: people(42), id="everything new"),
]


def _first(_, records):
    part = records[0] if isinstance(records, tuple) else records
    return part.reshape(len(part), -1)[:, 0]


def _released(records):
    owner(records).release(ClippedMean(_first, score_range=(0, 1)), NOISE)


def with_mask(X, Y):
    """With parts that tables of other people have, too."""
    return X, torch.ones(len(X), 3), torch.arange(float(len(X))), Y


@pytest.mark.parametrize("changed", SAME_PEOPLE)
def test_a_second_budget_over_the_same_people_is_noticed_under_any_label(changed):
    """Rows were compared as a whole, so that with another label they were other people's."""
    X, Y = people(40)
    _released((X, Y))
    with warned():
        _released(changed(X, Y))


@pytest.mark.parametrize("changed", OTHER_PEOPLE)
def test_other_people_with_like_parts_are_not_taken_for_the_same(changed):
    X, Y = people(40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedRecordsWarning)
        _released(with_mask(X, Y))
    X, Y = changed(X, Y)
    with unwarned():
        _released(with_mask(X, Y))


def test_records_of_both_roles_are_refused_before_there_is_a_ledger(once, on_disk, tmp_path):
    """They paid for both roles, 1.465 where 1.000 was stated."""
    X, Y = people(30)
    for held in ((X[:100], Y[:100]), joined((X[:10], Y[:10]), people(31, 90))):
        with pytest.raises(
            InputError,
            match=r"^training=.*of other records than the validation records.*Tell only those",
        ):
            tuned(once, TensorDataset(X, Y), held, **on_disk)
    assert not (tmp_path / "l.db").exists(), (
        "who sees the ledger must not see that records were equal"
    )
    one = joined((X[:1], Y[:1]), people(32, 99))
    with pytest.warns(
        RepeatedRecordsWarning, match="training and the validation records have equal rows"
    ):
        tuned(once, TensorDataset(X, Y), one)


def test_a_tuning_is_resumed_with_its_own_training_records_alone(once, on_disk, tmp_path):
    (X, Y), held = people(40), people(41, 100)
    where = {**on_disk, "folder": tmp_path / "models"}
    first = tuned(once, TensorDataset(X, Y), held, **where)
    with pytest.raises(ReservationChanged, match="began with other training records"):
        tuned(once, TensorDataset(*people(42)), held, **where)
    again = tuned(once, Lines(X.flip(0), Y.flip(0)), held, **where)
    assert torch.equal(again.model.weight, first.model.weight)


def loaded(X, Y):
    return Source(lambda: TensorDataset(X, Y))


@pytest.mark.parametrize(("kind", "seed"), [(TensorDataset, 53), (Lines, 55), (loaded, 58)])
def test_a_dataset_asked_by_two_curators_is_one_table(kind, seed):
    """Only tables and lists were compared: a Dataset's budget was spent twice, without a word."""

    def ask(X, Y):
        owner(kind(X, Y)).release(LABELS_MEAN_OF_SAMPLES, NOISE)

    X, Y = people(seed)
    ask(X, Y)
    with pytest.warns(RepeatedRecordsWarning, match="under another Curator"):
        ask(X.flip(0), Y.flip(0))
    with unwarned():
        ask(*people(seed + 1))


class Warned(Lines):
    def __getitem__(self, place):
        warnings.warn(f"{self.X[place]}", stacklevel=1)
        return super().__getitem__(place)


def test_what_a_dataset_warns_of_its_samples_is_not_shown():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        owner(Warned(*people(70))).release(LABELS_MEAN_OF_SAMPLES, NOISE)
    assert shown == []


def test_records_that_cannot_be_compared_with_those_of_other_budgets_are_said_once(caplog):
    X, Y = people(57)
    assert RowDigests.of(Lines(X, Y)) is not None
    curator = owner(Lines(X, Y, shaken=True))
    for _ in range(2):
        curator.release(LABELS_MEAN_OF_SAMPLES, NOISE)
    assert caplog.text.count("records are not compared with others") == 1


def test_a_session_knows_the_records_of_other_budgets():
    held = people(60)
    owner(held).release(LABELS_MEAN, NOISE)
    with pytest.warns(RepeatedRecordsWarning, match="charged to no ledger"):
        fit(GIVEN, Session(TensorDataset(*held), CONFIG))


def engine(X, Y, curator=None, name="dp-sgd", **where):
    net = nn.Linear(4, 2)
    accounting = Planned([CONFIG.event(Adjacency.REPLACE_ONE)])
    made = PrivateEngine(
        curator or owner((X, Y), budget=Budget(90.0, 1e-5), accounting=accounting, **where),
        CONFIG,
        name=name,
    )
    loader = torch.utils.data.DataLoader(TensorDataset(X, Y))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return made.make_private(module=net, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0)


def step(net, optimizer, loader):
    X, Y = next(iter(loader))
    nn.functional.cross_entropy(net(X), Y.long()).backward()
    optimizer.step()


def test_an_engine_knows_the_records_of_other_budgets():
    held = people(63)
    owner(held).release(LABELS_MEAN, NOISE)
    with pytest.warns(RepeatedRecordsWarning, match="under another Curator"):
        engine(*held)


def test_an_engines_records_are_those_of_its_ledger(on_disk):
    prepared = engine(*people(61), **on_disk)
    one = tuple(part[:1].numpy() for part in people(61))
    assert not holds_protected(one), "of a reservation alone nothing was released"
    step(*prepared)
    assert holds_protected(one)
    with pytest.raises(ReservationChanged, match="began with other"):
        engine(*people(62), **on_disk)


def test_two_engines_of_one_curator_are_one_budget(recwarn):
    """The second was told of 'epsilon 8 in a ledger in memory': its own."""
    X, Y = people(64)
    accounting = Planned([CONFIG.event(Adjacency.REPLACE_ONE)] * 2)
    curator = owner((X, Y), budget=Budget(90.0, 1e-5), accounting=accounting)
    for name in ("first", "second"):
        step(*engine(X, Y, curator, name))
    assert not [each for each in recwarn if each.category is RepeatedRecordsWarning]


def test_protected_rows_among_public_training_rows_are_refused():
    """The model that was published reproduced 150 of 150 protected rows."""

    def both(one, other):
        return [np.concatenate(parts) for parts in zip(one, other, strict=True)]

    X, y = table(70)
    chosen = np.arange(0, 400, 3)
    for held in ((X[chosen], y[chosen]), both((X[:9], y[:9]), table(71, 91))):
        with pytest.raises(
            InputError,
            match=r"^X_train=.*of other records than the validation records.*may reproduce them",
        ):
            search().fit(X, y, *held)
    columns = {"first": X[:, 0], "second": X[:, 1]}
    public = pd.DataFrame(columns)
    text = pd.DataFrame(columns).iloc[chosen, ::-1].astype(str)
    with pytest.raises(InputError, match=r"^X_train="):
        search().fit(public, y, text, y[chosen])
    curator = owner((X[chosen], y[chosen]))
    with pytest.raises(InputError, match=r"^X_train="):
        search(budget=0.5).fit(X, y, curator)
    assert curator.statement().entries == 1
    with pytest.warns(
        RepeatedRecordsWarning, match="X_train and the validation records have equal rows"
    ):
        search().fit(X, y, *both((X[:1], y[:1]), table(72, 99)))
    # Equal rows of one table lie at different places.
    search(test_size=0.5).fit(*both(table(73, 200), table(73, 200)))
