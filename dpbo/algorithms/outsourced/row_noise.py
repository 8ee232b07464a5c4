"""Sound ways to release rows, and the least noisy of them for a budget.

    options = row_noises(3, budget=Budget(3.0, 0.0), moves=1.0)        # least noisy first
    options[0].mechanism, options[0].variance

All rest on the sensitivity of one row (queries/rows.py), whatever the number of rows:
  l2-Laplace      pure epsilon; variance (d + 1) (moves / epsilon)^2 a coordinate; best up to about d = (sigma epsilon)^2, 13 to 35 usually
  Gaussian        the analytic calibration; variance sigma^2 a coordinate
  projected       rows times A, `d x k`, then either of them: the noise is calibrated to |A|, the spectral norm of this A
With A = sqrt(d/k) times a frame of k orthonormal columns, distances are kept on average and |A| = sqrt(d/k) exactly. The total noise
k |A|^2 sigma^2 = d sigma^2 is then that of no projection; what is won is a smaller k, for which the rows keep more of their correlation
(`kept`), and what is lost are the distances' own errors, about sqrt(2/k) of each.

Source: analytic Gaussian, Balle & Wang 2018; l2-Laplace, Hardt & Talwar 2010; projection, Kenthapadi et al. 2013.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from dpbo.accounting.calibrate import calibrate
from dpbo.accounting.filters import Accounting, GDPFilter, PureFilter
from dpbo.errors import InputError
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.l2_laplace import L2LaplaceMechanism
from dpbo.privacy import Budget, require_count, require_positive

_LAWS: tuple[type[AdditiveMechanism], ...] = (L2LaplaceMechanism, GaussianMechanism)


@dataclass(frozen=True, eq=False)
class RowNoise:
    """One way to release rows.

    Attributes:
        mechanism: for `curator.release(RowTable(..., projection=projection), mechanism)`.
        accounting: under which it stays within the budget.
        projection: A, `d x k`, or None.
        dimension: k, of a released row.
        variance: of the noise of each released coordinate.
    """

    mechanism: AdditiveMechanism
    accounting: Accounting
    projection: torch.Tensor | None
    dimension: int
    variance: float

    def kept(self, lengthscale: float) -> float:
        """Share of the prior variance that released rows still share with their surroundings: (l^2 / (l^2 + 2 s^2))^(k/2)."""
        squared = require_positive("lengthscale", lengthscale) ** 2
        return float((squared / (squared + 2 * self.variance)) ** (self.dimension / 2))

    def __str__(self) -> str:
        name = self.mechanism.kind.mechanism
        onto = "" if self.projection is None else f" of a projection onto {self.dimension} dimensions"
        return f"{name}{onto}: standard deviation {math.sqrt(self.variance):.4g} a coordinate"


def row_noises(
    dimension: int,
    *,
    budget: Budget,
    moves: float,
    accounting: Accounting | None = None,
    share: float | Fraction = 1,
    projections: Sequence[int] = (),
    lengthscale: float | None = None,
    seed: int = 0,
) -> list[RowNoise]:
    """Every sound way that the budget pays for, the least noisy first.

    Args:
        dimension: d of a row.
        budget: of the ledger.
        moves: sensitivity of a row before any projection: `row_change.norm`, or 2 R under REPLACE_ONE.
        accounting: of the ledger; omitted, the rows are all it will release, and each law takes the accounting that suits it.
        share: part of the budget for the rows.
        projections: numbers k < d of dimensions to consider.
        lengthscale: of the modeler's kernel: "least noisy" is then by `kept`. Omitted, by total variance, which ignores projections' gain.
        seed: of the projections; public.

    Raises:
        InputError: an argument outside its range, or an accounting that pays for none.
    """
    require_count("dimension", dimension)
    onto = [None, *(random_projection(dimension, k, seed=seed) for k in projections)]
    found = [way for law in _LAWS for A in onto if (way := _way(law, A, dimension, budget, moves, accounting, share)) is not None]
    if not found:
        raise InputError("accounting", accounting.name if accounting else None, "one that pays for Gaussian or l2-Laplace noise")
    return sorted(found, key=lambda way: way.variance * way.dimension if lengthscale is None else -way.kept(lengthscale))


def random_projection(dimension: int, k: int, *, seed: int) -> torch.Tensor:
    """sqrt(d/k) times k orthonormal columns in uniform directions, `d x k`: keeps squared distances on average; spectral norm sqrt(d/k)."""
    if require_count("k", k) > require_count("dimension", dimension):
        raise InputError("k", k, f"at most the dimension {dimension}", "A projection to more dimensions only adds noise.")
    directions = torch.randn(dimension, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    frame, upper = torch.linalg.qr(directions)
    return frame * upper.diagonal().sign() * math.sqrt(dimension / k)


def _way(
    law: type[AdditiveMechanism],
    projection: torch.Tensor | None,
    dimension: int,
    budget: Budget,
    moves: float,
    accounting: Accounting | None,
    share: float | Fraction,
) -> RowNoise | None:
    chosen = accounting or (PureFilter() if law is L2LaplaceMechanism else GDPFilter())
    try:
        mechanism = law(calibrate(budget, releases=1, share=share, accounting=chosen, event=law.kind))
    except InputError:  # this accounting, or this budget, pays for no such noise
        return None
    k = dimension if projection is None else projection.shape[1]
    norm = 1.0 if projection is None else float(torch.linalg.matrix_norm(projection, 2))
    scale = mechanism.noise_multiplier * require_positive("moves", moves) * norm
    return RowNoise(mechanism, chosen, projection, k, (scale * mechanism.std(k)) ** 2)
