"""A parent that has used dpbo and torch's threads, and whose forked workers use both:
`python -m tests.integration.forking` names each kind that is done, or waits for ever.
"""

import multiprocessing

import joblib
import torch
from torch.utils.data import DataLoader, Dataset

from dpbo import Budget, PrivateObjective
from tests.setups import DOUBLE, owner, point

RECORDS = torch.full((200_000, 4), 0.5, dtype=DOUBLE)


def score(_, records):
    return records.mean(1)


def use(number=0):
    """Release a score, and multiply matrices that are large enough for several threads."""
    curator = owner(RECORDS, budget=Budget(1.0, 1e-6), allow_repeated=True)
    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=1)
    objective(point(0.0))
    assert torch.isfinite(torch.ones(600, 600) @ torch.ones(600, 600)).all()
    return number


class Used(Dataset[int]):
    def __len__(self):
        return 4

    def __getitem__(self, place):
        return use(place)


def by_pool():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(use, range(4))


def by_joblib():
    with joblib.parallel_backend("multiprocessing", n_jobs=2):
        return joblib.Parallel()(joblib.delayed(use)(number) for number in range(4))


def by_loader():
    loader = DataLoader(Used(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    return [int(number) for number in loader]


KINDS = {"pool": by_pool, "joblib": by_joblib, "loader": by_loader}

if __name__ == "__main__":
    torch.set_num_threads(2)
    use()
    for name, forked in KINDS.items():
        assert forked() == [0, 1, 2, 3]
        print(name)
