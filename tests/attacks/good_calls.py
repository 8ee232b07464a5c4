"""A good call of every public name and of the methods that users call, over private records that are canaries.

`CALLS` gives the arguments of each name that the stubs export, `DOORS` a method and its arguments, both anew for each call.
`NOT_CALLED` says which names nobody calls. Names are without their `dpbo.`.
"""

import concurrent.futures
import functools
import importlib
import pathlib
import re
import tempfile
import warnings
from typing import Any

import gpytorch
import numpy as np
import optuna
import scipy.stats
import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from sklearn.datasets import make_classification
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from torch.utils.data import TensorDataset

import dpbo
import dpbo.integrations.ax  # first: it loads Ax without the warnings of Ax's own imports
from dpbo import accounting, acquisition, events, integrations, laws, mechanisms, models, queries, testing
from dpbo.algorithms import NoisedScore, em, outsourced
from dpbo.integrations import opacus
from dpbo.integrations.optuna import TrialObjective
from tests.attacks.watched import LABEL, SCALED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have another client
    from starlette.testclient import TestClient

optuna.logging.set_verbosity(optuna.logging.ERROR)
DOUBLE, UNITS, REPLACE, TOKEN = torch.float64, 40, dpbo.Adjacency.REPLACE_ONE, "a token of enough letters"
BUDGET, SPACE = dpbo.Budget(8.0, 1e-5), dpbo.Space(a=scipy.stats.uniform(0, 1), b=scipy.stats.loguniform(1e-2, 1e2))
LIVE: list[dpbo.Curator] = []  # used by the call at hand
_kept: dict[str, Any] = {}


def of(**arguments):
    return arguments


def records(d=2):
    return torch.tensor(SCALED, dtype=DOUBLE).unsqueeze(1).repeat(1, d)


def curator(kind="", **settings):
    """A curator that was charged nothing yet: the last one of its kind, until somebody is charged there."""
    if settings or kind not in _kept or _kept[kind].ledger.head().kind not in ("birth", "assume", "void"):
        kinds = {"gdp": of(budget=dpbo.Budget.gdp(1.0)), "candidate": of(role="candidate")}
        kinds["rdp"] = of(accounting=accounting.RDPFilter(6.0), budget=dpbo.Budget(20.0, 1e-5))
        unit = dpbo.PrivacyUnit("patient", groups=[f"{LABEL}-{i // 2}" for i in range(UNITS)] if kind == "grouped" else None)
        terms = of(records=records(), unit=unit, adjacency=REPLACE, budget=BUDGET, entropy=testing.SeededEntropy(1), dataset="hostile")
        kind = kind if not settings else "special"
        _kept[kind] = dpbo.Curator(**{**terms, **kinds.get(kind, {}), **settings})
    LIVE.append(_kept[kind])
    return _kept[kind]


def objective(evaluations=6):
    made = _kept.get(f"objective {evaluations}")
    if made is None or made.remaining < evaluations:
        made = _kept[f"objective {evaluations}"] = dpbo.PrivateObjective(curator(), score, score_range=(0.0, 1.0), evaluations=evaluations)
    LIVE.append(made.curator)
    return made


def score(x, rows):
    return 1 - (rows[:, 0] - x[0]).abs().clamp(0, 1)


def loss(x, rows):
    return ((rows - x) ** 2).sum(1).clamp(0, 1)


def query(score=score):
    return queries.ClippedMean(score, X, score_range=(0.0, 1.0))


def grid(n=8, d=2):
    return torch.quasirandom.SobolEngine(d, seed=0, scramble=True).draw(n, dtype=DOUBLE)


def seen(**more):
    return of(X=grid(6), Y=grid(6).sum(1, keepdim=True), Yvar=torch.full((6, 1), 1e-2, dtype=DOUBLE), **more)


def outcomes():
    return outsourced.Outcomes(curator("candidate"), _first, value_range=(0.0, 1.0), budget_share=0.5)


class Remote(integrations.RemoteCurator):
    """The real client over the real server, in one process."""

    def __init__(self, outcomes):
        super().__init__("http://curator", TOKEN)
        self._client.close()
        server = integrations.application(outcomes, token=TOKEN, every=0.001)
        self._client = TestClient(server, headers={"Authorization": f"Bearer {TOKEN}"})


def _column(_model, rows):
    return rows[:, 0]


def _first(rows):
    return rows[:, 0]


def _scaled():
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)).double().requires_grad_(False)


def _posterior():
    return models.GradientPosterior(_scaled(), 1e-2).conditioned_on(grid(4))


@functools.cache
def _finished_study():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=optuna.pruners.NopPruner(), direction="maximize")
    study.optimize(TrialObjective(objective(evaluations=3), SPACE), n_trials=3)
    return study


@functools.cache
def _released():
    owner, place = curator(), tempfile.mkdtemp()
    rows = outsourced.release_rows(owner, queries.RowTable((0.0, 0.0), 2.0), mechanisms.GaussianMechanism(30.0))
    outsourced.write_release(place, rows, {"a": 1}, owner.statement())
    return of(rows=rows, statement=owner.statement(), folder=pathlib.Path(place))


def estimating(kind):
    """Construct and fit: scikit-learn's constructors keep what they are given, and `fit` judges it."""
    return lambda **settings: kind(**settings).fit(ARRAY)


@functools.cache
def _fitted(name):
    return estimating(getattr(em, name))(**CALLS[f"algorithms.em.{name}"]())


def named(path):
    """What has this name in dpbo."""
    module, _, name = f"dpbo.{path}".rpartition(".")
    return getattr(importlib.import_module(module), name)


def exported():
    """The names that the stubs export, without `dpbo.`; an object with two names, under the shorter path."""
    found: dict[int, str] = {}
    root = pathlib.Path(dpbo.__file__).parent
    for stub in sorted(root.rglob("__init__.pyi"), key=lambda path: (len(path.parts), path)):
        for name in re.findall(r"^from \.\w+ import \w+ as (\w+)$", stub.read_text(), re.MULTILINE):
            path = ".".join((*stub.parent.relative_to(root).parts, name))
            found.setdefault(id(named(path)), path)
    return set(found.values())


X, BOX = torch.tensor([0.5, 0.5], dtype=DOUBLE), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DOUBLE)
KERNEL, SCHEDULE = models.squared_exponential(0.4), acquisition.SrinivasFinite(count=8, delta=0.1)
GAUSSIAN, EVENT, PURE_EVENT = mechanisms.GaussianMechanism(20.0), events.GaussianEvent(20.0, 3), events.LaplaceEvent(20.0, 3)
LAW, POOL, BALL = laws.TruncatedNegativeBinomial.of_mean(5.0), concurrent.futures.ThreadPoolExecutor(1), queries.Ball(2.0)
SGD = opacus.DPSGD(noise_multiplier=1.0, epochs=1, batches=2, batch_size=20)
ROWS, LABELS = make_classification(120, 4, random_state=0)
SPLIT = {"X_train": ROWS[:60], "y_train": LABELS[:60], "X_val": ROWS[60:], "y_val": LABELS[60:], "groups": None, "groups_train": None}
BIRTH = of(dataset="x", unit="u", grouped=False, adjacency="replace-one", budget=BUDGET.to_json(), accounting="GDPFilter", role="test")
GP = models.GradientGP(grid(), grid().sum(1, keepdim=True), torch.full((8, 1), 1e-2, dtype=DOUBLE))
NOISED = NoisedScore(score, (0.0, 1.0), mechanisms.GaussianMechanism(60.0))
ARRAY = np.array([*SCALED, *SCALED[:20]]).reshape(30, 2)
_MODELER = of(Z=grid(), kernel=KERNEL, noise=1e-2, schedule=SCHEDULE)
_SUMS = of(dimension=2, ball=BALL)
_EM = of(budget=BUDGET, radius=2.0, center=(0.0, 0.0), max_iter=2, random_state=0)
_KUSNER = of(kernel=KERNEL, noise=1e-2, observations=3)

CALLS = {
    "Curator": lambda: of(
        records=records(), unit=dpbo.PrivacyUnit("x"), adjacency=REPLACE, budget=BUDGET, entropy=testing.SeededEntropy(1)
    ),
    "PrivateObjective": lambda: of(curator=curator(), score=score, score_range=(0.0, 1.0), evaluations=3, budget_share=0.5, weights=(1.0,)),
    "DPGIBO": lambda: of(curator=curator(), loss=loss, bounds=BOX, budget=0.2, iterations=1, batch_size=2, clip=1.0, start=X),
    "DPSearch": lambda: of(estimator=DecisionTreeClassifier(), param_distributions={"max_depth": [1, 2]}, budget=BUDGET, n_iter=2),
    "Budget": lambda: of(epsilon=1.0, delta=1e-6),
    "PrivacyUnit": lambda: of(name="patient"),
    "RowChange": lambda: of(norm=1.0, diameter=10.0, table="rows"),
    "Sensitivity": lambda: of(l1=1.0, l2=1.0, linf=1.0, scale=(1.0,)),
    "Source": lambda: of(load=records),
    "Space": lambda: of(a=scipy.stats.uniform(0, 1), n=scipy.stats.randint(1, 5), kind=["x", "y"]),
    "plan": lambda: of(units=1000, budget=BUDGET, evaluations=10, dimension=2, score_range=(0.0, 1.0), final_share=0.1),
    # accounting, events and laws of run counts
    "accounting.RDPFilter": lambda: of(order=8.0),
    "accounting.Planned": lambda: of(events=(EVENT, PURE_EVENT)),
    "accounting.calibrate": lambda: of(budget=BUDGET, releases=10, share=0.9, accounting=accounting.GDPFilter()),
    "accounting.compose": lambda: of(events=(EVENT, PURE_EVENT), delta=1e-6),
    "accounting.convert": lambda: of(event=EVENT, given=dpbo.Adjacency.ADD_OR_REMOVE_ONE, wanted=REPLACE),
    "accounting.choose_law": lambda: of(budget=BUDGET, base=(EVENT,), runs=5.0, shapes=(1.0,)),
    "accounting.scale_base": lambda: of(budget=BUDGET, base=(EVENT,), law=LAW),
    "accounting.LedgerAccountant": lambda: of(curator=curator(), noise_multiplier=40.0, steps=3, name="sgd"),
    "laws.TruncatedNegativeBinomial": lambda: of(shape=1.0, gamma=0.1),
    "laws.BinomialRuns": lambda: of(trials=10, chance=0.5),
    "laws.FixedRuns": lambda: of(runs=5),
    "laws.ThresholdStop": lambda: of(gamma=0.1),
    "laws.law_from_json": lambda: of(body=LAW.to_json()),
    "events.PoissonGaussianEvent": lambda: of(noise_multiplier=2.0, slots=3, rate=0.1, relation="replace-one"),
    "events.SelectionEvent": lambda: of(noise_multiplier=1.0, slots=1, base=(EVENT,), law=LAW, spread=(1.0, 1.0)),
    "events.RolesEvent": lambda: of(noise_multiplier=1.0, slots=1, costs=(("training", (EVENT,)),)),
    "events.event_from_json": lambda: of(body=events.SelectionEvent(base=(EVENT,), law=LAW).to_json()),
    # mechanisms and queries
    "mechanisms.NoNoise": lambda: of(allow_not_private=True),
    "queries.ClippedMean": lambda: of(score=score, subject=X, score_range=(0.0, 1.0), weights=(1.0,), divisor=40.0),
    "queries.ClippedSum": lambda: of(score=score, subject=X, score_range=(0.0, 1.0), weights=(1.0,), max_records_per_unit=2),
    "queries.CellMeans": lambda: of(score=score, cells=3, divisor=40.0),
    "queries.CandidateScores": lambda: of(score=score, candidates=grid(), score_range=(0.0, 1.0)),
    "queries.QuantileUtilities": lambda: of(score=_column, candidates=(0.0, 0.5, 1.0), quantile=0.5, step_cost=0.1),
    "queries.PoissonSampled": lambda: of(query=query(), rate=0.5),
    "queries.ClippedGradient": lambda: of(loss=loss, X=grid(3), weights=torch.ones(2, 3, dtype=DOUBLE), clip=1.0, divisor=40.0),
    "queries.RowTable": lambda: of(center=(0.0, 0.0), radius=2.0, projection=torch.eye(2, dtype=DOUBLE)),
    "queries.RowOutcome": lambda: of(outcome=_first, row=0, value_range=(0.0, 1.0), worst="lower"),
    "queries.SecondMoment": lambda: _SUMS,
    "queries.ClusterSums": lambda: {**_SUMS, "centers": grid(3), "weights": (1.0, 1.0)},
    "queries.MixtureMoments": lambda: {**_SUMS, "natural": torch.zeros(2, 6, dtype=DOUBLE), "covariance": "full"},
    "queries.Ball": lambda: of(radius=2.0, center=torch.zeros(2, dtype=DOUBLE), matrix=torch.eye(2, dtype=DOUBLE), norm="l2"),
    "curator.Handle": lambda: of(query=query(), details={}, name="x"),
    "curator.Ledger": lambda: of(url=None, birth=dict(BIRTH)),
    # models and acquisitions
    "models.DataSetKernel": lambda: of(differences=models.chain(3), theta=2.0),
    "models.chain": lambda: of(count=3),
    "models.hamming": lambda: of(data_sets=torch.zeros(3, 4)),
    "models.over_data_sets": lambda: of(data_sets=models.DataSetKernel(models.chain(3), 2.0), candidates=KERNEL, dimension=2),
    "models.FiniteGP": lambda: of(candidates=grid(), kernel=KERNEL, noise=1e-2, capacity=8),
    "models.GradientGP": lambda: of(train_X=grid(), train_Y=grid().sum(1, keepdim=True)),
    "models.GradientPosterior": lambda: of(kernel=_scaled(), noise=1e-2, mean=0.0, jitter=1e-6),
    "models.derivatives": lambda: of(kernel=_scaled()),
    "models.information_gain_bound": lambda: of(candidates=grid(), **_KUSNER),
    "models.l2_laplace_variance": lambda: of(dimension=2, scale=1.0),
    "models.noisy_inputs": lambda: of(kernel=KERNEL, variance=0.1, dimension=2),
    "models.unprojected": lambda: of(Z=grid(), P=torch.eye(2, dtype=DOUBLE), variance=0.1),
    "acquisition.adaptive_points": lambda: of(posterior=_posterior(), theta=X, tolerance=0.5, most=2, bounds=BOX, steps=2),
    "acquisition.choose_points": lambda: of(posterior=_posterior(), theta=X, b=1, bounds=BOX, start=grid(1), steps=2, restarts=1),
    "acquisition.GradientInformation": lambda: of(model=GP, theta=X),
    "acquisition.next_point": lambda: seen(space=SPACE, seed=0),
    "acquisition.pareto_front": lambda: seen(space=SPACE, public=grid(6, 1)),
    "acquisition.pareto_point": lambda: seen(space=SPACE, public=grid(6, 1), reference=(0.0, 0.0), seed=0),
    "acquisition.Prior": lambda: of(log_density=lambda X: -(X**2).sum(-1), log=True, bounds=BOX, share=0.1),
    "acquisition.prior_guided": lambda: of(
        acquisition=LogExpectedImprovement(GP, 1.0), log_density=lambda X: -(X**2).sum(-1), t=1, bounds=BOX
    ),
    "acquisition.Proposer": lambda: of(space=SPACE, growth=0.2, restarts=1, raw_samples=4, steps=2),
    "acquisition.TrustRegion": lambda: of(start=0, length=0.8),
    "acquisition.region_after": lambda: of(means=(0.1, 0.2, 0.3), dimension=2, initial=2),
    "acquisition.trust_region_point": lambda: seen(space=SPACE, seed=0, initial=4),
    "acquisition.GPUCB": lambda: of(model=GP, schedule=SCHEDULE),
    "acquisition.SrinivasCompact": lambda: of(dimension=2, side=1.0, a=1.0, b=1.0, delta=0.1),
    "acquisition.SrinivasFinite": lambda: of(count=8, delta=0.1),
    "acquisition.argmax_ucb": lambda: of(model=models.FiniteGP(grid(), KERNEL, 1e-2), schedule=SCHEDULE, exclude=torch.tensor([1])),
    "acquisition.kusner_beta": lambda: of(count=8, delta=0.1, constants="corrected"),
    # algorithms
    "algorithms.GIBOSettings": lambda: of(unit_box=True, rotate=True, radius=0.04, jitter=1e-6, learning_rate=0.1, tail=0.5),
    "algorithms.choose_clip": lambda: of(curator=curator(), loss=loss, bounds=BOX, candidates=(0.1, 1.0), budget_share=0.2),
    "algorithms.choose_start": lambda: of(curator=curator(), loss=loss, candidates=grid(), loss_range=(0.0, 1.0), budget_share=0.2),
    "algorithms.AsynchronousBO": lambda: of(objective=objective(), space=SPACE, workers=2, initial=2, seed=0),
    "algorithms.search_then_choose": lambda: of(
        curator=curator(), score=score, candidates=grid(12), score_range=(0.0, 1.0), evaluations=3, finalists=2, initial=2
    ),
    "algorithms.Adaptive": lambda: of(space=SPACE, spread=(0.5, 2.0), noise_std=0.1, candidates=16, sharpness=2.0),
    "algorithms.NoisedScore": lambda: of(score=score, score_range=(0.0, 1.0), mechanism=GAUSSIAN, settings={"divisor": 40.0}),
    "algorithms.private_selection": lambda: of(curator=curator("rdp"), train=lambda found: X, space=SPACE, law=LAW, score=NOISED),
    "algorithms.selection_event": lambda: of(curator=curator("rdp"), law=LAW, base=(EVENT,), score=NOISED),
    "algorithms.kusner.KusnerSearch": lambda: of(
        gain=lambda x, rows: 0.1, candidates=grid(), **_KUSNER, kappa=0.99, delta=0.01, value_range=(-3.0, 3.0)
    ),
    "algorithms.kusner.Adaptive": lambda: _KUSNER,
    "algorithms.kusner.RegularisedBest": lambda: of(
        loss=loss, fit=lambda _: X, grid=(0.5, 1.0), lipschitz=1.0, bound=1.0, at_zero=0.5, records=40, gap=0.0
    ),
    "algorithms.em.DPFactorAnalysis": lambda: of(n_components=1, **_EM),
    "algorithms.em.DPGaussianMixture": lambda: of(n_components=2, init_iter=1, frame_iter=1, settle=1, **_EM),
    "algorithms.em.density_of": lambda: of(mixture=_fitted("DPGaussianMixture"), X=grid()),
    "algorithms.em.embedding": lambda: of(analysis=_fitted("DPFactorAnalysis")),
    "algorithms.em.LinearEmbedding": lambda: of(weight=torch.ones(1, 2, dtype=DOUBLE), mean=torch.zeros(2, dtype=DOUBLE)),
    "algorithms.outsourced.Outcomes": lambda: of(curator=curator("candidate"), outcome=_first, value_range=(0.0, 1.0), budget_share=0.5),
    "algorithms.outsourced.release_rows": lambda: of(curator=curator(), table=queries.RowTable((0.0, 0.0), 2.0), mechanism=GAUSSIAN),
    "algorithms.outsourced.Modeler": lambda: {**_MODELER, "history": ((1, 0.5),)},
    "algorithms.outsourced.po_gp_ucb_omega": lambda: of(epsilon=1.0, delta=1e-6, r=2),
    "algorithms.outsourced.po_gp_ucb_transform": lambda: of(
        X=grid(), epsilon=1.0, delta=1e-6, r=2, generator=torch.Generator(), allow_not_private=True
    ),
    "algorithms.outsourced.random_projection": lambda: of(dimension=4, k=2, seed=0),
    "algorithms.outsourced.row_noises": lambda: of(dimension=4, budget=BUDGET, moves=1.0, share=0.5, projections=(2,), lengthscale=1.0),
    "algorithms.outsourced.read_release": lambda: of(folder=_released()["folder"]),
    "algorithms.outsourced.write_release": lambda: of(**_released(), facts={"a": 1}),
    # integrations
    "integrations.RemoteCurator": lambda: of(url="http://127.0.0.1:1", token=TOKEN, timeout=1.0),
    "integrations.search": lambda: of(
        modeler=outsourced.Modeler(**_MODELER), curator=Remote(outcomes()), steps=2, journal=pathlib.Path(tempfile.mkdtemp(), "j")
    ),
    "integrations.application": lambda: of(outcomes=outcomes(), token=TOKEN, every=0.1),
    "integrations.ax.ClientObjective": lambda: of(
        objective=objective(), space=SPACE, client=importlib.import_module("ax.api.client").Client(random_seed=1)
    ),
    "integrations.ax.gp_ucb": lambda: of(schedule=SCHEDULE, initial=2, seed=0),
    "integrations.ax.gradient_information": lambda: of(space=SPACE, at={"a": 0.5, "b": 1.0}, initial=2, seed=0),
    "integrations.ax.noisy_improvement": lambda: of(initial=2, seed=0),
    "integrations.optuna.NoiseAwareSampler": lambda: of(space=SPACE, seed=0, initial=2),
    "integrations.optuna.TrialObjective": lambda: of(objective=objective(), space=SPACE),
    "integrations.optuna.recommended_of": lambda: of(study=_finished_study(), space=SPACE),
    "integrations.opacus.DPSGD": lambda: of(noise_multiplier=1.0, epochs=1, batches=2, batch_size=20),
    "integrations.opacus.Session": lambda: of(records=TensorDataset(torch.rand(40, 2)), terms=SGD),
    "integrations.opacus.released": lambda: of(module=nn.Linear(2, 2)),
    # instruments
    "testing.SeededEntropy": lambda: of(seed=1),
    "testing.assert_law": lambda: of(samples=np.linspace(0.001, 0.999, 999), cdf=scipy.stats.uniform().cdf),
    "testing.assert_not_law": lambda: of(samples=np.linspace(0.001, 0.999, 999), cdf=scipy.stats.norm().cdf),
    "testing.audit": lambda: of(draw=lambda which, count: np.random.default_rng().normal(size=count) + which, runs=400, level=1e-6),
    "testing.reachable": lambda: of(mu=1.0, runs=400, level=1e-6),
    "testing.check_per_record": lambda: of(score=score, subject=X, records=torch.rand(12, 2, dtype=DOUBLE), trials=2),
    "testing.outside_column_space": lambda: of(Z=grid(), X=grid(8, 1)),
    "testing.recover_rows": lambda: of(Z=grid(), known=grid(3), indices=(0, 1, 2)),
    "testing.which_published": lambda: of(Z=grid(), tables=(grid(), grid() + 1)),
    "testing.replay": lambda: of(
        run=lambda owner, _: owner.release(query(), GAUSSIAN).value,
        records=records(),
        neighbour=records(),
        unit=dpbo.PrivacyUnit("r"),
        adjacency=REPLACE,
        budget=BUDGET,
    ),
}
_ALIKE = {
    "accounting.GDPFilter accounting.PureFilter accounting.ZCDPFilter models.SameRow": of,
    "laws.PoissonRuns laws.TruncatedPoisson": lambda: of(rate=5.0),
    "models.matern52 models.squared_exponential": lambda: of(lengthscale=0.5),
    "models.usual_gp models.sparse_gp acquisition.posterior_mean integrations.recommended": lambda: seen(space=SPACE),
    "algorithms.em.DPKMeans algorithms.em.DPLloyd": lambda: of(n_clusters=2, **_EM),
    "events.NotPrivateEvent events.DeclassifiedEvent": lambda: of(noise_multiplier=0.0, slots=1),
}
for _kind in ("Gaussian", "Laplace", "L2Laplace", "Exponential", "PermuteAndFlip"):
    _ALIKE |= {
        f"events.{_kind}Event": lambda: of(noise_multiplier=2.0, slots=3),
        f"mechanisms.{_kind}Mechanism": lambda: of(noise_multiplier=2.0),
    }
CALLS |= {name: good for names, good in _ALIKE.items() for name in names.split()}

DOORS = {
    "Curator.groups": lambda: (lambda groups: curator(unit=dpbo.PrivacyUnit("x", groups=groups)), of(groups=list(range(UNITS)))),
    "Curator.evaluate": lambda: (curator().evaluate, of(query=query(), x=[0.5])),
    "Curator.submit": lambda: (curator().submit, of(query=query(), executor=POOL, x=[0.5])),
    "Curator.release": lambda: (curator().release, of(question=query(), mechanism=GAUSSIAN)),
    "Curator.release_all": lambda: (curator().release_all, of(handles=[curator().evaluate(query())], mechanism=GAUSSIAN)),
    "Curator.reserve": lambda: (curator().reserve, of(name="p", event=EVENT, slots=3, terms={"a": 1}, parallel=True, limit=10)),
    "Curator.statement": lambda: (curator("gdp").statement, of(delta=1e-5)),
    "PrivateObjective.__call__": lambda: (objective(), of(X=grid(2))),
    "PrivateObjective.release": lambda: (objective().release, of(handles=[objective().evaluate(X) for _ in range(2)])),
    "DPGIBO.run": lambda: (lambda **given: dpbo.DPGIBO(**given).run(), CALLS["DPGIBO"]()),
    "DPSearch.fit": lambda: (dpbo.DPSearch(**CALLS["DPSearch"]()).fit, dict(SPLIT)),
    "Space.encode": lambda: (SPACE.encode, of(parameters={"a": 0.5, "b": 1.0})),
    "Space.decode": lambda: (SPACE.decode, of(x=X)),
    "algorithms.outsourced.Outcomes.value": lambda: (outcomes().value, of(row=1, request="first")),
    "algorithms.outsourced.Modeler.tell": lambda: (outsourced.Modeler(**_MODELER).tell, of(index=2, y=0.3)),
    "integrations.RemoteCurator.value": lambda: (Remote(outcomes()).value, of(row=1, request="first")),
}

NOT_CALLED = {
    "an error or a warning of dpbo": "BudgetExceeded PrivacyError integrations.RemoteRefusal integrations.optuna.BudgetSpent",
    "an Enum of Python's own": "Adjacency",
    "needs several processes: tests/slow/ranks": "Ranks",
    "runs until interrupted: its application is called": "integrations.serve",
    "seconds each, tried in tests/integration": "integrations.opacus.plan_tuning integrations.opacus.tune",
    "a value": "algorithms.PAPER algorithms.RECOMMENDED",
    "abstract, or a protocol": "acquisition.Proposes integrations.opacus.Fit models.ModelBuilder models.Derivatives queries.Query "
    "queries.ClippedScores mechanisms.Mechanism mechanisms.AdditiveMechanism mechanisms.SelectionMechanism",
    "a contract: a class of tests": "testing.LedgerContract testing.MechanismContract testing.QueryContract testing.SumContract "
    "testing.RowContract testing.SelectionContract testing.VectorContract",
    "a result, made by dpbo": "Plan Release Statement accounting.LawChoice algorithms.AsynchronousResult algorithms.Chosen "
    "algorithms.GIBOResult algorithms.Selected algorithms.outsourced.NotPrivateRows algorithms.outsourced.Answer "
    "algorithms.outsourced.ReleasedRows algorithms.outsourced.RowNoise integrations.Recommendation integrations.opacus.TuningPlan "
    "integrations.opacus.TuningPlans integrations.opacus.TunedModel testing.Audit",
}
