"""Ways to release rows privately, and which of them adds the least noise for a budget.

    # least noisy first
    options = row_noises(3, budget=Budget(3.0, 0.0), sensitivity=1.0)
    options[0].mechanism, options[0].variance

The guarantee of each holds without assumptions: it rests on the sensitivity of one row
(`RowTable`), whatever the number of rows.

    l2-Laplace   pure epsilon; variance (d + 1) (sensitivity / epsilon)^2 a coordinate; best up to
                 d = 13 to 35 usually
    Gaussian     the analytic calibration; variance sigma^2 a coordinate
    projected    rows times A, `d x k`, then either of them: the noise is calibrated to |A|, the
                 spectral norm of this A

With A = sqrt(d/k) times a frame of k orthonormal columns, squared distances are kept on average,
with relative variance 2 (d - k) / (k (d + 2)), and |A| = sqrt(d/k). Projecting and adding Gaussian
noise is then the same law as adding it and projecting: A^T of noise of covariance sigma^2 I has
covariance (d/k) sigma^2 I. So it wins nothing but fewer columns. l2-Laplace noise falls with the
dimension: (k + 1)(d/k) against (d + 1)(d/k) of the unprojected. There a projection pays where d and
the noise are large. The ways are compared by what the modeler needs, the relative error of the
squared distance between two rows a length-scale l apart: its variance is 2 (d - k)/(k (d + 2)) +
8 s^2/l^2 + 8 k s^4/l^4 for noise of variance s^2 a coordinate (Gaussian moments).

Source: analytic Gaussian, Balle & Wang 2018; l2-Laplace, Hardt & Talwar 2010; projection,
Kenthapadi et al. 2013.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import torch

from dpbo.accounting.calibration import calibrate
from dpbo.accounting.filters import Accounting, GDPFilter, PureFilter
from dpbo.errors import InputError
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.l2_laplace import L2LaplaceMechanism
from dpbo.privacy import Budget
from dpbo.validation import Count, between, checked

Length = Annotated[float, between(1e-100, 1e100)]


@checked
@dataclass(frozen=True, eq=False)
class RowNoise:
    """One way to release rows.

    Attributes:
        mechanism: for `curator.release(RowTable(..., projection=projection), mechanism)`.
        accounting: under which it stays within the budget.
        projection: A, `d x k`, or None.
        dimension: k, of a released row.
        variance: variance of the noise of each released coordinate.
    """

    mechanism: AdditiveMechanism
    accounting: Accounting
    projection: torch.Tensor | None
    dimension: int
    variance: float

    def error(self, lengthscale: Length) -> float:
        """Relative standard error of the squared distance of two rows a length-scale apart, as
        above.
        """
        ratio = self.variance / lengthscale**2
        if self.projection is None:
            d = k = self.dimension
        else:
            d, k = self.projection.shape
        return math.sqrt(2 * (d - k) / (k * (d + 2)) + 8 * ratio + 8 * k * ratio**2)

    def remaining_correlation(self, lengthscale: Length) -> float:
        """Share of the prior variance that released rows still share with their surroundings: (l^2
        / (l^2 + 2 s^2))^(k/2).
        """
        squared = lengthscale**2
        return float((squared / (squared + 2 * self.variance)) ** (self.dimension / 2))

    def __str__(self) -> str:
        name = self.mechanism.kind.mechanism
        if self.projection is None:
            onto = ""
        else:
            onto = f" of a projection onto {self.dimension} dimensions"
        return f"{name}{onto}: standard deviation {math.sqrt(self.variance):.4g} a coordinate"


@checked
def row_noises(
    dimension: Count,
    *,
    budget: Budget,
    sensitivity: Length,
    accounting: Accounting | None = None,
    share: float | Fraction = 1,
    projections: Sequence[int] = (),
    lengthscale: Length | None = None,
    seed: int = 0,
) -> list[RowNoise]:
    """Every sound way that the budget pays for, the least noisy first.

    Args:
        dimension: d of a row.
        budget: of the ledger.
        sensitivity: how far a row may move in l2, before any projection: `row_change.norm`, or 2 R
            under REPLACE_ONE.
        accounting: of the ledger; omitted, the rows are all it will release, and each mechanism
            takes the accounting that suits it.
        share: part of the budget for the rows, in (0, 1].
        projections: numbers k < d of dimensions to consider; needs `lengthscale`, without which
            nothing says what they cost.
        lengthscale: of the modeler's kernel, public: the ways are sorted by their `error`. Omitted,
            by their variance.
        seed: of the projections; public.

    Raises:
        InputError: an argument outside its range, or an accounting that pays for none.
    """
    if projections and lengthscale is None:
        raise InputError(
            "lengthscale",
            None,
            "a number, with projections",
            "Leave projections out where it is not known.",
        )
    maps = [None, *(random_projection(dimension, k, seed=seed) for k in projections)]
    found = []
    for kind, own_accounting in ((L2LaplaceMechanism, PureFilter), (GaussianMechanism, GDPFilter)):
        chosen = accounting or own_accounting()
        try:
            mechanism = kind(
                calibrate(budget, releases=1, share=share, accounting=chosen, event=kind.kind)
            )
        except InputError:
            # this accounting, or this budget, pays for no such noise
            continue
        for A in maps:
            k = dimension if A is None else A.shape[1]
            norm = 1.0 if A is None else float(torch.linalg.matrix_norm(A, 2))
            std = mechanism.noise_multiplier * sensitivity * norm * mechanism.std(k)
            found.append(RowNoise(mechanism, chosen, A, k, std**2))
    if not found:
        raise InputError(
            "accounting",
            accounting.name if accounting else None,
            "one that pays for Gaussian or l2-Laplace noise",
        )
    return sorted(
        found, key=lambda way: way.variance if lengthscale is None else way.error(lengthscale)
    )


@checked
def random_projection(dimension: Count, k: Count, *, seed: int) -> torch.Tensor:
    """sqrt(d/k) times k orthonormal columns in uniform directions, `d x k`: keeps squared distances
    on average; spectral norm sqrt(d/k).

    Rounded to multiples of 2^-30, so that machines whose last digits differ agree on it.
    """
    if k > dimension:
        raise InputError(
            "k",
            k,
            f"at most the dimension {dimension}",
            "A projection to more dimensions only adds noise.",
        )
    directions = torch.randn(
        dimension,
        k,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(seed),
        device="cpu",
    )
    frame, upper = torch.linalg.qr(directions)
    return (frame * upper.diagonal().sign() * math.sqrt(dimension / k) * 2.0**30).round() / 2.0**30
