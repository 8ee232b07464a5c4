"""What the modeler of `benchmarks.outsourced` is given: true rows, the published transform's, or rows released with noise.

Sound transforms protect one row's move by a norm of at most 1, of rows with norm up to 25: one fiftieth of the diameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.outsourced_problems import Problem
from dpbo import Adjacency, Budget, Curator, PrivacyUnit, RowChange
from dpbo.accounting import GDPFilter, PureFilter, calibrate
from dpbo.accounting.filters import Accounting
from dpbo.algorithms.outsourced import po_gp_ucb_transform, release_rows
from dpbo.mechanisms import AdditiveMechanism, GaussianMechanism, L2LaplaceMechanism
from dpbo.models import noisy_inputs, unprojected
from dpbo.queries import RowTable

SOUND = ("l2-Laplace", "Gaussian", "projection + Gaussian")
PUBLISHED = "published, NOT PRIVATE"
CHANGE = RowChange(1.0, diameter=50.0 * (1 + 1e-9))  # rows scaled to norm 25 may end a rounding above it


@dataclass(frozen=True, eq=False)
class Rows:
    """What a modeler holds: `Z`, `n x k`; the noise variance of each coordinate of a row in the coordinates of `Z` (0 if none)."""

    Z: Tensor
    variance: float | Tensor = 0.0

    def kernel(self, problem: Problem) -> Any:
        """Of the value over these rows: the original one where they carry no noise, and in the paper's transform."""
        original = problem.kernel()
        noiseless = isinstance(self.variance, float) and self.variance == 0.0
        return original if noiseless else noisy_inputs(original, self.variance, dimension=self.Z.shape[1])


def published(problem: Problem, epsilon: float, r: int, generator: torch.Generator) -> Rows:
    """PO-GP-UCB's Z, turned into d coordinates where it has more columns: it has rank d, no distance changes, and searches are faster."""
    made = po_gp_ucb_transform(problem.X, epsilon=epsilon, delta=problem.delta, r=r, generator=generator, allow_not_private=True)
    d = problem.X.shape[1]
    return Rows(made.Z if r <= d else made.Z @ torch.linalg.eigh(made.Z.mT @ made.Z).eigenvectors[:, -d:])


def released(X: Tensor, transform: str, epsilon: float, delta: float, k: int, generator: np.random.Generator) -> Rows:
    """A curator's release of these rows, charged to a ledger of their own and drawn from the system's entropy.

    Args:
        X: `n x d`.
        transform: one of SOUND.
        epsilon, delta: for one row that moves by a norm of at most 1; l2-Laplace needs no delta.
        k: columns of the projection, iid N(0, 1/k), published with the rows.
        generator: of the projection.
    """
    d, pure = X.shape[1], transform == "l2-Laplace"
    projection = torch.from_numpy(generator.standard_normal((d, k)) / k**0.5) if transform == "projection + Gaussian" else None
    accounting: Accounting = PureFilter() if pure else GDPFilter()
    budget = Budget(epsilon, 0.0 if pure else delta)
    curator = Curator(
        X,
        unit=PrivacyUnit("row"),
        adjacency=Adjacency.BOUNDED_ROW_CHANGE,
        row_change=CHANGE,
        budget=budget,
        accounting=accounting,
        role="candidate",
    )
    law: type[AdditiveMechanism] = L2LaplaceMechanism if pure else GaussianMechanism
    mechanism = law(calibrate(budget, releases=1, accounting=accounting, event=law.kind))
    table = RowTable((0.0,) * d, CHANGE.diameter / 2, row_change=CHANGE, projection=projection)
    sent = release_rows(curator, table, mechanism)
    return Rows(sent.Z, sent.variance) if projection is None else Rows(*unprojected(sent.Z, projection, sent.variance))
