"""Good calls: curators, objectives, spaces, models, acquisitions, algorithms."""

import concurrent.futures
import pathlib
import tempfile

import torch
from botorch.acquisition.analytic import LogExpectedImprovement

import dpbo
from dpbo import acquisition, models
from dpbo.curator import Ledger
from dpbo.objective import PrivateObjective
from dpbo.testing import SeededEntropy
from tests.fuzz import world as w
from tests.fuzz.case import Case, of

POOL = concurrent.futures.ThreadPoolExecutor(1)
X = torch.tensor([0.5, 0.5], dtype=w.DOUBLE)
HISTORY = {"space": w.SPACE, **w.history()}
BIRTH = {
    "dataset": "x",
    "unit": "record",
    "grouped": False,
    "adjacency": "replace-one",
    "budget": w.BUDGET.to_json(),
    "accounting": "GDPFilter",
    "role": "validation",
}


def _charged_store():
    ledger = Ledger(None, BIRTH)
    ledger.charge("r", w.EVENT, {"units": 3, "slots": []}, None)
    return ledger.store


SCHEDULE = acquisition.SrinivasFinite(count=8, delta=0.1)
CURATORS = {
    "dpbo.Curator": Case(
        lambda: w.curator,
        lambda: {
            "rows": w.records(),
            "adjacency": w.REPLACE,
            "budget": w.BUDGET,
            "dataset": "fuzz",
            "ledger": None,
            "accounting": None,
            "role": "validation",
            "example": torch.zeros(3, 2, dtype=w.DOUBLE),
            "row_change": None,
            "allow_conditional": False,
            "ranks": None,
            "entropy": SeededEntropy(1),
        },
    ),
    "dpbo.Curator.unit": Case(
        lambda: dpbo.Curator, lambda: {"records": w.records(), "unit": dpbo.PrivacyUnit("x"), "adjacency": w.REPLACE, "budget": w.BUDGET}
    ),
    "dpbo.Curator.groups": Case(
        lambda: lambda groups: dpbo.Curator(w.records(), unit=dpbo.PrivacyUnit("x", groups=groups), adjacency=w.REPLACE, budget=w.BUDGET),
        lambda: {"groups": w.labels()},
    ),
    "dpbo.Curator.rehearsal": Case(
        lambda: dpbo.Curator.rehearsal,
        lambda: {"records": w.records(), "unit": dpbo.PrivacyUnit("x"), "adjacency": w.REPLACE, "budget": w.BUDGET},
    ),
    "dpbo.Curator.evaluate": Case(lambda: w.curator().evaluate, lambda: {"query": w.query(), "x": [0.5]}),
    "dpbo.Curator.submit": Case(lambda: w.curator().submit, lambda: {"query": w.query(), "executor": POOL, "x": [0.5]}),
    "dpbo.Curator.release": Case(lambda: w.curator().release, lambda: {"question": w.query(), "mechanism": w.GAUSSIAN}),
    "dpbo.Curator.release_all": Case(
        lambda: _released, lambda: {"handles": 2, "mechanism": w.GAUSSIAN, "name": "release", "plan": None, "used": None}
    ),
    "dpbo.Curator.release_all.plan": Case(
        lambda: _reserved().release_all,
        lambda: {"handles": (w.LIVE[-1].evaluate(w.query()),), "mechanism": w.GAUSSIAN, "plan": "p", "used": 0},
    ),
    "dpbo.Curator.reserve": Case(
        lambda: w.curator().reserve,
        lambda: {"name": "p", "event": w.EVENT, "slots": 3, "terms": {"a": 1}, "parallel": True, "limit": 10},
    ),
    "dpbo.Curator.statement": Case(lambda: w.curator(budget=dpbo.Budget.gdp(1.0)).statement, lambda: {"delta": 1e-5}),
    "dpbo.PrivateObjective": Case(
        lambda: PrivateObjective,
        lambda: {
            "curator": w.curator(),
            "score": w.score,
            "score_range": (0.0, 1.0),
            "evaluations": 3,
            "fit": None,
            "name": "o",
            "budget_share": 0.5,
            "weights": (1.0,),
            "max_records_per_unit": 1,
            "divisor": None,
            "worst": "lower",
            "role": None,
            "mechanism": None,
            "cells": None,
            "sample_rate": None,
            "terms": {"a": 1},
        },
    ),
    "dpbo.PrivateObjective.__call__": Case(lambda: w.objective(), lambda: {"X": w.grid(2)}),
    "dpbo.PrivateObjective.evaluate": Case(lambda: w.objective().evaluate, lambda: {"x": X}),
    "dpbo.PrivateObjective.submit": Case(lambda: w.objective().submit, lambda: {"x": X, "executor": POOL}),
    "dpbo.PrivateObjective.release": Case(lambda: _released_by_objective, lambda: {"handles": [1, 2]}),
    "dpbo.curator.Ledger": of(Ledger, url=None, birth=BIRTH),
    "dpbo.curator.Ledger.existing": Case(lambda: Ledger.existing, lambda: {"url": _ledger_file()}),
    "dpbo.curator.Ledger.reserve": Case(
        lambda: Ledger(None, BIRTH).reserve,
        lambda: {"name": "p", "event": w.EVENT, "slots": 2, "terms": {}, "parallel": False, "limit": None},
    ),
    "dpbo.curator.Ledger.charge": Case(
        lambda: Ledger(None, BIRTH).charge,
        lambda: {"name": "r", "event": w.EVENT, "details": {"units": 3, "slots": []}, "plan": None, "used": None},
    ),
    "dpbo.curator.Ledger.store": Case(_charged_store, lambda: {"entry": 1, "name": "r", "values": [{"value": [1.0]}]}),
    "dpbo.curator.Ledger.note": Case(lambda: Ledger(None, BIRTH).note, lambda: {"kind": "assume", "text": "score-total"}),
    "dpbo.curator.Ledger.charged": Case(lambda: Ledger(None, BIRTH).charged, lambda: {"handle": "x"}),
    "dpbo.curator.Ledger.values": Case(lambda: Ledger(None, BIRTH).values, lambda: {"plan": "x"}),
    "dpbo.curator.Ledger.plan": Case(lambda: Ledger(None, BIRTH).plan, lambda: {"name": "x"}),
    "dpbo.curator.Ledger.charges": Case(lambda: Ledger(None, BIRTH).charges, lambda: {"plan": "x"}),
    "dpbo.curator.Ledger.records": Case(lambda: Ledger(None, BIRTH).records, lambda: {"after": 0}),
    "dpbo.curator.Ledger.verify": Case(lambda: Ledger(None, BIRTH).verify, lambda: {"expect": None}),
    "dpbo.Space": Case(lambda: dpbo.Space, lambda: dict(w.MIXED.specs)),
    "dpbo.Space.decode": of(w.MIXED.decode, x=torch.tensor([0.5, 0.5, 1.0], dtype=w.DOUBLE)),
    "dpbo.Space.encode": of(w.MIXED.encode, parameters={"a": 0.5, "n": 2, "kind": "x"}),
    "dpbo.Space.sample": of(w.MIXED.sample, q=3, seed=0),
    "dpbo.Space.placed": of(w.MIXED.placed, unit=torch.full((2, 3), 0.5, dtype=w.DOUBLE)),
}


def _released(handles, **rest):
    """Release of so many handles of one curator, or of what stands in their place."""
    owner = w.curator()
    return owner.release_all(
        [owner.evaluate(w.query()) for _ in range(2)] if isinstance(handles, int) and handles == 2 else handles, **rest
    )


def _released_by_objective(handles):
    made = w.objective()
    return made.release([made.evaluate(X) for _ in handles] if isinstance(handles, list) and handles == [1, 2] else handles)


def _ledger_file() -> str:
    place = str(pathlib.Path(tempfile.mkdtemp()) / "ledger.db")
    Ledger(place, BIRTH)
    return place


def _reserved():
    owner = w.curator()
    owner.reserve("p", w.EVENT.repeated(1), slots=3, terms={})
    return owner


MODELS = {
    "dpbo.models.DataSetKernel": of(models.DataSetKernel, differences=models.chain(3), theta=2.0),
    "dpbo.models.chain": of(models.chain, count=3),
    "dpbo.models.hamming": of(models.hamming, data_sets=torch.zeros(3, 4)),
    "dpbo.models.matern52": of(models.matern52, lengthscale=0.5),
    "dpbo.models.squared_exponential": of(models.squared_exponential, lengthscale=0.5),
    "dpbo.models.over_data_sets": of(
        models.over_data_sets, data_sets=models.DataSetKernel(models.chain(3), 2.0), candidates=w.kernel(), dimension=2
    ),
    "dpbo.models.FiniteGP": of(models.FiniteGP, candidates=w.grid(), kernel=w.kernel(), noise=1e-2, mean=0.0, batch_shape=(), capacity=8),
    "dpbo.models.FiniteGP.candidates_at": Case(lambda: w.finite_gp().candidates_at, lambda: {"index": torch.tensor([1])}),
    "dpbo.models.FiniteGP.argmax_upper": Case(lambda: w.finite_gp().argmax_upper, lambda: {"beta": 2.0, "exclude": torch.tensor([1])}),
    "dpbo.models.FiniteGP.observe": Case(lambda: w.finite_gp().observe, lambda: {"index": 1, "value": 0.5}),
    "dpbo.models.GradientGP": Case(
        lambda: models.GradientGP,
        lambda: {"train_X": w.grid(), "train_Y": w.grid().sum(1, keepdim=True), "train_Yvar": None},
        foreign=("train_X", "train_Y", "train_Yvar"),
    ),
    "dpbo.models.GradientGP.gradient_posterior": Case(lambda: w.gradient_gp().gradient_posterior, lambda: {"X": w.grid(2)}),
    "dpbo.models.GradientPosterior": of(models.GradientPosterior, kernel=w.scaled(), noise=1e-2, mean=0.0, jitter=1e-6),
    "dpbo.models.GradientPosterior.append": Case(lambda: w.posterior().append, lambda: {"X": w.grid(2)}),
    "dpbo.models.GradientPosterior.conditioned_on": Case(lambda: w.posterior().conditioned_on, lambda: {"X": w.grid(2)}),
    "dpbo.models.GradientPosterior.weights": Case(lambda: w.posterior().weights, lambda: {"theta": X}),
    "dpbo.models.GradientPosterior.covariance": Case(lambda: w.posterior().covariance, lambda: {"theta": X}),
    "dpbo.models.derivatives": of(models.derivatives, kernel=w.scaled()),
    "dpbo.models.SameRow": of(models.SameRow),
    "dpbo.models.information_gain_bound": of(
        models.information_gain_bound, candidates=w.grid(), kernel=w.kernel(), noise=1e-2, observations=3
    ),
    "dpbo.models.l2_laplace_variance": of(models.l2_laplace_variance, dimension=2, scale=1.0),
    "dpbo.models.noisy_inputs": of(models.noisy_inputs, kernel=w.kernel(), variance=0.1, dimension=2),
    "dpbo.models.unprojected": of(models.unprojected, Z=w.grid(), P=torch.eye(2, dtype=w.DOUBLE), variance=0.1),
    "dpbo.models.usual_gp": of(models.usual_gp, dear=0.5, **HISTORY),
    "dpbo.models.sparse_gp": of(models.sparse_gp, dear=2, **HISTORY),
}
ACQUISITIONS = {
    "dpbo.acquisition.adaptive_points": Case(
        lambda: acquisition.adaptive_points,
        lambda: {"posterior": w.posterior(), "theta": X, "tolerance": 0.5, "most": 2, "bounds": w.box(), "steps": 2, "generator": None},
    ),
    "dpbo.acquisition.choose_points": Case(
        lambda: acquisition.choose_points,
        lambda: {
            "posterior": w.posterior(),
            "theta": X,
            "b": 1,
            "bounds": w.box(),
            "start": w.grid(1),
            "steps": 2,
            "close": 1e-4,
            "restarts": 1,
            "generator": None,
        },
    ),
    "dpbo.acquisition.GradientInformation": Case(
        lambda: acquisition.GradientInformation, lambda: {"model": w.gradient_gp(), "theta": X, "X_pending": None}
    ),
    "dpbo.acquisition.next_point": of(
        acquisition.next_point, dear=1, foreign=("model",), **HISTORY, seed=0, pending=None, model=models.usual_gp
    ),
    "dpbo.acquisition.posterior_mean": of(acquisition.posterior_mean, dear=0.5, foreign=("model",), **HISTORY, model=models.usual_gp),
    "dpbo.acquisition.pareto_front": of(
        acquisition.pareto_front, dear=0.5, **HISTORY, public=torch.linspace(0, 1, 6, dtype=w.DOUBLE).unsqueeze(1)
    ),
    "dpbo.acquisition.pareto_point": of(
        acquisition.pareto_point,
        dear=2,
        **HISTORY,
        public=torch.linspace(0, 1, 6, dtype=w.DOUBLE).unsqueeze(1),
        reference=(0.0, 0.0),
        seed=0,
    ),
    "dpbo.acquisition.Prior": of(acquisition.Prior, log_density=lambda X: -(X**2).sum(-1), log=True, bounds=w.box(), share=0.1),
    "dpbo.acquisition.prior_guided": Case(
        lambda: acquisition.prior_guided,
        lambda: {
            "acquisition": LogExpectedImprovement(w.gradient_gp(), 1.0),
            "log_density": lambda X: -(X**2).sum(-1),
            "t": 1,
            "beta": 5.0,
            "bounds": w.box(),
            "share": 0.1,
            "non_negative": False,
        },
    ),
    "dpbo.acquisition.Proposer": of(acquisition.Proposer, space=w.SPACE, growth=0.2, restarts=1, raw_samples=4, steps=2),
    "dpbo.acquisition.Proposer.__call__": Case(
        lambda: acquisition.Proposer(w.SPACE, restarts=1, raw_samples=4, steps=2),
        lambda: {**w.history(), "pending": w.grid(1), "seed": 0},
        dear=0.5,
    ),
    "dpbo.acquisition.TrustRegion": of(acquisition.TrustRegion, start=0, length=0.8),
    "dpbo.acquisition.region_after": of(acquisition.region_after, means=(0.1, 0.2, 0.3), dimension=2, initial=2),
    "dpbo.acquisition.trust_region_point": of(acquisition.trust_region_point, dear=1, **HISTORY, seed=0, initial=4),
    "dpbo.acquisition.GPUCB": Case(
        lambda: acquisition.GPUCB,
        lambda: {"model": w.gradient_gp(), "schedule": SCHEDULE},
        foreign=("schedule",),  # a callable of the user's own may raise what it likes
    ),
    "dpbo.acquisition.GPUCB.argmax_query": Case(
        lambda: acquisition.GPUCB(w.gradient_gp(), SCHEDULE).argmax_query,
        lambda: {"score": w.score, "candidates": w.grid(), "score_range": (0.0, 1.0), "finalists": 3, "fit": None},
    ),
    "dpbo.acquisition.GPUCB.best_of": Case(
        lambda: acquisition.GPUCB(w.gradient_gp(), SCHEDULE).best_of, lambda: {"candidates": w.grid(), "count": 3}
    ),
    "dpbo.acquisition.SrinivasCompact": of(acquisition.SrinivasCompact, dimension=2, side=1.0, a=1.0, b=1.0, delta=0.1),
    "dpbo.acquisition.SrinivasCompact.__call__": of(acquisition.SrinivasCompact(dimension=2, side=1.0, a=1.0, b=1.0, delta=0.1), t=3),
    "dpbo.acquisition.SrinivasFinite": of(acquisition.SrinivasFinite, count=8, delta=0.1),
    "dpbo.acquisition.SrinivasFinite.__call__": of(SCHEDULE, t=3),
    "dpbo.acquisition.argmax_ucb": Case(
        lambda: acquisition.argmax_ucb, lambda: {"model": w.finite_gp(), "schedule": SCHEDULE, "exclude": torch.tensor([1])}
    ),
    "dpbo.acquisition.kusner_beta": of(acquisition.kusner_beta, count=8, delta=0.1, constants="corrected"),
}
CASES = {**CURATORS, **MODELS, **ACQUISITIONS}
