"""Tune a model that is trained with DP-SGD: training and validation records in one guarantee, one ledger, one call.

    plans = plan_tuning(Budget(6.0, 1e-5), config, runs=10, validation=350)
    found = tune(fit, right, training=train_set, validation=(X_val, y_val), space=space, budget=Budget(6.0, 1e-5), plan=plans["selection"])
    found.parameters, found.model, found.score, found.statement

The strategies are those of `plan_tuning`. The models of a "search" are paid for, so the recommended one is returned without another run.

A search is resumed from its ledger. A run that was killed has been charged, and is not run again; its model is kept in `folder`, or lives
as long as the process. A selection that was killed is charged and lost, because what it drew must stay hidden and must not be drawn twice.
"""

from __future__ import annotations

import copy
import dataclasses
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
from dpbo.errors import InputError
from dpbo.fingerprint import describe_space
from dpbo.integrations.opacus.engine import Fit, Session
from dpbo.integrations.opacus.planning import TuningPlan
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
    """The result of `tune`; all of it may be published.

    Attributes:
        parameters: of the recommended run; None if a selection released nothing.
        model: the model that `fit` returned, without Opacus (`strip_opacus`), protected by DP-SGD; None if another process trained it
            and no folder kept it.
        score: the model's noised validation score. A search gives its posterior mean, which is a little too high: the best of several.
        statement: the guarantee for both roles.
        X, Y: all runs of a search, points `t x d` and noised scores `t x 1`; else empty.
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
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    parameters: dict[str, Any] | None = None,
    initial: int = 4,
    seed: int = 0,
    folder: str | pathlib.Path | None = None,
    dataset: str | None = None,
    ledger: str | pathlib.Path | None = None,
) -> TunedModel:
    """Tune by a plan of `plan_tuning`. A search shows its progress; a selection shows none, because its runs are hidden.

    Args:
        fit: `fit(parameters, session) -> model`; takes training records from the session only, and leaves none in an attribute of the model
            (`strip_opacus` is applied to it).
        score: `score(model, records)`, one number a validation record, maximised. It gets a copy of the model, which is thrown away.
        training, validation: disjoint records. Under REPLACE_ONE any split that does not look at the records, such as one by position.
            Under ADD_OR_REMOVE_ONE a record's role must follow from the record itself, such as a keyed hash of its id: in a split by
            position, removing one record changes the role of others. The statement lists that as the assumption `roles-by-record`.
        divisor: the `validation` of the plan, under ADD_OR_REMOVE_ONE.
        budget, adjacency, score_range: as in `plan_tuning`.
        parameters: for "once", inside the space.
        initial: number of Sobol points before a search's model proposes; at least 2.
        seed: of the search's points; never of noise, samples, or a selection's proposals.
        folder: where a search keeps its models, which are released.
        dataset, ledger: as in `Curator`.

    Raises:
        InputError: an argument outside its range, or a plan that the budget does not hold. BudgetExceeded, LedgerMismatch, ReleaseLost: as
        in private_selection and PrivateObjective. A run in which `fit` fails, or returns what `strip_opacus` refuses, is paid for and has
        the worst score.
    """
    if not hasattr(training, "__getitem__") or not hasattr(training, "__len__"):
        raise InputError("training", type(training).__name__, "a torch Dataset with a length", "Records are sampled by position.")
    if (plan.strategy == "once") != (parameters is not None):
        raise InputError("parameters", parameters, "given for the plan 'once', and only there")
    adjacency = Adjacency.of(adjacency)
    fixed = None if parameters is None else space.encode(parameters)
    curator = Curator(
        validation, unit=PrivacyUnit("record"), adjacency=adjacency, budget=budget, accounting=Planned(plan.events), dataset=dataset,
        ledger=ledger,
    )  # fmt: skip
    curator.ledger.note("assume", "dpsgd-attested")
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        curator.ledger.note("assume", "roles-by-record")

    def train(given: dict[str, Any]) -> nn.Module:
        return strip_opacus(fit(given, Session(training, plan.config)))

    if plan.run_count is not None:
        settings = {} if divisor is None else {"divisor": divisor}
        noised = NoisedScore(_CopyScore(score), score_range, GaussianMechanism(plan.score_multiplier), settings)
        proposals = None if plan.spread == (1.0, 1.0) else DensityRatioProposals(space, spread=plan.spread, noise_std=plan.score_std)
        best = private_selection(
            curator, train, space=space, run_count=plan.run_count,
            base={_TRAINING: [plan.config.event(adjacency)]}, score=noised, adaptive=proposals, name=_SELECTION,
        )  # fmt: skip
        empty = torch.empty(0, len(space.names), dtype=torch.float64)
        return TunedModel(best.parameters, best.output, best.score, curator.statement(), empty, empty[:, :0])
    models = _Models(curator, train, space, plan, folder)
    objective = PrivateObjective(
        curator, _CopyScore(score), score_range=score_range, evaluations=plan.usually, fit=models.fit, name=_SCORES, divisor=divisor,
        role="validation", terms={"space": describe_space(space.specs)},
    )  # fmt: skip
    for x in models.unscored(objective.history()[0])[: objective.remaining]:
        objective(x.unsqueeze(0))
    design = space.sample(max(initial, 2), seed=seed) if fixed is None else fixed.unsqueeze(0)
    while objective.remaining and models.remaining:
        begun = objective.evaluations - models.remaining  # includes runs that were killed: their points are not tried again
        X, Y, Yvar = objective.history()
        x = design[begun] if begun < len(design) or len(X) < 2 else suggest(space, X, Y, Yvar, seed=1000 * seed + begun)[0]
        objective(x.unsqueeze(0))
    X, Y, Yvar = objective.history()
    means = posterior_mean(space, X, Y, Yvar)
    best_run = int(means.argmax())
    return TunedModel(space.decode(X[best_run]), models.kept(X[best_run]), float(means[best_run]), curator.statement(), X, Y)


class _Models:
    """Trains the runs of a search: charges each run before it trains, and keeps its model."""

    def __init__(self, curator: Curator, train: Callable[[dict[str, Any]], nn.Module], space: Space, plan: TuningPlan, folder: Any) -> None:
        self._curator, self._train, self._space = curator, train, space
        self._event, self._runs = plan.events[0].repeated(1), plan.usually
        self._folder = None if folder is None else pathlib.Path(folder)
        self._in_memory: dict[tuple[float, ...], nn.Module] = {}
        settings = {name: value for name, value in dataclasses.asdict(plan.config).items() if name != "noise_multiplier"}
        terms = {"role": _TRAINING, "attested": "Poisson", "space": describe_space(space.specs), **settings}
        curator.reserve(_TRAINING, self._event, slots=plan.usually, terms=terms)

    @property
    def remaining(self) -> int:
        """Number of runs not yet begun."""
        return self._runs - self._curator.ledger.head().used.get(_TRAINING, 0)

    def fit(self, x: torch.Tensor) -> nn.Module | None:
        """The model at x: a kept one, else a new run. None if training fails: whether it fails may depend on the records."""
        if (kept := self.kept(x)) is not None:
            return kept
        details = {"attested": "Poisson", "x": x.tolist(), "model": uuid.uuid4().hex}
        self._curator.ledger.charge(_TRAINING, self._event, details, _TRAINING)
        try:
            model = self._train(self._space.decode(x))
        except Exception:
            return None
        self._in_memory[_key(x)] = model
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._files(x)[-1]
            unfinished = file.with_suffix(f".{os.getpid()}")
            torch.save(model, unfinished)
            unfinished.replace(file)  # whole or not at all
        return model

    def unscored(self, X: torch.Tensor) -> list[torch.Tensor]:
        """Points of runs that were killed before their score, and whose models are kept."""
        scored = {_key(x) for x in X}
        begun = [torch.tensor(record.body["x"], dtype=torch.float64) for record in self._curator.ledger.charges(_TRAINING)]
        return [x for x in begun if _key(x) not in scored and self.kept(x) is not None]

    def kept(self, x: torch.Tensor) -> nn.Module | None:
        """The model at x, from memory or the folder."""
        if _key(x) in self._in_memory or self._folder is None:
            return self._in_memory.get(_key(x))
        files = [path for path in self._files(x) if path.exists()]
        return strip_opacus(torch.load(files[-1], weights_only=False)) if files else None  # the caller's own folder, perhaps an old one

    def _files(self, x: torch.Tensor) -> list[pathlib.Path]:
        """Files of the runs at x that this ledger has charged. Names are random, because a folder may hold other studies' models."""
        assert self._folder is not None
        charged = [record.body for record in self._curator.ledger.charges(_TRAINING)]
        return [self._folder / f"{body['model']}.pt" for body in charged if body["x"] == x.tolist()]


@dataclass(frozen=True)
class _CopyScore:
    """The score of a copy of the model, because a forward pass may leave records on it. NaN, the worst score, if training failed."""

    score: Score

    def __call__(self, model: Any, records: Any) -> Any:
        return torch.full((count_records(records),), math.nan) if model is None else self.score(copy.deepcopy(model), records)


def _key(x: torch.Tensor) -> tuple[float, ...]:
    return tuple(x.tolist())
