"""Good calls: published algorithms, estimators, instruments."""

import functools
import pathlib
import tempfile

import numpy as np
import scipy.stats
import torch

import dpbo
from dpbo import algorithms, testing
from dpbo.accounting import GDPFilter
from dpbo.algorithms import em, kusner, outsourced
from dpbo.mechanisms import GaussianMechanism
from tests.fuzz import world as w
from tests.fuzz.case import Case, of
from tests.fuzz.cases_search import POOL, SCHEDULE, X
from tests.fuzz.cases_values import LAW

BOX = w.box()


def _scored(**changed):
    return algorithms.NoisedScore(w.score, (0.0, 1.0), GaussianMechanism(60.0), **changed)


def _trained(parameters):
    return torch.tensor([parameters["a"], 0.5], dtype=w.DOUBLE)


def _clipped(**changed):
    return {"curator": w.curator(), "loss": w.loss, "bounds": BOX, "budget_share": 0.2, "seed": 0, "name": "c", **changed}


GIBO = {
    "dpbo.DPGIBO": Case(
        lambda: dpbo.DPGIBO,
        lambda: {
            "curator": w.curator(),
            "loss": w.loss,
            "bounds": BOX,
            "budget": 0.5,
            "iterations": 2,
            "batch_size": 2,
            "clip": 1.0,
            "kernel": None,
            "noise": 0.0,
            "mean": 0.0,
            "tolerance": None,
            "start": X,
            "divisor": None,
            "loss_range": None,
            "settings": algorithms.RECOMMENDED,
            "seed": 0,
            "name": "g",
            "callback": None,
        },
    ),
    "dpbo.DPGIBO.evaluate": Case(lambda: _evaluated, lambda: {"X": "asked", "executor": None}),
    "dpbo.DPGIBO.tell": Case(lambda: _told, lambda: {"X": "asked", "handle": "evaluated"}, dear=0.2),
    "dpbo.DPGIBO.load_state_dict": Case(lambda: _restored, lambda: {"state": dict(w.gibo().state_dict())}, dear=0.2),
    "dpbo.algorithms.GIBOSettings": of(
        algorithms.GIBOSettings,
        unit_box=True,
        rotate=True,
        radius=0.04,
        history=False,
        jitter=1e-6,
        optimizer=torch.optim.Adagrad,
        learning_rate=0.1,
        tail=0.5,
    ),
    "dpbo.algorithms.GIBOSettings.step_size": of(algorithms.RECOMMENDED.step_size, rho=1.0),
    "dpbo.algorithms.GIBOSettings.averaged": of(algorithms.RECOMMENDED.averaged, rho=1.0, iterations=5),
    "dpbo.algorithms.choose_clip": Case(
        lambda: algorithms.choose_clip,
        lambda: _clipped(candidates=(0.1, 1.0, 10.0), quantile=0.9, start=X, kernel=None, settings=algorithms.RECOMMENDED),
        dear=0.3,
    ),
    "dpbo.algorithms.choose_start": Case(
        lambda: algorithms.choose_start,
        lambda: {
            "curator": w.curator(),
            "loss": w.loss,
            "candidates": w.grid(),
            "loss_range": (0.0, 1.0),
            "budget_share": 0.2,
            "name": "s",
        },
    ),
}


def _evaluated(X, executor):
    run = w.gibo()
    asked = run.ask()
    return run.evaluate(asked if isinstance(X, str) and X == "asked" else X, executor=executor)


def _told(X, handle):
    run = w.gibo()
    asked = run.ask() if isinstance(X, str) and X == "asked" else X
    return run.tell(asked, run.evaluate(run.ask()) if isinstance(handle, str) and handle == "evaluated" else handle)


def _restored(state):
    return w.gibo().load_state_dict(state)


SEARCHES = {
    "dpbo.algorithms.AsynchronousBO": Case(
        lambda: algorithms.AsynchronousBO,
        lambda: {"objective": w.objective(), "space": w.SPACE, "workers": 2, "initial": 2, "ordered": True, "skip": (), "propose": None, "seed": 0},
    ),
    "dpbo.algorithms.AsynchronousBO.run": Case(
        lambda: algorithms.AsynchronousBO(w.objective(evaluations=2), w.SPACE, workers=1, initial=2).run, lambda: {"executor": POOL}, dear=0.5
    ),
    "dpbo.algorithms.search_then_choose": Case(
        lambda: algorithms.search_then_choose,
        lambda: {"curator": w.curator(), "score": w.score, "candidates": w.grid(12), "score_range": (0.0, 1.0), "evaluations": 3, "finalists": 2,
                 "fit": None, "initial": 2, "beta": 7.0, "search_share": 0.8, "budget_share": 0.5, "seed": 0, "name": "f"},
        dear=1,
    ),
    "dpbo.algorithms.Adaptive": of(
        algorithms.Adaptive, space=w.SPACE, spread=(0.5, 2.0), noise_std=0.1, candidates=16, interest=algorithms.Adaptive.interest, sharpness=2.0
    ),
    "dpbo.algorithms.NoisedScore": of(
        algorithms.NoisedScore, score=w.score, score_range=(0.0, 1.0), mechanism=GaussianMechanism(20.0), settings={"divisor": 40.0}
    ),
    "dpbo.algorithms.private_selection": Case(
        lambda: algorithms.private_selection,
        lambda: {"curator": w.selecting(), "train": _trained, "space": w.SPACE, "law": LAW, "base": (), "score": _scored(), "adaptive": None,
                 "threshold": None, "pad_to": None, "name": "selection"},
        dear=0.5,
    ),
    "dpbo.algorithms.selection_event": Case(
        lambda: algorithms.selection_event,
        lambda: {"curator": w.selecting(), "law": LAW, "base": (w.EVENT,), "score": _scored(), "spread": (1.0, 1.0)},
    ),
    "dpbo.algorithms.kusner.KusnerSearch": of(
        kusner.KusnerSearch, gain=lambda x, rows: 0.1, candidates=w.grid(), kernel=w.kernel(), noise=1e-2, observations=3, kappa=0.99, delta=0.01,
        value_range=(-3.0, 3.0), constants="corrected",
    ),
    "dpbo.algorithms.kusner.KusnerSearch.last": Case(lambda: _kusner().last, lambda: {"amplitude": 0.1, "tau": 1.0}),
    "dpbo.algorithms.kusner.Adaptive": of(kusner.Adaptive, kernel=w.kernel(), noise=1e-2, observations=3),
    "dpbo.algorithms.kusner.RegularisedBest": of(
        kusner.RegularisedBest, loss=w.loss, fit=lambda l: X, grid=(0.5, 1.0), lipschitz=1.0, bound=1.0, at_zero=0.5, records=40, gap=0.0,
        adaptive=kusner.Adaptive(w.kernel(), 1e-2, 2), constants="corrected",
    ),
}  # fmt: skip


def _kusner():
    terms = {"noise": 1e-2, "observations": 3, "kappa": 0.99, "delta": 0.01, "value_range": (-3.0, 3.0)}
    return kusner.KusnerSearch(lambda x, rows: 0.1, w.grid(), kernel=w.kernel(), **terms)


@functools.cache
def _released():
    owner = w.curator()
    return outsourced.release_rows(owner, w.table(), GaussianMechanism(30.0)), owner.statement()


@functools.cache
def _folder():
    place = tempfile.mkdtemp()
    outsourced.write_release(place, _released()[0], {"a": 1}, _released()[1])
    return place


def _outcomes(**changed):
    return outsourced.Outcomes(
        w.curator(role="candidate"), lambda rows: rows[:, 0], **{"value_range": (0.0, 1.0), "budget_share": 0.5, **changed}
    )


def _modeler():
    made = outsourced.Modeler(w.grid(), kernel=w.kernel(), noise=1e-2, schedule=SCHEDULE)
    made.tell(1, 0.3)
    return made


OUTSOURCED = {
    "dpbo.algorithms.outsourced.Outcomes": Case(
        lambda: outsourced.Outcomes,
        lambda: {"curator": w.curator(role="candidate"), "outcome": w.first_column, "value_range": (0.0, 1.0), "budget_share": 0.5,
                 "declassified": None, "repeats": 1, "limit": 5, "worst": "lower", "terms": {"a": 1}, "name": "outcomes"},
    ),
    "dpbo.algorithms.outsourced.Outcomes.value": Case(lambda: _outcomes().value, lambda: {"row": 1, "request": "first"}),
    "dpbo.algorithms.outsourced.release_rows": Case(
        lambda: outsourced.release_rows,
        lambda: {"curator": w.curator(), "table": w.table(), "mechanism": GaussianMechanism(30.0), "name": "rows", "terms": {"a": 1}},
    ),
    "dpbo.algorithms.outsourced.Modeler": of(
        outsourced.Modeler, Z=w.grid(), kernel=w.kernel(), noise=1e-2, schedule=SCHEDULE, acquisition=None, repeats=False, mean=0.0,
        history=((1, 0.5),), chunk=64,
    ),
    "dpbo.algorithms.outsourced.Modeler.tell": Case(lambda: _modeler().tell, lambda: {"index": 2, "y": 0.3}),
    "dpbo.algorithms.outsourced.Modeler.skip": Case(lambda: _modeler().skip, lambda: {"index": 2}),
    "dpbo.algorithms.outsourced.po_gp_ucb_omega": of(outsourced.po_gp_ucb_omega, epsilon=1.0, delta=1e-6, r=2),
    "dpbo.algorithms.outsourced.po_gp_ucb_transform": Case(
        lambda: outsourced.po_gp_ucb_transform,
        lambda: {"X": w.grid(), "epsilon": 1.0, "delta": 1e-6, "r": 2, "generator": torch.Generator(), "allow_not_private": True},
    ),
    "dpbo.algorithms.outsourced.random_projection": of(outsourced.random_projection, dimension=4, k=2, seed=0),
    "dpbo.algorithms.outsourced.row_noises": of(
        outsourced.row_noises, dear=0.1, dimension=4, budget=w.BUDGET, moves=1.0, accounting=GDPFilter(), share=0.5, projections=(2,), lengthscale=1.0,
        seed=0,
    ),
    "dpbo.algorithms.outsourced.RowNoise.error": Case(lambda: _row_noise().error, lambda: {"lengthscale": 1.0}),
    "dpbo.algorithms.outsourced.RowNoise.kept": Case(lambda: _row_noise().kept, lambda: {"lengthscale": 1.0}),
    "dpbo.algorithms.outsourced.read_release": Case(lambda: outsourced.read_release, lambda: {"folder": _folder()}),
    "dpbo.algorithms.outsourced.write_release": Case(
        lambda: outsourced.write_release,
        lambda: {"folder": pathlib.Path(_folder()), "rows": _released()[0], "facts": {"a": 1}, "statement": _released()[1]},
    ),
}  # fmt: skip


def _row_noise():
    return outsourced.row_noises(4, budget=w.BUDGET, moves=1.0)[0]


SHARED = {"budget": w.BUDGET, "radius": 2.0, "center": (0.0, 0.0), "max_iter": 2, "adjacency": "replace-one", "accounting": None,
          "dimension": None, "vectors": None, "name": "em", "random_state": 0}  # fmt: skip
OWN = {
    "DPFactorAnalysis": {"n_components": 1, "divisor": None},
    "DPKMeans": {"n_clusters": 2},
    "DPLloyd": {"n_clusters": 2},
    "DPGaussianMixture": {"n_components": 2, "covariance_type": "full", "method": "mle", "init_iter": 1, "frame_iter": 1, "reach": None, "settle": 1,
                          "shares": (0.4, 0.3, 0.3), "reg_covar": None},
}  # fmt: skip


def _fitting(kind):
    """Construct and fit: scikit-learn's constructors keep what they are given, and `fit` judges it."""
    return lambda **settings: kind(**settings).fit(w.arrays())


@functools.cache
def _fitted(name):
    return getattr(em, name)(**{**SHARED, **OWN[name]}).fit(w.arrays())


EM = {
    **{f"dpbo.algorithms.em.{n}": of(_fitting(getattr(em, n)), dear=0.3, **{**SHARED, **OWN[n]}) for n in OWN},
    **{
        f"dpbo.algorithms.em.{n}.fit": Case(
            lambda n=n: getattr(em, n)(**{**SHARED, **OWN[n]}).fit, lambda: {"X": w.arrays(), "y": None}, dear=0.3, foreign=("X",)
        )
        for n in OWN
    },
    **{
        f"dpbo.algorithms.em.{n}.{method}": Case(lambda n=n, m=method: getattr(_fitted(n), m), lambda: {"X": w.arrays()}, foreign=("X",))
        for n, method in (("DPKMeans", "predict"), ("DPKMeans", "transform"), ("DPKMeans", "score"), ("DPFactorAnalysis", "transform"),
                          ("DPFactorAnalysis", "score"), ("DPFactorAnalysis", "score_samples"), ("DPGaussianMixture", "predict"),
                          ("DPGaussianMixture", "predict_proba"), ("DPGaussianMixture", "score_samples"))
    },
    "dpbo.algorithms.em.DPGaussianMixture.log_density": Case(lambda: _fitted("DPGaussianMixture").log_density, lambda: {"X": w.grid()}),
    "dpbo.algorithms.em.DPGaussianMixture.sample": Case(lambda: _fitted("DPGaussianMixture").sample, lambda: {"n_samples": 2}),
    "dpbo.algorithms.em.density_of": Case(lambda: em.density_of, lambda: {"mixture": _fitted("DPGaussianMixture"), "X": w.grid()}),
    "dpbo.algorithms.em.embedding": Case(lambda: em.embedding, lambda: {"analysis": _fitted("DPFactorAnalysis")}),
    "dpbo.algorithms.em.LinearEmbedding": of(em.LinearEmbedding, weight=torch.ones(1, 2, dtype=w.DOUBLE), mean=torch.zeros(2, dtype=w.DOUBLE)),
}  # fmt: skip


_FRESH = np.random.default_rng(0)


def _draw(which, count):
    return _FRESH.normal(size=count) + which


def _run(curator, records):
    return curator.release(w.query(), w.GAUSSIAN).value


TESTING = {
    "dpbo.testing.SeededEntropy": of(testing.SeededEntropy, seed=1),
    "dpbo.testing.SeededEntropy.__call__": Case(lambda: testing.SeededEntropy(1), lambda: {"size": 8}),
    "dpbo.testing.assert_law": of(
        testing.assert_law, samples=np.linspace(0.001, 0.999, 999), cdf=scipy.stats.uniform().cdf, raises=(AssertionError,)
    ),
    "dpbo.testing.assert_not_law": of(
        testing.assert_not_law, samples=np.linspace(0.001, 0.999, 999), cdf=scipy.stats.norm().cdf, raises=(AssertionError,)
    ),
    "dpbo.testing.audit": of(testing.audit, dear=0.3, draw=_draw, runs=400, statistic=None, delta=1e-5, level=1e-6),
    "dpbo.testing.Audit.epsilon": Case(lambda: testing.audit(_draw, runs=400).epsilon, lambda: {"delta": 1e-5}),
    "dpbo.testing.reachable": of(testing.reachable, mu=1.0, runs=400, level=1e-6),
    "dpbo.testing.check_per_record": of(
        testing.check_per_record, score=w.score, subject=X, records=torch.rand(12, 2, dtype=w.DOUBLE), adjacency=w.REPLACE, grouped=False, trials=2,
        seed=0, raises=(AssertionError,), foreign=("score", "subject"),
    ),
    "dpbo.testing.outside_column_space": of(testing.outside_column_space, Z=w.grid(), X=w.grid(8, 1)),
    "dpbo.testing.recover_rows": of(testing.recover_rows, Z=w.grid(), known=w.grid(3), indices=(0, 1, 2)),
    "dpbo.testing.which_published": of(testing.which_published, Z=w.grid(), tables=(w.grid(), w.grid() + 1)),
    "dpbo.testing.replay": Case(
        lambda: testing.replay,
        lambda: {"run": _run, "records": w.records(), "neighbour": w.records(), "neighbour_unit": None, "unit": dpbo.PrivacyUnit("r"),
                 "adjacency": w.REPLACE, "budget": w.BUDGET},
        raises=(AssertionError,), foreign=("run",),
    ),
}  # fmt: skip
CASES = {**GIBO, **SEARCHES, **OUTSOURCED, **EM, **TESTING}
