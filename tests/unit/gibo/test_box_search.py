"""L-BFGS within boxes for many problems at once, against solutions that are known and SciPy's."""

import math

import torch

from dpbo.gibo.box_search import minimize_in_boxes
from tests.setups import DOUBLE

N = 6


def searched(objective, U, lower, upper):
    """Points found, where `objective` takes points and the numbers of their runs."""
    runs = torch.arange(len(U))
    return minimize_in_boxes(
        lambda some: lambda at: objective(at, runs if some is None else some),
        U,
        lower.expand_as(U),
        upper.expand_as(U),
        going=torch.ones(len(U), dtype=torch.bool),
        steps=200,
        close=1e-12,
    )


def test_quadratics_end_where_their_boxes_let_them():
    curvatures = torch.logspace(0.0, 3.0, N, dtype=DOUBLE) * (1.0 + torch.rand(9, N, dtype=DOUBLE))
    centres = torch.randn(9, N, dtype=DOUBLE)
    lower, upper = torch.tensor([-0.5, 0.7], dtype=DOUBLE)

    def objective(U, runs):
        slope = curvatures[runs] * (U - centres[runs]) / 1e3
        return 0.5 * (slope * (U - centres[runs])).sum(1), slope

    start = torch.zeros(9, N, dtype=DOUBLE)
    found = searched(objective, start, lower, upper)
    torch.testing.assert_close(found, centres.clamp(lower, upper), rtol=0.0, atol=1e-4)


def test_where_there_is_no_value_steps_are_shortened():
    def objective(U, _):
        inside = U.norm(dim=1) < 1.0
        return torch.where(inside, (U - 0.3).square().sum(1), math.nan), 2.0 * (U - 0.3)

    found = searched(
        objective, torch.full((2, N), -0.4, dtype=DOUBLE), -torch.ones(()), torch.ones(())
    )
    torch.testing.assert_close(found, torch.full((2, N), 0.3, dtype=DOUBLE), rtol=0.0, atol=1e-5)
