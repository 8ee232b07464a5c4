"""Sums and draws of the kernels of DP-SGD in Triton's interpreter, where there is no GPU
(TRITON_INTERPRET=1): `python -m tests.unit.gpu.noise_cases` prints what test_noise.py asks.
"""

import json
import unittest.mock

import numpy as np
import torch

from dpbo.dpsgd import device_noise, noise
from dpbo.mechanisms.additive import ROUND_UP, grid_of
from dpbo.mechanisms.gaussian import NORMALS
from dpbo.mechanisms.rounding import rounded
from tests.setups import DOUBLE
from tests.unit.gpu.fused_cases import read_bounds_of_loops

SCALE = 1.7 * 2.0**20
# one of its first 4,000 words is so far in the tail that the host settles it
KEY = bytes([179]) * 32


class Recorded:
    """The key, then what the host's entropy gives: words of one byte, a new one at each call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, size):
        self.calls += 1
        return KEY if self.calls == 1 else bytes([self.calls % 256]) * size


def differing(count, device="cpu"):
    """How many of so many draws differ from the CPU's own of the same words, and how many of these
    the host had to settle with further bits.
    """
    fractions = np.modf(np.arange(count) * 0.618033988749895)[0]
    there = torch.from_numpy(fractions).to(device)
    found = device_noise.rounded_on_device(there, SCALE, Recorded()).cpu().numpy()
    words = device_noise.stream(KEY, count)
    entropy = Recorded()

    def given(size):
        more = entropy(size)
        return words.tobytes() if entropy.calls == 1 else more

    own = rounded(NORMALS, fractions, np.full(count, SCALE), given)
    few = words & np.uint64((1 << 63) - 1) < np.uint64(1 << 47)
    return int((found != own).sum()), int(few.sum())


def errors(device="cpu"):
    """The largest relative errors of the squared norms of rows, and of their weighted sums."""
    random = np.random.default_rng(0)
    found = []
    for count, length in ((1, 1), (3, 1025), (5, 513), (9, 9000)):
        rows = random.normal(size=(count, length)).astype(np.float32)
        factors = random.random(count) * (np.arange(count) != 1)
        there = torch.from_numpy(rows).to(device)
        squares = device_noise.squared_norms_on_device(there).cpu().numpy()
        total = device_noise.weighted_sum_on_device(there, torch.from_numpy(factors).to(device))
        wide = rows.astype(float)
        pairs = ((squares, (wide**2).sum(1)), (total.cpu().numpy(), factors @ wide))
        found.append([float(np.abs(own - true).max() / np.abs(true).max()) for own, true in pairs])
    return np.max(found, axis=0).tolist()


def noised(count):
    """What is added to sums: in whole steps of the grid, and its standard deviation in theirs."""
    total = torch.linspace(-5.0, 5.0, count, dtype=DOUBLE)
    grid = grid_of(ROUND_UP)
    with unittest.mock.patch("dpbo.dpsgd.noise.runs_on", return_value=True):
        first, second = (noise._noised(total.clone(), 1.0) for _ in range(2))
    return [
        bool(((first / grid) % 1.0 == 0.0).all()),
        float((first - total).std()),
        float((second - total).std()),
        float(torch.corrcoef(torch.stack([first - total, second - total]))[0, 1]),
    ]


if __name__ == "__main__":
    read_bounds_of_loops()
    works = device_noise._works(torch.device("cpu"))
    print(json.dumps([works, differing(4_000), noised(4_000), errors()]))
