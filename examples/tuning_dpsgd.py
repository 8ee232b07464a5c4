"""Tune a small convolutional network that is trained with DP-SGD: training and validation records protected by one (6, 1e-5).

Scikit-learn's digits, shuffled: 1,100 to train, 350 to validate, the rest public, to judge. `python -m examples.tuning_dpsgd`
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dpbo
from dpbo.integrations.opacus import DPSGD, Session, TunedModel, plan_tuning, tune

BUDGET = dpbo.Budget(epsilon=6.0, delta=1e-5)
TERMS = DPSGD(noise_multiplier=1.0, epochs=10, batches=10, batch_size=110)
SPACE = dpbo.Space(lr=loguniform(1e-2, 1e1), clip=loguniform(1e-1, 1e1))
DEFAULTS = {"lr": 0.1, "clip": 1.0}  # of Opacus' own example

Records = tuple[torch.Tensor, torch.Tensor]


def parts(seed: int = 0) -> tuple[Records, Records, Records]:
    """Training, validation and public test records, by a public shuffle."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    images, labels = torch.tensor(X[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y[order])
    cuts = (slice(0, 1100), slice(1100, 1450), slice(1450, None))
    return tuple((images[cut], labels[cut]) for cut in cuts)  # type: ignore[return-value]


def fit(parameters: dict[str, Any], session: Session) -> nn.Module:
    """One run, in Opacus' words; the session knows noise, samples and steps."""
    features = [nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    network: nn.Module = nn.Sequential(*features, nn.Flatten(), nn.Linear(64, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=parameters["lr"])
    network, optimizer, loader = session.make_private(network, optimizer, max_grad_norm=parameters["clip"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of hooks where inputs need no gradients
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network


def right(network: nn.Module, records: Records) -> torch.Tensor:
    """Whether each record is recognised."""
    network.eval()
    with torch.no_grad():
        return network(records[0]).argmax(1) == records[1]


def tuned(strategy: str, *, seed: int = 0, runs: int = 30, terms: DPSGD = TERMS, **settings: Any) -> TunedModel:
    """By one strategy, at the whole budget."""
    training, validation, _ = parts(seed)
    plan = plan_tuning(BUDGET, terms, runs=runs, validation=len(validation[1]))[strategy]
    if strategy == "once":
        settings = {"parameters": DEFAULTS, **settings}
    return tune(fit, right, training=TensorDataset(*training), validation=validation, space=SPACE, budget=BUDGET, plan=plan,
                divisor=len(validation[1]), seed=seed, **settings)  # fmt: skip


if __name__ == "__main__":
    print(plan_tuning(BUDGET, TERMS, runs=30, validation=350))
    found = tuned("selection")
    print(found.parameters, found.score, found.statement, sep="\n")
