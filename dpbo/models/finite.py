"""A Gaussian process over a finite candidate set, whose posterior at every candidate is kept up to
date, for one run or a batch of runs, and bounds on information gain.

Observing x_t adds one row to an incremental Cholesky factor: v = (k(x_t, .) - V^T V_t) / s with s^2
= s_t^2(x_t) + noise; then mean += v z and variance -= v^2, where z = (y - mean(x_t)) / s. Nothing
is factorised anew and no n x n matrix is formed. GP-UCB over 40,000 candidates takes well under a
millisecond a step.

Cost of observation t over n candidates in d dimensions, for each run: 2 n t flops for V^T V_t, 2 n
d for the kernel's row, 6 n for the rest. Bytes: 8 n t of V are read once, which is what takes the
time, and about 80 n of vectors that stay in cache. Storage: 8 n t. A batch saves the calls: fifty
runs over 1,000 candidates take as long as four.
"""

import copy
import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import scipy
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.base import MCSampler
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from linear_operator import to_linear_operator
from torch import Tensor

from dpbo.errors import InputError
from dpbo.models.kernel_rows import in_cache, rows_of
from dpbo.models.kernels import require_finite, require_float64
from dpbo.validation import POINTS, Count, Finite, NotNegative, Positive, at_least, checked

# as a share of the prior variance
_LEAST_NOISE = 1e-12
# observations for which room is made at first
_CAPACITY = 64
# what has a row for each observation, along its second axis
_GROWING = ("_V", "_indices", "_scales", "_innovations")


@checked
class FiniteGP(Model):  # type: ignore[misc]
    """A GP that is kept up to date at a finite set of candidates, for one run or a batch of
    independent runs.

    A step of all runs is one set of operations, so a batch costs a GPU no more launches than one
    run; the host never waits in it. `posterior` is that of the same observations anywhere.

    Args:
        candidates: `n x d`, shared by all runs, or `batch_shape x n x d`; float64.
        kernel: a GPyTorch kernel in float64, copied; one for all runs, or a batch. Public:
            never fitted on private values.
        noise: variance of an observation, above 0, in units of y^2.

    Keyword args:
        mean: public prior mean.
        batch_shape: of independent runs, empty for one run. Those of `candidates` and `kernel`
            broadcast with it.
        capacity: observations for which room is made at first; it doubles when full.

    Raises:
        InputError: an argument is not float64, not finite, or out of range, or batch shapes do not
            broadcast.
    """

    candidates: Tensor
    _V: Tensor
    _indices: Tensor
    _scales: Tensor
    _innovations: Tensor
    _mean: Tensor
    _variance: Tensor
    _scratch: Tensor
    _beside: Tensor

    def __init__(
        self,
        candidates: Tensor,
        kernel: Kernel,
        noise: Positive,
        *,
        mean: Finite = 0.0,
        batch_shape: Sequence[Count] = (),
        capacity: Annotated[int, at_least(1, 1_000_000)] = _CAPACITY,
    ) -> None:
        super().__init__()
        candidates = require_finite("candidates", candidates).detach().clone()
        if candidates.dim() < 2 or 0 in candidates.shape:
            raise InputError(
                "candidates",
                tuple(candidates.shape),
                "of shape n x d or batch_shape x n x d, not empty",
            )
        shape = torch.Size(batch_shape)
        for name, other in (
            ("candidates", candidates.shape[:-2]),
            ("kernel", kernel.batch_shape),
        ):
            shape = _broadcast(name, other, shape)
        if candidates.dim() > 2:
            candidates = candidates.expand(*shape, -1, -1).contiguous()
        self.noise = noise
        self.prior_mean = mean
        self._batch_shape = shape
        self._runs = shape.numel()
        self._count = candidates.shape[-2]
        self.register_buffer("candidates", candidates)
        for part in kernel.modules():
            if getattr(part, "ard_num_dims", None) not in (None, 1, candidates.shape[-1]):
                allowed = f"of {candidates.shape[-1]} dimensions, as the candidates"
                if part.active_dims is None:
                    raise InputError("kernel", part.ard_num_dims, allowed)
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self._rows = rows_of(self.kernel, candidates, shape)
        variance = candidates.new_zeros(self._runs, self._count)
        self.register_buffer("_variance", variance)
        self.register_buffer("_mean", torch.zeros_like(variance))
        # kept, because memory that is given back and taken again costs more in page faults than the
        # arithmetic on it
        for name in ("_scratch", "_beside"):
            self.register_buffer(name, torch.zeros_like(variance), persistent=False)
        self.forget()
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
        """Posterior variance at the candidates, without noise, `batch_shape x n`: a view like the
        mean's.
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
        """The observed points in their order, `batch_shape x t x d`."""
        t = self.num_observations
        points = self._candidates_at(self._indices[:, :t])
        return points.view(*self._batch_shape, t, -1)

    def argmax_upper(self, beta: NotNegative, *, exclude: Tensor | None = None) -> Tensor:
        """The index of the largest mean + sqrt(beta variance) of each run, the first of equals:
        `batch_shape`.

        Indices `exclude`, `batch_shape x k`, are not chosen, as long as any others are left.
        """
        parts = [self._mean, self._variance]
        if exclude is not None:
            if exclude.dim() == 0:
                raise InputError("exclude", (), "of shape batch_shape x k")
            k = exclude.shape[-1]
            parts.append(self._of_each_run("exclude", self._index("exclude", exclude), k))
        best = []
        for mean, variance, *excluded in in_cache(*parts):
            upper = self._scratch[: mean.shape[0]]
            torch.sqrt(variance, out=upper)
            torch.add(mean, upper, alpha=math.sqrt(beta), out=upper)
            for indices in excluded:
                upper.scatter_(-1, indices, -math.inf)
            # by numpy, which takes an eighth of torch's time
            if upper.device.type == "cpu":
                best.append(torch.from_numpy(upper.numpy().argmax(-1)))
            else:
                best.append(upper.max(-1).indices)
        return torch.cat(best).view(self._batch_shape)

    def forget(self) -> None:
        """Drop all observations and keep the memory, for other runs. Views taken before then show
        the prior, too.
        """
        self.num_observations = 0
        self._mean.fill_(self.prior_mean)
        self._variance.copy_(self._rows.diagonal())

    def observe(self, index: int | Tensor, value: float | Tensor) -> None:
        """Condition each run on its `value` at the candidate of its index: `batch_shape`, or one
        number for all.

        Raises:
            InputError: an index is no candidate's, or a value is not finite. Tensors on a GPU are
                not checked, since the host would have to wait: there CUDA's own assertion stops a
                wrong index, and a value that is not finite makes its run's posterior NaN.
        """
        at = self._of_each_run("index", self._index("index", _tensor(index)))
        y = _tensor(value).detach().to(torch.float64)
        if y.device.type == "cpu" and not math.isfinite(y.sum()):
            raise InputError("value", value, "finite")
        mean, variance = self._mean, self._variance
        y = self._of_each_run("value", y.to(mean.device, non_blocking=True))
        t = self.num_observations
        V = self._V
        if t == V.shape[1]:
            V = self._make_room(2 * t or _CAPACITY)
        self._indices[:, t : t + 1] = at
        scale = self._scales.narrow(1, t, 1)
        torch.add(variance.gather(-1, at), self.noise, out=scale).sqrt_()
        innovation = self._innovations.narrow(1, t, 1)
        torch.sub(y, mean.gather(-1, at), out=innovation).div_(scale)
        scratch, beside = self._scratch, self._beside
        kernel = self._rows
        parts = (
            mean,
            variance,
            V.narrow(1, 0, t),
            V.select(1, t),
            at,
            scale.reciprocal(),
            innovation,
        )
        for some in in_cache(*parts, *kernel.given(at)):
            means, variances, past, row, index, inverse, z, *given = some
            runs = row.shape[0]
            new = scratch[:runs]
            kernel.write(given, new, beside[:runs])
            _subtract(new, past, index)
            torch.mul(new, inverse, out=row)
            means.addcmul_(row, z)
            # rounding may leave -1e-17 where all is known
            variances.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        self.num_observations = t + 1

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> GPyTorchPosterior:
        """The joint posterior at any X, `... x q x d`, whose leading dimensions broadcast with
        `batch_shape`; differentiable in X. The factor is used as it is: t^2 + t q flops a q-batch.

        Raises:
            InputError: X is not float64, or of another shape.
            UnsupportedError: another output than 0 is asked for, or noise of another size than the
                model's.
        """
        if output_indices not in (None, [0]) or isinstance(observation_noise, Tensor):
            raise UnsupportedError("FiniteGP has one output, and one noise for all observations.")
        mean, covariance = self._moments(self._points(X))
        if observation_noise:
            covariance = covariance + self.noise * torch.eye(
                X.shape[-2], dtype=X.dtype, device=X.device
            )
        posterior = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    @torch.no_grad()
    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> "FiniteGP":
        """A copy that has observed Y, `... x q x 1`, at the candidates X, `... x q x d`, too. Its
        `batch_shape` is that of the runs, X and Y together. Of candidates with equal coordinates
        the first is observed.

        Raises:
            InputError: a row of X is no candidate, bit for bit: only these are kept up to date. Y
                is not float64, not finite, or of another shape.
            UnsupportedError: noise of another size than the model's.
        """
        if kwargs.get("noise") is not None:
            raise UnsupportedError("FiniteGP has one noise for all observations.")
        X = self._points(X)
        require_finite("Y", Y)
        if Y.shape[-2:] != (X.shape[-2], 1):
            raise InputError("Y", tuple(Y.shape), f"of shape ... x {X.shape[-2]} x 1")
        shape = _broadcast("Y", Y.shape[:-2], X.shape[:-2])
        # coordinate by coordinate, `... x q x n`
        same = [
            X[..., i].unsqueeze(-1) == self.candidates[..., i].unsqueeze(-2)
            for i in range(X.shape[-1])
        ]
        equal = torch.stack(same).all(0)
        if not bool(equal.any(-1).all()):
            raise InputError(
                "X",
                tuple(X.shape),
                "candidates, bit for bit",
                "Elsewhere condition a SingleTaskGP of `observed`.",
            )
        model = self._spread(shape)
        index = equal.to(torch.uint8).argmax(-1)
        for j in range(X.shape[-2]):
            model.observe(index[..., j], Y[..., j, 0])
        return model

    def fantasize(self, X: Tensor, sampler: MCSampler) -> "FiniteGP":
        """A copy for each sample of the posterior at the candidates X, `... x q x d`, with noise,
        which has observed it: its `batch_shape` begins with the sampler's shape.

        Raises:
            InputError: as in `condition_on_observations`.
        """
        Y = sampler(self.posterior(X, observation_noise=True))
        return self.condition_on_observations(X, Y)

    def subset_output(self, idcs: list[int]) -> "FiniteGP":
        """A copy: there is one output, 0. Raises UnsupportedError for another."""
        if idcs != [0]:
            raise UnsupportedError("FiniteGP has one output.")
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        """The rows that are written, without the room for others."""
        return {**self.__dict__, "_buffers": {**self._buffers, **self._written()}}

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # copies, because later observations change all of them in place
        for name, part in {**self._buffers, **self._written()}.items():
            if prefix + name in destination and part is not None:
                destination[prefix + name] = part.clone()

    def get_extra_state(self) -> dict[str, Any]:
        """The constructor's numbers, and the kinds of the kernel's parts."""
        kinds = [type(part).__name__ for part in self.kernel.modules()]
        return {"noise": self.noise, "mean": self.prior_mean, "kernel": kinds}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over the numbers. Raises InputError for another kind of kernel."""
        own = self.get_extra_state()["kernel"]
        if state["kernel"] != own:
            raise InputError("state_dict", state["kernel"], f"of a kernel of these parts: {own}")
        self.noise = state["noise"]
        self.prior_mean = state["mean"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        V = state_dict.get(f"{prefix}_V")
        if V is not None and V.shape[::2] == self._V.shape[::2]:
            self.num_observations = 0
            self._make_room(V.shape[1])
            self.num_observations = V.shape[1]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _written(self) -> dict[str, Tensor]:
        return {name: getattr(self, name)[:, : self.num_observations].clone() for name in _GROWING}

    def _spread(self, shape: torch.Size) -> "FiniteGP":
        """A copy for runs of this shape, each with the observations of its run here."""
        model = copy.deepcopy(self)
        if shape == self._batch_shape:
            return model
        model._batch_shape = shape
        model._runs = shape.numel()
        if self.candidates.dim() > 2:
            model.candidates = self.candidates.expand(*shape, -1, -1).contiguous()
        model._rows = rows_of(model.kernel, model.candidates, shape)
        every = torch.arange(self._runs, device=self._mean.device)
        runs = every.view(self._batch_shape).expand(shape).reshape(-1)
        for name in ("_mean", "_variance", "_scratch", "_beside", *_GROWING):
            setattr(model, name, getattr(model, name)[runs])
        return model

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `... x q` and covariance `... x q x q`. Points of dimensions beyond the runs' become
        columns of one solve.
        """
        shape, q, d = X.shape[:-2], *X.shape[-2:]
        prior = self._rows.between(X, X)
        t = self.num_observations
        if t == 0:
            return torch.full_like(X[..., 0], self.prior_mean), prior
        own = shape[len(shape) - len(self._batch_shape) :]
        columns = X.reshape(-1, *own, q, d).movedim(0, -3).flatten(-3, -2)
        cross = self._rows.between(self.observed.expand(*own, t, d), columns)
        # L, lower with L L^T = K + noise I: its entries lie in V at the observed candidates
        at = self._indices[:, None, :t].expand(-1, t, -1)
        L = self._V[:, :t].gather(-1, at).mT.tril(-1) + torch.diag_embed(self._scales[:, :t])
        A = torch.linalg.solve_triangular(L.view(*self._batch_shape, t, t), cross, upper=False)
        A = A.unflatten(-1, (-1, q)).movedim(-2, 0).reshape(*shape, t, q)
        z = self._innovations[:, :t].view(*self._batch_shape, t, 1)
        return self.prior_mean + (A.mT @ z).squeeze(-1), prior - A.mT @ A

    def _points(self, X: Tensor) -> Tensor:
        """X, `... x q x d`, with the leading dimensions of the runs."""
        d = self.candidates.shape[-1]
        if require_float64("X", X).dim() < 2 or X.shape[-1] != d or X.shape[-2] == 0:
            raise InputError("X", tuple(X.shape), f"of shape ... x q x {d}, q 1 or more")
        return X.expand(*_broadcast("X", X.shape[:-2], self._batch_shape), -1, -1)

    def _candidates_at(self, index: Tensor) -> Tensor:
        """The candidates at indices `runs x k`, as `runs x k x d`."""
        if self.candidates.dim() == 2:
            return self.candidates[index]
        own = self.candidates.flatten(0, -3)
        return own.gather(1, index.unsqueeze(-1).expand(-1, -1, own.shape[-1]))

    def _index(self, name: str, index: Tensor) -> Tensor:
        """Indices of candidates, where these lie. Raises InputError for one that is no candidate's;
        on a GPU CUDA's own assertion does so: the host would have to wait.
        """
        n = self._count
        wrong = index.is_floating_point() or index.dtype is torch.bool
        if index.device.type == "cpu" and index.numel() and not wrong:
            least, most = index.aminmax()
            wrong = not 0 <= int(least) <= int(most) < n
        if wrong:
            raise InputError(name, index, f"whole numbers from 0 to {n - 1}")
        return index.to(self._mean.device, torch.long, non_blocking=True)

    def _of_each_run(self, name: str, numbers: Tensor, *k: int) -> Tensor:
        """Numbers `batch_shape`, or one for all, as `runs x 1`; `batch_shape x k` as `runs x k`."""
        shape = (*self._batch_shape, *k)
        if numbers.shape == shape:
            return numbers.reshape(self._runs, *(k or (1,)))
        if numbers.numel() == 1 and not k:
            numbers = numbers.reshape(())
        try:
            numbers = numbers.expand(shape)
        except RuntimeError:
            allowed = "one number, or " * (not k) + f"of shape {shape}"
            raise InputError(name, tuple(numbers.shape), allowed) from None
        return numbers.reshape(self._runs, *(k or (1,)))

    def _make_room(self, capacity: int) -> Tensor:
        """Grow the buffers; returns V. On a CPU that is made by numpy, which asks for huge pages:
        page faults take a tenth of a run otherwise. The system hands over its zeros, so they cost
        no pass.
        """
        runs, n = self._mean.shape
        if self._mean.device.type == "cpu":
            V = torch.from_numpy(np.zeros((runs, capacity, n)))
        else:
            V = self._mean.new_zeros(runs, capacity, n)
        scales, innovations = self._mean.new_zeros(2, runs, capacity)
        indices = torch.zeros_like(scales, dtype=torch.long)
        t = self.num_observations
        for name, grown in zip(_GROWING, (V, indices, scales, innovations), strict=True):
            if t:
                grown[:, :t] = getattr(self, name)[:, :t]
            self.register_buffer(name, grown)
        return V


def _broadcast(name: str, shape: torch.Size, runs: torch.Size) -> torch.Size:
    """The batch shape of an argument of this name, together with that of the runs."""
    try:
        return torch.broadcast_shapes(shape, runs)  # type: ignore[no-untyped-call]
    except RuntimeError:
        allowed = f"of a batch shape that broadcasts with {tuple(runs)}"
        raise InputError(name, tuple(shape), allowed) from None


def _tensor(number: float | Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number
    # a bare float would pass through float32
    dtype = torch.float64 if isinstance(number, float) else torch.int64
    return torch.tensor(number, dtype=dtype, device="cpu")


def _subtract(rows: Tensor, past: Tensor, index: Tensor) -> None:
    """rows -= V^T V_index: rows `runs x n`, V `runs x t x n`, an index of each run, `runs x 1`."""
    t = past.shape[1]
    if t == 0:
        return
    if len(rows) == 1 and rows.device.type == "cpu":
        # in place by SciPy's library, which reads twice as fast as torch's
        V = past[0].numpy()
        weights = V[:, int(index)]
        scipy.linalg.blas.dgemv(-1.0, V.T, weights, beta=1.0, y=rows[0].numpy(), overwrite_y=True)
        return
    at = index.unsqueeze(-1).expand(-1, t, -1)
    rows.unsqueeze(1).baddbmm_(past.gather(-1, at).mT, past, alpha=-1.0)


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
    gains = torch.tensor(
        greedy_gains(candidates, kernel, noise, evaluations), dtype=torch.float64, device="cpu"
    )
    before = gains.cumsum(0) - gains
    return min(
        float(gains.sum()) / (1.0 - math.exp(-1.0)), float((before + evaluations * gains).min())
    )


def greedy_gains(candidates: Tensor, kernel: Kernel, noise: float, evaluations: int) -> list[float]:
    """1/2 log(1 + s^2 / noise), in nats, of each greedy choice of the largest variance."""
    model = FiniteGP(candidates, kernel, noise, capacity=evaluations)
    gains = []
    for _ in range(evaluations):
        variance, index = model.variance.max(-1)
        gains.append(0.5 * math.log1p(float(variance) / noise))
        # the variance does not depend on the value
        model.observe(index, 0.0)
    return gains
