"""Good calls: estimators and instruments."""

import functools
from typing import Any

import numpy as np
import scipy.stats
import torch

import dpbo
from dpbo import testing
from dpbo.algorithms import em
from tests.fuzz import world as w
from tests.fuzz.case import Case, of
from tests.fuzz.cases_search import X

SHARED: dict[str, Any] = {
    "budget": w.BUDGET,
    "radius": 2.0,
    "center": (0.0, 0.0),
    "max_iter": 2,
    "adjacency": "replace-one",
    "accounting": None,
    "dimension": None,
    "vectors": None,
    "name": "em",
    "random_state": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "DPFactorAnalysis": {"n_components": 1, "divisor": None},
    "DPKMeans": {"n_clusters": 2},
    "DPLloyd": {"n_clusters": 2},
    "DPGaussianMixture": {
        "n_components": 2,
        "covariance_type": "full",
        "method": "mle",
        "init_iter": 1,
        "frame_iter": 1,
        "reach": None,
        "settle": 1,
        "shares": (0.4, 0.3, 0.3),
        "reg_covar": None,
    },
}


def _fitting(kind):
    """Construct and fit: scikit-learn's constructors keep what they are given, and `fit` judges it."""
    return lambda **settings: kind(**settings).fit(w.arrays())


@functools.cache
def _fitted(name):
    return getattr(em, name)(**{**SHARED, **OWN[name]}).fit(w.arrays())


def _fit(name):
    return getattr(em, name)(**{**SHARED, **OWN[name]}).fit


def _fitted_method(name, method):
    return getattr(_fitted(name), method)


EM = {
    **{f"dpbo.algorithms.em.{n}": of(_fitting(getattr(em, n)), dear=0.3, **{**SHARED, **OWN[n]}) for n in OWN},
    **{
        f"dpbo.algorithms.em.{n}.fit": Case(functools.partial(_fit, n), lambda: {"X": w.arrays(), "y": None}, dear=0.3, foreign=("X",))
        for n in OWN
    },
    **{
        f"dpbo.algorithms.em.{n}.{method}": Case(functools.partial(_fitted_method, n, method), lambda: {"X": w.arrays()}, foreign=("X",))
        for n, method in (
            ("DPKMeans", "predict"),
            ("DPKMeans", "transform"),
            ("DPKMeans", "score"),
            ("DPFactorAnalysis", "transform"),
            ("DPFactorAnalysis", "score"),
            ("DPFactorAnalysis", "score_samples"),
            ("DPGaussianMixture", "predict"),
            ("DPGaussianMixture", "predict_proba"),
            ("DPGaussianMixture", "score_samples"),
        )
    },
    "dpbo.algorithms.em.DPGaussianMixture.log_density": Case(lambda: _fitted("DPGaussianMixture").log_density, lambda: {"X": w.grid()}),
    "dpbo.algorithms.em.DPGaussianMixture.sample": Case(lambda: _fitted("DPGaussianMixture").sample, lambda: {"n_samples": 2}),
    "dpbo.algorithms.em.density_of": Case(lambda: em.density_of, lambda: {"mixture": _fitted("DPGaussianMixture"), "X": w.grid()}),
    "dpbo.algorithms.em.embedding": Case(lambda: em.embedding, lambda: {"analysis": _fitted("DPFactorAnalysis")}),
    "dpbo.algorithms.em.LinearEmbedding": of(
        em.LinearEmbedding, weight=torch.ones(1, 2, dtype=w.DOUBLE), mean=torch.zeros(2, dtype=w.DOUBLE)
    ),
}


_FRESH = np.random.default_rng(0)


def _draw(which, count):
    return _FRESH.normal(size=count) + which


def _run(curator, records):
    return curator.release(w.query(), w.GAUSSIAN).value


TESTING = {
    "dpbo.testing.SeededEntropy": of(testing.SeededEntropy, seed=1),
    "dpbo.testing.SeededEntropy.__call__": Case(lambda: testing.SeededEntropy(1), lambda: {"size": 8}),
    **{
        f"dpbo.testing.{holds.__name__}": of(
            holds, samples=np.linspace(0.001, 0.999, 999), cdf=law().cdf, foreign=("cdf",), raises=(AssertionError,)
        )
        for holds, law in ((testing.assert_law, scipy.stats.uniform), (testing.assert_not_law, scipy.stats.norm))
    },
    "dpbo.testing.audit": of(testing.audit, dear=0.3, foreign=("draw",), draw=_draw, runs=400, statistic=None, delta=1e-5, level=1e-6),
    "dpbo.testing.Audit.epsilon": Case(lambda: testing.audit(_draw, runs=400).epsilon, lambda: {"delta": 1e-5}),
    "dpbo.testing.reachable": of(testing.reachable, mu=1.0, runs=400, level=1e-6),
    "dpbo.testing.check_per_record": of(
        testing.check_per_record,
        score=w.score,
        subject=X,
        records=torch.rand(12, 2, dtype=w.DOUBLE),
        adjacency=w.REPLACE,
        grouped=False,
        trials=2,
        seed=0,
        raises=(AssertionError,),
        foreign=("score", "subject"),
    ),
    "dpbo.testing.outside_column_space": of(testing.outside_column_space, Z=w.grid(), X=w.grid(8, 1)),
    "dpbo.testing.recover_rows": of(testing.recover_rows, Z=w.grid(), known=w.grid(3), indices=(0, 1, 2)),
    "dpbo.testing.which_published": of(testing.which_published, Z=w.grid(), tables=(w.grid(), w.grid() + 1)),
    "dpbo.testing.replay": Case(
        lambda: testing.replay,
        lambda: {
            "run": _run,
            "records": w.records(),
            "neighbour": w.records(),
            "neighbour_unit": None,
            "unit": dpbo.PrivacyUnit("r"),
            "adjacency": w.REPLACE,
            "budget": w.BUDGET,
        },
        raises=(AssertionError,),
        foreign=("run",),
    ),
}
CASES = {**EM, **TESTING}
