"""A12: noise that is stored and unused is seen on two data sets: with zero scale each release names its data set, and the audit rejects it.

The honest twin of every mechanism's mutant passes the same test, so that it is the missing noise that is found.
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
RUNS = 100
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


WHOLE = {"objective", "gibo", "k-means"}
MIDDLE = dict.fromkeys(RUN, 0.5) | {"gibo": 0.0}


def told_apart(name, run):
    """What the two points show, the threshold between their exact answers."""
    entropy = SeededEntropy(1)
    terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "entropy": entropy}

    def draw(which, count):
        if name in WHOLE:
            return np.array([run(Curator(PAIR[which], budget=Budget.gdp(1.0), **terms)) for _ in range(count)])
        curator = Curator(PAIR[which], budget=Budget.gdp(1e3), **terms)
        return np.array([run(curator) for _ in range(count)])

    return audit(draw, runs=RUNS, statistic=lambda x: x[:, 0], threshold=MIDDLE.get(name, 0.5)).mu


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.deep) if n in WHOLE else n for n in RUN])
def test_unused_noise_is_rejected_and_used_noise_is_not(name, monkeypatch, measured):
    if name not in WHOLE:  # whole runs with their noise: test_audits_whole_runs.py
        assert told_apart(name, RUN[name]) <= 1.0
    for kind in (additive_module.IndependentNoise, L2LaplaceMechanism):
        whole = kind.noise
        monkeypatch.setattr(kind, "noise", lambda self, f, s, e, whole=whole: whole(self, f, np.asarray(s) * 1e-12, e))
    for chooser in (ExponentialMechanism, PermuteAndFlipMechanism):  # the largest utility, noise drawn and forgotten (optirs < 0.3.2)
        monkeypatch.setattr(chooser, "choose", lambda self, counts, rate, entropy: (entropy(8), int(np.flatnonzero(counts)[0]))[1])
    leaked = told_apart(name, RUN[name])
    assert leaked > 1.0
    measured(RUNS, leaked)


def test_no_noise_is_told_apart_and_bounded_by_nothing(measured):
    leaked = told_apart("none", lambda curator: released(curator, NoNoise(allow_not_private=True)))
    assert leaked > 1.0
    measured(RUNS, leaked)
