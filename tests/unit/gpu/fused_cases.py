"""Cases for which the sums that the GPU kernel takes in one pass are compared with those of the
CPU.

The sums of clipped vectors are of few bits, so that products are exact in tf32 and float32 and the
kernel must give the CPU's own integers. `python -m tests.unit.gpu.fused_cases` runs the kernel in
Triton's interpreter, where there is no GPU (TRITON_INTERPRET=1), and prints, case by case, whether
the sums are the same; then whether trial launches succeed, whether the CPU is sent another way all
the same, and where a removed unit changes what others add.
"""

import ctypes
import importlib.metadata
import json
import math
import mmap
import unittest.mock

import numpy as np
import torch

from dpbo import Budget
from dpbo.gibo import ClippedGradient
from dpbo.gibo import gradient_kernel as gradient
from dpbo.gibo import gradient_query as clipped
from tests.setups import DOUBLE, EXACT, owner

SUMS = [  # units, columns, dimension, clip
    (1, 1, 1, 3.0),
    (300, 20, 33, 50.0),
    (130, 7, 5, 1e4),
    (129, 33, 16, 0.3),
    (77, 40, 70, 200.0),
    (65, 5, 128, 40.0),
    (10, 3, 256, 5.0),
    (9, 2, 1, 0.3),
]
# columns are where the kernel reads them: their length is a multiple of 16 bytes
AT_AN_EDGE = (68, 33, 16, 0.3)
CENTER = 3.0
# with the second, floats fail to shorten, and what is too long must count as nothing
AIMS = (clipped._SHORTER, 1.1)
# of weights and clip, beyond the ends of float32
UNITS = (2.0**-300, 2.0**300)


def at_the_edge(X):
    """The same numbers up to the last byte that may be read: whoever reads beyond is stopped by the
    system.
    """
    needed, forbidden = X.numel() * X.element_size(), 0  # PROT_NONE
    readable = mmap.PAGESIZE * math.ceil(needed / mmap.PAGESIZE)
    memory = mmap.mmap(-1, readable + mmap.PAGESIZE)
    edge = (
        torch.frombuffer(memory, dtype=X.dtype, count=X.numel(), offset=readable - needed)
        .view(X.shape)
        .copy_(X)
    )
    behind = ctypes.c_void_p(edge.data_ptr() + needed)
    assert (
        ctypes.CDLL(None, use_errno=True).mprotect(
            behind, ctypes.c_size_t(mmap.PAGESIZE), forbidden
        )
        == 0
    )
    return edge


def sign_kept_apart(X):
    """The same numbers as a view that holds their negatives and a bit that says so."""
    return torch.complex(torch.zeros_like(X), -X).conj().imag


def both_sums(case, aim, device="cpu", changed=lambda column: column, unit=1.0):
    """The sum in one pass, and the CPU's, of columns with a NaN, an infinity and a zero record."""
    units, columns, dimension, clip = case
    generator = torch.Generator().manual_seed(units)
    Y = torch.randint(-60, 60, (columns, units), generator=generator).float()
    W = unit * torch.randint(-7, 8, (dimension, columns), generator=generator).double()
    clip *= unit
    if units > 5:
        Y[0, 3], Y[-1, 4], Y[:, 5] = math.nan, -math.inf, 0.0
    quantum, before = clipped.quantum_of(clip, dimension), clipped._SHORTER
    try:
        clipped._SHORTER = aim
        own = clipped.clipped_sum([changed(y) for y in Y - CENTER], W, clip, quantum)
        goal = clipped.aim_of(math.floor(clip / quantum), dimension)
    finally:
        clipped._SHORTER = before
    there = (Y - CENTER).to(device)
    # each at a place of its own, and in one slab
    apart, together = (
        gradient.one_pass_sum(losses, W.to(device), clip, quantum, aim=goal).tolist()
        for losses in ([changed(y) for y in there], [there])
    )
    return (apart if apart == together else None), own.tolist()


def removals_apart(dimension, rows, *, device="cpu", one_pass=True, columns=37):
    """Removals of a unit, as (units, place), that changed the sum of clipped gradients by anything
    but what this unit adds alone.

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
        Y, W = (
            torch.randn(*shape, generator=draw, dtype=DOUBLE)
            for shape in ((columns, units), (dimension, columns))
        )
        whole = total(Y)
        for i in (0, rows, units - 1):
            left, alone = total(torch.cat([Y[:, :i], Y[:, i + 1 :]], 1)), total(Y[:, i : i + 1])
            if not alone.any() or not torch.equal(whole - left, alone):
                apart.append((units, i))
    return apart


def mean_gradient(center, level):
    """A gradient by the one-pass path, half of whose losses were kept from a query with another
    center, and the true one.

    Losses lie around a center, each record's around a level of its own, and differ little from
    point to point, as in a small design.
    """
    random = torch.Generator().manual_seed(0)
    X = 0.1 * torch.randn(12, 4, generator=random, dtype=DOUBLE)
    X, W = X - X.mean(0), torch.linalg.pinv(X - X.mean(0))
    records = torch.randn(300, 5, generator=random, dtype=DOUBLE)
    curator = owner(records, budget=Budget(1.0, 1e-6))

    def gradient_of(weights, points, **terms):
        return ClippedGradient(
            lambda x, rows: center + level * rows[:, 4] + rows[:, :4] @ x,
            points,
            weights=weights,
            clip=100.0,
            **terms,
        )

    with unittest.mock.patch("dpbo.gibo.gradient_query.can_sum_in_one_pass", return_value=True):
        kept = curator.evaluate(gradient_of(W[:, :6], X[:6], center=center - 1.5, keep=True))
        handle = curator.evaluate(gradient_of(W, X[6:], center=center, earlier=[kept]))
        (release,) = curator.release_all([handle], EXACT)
    return release.value, records[:, :4].mean(0)


def center_errors():
    """Relative errors: of a gradient, what a large center changes in it, and what levels far above
    the losses' differences change.
    """
    (plain, truth), (moved, _), (raised, _) = (
        mean_gradient(0.0, 0.0),
        mean_gradient(1e4, 0.0),
        mean_gradient(0.0, 10.0),
    )
    return [
        float(error.norm() / truth.norm())
        for error in (plain - truth, moved - plain, raised - plain)
    ]


def vector_errors(device="cpu"):
    """Over |W| |y - y_N|, how far a unit's vector W y is from the one in float64 at most, by the
    number of columns N: of any signs, and where all terms have the same one.
    """
    found = {}
    for columns in (34, 1024):
        draw = torch.Generator().manual_seed(columns)
        Y = torch.randn(columns, 6, generator=draw).double()
        W = torch.randn(8, columns, generator=draw, dtype=DOUBLE)
        Y[-1] = 0.0
        found[columns] = 0.0
        for losses, weights in ((Y, W), (Y.abs(), W.abs())):
            exact = weights @ losses
            clip = 2.0 * float(exact.norm(dim=0).max())
            quantum = clipped.quantum_of(clip, len(weights))
            goal = clipped.aim_of(math.floor(clip / quantum), len(weights))
            for y, truth in zip(losses.T, exact.T, strict=True):
                column = y.unsqueeze(1).float().to(device)
                own = gradient.one_pass_sum([column], weights, clip, quantum, aim=goal).cpu()
                error = (own * quantum - truth).norm() / (weights.norm() * y.norm())
                found[columns] = max(found[columns], float(error))
    return found


def product_in_one_order(a, b, dtype):
    """What stands in for a GPU's product in the interpreter: numpy's own adds the terms of some
    rows in another order than others.
    """
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

    if tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) >= (3, 7):
        return
    prepare = interpreter._patch_lang_tensor

    def prepared(tensor, *scope):
        prepare(tensor, *scope)
        tensor.__index__ = lambda scalar: int(scalar.handle.data.squeeze())

    interpreter._patch_lang_tensor = prepared


if __name__ == "__main__":
    cpu = torch.device("cpu")
    read_bounds_of_loops()
    pairs = [both_sums(case, aim) for case in SUMS for aim in AIMS]
    pairs += [both_sums(SUMS[1], AIMS[0], unit=unit) for unit in UNITS]
    pairs += [both_sums(AT_AN_EDGE, AIMS[0], changed=at_the_edge)]
    same = [fused_sum == own for fused_sum, own in pairs]
    same += [
        all(gradient._works(cpu, width) for width in gradient.LAUNCHES),
        not gradient.can_sum_in_one_pass(cpu, torch.ones(2, 3), 1.0),
    ]
    with unittest.mock.patch.object(np, "matmul", product_in_one_order):
        removed = [
            removals_apart(width, launch.rows) for width, launch in gradient.LAUNCHES.items()
        ]
    print(json.dumps([same, center_errors(), removed, [*vector_errors().values()]]))
