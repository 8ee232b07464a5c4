"""Good calls: published algorithms, estimators, instruments."""

import functools
import pathlib
import tempfile
from typing import Any

import torch

import dpbo
from dpbo import algorithms
from dpbo.accounting import GDPFilter
from dpbo.algorithms import kusner, outsourced
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
        lambda: {
            "objective": w.objective(),
            "space": w.SPACE,
            "workers": 2,
            "initial": 2,
            "ordered": True,
            "skip": (),
            "propose": None,
            "seed": 0,
        },
    ),
    "dpbo.algorithms.AsynchronousBO.run": Case(
        lambda: algorithms.AsynchronousBO(w.objective(evaluations=2), w.SPACE, workers=1, initial=2).run,
        lambda: {"executor": POOL},
        dear=0.5,
        foreign=("executor",),  # a callable of the user's own may raise what it likes
    ),
    "dpbo.algorithms.search_then_choose": Case(
        lambda: algorithms.search_then_choose,
        lambda: {
            "curator": w.curator(),
            "score": w.score,
            "candidates": w.grid(12),
            "score_range": (0.0, 1.0),
            "evaluations": 3,
            "finalists": 2,
            "fit": None,
            "initial": 2,
            "beta": 7.0,
            "search_share": 0.8,
            "budget_share": 0.5,
            "seed": 0,
            "name": "f",
        },
        dear=1,
    ),
    "dpbo.algorithms.Adaptive": of(
        algorithms.Adaptive,
        space=w.SPACE,
        spread=(0.5, 2.0),
        noise_std=0.1,
        candidates=16,
        interest=algorithms.Adaptive.interest,
        sharpness=2.0,
    ),
    "dpbo.algorithms.NoisedScore": of(
        algorithms.NoisedScore, score=w.score, score_range=(0.0, 1.0), mechanism=GaussianMechanism(20.0), settings={"divisor": 40.0}
    ),
    "dpbo.algorithms.private_selection": Case(
        lambda: algorithms.private_selection,
        lambda: {
            "curator": w.selecting(),
            "train": _trained,
            "space": w.SPACE,
            "law": LAW,
            "base": (),
            "score": _scored(),
            "adaptive": None,
            "threshold": None,
            "pad_to": None,
            "name": "selection",
        },
        dear=0.5,
    ),
    "dpbo.algorithms.selection_event": Case(
        lambda: algorithms.selection_event,
        lambda: {"curator": w.selecting(), "law": LAW, "base": (w.EVENT,), "score": _scored(), "spread": (1.0, 1.0)},
    ),
    "dpbo.algorithms.kusner.KusnerSearch": of(
        kusner.KusnerSearch,
        gain=lambda x, rows: 0.1,
        candidates=w.grid(),
        kernel=w.kernel(),
        noise=1e-2,
        observations=3,
        kappa=0.99,
        delta=0.01,
        value_range=(-3.0, 3.0),
        constants="corrected",
    ),
    "dpbo.algorithms.kusner.KusnerSearch.last": Case(lambda: _kusner().last, lambda: {"amplitude": 0.1, "tau": 1.0}),
    "dpbo.algorithms.kusner.Adaptive": of(kusner.Adaptive, kernel=w.kernel(), noise=1e-2, observations=3),
    "dpbo.algorithms.kusner.RegularisedBest": of(
        kusner.RegularisedBest,
        loss=w.loss,
        fit=lambda _: X,
        grid=(0.5, 1.0),
        lipschitz=1.0,
        bound=1.0,
        at_zero=0.5,
        records=40,
        gap=0.0,
        adaptive=kusner.Adaptive(w.kernel(), 1e-2, 2),
        constants="corrected",
    ),
}


def _kusner():
    terms: dict[str, Any] = {"noise": 1e-2, "observations": 3, "kappa": 0.99, "delta": 0.01, "value_range": (-3.0, 3.0)}
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
        lambda: {
            "curator": w.curator(role="candidate"),
            "outcome": w.first_column,
            "value_range": (0.0, 1.0),
            "budget_share": 0.5,
            "declassified": None,
            "repeats": 1,
            "limit": 5,
            "worst": "lower",
            "terms": {"a": 1},
            "name": "outcomes",
        },
    ),
    "dpbo.algorithms.outsourced.Outcomes.value": Case(lambda: _outcomes().value, lambda: {"row": 1, "request": "first"}),
    "dpbo.algorithms.outsourced.release_rows": Case(
        lambda: outsourced.release_rows,
        lambda: {"curator": w.curator(), "table": w.table(), "mechanism": GaussianMechanism(30.0), "name": "rows", "terms": {"a": 1}},
    ),
    "dpbo.algorithms.outsourced.Modeler": of(
        outsourced.Modeler,
        Z=w.grid(),
        kernel=w.kernel(),
        noise=1e-2,
        schedule=SCHEDULE,
        acquisition=None,
        repeats=False,
        mean=0.0,
        history=((1, 0.5),),
        chunk=64,
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
        outsourced.row_noises,
        dear=0.1,
        dimension=4,
        budget=w.BUDGET,
        moves=1.0,
        accounting=GDPFilter(),
        share=0.5,
        projections=(2,),
        lengthscale=1.0,
        seed=0,
    ),
    "dpbo.algorithms.outsourced.RowNoise.error": Case(lambda: _row_noise().error, lambda: {"lengthscale": 1.0}),
    "dpbo.algorithms.outsourced.RowNoise.kept": Case(lambda: _row_noise().kept, lambda: {"lengthscale": 1.0}),
    "dpbo.algorithms.outsourced.read_release": Case(lambda: outsourced.read_release, lambda: {"folder": _folder()}),
    "dpbo.algorithms.outsourced.write_release": Case(
        lambda: outsourced.write_release,
        lambda: {"folder": pathlib.Path(_folder()), "rows": _released()[0], "facts": {"a": 1}, "statement": _released()[1]},
    ),
}


def _row_noise():
    return outsourced.row_noises(4, budget=w.BUDGET, moves=1.0)[0]


CASES = {**GIBO, **SEARCHES, **OUTSOURCED}
