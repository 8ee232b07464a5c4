"""A private mixture of Gaussians by EM on jointly released moments.

    budget = Budget(epsilon=1.0, delta=1e-6)
    mixture = DPGaussianMixture(3, budget=budget, radius=20.0, random_state=0).fit(X)

There are three stages, all of fixed length and reserved together:

1. `frame_iter` releases of mean and covariance of all records. The records are then clipped within
   `reach` around these, so that the noise that follows is small beside every direction.
2. `init_iter` steps of k-means from a public start.
3. `max_iter` iterations of EM (`MixtureMoments`), whose answers are repaired and averaged
   (`gaussians`).

Every release is Gaussian with the same multiplier M, so J of them are exactly sqrt(J)/M-GDP. With
`noise="LLG"` an iteration of EM is two releases, one of them with Laplace noise. `frame_iter=0,
init_iter=0, settle=None, shares=(1, 1, 1)` is the plain algorithm in the ball of `radius`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from dpbo.curator.curator import Curator
from dpbo.curator.pricing import require_left
from dpbo.curator.reservation import Reservation
from dpbo.errors import InputError
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.papers.em.estimator import (
    Components,
    FiniteNumbers,
    Floats,
    Iterations,
    LabelEstimator,
    as_numbers,
    record_count,
)
from dpbo.papers.em.gaussians import (
    Averaged,
    Gaussians,
    Prior,
    counts_above,
    frame_of,
    mixture_of,
)
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.moment_features import Covariance, width_of
from dpbo.papers.em.point_sums import ClusterSums
from dpbo.queries.ball import Ball
from dpbo.validation import Count, Index, Name, at_least, between, one_of, require

_MARGIN = 2.0  # standard deviations beyond sqrt(d)
_SEPARATION = 0.5  # of the start's centres, in standard deviations of all records
_TERMS = (
    "n_components",
    "covariance_type",
    "method",
    "noise",
    "max_iter",
    "init_iter",
    "frame_iter",
    "reach",
    "settle",
    "shares",
    "reg_covar",
)
Method = Annotated[str, one_of("mle", "map")]
NoiseByParameter = Annotated[str, one_of("GGG", "LLG")]


@dataclass(eq=False, repr=False)
class DPGaussianMixture(DensityMixin, LabelEstimator):  # type: ignore[misc]
    """scikit-learn's GaussianMixture, privately; `fit` takes an array or a Curator.

    The guarantee of the DP-EM paper's code (Park et al. 2017) is broken: it adds noise for a
    covariance that moves by 1/N_k where 4/N_k is reached. This estimator is the sound method beside
    it: it releases all moments of an iteration together, and its guarantee holds without
    assumptions, by the sensitivity proven in `MixtureMoments`.

    Args:
        n_components: K. `bic` chooses it, by public rows or by released numbers: a recipe is in
            docs/how-to/other-releases.md.
        budget: a Budget; with a Curator also a share in (0, 1] of its budget.
        mechanism: NoNoise(allow_not_private=True) instead of a budget, for no privacy.
        bounds: public, one (lower, upper) a column, `d x 2`. Columns are scaled by them to [-1, 1]
            and clipped there, each record by itself, so that the sensitivity is the same.
            `covariance_type`, `reach` and k-means are in these units, all results in the caller's:
            "spherical" covariances are then `K x d`.
        radius: public; records further from `center` are clipped to that distance. With bounds it
            is in their units, and may be omitted: sqrt(d), which clips nothing more.
        center: public, `d`, in the caller's units; omitted, zero, or the middle of the bounds.
        covariance_type: "full", "tied", "diag" or "spherical".
        method: "mle", or "map" with the paper's priors.
        noise: the paper's two ways, on weights, means and covariances. "GGG": Gaussian noise on
            all, here in one joint release an iteration. "LLG": Laplace noise on weights and means,
            in one release of l1 sensitivity 2 (q + m sqrt d), and Gaussian noise on covariances, in
            another; each kind takes half of the budget. The paper found GGG better, as we did.
        means_init, weights_init: public start, `K x d` and `K` that sum to 1, or None. With
            `means_init` there are no steps of k-means, and the budget goes to the other releases.
        max_iter, init_iter, frame_iter: iterations, one release each, of EM, of k-means before it,
            of the frame before that.
        reach: radius of the ball around the frame, in standard deviations of all records; omitted,
            sqrt(d) + 2. What lies further is clipped to it, in the frame's metric: a far cluster of
            less than about 1 / (1 + reach^2) of the records (8 % for d = 2, 4 % for d = 10) is lost
            or drawn in, and heavy tails are cut. A larger reach, or frame_iter=0, keeps them, for
            more noise.
        settle: iterations of EM before their answers are averaged; None: never.
        shares: (q, m, c), noise weights of counts, means and second moments; None: those that lose
            the least expected likelihood.
        reg_covar: least eigenvalue of a covariance, in units of the squared radius that EM works
            in; None: 0.05 of the frame's unit variance, or 1e-3 without a frame.
        adjacency, accounting: of the curator that is made for an array; "replace-one" or
            "add-or-remove-one", or an Adjacency.
        dimension, vectors: with a Curator, number of columns, and how records give them.
        name: name of the reservation in the ledger; the same name and settings resume it.
        random_state: of start and samples, never of noise.

    Attributes:
        weights_, means_, covariances_, precisions_: as in scikit-learn. statement_: the guarantee.
            n_iter_: max_iter.
    """

    n_components: Components = 1
    _: KW_ONLY
    covariance_type: Covariance = "full"
    method: Method = "mle"
    noise: NoiseByParameter = "GGG"
    means_init: FiniteNumbers = None
    weights_init: FiniteNumbers = None
    max_iter: Iterations = 10
    init_iter: Index = 3
    frame_iter: Index = 1
    reach: Annotated[float, between(1.0, 1e6)] | None = None
    settle: Index | None = 3
    shares: tuple[float, float, float] | None = None
    reg_covar: Annotated[float, between(1e-12, 1.0)] | None = None
    name: Name = "dp-em"

    def fit(self, X: Any, y: Any = None) -> DPGaussianMixture:
        """Reserve the plan, release, and keep the mixture. X: `n x d`, or a Curator. A row with a
        cell that is NaN, infinite or no number is in no sum: the estimates are those of the other
        rows. To have it counted, fill the cell with a constant before.

        Raises:
            InputError: an argument outside its range.
            BudgetExceeded: the budget is not left.
        """
        curator, d, ball = self._open_points(X)
        K = self.n_components
        kind = self.covariance_type
        # the post-processing's: tied covariances are full ones that are alike
        shape = "full" if kind == "tied" else kind
        means_init, weights_init = self._public_start(d)
        seed = self._seed(curator)
        blank = torch.zeros(K, width_of(kind, d), dtype=torch.float64, device="cpu")
        moments = MixtureMoments(
            d,
            ball=ball,
            natural=blank,
            covariance=kind,
            weights=self._weights(d),
            **self._of_records(),
        )
        sums = ClusterSums(d, ball=ball, centers=blank[:, :d], **self._of_records())
        settings = self._settings(*_TERMS)
        settings |= {
            "random_state": seed,
            "means_init": means_init,
            "weights_init": weights_init,
        }
        parts = self._reserve_parts(X, curator, moments, sums, settings)
        reservation = parts[0][0]
        ball, covariance = self._frame(reservation, ball, d, shape)
        mixture = self._start(reservation, ball, covariance, d, shape, np.random.RandomState(seed))
        if self.reg_covar is not None:
            floor = self.reg_covar
        elif self.frame_iter:
            floor = 0.05 / self._reach(d) ** 2
        else:
            floor = 1e-3
        averaged = Averaged(self.max_iter if self.settle is None else self.settle, curator.units)
        prior = Prior() if self.method == "map" else None
        for _ in range(self.max_iter):
            answer = std = blank
            for reservation, query in parts:
                query = dataclasses.replace(query, ball=ball, natural=mixture.natural())
                value, its_std = map(query.table, self._release(reservation, query, "em"))
                answer, std = answer + value, std + its_std
            average, its_std = averaged.add(answer, std)
            mixture = mixture_of(average, its_std, d, kind, floor, prior)
        counts = counts_above(average, its_std)
        of_weights, of_means = averaged.noise_variances(std, mixture, counts, prior)
        if self._box is not None:
            ball = self._box.of(ball)
            mixture = mixture.by_column()
        self._mixture = mixture
        self._ball_ = ball
        outside = mixture.outward(ball)
        weights = outside.weights.numpy()
        self.weights_ = weights / weights.sum()
        back = ball.radius * torch.linalg.inv(_matrix_of(ball, d))
        of_means = (back @ of_means @ back.T).diagonal(dim1=1, dim2=2)
        self._noise_variances = of_weights.numpy(), of_means.numpy()
        spread = outside.dense().diagonal(dim1=1, dim2=2)
        self._sampling_variances = (
            self.weights_ * (1.0 - self.weights_) / float(counts.sum()),
            (spread / counts.unsqueeze(1)).numpy(),
        )
        self.means_ = outside.means.numpy()
        self.covariances_ = outside.covariances.numpy()
        if kind == "tied":
            self.covariances_ = self.covariances_[0]
        whole = shape == "full"
        self.precisions_ = np.linalg.inv(self.covariances_) if whole else 1.0 / self.covariances_
        self.noise_multiplier_ = getattr(reservation.mechanism, "noise_multiplier", 0.0)
        self.statement_ = curator.statement()
        self.n_iter_ = self.max_iter
        return self

    def standard_errors(self, *, sampling: bool = True) -> tuple[Floats, Floats]:
        """Standard errors of `weights_`, `K`, and `means_`, `K x d`, in the caller's units; free.

        They cover two things, as independent: the known noise of the moments that the last
        iterations averaged (the delta method, given the responsibilities), and with `sampling` that
        the records were drawn (p (1 - p) / n, and the component's variance over its count). An
        estimate is within 1.96 of them in 95 of 100 cases where components are well apart and few
        rows are clipped.

        They do not cover the clipping, nor that responsibilities were estimated: where components
        overlap, noise moves these, and they move the next moments. Both errors then grow, as EM
        converges more slowly: to 1 / (1 - r) times these where EM's error shrinks by r a step.

        Args:
            sampling: False for the noise alone, as where the records are all there are.
        """
        check_is_fitted(self)
        noise, drawn = self._noise_variances, self._sampling_variances
        weights, means = (a + sampling * b for a, b in zip(noise, drawn, strict=True))
        return np.sqrt(weights), np.sqrt(means)

    def score_samples(self, X: Any) -> Floats:
        """log-density of each row, `n`: NaN for a row with a cell that is NaN or infinite."""
        return self.log_density(self._points(X, complete=False)).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the caller's rows.

        Raises:
            InputError: some of them are records that a ledger of this process protects.
        """
        return float(self.log_density(self._points(self._unprotected(X))).mean())

    def log_density(self, X: torch.Tensor) -> torch.Tensor:
        """log-density at public points, `... x d` to `...`, differentiable: for
        `dpbo.acquisition.prior_guidance`.
        """
        check_is_fitted(self)
        X = require("X", X, torch.Tensor)
        if X.ndim == 0 or X.shape[-1] != self.n_features_in_ or X.dtype != torch.float64:
            raise InputError(
                "X",
                tuple(X.shape),
                f"float64, of shape ... x {self.n_features_in_}",
                "Use X.double().",
            )
        flat = self._ball_.inward(X.reshape(-1, X.shape[-1]))
        inside = torch.logsumexp(self._mixture.log_joint(flat), 1) + self._ball_.log_volume(
            X.shape[-1]
        )
        return inside.reshape(X.shape[:-1])

    def predict_proba(self, X: Any) -> Floats:
        """Responsibilities, `n x K`."""
        points = self._points(X)
        return torch.softmax(self._mixture.log_joint(self._ball_.inward(points)), 1).numpy()

    def predict(self, X: Any) -> Any:
        """The likeliest component of each row: `n`."""
        return self.predict_proba(X).argmax(1)

    def sample(self, n_samples: int = 1) -> tuple[Floats, Any]:
        """(rows, components) drawn from the released mixture; free."""
        check_is_fitted(self)
        require("n_samples", n_samples, Annotated[int, at_least(1, 10**8)])
        generator = self._generator()
        labels = np.sort(generator.choice(len(self.weights_), size=n_samples, p=self.weights_))
        normal = torch.from_numpy(generator.standard_normal((n_samples, self.n_features_in_)))
        inner = self._mixture.means[labels] + (
            self._mixture.factors()[labels] @ normal.unsqueeze(2)
        ).squeeze(2)
        return self._ball_.outward(inner).numpy(), labels

    def aic(self, X: Any, *, n_samples: Count | None = None) -> float:
        """Akaike's criterion for public rows, or for a released likelihood, as in `bic`."""
        total, _ = self._log_likelihood(X, n_samples)
        return -2.0 * total + 2.0 * self._n_parameters()

    def bic(self, X: Any, *, n_samples: Count | None = None) -> float:
        """The Bayesian information criterion, for public rows, or for a released likelihood.

        Args:
            X: public rows, `n x d`; or, with `n_samples`, the released mean log-density of so many
                records: that of a `ClippedMean` of `score_samples`, for example, in which a record
                with a missing cell counts as the lower end of the range for every mixture alike.
            n_samples: the public number of records behind a released mean.

        Raises:
            InputError: some rows are records that a ledger of this process protects, or X is a
                Curator: their exact likelihood is no release, nor is a choice that follows from it.
        """
        total, count = self._log_likelihood(X, n_samples)
        return -2.0 * total + float(np.log(count)) * self._n_parameters()

    def _log_likelihood(self, X: Any, n_samples: int | None) -> tuple[float, int]:
        """(log-likelihood, number of records)."""
        check_is_fitted(self)
        if n_samples is not None:
            count = require("n_samples", n_samples, Count)
            return count * require("X", X, float), count
        found = self.log_density(self._points(self._unprotected(X)))
        return float(found.sum()), len(found)

    def _n_parameters(self) -> int:
        K, d = self.means_.shape
        own = width_of(self.covariance_type, d) - 1 - d
        covariances = 1 if self.covariance_type == "tied" else K
        return K * (d + 1) - 1 + covariances * own

    def _steps_of_k_means(self) -> int:
        if self.n_components == 1 or self.means_init is not None:
            return 0
        return self.init_iter

    def _reserve_parts(
        self,
        X: Any,
        curator: Curator,
        moments: MixtureMoments,
        sums: ClusterSums,
        settings: dict[str, Any],
    ) -> list[tuple[Reservation, MixtureMoments]]:
        """The reservations, and the question that each answers in every iteration of EM. The first
        one is of Gaussian noise, and answers what comes before EM, too.
        """
        terms, given = self._of_points(settings)
        slots = self.frame_iter + self._steps_of_k_means() + self.max_iter
        if self.noise == "GGG":
            return [(self._reserve(X, curator, slots, [moments, sums], terms, given), moments)]
        half = Fraction(1, 2)
        begun = self.name in curator.ledger.used()
        if isinstance(X, Curator) and self.budget is not None and not begun:
            # before the first of two reservations
            require_left(curator.ledger, self.budget, f"{self.name!r}")
        squares = dataclasses.replace(moments, orders=(2,))
        others = dataclasses.replace(moments, orders=(0, 1))
        gaussian = self._reserve(X, curator, slots, [squares, sums], terms, given, share=half)
        laplace = self._reserve(
            X,
            curator,
            self.max_iter,
            [others],
            terms,
            given,
            LaplaceMechanism,
            part=", Laplace",
            share=half,
        )
        return [(gaussian, squares), (laplace, others)]

    def _public_start(self, d: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(`means_init`, `weights_init`) as tensors, once their shapes are those of K and d."""
        K = self.n_components
        means, weights = as_numbers(self.means_init), as_numbers(self.weights_init)
        if means is not None and means.shape != (K, d):
            raise InputError("means_init", tuple(means.shape), f"of shape {K} x {d}")
        if weights is not None:
            if weights.shape != (K,) or not bool((weights > 0.0).all()):
                raise InputError("weights_init", self.weights_init, f"{K} positive numbers")
            if abs(float(weights.sum()) - 1.0) > 1e-6:
                raise InputError("weights_init", self.weights_init, "of sum 1")
        if means is not None:
            means = self._inward(means)
        return means, weights

    def _reach(self, d: int) -> float:
        """Radius of the frame's ball in standard deviations of all records."""
        if self.reach is None:
            return math.sqrt(d) + _MARGIN
        return float(self.reach)

    def _weights(self, d: int) -> tuple[float, float, float]:
        """The noise weights of counts, means and second moments.

        Noise of standard deviation s/a on a block costs w s^2/a^2 nats, with w = (1, 2 d r^2, F_2
        r^4)/4 for a ball of r standard deviations. Among weights a of unit sum of squares, a^2 ~
        sqrt w costs least. Tied second moments are of all records, about K times those of a
        component, so noise on them costs 1/K^2 of that.
        """
        if self.shares is not None:
            return self.shares
        r = self._reach(d) if self.frame_iter else 3.0
        squares = (width_of(self.covariance_type, d) - 1 - d) * r**4
        if self.covariance_type == "tied":
            squares /= self.n_components**2
        blocks = (1.0, 2.0 * d * r**2, squares)
        largest = max(blocks)
        q, m, c = ((block / largest) ** 0.25 for block in blocks)
        return q, m, c

    def _frame(
        self, reservation: Reservation, ball: Ball, d: int, shape: str
    ) -> tuple[Ball, torch.Tensor]:
        """The ball around all records in which they are white, and their covariance in x's units,
        or the box's; a guess where nothing is released.
        """
        units = reservation.curator.units
        identity = torch.eye(d, dtype=torch.float64, device="cpu")
        inner = identity / (d + 2)  # of the uniform law on the unit ball
        for _ in range(self.frame_iter):
            natural = identity.new_zeros(1, width_of(shape, d))
            query = MixtureMoments(
                d, ball=ball, natural=natural, covariance=shape, **self._of_records()
            )
            value, std = map(query.table, self._release(reservation, query, "frame"))
            count = record_count(units, value[0, 0], std[0, 0])
            mean, whitening = frame_of(value, std, count, d, shape)
            center = ball.outward(mean.unsqueeze(0))[0]
            matrix = whitening @ _matrix_of(ball, d) / ball.radius
            ball = Ball(self._reach(d), center=center, matrix=matrix)
            inner = identity / self._reach(d) ** 2
        back = torch.linalg.inv(_matrix_of(ball, d))
        return ball, ball.radius**2 * back @ inner @ back.T

    def _start(
        self,
        reservation: Reservation,
        ball: Ball,
        covariance: torch.Tensor,
        d: int,
        kind: str,
        generator: np.random.RandomState,
    ) -> Gaussians:
        """K-means in x's own metric around the frame, or the public means, then one spherical
        Gaussian a centre, in the ball's coordinates.
        """
        K = self.n_components
        root = torch.linalg.cholesky(covariance)
        center = ball.center
        if center is None:
            center = covariance.new_zeros(d)
        cloud = torch.from_numpy(generator.standard_normal((K, d))) @ root.T
        means, own_weights = self._public_start(d)
        centers = _SEPARATION * cloud if means is None else means - center
        weights = covariance.new_full((K,), 1.0 / K)
        units = reservation.curator.units
        near = Ball(
            0.75 * self._reach(d) * float(torch.linalg.eigvalsh(covariance)[-1]) ** 0.5,
            center=center,
        )
        for _ in range(self._steps_of_k_means()):
            query = ClusterSums(d, ball=near, centers=centers / near.radius, **self._of_records())
            value, std = map(query.table, self._release(reservation, query, "k-means"))
            released = value[:, 0].sum()
            count = record_count(units, released, std[:, 0].norm())
            value[:, 0] += (count - released) / K
            counts = torch.maximum(value[:, 0], (3.0 * std[:, 0]).clamp(min=1.0))
            found = value[:, 1:] / counts.unsqueeze(1)
            centers = near.radius * found / found.norm(dim=1, keepdim=True).clamp(min=1.0)
            weights = counts / counts.sum()
        if own_weights is not None:
            weights = own_weights / own_weights.sum()
        between_centers = float((weights * centers.square().sum(1)).sum())
        total = float(covariance.trace())
        within = max(total - between_centers, 0.1 * total) / d
        matrix = _matrix_of(ball, d)
        inside = within * matrix @ matrix.T / ball.radius**2
        if kind == "full":
            shape = inside
        elif kind == "diag":
            shape = inside.diagonal()
        else:
            shape = inside.diagonal().mean()
        return Gaussians(
            weights, ball.inward(centers + center), shape.expand(K, *shape.shape).clone(), kind
        )


def _matrix_of(ball: Ball, d: int) -> torch.Tensor:
    """The ball's matrix; the identity where it has none."""
    if ball.matrix is None:
        return torch.eye(d, dtype=torch.float64, device="cpu")
    return ball.matrix
