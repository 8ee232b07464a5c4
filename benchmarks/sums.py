"""Steps of k-means and of EM beside scikit-learn's: seconds to sum the records' exact whole
numbers, without noise or ledger. `python -m benchmarks` shows the rows.

k-means, up to 7 steps of K = 8, as many as scikit-learn takes, with the curator's view made anew
for each fit: 4 n K d flops a step. The first step reads the records, 8 n d bytes, and keeps their
clipped places; each step reads these, 4 n d bytes, while distances and choices stay in cache.
scikit-learn's Lloyd does 2 n K d flops and adds each record to one centre. EM, one iteration of K =
10 full covariances: 4 n K F flops for F = 1 + d + d (d + 1) / 2, where scikit-learn does about 4 n
K d^2.
"""

import functools
import statistics
import warnings

import torch
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from benchmarks.harness import interleaved, ratio
from dpbo.papers.em.gaussians import Gaussians
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.point_sums import ClusterSums
from dpbo.privacy import PrivacyUnit
from dpbo.queries.ball import Ball
from dpbo.records.view import PrivateView

STEPS = 7
CLUSTERS = 8
COMPONENTS = 10


def compared(smoke: bool, seed: int) -> list[tuple[str, float, float, float]]:
    """What was summed, seconds, scikit-learn's, and the median of their ratios."""
    # Scikit-learn's, of steps that have not converged.
    warnings.simplefilter("ignore")
    repetitions = 2 if smoke else 7
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for n, d, clipped in ((10**6, 2, False), (10**5, 16, False), (10**5, 16, True)):
        X, centers = _clusters(n // (1000 if smoke else 1), d, CLUSTERS, generator)
        ball = Ball(float(X.norm(dim=1).max()) * (0.8 if clipped else 1.01))
        query = ClusterSums(d, ball=ball, centers=ball.inward(centers), keep=True)
        lloyd = KMeans(
            CLUSTERS,
            init="random",
            n_init=1,
            max_iter=STEPS,
            tol=0.0,
            algorithm="lloyd",
            random_state=seed,
        )
        work = functools.partial(_steps, query, X, lloyd.fit(X.numpy()).n_iter_)
        ours, theirs = interleaved(
            work, functools.partial(lloyd.fit, X.numpy()), repetitions=repetitions
        )
        name = f"k-means, {n} x {d}" + ", far records clipped" * clipped
        rows.append((name, statistics.median(ours), statistics.median(theirs), ratio(ours, theirs)))
    n = 1000 if smoke else 10**5
    d = 16
    X, means = _clusters(n, d, COMPONENTS, generator)
    ball = Ball(float(X.norm(dim=1).max()) * 1.01)
    spread = torch.eye(d, dtype=torch.float64).repeat(COMPONENTS, 1, 1) / (2.0 * ball.radius) ** 2
    start = Gaussians(
        torch.full((COMPONENTS,), 1.0 / COMPONENTS, dtype=torch.float64),
        ball.inward(means),
        spread,
        "full",
    )
    moments = MixtureMoments(d, ball=ball, natural=start.natural())
    mixture = GaussianMixture(
        COMPONENTS, max_iter=1, tol=0.0, means_init=means.numpy(), init_params="random_from_data"
    ).fit(X.numpy())

    def iteration() -> None:
        mixture._m_step(X.numpy(), mixture._e_step(X.numpy())[1])

    ours, theirs = interleaved(lambda: moments._total([X], n), iteration, repetitions=repetitions)
    rows.append(
        (
            f"one iteration of EM, {n} x {d}",
            statistics.median(ours),
            statistics.median(theirs),
            ratio(ours, theirs),
        )
    )
    return rows


def _clusters(
    n: int, d: int, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Records around centres, `n x d`, and the centres."""
    centers = 2.0 * torch.randn(count, d, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, count, (n,), generator=generator)
    return (
        centers[labels] + 0.5 * torch.randn(n, d, dtype=torch.float64, generator=generator),
        centers,
    )


def _steps(query: ClusterSums, X: torch.Tensor, count: int) -> None:
    # As a curator makes it for each fit.
    view = PrivateView.of(X, PrivacyUnit("record"), units_are_public=True)
    for _ in range(count):
        query._evaluate(view, None)
