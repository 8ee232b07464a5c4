"""A31 and others: what a hostile reader made leave a private training, or moved its sum by, although every test was green."""

import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Budget, Curator, Space
from dpbo.accounting import Planned
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session, plan_tuning, tune
from dpbo.privacy import Adjacency

CONFIG = DPSGDConfig(noise_multiplier=1e4, epochs=3, batches=1, batch_size=60)
QUIET = DPSGDConfig(noise_multiplier=0.01, epochs=1, batches=1, batch_size=60)
X = torch.rand(61, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(61) % 2
ADDED = Adjacency.ADD_OR_REMOVE_ONE

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Opened:
    """A PrivateEngine on so many records, with a session's `make_private`."""

    def __init__(self, records: Any = (X, Y), config: DPSGDConfig = CONFIG, relation: Adjacency = ADDED) -> None:
        terms: dict[str, Any] = {"unit": "record", "budget": Budget(1e6, 1e-6), "role": "training", "allow_repeated": True}
        self.curator = Curator(records, adjacency=relation, accounting=Planned([config.event(relation)]), **terms)
        self.records = records
        self.engine = PrivateEngine(self.curator, config)

    def make_private(self, module: nn.Module, optimizer: Any, **settings: Any) -> Any:
        loader = DataLoader(TensorDataset(*self.records))
        return self.engine.make_private(module=module, optimizer=optimizer, data_loader=loader, **settings)

    def released(self) -> nn.Module:
        return self.engine.released()

    def charges(self) -> int:
        return [record.kind for record in self.curator.ledger.records()].count("charge")


def step(module: Any, optimizer: Any, rows: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(rows), labels).backward()
    optimizer.step()


def prepared(run: Any, module: nn.Module, kind: Any = torch.optim.SGD, **settings: Any) -> Any:
    optimizer = kind([parameter for parameter in module.parameters() if parameter.requires_grad], lr=0.1)
    return run.make_private(module, optimizer, **{"max_grad_norm": 1.0, **settings})


def numbers() -> tuple[float, ...]:
    """The next ones of the global generators."""
    return float(torch.rand(())), float(np.random.rand()), random.random()


def seed_all() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


RUNS: dict[str, Any] = {"engine": Opened, "session": lambda: Session(TensorDataset(X, Y), CONFIG)}


@pytest.mark.attack("A27", "A17")
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


@pytest.mark.attack("A27", "A17")
def test_masks_of_dropout_do_not_follow_from_a_seed():
    """With known masks one record more shifted those of all later ones, and the sum moved by 60 clips."""

    def weights() -> torch.Tensor:
        seed_all()
        module, optimizer, loader = prepared(Opened(config=QUIET), nn.Sequential(nn.Dropout(), nn.Linear(4, 2)))
        for rows, labels in loader:
            step(module, optimizer, rows, labels)
        return module._module[1].weight.detach()

    assert not torch.allclose(weights(), weights(), atol=1e-3)


@pytest.mark.attack("A8", "A17")
@pytest.mark.parametrize("stops", [False, True])
def test_the_callers_generators_are_the_same_after_a_training_whatever_the_number_of_records(stops):
    after = list[Any]()
    for count in (60, 61):
        seed_all()
        module, optimizer, loader = prepared(Opened((X[:count], Y[:count])), nn.Sequential(nn.Dropout(), nn.Linear(4, 2)))
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

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("omega", torch.randn(4, 8))
        self.drop = nn.Dropout()
        self.out = nn.Linear(8, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(torch.cos(rows @ self.omega)))


@pytest.mark.attack("A8", "A31")
def test_a_buffer_drawn_in_a_later_run_does_not_tell_the_number_of_records(tmp_path):
    """A mask of dropout for each record moved the generator that the next run's model is drawn from."""
    config = DPSGDConfig(epochs=1, batches=1, batch_size=60)
    plan = plan_tuning(Budget(0.5, 1e-5), config, runs=2, validation=40, adjacency=ADDED, score_range=(0.0, 1.0))["search"]

    def fit(parameters: Any, session: Any) -> nn.Module:
        module, optimizer, loader = prepared(session, Features())
        for rows, labels in loader:
            step(module, optimizer, rows, labels)
        # A last look, as for a log.
        module(X[: len(rows)])
        return module

    def drawn(count: int, folder: pathlib.Path) -> Any:
        seed_all()
        terms: dict[str, Any] = {"space": Space(lr=[0.1, 0.2]), "plan": plan, "initial": 2, "try_first": False, "allow_repeated": True}
        records: dict[str, Any] = {"training": TensorDataset(X[:count], Y[:count]), "validation": torch.zeros(40, 1)}
        tune(fit, lambda model, records: torch.zeros(len(records)), folder=folder, **records, **terms)
        return sorted(torch.load(file, weights_only=False).omega.tolist() for file in folder.glob("*.pt"))

    assert drawn(60, tmp_path / "fewer") == drawn(61, tmp_path / "more")
