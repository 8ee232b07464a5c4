"""Tune a model that is trained with DP-SGD: training and validation records in one guarantee, one
ledger, one call.

    plans = plan_tuning(Budget(6.0, 1e-5), config, runs=10, validation=350)
    found = tune(
        fit, right, training=train_set, validation=(X_val, y_val),
        space=space, plan=plans["selection"], folder="models",
    )
    found.parameters, found.model, found.score, found.statement

The strategies are those of `plan_tuning`. The models of a "search" are paid for, so the recommended
one is returned without another run.

Before anything is charged, `fit` and `score` are tried on stand-in records, because a failure on
the true ones is hidden: whether a run fails may depend on the records. `fit` takes all steps of
each configuration there, so one that stops early is refused. The trial reads the shapes and dtypes
of the records, of a dataset's first one, and its keys if it is a mapping; never their values. Where
these differ from record to record they tell of that record in the trial's errors: give `example=`.

A search is resumed from its ledger. A run that was killed has been charged, and is not run again. A
selection that was killed is charged and lost, because what it drew must stay hidden and must not be
drawn twice. Models are kept in `folder`; else they live as long as the process, and a paid model
that is lost is not trained again.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import io
import logging
import math
import os
import pathlib
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from dpbo.accounting.planned import Planned
from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.curator.curator import Curator
from dpbo.curator.evaluation import private_generators
from dpbo.dpsgd.engine import Fit, NoisedEngine, Session
from dpbo.dpsgd.gains import gain_test
from dpbo.dpsgd.hidden_runs import DensityRatioProposals
from dpbo.dpsgd.noise import NoisedOptimizer, PoissonSamples
from dpbo.dpsgd.planning import DPSGDConfig, TuningPlan, run_event, settings_of
from dpbo.dpsgd.rebuilding import map_parts
from dpbo.dpsgd.selection import (
    NoisedScore,
    private_selection,
    require_no_generator,
    terms_of,
)
from dpbo.entropy import system_entropy
from dpbo.errors import InputError, ReleaseLost, UsageError
from dpbo.events import RolesEvent
from dpbo.fingerprint import fingerprint
from dpbo.isolation import INTERRUPTS, isolate_generators
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.objective import PrivateObjective
from dpbo.privacy import PrivacyUnit
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.score_evaluation import Score
from dpbo.records.containers import count_records
from dpbo.records.protected_records import require_other_rows, require_unnamed
from dpbo.records.view import PrivateView
from dpbo.run_counts import FixedRuns, RunCountDistribution
from dpbo.space import Space
from dpbo.statement import Statement
from dpbo.validation import Risk, Within, checked, warn

_LOG = logging.getLogger(__name__)
_TRAINING = "training"
_SCORES = "scores"
_SELECTION = "selection"
# points beside the space's two ends, where all steps are taken
_TRIED_POINTS = 2
# of whole samples, and then records in each of the others
_TRIED_STEPS = 2
_TRIED_RECORDS = 2
# parameter of a space in which several configurations are searched
_CONFIGURATION = "configuration"
_RECORD = PrivacyUnit("record")
_REPEATED = (
    "this process has already trained or tuned on some of these protected records under another"
    " ledger, and two budgets add up to more than either statement says. Nothing was charged. Give"
    " every call the same dataset=; a ledger that is new then takes allow_repeated=True the first"
    " time. allow_repeated=True alone accepts the larger loss, and the statement will say so. Tell"
    " only those who may see the records."
)
_TWO_ROLES = (
    "A record of both roles pays for both, and the budget counts each role alone: take such records"
    " out of one of them."
)
_FROM_LOADER = (
    "It takes records from the session's loader alone: what it computes of others, such as their"
    " mean, is not noised. Give it public numbers, such as the number of columns, by themselves."
)
_DATASET = Within(
    "a torch Dataset with a length, because records are sampled by position",
    lambda records: hasattr(records, "__getitem__") and hasattr(records, "__len__"),
    "For tensors: TensorDataset(*training).",
)


@dataclass(frozen=True, eq=False)
class TunedModel:
    """The result of `tune`; all of it may be published.

    Attributes:
        parameters: of the recommended run; None if a selection released nothing. Of a plan with
            several configurations also epochs, batches and batch_size.
        model: the model that `fit` trained, rebuilt as by `Session.released`, in evaluation mode.
            None, with a warning, if its run failed on the private records, or another process
            trained it and no folder kept it.
        score: the model's noised validation score. A search gives its posterior mean, which is a
            little too high: the best of several. None if all runs of a selection failed.
        gain: the model's score exceeds that of the default's model by more than this, without their
            noise; with probability `risk` at most it does not (`dpbo.dpsgd.gains`). 0 where the
            default is recommended. None without `default`; with a warning, where the default's
            model failed or is not kept.
        score_std: standard deviation of the noise of one run's score. A search's posterior mean
            averages over runs and has less; a difference of two runs' scores has 1.4 times it.
        statement: the guarantee for both roles.
        X, Y: the runs that were paid for one by one, points `t x d` and noised scores `t x 1`:
            those of a search, and the default's beside hidden runs. Of a plan with several
            configurations X has one column more, the last, with the place in `plan.configs`:
            `space.decode(X[i, :-1])` and `plan.configs[int(X[i, -1])]`.
        file: where the model is kept, as `torch.save` writes it; None without `folder`.
    """

    parameters: dict[str, Any] | None
    model: nn.Module | None = field(repr=False)
    score: float | None
    score_std: float
    statement: Statement = field(repr=False)
    X: torch.Tensor = field(repr=False)
    Y: torch.Tensor = field(repr=False)
    file: pathlib.Path | None = None
    gain: float | None = None


@checked
def tune(
    fit: Fit,
    score: Score,
    *,
    training: Annotated[Dataset[Any], _DATASET],
    validation: Any,
    space: Space,
    plan: TuningPlan,
    parameters: dict[str, Any] | None = None,
    default: dict[str, Any] | None = None,
    risk: Risk = 0.1,
    initial: int = 4,
    seed: int = 0,
    folder: str | pathlib.Path | None = None,
    dataset: str | None = None,
    ledger: str | pathlib.Path | None = None,
    example: tuple[Any, Any] | None = None,
    try_first: bool = True,
    allow_repeated: bool = False,
) -> TunedModel:
    """Tune by a plan of `plan_tuning`. A search shows its progress; a selection shows none, because
    its runs are hidden.

    Args:
        fit: `fit(parameters, session)` takes training records from the session only (code that
            names the tensors or arrays of either role is refused), and returns the module that it
            gave to `session.make_private`, after all steps. What leaves is `session.released()`:
            the module as it was then, with the noised parameters. Nothing else that `fit` computes
            leaves. Where the plan has several configurations, the session has the drawn one, and
            `parameters` its epochs, batches and batch_size.
        score: `score(model, records)`, one number a validation record, maximised. It gets a copy of
            what may leave.
        training, validation: disjoint records; equal ones in both are refused, which is for the
            operator alone. Under REPLACE_ONE any split that does not look at the records, such as
            one by position. Under ADD_OR_REMOVE_ONE a record's role must follow from the record
            itself, such as a keyed hash of its id: in a split by position, removing one record
            changes the role of others. The statement lists that as the assumption
            `roles-by-record`.
        plan: one plan of `plan_tuning`, which also says the budget, the adjacency, the score range
            and the number of validation records.
        parameters: for "once", inside the space; where the plan has several configurations, with
            the epochs and batches of one, and its batch_size where they have several.
        default: the parameters that are used without tuning, likewise, for a plan with
            default=True. They are the first run of a search and of "once". Beside hidden runs they
            are a run of its own, paid for by itself: with 10 hidden runs it takes three tenths more
            noise. Another run is recommended only where its noised score exceeds theirs by more
            than noise explains: after 10 hidden runs, by 3.0 `score_std`.
        risk: the probability, at most, that the default is replaced where no run's model is better,
            or that the model is better by less than `gain`, whatever the records.
        initial: number of Sobol points before a search's model proposes; at least 2.
        seed: of the search's points; never of noise, samples, or a selection's proposals.
        folder: where released models are kept, a file each: those of a search, or the best one of a
            selection.
        dataset, ledger: as in `Curator`.
        allow_repeated: True permits records of either role that this process has used under another
            ledger in memory, and records of both roles; the privacy losses add up, and the
            statement says so.
        example: (training, validation), a few public records of the same form for the trial.
            Omitted, `fit` is tried on zeros in the form of the first training record, and `score`
            on made-up records in the form of the validation records.
        try_first: before anything is reserved, call `fit` with stand-in records, and `score` on the
            model. `fit` takes all steps at `default` and, for "once", `parameters`, else at the
            space's ends, where all other parameters are smallest or largest: of several
            configurations each is at one end, a single one at both. It takes two steps at two more
            points. The first two samples have the configured size; those of all other steps have
            two records, and no noise is drawn for them. What `fit` and `score` raise is raised as
            it is. False omits the trial, for a `fit` that takes very long. Then a `fit` that always
            fails spends the whole budget.

    Raises:
        InputError: an argument outside its range, records that none can be made up for, or
            repeated records.
        ReservationChanged: the ledger's reservation began with other records.
        ScoreError: in the trial, as whatever else `fit` raises there; nothing was charged.
        BudgetExceeded, LedgerMismatch, ReleaseLost: as in `private_selection` and
            `PrivateObjective`.

    A run in which `fit` fails on private records, takes too few steps or returns another thing is
    paid for and has the worst score, without a word.
    """
    if (plan.strategy == "once") != (parameters is not None):
        raise InputError("parameters", parameters, "given for the plan 'once', and only there")
    if plan.default != (default is not None):
        allowed = "given for a plan of plan_tuning(..., default=True), and only there"
        raise InputError("default", default, allowed)
    given = {"parameters": parameters, "default": default}
    study = _Study(
        fit, score, training, validation, space, plan, given, risk, max(initial, 2), seed, folder
    )
    study.require_planned_number()
    if not allow_repeated:
        require_other_rows("training", training, study.view, "validation", _TWO_ROLES)
    for role, records in (("training", training), ("validation", validation)):
        require_unnamed("fit", fit, records, role, _FROM_LOADER)
    if plan.run_count is not None:
        require_no_generator("fit", fit)
    if try_first:
        study.try_first(example)
    if study.folder is not None:
        study.folder.mkdir(parents=True, exist_ok=True)
    curator = Curator(
        validation,
        unit=_RECORD,
        adjacency=plan.adjacency,
        budget=plan.budget,
        accounting=Planned(plan.events),
        dataset=dataset,
        ledger=ledger,
        example=None if example is None else example[1],
        allow_repeated=allow_repeated,
    )
    curator.protected.add(training, role=_TRAINING)
    if not allow_repeated and curator.protected.are_repeated():
        raise UsageError(_REPEATED)
    used = curator.ledger.used()
    begun = any(used.get(name) for name in (_SELECTION, _TRAINING))
    functions = {"fit": fit, "score": score}
    curator.bind("tuning", functions, tables={"training records": training}, begun=begun)
    # Otherwise a score's range would be examined on `example` in runs that are paid for.
    curator.mark_probed(study.scored.query(None))
    curator.ledger.note("assume", "dpsgd-attested")
    if not plan.adjacency.replaces:
        curator.ledger.note("assume", "roles-by-record")
    found = study.search(curator) if plan.run_count is None else study.select(curator)
    # This follows from what is released, and from nothing else.
    if found.model is None:
        text = (
            "tune returns no model: the run failed on the private records, as one does that stops"
            " before its last step, or another process trained the model and no folder= kept it."
            " What was charged stays charged. Try fit on public records of the same form and"
            " number; pass folder= to the next study."
        )
        warn(text, UserWarning)
    elif plan.default and found.gain is None:
        text = (
            "tune tells no gain: the run at the default parameters failed on the private records,"
            " or was interrupted, or another process trained its model and no folder= kept it. What"
            " was charged stays charged. Try fit at the default parameters on public records of"
            " the same form and number; pass folder= to the next study."
        )
        warn(text, UserWarning)
    return found


class _Study:
    """The arguments of `tune`, and what it does with them."""

    def __init__(
        self,
        fit: Fit,
        score: Score,
        training: Any,
        validation: Any,
        space: Space,
        plan: TuningPlan,
        given: dict[str, dict[str, Any] | None],
        risk: float,
        initial: int,
        seed: int,
        folder: str | pathlib.Path | None,
    ) -> None:
        self.training = training
        self.train = _trainer(fit, training, plan)
        self.space = _searched(space, plan)
        self.plan = plan
        # how many runs are paid for one by one
        self.paid = plan.usually if plan.run_count is None else int(plan.default)
        self.risk = risk
        self.seed = seed
        self.folder = None if folder is None else pathlib.Path(folder)
        self.view = PrivateView.of(validation, _RECORD, units_are_public=False)
        self.divisor = None if plan.adjacency.replaces else plan.validation
        self.scored = NoisedScore(
            _CopyScore(score),
            plan.score_range,
            GaussianMechanism(plan.score_multiplier),
            {"divisor": self.divisor},
        )
        # public points at which runs are paid for, the first ones
        self.fixed = {
            name: _encoded(self.space, plan, name, given[name])
            for name in ("default", "parameters")
            if given[name] is not None
        }
        self.default = self.fixed.get("default")
        self.design = list(self.fixed.values())
        self.tried = list(self.design)
        self.others: list[torch.Tensor] = []
        if plan.strategy != "once":
            self.design = [*self.design, *self.space.sample(initial, seed=seed)][:initial]
            self.tried = [*_ends(self.space, plan), *self.tried]
            self.others = list(self.space.sample(_TRIED_POINTS, seed=seed))

    def require_planned_number(self) -> None:
        """Raise UsageError where the number of validation records is public, and another than the
        plan's.
        """
        if self.plan.adjacency.replaces and self.view.count != self.plan.validation:
            raise UsageError(
                f"the plan was made for {self.plan.validation:g} validation records, not"
                f" {self.view.count}. Plan again: plan_tuning(..., validation={self.view.count})."
            )

    def try_first(self, example: tuple[Any, Any] | None) -> None:
        """Train on stand-in records, save and score, at a few points. Raises what `fit` and `score`
        raise.
        """
        if example is None:
            stand_ins = [_zeros(_first(self.training))]
            scored = self.view.made_up()
            if scored is None:
                raise _without_stand_in(type(self.view.container).__name__)
        else:
            stand_ins = [example[0][i] for i in range(len(example[0]))]
            scored = example[1]

        def session(config: DPSGDConfig, samples: int | None) -> _PaidSession:
            # Samples of the expected size, so that memory is tried, too.
            places = [place % len(stand_ins) for place in range(config.batches * config.batch_size)]
            records: Subset[Any] = Subset(stand_ins, places)  # type: ignore[arg-type]
            return _TrialSession(records, config, samples=samples)

        curator = Curator.rehearsal(
            scored,
            unit=_RECORD,
            adjacency=self.plan.adjacency,
            budget=self.plan.budget,
            example=None if example is None else scored,
        )
        # An initial model that the caller seeded stays the same.
        with isolate_generators(system_entropy):
            for place, x in enumerate([*self.tried, *self.others]):
                samples = None if place < len(self.tried) else _TRIED_STEPS
                try:
                    tried = functools.partial(session, samples=samples)
                    model = self.train(self.space.decode(x), tried)
                    if self.folder is not None:
                        torch.save(model, io.BytesIO())
                    curator.evaluate(self.scored.query(model))
                except Exception as error:
                    error.add_note(
                        f"`fit` and `score` were tried with {self.parameters_at(x)} on stand-in"
                        " records (`example`, or zeros for `fit` and made-up ones for `score`)."
                        " Nothing was charged. If these are no valid records, pass a few public"
                        " ones: example=(training, validation). try_first=False omits this trial."
                    )
                    raise

    def select(self, curator: Curator) -> TunedModel:
        """The best of hidden runs, or the default run where its score is not lower."""
        plan = self.plan
        assert plan.run_count is not None
        X, Y, models = self.space.bounds[:0], self.space.bounds[:0, :0], None
        if plan.default:
            models, objective = self.paid_runs(curator)
            X, Y, _ = objective.history()
        proposals = None
        if plan.spread != (1.0, 1.0):
            proposals = DensityRatioProposals(
                self.space, spread=plan.spread, noise_std=plan.score_std
            )
        best = private_selection(
            curator,
            self.train,
            space=self.space,
            run_count=plan.run_count,
            base={_TRAINING: [plan.configs]},
            score=self.scored,
            adaptive=proposals,
            name=_SELECTION,
        )
        model = best.output
        file = None
        if self.folder is not None and best.score is not None and best.x is not None:
            # Named by released numbers, which no other study has.
            file = self.folder / f"{fingerprint((best.x, best.score), size=16).hex()}.pt"
            if model is not None:
                _save(model, file)
            elif file.exists():
                model = _load(file)
            else:
                file = None
        x = best.x
        score = best.score
        gain = None
        if models is not None and len(X):
            own = float(Y[0])
            gain = 0.0 if score is None else max(score - own - self.margin(plan.run_count), 0.0)
            if not gain:
                x = X[0]
                score = own
                model = models.kept(x)
                file = models.file(x)
            gain = self.told(gain, models)
        return TunedModel(
            None if x is None else self.parameters_at(x),
            model,
            score,
            plan.score_std,
            curator.statement(),
            X,
            Y,
            file,
            gain,
        )

    def margin(self, run_count: RunCountDistribution) -> float:
        """By how much the best of so many scores must exceed the default's."""
        return gain_test(run_count, risk=self.risk) * self.plan.score_std

    def told(self, gain: float, models: _Models) -> float | None:
        """The gain; None without the default's model. One that failed has the worst score, over
        which any model gains much.
        """
        assert self.default is not None
        return None if models.kept(self.default) is None else gain

    def parameters_at(self, x: torch.Tensor) -> dict[str, Any]:
        """The parameters that are released of a run at x."""
        return _of_run(self.space.decode(x), self.plan)[0]

    def paid_runs(self, curator: Curator) -> tuple[_Models, PrivateObjective]:
        """All runs that are paid for one by one: those at the design's points first, then others by
        Bayesian optimisation on released scores.
        """
        models = _Models(curator, self)
        objective = PrivateObjective(
            curator,
            ClippedMean(
                self.scored.score,
                score_range=self.plan.score_range,
                fit=models.fit,
                divisor=self.divisor,
                role="validation",
            ),
            evaluations=self.paid,
            name=_SCORES,
            terms=terms_of(self.space),
        )
        resumed = objective.history()[0]
        unscored = models.unscored(resumed)[: objective.remaining]
        _tell_resumed(self.paid - models.remaining, len(resumed) + len(unscored), models.remaining)
        for x in unscored:
            objective(x.unsqueeze(0))
        while objective.remaining and models.remaining:
            # Runs that were killed count: their points are not tried again. So do scores of a model
            # that was trained before, as of a point that a small space's design has twice.
            begun = objective.evaluations - min(objective.remaining, models.remaining)
            X, Y, Yvar = objective.history()
            if begun < len(self.design) or len(X) < 2:
                x = self.design[begun]
            else:
                x = suggest(self.space, X, Y, Yvar, seed=1000 * self.seed + begun)[0]
            objective(x.unsqueeze(0))
        return models, objective

    def search(self, curator: Curator) -> TunedModel:
        """The run with the best posterior mean of a search, or of a plan "once"."""
        models, objective = self.paid_runs(curator)
        X, Y, Yvar = objective.history()
        if not len(X):
            raise ReleaseLost(
                "every training run was charged but ended before its score, and none is run twice."
                " Another plan is charged anew."
            )
        means = posterior_mean(self.space, X, Y, Yvar)
        best = int(means.argmax())
        gain = None
        if self.default is not None:
            defaults = (X == self.default).all(1)
            if defaults.any():
                first = int(defaults.int().argmax())
                margin = self.margin(FixedRuns(max(self.paid - 1, 1)))
                gains = Y[:, 0] - Y[first, 0] - margin
                better = (gains > 0.0) & ~defaults
                best = int(means.where(better, -math.inf).argmax()) if better.any() else first
                gain = self.told(float(gains[best].clamp(min=0.0)), models)
        return TunedModel(
            self.parameters_at(X[best]),
            models.kept(X[best]),
            float(means[best]),
            self.plan.score_std,
            curator.statement(),
            X,
            Y,
            models.file(X[best]),
            gain,
        )


def _searched(space: Space, plan: TuningPlan) -> Space:
    """The space, and which of several configurations a run takes. Raises InputError for a parameter
    that a configuration decides.
    """
    names = [field.name for field in dataclasses.fields(DPSGDConfig)]
    if len(plan.configs) > 1:
        names.append(_CONFIGURATION)
    decided = [name for name in names if name in space.names]
    if decided:
        raise InputError(
            "space",
            ", ".join(decided),
            "of parameters that only fit reads",
            "A DPSGDConfig decides these. To search them, plan several configurations:"
            " plan_tuning(budget, [DPSGDConfig(...), DPSGDConfig(...)], ...). Each run gets the"
            " Session of one of them.",
        )
    if len(plan.configs) == 1:
        return space
    return Space({**space.specs, _CONFIGURATION: list(map(settings_of, plan.configs))})


def _ends(space: Space, plan: TuningPlan) -> torch.Tensor:
    """The space's two ends, in turn, so often that each configuration is at one of them: a number
    of steps that follows another parameter is least at an end of it.
    """
    count = len(plan.configs)
    places = torch.arange(max(count, len(space.bounds)), device="cpu")
    ends = space.bounds[places % len(space.bounds)]
    if count > 1:
        coordinate = space.names.index(_CONFIGURATION)
        ends[:, coordinate] = ends.new_tensor(space.cat_dims[coordinate])[places % count]
    return ends


def _encoded(
    space: Space, plan: TuningPlan, name: str, given: dict[str, Any] | None
) -> torch.Tensor:
    """The point of given parameters, the argument `name`, which may name a configuration."""
    point = dict(given or {})
    if len(plan.configs) > 1:
        known = list(map(settings_of, plan.configs))
        said = {each: point.pop(each) for each in known[0] if each in point}
        fitting = [each for each in known if said == {one: each[one] for one in said}]
        if len(fitting) != 1:
            raise InputError(
                name,
                said,
                "with the epochs, batches and batch_size of one of the plan's configurations, or as"
                " many of these as tell it from the others",
            )
        point[_CONFIGURATION] = fitting[0]
    try:
        return space.encode(point)
    except InputError as error:
        place = error.parameter.replace("parameters", name)
        allowed = error.allowed
        if len(plan.configs) > 1:
            allowed = allowed.replace(_CONFIGURATION, "epochs, batches")
        remedy = f"{place} must be {allowed}. {error.remedy}"
        raise InputError(name, given, "inside the space", remedy.rstrip()) from None


def _of_run(drawn: dict[str, Any], plan: TuningPlan) -> tuple[dict[str, Any], DPSGDConfig]:
    """A run's parameters, as `fit` gets them and as they are released, and its configuration."""
    if len(plan.configs) == 1:
        return drawn, plan.configs[0]
    settings = drawn[_CONFIGURATION]
    own = {name: value for name, value in drawn.items() if name != _CONFIGURATION}
    config = next(config for config in plan.configs if settings_of(config) == settings)
    return {**own, **settings}, config


def _trainer(fit: Fit, training: Any, plan: TuningPlan) -> Callable[..., nn.Module]:
    """What trains one run at drawn parameters, in a session on the training records or in another
    one for its configuration.
    """

    def train(
        drawn: dict[str, Any], another: Callable[[DPSGDConfig], _PaidSession] | None = None
    ) -> nn.Module:
        given, config = _of_run(drawn, plan)
        with warnings.catch_warnings():
            # Of Opacus' hooks, where inputs need no gradients.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            session = another(config) if another else _PaidSession(training, config)
            with session.private:
                returned = fit(given, session)
            if not session.is_model(returned):
                raise UsageError(
                    f"fit returned a {type(returned).__name__}, but must return"
                    " session.make_private's module: only its noised parameters may leave, and a"
                    " number that `fit` computes is not noised."
                )
            return session.released()

    return train


def _tell_resumed(begun: int, kept: int, left: int) -> None:
    """Log how many of the runs that were begun are resumed."""
    if begun:
        lost = begun - kept
        fate = f"{lost} (charged, and ended before their score)" if lost else "0"
        level = logging.WARNING if lost else logging.INFO
        _LOG.log(
            level, "%r: runs resumed: %d, lost: %s, runs left: %d", _TRAINING, kept, fate, left
        )


class _PaidSession(Session):
    """A session whose records `tune` has compared, or that are stand-ins."""

    @functools.cached_property
    def private(self) -> contextlib.ExitStack:
        """Holds fresh generators from `make_private` on: what `fit` draws afterwards may follow
        from its records.
        """
        return contextlib.ExitStack()

    def _note_records(self) -> None:
        """Called last in `make_private`: the module is made, and no sample is drawn."""
        self.private.enter_context(private_generators)


class _TrialSamples(PoissonSamples):
    """Whole samples for the first steps, so that memory is tried; a few records for all others, so
    that a long run is tried in a short time.
    """

    def _samples(self, waiting: collections.deque[int]) -> Iterator[list[int]]:
        for place, sample in enumerate(super()._samples(waiting)):
            tried = sample if place < _TRIED_STEPS else sample[:_TRIED_RECORDS]
            waiting[-1] = len(tried)
            yield tried


class _TrialOptimizer(NoisedOptimizer):
    """Steps on stand-in records, of which all but the first draw no noise."""

    def _noised(self, total: torch.Tensor) -> torch.Tensor:
        if self._samples.drawn > _TRIED_STEPS:
            return total
        return super()._noised(total)


class _TrialEngine(NoisedEngine):
    _sampler = _TrialSamples
    _optimizer = _TrialOptimizer


class _TrialSession(_PaidSession):
    """A session on stand-in records, with all steps."""

    _engine_kind = _TrialEngine


def _first(training: Any) -> Any:
    # The error may show the record.
    with contextlib.suppress(Exception):
        return training[0]
    raise InputError(
        "training",
        type(training).__name__,
        "a Dataset whose first record can be read",
        "Call training[0] to see why not.",
    )


def _zeros(part: Any) -> Any:
    """Zeros in place of every number of a training record. Raises InputError where it holds
    anything else.
    """
    if isinstance(part, (Mapping, tuple, list)):
        return map_parts(part, _zeros)
    if isinstance(part, (bool, int, float, np.number, np.bool_)):
        return type(part)(0)
    if isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
        return np.zeros(part.shape, part.dtype)
    if isinstance(part, torch.Tensor):
        return torch.zeros_like(part)
    raise _without_stand_in(type(part).__name__)


def _without_stand_in(kind: str) -> InputError:
    remedy = f"None can be made up for a {kind}. Or omit the trial: try_first=False."
    return InputError(
        "example", None, "(training, validation), a few public records of the same form", remedy
    )


def _save(model: nn.Module, file: pathlib.Path) -> None:
    """Whole or not at all."""
    unfinished = file.with_suffix(f".{os.getpid()}")
    torch.save(model, unfinished)
    unfinished.replace(file)


def _load(file: pathlib.Path) -> nn.Module:
    # The folder is the caller's own.
    model: nn.Module = torch.load(file, weights_only=False)
    return model


class _Models:
    """Trains the runs of a search: charges each run before it trains, and keeps its model."""

    def __init__(self, curator: Curator, study: _Study) -> None:
        self._curator = curator
        self._study = study
        self._in_memory: dict[tuple[float, ...], nn.Module] = {}
        terms = {"role": _TRAINING, "attested": "Poisson", **terms_of(study.space)}
        if len(study.plan.configs) == 1:
            terms |= settings_of(study.plan.config)
        if study.fixed:
            terms["points"] = {name: x.tolist() for name, x in study.fixed.items()}
        # Of what runs train by, so that the accounting refuses what it was not made for.
        adjacency = study.plan.adjacency
        run = RolesEvent(costs=((_TRAINING, (run_event(study.plan.configs, adjacency),)),))
        self._reservation = curator.reserve(_TRAINING, run, slots=study.paid, terms=terms)

    @property
    def remaining(self) -> int:
        """Number of runs not yet begun."""
        return self._reservation.remaining

    def fit(self, x: torch.Tensor) -> nn.Module | None:
        """The model at x: a kept one, else a new run. None if training fails: whether it fails may
        depend on the records.
        """
        if (kept := self.kept(x)) is not None:
            return kept
        details = {"attested": "Poisson", "x": x.tolist(), "model": uuid.uuid4().hex}
        self._reservation.charge(details)
        try:
            model = self._study.train(self._study.space.decode(x))
        except Exception as error:
            if isinstance(error, INTERRUPTS):
                raise
            return None
        self._in_memory[_key(x)] = model
        if self._study.folder is not None:
            _save(model, self._files(x)[-1])
        return model

    def unscored(self, X: torch.Tensor) -> list[torch.Tensor]:
        """Points of runs that were killed before their score, and whose models are kept."""
        scored = set(map(_key, X))
        found = []
        for record in self._curator.ledger.charges(_TRAINING):
            x = X.new_tensor(record.body["x"])
            if _key(x) not in scored and self.kept(x) is not None:
                found.append(x)
        return found

    def kept(self, x: torch.Tensor) -> nn.Module | None:
        """The model at x, from memory or the folder."""
        if _key(x) in self._in_memory:
            return self._in_memory[_key(x)]
        file = self.file(x)
        return None if file is None else _load(file)

    def file(self, x: torch.Tensor) -> pathlib.Path | None:
        """The file of the model at x, if one is kept."""
        if self._study.folder is None:
            return None
        return next((path for path in reversed(self._files(x)) if path.exists()), None)

    def _files(self, x: torch.Tensor) -> list[pathlib.Path]:
        """Files of the runs at x that this ledger has charged. Names are random, because a folder
        may hold other studies' models.
        """
        assert self._study.folder is not None
        files = []
        for record in self._curator.ledger.charges(_TRAINING):
            if record.body["x"] == x.tolist():
                files.append(self._study.folder / f"{record.body['model']}.pt")
        return files


@dataclass(frozen=True)
class _CopyScore:
    """The score of a copy of the model, because a forward pass may leave records on it. NaN, the
    worst score, if training failed.
    """

    score: Score

    def __call__(self, model: Any, records: Any) -> Any:
        if model is None:
            return torch.full((count_records(records),), math.nan, device="cpu")
        return self.score(copy.deepcopy(model), records)


def _key(x: torch.Tensor) -> tuple[float, ...]:
    return tuple(x.tolist())
