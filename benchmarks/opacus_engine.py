"""Opacus' own engine charged to a ledger, beside the same engine by itself.

A step of a perceptron on 64 of 6,400 records: the ledger takes its charges in blocks of 16 steps,
which are timed together. And the peak memory of a process that takes eight steps of ghost clipping,
with 10^7 weights and samples of 64.

    python -m benchmarks.opacus_engine [--smoke] [--json FILE]
"""

import itertools
import multiprocessing
import os
import pathlib
import re
import statistics
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import interleaved, named, options, ratio, record, table
from dpbo import Budget, Curator
from dpbo.accounting import Planned
from dpbo.dpsgd import LedgerAccountant
from dpbo.dpsgd._opacus import load_opacus
from dpbo.events import PoissonGaussianEvent

HEADER = ("work", "unit", "Opacus by itself", "charged to a ledger", "ratio", "wanted")
NOISE = 5.0
RELATION = "add-or-remove-one"
# Steps that one entry of the ledger charges, at most and in plans of 100 such blocks or more.
STEPS = 16
BLOCKS = 100


def stepping(
    module: Any, records: TensorDataset, mode: str, steps: int, place: dict[str, Any] | None
) -> Callable[[], None]:
    """One step on a sample of 64; `place` is the ledger's, None for an engine by itself."""
    # Of Opacus' generators and hooks.
    warnings.simplefilter("ignore")
    # A seed that is known would be refused.
    torch.seed()
    engine = load_opacus().PrivacyEngine()
    loader: Any = DataLoader(records, batch_size=64)
    if place is not None:
        plan = PoissonGaussianEvent(NOISE, steps, rate=1 / len(loader), relation=RELATION)
        curator = Curator(
            records.tensors,
            unit="record",
            adjacency=RELATION,
            budget=Budget(50.0, 1e-5),
            role="training",
            accounting=Planned([plan]),
            allow_repeated=True,
            **place,
        )
        engine.accountant = LedgerAccountant(curator, noise_multiplier=NOISE, steps=steps)
    module, optimizer, *loss, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), 0.01),
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    criterion: Any = loss[0] if loss else nn.functional.cross_entropy
    samples = itertools.chain.from_iterable(itertools.repeat(loader))

    def step() -> None:
        rows, labels = next(samples)
        optimizer.zero_grad()
        criterion(module(rows), labels).backward()
        optimizer.step()

    return step


def perceptron(width: int) -> nn.Module:
    """Of two hidden layers, on records of 784 numbers and ten classes."""
    return nn.Sequential(
        nn.Linear(784, width),
        nn.ReLU(),
        nn.Linear(width, width // 5),
        nn.ReLU(),
        nn.Linear(width // 5, 10),
    )


def weights(width: int) -> int:
    """How many numbers a perceptron trains."""
    return sum(parameter.numel() for parameter in perceptron(width).parameters())


def charged_steps(width: int, repetitions: int) -> list[Any]:
    """The row of a step's time: of blocks of 16, each with the charge of one block."""
    records = TensorDataset(torch.rand(6400, 784), torch.arange(6400) % 10)

    def block(place: dict[str, Any] | None) -> Callable[[], None]:
        step = stepping(perceptron(width), records, "hooks", BLOCKS * STEPS, place)

        def steps() -> None:
            for _ in range(STEPS):
                step()

        return steps

    with tempfile.TemporaryDirectory() as folder:
        place = {"ledger": f"{folder}/ledger.db", "dataset": "steps"}
        alone, charged = interleaved(block(None), block(place), repetitions=repetitions)
    times = [1e3 * statistics.median(seconds) / STEPS for seconds in (alone, charged)]
    work = f"a step, charged in a file, {weights(width):,} weights x 64"
    return [work, "ms", *times, ratio(charged, alone), "1.05"]


def peak(width: int, folder: str | None, found: Any) -> None:
    """Put the MiB that this process held at most, by Linux' count, after eight steps."""
    torch.set_num_threads(1)
    records = TensorDataset(torch.rand(640, 784), torch.arange(640) % 10)
    place = None if folder is None else {"ledger": f"{folder}/ledger.db", "dataset": "peak"}
    step = stepping(perceptron(width), records, "ghost", 9, place)
    for _ in range(8):
        step()
    held = re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())
    assert held is not None
    found.put(int(held[1]) / 1024)


def peaks(width: int) -> list[Any]:
    """The row of ghost clipping's memory: of a process each."""
    # Else glibc keeps what was freed, as it happens: the same program's peak differs by a tenth.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    held = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for where in (None, folder):
            process = context.Process(target=peak, args=(width, where, found))
            process.start()
            held.append(found.get())
            process.join()
    alone, charged = held
    work = f"peak memory in ghost mode, {weights(width):,} weights x 64"
    return [work, "MiB", alone, charged, charged / alone, "1.1"]


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    if chosen.smoke:
        rows = [charged_steps(50, 1), peaks(50)]
    else:
        rows = [charged_steps(100, 20), peaks(5500)]
    print(table(HEADER, rows))
    record("opacus_engine", {"rows": named(HEADER, rows)}, chosen)


if __name__ == "__main__":
    main()
