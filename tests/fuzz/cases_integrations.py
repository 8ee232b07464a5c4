"""Good calls: scikit-learn's search, Optuna, Ax, Opacus, the curator over HTTP and its modeler."""

import functools
import importlib
import pathlib
import tempfile
import warnings
from typing import Any

import optuna
import scipy.stats
import torch
from sklearn.datasets import make_classification
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from torch.utils.data import TensorDataset

import dpbo
import dpbo.integrations.ax  # first: it loads Ax without the warnings of Ax's own imports
from dpbo import integrations
from dpbo.integrations import opacus
from dpbo.integrations.optuna import NoiseAwareSampler, TrialObjective, recommended_of
from tests.fuzz import world as w
from tests.fuzz.case import Case, of
from tests.fuzz.cases_algorithms import _modeler, _outcomes
from tests.fuzz.cases_search import SCHEDULE
from tests.fuzz.cases_values import LAW

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have another client
    from starlette.testclient import TestClient

optuna.logging.set_verbosity(optuna.logging.ERROR)
TOKEN = "a token of enough letters"
Client = importlib.import_module("ax.api.client").Client
ROWS, LABELS = make_classification(120, 4, random_state=0)
SEARCH = {
    "estimator": DecisionTreeClassifier(random_state=0),
    "param_distributions": {"max_depth": scipy.stats.randint(1, 5)},
    "budget": w.BUDGET,
    "n_iter": 2,
    "scoring": "accuracy",
    "score_range": None,
    "strategy": "bo",
    "strategy_options": None,
    "final_share": 0.1,
    "n_initial": 2,
    "test_size": None,
    "unit": "record",
    "adjacency": "replace-one",
    "divisor": None,
    "error_score": "raise",
    "dataset": None,
    "ledger": None,
    "name": "search",
    "random_state": 0,
    "cv": None,
    "refit": False,
}
SPLIT = {"X_train": ROWS[:60], "y_train": LABELS[:60], "X_val": ROWS[60:], "y_val": LABELS[60:], "groups": None, "groups_train": None}


def _searched(**settings):
    return dpbo.DPSearch(**settings).fit(**SPLIT)


def _study():
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0), pruner=optuna.pruners.NopPruner())


@functools.cache
def _told():
    study = _study()
    study.optimize(TrialObjective(w.objective(evaluations=3), w.SPACE), n_trials=3)
    return study


def _loop(**changed):
    return integrations.ax.ClientObjective(w.objective(), w.SPACE, Client(random_seed=1), **changed)


OPTUNA = {
    "dpbo.integrations.optuna.NoiseAwareSampler": of(NoiseAwareSampler, space=w.SPACE, seed=0, initial=2),
    "dpbo.integrations.optuna.TrialObjective": Case(lambda: TrialObjective, lambda: {"objective": w.objective(), "space": w.SPACE}),
    "dpbo.integrations.optuna.TrialObjective.__call__": Case(
        lambda: TrialObjective(w.objective(), w.SPACE), lambda: {"trial": _study().ask()}, raises=(optuna.TrialPruned,)
    ),
    "dpbo.integrations.optuna.TrialObjective.resume": Case(
        lambda: TrialObjective(w.objective(), w.SPACE).resume, lambda: {"study": _study()}
    ),
    "dpbo.integrations.optuna.recommended_of": Case(lambda: recommended_of, lambda: {"study": _told(), "space": w.SPACE}, dear=0.5),
    "dpbo.integrations.recommended": of(integrations.recommended, dear=0.5, space=w.SPACE, **w.history()),
}
AX = {
    "dpbo.integrations.ax.ClientObjective": Case(
        lambda: integrations.ax.ClientObjective,
        lambda: {"objective": w.objective(), "space": w.SPACE, "client": Client(random_seed=1), "strategy": None},
        dear=0.2,
    ),
    "dpbo.integrations.ax.ClientObjective.next": Case(lambda: _loop().next, lambda: {"at_most": 1}, dear=0.3),
    "dpbo.integrations.ax.ClientObjective.point": Case(lambda: _asked().point, lambda: {"index": 0}, dear=0.3),
    "dpbo.integrations.ax.ClientObjective.evaluate": Case(lambda: _asked().evaluate, lambda: {"index": 0, "executor": None}, dear=0.3),
    "dpbo.integrations.ax.ClientObjective.complete": Case(lambda: _completed, lambda: {"index": 0, "handle": "own"}, dear=0.3),
    "dpbo.integrations.ax.ClientObjective.run": Case(
        lambda: _loop().run, lambda: {"trials": 1, "executor": None, "workers": 1, "ordered": True, "catch": ()}, dear=0.3
    ),
    "dpbo.integrations.ax.gp_ucb": of(integrations.ax.gp_ucb, schedule=SCHEDULE, initial=2, seed=0),
    "dpbo.integrations.ax.gradient_information": of(
        integrations.ax.gradient_information, space=w.SPACE, at={"a": 0.5, "b": 1.0}, initial=2, seed=0
    ),
    "dpbo.integrations.ax.noisy_improvement": of(integrations.ax.noisy_improvement, initial=2, seed=0),
}


def _asked():
    loop = _loop()
    loop.next()
    return loop


def _completed(index, handle):
    loop = _asked()
    return loop.complete(index, loop.evaluate(0) if isinstance(handle, str) and handle == "own" else handle)


TERMS = opacus.DPSGD(noise_multiplier=1.0, epochs=1, batches=2, batch_size=20)
DATA = TensorDataset(torch.rand(40, 2), torch.zeros(40).long())
_PLAN: dict[str, Any] = {
    "budget": dpbo.Budget(6.0, 1e-5),
    "terms": TERMS,
    "runs": 2,
    "validation": 40,
    "score_range": (0.0, 1.0),
    "adjacency": dpbo.Adjacency.ADD_OR_REMOVE_ONE,
    "law": LAW,
    "spread": (0.9, 1.2),
}


@functools.cache
def _plans():
    return opacus.plan_tuning(**_PLAN)


def _fit(parameters, session):
    net = nn.Linear(2, 2)
    net, optimizer, loader = session.make_private(net, torch.optim.SGD(net.parameters(), lr=0.1), max_grad_norm=1.0)
    for rows, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(rows), labels).backward()
        optimizer.step()
    return net


def _right(net, rows):
    return (net(rows[0]).argmax(1) == rows[1]).detach()


def _private(**arguments):
    net = nn.Linear(2, 2)
    parts = {"module": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), **arguments}
    return opacus.Session(DATA, TERMS).make_private(**parts)


OPACUS = {
    "dpbo.integrations.opacus.DPSGD": of(opacus.DPSGD, noise_multiplier=1.0, epochs=1, batches=2, batch_size=20),
    "dpbo.integrations.opacus.DPSGD.event": of(TERMS.event, relation=dpbo.Adjacency.ADD_OR_REMOVE_ONE),
    "dpbo.integrations.opacus.Session": of(opacus.Session, records=DATA, terms=TERMS),
    "dpbo.integrations.opacus.Session.make_private": Case(lambda: _private, lambda: {"max_grad_norm": 1.0}),
    "dpbo.integrations.opacus.released": Case(lambda: opacus.released, lambda: {"module": nn.Linear(2, 2)}),
    "dpbo.integrations.opacus.plan_tuning": of(opacus.plan_tuning, dear=5, **_PLAN),
    "dpbo.integrations.opacus.tune": Case(
        lambda: opacus.tune,
        lambda: {
            "fit": _fit,
            "score": _right,
            "training": DATA,
            "validation": (torch.rand(40, 2), torch.zeros(40).long()),
            "space": w.SPACE,
            "budget": dpbo.Budget(6.0, 1e-5),
            "plan": _plans()["once"],
            "divisor": 40,
            "score_range": (0.0, 1.0),
            "adjacency": dpbo.Adjacency.ADD_OR_REMOVE_ONE,
            "parameters": {"a": 0.5, "b": 1.0},
            "initial": 2,
            "seed": 0,
            "folder": None,
            "dataset": None,
            "ledger": None,
        },
        dear=2,
    ),
}


class Replying(integrations.RemoteCurator):
    """The real client over the real server, in one process."""

    def __init__(self, outcomes):
        super().__init__("http://curator", TOKEN)
        self._client.close()
        self._client = TestClient(
            integrations.application(outcomes, token=TOKEN, every=0.001), headers={"Authorization": f"Bearer {TOKEN}"}
        )


def _journal():
    return pathlib.Path(tempfile.mkdtemp()) / "journal.jsonl"


SERVER = {
    "dpbo.integrations.RemoteCurator": of(integrations.RemoteCurator, url="http://127.0.0.1:1", token=TOKEN, timeout=1.0),
    "dpbo.integrations.RemoteCurator.value": Case(lambda: Replying(_outcomes()).value, lambda: {"row": 1, "request": "first"}),
    "dpbo.integrations.search": Case(
        lambda: integrations.search,
        lambda: {"modeler": _modeler(), "curator": Replying(_outcomes()), "steps": 2, "journal": _journal(), "minimise": False},
        dear=0.3,
    ),
    "dpbo.integrations.application": Case(
        lambda: integrations.application, lambda: {"outcomes": _outcomes(), "token": TOKEN, "every": 0.1}
    ),
}
SKLEARN = {
    "dpbo.DPSearch": of(_searched, dear=0.3, **SEARCH),
    "dpbo.DPSearch.fit": Case(lambda: dpbo.DPSearch(**SEARCH).fit, lambda: dict(SPLIT), dear=0.3, foreign=("X_train", "y_train")),
}
CASES = {**OPTUNA, **AX, **OPACUS, **SERVER, **SKLEARN}
