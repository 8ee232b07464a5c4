"""Private k-means: Lloyd's steps on released counts and sums.

    DPKMeans(5, budget=Budget(epsilon=1.0, delta=1e-6), radius=1.0).fit(X)

Two laws of the noise on the same steps. DPKMeans clips to a ball and adds Gaussian noise to the joint vector of all counts and sums, of
sensitivity 2 (sqrt 2 under ADD_OR_REMOVE_ONE) whatever K and d are. DPLloyd (Blum, Dwork, McSherry & Nissim 2005) clips to a cube and adds
Laplace noise to each number, of l1 sensitivity 2 (d + 1) (d + 1): pure privacy, and the better choice only where d and the number of steps
are small. Centres start spread evenly over the ball or cube; nothing about the records is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import TransformerMixin

from dpbo.accounting.filters import Accounting
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.papers.em.estimator import Center, Components, Floats, Iterations, Plan, PrivateEstimator, RandomState, spread
from dpbo.privacy import Adjacency, require_count
from dpbo.queries.ball import Ball
from dpbo.queries.point_sums import ClusterSums
from dpbo.validation import Name, Positive

_CLOUD = 4000


class DPKMeans(TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """scikit-learn's KMeans, privately; `fit` takes an array or a Curator. It keeps no labels and no inertia of the records.

    Args:
        n_clusters: K.
        budget, radius, center, adjacency, accounting, dimension, vectors, name: as in DPGaussianMixture.
        max_iter: steps, each one release.
        random_state: of the start, never of noise.

    Attributes:
        cluster_centers_: `K x d`. statement_: what was guaranteed.
    """

    _norm: ClassVar[str] = "l2"
    _law: ClassVar[type[AdditiveMechanism]] = GaussianMechanism

    def __init__(
        self,
        n_clusters: Components = 8,
        *,
        budget: Any = None,
        radius: Positive | None = None,
        center: Center = None,
        max_iter: Iterations = 7,
        adjacency: Adjacency | str = "replace-one",
        accounting: Accounting | None = None,
        dimension: int | None = None,
        vectors: Callable[[Any], Any] | None = None,
        name: Name = "k-means",
        random_state: RandomState = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.budget = budget
        self.radius = radius
        self.center = center
        self.max_iter = max_iter
        self.adjacency = adjacency
        self.accounting = accounting
        self.dimension = dimension
        self.vectors = vectors
        self.name = name
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> DPKMeans:
        """Reserve the plan, release, and keep the centres. X: `n x d`, or a Curator."""
        K, steps = require_count("n_clusters", self.n_clusters), require_count("max_iter", self.max_iter)
        curator, d = self._opened(X)
        ball = self._ball(d, self._norm)
        seed = self._seed(curator)
        blank = torch.zeros(K, d, dtype=torch.float64)  # what could be refused later is refused before anything is reserved
        ClusterSums(d, ball=ball, centers=blank, vectors=self.vectors).sensitivity(curator.adjacency)
        center = None if self.center is None else np.asarray(self.center).tolist()
        terms = {"n_clusters": K, "radius": self.radius, "center": center, "dimension": d, "random_state": seed}
        plan = Plan(curator, self.name, self._spending(X), steps, terms, self._law)
        centers = spread(K, _uniform(np.random.RandomState(seed), d, self._norm))
        for _ in range(steps):
            centers = self._step(plan, ball, centers)
        self.cluster_centers_ = ball.outward(centers).numpy()
        self.statement_, self.n_iter_, self._n_features_out = plan.curator.statement(), steps, K
        return self

    def predict(self, X: Any) -> Any:
        """The nearest centre of each row: `n`."""
        return self.transform(X).argmin(1)

    def transform(self, X: Any) -> Floats:
        """Distances to the centres: `n x K`."""
        points = self._points(X)
        return torch.cdist(points, torch.from_numpy(self.cluster_centers_), compute_mode="donot_use_mm_for_euclid_dist").numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sum of squared distances of the caller's rows to their nearest centres."""
        return -float(np.square(self.transform(X).min(1)).sum())

    def _step(self, plan: Plan, ball: Ball, centers: torch.Tensor) -> torch.Tensor:
        """New centres from one release: noisy sum over noisy count, kept above noise, inside the ball or cube."""
        answer = plan.ask(ClusterSums(centers.shape[1], ball=ball, centers=centers, vectors=self.vectors), "k-means")
        value, std = answer.value.reshape(len(centers), -1), answer.std.reshape(len(centers), -1)
        means = value[:, 1:] / torch.maximum(value[:, 0], std[:, 0].clamp(min=1.0)).unsqueeze(1)
        if ball.norm == "linf":
            return means.clamp(-1.0, 1.0)
        return means / means.norm(dim=1, keepdim=True).clamp(min=1.0)


class DPLloyd(DPKMeans):
    """k-means with Laplace noise on counts and sums in the cube of half side `radius`: pure epsilon-DP a step. Arguments as in DPKMeans.

    Its steps add up as epsilons under PureFilter (delta 0), as Laplace laws elsewhere.
    """

    _norm: ClassVar[str] = "linf"
    _law: ClassVar[type[AdditiveMechanism]] = LaplaceMechanism


def _uniform(generator: np.random.RandomState, d: int, norm: str) -> torch.Tensor:
    """A public cloud, uniform over the unit ball or cube."""
    if norm == "linf":
        return torch.from_numpy(generator.uniform(-1.0, 1.0, size=(_CLOUD, d)))
    normal = torch.from_numpy(generator.standard_normal((_CLOUD, d)))
    radius = torch.from_numpy(generator.uniform(size=(_CLOUD, 1)) ** (1.0 / d))
    return radius * normal / normal.norm(dim=1, keepdim=True)
