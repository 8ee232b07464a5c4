"""Losses and weights of few bits, whose products are exact in tf32 and float32: there the fused kernel must give the CPU's own integers.

`python -m tests.queries.fused_cases` runs the kernel in Triton's interpreter, where there is no GPU (TRITON_INTERPRET=1), and prints, case
by case, whether the sums are the same, also of columns at the edge of memory; then whether the trial launch succeeds, and whether the CPU
is sent another way all the same.
"""

import json
import math

import torch

from dpbo.queries import vectors
from dpbo.queries.fused import _works, can_fuse, fused_sum
from tests.queries.memory import at_the_edge

CASES = [  # units, columns, dimension, clip
    (1, 1, 1, 3.0), (300, 20, 33, 50.0), (130, 7, 5, 1e4), (129, 33, 16, 0.3), (77, 40, 70, 200.0), (65, 5, 128, 40.0), (10, 3, 256, 5.0),
    (9, 2, 1, 0.3),
]  # fmt: skip
AT_AN_EDGE = (68, 33, 16, 0.3)  # columns are where the kernel reads them: their length is a multiple of 16 bytes
CENTER = 3.0
AIMS = (vectors._SHORTER, 1.1)  # with the second, floats fail to shorten, and what is too long must count as nothing


def exact(units, columns, dimension, device="cpu"):
    """Columns with a NaN, an infinity and a zero record, and weights."""
    generator = torch.Generator().manual_seed(units)
    Y = torch.randint(-60, 60, (columns, units), generator=generator).float()
    W = torch.randint(-7, 8, (dimension, columns), generator=generator).double()
    if units > 5:
        Y[0, 3], Y[-1, 4], Y[:, 5] = math.nan, -math.inf, 0.0
    return list(Y.to(device)), W.to(device)


def both(case, aim, device="cpu", changed=lambda column: column):
    """The fused sum, and the CPU's."""
    units, columns, dimension, clip = case
    Y, W = exact(units, columns, dimension, device)
    Y = [changed(column) for column in Y]
    quantum, before = vectors.quantum_of(clip, dimension), vectors._SHORTER
    try:
        vectors._SHORTER = aim
        own = vectors.clipped_sum([y.cpu() for y in Y], W.cpu(), clip, quantum, CENTER)
        goal = vectors.aim_of(math.floor(clip / quantum), dimension)
    finally:
        vectors._SHORTER = before
    return fused_sum(Y, W, clip, quantum, CENTER, aim=goal).tolist(), own.tolist()


if __name__ == "__main__":
    pairs = [both(case, aim) for case in CASES for aim in AIMS] + [both(AT_AN_EDGE, AIMS[0], changed=at_the_edge)]
    cpu = torch.device("cpu")
    print(json.dumps([fused == own for fused, own in pairs] + [_works(cpu), not can_fuse(cpu, 2)]))
