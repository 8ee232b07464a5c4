"""Records and mixtures for which the fused kernel's sums are set beside the torch path's.

`python -m tests.queries.moments_cases` runs the kernel in Triton's interpreter (TRITON_INTERPRET=1) and prints, case by case, how far it is
from the torch path: in all weights together, and in any sum as a share of its largest possible value.
"""

import json
import math
from typing import Any

import torch

from dpbo.queries import Ball, MixtureMoments, fused_moments
from dpbo.queries.features import degrees, width_of
from dpbo.queries.points import PointSums
from tests.queries.memory import at_the_edge, far_apart

CASES = [  # records, dimension, components, covariance, whether the ball is turned
    (300, 2, 5, "full", False), (300, 2, 5, "full", True), (130, 3, 1, "diag", False), (77, 1, 2, "spherical", False),
    (260, 3, 4, "spherical", True), (257, 4, 2, "full", False), (1, 1, 1, "full", False), (129, 2, 10, "diag", False),
    (1300, 2, 3, "full", False),  # several blocks a program
]  # fmt: skip


def case_of(records, dimension, components, covariance, turned, *, dtype=torch.float64):
    """(X with records that count as nothing, and one far out; the question)."""
    draw = torch.Generator().manual_seed(records)
    X = torch.randn(records, dimension, generator=draw).to(dtype)
    if records > 6:
        X[3], X[4, 0], X[5], X[6] = math.nan, -math.inf, 0.0, 100 * X[6]
        if dtype == torch.float64:
            X[0, 0], X[1, 0] = 1e200, 2e100  # the second is just too far
    matrix = torch.eye(dimension) + 0.1 * torch.randn(dimension, dimension, generator=draw) if turned else None
    ball = Ball(1.5, center=0.1 * torch.randn(dimension, generator=draw).double(), matrix=None if matrix is None else matrix.double())
    spread = 60.0 if components == 2 else 3.0  # logits whose exponentials would overflow, and others
    natural = spread * torch.randn(components, width_of(covariance, dimension), generator=draw).double()
    return X, MixtureMoments(dimension, ball=ball, natural=natural, covariance=covariance)


def both(case, device="cpu", dtype=torch.float64, together=None, changed=lambda X: X):
    """(the fused sums, those of the torch path on the CPU), `K x F`, and the public steps."""
    X, question = case_of(*case[:5], dtype=dtype)
    X = changed(X)
    steps = question.resolution(len(X))
    before = fused_moments._TOGETHER
    try:
        fused_moments._TOGETHER = together or before
        found = fused_moments.fused_moments(X.to(device), question._scaled(steps), question.ball, steps, question.covariance)
    finally:
        fused_moments._TOGETHER = before
    own = PointSums.summed(question, X, steps)
    return found.cpu().reshape(question.components, -1), own.reshape(question.components, -1), steps


def apart(case, **how):
    """[difference of all weights together, largest difference of a sum over n 2^a]: 0 and a rounding of weights, where all is well."""
    found, own, steps = both(case, **how)
    most = case[0] * 2.0**steps.weight_bits * torch.tensor([2.0 ** (steps.bits * p) for p in degrees(case[3], case[1]).tolist()])
    return [int((found.sum(0) - own.sum(0)).abs().max()), float(((found - own).abs() / most).max())]


def sign_kept_apart(X):
    """The same numbers as a view that holds their negatives and a bit that says so."""
    return torch.complex(torch.zeros_like(X), -X).conj().imag


OTHERS: list[dict[str, Any]] = [
    {"together": 1}, {"together": 2, "case": (1300, 2, 3, "full", False)}, {"dtype": torch.float32},
    {"changed": sign_kept_apart}, {"changed": lambda X: X.T.contiguous().T},
    {"dtype": torch.float32, "changed": far_apart, "case": (130, 3, 1, "diag", False)}, {"changed": at_the_edge},
    {"changed": lambda X: X.nan_to_num(0.0, 3.0, -3.0).clamp(-9.0, 9.0).long()},
]  # fmt: skip


if __name__ == "__main__":
    cpu = torch.device("cpu")
    told = [fused_moments._works(cpu), not fused_moments.can_fuse_moments(cpu, 5, 2, "full")]  # it works, and the CPU is sent another way
    found = [apart(case) for case in CASES] + [apart(**{"case": CASES[0], **other}) for other in OTHERS]
    print(json.dumps(found + [[0, 0.0] if true else [1, 1.0] for true in told]))
