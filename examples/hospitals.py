"""One search over the patients of several hospitals, none of which shows another, or whoever relays
messages, more than the noised total of all. Each hospital runs this program; all get the same
result, and each keeps a ledger of its own.

# once, at each hospital; tell the others the fingerprint by another way, and list all in a file
openssl genpkey -algorithm x25519 -out key.pem
openssl pkey -in key.pem -pubout -outform DER | sha256sum
# hospital I of four, counted from 0
torchrun --nnodes 4 --node-rank I --master-addr HOST --master-port 29400 -m examples.hospitals \\
    --key key.pem --fingerprints fingerprints.txt --ledger readmissions.db
"""

import argparse
import pathlib

import numpy as np
import scipy.stats
import torch
import torch.distributed as dist
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpbo import DPGIBO, Budget, Curator, DPSearch, Ranks

D = 4


def patients(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Made up: measurements in [0, 1] and whether the patient came back. Read your own here."""
    draw = np.random.default_rng(seed)
    X = draw.uniform(size=(count, D))
    y = (X @ np.arange(1, D + 1) + draw.normal(size=count) > 5).astype(np.int64)
    return X, y


def loss(x: torch.Tensor, records: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """How far x is from each patient's measurements."""
    return (records[0] - x.to(records[0])).abs().mean(1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--key", type=pathlib.Path)
    parser.add_argument("--fingerprints", type=pathlib.Path)
    parser.add_argument("--ledger", type=pathlib.Path, required=True)
    parser.add_argument("--tolerate", type=int, default=1)
    parser.add_argument("--patients", type=int, default=2000)
    chosen = parser.parse_args(arguments)
    prints = chosen.fingerprints and chosen.fingerprints.read_text().splitlines()

    dist.init_process_group("gloo")
    ranks = Ranks(trust="sum", tolerate=chosen.tolerate, key=chosen.key, fingerprints=prints)
    X, y = patients(1 + ranks.rank, chosen.patients)
    curator = Curator(
        (torch.from_numpy(X), torch.from_numpy(y)),
        unit="patient",
        adjacency="replace-one",
        budget=Budget(2.0, 1e-6),
        dataset="readmissions",
        ledger=chosen.ledger,
        ranks=ranks,
    )
    box = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    found = DPGIBO(
        curator, loss, bounds=box, budget=0.3, iterations=5, batch_size=D + 1, clip=1.0
    ).run()
    # The same public table at every hospital, which trains.
    X_train, y_train = patients(0, 400)
    search = DPSearch(
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": scipy.stats.loguniform(1e-3, 1e2)},
        budget=0.6,
        n_iter=8,
        verbose=0,
    )
    search.fit(X_train, y_train, X_val=curator)
    print(f"hospital {ranks.rank}: {found.x.tolist()}, {search.best_params_}")
    if ranks.rank == 0:
        print(curator.statement())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
