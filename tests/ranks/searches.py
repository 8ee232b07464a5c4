"""Every algorithm that runs on ranks, small, with repeatable noise: what one process says, four must say to the last bit.

`python -m tests.ranks.searches FOLDER` forks four ranks and writes the results of each, and what one process with all records finds by
itself; the example runs under torchrun.
Records are whole numbers of 2^-10 and scores elementwise, so that every rank computes the same number for a record.
"""

import datetime
import json
import multiprocessing
import pathlib
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Ranks
from dpbo.algorithms.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans
from dpbo.algorithms.gibo_options import choose_start
from dpbo.algorithms.gibo_settings import PAPER, RECOMMENDED
from dpbo.mechanisms import NoNoise
from dpbo.testing import SeededEntropy

N, D = 203, 3
BOUNDS = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)


def rows(records: int = N) -> torch.Tensor:
    """All records: three clusters, one record that is broken and one far away."""
    draw = np.random.default_rng(0)
    X = np.round((draw.normal(size=(records, D)) * 0.1 + draw.integers(0, 3, (records, 1)) - 1) * 1024) / 1024
    X[5], X[7] = np.nan, 1e3
    return torch.from_numpy(X)


def dealt(records: int, ranks: Ranks | None) -> torch.Tensor:
    """Positions of this rank's shard: of four, one has none and one has a single record."""
    if ranks is None:
        return torch.arange(records)
    ends = {1: [0], 2: [0, records // 3], 3: [0, 1, records // 3], 4: [0, 0, 1, records // 3]}[ranks.size]
    return torch.arange(ends[ranks.rank], [*ends[1:], records][ranks.rank])


def loss(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return (r[:, 0] - x[0]).abs() + (r[:, 1] - x[1]).abs() * 0.5 + (r[:, 2] - x[2]) * (r[:, 2] - x[2])


def opened(
    ranks: Ranks | None, *, adjacency: Adjacency = Adjacency.REPLACE_ONE, groups: bool = False, device: str = "cpu", **more: Any
) -> Curator:
    records = rows().to(device)
    patients = torch.arange(N) // 2
    mine = dealt(N, ranks) if not groups else ((patients * 7) % (1 if ranks is None else ranks.size) == (ranks.rank if ranks else 0))
    unit = PrivacyUnit("patient", groups=patients[mine]) if groups else PrivacyUnit("record")
    settings = {"budget": Budget.gdp(8.0), "entropy": SeededEntropy(3), **more}
    return Curator(records[mine], unit=unit, adjacency=adjacency, ranks=ranks, **settings)


def gibo(curator: Curator, budget: Any = 1.0, **more: Any) -> dict[str, Any]:
    search = DPGIBO(curator, loss, bounds=BOUNDS, budget=budget, iterations=4, batch_size=D + 1, clip=1.0, **more)
    result = search.run()
    return {"iterates": result.iterates.tolist(), "gradients": result.gradients.tolist(), "left": search.remaining}


def exact(ranks: Ranks | None) -> dict[str, Any]:
    """Without noise, so that one unit of the finest lattice would be seen."""
    open_ = NoNoise(allow_not_private=True)
    mixture = DPGaussianMixture(2, budget=open_, radius=4.0, dimension=D, max_iter=2, random_state=0).fit(opened(ranks))
    patients = gibo(opened(ranks, groups=True), open_, loss_range=(0.0, 3.0))
    return {"gibo": gibo(opened(ranks), open_), "patients": patients, "mixture": [mixture.means_.tolist(), mixture.covariances_.tolist()]}


def everything(ranks: Ranks | None) -> dict[str, Any]:
    """What each search releases."""
    removed = opened(ranks, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    grouped = opened(ranks, groups=True)
    mixture = DPGaussianMixture(3, budget=1.0, radius=4.0, dimension=D, max_iter=3, random_state=0).fit(opened(ranks))
    means = DPKMeans(3, budget=1.0, radius=4.0, dimension=D, max_iter=3, random_state=0).fit(opened(ranks))
    factors = DPFactorAnalysis(1, budget=1.0, radius=4.0, dimension=D, random_state=0).fit(opened(ranks))
    objective = PrivateObjective(opened(ranks, groups=True), lambda x, r: -loss(x, r), score_range=(-2.0, 0.0), evaluations=3)
    cells = PrivateObjective(opened(ranks), lambda x, r: (r[:, 0] > x[0]).long(), score_range=(0.0, 1.0), evaluations=2, cells=2)
    X = torch.full((2, D), 0.25, dtype=torch.float64)
    start = choose_start(opened(ranks), loss, X * torch.tensor([[1.0], [2.0]]), loss_range=(0.0, 3.0), budget_share=0.5)
    return {
        "gibo": gibo(opened(ranks), settings=RECOMMENDED),
        "gibo with history": gibo(opened(ranks), settings=PAPER),
        "gibo, units removed": {**gibo(removed, divisor=200.0), "units": removed.units},
        "gibo, patients": {**gibo(grouped, loss_range=(0.0, 3.0)), "units": grouped.units},
        "mixture": [mixture.weights_.tolist(), mixture.means_.tolist(), mixture.covariances_.tolist()],
        "k-means": means.cluster_centers_.tolist(),
        "factors": [factors.components_.tolist(), factors.noise_variance_.tolist()],
        "objective": [part.tolist() for part in (*objective(X), *objective(X[:1]), *objective.history())],
        "cells": cells(X)[0].tolist(),
        "start": start.tolist(),
        "exact": exact(ranks),
        "statement": [str(grouped.statement().guarantee), grouped.ledger.head().seq],
    }


def run_rank(rank: int, folder: pathlib.Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=4)
    found = everything(Ranks(timeout=datetime.timedelta(seconds=120)))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1])
    forking = multiprocessing.get_context("fork")
    children = [forking.Process(target=run_rank, args=(rank, place)) for rank in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        sys.exit("a rank failed")
    (place / "one.json").write_text(json.dumps(everything(None)))
