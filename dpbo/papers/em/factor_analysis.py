"""Private factor analysis: the second moment is released once, EM on it is free.

    FA = DPFactorAnalysis(10, budget=Budget(epsilon=1.0, delta=1e-6), radius=30.0).fit(X);    encode = embedding(FA)

x ~ N(mean, L L' + Psi) with Psi diagonal. At most two releases: the mean (unless `center` is public), and the second moment A about it
(second_moment.py). A + noise is no covariance: of its eigenvalues only those that stand out of the noise say something. With noise of
standard deviation s off the diagonal the noise fills [-2 s sqrt d, 2 s sqrt d], and a true eigenvalue l > s sqrt d shows as l + s^2 d / l
(Benaych-Georges & Nadakuditi 2011), so those seen above the edge are kept, moved back, and the rest of the diagonal is Psi's, shrunk
towards its mean as far as its spread may be noise. EM then runs on that low rank plus diagonal: 4 d r m flops a step, and the leading
eigenpairs come from matrix products alone (Lanczos): nothing dense beyond A itself. Noise has the norm 2 s sqrt d against a trace of at
most radius^2: with d = 4,096 pixels, n = 400 faces and epsilon 1 it drowns everything; n epsilon must be well above d. The ledger keeps
d(d+1)/2 numbers: at d = 1,000 a fit takes seconds, at 4,096 (8.4 million of them) some minutes and 7 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpbo.accounting.filters import Accounting
from dpbo.errors import InputError
from dpbo.papers.em.estimator import Center, Components, Floats, Iterations, Plan, PrivateEstimator, RandomState
from dpbo.privacy import Adjacency, require_count, require_positive
from dpbo.queries.ball import Ball
from dpbo.queries.point_sums import ClusterSums, SecondMoment
from dpbo.validation import Name, Positive, checked

_LEAST = 1e-6  # of Psi, in squared radii


class DPFactorAnalysis(TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """scikit-learn's FactorAnalysis, privately; `fit` takes an array or a Curator.

    Args:
        n_components: m, the number of factors.
        budget, radius, adjacency, accounting, dimension, vectors, name: as in DPGaussianMixture.
        center: public mean, `d`; omitted, the mean is released first, at half of the budget (of mu^2).
        divisor: public number of records, needed under ADD_OR_REMOVE_ONE with a public center.
        max_iter: steps of EM, free.
        random_state: of the start, never of noise.

    Attributes:
        components_: L', `m x d`. noise_variance_: Psi, `d`. mean_: `d`. kept_: how many eigenvalues stood out of the noise.
    """

    def __init__(
        self,
        n_components: Components = 1,
        *,
        budget: Any = None,
        radius: Positive | None = None,
        center: Center = None,
        divisor: float | None = None,
        max_iter: Iterations = 50,
        adjacency: Adjacency | str = "replace-one",
        accounting: Accounting | None = None,
        dimension: int | None = None,
        vectors: Callable[[Any], Any] | None = None,
        name: Name = "factor analysis",
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.budget = budget
        self.radius = radius
        self.center = center
        self.divisor = divisor
        self.max_iter = max_iter
        self.adjacency = adjacency
        self.accounting = accounting
        self.dimension = dimension
        self.vectors = vectors
        self.name = name
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> DPFactorAnalysis:
        """Release, then EM. X: `n x d`, or a Curator."""
        require_count("n_components", self.n_components)
        curator, d = self._opened(X)
        ball = self._ball(d)
        if self.center is not None and curator.units is None:
            require_positive("divisor", self.divisor, 1.0)
        seed = self._seed(curator)
        SecondMoment(d, ball=ball, vectors=self.vectors).sensitivity(curator.adjacency)  # refused, if at all, before anything is reserved
        center = None if ball.center is None else ball.center.tolist()
        terms = {"radius": self.radius, "center": center, "divisor": self.divisor, "dimension": d, "random_state": seed}
        plan = Plan(curator, self.name, self._spending(X), 1 if self.center is not None else 2, terms)
        ball, count = self._centered(plan, ball, d)
        answer = plan.ask(SecondMoment(d, ball=ball, vectors=self.vectors), "second moment")
        A = _symmetric(answer.value / count, d)
        basis, values, diagonal = self._spectrum(A, float(answer.std.min()) / count, d)
        rest = _evened(diagonal - (basis.square() * values).sum(1), float(answer.std.max()) / count)
        self._em(basis, values, rest, ball)
        self.kept_, self.n_iter_, self._n_features_out = int((values > 0).sum()), self.max_iter, len(self.components_)
        self.statement_ = plan.curator.statement()
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
        """log-density of each row."""
        points = self._points(X)
        L, psi = torch.from_numpy(self.components_.T.copy()), torch.from_numpy(self.noise_variance_)
        law = torch.distributions.LowRankMultivariateNormal(torch.from_numpy(self.mean_), L, psi)
        return law.log_prob(points).numpy()  # type: ignore[no-untyped-call]

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the caller's rows."""
        return float(self.score_samples(X).mean())

    def _centered(self, plan: Plan, ball: Ball, d: int) -> tuple[Ball, float]:
        """The ball around the mean, and the number to divide by."""
        public = plan.curator.units if plan.curator.units is not None else self.divisor
        if self.center is not None:
            return ball, float(public or 1.0)
        origin = torch.zeros(1, d, dtype=torch.float64)
        answer = plan.ask(ClusterSums(d, ball=ball, centers=origin, vectors=self.vectors), "mean")
        count = float(public) if public is not None else max(float(answer.value[0]), 1.0 + 3.0 * float(answer.std[0]))
        mean = answer.value[1:] / count
        mean = mean / max(1.0, float(mean.norm()))
        return Ball(ball.radius, center=ball.outward(mean.unsqueeze(0))[0]), count

    def _spectrum(self, A: torch.Tensor, noise: float, d: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(eigenvectors `d x r`, denoised eigenvalues `r`, diagonal of A `d`) of what stands out of the noise; r >= 1, values may be 0."""
        rank = min(d - 1, 2 * self.n_components + 5)
        start = self._generator().standard_normal(d)
        if d <= 2 * rank + 2:
            values, vectors = torch.linalg.eigh(A)
        else:
            found = eigsh(A.numpy(), k=rank, which="LA", v0=start, tol=1e-8)
            values, vectors = torch.from_numpy(found[0].copy()), torch.from_numpy(found[1].copy())
        edge = noise * d**0.5
        inside = values.square() - 4.0 * edge**2
        beyond = values > 2.0 * edge * (1.0 + d ** (-2 / 3))  # noise alone passes it once in a hundred (Tracy & Widom 1996)
        true = torch.where(beyond & (inside > 0), (values + inside.clamp(min=0.0).sqrt()) / 2.0, 0.0)
        return vectors, true, A.diagonal().clone()

    def _em(self, V: torch.Tensor, values: torch.Tensor, rest: torch.Tensor, ball: Ball) -> None:
        """EM for A = V diag(values) V' + diag(rest); starts from the leading eigenvectors."""
        floor, m = _LEAST, self.n_components
        full = rest + (V.square() * values).sum(1)
        order = values.argsort(descending=True)[:m]
        L = torch.zeros(len(full), m, dtype=torch.float64)
        L[:, : len(order)] = V[:, order] * values[order].sqrt()
        psi = rest.clone()
        for _ in range(self.max_iter):
            B, G = _posterior(L, psi)
            AB = V @ (values.unsqueeze(1) * (V.T @ B.T)) + rest.unsqueeze(1) * B.T
            L = torch.linalg.solve(G + B @ AB, AB.T).T
            psi = (full - (L * AB).sum(1)).clamp(min=floor)
        scale = ball.radius
        self.components_, self.noise_variance_ = (L.T * scale).numpy(), (psi * scale**2).numpy()
        center = torch.zeros(len(full), dtype=torch.float64) if ball.center is None else ball.center
        self.mean_ = center.numpy()


@checked
class LinearEmbedding(torch.nn.Module):
    """x -> (x - mean) B', a public linear map `... x d` to `... x m`; give it to BoTorch on candidates before a model sees them."""

    def __init__(self, weight: torch.Tensor, mean: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("mean", mean)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        weight, mean = self.get_buffer("weight"), self.get_buffer("mean")
        return (X - mean) @ weight.T


@checked
def embedding(analysis: DPFactorAnalysis) -> LinearEmbedding:
    """The expected factors as a public linear map: what was learned privately about a table, in the open for every later candidate."""
    check_is_fitted(analysis)
    if not isinstance(analysis, DPFactorAnalysis):
        raise InputError("analysis", type(analysis).__name__, "a fitted DPFactorAnalysis")
    B, _ = _posterior(torch.from_numpy(analysis.components_.T.copy()), torch.from_numpy(analysis.noise_variance_))
    return LinearEmbedding(B, torch.from_numpy(analysis.mean_.copy()))


def _posterior(L: torch.Tensor, psi: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, G): E[z|x] = B x and its covariance G = (I + L' Psi^-1 L)^-1."""
    scaled = L.T / psi
    G = torch.linalg.inv(torch.eye(L.shape[1], dtype=L.dtype) + scaled @ L)
    return G @ scaled, G


def _evened(rest: torch.Tensor, noise: float) -> torch.Tensor:
    """Variances shrunk towards their mean by the share of their spread that noise explains, none below the floor or a tenth of the mean."""
    mean = rest.mean().clamp(min=_LEAST)
    spread = float((rest - mean).square().mean())
    kept = max(0.0, 1.0 - noise**2 / spread) if spread > 0.0 else 0.0
    return (mean + kept * (rest - mean)).clamp(min=max(_LEAST, 0.1 * float(mean)))


def _symmetric(upper: torch.Tensor, d: int) -> torch.Tensor:
    i, j = torch.triu_indices(d, d)
    A = upper.new_zeros(d, d)
    A[i, j] = upper
    A[j, i] = upper
    return A
