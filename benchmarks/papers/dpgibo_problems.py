"""The five problems on which DP-GIBO is tried (arXiv 2502.06044, sections 4.1 to 4.4 and C.5):
records, a loss a record, a box, a start.

Everything random follows from a seed, so that every method sees the same records and begins at the
same point. The benchmark owns the records: `Problem.value` is the true mean loss, without noise of
any kind, of whatever a method recommends.
"""

import dataclasses
import functools
import hashlib
import math
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.svm import SVR
from torch import Tensor

from dpbo.curator.curator import Curator
from dpbo.privacy import Adjacency, Budget, PrivacyUnit
from dpbo.testing import SeededEntropy

SHORTEST = 0.05
LONGEST = 5.0
CRIME = (
    "communities_crime/communities_crime.npz",
    (
        "the unnormalised Communities and Crime data (UCI 211), as arrays X (NaN where missing) and"
        " violent_crimes_per_100k"
    ),
)
SLICES = (
    "ct_slice/slice_localization_data.csv",
    "the CT slice localisation data (UCI 206), unzipped: 53,500 rows of 386 columns",
)


@dataclass(frozen=True, eq=False)
class Problem:
    """The mean of `loss(x, records)` (`n`) is to be minimised in the box `bounds` (`2 x d`) from
    `start` (`d`); one person a row (`n x k`).

    `reach` is the public (lower, upper) of a record's loss, for methods that release losses;
    `lowest` is the least mean loss if known.
    """

    records: Tensor
    loss: Callable[[Tensor, Any], Tensor]
    bounds: Tensor
    start: Tensor
    reach: tuple[float, float]
    lowest: float = 0.0

    def value(self, x: Tensor) -> float:
        """True mean loss at x, over the lowest where that is known."""
        return float(self.loss(x, self.records).mean()) - self.lowest

    def curator(self, mu: float, seed: int) -> Curator:
        """A fresh owner of the records, with noise that can be repeated (a simulation: nothing here
        is protected).
        """
        terms: dict[str, Any] = {
            "unit": PrivacyUnit("person"),
            "adjacency": Adjacency.REPLACE_ONE,
            "entropy": SeededEntropy(seed),
        }
        return Curator(
            self.records, budget=Budget.gdp(mu if math.isfinite(mu) else 1.0, delta=1e-5), **terms
        )


def box(lower: list[float], upper: list[float]) -> Tensor:
    """Bounds, `2 x d`."""
    return torch.tensor([lower, upper], dtype=torch.float64)


def normal_location(seed: int, n: int = 50, d: int = 5) -> Problem:
    """4.1: half the squared distance to the mean of a normal sample around one; from zero."""
    x = 1.0 + torch.randn(n, d, dtype=torch.float64, generator=_generator(seed))
    problem = Problem(
        x,
        _half_distance,
        box([-5.0] * d, [5.0] * d),
        torch.zeros(d, dtype=torch.float64),
        (0.0, 20.0),
    )
    return dataclasses.replace(problem, lowest=problem.value(x.mean(0)))


def huber_regression(seed: int, n: int = 100, d: int = 4) -> Problem:
    """4.2: Huber's loss of y - x theta, weighted so that no record's gradient exceeds sqrt 2; from
    zero, truth at one.
    """
    draw = torch.randn(n, d + 1, dtype=torch.float64, generator=_generator(seed))
    records = torch.cat([draw[:, :d], draw.sum(1, keepdim=True)], 1)
    problem = Problem(
        records, huber, box([-5.0] * d, [5.0] * d), torch.zeros(d, dtype=torch.float64), (0.0, 5.0)
    )
    least = minimize(
        lambda t: problem.value(torch.from_numpy(t)),
        np.ones(d),
        jac=lambda t: huber_gradient(torch.from_numpy(t), records).mean(0).numpy(),
        method="L-BFGS-B",
        tol=1e-14,
    ).fun
    return dataclasses.replace(problem, lowest=float(least))


def huber(theta: Tensor, records: Tensor) -> Tensor:
    """Weighted Huber loss of each record (features, then y) at theta, `n`."""
    residual, weight = _residual(theta, records)
    return weight * torch.where(residual.abs() <= 1.0, residual**2 / 2, residual.abs() - 0.5)


def huber_gradient(theta: Tensor, records: Tensor) -> Tensor:
    """Its gradient in theta, `n x d`."""
    residual, weight = _residual(theta, records)
    return -(weight * residual.clamp(-1.0, 1.0)).unsqueeze(1) * records[:, :-1]


def length_scales(seed: int, n: int = 4500, d: int = 10, train: int = 100) -> Problem:
    """4.3: ten length-scales of a Gaussian process; squared error of the public records' prediction
    for each person, at most 1.

    The sample path has true scales uniform in the box and 2,000 random Fourier features; features
    are uniform in the unit cube; the noise of the targets has standard deviation 0.1.
    """
    generator = _generator(seed)
    scales = _uniform(generator, d)
    X = torch.rand(n + train, d, dtype=torch.float64, generator=generator)
    y = _sample_path(X / scales, generator) + 0.1 * torch.randn(
        n + train, dtype=torch.float64, generator=generator
    )
    loss = functools.partial(_gp_error, train=X[:train], targets=y[:train])
    return Problem(
        torch.cat([X, y.unsqueeze(1)], 1)[train:],
        loss,
        box([SHORTEST] * d, [LONGEST] * d),
        _uniform(generator, d),
        (0.0, 1.0),
    )


def noisy(problem: Problem, std: float, seed: int) -> tuple[Problem, Problem]:
    """C.5: (what methods see, the truth). Every evaluated point has noise of its own, from its
    training, shared by all records.
    """

    def seen(x: Tensor, records: Tensor) -> Tensor:
        digest = hashlib.sha256(f"{seed} {x.tolist()}".encode()).digest()
        shift = torch.randn(
            1, dtype=torch.float64, generator=_generator(int.from_bytes(digest[:7]))
        )
        return problem.loss(x, records) + std * shift

    return dataclasses.replace(problem, loss=seen), problem


def svm(seed: int, table: tuple[Tensor, Tensor], train: int, n: int, features: int = 30) -> Problem:
    """4.4: log length-scales of random features, epsilon, C and gamma of a support vector
    regression; squared error, at most 1.

    `table` has features `m x k` and targets `m`; both are scaled by the public training records.
    """
    X, y = table
    generator = _generator(seed)
    rows = torch.randperm(len(X), generator=generator)
    columns = torch.randperm(X.shape[1], generator=generator)[:features]
    chosen = X[rows[: train + n]][:, columns]
    target = y[rows[: train + n]]
    low = chosen[:train].amin(0)
    high = chosen[:train].amax(0)
    scaled = ((chosen - low) / (high - low).clamp_min(1e-9)).clamp(0.0, 1.0)
    target = (target - target[:train].mean()) / target[:train].std()
    bounds = box([-2.0] * features + [0.01, 0.1, 0.01], [2.0] * features + [1.0, 3.0, 5.0])
    start = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(
        features + 3, dtype=torch.float64, generator=generator
    )
    loss = functools.partial(_svr_error, train=scaled[:train], targets=target[:train])
    return Problem(
        torch.cat([scaled, target.unsqueeze(1)], 1)[train:], loss, bounds, start, (0.0, 1.0)
    )


def communities_and_crime() -> tuple[Tensor, Tensor]:
    """Complete features and violent crimes per 100,000 of 1,994 communities."""
    stored = np.load(data_file(*CRIME), allow_pickle=False)
    X = stored["X"].astype(np.float64)
    y = stored["violent_crimes_per_100k"].astype(np.float64)
    known = ~np.isnan(y)
    return torch.from_numpy(X[:, ~np.isnan(X).any(0)][known]), torch.from_numpy(y[known])


def ct_slices() -> tuple[Tensor, Tensor]:
    """384 features and the position of 53,500 slices."""
    stored = np.loadtxt(data_file(*SLICES), delimiter=",", skiprows=1)
    return torch.from_numpy(stored[:, 1:-1]), torch.from_numpy(stored[:, -1])


def stand_in(rows: int = 300, columns: int = 40) -> tuple[Tensor, Tensor]:
    """Made-up features and targets, to see that an experiment runs."""
    X = torch.rand(rows, columns, dtype=torch.float64, generator=_generator(0))
    return X, torch.sin(4 * X[:, :10]).sum(1)


def data_file(name: str, contents: str) -> pathlib.Path:
    """A file of the folder that DPBO_DATA names. Raises FileNotFoundError that says what to
    download.
    """
    folder = os.environ.get("DPBO_DATA")
    path = pathlib.Path(folder or ".") / name
    if folder is None or not path.is_file():
        raise FileNotFoundError(
            f"download {contents}, and put it as {name} in the folder that the variable DPBO_DATA"
            " names"
        )
    return path


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _uniform(generator: torch.Generator, d: int) -> Tensor:
    return SHORTEST + (LONGEST - SHORTEST) * torch.rand(d, dtype=torch.float64, generator=generator)


def _half_distance(theta: Tensor, records: Tensor) -> Tensor:
    return ((records - theta) ** 2).sum(1) / 2


def _residual(theta: Tensor, records: Tensor) -> tuple[Tensor, Tensor]:
    """y - x theta and the weights min(1, 2 / |x|^2), `n` each."""
    X = records[:, :-1]
    return records[:, -1] - X @ theta, (2.0 / (X**2).sum(1).clamp_min(1e-12)).clamp_max(1.0)


def _sample_path(X: Tensor, generator: torch.Generator, count: int = 2000) -> Tensor:
    """A draw of a unit squared-exponential process at the rows of X, `n`."""
    frequencies = torch.randn(X.shape[1], count, dtype=torch.float64, generator=generator)
    phases = 2 * math.pi * torch.rand(count, dtype=torch.float64, generator=generator)
    weights = torch.randn(count, dtype=torch.float64, generator=generator)
    return torch.cos(X @ frequencies + phases) @ weights * math.sqrt(2.0 / count)


def _half_squared_distances(A: Tensor, B: Tensor) -> Tensor:
    return torch.addmm((B**2).sum(1) / 2, A, B.T, alpha=-1.0).add_((A**2).sum(1, keepdim=True) / 2)


def _gp_error(lengths: Tensor, records: Tensor, *, train: Tensor, targets: Tensor) -> Tensor:
    """Squared error, at most 1, of a process with these length-scales and noise 0.1, `n`: one
    factor of `train` rows for all records.
    """
    known = train / lengths
    K = _half_squared_distances(known, known).neg_().exp_() + 0.01 * torch.eye(
        len(train), dtype=torch.float64
    )
    weights = torch.cholesky_solve(targets.unsqueeze(1), torch.linalg.cholesky(K)).squeeze(1)
    predicted = _half_squared_distances(records[:, :-1] / lengths, known).neg_().exp_() @ weights
    return (records[:, -1] - predicted).square_().clamp_max_(1.0)


def _svr_error(x: Tensor, records: Tensor, *, train: Tensor, targets: Tensor) -> Tensor:
    """Squared error, at most 1, of the regression with these log length-scales, epsilon, C and
    gamma, `n`.
    """
    epsilon, C, gamma = x[-3:].tolist()
    scale = math.sqrt(2 * gamma) * torch.exp(-x[:-3])
    known = train * scale
    K = _half_squared_distances(known, known).neg_().exp_()
    model = SVR(kernel="precomputed", C=C, epsilon=epsilon, tol=1e-3).fit(
        K.numpy(), targets.numpy()
    )
    support = torch.from_numpy(model.support_.astype(np.int64))
    kernel = _half_squared_distances(records[:, :-1] * scale, known[support]).neg_().exp_()
    predicted = kernel @ torch.from_numpy(model.dual_coef_[0]) + float(model.intercept_[0])
    return (records[:, -1] - predicted).square_().clamp_max_(1.0)
