"""A public mixture of Gaussians, and how to make one of noisy moments: the post-processing of
DP-EM's releases.

Covariances are `K x d x d` (full), `K x d` (diag) or `K` (spherical), as scikit-learn stores them.
Everything here sees released numbers only, so it is free. Noisy moments become a mixture in four
steps, with the known variance of the noise:

1. The components' moments sum to those of all records, which every iteration measures afresh. The K
   answers are moved alike so that they sum to the mean of all iterations so far (and the counts to
   n, where it is public and that mean agrees with it), which takes 1/K of the noise off.
2. Once the responsibilities have settled, iterations measure nearly the same moments: after
   iteration `settle`, the running mean is used.
3. A covariance whose distance to the pooled one is what noise alone would give says nothing of its
   own: C <- pooled + a (C - pooled), with a = max(0, 1 - 4 E|noise|^2 / |C - pooled|^2) (James &
   Stein's positive part, with caution).
4. Counts are kept above noise, eigenvalues in [floor, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from dpbo.papers.em.estimator import record_count
from dpbo.papers.em.moment_features import isometry
from dpbo.queries.ball import Ball


@dataclass(frozen=True, eq=False)
class Gaussians:
    """A mixture: weights `K`, means `K x d`, and covariances in the shape of `kind` ("full", "diag"
    or "spherical"; tied ones are full and alike).
    """

    weights: torch.Tensor
    means: torch.Tensor
    covariances: torch.Tensor
    kind: str

    def natural(self) -> torch.Tensor:
        """theta with log(weight_k) + log N(z; k) = theta_k . statistics(z): `K x F`."""
        d = self.means.shape[1]
        match self.kind:
            case "full":
                factor = torch.linalg.cholesky(self.covariances)
                precision = torch.cholesky_inverse(factor)
                linear = (precision @ self.means.unsqueeze(2)).squeeze(2)
                half = factor.diagonal(dim1=1, dim2=2).log().sum(1)
                i, j = torch.triu_indices(d, d, device="cpu")
                square = -precision[:, i, j] * torch.where(i == j, 0.5, 1.0).to(precision.dtype)
            case "diag":
                linear = self.means / self.covariances
                half = 0.5 * self.covariances.log().sum(1)
                square = -0.5 / self.covariances
            case _:
                linear = self.means / self.covariances.unsqueeze(1)
                half = 0.5 * d * self.covariances.log()
                square = -0.5 / self.covariances.unsqueeze(1)
        constant = (
            self.weights.log()
            - half
            - 0.5 * (linear * self.means).sum(1)
            - 0.5 * d * math.log(2 * math.pi)
        )
        return torch.cat([constant.unsqueeze(1), linear, square], 1)

    def log_joint(self, Z: torch.Tensor) -> torch.Tensor:
        """log(weight_k N(z; k)) at each point: `n x K`."""
        d, columns = self.means.shape[1], []
        for weight, mean, factor in zip(
            *(part.to(Z.device) for part in (self.weights, self.means, self.factors())), strict=True
        ):
            white = torch.linalg.solve_triangular(factor, (Z - mean).T, upper=False)
            constant = (
                weight.log() - factor.diagonal().log().sum() - 0.5 * d * math.log(2 * math.pi)
            )
            columns.append(constant - 0.5 * white.square().sum(0))
        return torch.stack(columns, 1)

    def factors(self) -> torch.Tensor:
        """Lower Cholesky factors, `K x d x d`."""
        return torch.linalg.cholesky(self.dense())

    def dense(self) -> torch.Tensor:
        """Covariances as matrices, `K x d x d`."""
        if self.kind == "full":
            return self.covariances
        if self.kind == "diag":
            diagonal = self.covariances
        else:
            diagonal = self.covariances.unsqueeze(1).expand_as(self.means)
        return torch.diag_embed(diagonal)

    def by_column(self) -> Gaussians:
        """The same mixture in a shape that stays its own when columns are scaled: spherical
        covariances as diagonal ones.
        """
        if self.kind != "spherical":
            return self
        diagonal = self.covariances.unsqueeze(1).expand_as(self.means).clone()
        return Gaussians(self.weights, self.means, diagonal, "diag")

    def outward(self, ball: Ball) -> Gaussians:
        """The same mixture in x's coordinates; the ball's matrix must be of the covariances'
        kind.
        """
        means = ball.outward(self.means)
        if ball.matrix is None:
            return Gaussians(self.weights, means, self.covariances * ball.radius**2, self.kind)
        back = torch.linalg.inv(ball.matrix) * ball.radius
        if self.kind == "full":
            return Gaussians(self.weights, means, back @ self.covariances @ back.T, self.kind)
        factor = back.diagonal() if self.kind == "diag" else back[0, 0]
        return Gaussians(self.weights, means, self.covariances * factor**2, self.kind)


def matrix_of(upper: torch.Tensor, d: int) -> torch.Tensor:
    """Symmetric matrices from their upper triangles row by row: `batch x d(d+1)/2` to `batch x d x
    d`.
    """
    i, j = torch.triu_indices(d, d, device="cpu")
    full = upper.new_zeros(len(upper), d, d)
    full[:, i, j] = upper
    full[:, j, i] = upper
    return full


def second(moments: torch.Tensor, d: int, kind: str) -> torch.Tensor:
    """The second-moment block of `K x F` in the shape of covariances (spherical: the mean over
    coordinates).
    """
    block = moments[:, 1 + d :]
    if kind == "full":
        return matrix_of(block, d)
    if kind == "diag":
        return block
    return block[:, 0] / d


def outer(means: torch.Tensor, kind: str) -> torch.Tensor:
    """mean mean' in the shape of covariances."""
    if kind == "full":
        return means.unsqueeze(2) * means.unsqueeze(1)
    if kind == "diag":
        return means.square()
    return means.square().mean(1)


def in_unit_ball(points: torch.Tensor) -> torch.Tensor:
    """Points `n x d`, those beyond the unit ball moved to its surface."""
    return points / points.norm(dim=1, keepdim=True).clamp(min=1.0)


def per(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One number a component, shaped to multiply `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def floored(covariances: torch.Tensor, kind: str, least: float) -> torch.Tensor:
    """Eigenvalues brought into [least, 1]: the nearest such matrices in Frobenius norm."""
    if kind != "full":
        return covariances.clamp(least, 1.0)
    values, vectors = torch.linalg.eigh((covariances + covariances.mT) / 2)
    return (vectors * values.clamp(least, 1.0).unsqueeze(1)) @ vectors.mT


_NOISE_ABOVE = 3.0
_FLAT = 1e-9  # of the largest variance: flatter directions count as that flat
# noise has moved the responsibilities, too: 1 and 16 did worse in paired trials on Life Science
_CAUTION = 4.0


@dataclass
class Averaged:
    """Steps 1 and 2: a running estimate of the moments `K x F` and of its noise.

    Args:
        settle: iterations before averaging begins.
        count: the public number of records, or None. The counts sum to it unless the released ones
            say that some are missing (`record_count`).
    """

    settle: int
    count: int | None
    _mean: torch.Tensor | float = field(default=0.0, init=False)
    _iterations: int = field(default=0, init=False)
    _total: torch.Tensor | float = field(default=0.0, init=False)
    _none_missing: bool = field(default=False, init=False)

    def add(self, moments: torch.Tensor, std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One more iteration's answer; returns (moments, standard deviation of their noise)."""
        K = len(moments)
        self._iterations += 1
        self._total = self._total + moments.sum(0)
        averaged = self._averaged()
        if averaged == 1:
            self._mean = moments
        else:
            self._mean = self._mean + (moments - self._mean) / averaged
        value = self._mean
        if K > 1:
            total = self._total / self._iterations
            of_count = std[:, 0].norm() / self._iterations**0.5
            total[0] = record_count(self.count, total[0], of_count)
            self._none_missing = bool(total[0] == self.count)
            value = value + (total - value.sum(0)) / K
            std = std * (1.0 - 1.0 / K) ** 0.5
        return value, std / averaged**0.5

    def _averaged(self) -> int:
        """How many of the last iterations are averaged."""
        return max(1, self._iterations - self.settle)

    def noise_variances(
        self, std: torch.Tensor, mixture: Gaussians, counts: torch.Tensor, prior: Prior | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of weights `K` and means `K x d x d`, by the delta method from the noise of the newest
        moments, as if the responsibilities were fixed.

        Of J iterations the last a are averaged. One iteration's variance is multiplied by 1/a in
        the distance of a component's moment from the mean of all components, and by 1/J in K times
        that mean.

        With a noised N_k and sum m_k a mean is m_k/N_k, which moves by (dm_k - mean_k dN_k)/N_k; a
        weight is N_k/S with S = sum_k N_k, and moves by (dN_k - weight_k dS)/S.

        Args:
            std: standard deviation of one iteration's noise, `K x F`.
            counts: N_k, `K`, as `counts_above` gives them.
        """
        K, d = mixture.means.shape
        apart, together = 1.0 / self._averaged(), 1.0 / self._iterations
        of_means = of_counts = apart
        of_sum = together
        if K > 1:
            of_means = of_counts = (1.0 - 1.0 / K) * apart + together / K
        if K > 1 and self._none_missing:
            # the counts sum to a public number
            of_counts -= together / K
            of_sum = 0.0
        least, more = (prior.k0, K * (prior.alpha - 1.0)) if prior is not None else (0.0, 0.0)
        by_count = of_counts * std[:, 0].square().reshape(-1, 1, 1) * outer(mixture.means, "full")
        by_sum = of_means * torch.diag_embed(std[:, 1 : 1 + d].square())
        of_weight = (1.0 - 1.0 / K) * apart + of_sum * K * (mixture.weights - 1.0 / K).square()
        return (
            of_weight * (std[:, 0] / (counts.sum() + more)).square(),
            (by_sum + by_count) / (counts + least).square().reshape(-1, 1, 1),
        )


@dataclass(frozen=True)
class Prior:
    """Dirichlet(alpha) on weights, normal-inverse-Wishart (0, k0, s0 I, d + 1) on each component,
    in the ball; the paper's by default.
    """

    alpha: float = 2.0
    k0: float = 1.01
    s0: float = 0.1


def counts_above(moments: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """The components' counts `K`, each at least 1 and three standard deviations of its noise."""
    return torch.maximum(moments[:, 0], (_NOISE_ABOVE * std[:, 0]).clamp(min=1.0))


def mixture_of(
    moments: torch.Tensor, std: torch.Tensor, d: int, kind: str, floor: float, prior: Prior | None
) -> Gaussians:
    """Steps 3 and 4: weights, means in the unit ball and covariances, from moments `K x F` and the
    standard deviation of their noise.

    With a prior it is the posterior mode: pi = (N_k + alpha - 1)/..., mu = N_k xbar/(N_k + k0) and
    Sigma = (s0 I + N_k C + k0 N_k/(k0 + N_k) xbar xbar')/(2 d + 3 + N_k). Of a tied Sigma numerator
    and denominator are sums over components, with s0 I and 2 d + 2 once: each component's mean adds
    its own 1, as it has the prior N(0, Sigma/k0).
    """
    tied = kind == "tied"
    if tied:
        kind = "full"
    counts = counts_above(moments, std)
    means = in_unit_ball(moments[:, 1 : 1 + d] / counts.unsqueeze(1))
    raw = second(moments, d, kind)
    covariances = raw / per(counts, raw) - outer(means, kind)
    if len(covariances) > 1:
        # expected squared Frobenius norm, of N_k C
        noise = (std[:, 1 + d :] * isometry(kind, d)[1 + d :]).square().sum(1)
        noise = (noise / d**2 if kind == "spherical" else noise) / counts.square()
        pooled = (per(counts / counts.sum(), covariances) * covariances).sum(0)
        distance = (covariances - pooled).reshape(len(covariances), -1).square().sum(1)
        kept = (1.0 - _CAUTION * noise / distance.clamp(min=1e-300)).clamp(min=0.0)
        if tied:
            kept = torch.zeros_like(kept)
        covariances = pooled + per(kept, covariances) * (covariances - pooled)
    if prior is None:
        return Gaussians(counts / counts.sum(), means, floored(covariances, kind, floor), kind)
    weights = (counts + prior.alpha - 1.0) / (counts + prior.alpha - 1.0).sum()
    own = per(counts, covariances) * floored(covariances, kind, 0.0)
    pull = per(prior.k0 * counts / (prior.k0 + counts), covariances) * outer(means, kind)
    scale: float | torch.Tensor
    if kind == "full":
        scale = (prior.s0 * torch.eye(d, dtype=means.dtype, device="cpu")).expand_as(covariances)
    else:
        scale = prior.s0
    total = counts
    if tied:
        own = own.sum(0).expand_as(own)
        pull = pull.sum(0).expand_as(pull)
        total = (counts.sum() + len(counts) - 1).expand_as(counts)
    covariances = (scale + own + pull) / per(total + 2 * d + 3, covariances)
    return Gaussians(
        weights,
        means * (counts / (counts + prior.k0)).unsqueeze(1),
        floored(covariances, kind, floor),
        kind,
    )


def frame_of(
    moments: torch.Tensor, std: torch.Tensor, count: float, d: int, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean `d`, whitening `d x d`) of one component's moments `1 x F`: covariance to the power
    -1/2, eigenvalues kept above the noise.
    """
    mean = moments[0, 1 : 1 + d] / count
    mean = mean / mean.norm().clamp(min=1.0)
    covariance = (second(moments, d, kind) / count - outer(mean.unsqueeze(0), kind))[0]
    # of a diagonal entry; a symmetric matrix of such noise has spectral norm about sqrt(2 d) times
    # that
    noise = float(std[0, -1]) / count
    if kind != "full":
        scale = covariance.clamp(
            noise + _FLAT * float(covariance.max().clamp(min=1e-300)), 1.0
        ).rsqrt()
        return mean, torch.diag(scale.expand(d).contiguous())
    values, vectors = torch.linalg.eigh(covariance)
    scale = values.clamp(
        noise * (2.0 * d) ** 0.5 + _FLAT * float(values[-1].clamp(min=1e-300)), 1.0
    ).rsqrt()
    return mean, (vectors * scale) @ vectors.T
