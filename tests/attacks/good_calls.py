"""A good call of every public name and of the methods that users call, over private records that
are canaries.

`VALUES` and `MADE` hold a good value for each parameter by its name, those in `MADE` anew for each
call; 2 is good for most numbers. A call takes those that its signature needs, and what `OTHERS`
says instead or beside. Names are without their `dpbo.`.
"""

import concurrent.futures
import enum
import functools
import importlib
import inspect
import pathlib
import tempfile
import warnings
from typing import Any, Protocol

import numpy as np
import optuna
import scipy.stats
import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from sklearn.tree import DecisionTreeClassifier

import dpbo

# First: it loads Ax without the warnings of Ax's own imports.
import dpbo.integrations.ax
from dpbo import (
    accounting,
    acquisition,
    dpsgd,
    events,
    gibo,
    mechanisms,
    models,
    papers,
    queries,
    run_counts,
    testing,
)
from dpbo.dpsgd import NoisedScore
from dpbo.integrations.optuna import TrialObjective
from dpbo.ledger.birth import Birth
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers import em, po_gp_ucb
from dpbo.papers.po_gp_ucb import curator_side
from dpbo.queries.ball import Ball, Box
from tests.attacks.setups import of
from tests.attacks.watched import LABEL, SCALED
from tests.setups import DOUBLE, box

with warnings.catch_warnings():
    # Starlette would rather have another client.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

UNITS = 40
REPLACE = dpbo.Adjacency.REPLACE_ONE
TOKEN = "a token of enough letters"
BUDGET = dpbo.Budget(8.0, 1e-5)
SPACE = dpbo.Space(a=scipy.stats.uniform(0, 1), b=scipy.stats.loguniform(1e-2, 1e2))
# Used by the call at hand.
LIVE: list[dpbo.Curator] = []
_kept: dict[str, Any] = {}


def records():
    return torch.tensor(SCALED, dtype=DOUBLE).unsqueeze(1).repeat(1, 2)


def curator(kind="", **settings):
    """A curator that was charged nothing yet: the last one of its kind, until somebody is charged
    there.
    """
    if (
        settings
        or kind not in _kept
        or _kept[kind].ledger.head().kind not in ("birth", "assume", "void")
    ):
        kinds = {
            "candidate": of(role="candidate"),
            "rdp": of(accounting=accounting.RDPFilter(6.0), budget=dpbo.Budget(20.0, 1e-5)),
        }
        unit = dpbo.PrivacyUnit(
            "patient",
            groups=[f"{LABEL}-{i // 2}" for i in range(UNITS)] if kind == "grouped" else None,
        )
        terms = of(
            records=records(),
            unit=unit,
            adjacency=REPLACE,
            budget=BUDGET,
            entropy=testing.SeededEntropy(1),
            allow_repeated=True,
        )
        kind = kind if not settings else "special"
        _kept[kind] = dpbo.Curator(**{**terms, **kinds.get(kind, {}), **settings})
    LIVE.append(_kept[kind])
    return _kept[kind]


def objective():
    if "objective" not in _kept or _kept["objective"].remaining < 6:
        _kept["objective"] = dpbo.PrivateObjective(
            curator(), score, score_range=(0.0, 1.0), evaluations=9
        )
    LIVE.append(_kept["objective"].curator)
    return _kept["objective"]


def score(x, rows):
    return 1 - (rows[:, 0] - x[0]).abs().clamp(0, 1)


def query(score=score):
    return queries.ClippedMean(score, X, score_range=(0.0, 1.0))


def grid(n=8, d=2):
    return torch.quasirandom.SobolEngine(d, seed=0, scramble=True).draw(n, dtype=DOUBLE)


def finite_gp():
    return models.FiniteGP(grid(), KERNEL, 1e-2)


def outcomes():
    return po_gp_ucb.Outcomes(
        curator("candidate"), VALUES["outcome"], value_range=(0.0, 1.0), budget=0.5
    )


def remote():
    """The real client over the real server, in one process."""
    client = po_gp_ucb.RemoteOutcomes("http://curator", TOKEN)
    server = po_gp_ucb.serve(outcomes(), token=TOKEN)
    # Of httpx, or of httpx2 where that is installed.
    http: Any = TestClient(server, headers={"Authorization": f"Bearer {TOKEN}"})
    client._client = http
    return client


@functools.cache
def _study():
    study = optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.NopPruner(),
        direction="maximize",
    )
    study.optimize(TrialObjective(objective(), SPACE), n_trials=3)
    return study


@functools.cache
def _folder():
    place = pathlib.Path(tempfile.mkdtemp())
    curator_side.write_release(place, MADE["rows"](), {"a": 1}, curator().statement())
    return place


def _then(kind, method, **arguments):
    """Construct and go on: scikit-learn's constructors keep what they are given, and `fit` judges
    it.
    """
    return functools.wraps(kind, updated=())(
        lambda **settings: getattr(kind(**settings), method)(**arguments)
    )


def exported():
    """The shortest name of each class and function that the packages and two modules export, but
    for what nobody can call.
    """
    root = pathlib.Path(dpbo.__file__).parent
    found = dict[Any, str]()
    packages = [
        ".".join(("dpbo", *stub.parent.relative_to(root).parts))
        for stub in root.rglob("__init__.pyi")
    ]
    for module in map(
        importlib.import_module,
        [*sorted(packages, key=lambda path: path.count(".")), "dpbo.run_counts", "dpbo.events"],
    ):
        own = [
            name
            for name, thing in vars(module).items()
            if getattr(thing, "__module__", "") == module.__name__ and name[0] != "_"
        ]
        for name in getattr(module, "__all__", own):
            thing = getattr(module, name)
            kind = isinstance(thing, type) and not (
                issubclass(thing, (BaseException, enum.Enum)) or Protocol in thing.__bases__
            )
            if (kind and not inspect.isabstract(thing)) or inspect.isfunction(thing):
                found.setdefault(thing, f"{module.__name__}.{name}".removeprefix("dpbo."))
    return set(found.values())


def good_call(name):
    """What is called, and its good arguments: those that it needs, and others."""
    LIVE.clear()
    owner, _, method = name.rpartition(".")
    home = (
        OWNERS[owner]() if owner in OWNERS else importlib.import_module(f"dpbo.{owner}".rstrip("."))
    )
    call = THEN[name] if name in THEN else getattr(home, method)
    others = OTHERS.get(name, {})
    good = dict(others() if callable(others) else others)
    for word, parameter in inspect.signature(call).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if needed and word not in good:
            good[word] = MADE[word]() if word in MADE else VALUES.get(word, 2)
    return call, good


X = torch.full((2,), 0.5, dtype=DOUBLE)
BOX = box(2)
EYE = torch.eye(2, dtype=DOUBLE)
KERNEL = squared_exponential(0.4)
SCHEDULE = acquisition.SrinivasFinite(count=8, delta=0.1)
GAUSSIAN = mechanisms.GaussianMechanism(20.0)
EVENT = events.GaussianEvent(20.0, 3)
PURE_EVENT = events.LaplaceEvent(20.0, 3)
LAW = run_counts.TruncatedNegativeBinomial.of_mean(5.0)
POOL = concurrent.futures.ThreadPoolExecutor(1)
TABLE = papers.po_gp_ucb.RowTable((0.0, 0.0), 2.0)
BIRTH = Birth(
    dataset="x",
    unit="u",
    grouped=False,
    adjacency=dpbo.Adjacency.REPLACE_ONE,
    budget=BUDGET,
    accounting=accounting.GDPFilter(),
)
GP = SingleTaskGP(grid(), grid().sum(1, keepdim=True), torch.full((8, 1), 1e-2, dtype=DOUBLE))
NOISED = NoisedScore(score, (0.0, 1.0), mechanisms.GaussianMechanism(60.0))
SGD = dpsgd.DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=2, batch_size=20)
ARRAY = np.array([*SCALED, *SCALED[:20]]).reshape(30, 2)
ROWS = np.random.default_rng(0).normal(size=(120, 4))
UNIT = dpbo.PrivacyUnit("x")
SIDES = torch.tensor([[-2.0, 2.0]] * 2, dtype=DOUBLE)
EM = of(budget=BUDGET, radius=2.0, center=(0.0, 0.0), bounds=SIDES, max_iter=2, random_state=0)

VALUES = of(
    unit=UNIT,
    adjacency=REPLACE,
    budget=BUDGET,
    accounting=accounting.GDPFilter(),
    noise_multiplier=2.0,
)
VALUES |= of(
    events=(EVENT, PURE_EVENT),
    event=EVENT,
    base=(EVENT,),
    run_count=LAW,
    costs=(("training", (EVENT,)),),
    releases=10,
)
VALUES |= of(
    given=dpbo.Adjacency.ADD_OR_REMOVE_ONE,
    wanted=REPLACE,
    relation="replace-one",
    mechanism=GAUSSIAN,
    table=TABLE,
    delta=1e-3,
)
VALUES["units"] = 1000
VALUES["risk"] = 0.1
VALUES |= dict.fromkeys(
    ("share", "gamma", "chance", "rate", "quantile", "kappa", "tolerance", "variance", "noise"), 0.5
)
VALUES |= dict.fromkeys(
    ("score_range", "loss_range", "value_range", "center", "reference", "means"), (0.0, 1.0)
)
VALUES |= of(
    x=X,
    theta=X,
    start=X,
    subject=X,
    P=EYE,
    projection=EYE,
    matrix=EYE,
    groups=list(range(UNITS)),
    generator=torch.Generator(),
)
VALUES |= of(
    space=SPACE,
    Y=grid(6).sum(1, keepdim=True),
    Yvar=torch.full((6, 1), 1e-2, dtype=DOUBLE),
    X=grid(6),
    public=grid(6, 1),
)
VALUES |= of(
    score=score,
    loss=lambda x, rows: ((rows - x) ** 2).sum(1).clamp(0, 1),
    outcome=lambda rows: rows[:, 0],
    Z=grid(6),
    bounds=BOX,
)
VALUES |= of(
    candidates=grid(),
    ball=Ball(2.0),
    box=Box(SIDES),
    centers=grid(3),
    query=query(),
    question=query(),
    schedule=SCHEDULE,
    seed=0,
)
VALUES |= of(
    natural=torch.zeros(2, 6, dtype=DOUBLE),
    weights=torch.ones(2, 6, dtype=DOUBLE),
    kernel=KERNEL,
    model=GP,
    log=True,
    name="x",
)
VALUES |= of(train_X=grid(), train_Y=grid().sum(1, keepdim=True), executor=POOL)
VALUES |= of(
    posterior=gibo.GradientPosterior(KERNEL, 1e-2).conditioned_on(grid(4)),
    acquisition=LogExpectedImprovement(GP, 1.0),
)
VALUES |= of(
    log_density=lambda X: -(X**2).sum(-1),
    spread=(0.5, 2.0),
    gain=lambda x, rows: 0.1,
    fit=lambda _: X,
    train=lambda _: X,
)
VALUES |= of(
    grid=(0.5, 1.0),
    shape=1.0,
    weight=torch.ones(1, 2, dtype=DOUBLE),
    mean=torch.zeros(2, dtype=DOUBLE),
    neighbour=records(),
)
VALUES |= of(
    facts={"a": 1},
    details={"a": 1},
    terms=SGD,
    config=SGD,
    birth=BIRTH,
    url=None,
    token=TOKEN,
    request="first",
)
VALUES |= of(
    samples=np.linspace(0.001, 0.999, 999),
    cdf=scipy.stats.uniform().cdf,
    indices=(0, 1, 2),
    tables=(grid(6), grid()[2:]),
)
VALUES |= of(
    parameters={"a": 0.5, "b": 1.0},
    module=torch.nn.Linear(2, 2),
    X_train=ROWS[:60],
)
VALUES |= of(known=grid(3))
VALUES |= of(
    draw=lambda which, count: np.random.default_rng().normal(which, size=count),
    param_distributions={"max_depth": [1, 2]},
)
MADE = of(
    curator=curator,
    objective=objective,
    outcomes=outcomes,
    records=records,
    study=_study,
    folder=_folder,
)
MADE |= of(
    rows=functools.cache(lambda: po_gp_ucb.release_rows(curator(), TABLE, GAUSSIAN)),
    statement=lambda: curator().statement(),
)
MADE |= of(
    client=lambda: importlib.import_module("ax.api.client").Client(random_seed=1),
    load=lambda: records,
)
MADE |= of(modeler=lambda: po_gp_ucb.Modeler(grid(), kernel=KERNEL, noise=1e-2, schedule=SCHEDULE))
MADE |= of(
    handles=lambda: [curator().evaluate(query())],
    mixture=functools.cache(lambda: em.DPGaussianMixture(2, **EM).fit(ARRAY)),
)
MADE |= of(
    analysis=functools.cache(lambda: em.DPFactorAnalysis(1, **EM).fit(ARRAY)),
)
_GROUPED: dict[str, Any] = {
    "Budget": of(epsilon=3.0, delta=1e-6),
    "Space": of(a=scipy.stats.uniform(0, 1), n=scipy.stats.randint(1, 5), kind=["x", "y"]),
    "Curator.reserve": of(noise=EVENT, terms={"a": 1}),
    "PrivateObjective": of(score_range=(0.0, 1.0)),
    "PrivateObjective.release": lambda: of(handles=[objective().evaluate(X) for _ in range(2)]),
    "DPSearch": of(
        estimator=DecisionTreeClassifier(),
        budget=BUDGET,
        n_iter=2,
        privacy=dpbo.Privacy(allow_repeated=True),
    ),
    "rehearse": of(
        estimator=DecisionTreeClassifier(), X=ROWS[:60], y=ROWS[:60, 0] > 0, groups=None, n_iter=2
    ),
    "report": lambda: of(source=objective(), title="x"),
    "DPSearch.fit": of(y_train=ROWS[:60, 0] > 0, X_val=ROWS[60:], y_val=ROWS[60:, 0] > 0),
    "dpsgd.LedgerAccountant": lambda: of(
        curator=curator(), noise_multiplier=40.0, steps=3, name="sgd"
    ),
    "run_counts.run_count_from_json": of(body=LAW.to_json()),
    "events.event_from_json": of(
        body=events.SelectionEvent(base=(EVENT,), run_count=LAW).to_json()
    ),
    "events.OneOfEvent": of(candidates=(EVENT, EVENT.repeated(2))),
    "queries.QuantileUtilities": of(score=lambda _, rows: rows[:, 0], candidates=(0.0, 0.5, 1.0)),
    "acquisition.ucb.suggest_ucb": lambda: of(model=finite_gp()),
    "acquisition.GPUCB.release_argmax": of(mechanism=mechanisms.ExponentialMechanism(4.0)),
    "models.FiniteGP.fantasize": of(X=grid()[:1], sampler=SobolQMCNormalSampler(torch.Size([2]))),
    "gibo.choose_start": of(budget=0.5),
    "gibo.GradientGP.release_gradient": of(mechanism=GAUSSIAN),
    "gibo.replicate": lambda: of(
        records=[records(), records()], budget=BUDGET, allow_not_private=True
    ),
    "dpsgd.private_selection dpsgd.selection.selection_event": lambda: of(
        curator=curator("rdp"), score=NOISED
    ),
    "papers.kusner.RegularisedBest": of(records=40),
    "queries.ball.Box": of(bounds=SIDES),
    "papers.em.DPFactorAnalysis papers.em.DPKMeans papers.em.DPLloyd": EM,
    "papers.em.DPEM": of(
        statistics=lambda theta, rows: rows - theta,
        bound=1.0,
        m_step=lambda moments, noise: moments,
        start=torch.zeros(2, dtype=DOUBLE),
        size=2,
        max_iter=2,
        budget=BUDGET,
    ),
    "papers.em.DPGaussianMixture": of(
        **EM,
        noise="GGG",
        n_components=2,
        means_init=((0.0, 1.0), (1.0, 0.0)),
        weights_init=(0.5, 0.5),
    ),
    "NoNoise": of(allow_not_private=True),
    "papers.po_gp_ucb.Outcomes": lambda: of(curator=curator("candidate"), budget=0.5),
    "papers.po_gp_ucb.po_gp_ucb_transform": of(allow_not_private=True),
    "papers.po_gp_ucb.RemoteOutcomes": of(url="http://127.0.0.1:1"),
    "papers.po_gp_ucb.search": lambda: of(outcomes=remote()),
    "papers.po_gp_ucb.release_rows papers.po_gp_ucb.plan_rows": lambda: of(mechanism=GAUSSIAN),
    "dpsgd.Session": of(records=torch.utils.data.TensorDataset(torch.rand(40, 2))),
    "testing.audit testing.auditing.reachable": of(runs=400, level=1e-6),
    "testing.audit_model": of(
        train=len, score=lambda model, canary: 0.5, canaries=tuple(range(40))
    ),
    "testing.replay": of(
        run=lambda owner, _: owner.release(query(), GAUSSIAN).value,
        unit=UNIT,
        adjacency=REPLACE,
        budget=BUDGET,
    ),
}
# Instead of those, or beside.
OTHERS = {name: others for names, others in _GROUPED.items() for name in names.split()}
THEN = {
    f"papers.em.{name}": _then(getattr(em, name), "fit", X=ARRAY)
    for name in dir(em)
    if name.startswith("DP")
}
THEN |= {
    "DPSearch": _then(dpbo.DPSearch, "fit", X_train=ROWS[:60], **OTHERS["DPSearch.fit"]),
    "DPGIBO": _then(dpbo.DPGIBO, "run"),
}
OWNERS: dict[str, Any] = {
    "Curator": curator,
    "PrivateObjective": objective,
    "Space": lambda: SPACE,
    "papers.po_gp_ucb.RemoteOutcomes": remote,
}
OWNERS["gibo.GradientGP"] = lambda: gibo.GradientGP(grid(), grid().sum(1, keepdim=True))
OWNERS |= {"papers.po_gp_ucb.Outcomes": outcomes, "papers.po_gp_ucb.Modeler": MADE["modeler"]}
OWNERS |= {
    "acquisition.GPUCB": lambda: acquisition.GPUCB(finite_gp(), SCHEDULE),
    "models.FiniteGP": finite_gp,
}
OWNERS["DPSearch"] = lambda: dpbo.DPSearch(**good_call("DPSearch")[1])
METHODS = (
    "Curator.evaluate Curator.submit Curator.release Curator.release_all Curator.reserve"
    " Curator.statement PrivateObjective.__call__ PrivateObjective.release"
    " DPSearch.fit Space.encode Space.decode papers.po_gp_ucb.Outcomes.value"
    " papers.po_gp_ucb.Modeler.tell papers.po_gp_ucb.RemoteOutcomes.value"
    " models.fixed_kernels.matern52 models.finite.information_gain_bound"
    " models.kernels.kernel_derivatives models.noisy_inputs.SameRow models.noisy_inputs.unprojected"
    " acquisition.ucb.SrinivasCompact"
    " acquisition.ucb.kusner_beta acquisition.ucb.suggest_ucb acquisition.prior_guidance.Prior"
    " acquisition.GPUCB.argmax_query acquisition.GPUCB.best_of acquisition.GPUCB.release_argmax"
    " models.FiniteGP.argmax_upper models.FiniteGP.fantasize models.FiniteGP.observe"
    " acquisition.trust_region.TrustRegion acquisition.trust_region.region_after"
    " gibo.GradientGP.gradient_posterior gibo.GradientGP.of_one_unit"
    " gibo.GradientGP.gradient_query gibo.GradientGP.release_gradient"
    " gibo.gradient_points.fewest_gradient_points dpsgd.selection.selection_event"
    " dpsgd.gains.gain_test"
    " dpsgd.hidden_runs.DensityRatioProposals queries.ball.Ball queries.ball.Box"
    " papers.em.mixture_moments.MixtureMoments papers.em.point_sums.ClusterSums"
    " papers.em.point_sums.SecondMoment papers.po_gp_ucb.rows.RowOutcome testing.auditing.reachable"
    " accounting.calibration.convert_adjacency"
    " models.fixed_kernels.squared_exponential acquisition.expected_improvement.posterior_mean"
    " papers.po_gp_ucb.row_noise.random_projection papers.po_gp_ucb.transform.po_gp_ucb_omega"
)
# Needs several processes, has no end or takes seconds, and is tried elsewhere; then results, which
# dpbo makes.
NOT_CALLED = "Ranks dpsgd.plan_tuning dpsgd.tune gibo.Replicas Plan Release Statement"
NAMES = sorted((exported() - {*NOT_CALLED.split()}) | {*METHODS.split()})
