"""The covariance of BoTorch's default models as a sum of exponentials, and their fit by it.

GPyTorch builds a covariance lazily, and autograd follows each step: for the few hundred points of a
search that takes most of the time of a fit, and of an acquisition. Here a fit takes a tenth.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, RBFKernel, ScaleKernel
from scipy.linalg import lapack
from scipy.optimize import minimize
from torch import Tensor

# of the likelihood per point: lengths to about a per cent, in half of the time that scipy's own
# 2e-9 takes
_FIT = {"maxiter": 200, "ftol": 1e-6}
# of scales, lengths and noise, for standardised values: the likelihood is flat beyond
_LEAST = 1e-4
_MOST = 1e4
# stands for the loss where rounding makes the covariance singular
_SINGULAR = 1e10

# the kernels that scale a term, and those that it multiplies, each with its coordinates
_Term = tuple[list[Kernel], list[tuple[Kernel, list[int]]]]


def is_plain(kernel: Kernel) -> bool:
    """Whether `PlainCovariance` knows this kernel and all its parts."""
    if kernel.batch_shape:
        return False
    if type(kernel) in (RBFKernel, CategoricalKernel):
        return True
    return type(kernel) in (ScaleKernel, AdditiveKernel, ProductKernel) and all(
        map(is_plain, kernel.sub_kernels())
    )


def _terms(kernel: Kernel, dims: Sequence[int]) -> list[_Term]:
    """The kernel multiplied out, of points of which it is given these coordinates."""
    if kernel.active_dims is not None:
        dims = [dims[i] for i in kernel.active_dims.tolist()]
    scales = []
    # which has the coordinates of its base
    while isinstance(kernel, ScaleKernel):
        scales.append(kernel)
        kernel = kernel.base_kernel
    terms: list[_Term] = [([], [(kernel, [*dims])])]
    if isinstance(kernel, AdditiveKernel):
        terms = []
        for part in kernel.kernels:
            terms += _terms(part, dims)
    if isinstance(kernel, ProductKernel):
        terms = []
        for factors in itertools.product(*(_terms(part, dims) for part in kernel.kernels)):
            inner, leaves = zip(*factors, strict=True)
            terms.append(([*itertools.chain(*inner)], [*itertools.chain(*leaves)]))
    return [(scales + inner, leaves) for inner, leaves in terms]


class PlainCovariance:
    """k(a, b) = sum_t exp(s_t - sum_j w_tj (a_j - b_j)^2 - sum_j v_tj [a_j != b_j]), as this plain
    kernel computes it of points of d coordinates. Autograd passes through it to the points.
    """

    def __init__(self, kernel: Kernel, d: int) -> None:
        terms = _terms(kernel, range(d))
        zeros = next(kernel.parameters()).new_zeros
        self._logs = zeros(len(terms), 1)
        self._squares = zeros(len(terms), d)
        self._different = zeros(len(terms), d)
        with torch.no_grad():
            for t, (scales, leaves) in enumerate(terms):
                for scale in scales:
                    self._logs[t] += scale.outputscale.log()
                for leaf, dims in leaves:
                    lengths = leaf.lengthscale[0]
                    if isinstance(leaf, CategoricalKernel):
                        self._different[t, dims] += 1.0 / (len(dims) * lengths)
                    else:
                        self._squares[t, dims] += 0.5 / lengths.square()
        self._categories = self._different.any(0).nonzero()[:, 0]

    def __call__(self, A: Tensor, B: Tensor) -> Tensor:
        """k(a, b) for all rows, `... x n x d` and `... x m x d` to `... x n x m`."""
        roots = self._squares.sqrt().unsqueeze(-2)
        a = A.unsqueeze(-3) * roots
        b = B.unsqueeze(-3) * roots
        sums = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
        exponents = (2.0 * a @ b.mT - sums).clamp_max(0.0) + self._logs.unsqueeze(-1)
        if len(self._categories):
            one = A[..., self._categories].unsqueeze(-2)
            other = B[..., self._categories].unsqueeze(-3)
            different = (one != other).to(A) @ self._different[:, self._categories].mT
            exponents = exponents - different.movedim(-1, -3)
        return exponents.exp().sum(-3)

    def variances(self, A: Tensor) -> Tensor:
        """k(a, a) for all rows, `... x n`: the same everywhere."""
        return self._logs.exp().sum().expand(A.shape[:-1])


class MarginalLikelihood:
    """Minus the logarithm of marginal likelihood times priors, per point and but for a constant, of
    one output of a model as `builders` makes it, and its gradient in theta: the logarithms of
    scales, lengths and noise.

    With K = k(X, X) + noise, the mean m = 1^T K^-1 y / 1^T K^-1 1 and a = K^-1 (y - m),
        loss = log det K / 2 + (y - m)^T a / 2 + priors.
    Its derivative by m is 0, by K it is (K^-1 - a a^T) / 2.

    Attributes:
        start: theta of the model.
        bounds: of each of theta.
    """

    def __init__(self, gp: SingleTaskGP, output: int = 0) -> None:
        self._gp = gp
        self._output = output
        priors = {name: prior for name, _, prior, _, _ in gp.named_priors()}
        # constraint and places in theta of each raw parameter but the mean, which has none
        self._learned: dict[Tensor, tuple[Any, slice]] = {}
        start: list[float] = []
        self.bounds: list[tuple[float, float]] = []
        # theta of the largest prior, and its precision
        beliefs: list[tuple[float, float]] = []
        for name, raw, constraint in gp.named_parameters_and_constraints():
            if constraint is None:
                continue
            values = self._own(constraint.transform(raw))
            self._learned[raw] = constraint, slice(len(start), len(start) + len(values))
            start += np.log(values).tolist()
            least = max(float(constraint.lower_bound), _LEAST)
            self.bounds += [(math.log(least), math.log(_MOST))] * len(values)
            belief = (0.0, 0.0)
            # log-normal: theta + (theta - loc)^2 / (2 scale^2) has its minimum there
            if prior := priors.get(name.replace("raw_", "") + "_prior"):
                belief = float(prior.loc - prior.scale**2), float(prior.scale**-2)
            beliefs += [belief] * len(values)
        self.start = np.array(start)
        self._mode, self._precision = np.array(beliefs).T
        self._y = self._own(gp.train_targets)
        self._noise = self._own(gp.likelihood.noise)
        raw_noise = getattr(gp.likelihood, "raw_noise", None)
        self._noise_places = None if raw_noise is None else self._learned[raw_noise][1]
        X = self._own(gp.train_inputs[0]).reshape(len(self._y), -1)
        self._parts = [self._part(X, term) for term in _terms(gp.covar_module, range(X.shape[1]))]

    def __call__(self, theta: Any) -> tuple[float, Any]:
        n = len(self._y)
        noise = self._noise
        if self._noise_places is not None:
            noise = np.exp(theta[self._noise_places])
        terms = []
        for scales, thetas, powers, Z in self._parts:
            R = Z * np.exp(-powers * theta[thetas])
            squares = 0.5 * (R * R).sum(1)
            terms.append((R, np.exp(theta[scales].sum() - squares[:, None] - squares + R @ R.T)))
        K = sum(k for _, k in terms) + np.diag(np.broadcast_to(noise, n))
        root, singular = lapack.dpotrf(K, lower=True)
        if singular:
            return _SINGULAR, np.zeros_like(theta)
        half = np.tril(lapack.dpotri(root, lower=True)[0])
        inverse = half + np.tril(half, -1).T
        self._mean = inverse.sum(0) @ self._y / inverse.sum()
        residual = self._y - self._mean
        a = inverse @ residual
        by_K = 0.5 * (inverse - np.outer(a, a))
        away = theta - self._mode
        gradient = self._precision * away
        loss = np.log(root.diagonal()).sum() + 0.5 * (residual @ a + gradient @ away)
        for (scales, thetas, powers, _), (R, k) in zip(self._parts, terms, strict=True):
            by_logs = by_K * k
            rows = by_logs.sum(0)
            gradient[scales] += rows.sum()
            by_thetas = 2.0 * powers * (rows @ (R * R) - (R * (by_logs @ R)).sum(0))
            np.add.at(gradient, thetas, by_thetas)
        if self._noise_places is not None:
            gradient[self._noise_places] += noise * np.trace(by_K)
        return loss / n, gradient / n

    def keep(self, theta: Any) -> None:
        """Make it the model's, with the mean that belongs to it."""
        self(theta)
        outputs = self._gp.num_outputs
        with torch.no_grad():
            self._gp.mean_module.raw_constant.view(outputs)[self._output] = self._mean
            for raw, (constraint, places) in self._learned.items():
                values = torch.from_numpy(np.exp(theta[places])).to(raw)
                raw.view(outputs, -1)[self._output] = constraint.inverse_transform(values)

    def _own(self, values: Tensor) -> Any:
        """The output's part of the model's values."""
        return values.detach().reshape(self._gp.num_outputs, -1)[self._output].cpu().numpy()

    def _part(self, X: Any, term: _Term) -> tuple[list[int], Any, Any, Any]:
        """Scales, thetas, powers and Z such that the term is exp(sum of theta[scales] -
        |r_a - r_b|^2 / 2), where r = z * exp(-powers * theta[thetas]).

        Of a number z is itself; a category has one for each of its values, equal to a constant
        where it is that one, and to 0 elsewhere.
        """
        places = [*range(len(self.start))]
        scales, leaves = term
        features = []
        for leaf, dims in leaves:
            thetas = places[self._learned[leaf.raw_lengthscale][1]]
            for j, theta in zip(dims, itertools.cycle(thetas), strict=False):
                x = X[:, j]
                if isinstance(leaf, CategoricalKernel):
                    for value in np.unique(x):
                        features.append((theta, 0.5, (x == value) / math.sqrt(len(dims))))
                else:
                    features.append((theta, 1.0, x))
        of_scales = [places[self._learned[scale.raw_outputscale][1]][0] for scale in scales]
        of_features, powers, columns = zip(*features, strict=True)
        return of_scales, np.array(of_features), np.array(powers), np.stack(columns, 1)


def fit(gp: SingleTaskGP) -> None:
    """Move the hyper-parameters of a model as `builders` makes it to where they are likeliest, from
    where they are, each output's by itself.
    """
    for output in range(gp.num_outputs):
        loss = MarginalLikelihood(gp, output)
        found = minimize(
            loss, loss.start, jac=True, method="L-BFGS-B", bounds=loss.bounds, options=_FIT
        )
        loss.keep(found.x)
