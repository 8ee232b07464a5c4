"""A12: noise that is stored and unused is seen on two data sets: with zero scale each release names its data set, and the audit rejects it.

The honest twin of every mutant passes the same test, so that it is the missing noise that is found.
"""

from typing import Any

import numpy as np
import pytest
import torch

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.algorithms.em import DPKMeans
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism, NoNoise, PermuteAndFlipMechanism
from dpbo.mechanisms import additive as additive_module
from dpbo.mechanisms.l2_laplace import L2LaplaceMechanism
from dpbo.queries import CandidateScores, ClippedMean
from dpbo.testing import SeededEntropy, audit

pytestmark = [pytest.mark.attack("A12"), pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")]
RUNS = 150
PAIR = [torch.tensor([[0.5], [end]], dtype=torch.float64) for end in (0.0, 1.0)]
BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def own(_, records):
    return records[:, 0]


def released(curator, mechanism):
    return curator.release(ClippedMean(own, score_range=(0.0, 1.0)), mechanism).value.item()


def chosen(curator, mechanism):
    query = CandidateScores(lambda x, r: 1 - (r[:, 0] - x[0]).abs(), list(BOUNDS), score_range=(0.0, 1.0))
    return curator.release(query, mechanism).value.item()


def objective(curator):
    return PrivateObjective(curator, own, score_range=(0.0, 1.0), evaluations=1)(BOUNDS[:1])[0].item()


def gibo(curator):
    settings: dict[str, Any] = {"bounds": BOUNDS, "budget": 1.0, "iterations": 1, "batch_size": 2, "clip": 1.0}
    return DPGIBO(curator, lambda x, r: x[0] * (r[:, 0] - 0.5) * 9, **settings).run().gradients.item()


def centre(curator):
    return float(DPKMeans(1, budget=1.0, radius=1.0, dimension=1, max_iter=1, random_state=0).fit(curator).cluster_centers_[0, 0])


RUN: dict[str, Any] = {
    "gaussian": lambda c: released(c, GaussianMechanism(2.0)),
    "laplace": lambda c: released(c, LaplaceMechanism(2.0)),
    "l2-laplace": lambda c: released(c, L2LaplaceMechanism(2.0)),
    "exponential": lambda c: chosen(c, ExponentialMechanism.of(0.5)),
    "permute-and-flip": lambda c: chosen(c, PermuteAndFlipMechanism.of(0.5)),
    "objective": objective,
    "gibo": gibo,
    "k-means": centre,
}


def told_apart(run):
    """What the two points show, when the claim is mu = 1 at most."""
    entropy = SeededEntropy(1)

    def draw(which, count):
        terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget.gdp(1.0)}
        return np.array([run(Curator(PAIR[which], entropy=entropy, **terms)) for _ in range(count)])

    return audit(draw, runs=RUNS).mu


@pytest.mark.parametrize("name", RUN)
def test_unused_noise_is_rejected_and_used_noise_is_not(name, monkeypatch, measured):
    honest = told_apart(RUN[name])
    assert honest <= 1.0
    for kind in (additive_module.IndependentNoise, L2LaplaceMechanism):
        whole = kind.noise
        monkeypatch.setattr(kind, "noise", lambda self, f, s, e, whole=whole: whole(self, f, np.asarray(s) * 1e-12, e))
    for chooser in (ExponentialMechanism, PermuteAndFlipMechanism):  # the largest utility, noise drawn and forgotten (optirs < 0.3.2)
        monkeypatch.setattr(chooser, "choose", lambda self, counts, rate, entropy: (entropy(8), int(np.flatnonzero(counts)[0]))[1])
    leaked = told_apart(RUN[name])
    assert leaked > 1.0
    measured(RUNS, leaked)


def test_no_noise_is_told_apart_and_bounded_by_nothing(measured):
    leaked = told_apart(lambda curator: released(curator, NoNoise(allow_not_private=True)))
    assert leaked > 1.0
    measured(RUNS, leaked)
