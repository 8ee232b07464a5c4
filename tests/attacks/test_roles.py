"""A record in two roles, or under two budgets, that paid once: each attack won once."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from dpbo import Adjacency, Budget, Curator, Space
from dpbo.accounting import Planned
from dpbo.curator.record_fingerprints import RepeatedRecordsWarning, holds_protected, require_other_rows, rows_of
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, plan_tuning, tune
from dpbo.errors import InputError, PlanChanged
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from tests.attacks.test_holes_search import TERMS, search, table

pytestmark = [pytest.mark.attack("A35"), pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")]
CONFIG = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=2, batch_size=30)
SPACE = Space(lr=scipy.stats.loguniform(1e-2, 1e1))
GIVEN = {"lr": 0.5}


class Lines(Dataset[Any]):
    """Samples that are made when they are asked for, as mappings; with `shaken`, others each time."""

    def __init__(self, X, Y, shaken=False):
        self.X, self.Y, self.shaken = X, Y, shaken

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
    for batch in loader:
        features, labels = batch.values() if isinstance(batch, dict) else batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
    return net


def right(net, records):
    with torch.no_grad():
        return net(records[0]).argmax(1) == records[1]


@pytest.fixture(scope="module")
def once():
    terms: dict[str, Any] = {"runs": 2, "validation": 100, "adjacency": Adjacency.REPLACE_ONE}
    return plan_tuning(Budget(4.0, 1e-5), CONFIG, **terms)["once"]


def tuned(plan, training, validation, **more):
    given: dict[str, Any] = {"space": SPACE, "parameters": GIVEN, "try_first": False, **more}
    return tune(fit, right, training=training, validation=validation, plan=plan, **given)


def test_a_second_budget_over_the_same_training_records_is_refused(once):
    """Five calls stated epsilon 1.000 each, and cost 2.44 together."""
    X, Y = people(1)
    tuned(once, TensorDataset(X, Y), people(2, 100))
    again = [
        TensorDataset(X, Y),
        TensorDataset(X.flip(0), Y.flip(0)),
        Subset(TensorDataset(torch.cat([people(3)[0], X]), torch.cat([people(3)[1], Y])), list(range(150, 350))),
        Lines(X, Y),
    ]
    for number, training in enumerate(again):
        with pytest.raises(InputError, match=r"^ledger=.*over|^ledger=.*allow_repeated=True"):
            tuned(once, training, people(10 + number, 100))
    assert "repeated-records" in tuned(once, again[0], people(20, 100), allow_repeated=True).statement.assumptions
    with pytest.warns(RepeatedRecordsWarning, match="larger than either statement says"):
        Curator((X, Y), **TERMS).release(ClippedMean(lambda _, r: r[1], score_range=(0, 1)), GaussianMechanism(20.0))
    assert holds_protected((X[:1].numpy(), Y[:1].numpy()))


SAME_PEOPLE = [
    pytest.param(lambda X, Y: (X, 1 - Y), id="another label"),
    pytest.param(lambda X, Y: (Y, X), id="the label first"),
    pytest.param(lambda X, Y: X, id="without a label"),
    pytest.param(lambda X, Y: (X[:, :3], Y), id="without a column"),
    pytest.param(lambda X, Y: (X[:, [2, 0, 3, 1]], Y), id="columns in another order"),
    pytest.param(lambda X, Y: (torch.cat([X * 2.0, X[:, :1]], dim=1), Y), id="one column as it was"),
    pytest.param(lambda X, Y: (X.numpy(), Y.numpy()), id="arrays"),
]
OTHER_PEOPLE = [
    pytest.param(lambda X, Y: (people(41)[0], Y), id="the same labels"),
    pytest.param(lambda X, Y: (X.sort(dim=0).values, Y), id="sorted columns"),
    pytest.param(lambda X, Y: people(42), id="everything new"),
]


def _first(_, records):
    part = records[0] if isinstance(records, tuple) else records
    return part.reshape(len(part), -1)[:, 0]


def _released(records):
    Curator(records, **TERMS).release(ClippedMean(_first, score_range=(0, 1)), GaussianMechanism(20.0))


@pytest.mark.parametrize("changed", SAME_PEOPLE)
def test_a_second_budget_over_the_same_people_is_noticed_by_a_column(changed):
    """Rows were compared as a whole, so that with another label they were other people's."""
    X, Y = people(40)
    _released((X, Y))
    with pytest.warns(RepeatedRecordsWarning, match="larger than either statement says"):
        _released(changed(X, Y))


@pytest.mark.parametrize("changed", OTHER_PEOPLE)
def test_other_people_with_like_columns_are_not_taken_for_the_same(changed):
    X, Y = people(40)
    numbered = torch.cat([X, torch.arange(200.0)[:, None]], dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedRecordsWarning)
        _released((numbered, Y))
    X, Y = changed(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedRecordsWarning)
        _released((torch.cat([X, torch.arange(200.0)[:, None]], dim=1), Y))


def test_records_of_both_roles_are_refused_before_there_is_a_ledger(once, tmp_path):
    """They paid for both roles, 1.465 where 1.000 was stated."""
    X, Y = people(30)
    for held in ((X[:100], Y[:100]), (torch.cat([X[:10], people(31, 90)[0]]), torch.cat([Y[:10], people(31, 90)[1]]))):
        with pytest.raises(InputError, match=r"^training=.*of other records than the validation records.*Tell only those"):
            tuned(once, TensorDataset(X, Y), held, ledger=str(tmp_path / "l.db"), dataset="d")
    assert not (tmp_path / "l.db").exists(), "who sees the ledger must not see that records were equal"
    one = torch.cat([X[:1], people(32, 99)[0]]), torch.cat([Y[:1], people(32, 99)[1]])
    with pytest.warns(RepeatedRecordsWarning, match="training and the validation records have equal rows"):
        tuned(once, TensorDataset(X, Y), one)


@pytest.mark.parametrize("changed", SAME_PEOPLE)
def test_the_same_people_in_two_roles_are_refused_by_a_column(changed):
    """Rows were compared as a whole, so that with another label they were other people's."""
    X, Y = people(43)
    own = rows_of((X, Y))
    with pytest.raises(InputError, match=r"^training=.*of other records than the validation records"):
        require_other_rows("training", changed(X, Y), own, "validation", "")


@pytest.mark.parametrize("changed", OTHER_PEOPLE)
def test_other_people_with_like_columns_may_have_the_other_role(changed):
    X, Y = people(44)
    others, labels = changed(X, Y)
    X, others = (torch.cat([part, torch.arange(200.0)[:, None]], dim=1) for part in (X, others))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedRecordsWarning)
        require_other_rows("training", (others, labels), rows_of((X, Y)), "validation", "")


def test_a_tuning_is_resumed_with_its_own_training_records_alone(once, tmp_path):
    (X, Y), held = people(40), people(41, 100)
    where = {"ledger": str(tmp_path / "l.db"), "dataset": "d", "folder": tmp_path / "models"}
    first = tuned(once, TensorDataset(X, Y), held, **where)
    with pytest.raises(PlanChanged, match="began with other training records"):
        tuned(once, TensorDataset(*people(42)), held, **where)
    again = tuned(once, Lines(X.flip(0), Y.flip(0)), held, **where)
    assert torch.equal(again.model.weight, first.model.weight)


def test_samples_that_change_at_random_are_said_not_to_be_compared(once, caplog):
    X, Y = people(50)
    assert rows_of(Lines(X, Y, shaken=True)) is None
    assert rows_of(Lines(X, Y)) is not None
    for seed in (51, 52):
        tuned(once, Lines(X, Y, shaken=True), people(seed, 100))
    assert caplog.text.count("training records are not compared with others") == 2


def test_a_session_and_an_engine_know_the_records_of_other_budgets(tmp_path):
    X, Y = people(60)
    query = ClippedMean(lambda _, r: r[1], score_range=(0, 1))
    Curator((X, Y), **TERMS).release(query, GaussianMechanism(20.0))
    with pytest.warns(RepeatedRecordsWarning, match="charged to no ledger"):
        fit(GIVEN, Session(TensorDataset(X, Y), CONFIG))

    def engine(X, Y, **where):
        net = nn.Linear(4, 2)
        terms = {**TERMS, "budget": Budget(90.0, 1e-5), "accounting": Planned([CONFIG.event(Adjacency.REPLACE_ONE)]), **where}
        made = PrivateEngine(Curator((X, Y), **terms), CONFIG)
        loader = torch.utils.data.DataLoader(TensorDataset(X, Y))
        return made.make_private(module=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), data_loader=loader, max_grad_norm=1.0)

    with pytest.warns(RepeatedRecordsWarning, match="under another Curator"):
        engine(X, Y)
    fresh = people(61)
    where = {"ledger": str(tmp_path / "l.db"), "dataset": "d"}
    engine(*fresh, **where)
    assert holds_protected(tuple(part[:1].numpy() for part in fresh))
    with pytest.raises(PlanChanged, match="began with other"):
        engine(*people(62), **where)


def test_protected_rows_among_public_training_rows_are_refused():
    """The model that was published reproduced 150 of 150 protected rows."""
    X, y = table(70)
    chosen = np.arange(0, 400, 3)
    for held in ((X[chosen], y[chosen]), (np.concatenate([X[:9], table(71, 91)[0]]), np.concatenate([y[:9], table(71, 91)[1]]))):
        with pytest.raises(InputError, match=r"^X_train=.*of other records than the validation records.*may reproduce them"):
            search().fit(X, y, *held)
    columns = {"first": X[:, 0], "second": X[:, 1]}
    public, text = pd.DataFrame(columns), pd.DataFrame(columns).iloc[chosen, ::-1].astype(str)
    with pytest.raises(InputError, match=r"^X_train="):
        search().fit(public, y, text, y[chosen])
    owner = Curator((X[chosen], y[chosen]), **TERMS)
    with pytest.raises(InputError, match=r"^X_train="):
        search(budget=0.5).fit(X, y, owner)
    assert owner.statement().entries == 1
    with pytest.warns(RepeatedRecordsWarning, match="X_train and the validation records have equal rows"):
        search().fit(X, y, np.concatenate([X[:1], table(72, 99)[0]]), np.concatenate([y[:1], table(72, 99)[1]]))
    doubled = np.concatenate([table(73, 200)[0]] * 2), np.concatenate([table(73, 200)[1]] * 2)
    search(test_size=0.5).fit(*doubled)  # rows of one table have places of their own
