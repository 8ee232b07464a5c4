"""A Gaussian process over rows that are known with noise: the model of someone who was sent z = x +
eta instead of x.

Let f ~ GP(0, k) with k(x, x') = sigma_y^2 exp(-|x - x'|^2 / (2 l^2)), and let the true rows have a
flat prior, so that x_i given z_i is N(z_i, s2 I), each row by itself. For two rows i != j, x_i -
x_j given Z is N(z_i - z_j, 2 s2 I), and in each of d coordinates

    E exp(-(D + e)^2 / (2 l^2)) = (l^2 / leff^2)^{1/2} exp(-D^2 / (2 leff^2)),
    e ~ N(0, 2 s2),     leff^2 = l^2 + 2 s2,

by completing the square. Hence

    Cov(f(x_i), f(x_j) | Z) = a exp(-|z_i - z_j|^2 / (2 leff^2)),
    a = sigma_y^2 (l^2 / leff^2)^{d/2},     Var f(x_i) = sigma_y^2:

an enlarged length-scale, and for each row a value of its own of variance sigma_y^2 - a, which no
other row reveals and which repeated observation of the row does not average away. Length-scales and
noise may differ by coordinate: a is then a product over coordinates.

These are the first two moments of f over the rows given Z; f is not Gaussian given Z, so the
posterior is the best linear one. Noise known by its variance alone enters the same way, as an
approximation: l2-Laplace noise of scale b by (d + 1) b^2, because its radius is Gamma(d, b) with E
r^2 = d (d + 1) b^2, spread evenly over d coordinates. A flat prior spreads further than rows in a
bounded set do, so the model is a little less certain than it could be. Everything here is public:
constants of the release and nothing else. Source: derived for this library from Kharkovskii et al.
2020's setting (their modeler uses k as it is).

The kernel that `noisy_inputs` returns is a sum of ordinary GPyTorch kernels, so any model takes it.
`FiniteGP` knows rows by index. Other models know coordinates alone: two rows are the same where all
coordinates are equal, bit for bit, and rows of a release with continuous noise differ. A point near
a row is another row and shares at most a with it, however near it is: so optimise an acquisition
over the rows, not over the space between them.
"""

from typing import Annotated, Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, RBFKernel, ScaleKernel
from torch import Tensor

from dpbo.errors import InputError
from dpbo.isolation import without_default_device
from dpbo.models.kernels import require_float64
from dpbo.validation import POINTS, Positive, at_least, checked


class SameRow(Kernel):  # type: ignore[misc]
    """1 for a row and itself, 0 for two rows: a value of its own for each row. Rows are the same
    where all coordinates are equal.
    """

    has_lengthscale = False

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """k of `... x n x d` and `... x m x d`, `... x n x m`; if `diag`, `... x n`."""
        equal = (x1 == x2) if diag else (x1.unsqueeze(-2) == x2.unsqueeze(-3))
        return equal.all(-1).to(x1.dtype)


@checked
def noisy_inputs(
    kernel: Kernel, variance: float | Tensor, *, dimension: Annotated[int, at_least(1, 10_000)]
) -> Kernel:
    """The kernel of f over rows known with noise, by the formula above: enlarged between rows,
    `kernel`'s own variance on each.

    Args:
        kernel: the squared exponential of f over true rows, as RBFKernel or ScaleKernel of it,
            float64; fixed and public.
        variance: s2 of the noise in each coordinate, in units of x^2; one number, or `d`. 0 where a
            coordinate is exact.

    Keyword args:
        dimension: d of the rows.

    Raises:
        InputError: another kernel, one of other or of batched dimensions, or a variance below 0.
    """
    if type(kernel) is ScaleKernel:
        base, outputscale = (kernel.base_kernel, float(kernel.outputscale.detach()))
    else:
        base, outputscale = (kernel, 1.0)
    if type(base) is not RBFKernel or base.active_dims is not None or len(kernel.batch_shape):
        allowed = "an RBFKernel or a ScaleKernel of one, over all dimensions, without a batch"
        raise InputError(
            "kernel",
            type(base).__name__,
            allowed,
            "For other kernels the expectation has no such form.",
        )
    lengths = require_float64("kernel", base.lengthscale).detach().reshape(-1)
    variances = torch.as_tensor(variance, dtype=lengths.dtype, device=lengths.device).reshape(-1)
    for name, numbers in (("kernel", lengths), ("variance", variances)):
        if len(numbers) not in (1, dimension):
            raise InputError(
                name, tuple(numbers.shape), f"of one number, or of the dimension's {dimension}"
            )
    if not bool(((variances >= 0) & variances.isfinite()).all()):
        raise InputError(
            "variance", tuple(variances.tolist()), "finite and at least 0 in each coordinate"
        )
    enlarged = (lengths.square() + 2.0 * variances).sqrt()
    # a / sigma_y^2
    share = float((lengths / enlarged).expand(dimension).prod())
    if share == 0.0:
        raise InputError(
            "variance",
            tuple(variances.tolist()),
            "within reach of the length-scales",
            "Rows this noisy say nothing of each other.",
        )
    with without_default_device():
        far = RBFKernel(ard_num_dims=len(enlarged) if len(enlarged) > 1 else None).double()
        far.lengthscale = enlarged
        found = _scaled(far, outputscale * share)
        # without noise no row has a value of its own
        if share < 1.0:
            found = AdditiveKernel(found, _scaled(SameRow(), outputscale * (1.0 - share)))
    return found.to(lengths.device).requires_grad_(False)


def _scaled(kernel: Kernel, outputscale: float) -> Any:
    scaled = ScaleKernel(kernel).double()
    # a bare number would pass through float32
    scaled.outputscale = torch.tensor(outputscale, dtype=torch.float64, device="cpu")
    return scaled


@checked
def unprojected(
    Z: Annotated[Tensor, POINTS], P: Annotated[Tensor, POINTS], variance: Positive
) -> tuple[Tensor, Tensor]:
    """Rows from their noisy projections Z = X P + eta, for `noisy_inputs`: `n x d`, and the
    variance of each coordinate, `d`.

    With P = U S V^T, Z V / S is X U plus noise that is independent by coordinate, of variance
    `variance` / S^2: the least-squares estimate of X, turned by U, which leaves every distance
    between true rows as it was. Nothing is lost: Z is this and noise.

    Args:
        Z: `n x k`, float64.
        P: `d x k` of rank d <= k, public.
        variance: of each coordinate of eta, in units of x^2.

    Raises:
        InputError: P has fewer columns than rows, or not full rank; then only a projection of the
            rows is known.
    """
    if Z.shape[1] != P.shape[1]:
        raise InputError("Z", tuple(Z.shape), f"of {P.shape[1]} columns, as P")
    _, S, Vh = torch.linalg.svd(P, full_matrices=False)
    if P.shape[0] > P.shape[1] or bool(S[-1] <= 1e-12 * S[0]):
        raise InputError(
            "P",
            tuple(P.shape),
            "d x k with d <= k, of rank d",
            "Use Z as it is, with `variance`, in k dimensions.",
        )
    return Z @ (Vh.mT / S), variance / S.square()
