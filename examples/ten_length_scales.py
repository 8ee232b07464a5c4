"""Ten length-scales of a Gaussian process, tuned along private gradients of every person's own
squared error. It shows the mechanics. Protected people are like the public ones here, so a fit to
the public ones alone is free and as good.
"""

import warnings

import torch
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

import dpbo

D, PUBLIC, generator = 10, 100, torch.Generator().manual_seed(0)
X = torch.rand(4600, D, dtype=torch.float64, generator=generator)
# two columns matter
y = (
    torch.sin(6 * X[:, 0])
    + X[:, 1]
    + 0.1 * torch.randn(4600, dtype=torch.float64, generator=generator)
)
START = torch.full((D,), 0.5, dtype=torch.float64)


def kernel(A: torch.Tensor, B: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(torch.cdist(A / lengths, B / lengths) ** 2) / 2)


def loss(lengths: torch.Tensor, people: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Squared error, at most 1, of the prediction from public rows."""
    K = kernel(X[:PUBLIC], X[:PUBLIC], lengths) + 0.01 * torch.eye(PUBLIC, dtype=torch.float64)
    return (
        (kernel(people[0], X[:PUBLIC], lengths) @ torch.linalg.solve(K, y[:PUBLIC]) - people[1])
        ** 2
    ).clamp(max=1.0)


def tuned(iterations: int = 25) -> tuple[torch.Tensor, dpbo.Statement]:
    curator = dpbo.Curator(
        (X[PUBLIC:], y[PUBLIC:]),
        unit="person",
        adjacency="replace-one",
        budget=dpbo.Budget(epsilon=4.0, delta=1e-5),
    )
    bounds = torch.tensor([[0.05] * D, [5.0] * D], dtype=torch.float64)
    search = dpbo.DPGIBO(
        curator,
        loss,
        bounds=bounds,
        start=START,
        budget=1.0,
        iterations=iterations,
        batch_size=D + 1,
        clip=1.0,
    )
    return search.run().x, curator.statement()


if __name__ == "__main__":
    lengths, statement = tuned()
    warnings.simplefilter("ignore")  # scikit-learn warns of length-scales at their bounds
    free = GaussianProcessRegressor(kernels.RBF(START.numpy(), (0.05, 5.0)), alpha=0.01).fit(
        X[:PUBLIC], y[:PUBLIC]
    )
    found, fitted = (
        loss(x, (X[PUBLIC:], y[PUBLIC:])).mean()
        for x in (lengths, torch.from_numpy(free.kernel_.length_scale))
    )
    print(
        lengths,
        f"mean loss {found:.4f}; of the free choice, fitted to the public rows, {fitted:.4f}",
        statement,
        sep="\n",
    )
