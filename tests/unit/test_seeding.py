"""torch's global generator is lent to one thread at a time, and comes back as it was, as do those
of GPUs.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from dpbo.isolation import isolate_generators, seed_torch
from dpbo.testing import SeededEntropy
from tests.unit.acquisition.test_strategies import PAIR, PARETO, PROPOSERS, _bowl, _observed


@pytest.mark.parametrize("name", ["qlognei", "trust region", PARETO])
def test_threads_that_propose_at_once_get_their_own_points(name):
    """torch.manual_seed seeds every GPU too, at once or when it is first used, and nobody would put
    that back.
    """
    torch.cuda.manual_seed_all(12345)
    propose = PROPOSERS[name]
    before = (torch.get_rng_state().tolist(), _gpu_seeds())
    alone = [
        propose(PAIR, *_observed(PAIR, 5 + seed, value=_bowl, std=0.1), seed=seed)
        for seed in range(2)
    ]
    with ThreadPoolExecutor(3) as threads:
        together = list(
            threads.map(
                lambda seed: propose(
                    PAIR, *_observed(PAIR, 5 + seed, value=_bowl, std=0.1), seed=seed
                ),
                [0, 1, 0, 1],
            )
        )
    assert all(torch.equal(x, alone[i % 2]) for i, x in enumerate(together))
    assert (torch.get_rng_state().tolist(), _gpu_seeds()) == before


def _gpu_seeds() -> Any:
    """The state of the first GPU, or what torch will seed GPUs with once they are used."""
    return (
        torch.cuda.get_rng_state().tolist()
        if torch.cuda.is_initialized()
        else list(torch.cuda._lazy_seed_tracker.get_calls())
    )


def test_generators_apart_never_go_back_to_a_state_that_another_thread_had_seeded():
    before = torch.get_rng_state()
    inside = threading.Event()
    leave = threading.Event()

    def seeds():
        with seed_torch(7):
            inside.set()
            leave.wait(60)

    def goes_apart():
        with isolate_generators(SeededEntropy(0)):
            pass

    threads = [threading.Thread(target=seeds), threading.Thread(target=goes_apart)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    # Time to look at the seeded state, if it may.
    threads[1].join(0.2)
    leave.set()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.cuda
def test_a_gpu_in_use_is_seeded_for_a_while():
    torch.rand(1, device="cuda")
    before = _gpu_seeds()
    drawn = []
    for _ in range(2):
        with seed_torch(7):
            drawn.append(torch.rand(3, device="cuda").tolist())
    assert drawn[0] == drawn[1]
    assert _gpu_seeds() == before
