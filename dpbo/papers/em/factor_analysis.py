"""Private factor analysis: the second moment is released once, EM on it is free.

    FA = DPFactorAnalysis(10, budget=Budget(epsilon=1.0, delta=1e-6), radius=30.0).fit(X)
    encode = embedding(FA)

x ~ N(mean, L L' + Psi) with Psi diagonal. There are at most two releases: the mean (unless `center`
is public), and the second moment A about it. A with its noise is no covariance: of its eigenvalues
only those that stand out of the noise say something. With noise of standard deviation s off the
diagonal the noise fills [-2 s sqrt d, 2 s sqrt d], and a true eigenvalue l > s sqrt d shows as l +
s^2 d / l (Benaych-Georges & Nadakuditi 2011). So those seen above the edge are kept and moved back,
and the rest of the diagonal is Psi's, shrunk towards its mean as far as its spread may be noise. EM
then runs on that low rank plus diagonal: 4 d r m flops a step, and the leading eigenpairs come from
matrix products alone (Lanczos), so nothing is dense but A itself.

Noise has the norm 2 s sqrt d against a trace of at most radius^2: with d = 4,096 pixels, n = 400
faces and epsilon 1 nothing is left but noise; n epsilon must be well above d. The ledger keeps
d(d+1)/2 numbers: at d = 1,000 a fit takes seconds, at 4,096 (8.4 million of them) some minutes and
7 GB.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpbo.errors import InputError
from dpbo.papers.em.estimator import (
    Components,
    Floats,
    Iterations,
    PointEstimator,
    record_count,
)
from dpbo.papers.em.gaussians import matrix_of
from dpbo.papers.em.point_sums import SecondMoment, VectorSum
from dpbo.queries.ball import Ball
from dpbo.validation import Name, Within, checked

_LEAST = 1e-6  # of Psi, in squared radii
Divisor = Annotated[
    float, Within("a finite number of at least 1", lambda value: 1.0 <= value < np.inf)
]


@dataclass(eq=False, repr=False)
class DPFactorAnalysis(TransformerMixin, PointEstimator):  # type: ignore[misc]
    """scikit-learn's FactorAnalysis, privately; `fit` takes an array or a Curator.

    The guarantee holds without assumptions: it rests on the sensitivity proven in `SecondMoment`.

    Args:
        n_components: m, the number of factors.
        budget, mechanism, bounds, radius, adjacency, accounting, dimension, vectors, name: as in
            DPGaussianMixture.
        center: public mean, `d`; omitted, the mean is released first, at half of the budget (of
            mu^2).
        divisor: public number of records, needed under ADD_OR_REMOVE_ONE with a public center.
        max_iter: iterations of EM, free.
        random_state: of the start, never of noise.

    Attributes:
        components_: L', `m x d`. noise_variance_: Psi, `d`. mean_: `d`. kept_: how many eigenvalues
            stood out of the noise.
    """

    n_components: Components = 1
    _: KW_ONLY
    divisor: Divisor | None = None
    max_iter: Iterations = 50
    name: Name = "factor analysis"

    def fit(self, X: Any, y: Any = None) -> DPFactorAnalysis:
        """Release, then EM. X: `n x d`, or a Curator. A row with a cell that is NaN, infinite or no
        number is in no sum: the estimates are those of the other rows.

        Raises:
            InputError: an argument outside its range.
            BudgetExceeded: the budget is not left.
        """
        curator, d, ball = self._open_points(X)
        seed = self._seed(curator)
        public = curator.units if curator.units is not None else self.divisor
        if self.center is not None and public is None:
            raise InputError(
                "divisor",
                None,
                "the public number of records",
                "Their number is private, and `center` is given.",
            )
        # beside the second moment the number of records costs nothing under REPLACE_ONE
        counted = self.center is not None and curator.units is not None
        second_moment = SecondMoment(d, ball=ball, counted=counted, **self._of_records())
        terms, given = self._of_points({"divisor": self.divisor, "random_state": seed})
        slots = 1 if self.center is not None else 2
        reservation = self._reserve(X, curator, slots, [second_moment], terms, given)
        if self.center is not None:
            count = float(public or 1.0)
        else:
            total = VectorSum(d, ball=ball, **self._of_records())
            value, std = self._release(reservation, total, "mean")
            count = record_count(public, value[0], std[0])
            mean = value[1:] / count
            mean = mean / max(1.0, float(mean.norm()))
            ball = Ball(ball.radius, center=ball.outward(mean.unsqueeze(0))[0])
            second_moment = dataclasses.replace(second_moment, ball=ball)
        value, std = self._release(reservation, second_moment, "second moment")
        if counted:
            count = record_count(public, value[0], std[0])
            value, std = value[1:], std[1:]
        A = matrix_of(value.unsqueeze(0) / count, d)[0]
        noise = std / count
        rank = min(d - 1, 2 * self.n_components + 5)
        start = np.random.RandomState(seed).standard_normal(d)
        basis, values, rest = low_rank_plus_diagonal(
            A, float(noise.min()), float(noise.max()), rank, start
        )
        L, psi = factors_of(basis, values, rest, self.n_components, self.max_iter)
        units = torch.full((d,), ball.radius, dtype=torch.float64, device="cpu")
        if self._box is not None:
            units *= self._box.half
        self.components_ = (L.T * units).numpy()
        self.noise_variance_ = (psi * units**2).numpy()
        self.mean_ = self._outward(ball.outward(torch.zeros_like(units)[None])[0]).numpy()
        self.kept_ = int((values > 0).sum())
        self.n_iter_ = self.max_iter
        self._n_features_out = len(self.components_)
        self.statement_ = curator.statement()
        return self

    def transform(self, X: Any) -> Floats:
        """Expected factors of each row: `n x m`."""
        points = self._points(X)
        return embedding(self)(points).numpy()

    def get_covariance(self) -> Floats:
        """L L' + Psi: `d x d`."""
        check_is_fitted(self)
        return self.components_.T @ self.components_ + np.diag(self.noise_variance_)

    def score_samples(self, X: Any) -> Floats:
        """log-density of each row, `n`: NaN for a row with a cell that is NaN or infinite."""
        return self._log_density(self._points(X, complete=False)).numpy()

    def _log_density(self, points: torch.Tensor) -> torch.Tensor:
        L, psi = torch.from_numpy(self.components_.T.copy()), torch.from_numpy(self.noise_variance_)
        law = torch.distributions.LowRankMultivariateNormal(
            torch.from_numpy(self.mean_), L, psi, validate_args=False
        )
        found: torch.Tensor = law.log_prob(points)  # type: ignore[no-untyped-call]
        return found

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the caller's rows.

        Raises:
            InputError: some of them are records that a ledger of this process protects.
        """
        return float(self._log_density(self._points(self._unprotected(X))).mean())


def low_rank_plus_diagonal(
    A: torch.Tensor, off_diagonal: float, diagonal: float, rank: int, start: Floats
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The part of a noisy second moment `d x d` that stands out of its noise, as V diag(values) V'
    + diag(rest).

    Args:
        off_diagonal, diagonal: standard deviation of the noise there.
        rank: most eigenpairs that are looked for.
        start: first vector of Lanczos' method, `d`.

    Returns:
        Eigenvectors `d x r`, denoised eigenvalues `r`, 0 where noise explains them, r >= 1; and the
        rest of the diagonal `d`, shrunk towards its mean by the share of its spread that noise
        explains, none below 1e-6 or a tenth of the mean.
    """
    d = len(A)
    if d <= 2 * rank + 2:
        values, vectors = torch.linalg.eigh(A)
    else:
        found = eigsh(A.numpy(), k=rank, which="LA", v0=start, tol=1e-8)
        values, vectors = torch.from_numpy(found[0].copy()), torch.from_numpy(found[1].copy())
    edge = off_diagonal * d**0.5
    root = values.square() - 4.0 * edge**2
    # noise alone passes it once in a hundred (Tracy & Widom 1996)
    beyond = values > 2.0 * edge * (1.0 + d ** (-2 / 3))
    values = torch.where(beyond & (root > 0), (values + root.clamp(min=0.0).sqrt()) / 2.0, 0.0)
    rest = A.diagonal() - (vectors.square() * values).sum(1)
    mean = rest.mean().clamp(min=_LEAST)
    spread = float((rest - mean).square().mean())
    kept = max(0.0, 1.0 - diagonal**2 / spread) if spread > 0.0 else 0.0
    return vectors, values, (mean + kept * (rest - mean)).clamp(min=max(_LEAST, 0.1 * float(mean)))


def factors_of(
    V: torch.Tensor, values: torch.Tensor, rest: torch.Tensor, m: int, iterations: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(L `d x m`, Psi `d`) by EM for the covariance V diag(values) V' + diag(rest); it starts from
    the leading eigenvectors.
    """
    full = rest + (V.square() * values).sum(1)
    order = values.argsort(descending=True)[:m]
    L = full.new_zeros(len(full), m)
    L[:, : len(order)] = V[:, order] * values[order].sqrt()
    psi = rest.clone()
    for _ in range(iterations):
        B, G = _posterior(L, psi)
        AB = V @ (values.unsqueeze(1) * (V.T @ B.T)) + rest.unsqueeze(1) * B.T
        L = torch.linalg.solve(G + B @ AB, AB.T).T
        psi = (full - (L * AB).sum(1)).clamp(min=_LEAST)
    return L, psi


@checked
class LinearEmbedding(torch.nn.Module):
    """x -> (x - mean) B', a public linear map `... x d` to `... x m`; give it to BoTorch on
    candidates before a model sees them.
    """

    def __init__(self, weight: torch.Tensor, mean: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("mean", mean)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        weight, mean = self.get_buffer("weight"), self.get_buffer("mean")
        return (X - mean) @ weight.T


@checked
def embedding(analysis: DPFactorAnalysis) -> LinearEmbedding:
    """The expected factors as a public linear map, for candidates of a later search.

    It maps points `... x d` to `... x m`.

    Args:
        analysis: a fitted DPFactorAnalysis.
    """
    check_is_fitted(analysis)
    B, _ = _posterior(
        torch.from_numpy(analysis.components_.T.copy()), torch.from_numpy(analysis.noise_variance_)
    )
    return LinearEmbedding(B, torch.from_numpy(analysis.mean_.copy()))


def _posterior(L: torch.Tensor, psi: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, G): E[z|x] = B x and its covariance G = (I + L' Psi^-1 L)^-1."""
    scaled = L.T / psi
    G = torch.linalg.inv(torch.eye(L.shape[1], dtype=L.dtype, device="cpu") + scaled @ L)
    return G @ scaled, G
