"""Curators over records that are canaries, and the public things around them."""

import itertools

import torch

import dpbo
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy
from tests.fuzz.canaries import LABEL, SECRET

DOUBLE = torch.float64
UNITS = 40
BUDGET = dpbo.Budget(8.0, 1e-5)
REPLACE = dpbo.Adjacency.REPLACE_ONE
_names = itertools.count()


def records(d=2):
    return torch.full((UNITS, d), SECRET, dtype=DOUBLE) * torch.linspace(0.5, 1.0, UNITS, dtype=DOUBLE).unsqueeze(1)


def labels():
    return [f"{LABEL}-{i // 2}" for i in range(UNITS)]


def curator(rows=None, *, grouped=False, **settings):
    """A curator of its own."""
    terms = {"adjacency": REPLACE, "budget": BUDGET, "entropy": SeededEntropy(1), "dataset": "fuzz", **settings}
    unit = dpbo.PrivacyUnit("patient", groups=labels()) if grouped else dpbo.PrivacyUnit("record")
    return dpbo.Curator(records() if rows is None else rows, unit=unit, **terms)


def score(x, rows):
    """In [0, 1], one number a record."""
    return 1 - (rows[:, 0] - x[0]).abs().clamp(0, 1)


def objective(owner=None, evaluations=6, **settings):
    return dpbo.PrivateObjective(
        owner or curator(), score, score_range=(0.0, 1.0), evaluations=evaluations, name=f"o{next(_names)}", **settings
    )


def query(score=score, **settings):
    return ClippedMean(score, torch.tensor([0.5, 0.5], dtype=DOUBLE), **{"score_range": (0.0, 1.0), **settings})


def box(d=2):
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=DOUBLE)


def grid(n=8, d=2):
    return torch.quasirandom.SobolEngine(d, seed=0, scramble=True).draw(n, dtype=DOUBLE)


GAUSSIAN = GaussianMechanism(20.0)
