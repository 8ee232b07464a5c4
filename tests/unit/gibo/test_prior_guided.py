"""Prior-guided acquisition: the formula, its decay, and what it refuses."""

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qSimpleRegret,
)
from botorch.models import SingleTaskGP

from dpbo.acquisition import prior_guided
from dpbo.errors import InputError
from dpbo.gibo import GradientInformation, GradientPosterior
from dpbo.models.fixed_kernels import squared_exponential
from tests.setups import DOUBLE, box

X = torch.rand(7, 1, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
BOUNDS = box(2)


def model():
    seen = torch.tensor([[0.1, 0.2], [0.8, 0.4], [0.5, 0.9]]).double()
    return SingleTaskGP(seen, seen.sum(1, keepdim=True).sin())


def log_density(X):
    return -20 * (X - 0.3).square().sum(-1)


def test_it_is_pi_bo():
    logged = LogExpectedImprovement(model(), 0.9)
    for t in (1, 4):
        assert torch.allclose(
            prior_guided(logged, log_density, t=t, beta=2.0)(X),
            logged(X) + 2.0 / t * log_density(X[:, 0]),
        )


def test_a_share_is_uniform():
    plain = LogExpectedImprovement(model(), 0.9)
    far = prior_guided(
        plain,
        lambda X: torch.full(X.shape[:-1], -1e4, dtype=DOUBLE),
        t=1,
        beta=1.0,
        bounds=BOUNDS,
        share=0.25,
    )
    assert torch.allclose(far(X), plain(X) + torch.tensor(0.25).double().log())


def test_what_is_no_logarithm_is_refused_before_it_is_looked_at():
    gp = model()
    history = GradientPosterior(squared_exponential(0.3), 0.01)
    for made in (
        UpperConfidenceBound(gp, beta=1.0),
        PosteriorMean(gp),
        qSimpleRegret(gp),
        ProbabilityOfImprovement(gp, 0.9),
        qKnowledgeGradient(gp, num_fantasies=4),
        GradientInformation(history, torch.tensor([0.3, 0.3]).double()),
    ):
        with pytest.raises(InputError, match=r"acquisition=.* must be a logarithm"):
            prior_guided(made, log_density, t=1)
