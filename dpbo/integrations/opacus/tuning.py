"""Tune a model that is trained with DP-SGD: training and validation records in one guarantee, one ledger, one call.

    plans = plan_tuning(Budget(6.0, 1e-5), terms, runs=10, validation=350)
    found = tune(fit, right, training=train_set, validation=(X_val, y_val), space=space, budget=Budget(6.0, 1e-5), plan=plans["selection"])
    found.parameters, found.model, found.score, found.statement

"selection" keeps every run but the best hidden, and "hypo" lets hidden runs look at earlier ones, within bounds. "search" releases each
run's score and proposes by them (`suggest`); its models are paid for, so the recommended one is handed out without another run. "once"
is a search of one run, at parameters fixed beforehand.

A search is resumed from its ledger: a run that was killed has cost a training record its steps, and is not run again; with `folder` its
models are kept there too, or they live as long as the process. A selection that was killed is charged and lost, for what it drew must stay
hidden and must not be drawn twice.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import os
import pathlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from dpbo.accounting.planned import Planned
from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.algorithms.hidden_runs import DensityRatioProposals
from dpbo.algorithms.selection import NoisedScore, private_selection
from dpbo.curator.curator import Curator
from dpbo.curator.records import count_records
from dpbo.describing import described_space
from dpbo.errors import InputError
from dpbo.integrations.opacus.config import DPSGDConfig
from dpbo.integrations.opacus.planning import TuningPlan
from dpbo.integrations.opacus.session import Fit, Session
from dpbo.integrations.opacus.strip import strip_opacus
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.objective import PrivateObjective
from dpbo.privacy import Adjacency, Budget, PrivacyUnit
from dpbo.queries.score_evaluation import Score
from dpbo.space import Space
from dpbo.statement import Statement
from dpbo.validation import checked

_TRAINING, _SCORES, _SELECTION = "training", "scores", "selection"


@dataclass(frozen=True, eq=False)
class TunedModel:
    """What was found; all of it may be published.

    Attributes:
        parameters: of the recommended run; None where a selection released nothing.
        model: what `strip_opacus` leaves of what `fit` returned, a module without Opacus, protected by DP-SGD; None where another process
            trained it and no folder kept it.
        score: its noised validation score; of a search the posterior mean, which is a little too high, being the best of several.
        statement: what is guaranteed, for both roles.
        X, Y: of a search, all runs: points `t x d` and noised scores `t x 1`; else empty.
    """

    parameters: dict[str, Any] | None
    model: nn.Module | None = field(repr=False)
    score: float | None
    statement: Statement = field(repr=False)
    X: torch.Tensor = field(repr=False)
    Y: torch.Tensor = field(repr=False)


@checked
def tune(
    fit: Fit,
    score: Score,
    *,
    training: Dataset[Any],
    validation: Any,
    space: Space,
    budget: Budget,
    plan: TuningPlan,
    divisor: float | None = None,
    score_range: tuple[float, float] = (0.0, 1.0),
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    parameters: dict[str, Any] | None = None,
    initial: int = 4,
    seed: int = 0,
    folder: str | pathlib.Path | None = None,
    dataset: str | None = None,
    ledger: str | None = None,
) -> TunedModel:
    """Spend a plan of `plan_tuning`.

    Args:
        fit: `fit(parameters, session) -> model`; takes the training records from the session alone, and leaves none in an attribute of the
            model: see `strip_opacus`, which is applied to it.
        score: `score(model, records)`, one number a validation record, maximised. It gets a copy of the model, which is thrown away.
        training, validation: disjoint records. Under REPLACE_ONE any split that does not look at them, such as one by place. Under
            ADD_OR_REMOVE_ONE a record's role must follow from the record itself, such as a keyed hash of its id: in a split by place,
            removing one record moves others across. The statement names that as the assumption `roles-by-record`.
        divisor: the `validation` of the plan, under ADD_OR_REMOVE_ONE.
        budget, adjacency, score_range: as the plan was made for.
        parameters: for "once", inside the space.
        initial: Sobol points of a search before its model is asked; 2 or more.
        seed: of the search's points; never of noise, samples, or a selection's proposals.
        folder: where a search keeps its models, which are released.
        dataset, ledger: as in `Curator`.

    Raises:
        InputError: an argument outside its range, or a plan that the budget does not hold. BudgetExceeded, LedgerMismatch, ReleaseLost: as
        of private_selection and PrivateObjective. A run in which `fit` fails, or gives what `strip_opacus` refuses, is paid for and has the
        worst score.
    """
    _require(training, plan, parameters)
    fixed = None if parameters is None else space.encode(parameters)
    curator = Curator(
        validation, unit=PrivacyUnit("record"), adjacency=adjacency, budget=budget, accounting=Planned(plan.events), dataset=dataset,
        ledger=ledger,
    )  # fmt: skip
    curator.ledger.note("assume", "dpsgd-attested")
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        curator.ledger.note("assume", "roles-by-record")

    def trained(given: dict[str, Any]) -> nn.Module:
        return strip_opacus(fit(given, Session(training, plan.terms)))

    if plan.law is not None:
        settings = {} if divisor is None else {"divisor": divisor}
        law = GaussianMechanism(plan.score_multiplier)
        best = private_selection(
            curator, trained, space=space, law=plan.law, base={_TRAINING: [plan.terms.event(adjacency)]},
            score=NoisedScore(_Scored(score), score_range, law, settings), adaptive=_adaptive(space, plan), name=_SELECTION,
        )  # fmt: skip
        empty = torch.empty(0, len(space.names), dtype=torch.float64)
        return TunedModel(best.parameters, best.output, best.score, curator.statement(), empty, empty[:, :0])
    models = _Models(curator, trained, space, plan, folder)
    objective = PrivateObjective(
        curator,
        _Scored(score),
        score_range=score_range,
        evaluations=plan.usually,
        fit=models.fit,
        name=_SCORES,
        divisor=divisor,
        role="validation",
        terms={"space": described_space(space.specs)},
    )
    _searched(objective, models, space, fixed, initial, seed)
    X, Y, Yvar = objective.history()
    means = posterior_mean(space, X, Y, Yvar)
    place = int(means.argmax())
    return TunedModel(space.decode(X[place]), models.kept(X[place]), float(means[place]), curator.statement(), X, Y)


def _adaptive(space: Space, plan: TuningPlan) -> DensityRatioProposals | None:
    return None if plan.spread == (1.0, 1.0) else DensityRatioProposals(space, spread=plan.spread, noise_std=plan.score_std)


class _Models:
    """Trains and pays for it, a run's steps at a time, before they are taken; keeps what came out."""

    def __init__(self, curator: Curator, train: Callable[[dict[str, Any]], nn.Module], space: Space, plan: TuningPlan, folder: Any) -> None:
        self._curator, self._train, self._space = curator, train, space
        self._event = plan.events[0].repeated(1)
        self._folder = None if folder is None else pathlib.Path(folder)
        self._here: dict[str, nn.Module] = {}
        terms = {"role": _TRAINING, "attested": "Poisson", "space": described_space(space.specs), **_stated(plan.terms)}
        curator.reserve(_TRAINING, self._event, slots=plan.usually, terms=terms)
        self._runs = plan.usually

    @property
    def remaining(self) -> int:
        """Runs not yet begun."""
        return self._runs - self._curator.ledger.head().used.get(_TRAINING, 0)

    def fit(self, x: torch.Tensor) -> nn.Module | None:
        """A model at x: one that was kept, else a new run. None where that fails: why, and so whether, may depend on the records."""
        kept = self.kept(x)
        if kept is not None:
            return kept
        paid = {"attested": "Poisson", "x": x.tolist(), "model": uuid.uuid4().hex}
        self._curator.ledger.charge(_TRAINING, self._event, paid, _TRAINING)
        try:
            model = self._train(self._space.decode(x))
        except Exception:
            return None
        self._here[_key(x)] = model
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            beside = self._path(x).with_suffix(f".{os.getpid()}")
            torch.save(model, beside)
            beside.replace(self._path(x))  # whole or not at all
        return model

    def unscored(self, X: torch.Tensor) -> list[torch.Tensor]:
        """Points whose models are kept, of runs that were killed before their score."""
        scored = {_key(x) for x in X}
        begun = [torch.tensor(r.body["x"], dtype=torch.float64) for r in self._curator.ledger.charges(_TRAINING)]
        return [x for x in begun if _key(x) not in scored and self.kept(x) is not None]

    def kept(self, x: torch.Tensor) -> nn.Module | None:
        """Of this point, from memory or the folder; released, as everything that DP-SGD trains."""
        if _key(x) in self._here or self._folder is None:
            return self._here.get(_key(x))
        files = [path for path in self._files(x) if path.exists()]
        return strip_opacus(torch.load(files[-1], weights_only=False)) if files else None  # of the caller's own folder, perhaps an old one

    def _path(self, x: torch.Tensor) -> pathlib.Path:
        """Of the newest run at x."""
        return self._files(x)[-1]

    def _files(self, x: torch.Tensor) -> list[pathlib.Path]:
        """Of the runs at x that this ledger has paid for, each under a name that no other run has: a folder may hold other studies'."""
        assert self._folder is not None
        paid = [record.body for record in self._curator.ledger.charges(_TRAINING)]
        return [self._folder / f"{body['model']}.pt" for body in paid if body["x"] == x.tolist()]


def _searched(objective: PrivateObjective, models: _Models, space: Space, fixed: torch.Tensor | None, initial: int, seed: int) -> None:
    for x in models.unscored(objective.history()[0])[: objective.remaining]:
        objective(x.unsqueeze(0))
    design = space.sample(max(initial, 2), seed=seed) if fixed is None else fixed.unsqueeze(0)
    while objective.remaining and models.remaining:
        begun = objective.evaluations - models.remaining  # also runs that were killed: their points are not tried again
        X, Y, Yvar = objective.history()
        x = design[begun] if begun < len(design) or len(X) < 2 else suggest(space, X, Y, Yvar, seed=1000 * seed + begun)[0]
        objective(x.unsqueeze(0))


@dataclass(frozen=True)
class _Scored:
    """The score of a copy, for a forward pass may leave records on it; NaN, the worst, for every record where training failed."""

    score: Score

    def __call__(self, model: Any, records: Any) -> Any:
        return torch.full((count_records(records),), math.nan) if model is None else self.score(copy.deepcopy(model), records)


def _require(training: Any, plan: Any, parameters: dict[str, Any] | None) -> None:
    if not hasattr(training, "__getitem__") or not hasattr(training, "__len__"):
        raise InputError("training", type(training).__name__, "a torch Dataset with a length", "Opacus samples records by their place.")
    if not isinstance(plan, TuningPlan):
        raise InputError("plan", type(plan).__name__, "one of plan_tuning's", "For example plans['selection'].")
    if (plan.strategy == "once") != (parameters is not None):
        raise InputError("parameters", parameters, "given for the plan 'once', and only there")


def _stated(terms: DPSGDConfig) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(terms).items() if name != "noise_multiplier"}


def _key(x: torch.Tensor) -> str:
    return hashlib.sha256(repr(x.tolist()).encode()).hexdigest()[:16]
