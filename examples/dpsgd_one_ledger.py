"""DP-SGD and a release on the same records, in one ledger: a small network on handwritten digits, trained with Opacus.

Every training record is protected twice over: by the noise of each step, and by the noise on the training accuracy that is published at the
end. Both come out of one plan, fixed before the first step, under replace-one (Opacus alone would report add-or-remove-one). torch is never
seeded here: Opacus draws its noise from torch's generator, and whoever knows the seed can take it off again.

    python -m examples.dpsgd_one_ledger
"""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import LedgerAccountant, Planned, calibrate
from dpbo.events import GaussianEvent, PoissonGaussianEvent
from dpbo.loading import load_opacus
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean

Records = tuple[torch.Tensor, torch.Tensor]
BUDGET = Budget(epsilon=8.0, delta=1e-5)
FINAL = GaussianEvent(20.0)  # accuracy with a standard deviation of 20/1797


@dataclass(frozen=True)
class Result:
    """What may be published: a noisy accuracy and the statement. The model is protected by DP-SGD."""

    accuracy: float
    noise_multiplier: float
    statement: str


def main(epochs: int = 15, batch: int = 128) -> Result:
    """Train, release the training accuracy, and return what may be said about it."""
    X, y = load_digits(return_X_y=True)
    records = torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y)
    loader = DataLoader(TensorDataset(*records), batch_size=batch)
    steps, rate = epochs * len(loader), 1 / len(loader)

    step = functools.partial(PoissonGaussianEvent, rate=rate, relation=Adjacency.REPLACE_ONE.value)
    multiplier = calibrate(BUDGET, releases=steps, accounting=Planned([FINAL]), event=step)
    curator = Curator(
        records, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=BUDGET, role="training",
        accounting=Planned([step(multiplier, steps), FINAL]),
    )  # fmt: skip
    network = train(LedgerAccountant(curator, noise_multiplier=multiplier, steps=steps), loader, multiplier, steps)
    release = curator.release(ClippedMean(right, network, score_range=(0.0, 1.0)), GaussianMechanism(FINAL.noise_multiplier))
    return Result(float(release.value), multiplier, str(curator.statement()))


def train(accountant: LedgerAccountant, loader: DataLoader[Any], multiplier: float, steps: int) -> torch.nn.Module:
    """DP-SGD for so many steps; the accountant reserves them when the model is made private."""
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=2.0, momentum=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns of its own defaults
        engine = load_opacus().PrivacyEngine()
        engine.accountant = accountant
        network, optimizer, loader = engine.make_private(
            module=network, optimizer=optimizer, data_loader=loader, noise_multiplier=multiplier, max_grad_norm=1.0
        )
        for _ in range(math.ceil(steps / len(loader))):
            for X, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(X), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return network


def right(network: torch.nn.Module, records: Records) -> torch.Tensor:
    """Whether each record is classified rightly, each by itself."""
    network.eval()
    with torch.no_grad():
        return network(records[0]).argmax(1) == records[1]


if __name__ == "__main__":
    result = main()
    print(f"noise multiplier of a step {result.noise_multiplier:.3f}, training accuracy {result.accuracy:.3f}\n\n{result.statement}")
