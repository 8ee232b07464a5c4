"""A variant of DP-GIBO: a Matern kernel whose length scales are fitted on public data, and Adam in
place of Adagrad.

Each iteration releases one gradient: the mean of all people's clipped gradients with Gaussian
noise. `calibrate` gives the noise with which all of them together keep the budget; the curator
refuses whatever would exceed it. The free choice, the best x for the public people, misses by 0.2,
because the protected ones want another x.
"""

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, Statement
from dpbo.accounting import calibrate
from dpbo.gibo import posterior_of_one_unit, suggest_gradient_points
from dpbo.mechanisms import GaussianMechanism

D = 6
BUDGET = Budget(epsilon=2.0, delta=1e-6)
BOX = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
generator = torch.Generator().manual_seed(0)
PUBLIC = torch.normal(0.4, 0.1, (100, D), dtype=torch.float64, generator=generator)
PEOPLE = torch.normal(0.6, 0.1, (3000, D), dtype=torch.float64, generator=generator)


def loss(x: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
    return ((people - x) ** 2).mean(1).sqrt()


def tuned(iterations: int = 30) -> tuple[torch.Tensor, Statement]:
    X = torch.rand(60, D, dtype=torch.float64, generator=generator)
    model = SingleTaskGP(
        X,
        torch.stack([loss(x, PUBLIC).mean() for x in X]).unsqueeze(1),
        covar_module=ScaleKernel(MaternKernel(nu=2.5)),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    posterior = posterior_of_one_unit(model)
    curator = Curator(
        PEOPLE, unit=PrivacyUnit("person"), adjacency=Adjacency.REPLACE_ONE, budget=BUDGET
    )
    mechanism = GaussianMechanism(calibrate(BUDGET, releases=iterations))
    theta = torch.nn.Parameter(torch.full((D,), 0.1, dtype=torch.float64))
    adam = torch.optim.Adam([theta], lr=0.05)
    for _ in range(iterations):
        points = suggest_gradient_points(posterior, theta.detach(), D + 1, bounds=BOX)
        query = posterior.gradient_query(theta.detach(), points, loss, clip=0.5)
        theta.grad = curator.release(query, mechanism).value
        adam.step()
        theta.data.clamp_(*BOX)
    return theta.detach(), curator.statement()


if __name__ == "__main__":
    print(*tuned(), f"free choice: {PUBLIC.mean(0).tolist()}", sep="\n")
