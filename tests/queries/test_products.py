"""Products whose columns' bits do not depend on where they stand."""

import pytest
import torch

from dpbo.queries import products
from dpbo.queries.products import by_columns, slow_product

DOUBLE = torch.float64
SHAPES = [(2, 1, 3840), (5, 21, 3840), (33, 300, 240), (100, 10, 960), (5, 7, 1), (3, 4, 97), (6, 21, 4096), (16, 66, 4095)]


def matrices(rows, depth, columns):
    generator = torch.Generator().manual_seed(rows + depth + columns)
    return (torch.randn(*shape, dtype=DOUBLE, generator=generator) for shape in ((rows, depth), (depth, columns)))


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
@pytest.mark.parametrize("multiply", [by_columns, slow_product])
@pytest.mark.attack("A4")
def test_a_column_has_the_same_bits_in_every_place(rows, depth, columns, multiply):
    """Also in numbers of columns that leave something over beside whole tiles, where a library may add up in another order."""
    A, X = matrices(rows, depth, columns)
    places = torch.randperm(columns, generator=torch.Generator().manual_seed(0))
    found = multiply(A, X)
    assert torch.equal(multiply(A, X[:, places]), found[:, places])
    torch.testing.assert_close(found, A @ X, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.attack("A4")
def test_the_bits_of_a_column_are_those_of_some_sum_in_order_where_the_library_is_not_asked(threads):
    A, X = matrices(3, 5, 50)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = slow_product(A, X)
    torch.set_num_threads(before)
    wanted = torch.zeros(3, 50, dtype=DOUBLE)
    for i in range(3):
        for j in range(50):
            for k in range(5):
                wanted[i, j] += A[i, k] * X[k, j]
    assert torch.equal(found, wanted)


def test_a_shape_is_tried_once():
    products._alike.cache_clear()
    for _ in range(3):
        by_columns(*matrices(4, 3, 48))
    assert products._alike.cache_info().misses == 1
