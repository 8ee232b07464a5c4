"""Cases for which the sums that the GPU kernels take in one pass are compared with those of the CPU.

The sums of clipped vectors are of few bits, so that products are exact in tf32 and float32 and the kernel must give the CPU's own integers.
`python -m tests.unit.gpu.fused_cases` runs both kernels in Triton's interpreter, where there is no GPU (TRITON_INTERPRET=1), and
prints, case by case, whether the sums are the same, and how far the moments are from those of the torch path; then whether the
trial launches succeed, whether the CPU is sent another way all the same, and where a removed unit changes what others add.
"""

import ctypes
import importlib.metadata
import json
import math
import mmap
import unittest.mock
from typing import Any

import numpy as np
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.gibo import ClippedGradient
from dpbo.gibo import gradient_kernel as gradient
from dpbo.gibo import gradient_query as clipped
from dpbo.mechanisms import NoNoise
from dpbo.papers.em import moments_kernel as moments
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.moment_features import statistic_degrees, width_of
from dpbo.papers.em.point_sums import PointSums
from dpbo.queries.ball import Ball

SUMS = [  # units, columns, dimension, clip
    (1, 1, 1, 3.0), (300, 20, 33, 50.0), (130, 7, 5, 1e4), (129, 33, 16, 0.3), (77, 40, 70, 200.0), (65, 5, 128, 40.0), (10, 3, 256, 5.0),
    (9, 2, 1, 0.3),
]  # fmt: skip
AT_AN_EDGE = (68, 33, 16, 0.3)  # columns are where the kernel reads them: their length is a multiple of 16 bytes
CENTER = 3.0
AIMS = (clipped._SHORTER, 1.1)  # with the second, floats fail to shorten, and what is too long must count as nothing
MOMENTS = [  # records, dimension, components, covariance, whether the ball is turned
    (300, 2, 5, "full", False), (300, 2, 5, "full", True), (130, 3, 1, "diag", False), (77, 1, 2, "spherical", False),
    (260, 3, 4, "spherical", True), (257, 4, 2, "full", False), (1, 1, 1, "full", False), (129, 2, 10, "diag", False),
    (1300, 2, 3, "full", False),  # several blocks a program
]  # fmt: skip


def far_apart(X):
    """The same numbers in columns 2^30 numbers from each other, in memory that is there where it is touched."""
    columns, rows, not_reserved = 1 << 30, len(X), 0x4000  # Linux's MAP_NORESERVE
    memory = mmap.mmap(-1, 4 * columns * X.shape[1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | not_reserved)
    far = torch.frombuffer(memory, dtype=X.dtype).as_strided((rows, X.shape[1]), (1, columns))
    return far.copy_(X)


def at_the_edge(X):
    """The same numbers up to the last byte that may be read: whoever reads beyond is stopped by the system."""
    needed, forbidden = X.numel() * X.element_size(), 0  # PROT_NONE
    readable = mmap.PAGESIZE * math.ceil(needed / mmap.PAGESIZE)
    memory = mmap.mmap(-1, readable + mmap.PAGESIZE)
    edge = torch.frombuffer(memory, dtype=X.dtype, count=X.numel(), offset=readable - needed).view(X.shape).copy_(X)
    behind = ctypes.c_void_p(edge.data_ptr() + needed)
    assert ctypes.CDLL(None, use_errno=True).mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), forbidden) == 0
    return edge


def sign_kept_apart(X):
    """The same numbers as a view that holds their negatives and a bit that says so."""
    return torch.complex(torch.zeros_like(X), -X).conj().imag


OTHERS: list[dict[str, Any]] = [
    {"together": 1}, {"together": 2, "case": (1300, 2, 3, "full", False)}, {"dtype": torch.float32},
    {"changed": sign_kept_apart}, {"changed": lambda X: X.T.contiguous().T},
    {"dtype": torch.float32, "changed": far_apart, "case": (130, 3, 1, "diag", False)}, {"changed": at_the_edge},
    {"changed": lambda X: X.nan_to_num(0.0, 3.0, -3.0).clamp(-9.0, 9.0).long()},
]  # fmt: skip


def both_sums(case, aim, device="cpu", changed=lambda column: column):
    """The sum in one pass, and the CPU's, of columns with a NaN, an infinity and a zero record."""
    units, columns, dimension, clip = case
    generator = torch.Generator().manual_seed(units)
    Y = torch.randint(-60, 60, (columns, units), generator=generator).float()
    W = torch.randint(-7, 8, (dimension, columns), generator=generator).double()
    if units > 5:
        Y[0, 3], Y[-1, 4], Y[:, 5] = math.nan, -math.inf, 0.0
    quantum, before = clipped.quantum_of(clip, dimension), clipped._SHORTER
    try:
        clipped._SHORTER = aim
        own = clipped.clipped_sum([changed(y) for y in Y], W, clip, quantum, CENTER)
        goal = clipped.aim_of(math.floor(clip / quantum), dimension)
    finally:
        clipped._SHORTER = before
    columns_there = [changed(y) for y in (Y - CENTER).to(device)]
    return gradient.one_pass_sum(columns_there, W.to(device), clip, quantum, aim=goal).tolist(), own.tolist()


def removals_apart(dimension, rows, *, device="cpu", one_pass=True, columns=37):
    """Removals of a unit, as (units, place), that changed the sum of clipped gradients by anything but what this unit adds alone.

    The other units move to other rows, and from a whole block of so many rows to a ragged one.
    """
    apart, clip = [], math.sqrt(columns * dimension)  # about half of the vectors are clipped
    quantum = clipped.quantum_of(clip, dimension)
    goal = clipped.aim_of(math.floor(clip / quantum), dimension)

    def total(Y):
        if not one_pass:
            return clipped.clipped_sum([*Y.to(device)], W, clip, quantum).cpu()
        return gradient.one_pass_sum([Y.to(device)], W, clip, quantum, aim=goal).cpu()

    for units in (rows + 1, 2 * rows):
        draw = torch.Generator().manual_seed(units)
        Y, W = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((columns, units), (dimension, columns)))
        whole = total(Y)
        for i in (0, rows // 2, rows - 1, rows, units - 1):
            left, alone = total(torch.cat([Y[:, :i], Y[:, i + 1 :]], 1)), total(Y[:, i : i + 1])
            if not alone.any() or not torch.equal(whole - left, alone):
                apart.append((units, i))
    return apart


def moments_of(records, dimension, components, covariance, turned, *, dtype=torch.float64):
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


def moments_apart(case, device="cpu", dtype=torch.float64, together=None, changed=lambda X: X):
    """[difference of all weights together, largest difference of a sum over n 2^a]: 0 and a rounding of weights, where all is well."""
    X, question = moments_of(*case, dtype=dtype)
    X = changed(X)
    steps, before = question.resolution(len(X)), moments._TOGETHER
    try:
        moments._TOGETHER = together or before
        fused_sums = moments.one_pass_moments(X.to(device), question._scaled_natural(steps), question.ball, steps, question.covariance)
    finally:
        moments._TOGETHER = before
    found, own = (sums.cpu().reshape(question.components, -1) for sums in (fused_sums, PointSums.sum_points(question, X, steps)))
    most = case[0] * 2.0**steps.weight_bits * torch.tensor([2.0 ** (steps.bits * p) for p in statistic_degrees(case[3], case[1]).tolist()])
    return [int((found.sum(0) - own.sum(0)).abs().max()), float(((found - own).abs() / most).max())]


def mean_gradient(center, level):
    """A gradient by the one-pass path, half of whose losses were kept from a query with another center, and the true one.

    Losses lie around a center, each record's around a level of its own, and differ little from point to point, as in a small design.
    """
    random = torch.Generator().manual_seed(0)
    X = 0.1 * torch.randn(12, 4, generator=random, dtype=torch.float64)
    X, W = X - X.mean(0), torch.linalg.pinv(X - X.mean(0))
    records = torch.randn(300, 5, generator=random, dtype=torch.float64)
    owner = Curator(records, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget(1.0, 1e-6))

    def gradient_of(weights, points, **terms):
        return ClippedGradient(lambda x, rows: center + level * rows[:, 4] + rows[:, :4] @ x, points, weights=weights, clip=100.0, **terms)

    with unittest.mock.patch("dpbo.gibo.gradient_query.can_sum_in_one_pass", return_value=True):
        kept = owner.evaluate(gradient_of(W[:, :6], X[:6], center=center - 1.5, keep=True))
        handle = owner.evaluate(gradient_of(W, X[6:], center=center, earlier=[kept]))
        (release,) = owner.release_all([handle], NoNoise(allow_not_private=True))
    return release.value, records[:, :4].mean(0)


def center_errors():
    """Relative errors: of a gradient, what a large center changes in it, and what levels far above the losses' differences change."""
    (plain, truth), (moved, _), (raised, _) = mean_gradient(0.0, 0.0), mean_gradient(1e4, 0.0), mean_gradient(0.0, 10.0)
    return [float(error.norm() / truth.norm()) for error in (plain - truth, moved - plain, raised - plain)]


def product_in_one_order(a, b, dtype):
    """What stands in for a GPU's product in the interpreter: numpy's own adds the terms of some rows in another order than others."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), dtype)
    for j in range(a.shape[-1]):
        total += a[..., j : j + 1].astype(dtype) * b[..., j : j + 1, :].astype(dtype)
    return total


def read_bounds_of_loops():
    """Lets the interpreter of Triton before 3.7 run loops with numpy 2.5.

    There a scalar is an array of one element, and a loop's bound is `int(array)`. numpy 2.5 reads
    an array as a whole number only if it has no dimension. Triton 3.7 and newer remove the
    dimension first, as is done here. Compiled kernels never come here.
    """
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang_tensor

    def prepared(tensor, *scope):
        prepare(tensor, *scope)
        tensor.__index__ = lambda scalar: int(scalar.handle.data.squeeze())

    interpreter._patch_lang_tensor = prepared


if __name__ == "__main__":
    cpu = torch.device("cpu")
    if tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) < (3, 7):
        read_bounds_of_loops()
    pairs = [both_sums(case, aim) for case in SUMS for aim in AIMS] + [both_sums(AT_AN_EDGE, AIMS[0], changed=at_the_edge)]
    same = [fused_sum == own for fused_sum, own in pairs]
    same += [all(gradient._works(cpu, width) for width in gradient.LAUNCHES), not gradient.can_sum_in_one_pass(cpu, 2)]
    apart = [moments_apart(case) for case in MOMENTS] + [moments_apart(**{"case": MOMENTS[0], **other}) for other in OTHERS]
    launched = [moments._works(cpu, 5, 2, "full") and moments._works(cpu, 3, 9, "diag"), not moments.can_sum_in_one_pass(cpu, 5, 2, "full")]
    with unittest.mock.patch.object(np, "matmul", product_in_one_order):
        removed = [removals_apart(width, rows) for width, (rows, *_) in gradient.LAUNCHES.items()]
    print(json.dumps([same, apart, launched, center_errors(), removed]))
