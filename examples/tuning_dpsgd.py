"""Tune a small convolutional network that is trained with DP-SGD: training and validation records
protected by one (6, 1e-5).

Scikit-learn's digits: about 1,100 to train, 350 to validate, the rest public, to judge. Which is
which follows from a keyed hash of each record, so that removing one moves no other: the guarantee
is under add-or-remove-one. Where public records of the same kind exist, tune on them instead, which
is free; cross-validating on protected training records is not. `python -m examples.tuning_dpsgd`
"""

import hashlib
from typing import Any

import torch
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dpbo
from dpbo.dpsgd import DPSGDConfig, Session, plan_tuning, tune
from dpbo.dpsgd.tuning import TunedModel

# a public number, about that of the records
RELATION, VALIDATION = dpbo.Adjacency.ADD_OR_REMOVE_ONE, 350
BUDGET = dpbo.Budget(epsilon=6.0, delta=1e-5)
TERMS = DPSGDConfig(epochs=10, batches=10, batch_size=110)
SPACE = dpbo.Space(lr=loguniform(1e-2, 1e1), clip=loguniform(1e-1, 1e1))
DEFAULTS = {"lr": 0.1, "clip": 1.0}  # of Opacus' own example

Records = tuple[torch.Tensor, torch.Tensor]


def parts(seed: int = 0) -> tuple[Records, Records, Records]:
    """Training, validation and public test records."""
    X, y = load_digits(return_X_y=True)
    images, labels = torch.tensor(X / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    found = roles(X, seed)
    training, validation, test = (
        (images[found == role], labels[found == role]) for role in range(3)
    )
    return training, validation, test


def roles(rows: Any, seed: int) -> torch.Tensor:
    """0 to train, 1 to validate, 2 to test: each row by its own hash. Where records have an id,
    hash that.
    """
    hashes = [
        hashlib.blake2b(row.tobytes(), digest_size=8, key=b"split %d" % seed).digest()
        for row in rows
    ]
    parts = torch.tensor([int.from_bytes(found, "little") / 2**64 for found in hashes])
    return torch.bucketize(parts, torch.tensor([1100 / 1797, 1450 / 1797]))


def fit(parameters: dict[str, Any], session: Session) -> nn.Module:
    """One run, in Opacus' words; the session knows noise, samples and steps."""
    features = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
    ]
    network: nn.Module = nn.Sequential(*features, nn.Flatten(), nn.Linear(64, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=parameters["lr"])
    network, optimizer, loader = session.make_private(
        network, optimizer, max_grad_norm=parameters["clip"]
    )
    for images, labels in loader:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
    return network


def right(network: nn.Module, records: Records) -> torch.Tensor:
    """Whether each record is recognised."""
    network.eval()
    with torch.no_grad():
        return network(records[0]).argmax(1) == records[1]


def tuned(
    strategy: str, *, seed: int = 0, runs: int = 30, terms: DPSGDConfig = TERMS, **settings: Any
) -> TunedModel:
    """By one strategy, at the whole budget."""
    training, validation, _ = parts(seed)
    plan = plan_tuning(BUDGET, terms, runs=runs, validation=VALIDATION, adjacency=RELATION)[
        strategy
    ]
    if strategy == "once":
        settings = {"parameters": DEFAULTS, **settings}
    return tune(
        fit,
        right,
        training=TensorDataset(*training),
        validation=validation,
        space=SPACE,
        plan=plan,
        seed=seed,
        **settings,
    )


if __name__ == "__main__":
    print(plan_tuning(BUDGET, TERMS, runs=30, validation=VALIDATION, adjacency=RELATION))
    found = tuned("selection")
    print(found.parameters, found.score, found.statement, sep="\n")
