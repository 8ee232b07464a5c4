"""A private objective as what `study.optimize` calls.

    private = TrialObjective(objective, space)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner(), sampler=NoiseAwareSampler(space))
    private.resume(study)                    # what the ledger knows and the study does not
    study.optimize(private, n_trials=40)     # stops by itself when the plan is used up

A study and its storage hold released values, public points and the noise's variance, so samplers, plots, importances and dashboards
may do with them what they like. Fit and score never see the trial: there is no way to report a raw score, nor to prune on one.
Optuna also notes when trials begin and end, which its readers must not see where a score's time depends on the records: that is the
statement's assumption `timing-not-observed`. Where trials run beside each other (`n_jobs`, several processes), the order of their values,
and what the next trial knows, follow from how long scores take: the statement then names `durations-tell-nothing`, too.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Sequence
from typing import Any, NoReturn

import optuna
import sqlalchemy as sa
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from dpbo.curator.handle import Handle
from dpbo.curator.turns import assume_durations_tell_nothing
from dpbo.errors import BudgetExceeded, InputError, PrivateFailure
from dpbo.integrations.parameter_encoding import Kind, Parameter, Wording
from dpbo.objective import PrivateObjective
from dpbo.space import Space
from dpbo.validation import checked

_LOG = logging.getLogger(__name__)
ENTRY, YVAR = "entry", "yvar"
"""User attributes of a trial: the name under which the ledger knows its value, and the variance of its noise."""


# ========== MERGED A `Space` in Optuna's words: distributions, suggestions, and the points of trials.


class Suggestions(Wording):
    """Points of a space as trials suggest and show them.

    Attributes:
        distributions: by name, e.g. for `study.ask(fixed_distributions=...)`.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space, _expressible)
        self.distributions = {parameter.name: _distribution(parameter) for parameter in self.parameters}

    def suggested(self, trial: optuna.Trial) -> torch.Tensor:
        """The point, `d`, that a trial suggests."""
        return self.point({name: _suggest(trial, name, law) for name, law in self.distributions.items()})


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.labels:
        return CategoricalDistribution(parameter.labels)
    if parameter.kind is Kind.WHOLE:
        return IntDistribution(int(parameter.low), int(parameter.high), step=parameter.step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.kind is Kind.LOG)


def _suggest(trial: optuna.Trial, name: str, law: Any) -> Any:
    if isinstance(law, CategoricalDistribution):
        return trial.suggest_categorical(name, law.choices)
    if isinstance(law, IntDistribution):
        return trial.suggest_int(name, law.low, law.high, step=law.step)
    return trial.suggest_float(name, law.low, law.high, log=law.log)


def _expressible(value: Any, _others: Sequence[Any]) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


class BudgetSpent(BudgetExceeded, optuna.TrialPruned):  # type: ignore[misc]  # Optuna is not followed by mypy here
    """Nothing is left for this trial, and nothing was charged. Within `study.optimize` the trial ends pruned, without a value."""


class StudyEnded(BaseException):
    """The score failed on private records, beyond single units: see `PrivateFailure`. Nothing was charged, and the trial stays running.

    No Exception, because Optuna stores a failed trial for every one of these, and goes on where `catch` names it: whoever reads the
    storage, and the next proposal, must not follow a private failure.
    """


@checked
class TrialObjective:
    """Suggest a point, look whether it can be paid for, fit and score it inside, charge, release; the released value goes to Optuna.

    The trial keeps the noise's variance ("yvar") and the ledger's name for the value ("entry"), nothing else. A fit that raises makes
    a failed trial at no charge; a score that fails on private records ends the study by `StudyEnded`, and Optuna stores nothing of it.
    Several processes may share one study and one ledger: each charge is a transaction of the ledger's, and whoever finds nothing left
    stops its loop. A trial that it had begun ends pruned, without a value.

    Args:
        objective: of one metric, maximised.
        space: its parameters are suggested in Optuna's words: log floats, whole numbers, categories; a continuous distribution that
            Optuna does not know is suggested as "NAME (quantile)". `objective`'s `fit` gets the point and decodes it as ever.

    Raises:
        InputError: an objective of several metrics, or a space that cannot be put into words; when called, a study that minimises, has a
            pruner or holds intermediate values: before anything is fitted.
    """

    def __init__(self, objective: PrivateObjective, space: Space) -> None:
        if objective.metrics != 1:
            raise InputError("objective", objective.metrics, "of one metric", "Combine metrics in the loop of your own.")
        self.objective, self.space, self.suggestions = objective, space, Suggestions(space)

    def __call__(self, trial: optuna.Trial) -> float:
        """The released value of one trial.

        Raises:
            InputError: a study that does not fit, a trial with intermediate values or, enqueued, outside the space; nothing was charged.
            BudgetSpent: nothing is left. StudyEnded: the score failed on private records.
        """
        if not isinstance(trial, optuna.Trial):
            raise InputError("trial", trial, "a Trial of a study", "A FixedTrial has no study; evaluate its point by the objective.")
        require_fitting(trial.study)
        if not self.objective.remaining:
            self._refuse(trial.study)
        x = self.suggestions.suggested(trial)
        try:
            handle = self.objective.evaluate(x)
        except PrivateFailure as failure:
            _LOG.error("The study ends: %s", failure)  # with n_jobs above 1, Optuna drops what its last trials raise
            raise StudyEnded(str(failure)) from None
        trials = trial.study.get_trials(deepcopy=False)
        _require_no_reports(trials[trial.number])
        if any(other.state is TrialState.RUNNING and other.number != trial.number for other in trials):
            assume_durations_tell_nothing(self.objective.curator)
        trial.set_user_attr(ENTRY, handle.id)  # before the charge, so that a value that is never told can be found again
        Y, Yvar = self._released(trial.study, handle)
        trial.set_user_attr(YVAR, Yvar.item())
        if not self.objective.remaining:
            _stop(trial.study)
        return Y.item()

    def resume(self, study: optuna.Study) -> int:
        """Add to the study every released value that no complete trial of it has; returns how many. Said twice, it adds nothing.

        After a kill the ledger may know values that were paid for and never told. Call it before the study's workers start, each of
        them if you like: it looks and adds under the ledger's lock. Not while others are at work: a value that one of them is
        just about to tell would be in the study twice (`NoiseAwareSampler` and `recommended_of` count it once).
        A killed worker's own trial stays in Optuna's state RUNNING; an RDBStorage with a heartbeat lets it fail.

        Raises:
            InputError: a study that does not fit, or that keeps its trials in the ledger's own SQLite file.
        """
        require_fitting(study)
        ledger = self.objective.curator.ledger
        _require_apart(study, ledger.storage.url)
        values = ledger.values(self.objective.name)
        with ledger.storage.writing():  # written to by nobody: a lock that other processes heed
            known = {trial.user_attrs.get(ENTRY) for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))}
            missing = [value for value in values if value["handle"] not in known]
            study.add_trials([self._told(value) for value in missing])
        return len(missing)

    def _told(self, value: dict[str, Any]) -> FrozenTrial:
        """A complete trial, as it would be had it been told."""
        params = self.suggestions.shown(torch.tensor(value["details"]["x"], dtype=torch.float64))
        return optuna.trial.create_trial(
            params=params,
            distributions=self.suggestions.distributions,
            value=value["value"][0],
            user_attrs={ENTRY: value["handle"], YVAR: value["variance"][0]},
        )

    def _released(self, study: optuna.Study, handle: Handle) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            return self.objective.release(handle)
        except BudgetExceeded:  # another worker was faster
            self._refuse(study)

    def _refuse(self, study: optuna.Study) -> NoReturn:
        _stop(study)
        objective = self.objective
        account = objective.curator.ledger.account()
        raise BudgetSpent(1, objective.remaining, objective.evaluations, "slots", f"the trial for {objective.name!r}", account)


def require_fitting(study: optuna.Study) -> None:
    """Raises InputError unless the study maximises one value, prunes nothing and holds no intermediate values."""
    if study.directions != [StudyDirection.MAXIMIZE]:
        told = ", ".join(direction.name.lower() for direction in study.directions)
        raise InputError("direction", told, "'maximize', of one value", "Scores are maximised: optuna.create_study(direction='maximize').")
    if not isinstance(study.pruner, optuna.pruners.NopPruner):
        remedy = "Optuna's default prunes by intermediate values, which nobody released: create_study(pruner=optuna.pruners.NopPruner())."
        raise InputError("pruner", type(study.pruner).__name__, "NopPruner()", remedy)
    for trial in study.get_trials(deepcopy=False):
        _require_no_reports(trial)


def _require_no_reports(trial: FrozenTrial) -> None:
    if trial.intermediate_values:
        remedy = "Intermediate values of a private score were never released: use a new study, and report nothing."
        raise InputError("trial", f"number {trial.number}, with intermediate values", "without any", remedy)


def _require_apart(study: optuna.Study, ledger: str | None) -> None:
    """SQLite has one writer a file, and the ledger holds it while the study is compared."""
    storage = getattr(study._storage, "_backend", study._storage)
    file = _file(ledger)
    if file is not None and _file(getattr(storage, "url", None)) == file:
        raise InputError("storage", "the ledger's own file", "another file or database than the ledger's")


def _file(url: str | None) -> pathlib.Path | None:
    parsed = None if url is None else sa.make_url(url)
    named = parsed is not None and parsed.get_backend_name() == "sqlite" and parsed.database
    return pathlib.Path(named).resolve() if named else None


def _stop(study: optuna.Study) -> None:
    with contextlib.suppress(RuntimeError):  # a trial of ask and tell has no loop to stop
        study.stop()
