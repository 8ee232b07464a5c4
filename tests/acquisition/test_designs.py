"""Closed-form designs: geometry, the printed figures of DP-GIBO's own optimum, and the trace they promise."""

import pytest
import torch

from dpbo.acquisition import designs
from dpbo.acquisition.trace import GradientTrace
from dpbo.models import GradientPosterior
from dpbo.models.radial import RBF, Matern52

DOUBLE = torch.float64
ONE = torch.ones(1, 1, dtype=DOUBLE)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 33])
def test_the_simplex_is_regular_and_centred(d):
    corners = designs.simplex(d)
    expected = torch.full((d + 1, d + 1), -1.0 / d, dtype=DOUBLE).fill_diagonal_(1.0)
    torch.testing.assert_close(corners @ corners.T, expected)
    torch.testing.assert_close(corners.sum(0), torch.zeros(d, dtype=DOUBLE))


@pytest.mark.parametrize(
    ("kernel", "d", "s2", "r", "trace"),
    [(RBF(ONE), 10, 5e-6, 0.0563, 0.0286), (RBF(ONE), 33, 5e-6, 0.0562, 0.1011), (Matern52(ONE), 10, 1e-4, 0.072, 0.353)],
)
def test_simplex_reproduces_the_figures(kernel, d, s2, r, trace):
    radius = designs.simplex_radius(kernel, d, s2)
    assert radius == pytest.approx(r, abs=0.5 * 10 ** -len(str(r)[2:]))
    assert d * designs.simplex_share(kernel, d, s2)(radius) == pytest.approx(trace, abs=0.5 * 10 ** -len(str(trace)[2:]))


@pytest.mark.parametrize(("kernel", "s2", "r", "trace"), [(RBF(ONE), 5e-6, 0.140, 0.0019), (Matern52(ONE), 1e-4, 0.092, 0.1035)])
def test_central_reproduces_the_figures(kernel, s2, r, trace):
    radius = designs.central_radius(kernel, s2)
    assert radius == pytest.approx(r, abs=5e-4)
    assert 10 * designs.central_share(kernel, s2)(radius) == pytest.approx(trace, abs=0.5 * 10 ** -len(str(trace)[2:]))


@pytest.mark.parametrize("kind", [RBF, Matern52])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_shares_are_the_trace(kind, d):
    lengths = torch.linspace(0.7, 1.6, d, dtype=DOUBLE).unsqueeze(0)
    posterior, theta = GradientPosterior(kind(lengths), 1e-3), torch.randn(d, dtype=DOUBLE)
    trace, weight = GradientTrace(posterior, theta), float((lengths**-2).sum())
    turn = designs.rotation(d, torch.Generator().manual_seed(0))
    for unit, share in (
        (designs.simplex(d), designs.simplex_share(kind(ONE), d, 1e-3 + 1e-6)),
        (designs.central(d), designs.central_share(kind(ONE), 1e-3 + 1e-6)),
    ):
        assert float(trace.value(theta + 0.2 * (unit @ turn) * lengths)) == pytest.approx(weight * share(0.2), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("s2", [1e-6, 1e-3, 1e-1, 1.0])
def test_radii_are_minima(d, s2):
    for kernel in (RBF(ONE), Matern52(ONE)):
        for radius, share in (
            (designs.simplex_radius(kernel, d, s2), designs.simplex_share(kernel, d, s2)),
            (designs.central_radius(kernel, s2), designs.central_share(kernel, s2)),
        ):
            assert share(radius) < min(share(0.98 * radius), share(1.02 * radius))


@pytest.mark.parametrize("b", [1, 2, 4, 5, 6, 7, 8, 9, 15, 30])
def test_any_number_of_distinct_points(b):
    points = designs.directions(b, 4)
    assert points.shape == (b, 4)
    assert b == 1 or float(torch.pdist(points).min()) > 0.1


def test_rotations_are_orthogonal_seeded_and_uniform():
    turn = designs.rotation(5, torch.Generator().manual_seed(3))
    torch.testing.assert_close(turn @ turn.T, torch.eye(5, dtype=DOUBLE))
    assert torch.equal(turn, designs.rotation(5, torch.Generator().manual_seed(3)))
    generator = torch.Generator().manual_seed(0)
    mean = torch.stack([designs.rotation(2, generator) for _ in range(2000)]).mean(0)
    assert float(mean.abs().max()) < 5.0 * (0.5 / 2000) ** 0.5  # an entry has variance 1/2
