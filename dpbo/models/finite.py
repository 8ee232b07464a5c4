"""A Gaussian process over a finite candidate set, whose posterior at every candidate is kept up to
date, and bounds on information gain.

Observing x_t adds one row to an incremental Cholesky factor: v = (k(x_t, .) - V^T V_t) / s with s^2
= s_t^2(x_t) + noise; then mean += v z and variance -= v^2, where z = (y - mean(x_t)) / s. Nothing
is factorised anew and no n x n matrix is formed. GP-UCB over 40,000 candidates takes well under a
millisecond a step.

Cost of observation t over n candidates in d dimensions, for each run: 2 n t flops for V^T V_t, 2 n
d for the kernel's row, 6 n for the rest. Bytes: 8 n t of V are read once, which is what takes the
time, and about 80 n of vectors that stay in cache. Storage: 8 n t.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import scipy
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from linear_operator import to_linear_operator
from torch import Tensor

from dpbo.errors import InputError
from dpbo.models.kernel_rows import accurate, rows_of
from dpbo.models.kernels import require_finite, require_float64
from dpbo.validation import POINTS, Count, Finite, NotNegative, Positive, Within, at_least, checked

# as a share of the prior variance
_LEAST_NOISE = 1e-12
# numbers of a vector over candidates that are worked on together: 0.5 MB, so a step's few vectors
# stay in cache
_CACHED = 1 << 16

_WHOLE = Within(
    "whole numbers",
    lambda index: not (index.is_floating_point() or index.dtype is torch.bool),
    "Use .long().",
)
Indices = Annotated[Tensor, _WHOLE]


@checked
class FiniteGP(Model):  # type: ignore[misc]
    """A GP posterior over candidates, for one run or a batch of independent runs.

    Args:
        candidates: `n x d`, shared by all runs, or `batch_shape x n x d`; float64. Slower if they
            lie hundreds of length-scales apart.
        kernel: one GPyTorch kernel in float64 for all runs, copied. Public: never fitted on private
            values.
        noise: variance of an observation, above 0, in units of y^2.

    Keyword args:
        mean: public prior mean.
        batch_shape: of independent runs that share the candidates; empty for one run.
        capacity: observations for which room is made at first; it doubles when full.

    Raises:
        InputError: an argument is not float64, not finite, or out of range.
        UnsupportedError: the kernel has a batch of hyperparameters.
    """

    _V: Tensor
    _indices: Tensor
    _scales: Tensor
    _innovations: Tensor
    _mean: Tensor
    _variance: Tensor
    _scratch: Tensor

    def __init__(
        self,
        candidates: Tensor,
        kernel: Kernel,
        noise: Positive,
        *,
        mean: Finite = 0.0,
        batch_shape: Sequence[Count] = (),
        capacity: Annotated[int, at_least(1, 1_000_000)] = 64,
    ) -> None:
        super().__init__()
        candidates = require_finite("candidates", candidates).detach()
        if candidates.dim() < 2 or 0 in candidates.shape:
            raise InputError(
                "candidates",
                tuple(candidates.shape),
                "of shape n x d or batch_shape x n x d, not empty",
            )
        if len(kernel.batch_shape):
            raise UnsupportedError(
                "FiniteGP takes one kernel for all runs; make one model for each kernel."
            )
        self.noise = noise
        self.prior_mean = mean
        self._batch_shape = _broadcast(candidates.shape[:-2], torch.Size(batch_shape))
        own = (
            candidates
            if candidates.dim() == 2
            else candidates.expand(*self._batch_shape, -1, -1).flatten(0, -3)
        )
        self.register_buffer("candidates", candidates)
        self.kernel = accurate(copy.deepcopy(kernel).requires_grad_(False), candidates)
        self._runs = self._batch_shape.numel()
        self._rows = rows_of(self.kernel, own)
        variance = candidates.new_empty(self._runs, candidates.shape[-2])
        self.register_buffer("_variance", variance)
        self.register_buffer("_mean", torch.empty_like(variance))
        self.forget()
        together = (
            max(1, _CACHED // variance.shape[-1]) if variance.device.type == "cpu" else self._runs
        )
        # kept, because memory that is given back and taken again costs more in page faults than the
        # arithmetic on it
        self.register_buffer("_scratch", torch.empty_like(variance[:together]))
        if self.noise < _LEAST_NOISE * float(variance.max()):
            raise InputError(
                "noise",
                noise,
                f"at least {_LEAST_NOISE:g} of the prior variance",
                "Below it float64 loses the posterior.",
            )
        self._make_room(capacity)

    @property
    def mean(self) -> Tensor:
        """Posterior mean at the candidates, `batch_shape x n`: a view, which later observations
        change.
        """
        return self._mean.view(*self._batch_shape, -1)

    @property
    def variance(self) -> Tensor:
        """Posterior variance at the candidates, without noise, `batch_shape x n`: a view, which
        later observations change.
        """
        return self._variance.view(*self._batch_shape, -1)

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the independent runs."""
        return self._batch_shape

    @property
    def num_outputs(self) -> int:
        """1: one value a candidate."""
        return 1

    @property
    def observed(self) -> Tensor:
        """The observed points, `batch_shape x t x d`."""
        return self.candidates_at(
            self._indices[:, : self.num_observations].view(*self._batch_shape, -1)
        )

    def candidates_at(self, index: Indices) -> Tensor:
        """The candidates at indices `batch_shape x k`, as `batch_shape x k x d`."""
        self._require_index("index", index)
        if self.candidates.dim() == 2:
            return self.candidates[index.long()]
        d = self.candidates.shape[-1]
        return self.candidates.expand(*self._batch_shape, -1, -1).gather(
            -2, index.long().unsqueeze(-1).expand(*index.shape, d)
        )

    @torch.no_grad()
    def argmax_upper(self, beta: NotNegative, *, exclude: Indices | None = None) -> Tensor:
        """The index of the largest mean + sqrt(beta variance), the first of equals, for each run:
        `batch_shape`.

        Indices `exclude`, `batch_shape x k`, are not chosen, as long as any others are left.
        """
        root = math.sqrt(beta)
        best = []
        if exclude is not None:
            self._require_index("exclude", exclude)
            if not _broadcasts(exclude.shape[:-1], self._batch_shape):
                raise InputError(
                    "exclude", tuple(exclude.shape), f"of shape {(*self._batch_shape, 'k')}"
                )
            exclude = exclude.long().expand(*self._batch_shape, -1).reshape(self._runs, -1)
        for runs in self._slices():
            variance = self._variance[runs]
            upper = self._scratch[: len(variance)]
            on_cpu = variance.device.type == "cpu"
            # by numpy, whose root takes a third of torch's time, and whose largest an eighth
            if on_cpu:
                np.sqrt(variance.numpy(), out=upper.numpy())
            else:
                torch.sqrt(variance, out=upper)
            upper.mul_(root).add_(self._mean[runs])
            if exclude is not None:
                upper.scatter_(-1, exclude[runs], -math.inf)
            best.append(
                torch.from_numpy(upper.numpy().argmax(-1)) if on_cpu else upper.max(-1).indices
            )
        return torch.cat(best).view(self._batch_shape)

    @torch.no_grad()
    def forget(self) -> None:
        """Drop all observations and keep the memory, for another run. Views taken before then show
        the prior, too.
        """
        self.num_observations = 0
        self._mean.fill_(self.prior_mean)
        self._variance.copy_(self._rows.diagonal())

    @torch.no_grad()
    def observe(self, index: int | Tensor, value: float | Tensor) -> None:
        """Condition on `value` at the candidate of this index, for each run (`batch_shape`, or one
        number for all).

        Raises:
            InputError: an index is no candidate's, or a value is not finite. Tensors on a GPU are
                not checked, since the host would have to wait: there CUDA's own assertion stops a
                wrong index, and a value that is not finite makes its run's posterior NaN.
        """
        index, value = self._one_a_run(index, value)
        t = self.num_observations
        if t == self._V.shape[-2]:
            self._make_room(2 * t)
        self._indices[:, t] = index
        for runs in self._slices():
            mean = self._mean[runs]
            variance = self._variance[runs]
            row = self._V[runs, t]
            at = index[runs].unsqueeze(-1)
            scale = (variance.gather(-1, at) + self.noise).sqrt_()
            innovation = (value[runs].unsqueeze(-1) - mean.gather(-1, at)).div_(scale)
            self._rows.write(runs, index[runs], row, self._scratch[: len(at)])
            _subtract(row, self._V[runs, :t], index[runs])
            row.div_(scale)
            mean.addcmul_(row, innovation)
            # rounding may leave -1e-17 where all is known
            variance.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
            self._scales[runs, t] = scale.squeeze(-1)
            self._innovations[runs, t] = innovation.squeeze(-1)
        self.num_observations = t + 1

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> GPyTorchPosterior:
        """The joint posterior at any X, `... x q x d`, whose leading dimensions broadcast with
        `batch_shape`; differentiable in X.

        Raises:
            InputError: X is not float64.
            UnsupportedError: another output than 0 is asked for, or noise of another size than the
                model's.
        """
        require_float64("X", X)
        if output_indices not in (None, [0]) or not isinstance(observation_noise, bool):
            raise UnsupportedError("FiniteGP has one output, and one noise for all observations.")
        mean, covariance = self._moments(X)
        if observation_noise:
            covariance = covariance + self.noise * torch.eye(
                X.shape[-2], dtype=X.dtype, device=X.device
            )
        posterior = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
        """Refused: only candidates are observed, by `observe`."""
        raise UnsupportedError(
            "FiniteGP observes candidates, by observe(index, value); copy.deepcopy it first to keep"
            " this one."
        )

    def subset_output(self, idcs: list[int]) -> Model:
        """Refused: there is one output."""
        raise UnsupportedError("FiniteGP has one output.")

    def _slices(self) -> Iterator[slice]:
        """The runs in slices whose vectors over candidates fit into a cache together; on a device,
        all of them at once.
        """
        step = len(self._scratch)
        return (slice(start, start + step) for start in range(0, self._runs, step))

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `... x q` and covariance `... x q x q`. Points of dimensions beyond the runs' become
        columns of one solve.
        """
        q, d = X.shape[-2:]
        shape = _broadcast(X.shape[:-2], self._batch_shape)
        X = X.expand(*shape, q, d)
        prior = self.kernel(X).to_dense()
        t = self.num_observations
        if t == 0:
            return torch.full_like(X[..., 0], self.prior_mean), prior
        own = shape[len(shape) - len(self._batch_shape) :]
        columns = X.reshape(-1, *own, q, d).movedim(0, -3).flatten(-3, -2)
        cross = self.kernel(self.observed.expand(*own, -1, d), columns).to_dense()
        # L, lower with L L^T = K + noise I: its entries lie in V at the observed candidates
        at = self._indices[:, None, :t].expand(-1, t, -1)
        L = self._V[:, :t].gather(-1, at).mT.tril(-1) + torch.diag_embed(self._scales[:, :t])
        A = torch.linalg.solve_triangular(L.view(*self._batch_shape, t, t), cross, upper=False)
        A = A.unflatten(-1, (-1, q)).movedim(-2, 0).reshape(*shape, -1, q)
        z = self._innovations[:, :t].view(*self._batch_shape, -1, 1)
        return self.prior_mean + (A.mT @ z).squeeze(-1), prior - A.mT @ A

    def _require_index(self, name: str, index: Tensor) -> None:
        """Raises InputError for an index that is no candidate's. On a GPU CUDA's own assertion does
        so: the host would have to wait.
        """
        n = self._mean.shape[-1]
        if index.dim() < 1:
            raise InputError(name, index, "of shape batch_shape x k", "Use index.unsqueeze(-1).")
        if (
            index.device.type == "cpu"
            and index.numel()
            and not 0 <= int(index.min()) <= int(index.max()) < n
        ):
            raise InputError(name, index, f"whole numbers from 0 to {n - 1}")

    def _one_a_run(self, index: int | Tensor, value: float | Tensor) -> tuple[Tensor, Tensor]:
        like = self._mean
        n = self._mean.shape[-1]
        for name, argument in (("index", index), ("value", value)):
            if isinstance(argument, Tensor) and not _broadcasts(argument.shape, self._batch_shape):
                raise InputError(
                    name,
                    tuple(argument.shape),
                    f"one number, or of shape {tuple(self._batch_shape)}",
                )
        index = torch.as_tensor(index)
        value = torch.as_tensor(value, dtype=like.dtype)
        if like.device.type == "cpu":
            index = index.to(like.device)
            value = value.to(like.device)
        if index.is_floating_point() or (
            index.device.type == "cpu" and bool(((index < 0) | (index >= n)).any())
        ):
            raise InputError("index", index, f"whole numbers from 0 to {n - 1}")
        if value.device.type == "cpu" and not bool(value.isfinite().all()):
            raise InputError("value", value, "finite")
        index, value = (
            part.to(like.device, non_blocking=True).expand(self._batch_shape).reshape(-1)
            for part in (index, value)
        )
        return index.long(), value

    def _make_room(self, capacity: int) -> None:
        """Grow the buffers. V on a CPU by numpy, which asks for huge pages: page faults take a
        tenth of a run otherwise.
        """
        t = self.num_observations
        shape = (self._runs, capacity, self._mean.shape[-1])
        V = (
            torch.from_numpy(np.empty(shape))
            if self._mean.device.type == "cpu"
            else self._mean.new_empty(shape)
        )
        scales, innovations = self._mean.new_empty(2, self._runs, capacity)
        indices = torch.empty_like(scales, dtype=torch.long)
        for name, grown in (
            ("_V", V),
            ("_scales", scales),
            ("_innovations", innovations),
            ("_indices", indices),
        ):
            if t:
                grown[:, :t] = getattr(self, name)
            self.register_buffer(name, grown)


def _subtract(row: Tensor, past: Tensor, index: Tensor) -> None:
    """row -= V^T V_index: rows `b x n`, V `b x t x n`, one index (`b`) a run."""
    # in place by SciPy's library, which reads twice as fast as torch's; a GPU would wait
    if len(row) == 1 and row.device.type == "cpu":
        if past.shape[1]:
            V = past[0].numpy()
            scipy.linalg.blas.dgemv(
                -1.0, V.T, V[:, int(index)], beta=1.0, y=row[0].numpy(), overwrite_y=True
            )
        return
    weights = past.gather(-1, index[:, None, None].expand(-1, past.shape[1], 1)).mT
    row.unsqueeze(-2).baddbmm_(weights, past, alpha=-1.0)


def _broadcast(first: torch.Size, second: torch.Size) -> torch.Size:
    return torch.broadcast_shapes(first, second)  # type: ignore[no-untyped-call]


def _broadcasts(shape: torch.Size, batch: torch.Size) -> bool:
    return len(shape) <= len(batch) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(batch), strict=False)
    )


@checked
def information_gain_bound(
    candidates: Annotated[Tensor, POINTS], kernel: Kernel, noise: Positive, evaluations: Count
) -> float:
    """An upper bound in nats on gamma_T, the most that T evaluations of candidates can say about
    the function.

    gamma_T = max over A, |A| = T, of 1/2 log det(I + K_A / noise), repeated evaluations included.
    The gain is monotone and submodular, so the greedy choice is within 1 - 1/e of the best
    (Nemhauser et al. 1978), and after any i greedy choices the best T gain at most T times the next
    greedy gain. The bound is the smaller of greedy / (1 - 1/e) (Kusner et al. cite Srinivas et al.
    2010 for the order alone) and, over i, the gain of i greedy choices plus T times the next
    [derived from submodularity]; i = 0 gives T/2 log(1 + k(x, x) / noise). It depends on public
    things alone, never on an observed value, so it may set the scale of noise.

    Args:
        candidates: `n x d`, float64.
        kernel: as in `FiniteGP`.
        noise: variance of an evaluation, in the kernel's units.
        evaluations: T; costs n T^2 flops.

    Raises:
        InputError: an argument out of range.
    """
    gains = torch.tensor(greedy_gains(candidates, kernel, noise, evaluations), dtype=torch.float64)
    before = gains.cumsum(0) - gains
    return min(
        float(gains.sum()) / (1.0 - math.exp(-1.0)), float((before + evaluations * gains).min())
    )


def greedy_gains(candidates: Tensor, kernel: Kernel, noise: float, evaluations: int) -> list[float]:
    """1/2 log(1 + s^2 / noise) in nats of each of so many greedy choices of the largest
    variance.
    """
    model = FiniteGP(candidates, kernel, noise, capacity=evaluations)
    gains = []
    for _ in range(evaluations):
        variance, index = model.variance.max(-1)
        gains.append(0.5 * math.log1p(float(variance) / noise))
        # the variance does not depend on the value
        model.observe(index, 0.0)
    return gains
