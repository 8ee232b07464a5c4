"""A6, A7, A8, A21: every algorithm, on neighbours with releases frozen, asks the same, moves within
its sensitivities, shows the same.

Each run returns everything public that its result holds (`public`), so a raw score, a trace or a
best-so-far value kept in an attribute makes the two runs differ. Algorithms whose replay stands
elsewhere, and hidden runs, are in the table of test_replayed.py.
"""

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import scipy.stats
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP

from dpbo import DPGIBO, Adjacency, Budget, PrivateObjective, Space
from dpbo.accounting import PureFilter
from dpbo.acquisition import GPUCB, SrinivasFinite
from dpbo.algorithms import AsynchronousBO, search_then_choose
from dpbo.errors import InputError
from dpbo.gibo import GIBOSettings, choose_start
from dpbo.mechanisms import (
    ExponentialMechanism,
    L2LaplaceMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from dpbo.models import noisy_inputs
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.em import DPEM, DPFactorAnalysis, DPGaussianMixture, DPKMeans, DPLloyd
from dpbo.papers.kusner import AdaptiveLipschitz, KusnerSearch
from dpbo.papers.po_gp_ucb import (
    Modeler,
    Outcomes,
    RowTable,
    plan_rows,
    release_rows,
    search,
    serve,
)
from dpbo.queries import (
    CandidateScores,
    CellMeans,
    QuantileUtilities,
)
from dpbo.testing import SeededEntropy, replay
from tests.attacks import setups
from tests.attacks.marks import attack
from tests.attacks.public import _HASH, public
from tests.attacks.setups import DOUBLE, FIRST_MEAN, NOISE, of
from tests.integration.test_serving import TOKEN, served
from tests.unit.papers.test_kusner_search import best, kernel, people
from tests.unit.papers.test_po_gp_ucb_curator_side import CHANGE, rows_of, terms

pytestmark = attack("A6", "A7", "A21")
POINTS = 0.2 + 0.6 * torch.rand(200, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
OTHER = torch.cat([POINTS[:7], torch.tensor([[-1e9, float("nan")]], dtype=DOUBLE), POINTS[8:]])
TERMS: dict[str, Any] = {**setups.TERMS, "budget": Budget(8.0, 1e-5)}
PURE: dict[str, Any] = {**TERMS, "budget": Budget(20.0, 0.0), "accounting": PureFilter()}
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DOUBLE)
GRID = torch.cartesian_prod(*[torch.linspace(0, 1, 6, dtype=DOUBLE)] * 2)
KERNEL = kernel()
SPACE = Space(a=scipy.stats.uniform(0, 1), b=scipy.stats.uniform(0, 1))


def distance(x, records):
    return (records - x).square().sum(1)


def near(x, records):
    return 1 - distance(x, records)


def objective(curator, **settings):
    plan = PrivateObjective(curator, near, score_range=(0.0, 1.0), evaluations=4, **settings)
    plan(GRID[:2])
    plan.release([plan.evaluate(GRID[2]), plan.evaluate(GRID[3])])
    return plan, plan.history(), plan.curator.statement()


def objective_of_cells(curator):
    plan = PrivateObjective(
        curator,
        CellMeans(lambda x, r: (r[:, 0].nan_to_num() > x[0]).long(), cells=2),
        evaluations=3,
    )
    return plan(GRID[:3]), plan, plan.history()


def gradient_search(curator, iterations=3, kind=DPGIBO, **settings):
    return kind(
        curator,
        distance,
        bounds=BOX,
        budget=0.9,
        iterations=iterations,
        batch_size=3,
        clip=1.0,
        **settings,
    )


def dpgibo(curator, settings=None):
    search = gradient_search(curator, 5, settings=settings)
    return search.run(), search


def start(curator):
    return choose_start(curator, distance, GRID, loss_range=(0.0, 2.0), budget=0.3)


def asynchronous(curator, **settings):
    plan = PrivateObjective(curator, near, score_range=(0.0, 1.0), evaluations=8)
    search = AsynchronousBO(plan, SPACE, workers=3, initial=4, **settings)
    # With one thread jobs end in the order in which they began.
    with ThreadPoolExecutor(1) as executor:
        found = search.run(executor)
    # Seconds, which only the operator sees, as its docstring says.
    search.proposing.clear()
    return found, search


def searched_then_chosen(curator):
    return search_then_choose(
        curator, near, GRID, score_range=(0.0, 1.0), evaluations=6, initial=3, finalists=4
    )


def ucb_choice(curator):
    plan = PrivateObjective(
        curator, near, score_range=(0.0, 1.0), evaluations=3, budget=0.5, mechanism=LaplaceMechanism
    )
    X = GRID[[0, 17, 35]]
    model = SingleTaskGP(X, *plan(X), covar_module=squared_exponential(0.4))
    query = GPUCB(model, SrinivasFinite(count=len(GRID), delta=0.1)).argmax_query(
        near, GRID, score_range=(0.0, 1.0), finalists=5
    )
    return curator.release(query, PermuteAndFlipMechanism.of(5.0)), list(query.candidates)


def queries(curator):
    scores = CandidateScores(near, list(GRID[:5]), score_range=(0.0, 1.0))
    quantile = QuantileUtilities(distance, GRID[7], candidates=[0.1, 0.5, 1.0], quantile=0.9)
    return [curator.release(query, ExponentialMechanism.of(1.0)) for query in (scores, quantile)]


def fitted(kind, curator, **settings):
    return kind(budget=0.9, radius=2.0, dimension=2, random_state=0, **settings).fit(curator)


def gain(x, records):
    return float((records[:, 0].nan_to_num(0.0).clamp(0, 1).mean() * x).sum())


def kusner_search(curator):
    """The value on the neighbour lies within what the prior promises: the promise is the data's,
    and conditional.
    """
    terms = of(noise=1e-3, evaluations=6, kappa=0.99, delta=0.01, value_range=(-3.0, 3.0))
    search = KusnerSearch(gain, GRID, kernel=KERNEL, **terms)
    chosen = curator.release(search.best(), ExponentialMechanism.of(2.0))
    values = [
        curator.release(query, LaplaceMechanism(1.0))
        for query in (search.value(), search.last(amplitude=1.0, tau=1.0))
    ]
    return chosen, values, search.public_inputs()


def improvement(model):
    return LogExpectedImprovement(model, best_f=model.train_targets.max())


def kusner_by_improvement(curator, box):
    terms = of(noise=1e-3, evaluations=4, kappa=0.99, delta=0.01, value_range=(-3.0, 3.0))
    search = KusnerSearch(gain, GRID, kernel=KERNEL, acquisition=improvement, box=box, **terms)
    return curator.release(search.best(), ExponentialMechanism.of(2.0))


def regularised(curator, adaptive):
    return curator.release(best(50, adaptive=adaptive), LaplaceMechanism(1.0))


RUNS: dict[str, Any] = {
    "PrivateObjective": objective,
    "CellMeans": objective_of_cells,
    "DPGIBO": dpgibo,
    "DPGIBO paper": functools.partial(dpgibo, settings=GIBOSettings.paper()),
    "DPGIBO history": functools.partial(
        dpgibo, settings=dataclasses.replace(GIBOSettings.recommended(), history=True, radius=None)
    ),
    "choose_start": start,
    "AsynchronousBO": asynchronous,
    "AsynchronousBO as finished": functools.partial(asynchronous, ordered=False),
    "search_then_choose": searched_then_chosen,
    "GPUCB": ucb_choice,
    "CandidateScores, QuantileUtilities": queries,
    "DPGaussianMixture": functools.partial(fitted, DPGaussianMixture, n_components=2, max_iter=3),
    "DPGaussianMixture tied LLG": functools.partial(
        fitted,
        DPGaussianMixture,
        n_components=2,
        covariance_type="tied",
        noise="LLG",
        max_iter=2,
    ),
    "DPKMeans": functools.partial(fitted, DPKMeans, n_clusters=3, max_iter=2),
    "DPLloyd": functools.partial(fitted, DPLloyd, n_clusters=3, max_iter=2),
    "DPLloyd bounds": functools.partial(
        fitted, DPLloyd, n_clusters=3, max_iter=2, bounds=[(-1.0, 1.0), (0.0, 2.0)]
    ),
    "DPFactorAnalysis": functools.partial(fitted, DPFactorAnalysis, n_components=1),
    "DPEM": lambda curator: DPEM(
        lambda theta, rows: torch.tanh(rows - theta),
        1.0,
        lambda moments, noise: moments,
        start=torch.zeros(2, dtype=DOUBLE),
        size=2,
        max_iter=3,
        budget=0.9,
    ).fit(curator),
}


def replayed(run, records=POINTS, neighbour=OTHER, **settings):
    """The releases of a run, of which nothing else steers or shows anything."""
    return replay(
        lambda curator, _: public(run(curator)),
        records,
        neighbour,
        **settings,
        entropy=SeededEntropy(1),
    )


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")
def test_nothing_but_releases_steers_or_shows(name):
    assert replayed(RUNS[name], **(PURE if name == "GPUCB" else TERMS))


PEOPLE = people(50)
OTHER_PEOPLE = torch.cat([PEOPLE[:3], torch.tensor([[1.0, -1.0]], dtype=DOUBLE), PEOPLE[4:]])


@pytest.mark.parametrize(
    ("run", "tables", "releases"),
    [
        pytest.param(kusner_search, (POINTS, OTHER), 3, id="KusnerSearch"),
        pytest.param(
            functools.partial(kusner_by_improvement, box=torch.stack([GRID.amin(0), GRID.amax(0)])),
            (POINTS, OTHER),
            1,
            id="KusnerSearch in a box",
        ),
        pytest.param(
            functools.partial(regularised, adaptive=AdaptiveLipschitz(kernel(1.0), 1e-2, 3)),
            (PEOPLE, OTHER_PEOPLE),
            1,
            id="RegularisedBest adaptive",
        ),
    ],
)
def test_conditional_releases_too(run, tables, releases):
    assert len(replayed(run, *tables, **PURE, allow_conditional=True)) == releases


def two_tables():
    neighbour = rows_of(40)
    neighbour[5] += 0.7
    return [{"rows": X, "y": X[:, 0].sigmoid()} for X in (rows_of(40), neighbour)]


def test_rows_outcomes_and_the_modeler_between_them():
    """The modeler asks for rows by released rows and answers alone."""

    def run(private):
        table = RowTable((0.0, 0.0), 25.0, row_change=CHANGE)
        planned = plan_rows(private, table, L2LaplaceMechanism.of(2.0))
        released = release_rows(private, table, L2LaplaceMechanism.of(2.0))
        answers = Outcomes(private, lambda record: record["y"], value_range=(0.0, 1.0), budget=0.5)
        asking = Modeler(
            released.Z,
            kernel=noisy_inputs(squared_exponential(5.0), released.variance, dimension=2),
            noise=0.1,
        )
        for step in range(5):
            row = asking.ask()
            asking.tell(row, answers.value(row, request=f"{step}").value)
        found = search(asking, answers, steps=2)
        return planned, released, answers, asking.history, asking.best, found

    assert len(replayed(run, *two_tables(), **terms())) == 8


PRIVATE_NUMBER: dict[str, Any] = {**TERMS, "adjacency": Adjacency.ADD_OR_REMOVE_ONE}
BY_DIVISOR: dict[str, Any] = {
    "objective": functools.partial(objective, divisor=100.0),
    "gibo": lambda curator: gradient_search(curator, divisor=100.0).run(),
    "start": start,
    "mixture": functools.partial(fitted, DPGaussianMixture, n_components=2, max_iter=2),
    "k-means": functools.partial(fitted, DPKMeans, n_clusters=2, max_iter=2),
    "lloyd": functools.partial(fitted, DPLloyd, n_clusters=2, max_iter=2),
    "factors": RUNS["DPFactorAnalysis"],
    "exponential family": RUNS["DPEM"],
}


@attack("A8")
@pytest.mark.parametrize("name", BY_DIVISOR)
@pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")
def test_one_unit_fewer_changes_the_exact_sum_alone(name):
    """Where the number of units is private: scale, grid, divisor, plan and statement stay; n is a
    power of two, or one above.
    """
    for n in (128, 129):
        assert replayed(
            lambda curator: (BY_DIVISOR[name](curator), curator.statement()),
            POINTS[:n],
            POINTS[: n - 1],
            **PRIVATE_NUMBER,
        )


@attack("A8")
def test_a_mean_over_a_private_number_is_refused():
    with pytest.raises(InputError, match="divisor"):
        replayed(lambda curator: curator.release(FIRST_MEAN, NOISE), **PRIVATE_NUMBER)


QUESTIONS = [
    (5, "a"),
    (1, "b"),
    (5, "a"),
    (5, "again"),
    (99, "beyond"),
    (2, "c"),
    (-1, "d"),
    (5, ""),
]


def test_what_the_server_says_follows_from_releases_alone():
    """Status, headers and body of every reply: answers, a repeated name, an exhausted row, a row
    that is none, the statement.
    """

    def run(curator, _):
        asked = Outcomes(curator, lambda record: record["y"], value_range=(0.0, 1.0), budget=0.5)
        with served(serve(asked, token=TOKEN)) as web:
            web.headers["Authorization"] = f"Bearer {TOKEN}"
            heard = [
                web.post("/value", json={"row": row, "request": name}) for row, name in QUESTIONS
            ]
            heard += [web.get("/statement"), web.get("/nowhere")]
        return [
            (reply.status_code, sorted(set(reply.headers) - {"date"}), _HASH.sub("#", reply.text))
            for reply in heard
        ]

    assert len(replay(run, *two_tables(), **terms(), entropy=SeededEntropy(1))) == 3
