"""One step of DP-SGD with dpbo's sums and noise, beside Opacus' own on the same batch.

A perceptron of 10^5 to 10^7 parameters, 4 bytes each, and n records: the backward pass writes n
gradients; both optimizers read them once for norms and once for the sum. dpbo adds blocks of the
sum in float64, and one exact draw a parameter, 8 bytes of a cipher's stream each.

    python -m benchmarks.dpsgd_step [--smoke] [--json FILE]
"""

import itertools
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import interleaved, named, options, ratio, record, table
from dpbo.dpsgd import DPSGDConfig, Session
from dpbo.dpsgd._opacus import load_opacus

HEADER = ("parameters", "records", "ms a step, Opacus", "ms a step, dpbo", "dpbo over Opacus")


def stepping(
    ours: bool, width: int, records: TensorDataset, terms: DPSGDConfig, device: str
) -> Callable[[], None]:
    """One step on all records, which are the sample; the loader draws and collates it, too."""
    module: Any = nn.Sequential(
        nn.Linear(784, width),
        nn.ReLU(),
        nn.Linear(width, width // 5),
        nn.ReLU(),
        nn.Linear(width // 5, 10),
    )
    optimizer: Any = torch.optim.SGD(module.to(device).parameters(), 0.01)
    if ours:
        module, optimizer, loader = Session(records, terms).make_private(
            module, optimizer, max_grad_norm=1.0
        )
    else:
        given: Any = {
            "module": module,
            "optimizer": optimizer,
            "data_loader": DataLoader(records, batch_size=len(records)),
        }
        module, optimizer, loader = (
            load_opacus()
            .PrivacyEngine()
            .make_private(**given, noise_multiplier=1.0, max_grad_norm=1.0)
        )
    samples = itertools.chain.from_iterable(itertools.repeat(loader))

    def step() -> None:
        rows, labels = next(samples)
        loss: Any = nn.functional.cross_entropy(module(rows.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        # Last, so that the other optimizer's step finds as much free memory as this one's did.
        optimizer.zero_grad()

    return step


def compared(width: int, count: int, repetitions: int, device: str) -> list[Any]:
    """A row of the table."""
    records = TensorDataset(torch.randn(count, 784), torch.arange(count) % 10)
    terms = DPSGDConfig(noise_multiplier=1.0, epochs=repetitions + 1, batches=1, batch_size=count)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = interleaved(
        *(stepping(ours, width, records, terms, device) for ours in (False, True)),
        repetitions=repetitions,
        wait=wait,
    )
    parameters = 785 * width + (width + 1) * (width // 5) + (width // 5 + 1) * 10
    return [
        parameters,
        count,
        *(1e3 * statistics.median(seconds) for seconds in times),
        ratio(times[1], times[0]),
    ]


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, device="cpu")
    sizes = [(100, 64, 30), (1000, 64, 15), (1000, 256, 10), (5000, 32, 6)]
    if chosen.smoke:
        sizes = [(40, 16, 2)]
    # Of Opacus' generators and hooks.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [compared(*size, chosen.device) for size in sizes]
    print(table(HEADER, rows))
    record("dpsgd_step", {"device": chosen.device, "steps": named(HEADER, rows)}, chosen)


if __name__ == "__main__":
    main()
