"""Small worlds for the good calls: curators over records that are canaries, and the public things around them."""

import functools
import itertools

import gpytorch
import numpy as np
import scipy.stats
import torch

import dpbo
from dpbo.accounting import PureFilter
from dpbo.events import GaussianEvent, LaplaceEvent
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.models import FiniteGP, GradientGP, GradientPosterior, squared_exponential
from dpbo.queries import Ball, CandidateScores, ClippedMean, RowTable
from dpbo.testing import SeededEntropy
from tests.fuzz.canaries import LABEL, SECRET

DOUBLE = torch.float64
UNITS = 40
BUDGET = dpbo.Budget(8.0, 1e-5)
REPLACE = dpbo.Adjacency.REPLACE_ONE
SPACE = dpbo.Space(a=scipy.stats.uniform(0, 1), b=scipy.stats.loguniform(1e-2, 1e2))
MIXED = dpbo.Space(a=scipy.stats.uniform(0, 1), n=scipy.stats.randint(1, 5), kind=["x", "y"])
LIVE: list[dpbo.Curator] = []  # made for the call at hand
_names = itertools.count()


def records(d=2):
    return torch.full((UNITS, d), SECRET, dtype=DOUBLE) * torch.linspace(0.5, 1.0, UNITS, dtype=DOUBLE).unsqueeze(1)


def labels():
    return [f"{LABEL}-{i // 2}" for i in range(UNITS)]


def curator(rows=None, *, grouped=False, **settings):
    """A curator of its own, remembered so that the watch can look at its ledger."""
    terms = {"adjacency": REPLACE, "budget": BUDGET, "entropy": SeededEntropy(1), "dataset": "fuzz", **settings}
    unit = dpbo.PrivacyUnit("patient", groups=labels()) if grouped else dpbo.PrivacyUnit("record")
    made = dpbo.Curator(records() if rows is None else rows, unit=unit, **terms)
    LIVE.append(made)
    return made


def pure(**settings):
    return curator(budget=dpbo.Budget(8.0, 0.0), accounting=PureFilter(), **settings)


def score(x, rows):
    """In [0, 1], one number a record."""
    return 1 - (rows[:, 0] - x[0]).abs().clamp(0, 1)


def loss(x, rows):
    return ((rows - x) ** 2).sum(1).clamp(0, 1)


def first_column(_model, rows):
    return rows[:, 0]


def objective(owner=None, evaluations=6, **settings):
    return dpbo.PrivateObjective(
        owner or curator(), score, score_range=(0.0, 1.0), evaluations=evaluations, name=f"o{next(_names)}", **settings
    )


def query(score=score, **settings):
    return ClippedMean(score, torch.tensor([0.5, 0.5], dtype=DOUBLE), **{"score_range": (0.0, 1.0), **settings})


def table():
    return RowTable(center=(0.0, 0.0), radius=2.0)


def gibo(**changed):
    terms = {"bounds": box(), "budget": 1.0, "iterations": 2, "batch_size": 2, "clip": 1.0, "tolerance": None, **changed}
    return dpbo.DPGIBO(curator(), loss, **terms)


def box(d=2):
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=DOUBLE)


def grid(n=8, d=2):
    return torch.quasirandom.SobolEngine(d, seed=0, scramble=True).draw(n, dtype=DOUBLE)


def history(n=6, d=2):
    X = grid(n, d)
    return {"X": X, "Y": X.sum(1, keepdim=True), "Yvar": torch.full((n, 1), 1e-2, dtype=DOUBLE)}


def kernel():
    return squared_exponential(0.4)


def scaled():
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double().requires_grad_(False)


@functools.cache
def gradient_gp():
    return GradientGP(grid(), grid().sum(1, keepdim=True), torch.full((8, 1), 1e-2, dtype=DOUBLE))


def posterior():
    made = GradientPosterior(scaled(), 1e-2)
    made.append(grid(4))
    return made


def finite_gp():
    gp = FiniteGP(grid(), kernel(), 1e-2)
    gp.observe(1, 0.3)
    return gp


def arrays(n=30, d=2):
    return np.full((n, d), SECRET) * np.linspace(0.1, 1.0, n * d).reshape(n, d)


GAUSSIAN, LAPLACE = GaussianMechanism(20.0), LaplaceMechanism(20.0)
EVENT, PURE_EVENT = GaussianEvent(20.0, 3), LaplaceEvent(20.0, 3)
BALL = Ball(2.0)
CANDIDATES = CandidateScores(score, grid(), score_range=(0.0, 1.0))


def selecting():
    """A curator whose accounting can pay for a selection of Gaussians."""
    return curator(accounting=dpbo.accounting.RDPFilter(6.0), budget=dpbo.Budget(20.0, 1e-5))
