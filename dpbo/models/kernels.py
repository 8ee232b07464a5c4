"""Derivatives of GPyTorch kernels: closed forms for RBF and Matern-5/2, automatic differentiation
for the others.

A gradient is a linear functional of a Gaussian process. Its posterior needs k, dk/dtheta and
d2k/dtheta dz^T alone, and the analytic gradient of anything made of them needs two products: C
pulled back through k(X, Z), and P pulled back through dk(theta, Z)/dtheta (DP-GIBO, arXiv
2502.06044, section 3). So a kernel here implements two methods; each returns a matrix and the
function that pulls a matrix of the same shape back to Z, and what both need (distances,
exponentials) is computed once.
"""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    RBFKernel,
    ScaleKernel,
)
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpbo.errors import InputError
from dpbo.validation import Dtype, checked

Pull = Callable[[Tensor], Tensor]
# a matrix, and what pulls one of its shape back
Pulled = tuple[Tensor, Pull]

# of the distance over which the process changes; a smooth kernel's mixed derivative moves by its
# square
_NUDGE = 1e-4


@checked
def kernel_derivatives(kernel: Kernel) -> KernelDerivatives:
    """The derivatives of a GPyTorch kernel with its present hyperparameters, which are read once
    and detached.

    Args:
        kernel: in float64; sums and multiples of kernels are differentiated part by part.

    Raises:
        InputError: a hyperparameter is not float64.
    """
    dtypes = {parameter.dtype for parameter in kernel.parameters()}
    if dtypes - {torch.float64}:
        kind = f"{type(kernel).__name__}, {', '.join(sorted(map(str, dtypes)))}"
        raise InputError("kernel", kind, "in float64", "Call kernel.double().")
    return _derivatives(kernel)


def _derivatives(kernel: Kernel) -> KernelDerivatives:
    # copies: without a constraint's transform a hyperparameter is the parameter itself, which a
    # later fit moves
    if kernel.active_dims is not None:
        return Autodiff(kernel)
    kind = type(kernel)
    if kind is ScaleKernel:
        return Scaled(_derivatives(kernel.base_kernel), kernel.outputscale.detach().clone())
    if kind is AdditiveKernel:
        return Sum([_derivatives(part) for part in kernel.kernels])
    if kind is RBFKernel:
        return RBF(kernel.lengthscale.detach().clone())
    if kind is MaternKernel and kernel.nu == 2.5:
        return Matern52(kernel.lengthscale.detach().clone())
    return Autodiff(kernel)


class KernelDerivatives(abc.ABC):
    """One kernel with fixed hyperparameters, or a batch of them. Points are rows; leading
    dimensions are runs, which broadcast with the kernel's own.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> torch.Size:
        """`batch_shape x 1 x d`, with 1 in place of d if it takes points of any dimension."""

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of kernels, empty for one."""
        return self.shape[:-2]

    @abc.abstractmethod
    def values(self, X: Tensor, Z: Tensor) -> Pulled:
        """k(X, Z), `... x n x m`, and C -> sum_n C_ni dk(x_n, z_i)/dz_i, `... x m x d`."""

    @abc.abstractmethod
    def gradients(self, theta: Tensor, Z: Tensor) -> Pulled:
        """dk(theta, Z)/dtheta, `... x d x m`, and P -> sum_j P_ji d2k(theta, z_i)/dtheta_j dz_i,
        `... x m x d`.
        """

    def around(self, theta: Tensor, X: Tensor) -> Callable[[Tensor], tuple[Pulled, Pulled]]:
        """Z -> `values` of X and Z, in one column, at Z, and `gradients`: what a search for Z asks
        many times.
        """

        def at(Z: Tensor) -> tuple[Pulled, Pulled]:
            rows = torch.cat([X.expand(*Z.shape[:-2], -1, -1), Z], dim=-2)
            return self.values(rows, Z), self.gradients(theta, Z)

        return at

    @abc.abstractmethod
    def variances(self, X: Tensor) -> Tensor:
        """k(x, x) for each row of X, `... x n`."""

    @checked
    def to(
        self, device: torch.device | str | None = None, dtype: Dtype | None = None
    ) -> KernelDerivatives:
        """A copy whose tensors, kernels and parts are on this device."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, moved(value, device))
        return twin

    def of_runs(self, batch_shape: torch.Size, runs: Tensor | slice) -> KernelDerivatives:
        """The kernels of the runs (`r`) of these numbers in the flattened batch; the kernel itself
        where all runs have one.
        """
        if not self.batch_shape:
            return self
        twin = copy.copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, _of_runs(value, batch_shape, runs))
        return twin

    def value(self, X: Tensor, Z: Tensor) -> Tensor:
        """k(X, Z), `... x n x m`."""
        return self.values(X, Z)[0]

    def gradient(self, theta: Tensor, Z: Tensor) -> Tensor:
        """dk(theta, Z)/dtheta, `... x d x m`."""
        return self.gradients(theta, Z)[0]

    def mixed(self, theta: Tensor, Z: Tensor) -> Tensor:
        """d2k(theta, z)/dtheta dz^T for each row z of Z, `... x m x d x d`."""
        G, pull = self.gradients(theta, Z)
        return torch.func.vmap(pull)(_units(G.mT).mT).movedim(0, -2)

    def prior(self, theta: Tensor) -> Tensor:
        """Prior covariance of the gradient at theta, d2k/dx dz^T at x = z = theta, `... x d x d`.

        Raises:
            InputError: k is not twice differentiable there. Sums and multiples ask each of their
                parts.
        """
        return self.mixed(theta, theta.unsqueeze(-2)).squeeze(-3)


def _units(like: Tensor) -> Tensor:
    """The unit vectors along the last axis of `... x n`, each as such a tensor: `n x ... x n`."""
    n = like.shape[-1]
    units = torch.eye(n, dtype=like.dtype, device=like.device)
    return units.view(n, *[1] * (like.dim() - 1), n).expand(n, *like.shape)


def moved(value: Any, device: torch.device | str | None) -> Any:
    """A tensor, kernel, module or list of these on this device; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [moved(part, device) for part in value]
    # a module moves in place
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device=device)
    if isinstance(value, (Tensor, KernelDerivatives)):
        return value.to(device=device)
    return value


def of_runs(value: Tensor, batch_shape: torch.Size, runs: Tensor | slice, dims: int) -> Tensor:
    """Rows of some runs, `r x ...`, of what is `... x` so many dimensions and broadcasts to the
    batch; `runs` are numbers in the flattened batch.
    """
    tail = value.shape[value.dim() - dims :]
    flat = value.expand(*batch_shape, *tail).reshape(batch_shape.numel(), *tail)
    if isinstance(runs, slice):
        return flat[runs]
    # copies whole rows, which indexing does not
    return flat.index_select(0, runs)


def _of_runs(value: Any, batch_shape: torch.Size, runs: Tensor | slice) -> Any:
    if isinstance(value, (list, tuple)):
        return [part.of_runs(batch_shape, runs) for part in value]
    if isinstance(value, KernelDerivatives):
        return value.of_runs(batch_shape, runs)
    if isinstance(value, Tensor):
        return of_runs(value, batch_shape, runs, 2)
    numbers = range(batch_shape.numel())
    count = len(numbers[runs]) if isinstance(runs, slice) else len(runs)
    # GPyTorch's own indexing needs all parts to have the whole batch shape
    twin = copy.deepcopy(value)
    for part in twin.modules():
        if isinstance(part, Kernel):
            own = len(part._batch_shape)
            for parameter in part.parameters(recurse=False):
                parameter.data = of_runs(parameter.data, batch_shape, runs, parameter.dim() - own)
            part.batch_shape = torch.Size([count])
    return twin


class Scaled(KernelDerivatives):
    """s k(x, z); `scale` is s, `...` (one a run)."""

    def __init__(self, base: KernelDerivatives, scale: Tensor) -> None:
        self.base = base
        self.scale = scale[..., None, None]

    @property
    def shape(self) -> torch.Size:
        return broadcast_shapes(self.base.shape, self.scale.shape)

    def values(self, X: Tensor, Z: Tensor) -> Pulled:
        return self._times(self.base.values(X, Z))

    def gradients(self, theta: Tensor, Z: Tensor) -> Pulled:
        return self._times(self.base.gradients(theta, Z))

    def around(self, theta: Tensor, X: Tensor) -> Callable[[Tensor], tuple[Pulled, Pulled]]:
        base = self.base.around(theta, X)

        def at(Z: Tensor) -> tuple[Pulled, Pulled]:
            values, gradients = base(Z)
            return self._times(values), self._times(gradients)

        return at

    def _times(self, part: Pulled) -> Pulled:
        matrix, pull = part
        return self.scale * matrix, lambda C: pull(self.scale * C)

    def variances(self, X: Tensor) -> Tensor:
        return self.scale[..., 0] * self.base.variances(X)

    def prior(self, theta: Tensor) -> Tensor:
        return self.scale * self.base.prior(theta)


class Sum(KernelDerivatives):
    """k_1(x, z) + k_2(x, z) + ..."""

    def __init__(self, parts: Sequence[KernelDerivatives]) -> None:
        self.parts = parts

    @property
    def shape(self) -> torch.Size:
        return broadcast_shapes(*(part.shape for part in self.parts))

    def values(self, X: Tensor, Z: Tensor) -> Pulled:
        return _add([part.values(X, Z) for part in self.parts])

    def gradients(self, theta: Tensor, Z: Tensor) -> Pulled:
        return _add([part.gradients(theta, Z) for part in self.parts])

    def variances(self, X: Tensor) -> Tensor:
        return _total(part.variances(X) for part in self.parts)

    def prior(self, theta: Tensor) -> Tensor:
        return _total(part.prior(theta) for part in self.parts)


def _add(terms: Sequence[Pulled]) -> Pulled:
    matrices, pulls = zip(*terms, strict=True)
    return _total(matrices), lambda C: _total(pull(C) for pull in pulls)


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape to which all of these broadcast. Raises RuntimeError if there is none."""
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _total(parts: Iterable[Tensor]) -> Tensor:
    """The sum of parts of which only some may be of a batch."""
    return functools.reduce(torch.add, parts)


class Radial(KernelDerivatives):
    """A kernel of variance 1 of the whitened distance r = |(x - z) / l|; `lengthscale` is l, `... x
    1 x d` or `... x 1 x 1`.

    It is three functions of r^2: kappa = k, phi = -2 dk/d(r^2), psi = -2 dphi/d(r^2). Then, with
    v = (x - z) / l,
        dk/dx = -phi v / l,     d2k/dx dz^T = diag(phi / l^2) - psi (v / l)(v / l)^T.
    """

    def __init__(self, lengthscale: Tensor) -> None:
        self.lengthscale = lengthscale

    @property
    def shape(self) -> torch.Size:
        return self.lengthscale.shape

    @staticmethod
    @abc.abstractmethod
    def kappa_(r2: Tensor, scratch: Tensor) -> None:
        """Turn squared whitened distances into k in place; `scratch` is of the same shape. For rows
        over very many points.
        """

    @staticmethod
    @abc.abstractmethod
    def profile(r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(kappa, phi, psi) at squared whitened distances."""

    def values(self, X: Tensor, Z: Tensor) -> Pulled:
        # measured from the mean of Z: callers of the pull have Z close together, and |u|^2 + |v|^2
        # - 2uv cancels far from 0
        centre = Z.mean(-2, keepdim=True)
        U = (X - centre) / self.lengthscale
        V = (Z - centre) / self.lengthscale
        return self._values(U, (U * U).sum(-1), V, (V * V).sum(-1))

    def gradients(self, theta: Tensor, Z: Tensor) -> Pulled:
        V = (Z - theta.unsqueeze(-2)) / self.lengthscale
        return self._gradients(V, (V * V).sum(-1))

    def around(self, theta: Tensor, X: Tensor) -> Callable[[Tensor], tuple[Pulled, Pulled]]:
        centre = theta.unsqueeze(-2)
        U = (X - centre) / self.lengthscale
        u2 = (U * U).sum(-1)

        def at(Z: Tensor) -> tuple[Pulled, Pulled]:
            V = (Z - centre) / self.lengthscale
            v2 = (V * V).sum(-1)
            runs = V.shape[:-2]
            rows = torch.cat([U.expand(*runs, -1, -1), V], dim=-2)
            squares = torch.cat([u2.expand(*runs, -1), v2], dim=-1)
            return self._values(rows, squares, V, v2), self._gradients(V, v2)

        return at

    def _values(self, U: Tensor, u2: Tensor, V: Tensor, v2: Tensor) -> Pulled:
        """`values` of whitened points, with their squared lengths."""
        r2 = (V @ U.mT).mul_(-2.0).add_(u2.unsqueeze(-2)).add_(v2.unsqueeze(-1))
        # m x n in memory: the columns that LAPACK wants
        kappa, phi, _ = self.profile(r2.clamp_min_(0.0).mT)

        def pull(C: Tensor) -> Tensor:
            weights = (C * phi).mT
            return (weights @ U - weights.sum(-1, keepdim=True) * V) / self.lengthscale

        return kappa, pull

    def _gradients(self, V: Tensor, v2: Tensor) -> Pulled:
        """`gradients` of whitened points measured from theta, with their squared lengths."""
        _, phi, psi = (part.unsqueeze(-1) for part in self.profile(v2))

        def pull(P: Tensor) -> Tensor:
            white = P.mT / self.lengthscale
            return (phi * white - psi * V * (V * white).sum(-1, keepdim=True)) / self.lengthscale

        return (phi * V / self.lengthscale).mT, pull

    def variances(self, X: Tensor) -> Tensor:
        return X.new_ones(X.shape[:-1])


class RBF(Radial):
    """kappa = phi = psi = exp(-r^2/2)."""

    @staticmethod
    def kappa_(r2: Tensor, scratch: Tensor) -> None:  # noqa: ARG004
        r2.mul_(-0.5).exp_()

    @staticmethod
    def profile(r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kappa = (-0.5 * r2).exp_()
        return kappa, kappa, kappa


class Matern52(Radial):
    """kappa = (1 + a + a^2/3) e^-a, phi = 5/3 (1 + a) e^-a, psi = 25/3 e^-a at a = sqrt(5) r; twice
    differentiable.
    """

    @staticmethod
    def kappa_(r2: Tensor, scratch: Tensor) -> None:
        a = r2.mul_(5.0).sqrt_()
        torch.mul(a, 1.0 / 3.0, out=scratch).add_(1.0).mul_(a).add_(1.0)
        a.neg_().exp_().mul_(scratch)

    @staticmethod
    def profile(r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # the root's own derivative is infinite at 0; nothing here needs it
        a = (5.0 * r2).clamp_min(1e-300).sqrt()
        decay = torch.exp(-a)
        linear = (1.0 + a) * decay
        return linear + a * a * decay / 3.0, (5.0 / 3.0) * linear, (25.0 / 3.0) * decay


class ClampFromInside(TorchFunctionMode):
    """Meanwhile `clamp` has the derivative 1 also where its argument equals a bound.

    GPyTorch clamps squared distances at 0 against rounding. Where two points meet, the distance is
    exactly 0, and torch 2.14 and newer take the derivative of the clamp to be 0 there: the kernel
    would seem to have no curvature. A squared distance is never below 0, so its clamp is the
    identity, whose derivative is 1.
    """

    _NAMES = frozenset(
        {"clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "clip", "clip_"}
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        named = kwargs or {}
        if name not in self._NAMES or "out" in named:
            return func(*args, **named)
        if name.startswith("clamp_max"):
            # its second argument is the upper bound
            args = (*args[:1], *([None] if len(args) > 1 else []), *args[1:])
        clamped = _clamp(*args, **named)
        if name.endswith("_"):
            return args[0].copy_(clamped)
        return clamped


def _clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """As `torch.clamp`: NaN stays NaN, and what equals a bound stays what it is."""
    clamped = input
    if min is not None:
        clamped = torch.where(clamped < min, min, clamped)
    if max is not None:
        clamped = torch.where(clamped > max, max, clamped)
    return clamped


class Autodiff(KernelDerivatives):
    """Any other GPyTorch kernel, differentiated by torch.func: reverse over reverse mode.

    A kernel that is not twice differentiable at coincident points (Matern-1/2), or whose code stops
    the gradient there, is refused when its prior covariance is first asked for. That is compared
    with its value a small step away, and with a difference of its values.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)

    @property
    def shape(self) -> torch.Size:
        d = 1
        # else it counts the active coordinates alone
        if self.kernel.active_dims is None:
            d = self.kernel.ard_num_dims or 1
        return torch.Size((*self.kernel.batch_shape, 1, d))

    def _dense(self, X: Tensor, Z: Tensor) -> Tensor:
        # one row more than needed: for X equal to Z GPyTorch shares their distances, and the
        # derivative by Z alone is lost; trace_mode, because its hand-written autograd functions do
        # not nest
        with gpytorch.settings.trace_mode(True), ClampFromInside():
            return self.kernel(X, torch.cat([Z, Z[..., :1, :] + 1.0], dim=-2)).to_dense()[..., :-1]

    def _in_batch(self, Z: Tensor, *others: torch.Size) -> Tensor:
        """Z, each run its own: what is pulled back would be summed over runs that share it."""
        runs = broadcast_shapes(self.batch_shape, Z.shape[:-2], *others)
        return Z.expand(*runs, *Z.shape[-2:])

    def values(self, X: Tensor, Z: Tensor) -> Pulled:
        Z = self._in_batch(Z, X.shape[:-2])
        # GPyTorch centres distances at the mean of X
        if X.shape[-2] == 0:
            return Z.new_zeros(*Z.shape[:-2], 0, Z.shape[-2]), lambda _: torch.zeros_like(Z)
        K, vjp = torch.func.vjp(lambda z: self._dense(X, z), Z)[:2]
        return K, lambda C: vjp(C.expand(K.shape))[0]

    def gradients(self, theta: Tensor, Z: Tensor) -> Pulled:
        Z = self._in_batch(Z, theta.shape[:-1])

        def by_theta(Z: Tensor) -> Tensor:
            # one theta a run of Z
            rows = theta.unsqueeze(-2) + torch.zeros_like(Z.sum(-2, keepdim=True))
            row, vjp = torch.func.vjp(lambda x: self._dense(x, Z), rows)[:2]
            return torch.func.vmap(vjp)(_units(row))[0].squeeze(-2).movedim(0, -1)

        G, vjp = torch.func.vjp(by_theta, Z)[:2]
        return G, lambda P: vjp(P.expand(G.shape))[0]

    def variances(self, X: Tensor) -> Tensor:
        with gpytorch.settings.trace_mode(True):
            return self.kernel(X, diag=True)

    def prior(self, theta: Tensor) -> Tensor:
        theta = self._in_batch(theta.unsqueeze(-2)).squeeze(-2)
        remedy = "Add kernels instead of multiplying them, or use RBF or Matern-5/2."
        refusal = InputError(
            "kernel",
            type(self.kernel).__name__,
            "twice differentiable, also where its two points meet",
            remedy,
        )
        try:
            exact = super().prior(theta)
            length = self._length(theta, exact)
            step = _NUDGE * length.unsqueeze(-1)
            beside = self.mixed(theta, (theta + step).unsqueeze(-2)).squeeze(-3)
        # torch.cdist, which GPyTorch's Matern kernels call, has no second derivative
        except RuntimeError:
            raise refusal from None
        if not bool(exact.isfinite().all()):
            raise refusal
        largest = float(exact.abs().max())
        if not torch.allclose(exact, beside, rtol=0.0, atol=1e-2 * largest):
            raise refusal
        # Along the diagonal: u'Pu against the variance of f's difference, which a kink makes far
        # too large. In units of the length.
        d = theta.shape[-1]
        pair = torch.stack([theta, theta + step / d**0.5], dim=-2)
        K = self.value(pair, pair)
        differences = (K[..., 0, 0] - 2.0 * K[..., 0, 1] + K[..., 1, 1]) / _NUDGE**2
        rounding = 1e-6 * float(K.abs().max())
        along = exact.sum((-2, -1)) / d * length.square()
        if not bool(
            ((along - differences).abs() <= 1e-2 * largest * length.square() + rounding).all()
        ):
            raise refusal
        return exact

    def _length(self, theta: Tensor, slopes: Tensor) -> Tensor:
        """The distance over which the process changes by its own size, `...`; 1 where its slopes
        (`... x d x d`) say nothing of it.
        """
        steepest = slopes.diagonal(dim1=-2, dim2=-1).amax(-1)
        length = (self.variances(theta.unsqueeze(-2)).squeeze(-1) / steepest).sqrt()
        return torch.where(length.isfinite() & (length > 0.0), length, 1.0)


class OfAffineMap(KernelDerivatives):
    """k(u, v) of u = (x - offset) / coefficient, v = (z - offset) / coefficient, each `... x 1 x
    d`, in the coordinates of x and z.
    """

    def __init__(self, base: KernelDerivatives, coefficient: Tensor, offset: Tensor) -> None:
        self.base = base
        self.coefficient = coefficient
        self.offset = offset

    @property
    def shape(self) -> torch.Size:
        return broadcast_shapes(self.base.shape, self.coefficient.shape)

    def _mapped(self, X: Tensor) -> Tensor:
        return (X - self.offset) / self.coefficient

    def values(self, X: Tensor, Z: Tensor) -> Pulled:
        K, pull = self.base.values(self._mapped(X), self._mapped(Z))
        return K, lambda C: pull(C) / self.coefficient

    def gradients(self, theta: Tensor, Z: Tensor) -> Pulled:
        at = self._mapped(theta.unsqueeze(-2)).squeeze(-2)
        G, pull = self.base.gradients(at, self._mapped(Z))
        by_row = self.coefficient.mT
        return G / by_row, lambda P: pull(P / by_row) / self.coefficient

    def variances(self, X: Tensor) -> Tensor:
        return self.base.variances(self._mapped(X))

    def prior(self, theta: Tensor) -> Tensor:
        prior = self.base.prior(self._mapped(theta.unsqueeze(-2)).squeeze(-2))
        return prior / self.coefficient / self.coefficient.mT


def of_affine_map(
    kernel: KernelDerivatives, coefficient: Tensor, offset: Tensor
) -> KernelDerivatives:
    """The kernel of points that are mapped first, as `OfAffineMap`; of a radial kernel another
    radial one, whose length-scales are longer, so that it keeps its closed forms.
    """
    if isinstance(kernel, Radial):
        return type(kernel)(kernel.lengthscale * coefficient)
    if isinstance(kernel, Scaled):
        twin = copy.copy(kernel)
        twin.base = of_affine_map(kernel.base, coefficient, offset)
        return twin
    if isinstance(kernel, Sum):
        return Sum([of_affine_map(part, coefficient, offset) for part in kernel.parts])
    return OfAffineMap(kernel, coefficient, offset)


def radial_part(kernel: KernelDerivatives) -> tuple[Radial, Tensor] | None:
    """The radial kernel of variance 1 and the factor before it, if the kernel is their product."""
    if isinstance(kernel, Scaled) and isinstance(kernel.base, Radial):
        return kernel.base, kernel.scale
    if isinstance(kernel, Radial):
        return kernel, torch.ones_like(kernel.lengthscale[..., :1])
    return None


def require_float64(name: str, value: Tensor) -> Tensor:
    """`value` if it is float64, else InputError: a jitter of 1e-6 is lost in float32's rounding."""
    if value.dtype != torch.float64:
        raise InputError(name, str(value.dtype), "a float64 tensor", "Call .double() on it.")
    return value


def require_finite(name: str, value: Tensor) -> Tensor:
    """`value` if it is float64 and finite, else InputError: a NaN would come back as one, or as a
    matrix that is not positive definite.
    """
    if not bool(require_float64(name, value).isfinite().all()):
        raise InputError(name, value, "finite")
    return value
