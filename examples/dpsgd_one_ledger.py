"""DP-SGD and a release on the same records, in one ledger: a small network on handwritten digits,
trained with Opacus.

Every training record is protected twice over: by the noise of each step, and by the noise on the
training accuracy that is published at the end. Both come out of one plan, fixed before the first
step, under replace-one (Opacus alone would report add-or-remove-one). The noise and the samples of
each step come from the operating system's entropy: from torch's generator, one released model would
give them away.

    python -m examples.dpsgd_one_ledger
"""

import dataclasses
import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import Planned, calibrate
from dpbo.dpsgd import DPSGDConfig, PrivateEngine
from dpbo.events import GaussianEvent, PoissonGaussianEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean

Records = tuple[torch.Tensor, torch.Tensor]
BUDGET = Budget(epsilon=8.0, delta=1e-5)
FINAL = GaussianEvent(20.0)  # accuracy with a standard deviation of 20/1797


@dataclass(frozen=True)
class Result:
    """What may be published: a noisy accuracy and the statement. The model is protected by
    DP-SGD.
    """

    accuracy: float
    noise_multiplier: float
    statement: str


def main(epochs: int = 15, batch: int = 128) -> Result:
    """Train, release the training accuracy, and return what may be said about it."""
    X, y = load_digits(return_X_y=True)
    records = torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y)
    terms = DPSGDConfig(
        noise_multiplier=1.0, epochs=epochs, batches=len(y) // batch, batch_size=batch
    )

    step = functools.partial(
        PoissonGaussianEvent, rate=terms.rate, relation=Adjacency.REPLACE_ONE.value
    )
    multiplier = calibrate(BUDGET, releases=terms.steps, accounting=Planned([FINAL]), event=step)
    curator = Curator(
        records,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=BUDGET,
        role="training",
        accounting=Planned([step(multiplier, terms.steps), FINAL]),
    )
    network = train(
        PrivateEngine(curator, dataclasses.replace(terms, noise_multiplier=multiplier)), records
    )
    release = curator.release(
        ClippedMean(right, network, score_range=(0.0, 1.0)),
        GaussianMechanism(FINAL.noise_multiplier),
    )
    return Result(float(release.value), multiplier, str(curator.statement()))


def train(engine: PrivateEngine, records: Records) -> torch.nn.Module:
    """DP-SGD for the steps of the engine's terms, which are reserved when the model is made
    private.
    """
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    module, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=2.0, momentum=0.5),
        data_loader=DataLoader(TensorDataset(*records)),
        max_grad_norm=1.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of Opacus' hooks
        for _ in range(engine.config.epochs):
            for X, y in loader:
                optimizer.zero_grad()
                loss: Any = torch.nn.functional.cross_entropy(module(X), y)
                loss.backward()
                optimizer.step()
    return engine.released()


def right(network: torch.nn.Module, records: Records) -> torch.Tensor:
    """Whether each record is classified rightly, each by itself."""
    network.eval()
    with torch.no_grad():
        return network(records[0]).argmax(1) == records[1]


if __name__ == "__main__":
    result = main()
    print(
        f"noise multiplier of a step {result.noise_multiplier:.3f}, training accuracy"
        f" {result.accuracy:.3f}\n\n{result.statement}"
    )
