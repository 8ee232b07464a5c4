"""A private objective as the function that `study.optimize` calls.

    private = TrialObjective(objective, space)
    study = optuna.create_study(
        direction="maximize",
        pruner=optuna.pruners.NopPruner(),
        sampler=NoiseAwareSampler(space),
    )
    # adds values that the ledger has and the study lacks, because a worker was killed
    private.resume(study)
    # ends when all evaluations are released
    study.optimize(private)

Without `resume` the first trial of an empty study adds the values that the ledger already has, and
a study that was kept gets none.

A study and its storage hold released values, public points and the noise's variance, so samplers,
plots, importances and dashboards may use them freely. Fit and score never get the trial, so no raw
score can be reported or pruned on. Optuna also records when trials begin and end. If a score's
duration depends on the records, readers of the study must not see that: the statement's assumption
`timing-not-observed`. Where trials run in parallel (`n_jobs`, several processes), the order of
their values, and what the next trial knows, depend on durations: the statement then also lists
`durations-tell-nothing`.
"""

import contextlib
import logging
import pathlib
from typing import Any, NoReturn

import optuna
import sqlalchemy as sa
import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from dpbo.errors import BudgetExceeded, InputError, PrivateFailure, UsageError
from dpbo.integrations.parameter_encoding import Kind, Parameter, ParameterEncoding
from dpbo.objective import PrivateObjective
from dpbo.space import Space
from dpbo.validation import checked

_LOG = logging.getLogger(__name__)
ENTRY = "entry"
YVAR = "yvar"
"""User attributes of a trial: the name of its value in the ledger, and the variance of its
noise.
"""


class Suggestions(ParameterEncoding):
    """Points of a space as Optuna's parameters.

    Attributes:
        distributions: Optuna's distributions by name, for example for
            `study.ask(fixed_distributions=...)`.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(
            space, lambda value, _: value is None or isinstance(value, (bool, int, float, str))
        )
        self.distributions = {
            parameter.name: _distribution(parameter) for parameter in self.parameters
        }

    def points(self, shown: list[dict[str, Any]]) -> torch.Tensor:
        """The points of several such parameters, `n x d`."""
        if shown:
            return torch.stack([self.point(one) for one in shown])
        return self.space.bounds[:0]

    def suggest(self, trial: optuna.Trial) -> torch.Tensor:
        """The point, `d`, that a trial suggests."""
        values = {}
        for name, distribution in self.distributions.items():
            try:
                values[name] = _suggest(trial, name, distribution)
            except ValueError:
                raise UsageError(
                    f"the study has trials with other values of {name!r} than this space: give"
                    " another space a study of its own, by another study_name=."
                ) from None
        return self.point(values)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.labels:
        return CategoricalDistribution(parameter.labels)
    if parameter.kind is Kind.WHOLE:
        return IntDistribution(int(parameter.low), int(parameter.high), step=parameter.step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.kind is Kind.LOG)


def _suggest(trial: optuna.Trial, name: str, distribution: Any) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


class BudgetSpent(BudgetExceeded, optuna.TrialPruned):  # type: ignore[misc]
    """No budget is left for this trial, and nothing was charged. In `study.optimize` the trial ends
    pruned, without a value.
    """


class StudyEnded(BaseException):
    """The score failed on private records, not just on single units (see `PrivateFailure`). Nothing
    was charged; the trial stays running.

    This is not an Exception, because Optuna stores a failed trial for every Exception and may go on
    (`catch`): neither the storage nor the next proposal may depend on a private failure.
    """


@checked
class TrialObjective:
    """One Optuna trial: suggest a point, check the budget, fit and score inside the curator,
    charge, and return the released value.

    The trial keeps the noise's variance ("yvar") and the value's name in the ledger ("entry"),
    nothing else. A fit that raises makes a failed trial and costs nothing; a score that fails on
    private records ends the study by `StudyEnded`, and Optuna stores nothing of it. Several
    processes may share one study and one ledger: each charge is one transaction of the ledger. A
    worker that finds the budget used up stops its loop; a trial that it had begun ends pruned,
    without a value. A trial that Optuna tries again after a kill
    (`RetryHeartbeatStaleTrialCallback`) returns the value that was released for it, at no charge.
    If the ledger has values of an earlier run, trial 0 of a new study adds them as trials and ends
    pruned, unless its point was enqueued.

    Args:
        objective: an objective of one metric, which is maximised.
        space: its parameters are suggested as Optuna's: floats, log floats, whole numbers,
            categories; a continuous distribution that Optuna does not know is suggested as "NAME
            (quantile)". The objective's `fit` gets the point and decodes it as usual.

    Raises:
        InputError: an objective of several metrics, or a space that has no Optuna form; when
            called, a study that minimises, has a pruner or holds intermediate values, before
            anything is fitted.
    """

    def __init__(self, objective: PrivateObjective, space: Space) -> None:
        if objective.metrics != 1:
            raise InputError(
                "objective",
                objective.metrics,
                "one of one metric",
                "Optuna's front takes noisy values as exact and keeps the luckiest. Combine metrics"
                " in a loop of your own.",
            )
        self.objective = objective
        self.space = space
        self.suggestions = Suggestions(space)

    def __call__(self, trial: optuna.Trial) -> float:
        """The released value of one trial.

        Raises:
            InputError: an unsuitable study, a trial with intermediate values, or an enqueued one
                outside the space; nothing was charged.
            BudgetSpent: no budget is left. StudyEnded: the score failed on private records.
        """
        if not isinstance(trial, optuna.Trial):
            raise InputError(
                "trial",
                trial,
                "a Trial of a study",
                "A FixedTrial has no study; evaluate its point by the objective.",
            )
        require_suitable(trial.study)
        if trial.number == 0 and (
            added := self._add_released(trial.study, but=(TrialState.COMPLETE, TrialState.RUNNING))
        ):
            queued = "fixed_params" in trial.study.get_trials(deepcopy=False)[0].system_attrs
            # the sampler chose this trial's point before the values were there
            if not queued:
                raise optuna.TrialPruned(
                    f"{added} released values were added from the ledger; the next trials follow"
                    " them."
                )
        if ENTRY in trial.user_attrs:
            for value in self.objective.curator.ledger.values(self.objective.name):
                if value["handle"] == trial.user_attrs[ENTRY]:
                    trial.set_user_attr(YVAR, value["variance"][0])
                    return value["value"][0]
        if not self.objective.remaining:
            self._refuse(trial.study)
        x = self.suggestions.suggest(trial)
        try:
            handle = self.objective.evaluate(x)
        except PrivateFailure as failure:
            # with n_jobs > 1, Optuna drops exceptions of its last trials
            _LOG.error("The study ends: %s", failure)
            raise StudyEnded(str(failure)) from None
        trials = trial.study.get_trials(deepcopy=False)
        _require_no_reports(trials[trial.number])
        if any(
            other.state is TrialState.RUNNING and other.number != trial.number for other in trials
        ):
            self.objective.curator.assume("durations-tell-nothing")
        # before the charge, so that a value that Optuna never got can be found again
        trial.set_user_attr(ENTRY, handle.id)
        try:
            Y, Yvar = self.objective.release(handle)
        except BudgetExceeded:
            # another worker took the last evaluation
            self._refuse(trial.study)
        trial.set_user_attr(YVAR, Yvar.item())
        if not self.objective.remaining:
            _stop(trial.study)
        return Y.item()

    def resume(self, study: optuna.Study) -> int:
        """Add to the study every released value that none of its complete trials has; returns how
        many. Calling it twice is harmless.

        Values at points outside the space are left out.

        After a kill the ledger may hold values that were charged and never reached Optuna. Call it
        before the study's workers start, in each of them if you like: it runs under the ledger's
        lock. Do not call it while workers run: a value that one of them is about to return would be
        in the study twice (`NoiseAwareSampler` and `recommended_trial` count it once). A killed
        worker's own trial stays RUNNING, until `study.tell(number, state=TrialState.FAIL)` or a
        heartbeat ends it.

        Raises:
            InputError: an unsuitable study, or one whose trials are kept in the ledger's own SQLite
                file.
        """
        require_suitable(study)
        return self._add_released(study, but=(TrialState.COMPLETE,))

    def _add_released(self, study: optuna.Study, *, but: tuple[TrialState, ...]) -> int:
        """Add every released value but those of trials in these states: a running trial of this
        loop will return its own.
        """
        ledger = self.objective.curator.ledger
        _require_other_file(study, ledger.storage.file)
        values = ledger.values(self.objective.name)
        # nothing is written: this is a lock between processes
        with ledger.storage.writing():
            known = {
                trial.user_attrs.get(ENTRY)
                for trial in study.get_trials(deepcopy=False, states=but)
            }
            added = 0
            for value in values:
                if value["handle"] in known:
                    continue
                x = self.space.bounds.new_tensor(value["details"]["x"])
                if not self.suggestions.holds_point(x):
                    continue
                study.add_trial(
                    create_trial(
                        params=self.suggestions.shown(x),
                        distributions=self.suggestions.distributions,
                        value=value["value"][0],
                        user_attrs={ENTRY: value["handle"], YVAR: value["variance"][0]},
                    )
                )
                added += 1
        return added

    def _refuse(self, study: optuna.Study) -> NoReturn:
        _stop(study)
        objective = self.objective
        account = objective.curator.ledger.account()
        raise BudgetSpent(
            1,
            objective.remaining,
            objective.evaluations,
            "evaluations",
            f"the trial for {objective.name!r}",
            account,
        )


def require_suitable(study: optuna.Study) -> None:
    """Raises InputError unless the study maximises one value, has no pruner and holds no
    intermediate values.
    """
    if study.directions != [StudyDirection.MAXIMIZE]:
        directions = ", ".join(direction.name.lower() for direction in study.directions)
        raise InputError(
            "direction",
            directions,
            "'maximize', of one value",
            "Use create_study(direction='maximize'). A public number beside the score may be a"
            " constraint: trial.set_constraint.",
        )
    if not isinstance(study.pruner, optuna.pruners.NopPruner):
        remedy = (
            "Optuna's default pruner reads intermediate values, which are never released:"
            " create_study(pruner=NopPruner())."
        )
        raise InputError("pruner", type(study.pruner).__name__, "NopPruner()", remedy)
    for trial in study.get_trials(deepcopy=False):
        _require_no_reports(trial)


def _require_no_reports(trial: FrozenTrial) -> None:
    if trial.intermediate_values:
        raise UsageError(
            f"trial {trial.number} has intermediate values. Those of a private score are never"
            " released: use a new study, and report nothing."
        )


def _require_other_file(study: optuna.Study, ledger: pathlib.Path | None) -> None:
    """SQLite allows one writer a file, and the ledger holds that lock while the study is
    compared.
    """
    storage = getattr(study._storage, "_backend", study._storage)
    if ledger is not None and _file(getattr(storage, "url", None)) == ledger.resolve():
        remedy = "Keep the Optuna study and the ledger in two different files."
        raise InputError("storage", storage, "another file or database than the ledger's", remedy)


def _file(url: str | None) -> pathlib.Path | None:
    if url is not None:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            return pathlib.Path(parsed.database).resolve()
    return None


def _stop(study: optuna.Study) -> None:
    # a trial of ask and tell has no loop to stop
    with contextlib.suppress(RuntimeError):
        study.stop()
