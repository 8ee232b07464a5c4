"""PO-GP-UCB's Algorithm 1: as printed, in both branches, against the paper's numbers; and refused to whoever does not insist."""

import math
from typing import Any

import pytest
import torch

from dpbo.errors import InputError
from dpbo.papers.po_gp_ucb.transform import po_gp_ucb_omega, po_gp_ucb_transform

DOUBLE = torch.float64


def grid(side=100):
    """The paper's synthetic inputs: centred, then scaled to norm 25."""
    axis = torch.linspace(-1, 1, side, dtype=DOUBLE)
    X = torch.cartesian_prod(axis, axis)
    return 25.0 * X / X.norm(dim=1).max()


def published(X, epsilon, r=10, delta=1e-5, seed=0):
    return po_gp_ucb_transform(X, epsilon=epsilon, delta=delta, r=r, generator=torch.Generator().manual_seed(seed), allow_not_private=True)


def test_the_largest_tested_r_below_sigma_min_is_the_papers():
    """Tables 1 to 3: it is so only with the root over r log(2/delta), and rows centred before they are scaled."""
    X = grid()
    for log_epsilon, tested, largest in (
        (1.1, (3, 6, 8, 10, 15, 20), 10), (1.3, (3, 9, 12, 15, 20, 30), 15), (1.5, (5, 10, 15, 20, 30, 50), 20),
    ):  # fmt: skip
        assert max(r for r in tested if not published(X, math.exp(log_epsilon), r).inflated) == largest
    assert abs(published(X, 1.0).sigma_min - 1030.88) < 0.01
    assert po_gp_ucb_omega(epsilon=math.exp(1.1), delta=1e-5, r=10) == pytest.approx(976.1, abs=0.05)


def test_the_if_branch_is_a_projection_of_the_centred_rows():
    X, r = grid(12) + 3.0, 7
    release = published(X, 1e6, r)
    M = torch.randn(2, r, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    assert not release.inflated
    torch.testing.assert_close(release.Z, (X - X.mean(0)) @ M / r**0.5)


def test_the_else_branch_raises_the_singular_values():
    X, r = grid(12) + 3.0, 7
    release = published(X, 1.0, r)
    M = torch.randn(2, r, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    raised = torch.linalg.lstsq(M.mT, (r**0.5 * release.Z).mT).solution.mT
    _, S, Vh = torch.linalg.svd(X - X.mean(0), full_matrices=False)
    _, raised_values, _ = torch.linalg.svd(raised, full_matrices=False)
    assert release.inflated
    torch.testing.assert_close(raised_values, (S.square() + release.omega**2).sqrt())
    torch.testing.assert_close((Vh @ raised.mT @ raised @ Vh.mT).diagonal(), S.square() + release.omega**2)


def test_what_is_refused():
    X, generator = grid(3), torch.Generator()
    insisting: list[Any] = [{}, *({"allow_not_private": allowed} for allowed in (False, 1, "yes"))]
    for allowed in insisting:
        with pytest.raises(InputError, match="allow_not_private"):
            po_gp_ucb_transform(X, epsilon=1.0, delta=1e-5, r=3, generator=generator, **allowed)
    for wrong in (X.float(), X[:2], X * math.inf, X[:, 0]):
        with pytest.raises(InputError, match="X"):
            published(wrong, 1.0)
