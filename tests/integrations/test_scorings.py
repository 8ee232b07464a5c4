"""Numbers computed from noised cells: unbiased where the noise leaves anything to see, and their variance what a simulation finds."""

import numpy as np
import pytest
import torch

from dpbo.integrations.tuning.scorings import scoring_named

RISING = np.exp(np.linspace(-3.0, 0.0, 16)) / np.exp(np.linspace(-3.0, 0.0, 16)).sum()


@pytest.mark.parametrize(
    ("scoring", "shares"),
    [
        ("f1", [0.4, 0.1, 0.1]), ("f1", [0.2, 0.1, 0.02]), ("balanced_accuracy", [0.4, 0.4, 0.1, 0.1]),
        ("balanced_accuracy", [0.7, 0.15, 0.1, 0.05]), ("roc_auc", [*0.5 * RISING, *0.5 * RISING[::-1]]),
        ("roc_auc", [*0.2 * RISING, *0.8 * RISING[::-1]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_the_variance_is_that_of_a_simulation(scoring, shares, noise):
    scored, exact = scoring_named(scoring, None, [0, 1]), torch.tensor([shares], dtype=torch.float64)
    true = scored.observed(exact, torch.zeros_like(exact))[0].item()
    drawn = exact + noise * torch.randn(20_000, len(shares), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values, variances = scored.observed(drawn, torch.full_like(drawn, noise**2))
    assert values.mean().item() == pytest.approx(true, abs=0.15 * values.std().item())
    assert ((values - true) ** 2 / variances).mean().sqrt().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("scoring", ["f1", "balanced_accuracy", "roc_auc"])
def test_no_noise_is_told_to_be_wider_than_the_range(scoring):
    scored = scoring_named(scoring, None, [0, 1])
    below = torch.full((1, scored.cells), -0.01, dtype=torch.float64)
    value, variance = scored.observed(below, torch.full_like(below, 0.01))
    assert 0.0 <= value.item() <= 1.0
    assert variance.item() == 1.0
