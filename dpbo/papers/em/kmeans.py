"""Private k-means: Lloyd's steps on released counts and sums.

    DPKMeans(5, budget=Budget(epsilon=1.0, delta=1e-6), radius=1.0).fit(X)

There are two kinds of noise on the same steps. DPKMeans clips to a ball and adds Gaussian noise to
the joint vector of all counts and sums, whose sensitivity is 2 (sqrt 2 under ADD_OR_REMOVE_ONE)
whatever K and d are. DPLloyd (Blum, Dwork, McSherry & Nissim 2005) clips to a cube and adds Laplace
noise to each number, of l1 sensitivity 2 (d + 1) (d + 1 under ADD_OR_REMOVE_ONE): pure privacy, and
the better choice only where d and the number of steps are small. Centres start spread evenly over
the ball or cube; the start does not depend on the records.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import TransformerMixin

from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.papers.em.estimator import Components, Floats, Iterations, LabelEstimator
from dpbo.papers.em.gaussians import in_unit_ball
from dpbo.papers.em.point_sums import ClusterSums
from dpbo.validation import Name

_CLOUD = 4000


@dataclass(eq=False, repr=False)
class DPKMeans(TransformerMixin, LabelEstimator):  # type: ignore[misc]
    """scikit-learn's KMeans, privately; `fit` takes an array or a Curator. It keeps no labels and
    no inertia of the records.

    On a CPU the curator keeps the clipped records as whole numbers for the next step: 4 n d bytes
    beside the records themselves.

    The guarantee holds without assumptions: it rests on the sensitivity proven in `ClusterSums`.

    Args:
        n_clusters: K.
        budget, mechanism, bounds, radius, center, adjacency, accounting, dimension, vectors, name:
            as in DPGaussianMixture. With bounds what is nearest is decided in their units.
        max_iter: steps, each one release.
        random_state: of the start, never of noise.

    Attributes:
        cluster_centers_: `K x d`. statement_: the guarantee.
    """

    _norm: ClassVar[str] = "l2"
    _noise: ClassVar[type[AdditiveMechanism]] = GaussianMechanism

    n_clusters: Components = 8
    _: KW_ONLY
    max_iter: Iterations = 7
    name: Name = "k-means"

    def fit(self, X: Any, y: Any = None) -> DPKMeans:
        """Reserve the releases, run the steps, and keep the centres. X: `n x d`, or a Curator. A
        row with a cell that is NaN, infinite or no number is in no count and no sum.

        Raises:
            InputError: an argument outside its range.
            BudgetExceeded: the budget is not left.
        """
        curator, d, ball = self._open_points(X, self._norm)
        K = self.n_clusters
        seed = self._seed(curator)
        centers = spread_centers(K, d, self._norm, np.random.RandomState(seed))
        query = ClusterSums(d, ball=ball, centers=centers, keep=True, **self._of_records())
        terms, given = self._of_points({"n_clusters": K, "random_state": seed})
        reservation = self._reserve(X, curator, self.max_iter, [query], terms, given, self._noise)
        for _ in range(self.max_iter):
            query = dataclasses.replace(query, centers=centers)
            value, std = map(query.table, self._release(reservation, query, "k-means"))
            means = value[:, 1:] / torch.maximum(value[:, 0], std[:, 0].clamp(min=1.0)).unsqueeze(1)
            centers = means.clamp(-1.0, 1.0) if ball.norm == "linf" else in_unit_ball(means)
        centers = ball.outward(centers)
        self.cluster_centers_ = self._outward(centers).numpy()
        self.statement_ = curator.statement()
        self.n_iter_ = self.max_iter
        self._n_features_out = K
        return self

    def predict(self, X: Any) -> Any:
        """The nearest centre of each row: `n`."""
        return self.transform(X).argmin(1)

    def transform(self, X: Any) -> Floats:
        """Distances to the centres, in units of the bounds where there are any: `n x K`."""
        points = self._points(X)
        return torch.cdist(
            self._inward(points),
            self._inward(torch.from_numpy(self.cluster_centers_)),
            compute_mode="donot_use_mm_for_euclid_dist",
        ).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sum of squared distances of the caller's rows to their nearest centres.

        Raises:
            InputError: some of them are records that a ledger of this process protects.
        """
        return -float(np.square(self.transform(self._unprotected(X)).min(1)).sum())


class DPLloyd(DPKMeans):
    """k-means with Laplace noise on counts and sums in the cube of half side `radius`, or
    between bounds: pure epsilon-DP a step. Arguments as in DPKMeans.

    The paper's guarantee (Blum et al. 2005) holds without assumptions; DPKMeans is the method with
    less noise beside it. Under PureFilter the steps add up as epsilons (delta 0), elsewhere as
    Laplace mechanisms.
    """

    _norm: ClassVar[str] = "linf"
    _noise: ClassVar[type[AdditiveMechanism]] = LaplaceMechanism


def spread_centers(count: int, d: int, norm: str, generator: np.random.RandomState) -> torch.Tensor:
    """`count` well-spread points of the unit ball ("l2") or cube ("linf"), `count x d`: Lloyd's
    steps on a public cloud of uniform points.

    They start from the cloud's first point, and then always the one furthest from all before.
    """
    if norm == "linf":
        cloud = torch.from_numpy(generator.uniform(-1.0, 1.0, size=(_CLOUD, d)))
    else:
        normal = torch.from_numpy(generator.standard_normal((_CLOUD, d)))
        radius = torch.from_numpy(generator.uniform(size=(_CLOUD, 1)) ** (1.0 / d))
        cloud = radius * normal / normal.norm(dim=1, keepdim=True)
    centers = cloud[:1]
    for _ in range(count - 1):
        furthest = torch.cdist(cloud, centers).amin(1).argmax()
        centers = torch.cat([centers, cloud[furthest].unsqueeze(0)])
    for _ in range(20):
        nearest = torch.nn.functional.one_hot(torch.cdist(cloud, centers).argmin(1), count).to(
            cloud.dtype
        )
        centers = (nearest.T @ cloud) / nearest.sum(0).clamp(min=1.0).unsqueeze(1)
    return centers
