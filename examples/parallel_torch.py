"""Learning rate and weight decay of a torch model, tuned by processes that each train one; killed
ones cost nothing. It shows the mechanics. The private digits are like the public ones here, so
cross-validating on those would be free and as good.
"""

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import scipy.stats
import torch
from sklearn.datasets import load_digits

import dpbo

SPACE = dpbo.Space(
    lr=scipy.stats.loguniform(1e-4, 1e1), weight_decay=scipy.stats.loguniform(1e-5, 1e0)
)
# the first 600 are public, the others private
IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))


def train(x: torch.Tensor) -> Any:  # like the score, a function that workers find
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    ).double()
    optimizer = torch.optim.AdamW(net.parameters(), **SPACE.decode(x))
    for _ in range(60):
        optimizer.zero_grad()
        torch.autograd.backward(
            torch.nn.functional.cross_entropy(net(IMAGES[:600] / 16), LABELS[:600])
        )
        optimizer.step()
    return net


def right(net: Any, records: Any) -> torch.Tensor:
    return net(records[0] / 16).argmax(1) == records[1]


def tune(evaluations: int = 16) -> tuple[Any, dpbo.Curator]:
    curator = dpbo.Curator(
        (IMAGES[600:], LABELS[600:]),
        unit="image",
        adjacency="replace-one",
        budget=dpbo.Budget(3.0, 1e-5),
    )
    objective = dpbo.PrivateObjective(
        curator, right, score_range=(0, 1), evaluations=evaluations, fit=train
    )
    search = dpbo.algorithms.AsynchronousBO(objective, SPACE, workers=2)
    return (
        search.run(
            lambda: ProcessPoolExecutor(2, mp_context=torch.multiprocessing.get_context("spawn"))
        ),
        curator,
    )


if __name__ == "__main__":
    print(*tune(), sep="\n")
