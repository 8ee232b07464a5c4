"""A12: noise that is stored and unused is seen on two data sets: with zero scale each release names
its data set, and the audit rejects it.

The honest twin of every mechanism's mutant passes the same test, so that it is the missing noise
that is found. Whole algorithms with too little noise are in test_audits_whole_runs.py.
"""

from typing import Any

import numpy as np
import pytest
import torch

from dpbo import Budget
from dpbo.mechanisms import (
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from dpbo.mechanisms import additive as additive_module
from dpbo.mechanisms.l2_laplace import L2LaplaceMechanism
from dpbo.queries import CandidateScores
from dpbo.testing import SeededEntropy, audit
from tests.attacks.marks import attack
from tests.attacks.setups import EXACT, FIRST_MEAN, owner
from tests.setups import DOUBLE, box

pytestmark = attack("A12")
RUNS = 100
PAIR = [torch.tensor([[0.5], [end]], dtype=DOUBLE) for end in (0.0, 1.0)]
BOUNDS = box(1)


CHOICE = CandidateScores(
    lambda x, r: 1 - (r[:, 0] - x[0]).abs(), list(BOUNDS), score_range=(0.0, 1.0)
)


# One release of a question by a mechanism.
CASES: dict[str, Any] = {
    "gaussian": (FIRST_MEAN, GaussianMechanism(2.0)),
    "laplace": (FIRST_MEAN, LaplaceMechanism(2.0)),
    "l2-laplace": (FIRST_MEAN, L2LaplaceMechanism(2.0)),
    "exponential": (CHOICE, ExponentialMechanism.of(0.5)),
    "permute-and-flip": (CHOICE, PermuteAndFlipMechanism.of(0.5)),
    "none": (FIRST_MEAN, EXACT),
}


def told_apart(name):
    """What the two points show, the threshold between their exact answers."""
    entropy = SeededEntropy(1)

    def draw(which, count):
        query, mechanism = CASES[name]
        curator = owner(PAIR[which], budget=Budget.gdp(1e3), entropy=entropy)
        releases = curator.release_all([curator.evaluate(query) for _ in range(count)], mechanism)
        return np.array([release.value.item() for release in releases])

    return audit(draw, runs=RUNS, statistic=lambda x: x[:, 0], threshold=0.5).mu


@pytest.mark.parametrize("name", CASES)
def test_unused_noise_is_rejected_and_used_noise_is_not(name, monkeypatch, measured):
    if name != "none":
        assert told_apart(name) <= 1.0
    for kind in (additive_module.IndependentNoise, L2LaplaceMechanism):
        whole = kind.noise
        monkeypatch.setattr(
            kind,
            "noise",
            lambda self, f, s, e, whole=whole: whole(self, f, np.asarray(s) * 1e-12, e),
        )
    # The largest utility, noise drawn and forgotten (optirs < 0.3.2).
    for chooser in (ExponentialMechanism, PermuteAndFlipMechanism):
        monkeypatch.setattr(
            chooser,
            "choose",
            lambda self, counts, rate, entropy: (entropy(8), int(np.flatnonzero(counts)[0]))[1],
        )
    leaked = told_apart(name)
    assert leaked > 1.0
    measured(RUNS, leaked)
