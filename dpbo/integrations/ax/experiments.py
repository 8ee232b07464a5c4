"""A private objective as an experiment of Ax's `Client`.

    # configures the client; a client that was loaded continues
    loop = ClientObjective(objective, space, Client())
    # adds values that the ledger has and the experiment has not
    loop.resume()
    # or by hand: for i in loop.next(): loop.complete(i, loop.evaluate(i))
    loop.run()

Ax sees points, released values and the noise's standard deviation, so its models, analyses and
storage may use them freely. No trial is generated that the budget does not cover. Ax also records
when trials begin and end: the statement's assumption `timing-not-observed`. If a score fails on
private records, Ax is not told: the error ends the run, and the trial stays running and can be
tried again.
"""

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.core.parameter import ChoiceParameter, FixedParameter, ParameterType, RangeParameter
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import DataRequiredError
from ax.exceptions.generation_strategy import MaxParallelismReachedException
from ax.generation_strategy.generation_strategy import GenerationStrategy

from dpbo.algorithms.asynchronous import require_of_fit
from dpbo.curator.evaluation import LOST
from dpbo.curator.handle import Handle
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerUnavailable,
    PrivacyError,
    PrivateFailure,
    UsageError,
)
from dpbo.integrations.ax.strategies import noisy_improvement
from dpbo.integrations.parameter_encoding import Kind, Parameter, ParameterEncoding
from dpbo.integrations.recommendation import Recommendation, recommended
from dpbo.isolation import without_default_device
from dpbo.objective import PrivateObjective
from dpbo.space import Space
from dpbo.validation import Count, checked

ENTRY = "entry"
"""Key in a trial's run metadata: the name of its value in the ledger."""
METRIC = "score"
# a private record may also crash a worker
_PRIVATE = (PrivateFailure, *LOST)
# Ax's models leave out what these trials have
_LEFT_OUT = (TrialStatus.FAILED, TrialStatus.ABANDONED)
# in a row: failed fits cost nothing, so nothing else would stop them
_MOST_FAILURES = 10


@checked
class ClientObjective:
    """Runs an Ax experiment: generate a trial within the budget, fit and score inside the curator,
    charge, and give Ax the released value.

    Ax gets the released mean and its SEM as the metric "score". Several processes may share one
    ledger, each with its own client; `resume` then also adds the values that the others released.

    Args:
        objective: an objective of one metric, which is maximised.
        space: its parameters become Ax's: ranges, log ranges, whole numbers, choices; a continuous
            distribution that Ax does not know becomes a range "NAME (quantile)".
        client: a client without an experiment is configured; the experiment of another, such as one
            loaded from JSON, must be this one.
        strategy: generation strategy of a client without an experiment; omitted,
            `noisy_improvement()`.

    Raises:
        InputError: an objective of several metrics, a space that has no Ax form, an experiment over
            another space or direction, with outcome constraints, or one that stops trials early.
    """

    def __init__(
        self,
        objective: PrivateObjective,
        space: Space,
        client: Client,
        *,
        strategy: GenerationStrategy | None = None,
    ) -> None:
        if objective.metrics != 1:
            raise InputError(
                "objective",
                objective.metrics,
                "one of one metric",
                "Combine metrics in a loop of your own.",
            )
        self.objective = objective
        self.space = space
        self.client = client
        self._encoding = ParameterEncoding(space, _is_ax_choice)
        # perhaps charged when the ledger failed; a second release of a handle gives the same value
        self._unstored: dict[int, Handle] = {}
        if client._maybe_experiment is None:
            client.configure_experiment(
                parameters=[_config(p) for p in self._encoding.parameters], name=objective.name
            )
            client.configure_optimization(objective=METRIC)
            client.set_generation_strategy(
                strategy if strategy is not None else noisy_improvement()
            )
        elif strategy is not None:
            raise InputError(
                "strategy",
                strategy,
                "left out for a client that has an experiment",
                "It keeps the strategy it has.",
            )
        self._require_suitable()

    @property
    def running(self) -> list[int]:
        """Trials that were generated and have no value yet, including those of a killed process."""
        return sorted(self.client._experiment.trial_indices_by_status[TrialStatus.RUNNING])

    def next(self, at_most: Count = 1) -> list[int]:
        """Generate trials and return their indices: at most as many as the budget covers beside
        those running, so perhaps none.

        Raises:
            UsageError: an experiment with trials that this objective cannot complete, or with
                scores of unknown noise.
        """
        self._require_suitable_trials()
        room = min(at_most, self.objective.remaining - len(self.running))
        if room > 0:
            with without_default_device():
                return sorted(self.client.get_next_trials(max_trials=room))
        return []

    def point(self, index: int) -> torch.Tensor:
        """The point of a trial, `d`."""
        trials = self.client._experiment.trials
        if index not in trials:
            raise InputError("index", index, "a trial's index in this experiment")
        return self._encoding.point(trials[index].arm.parameters)

    def evaluate(self, index: int, *, executor: Executor | None = None) -> Any:
        """Fit and score a trial, for `complete`: a handle, or its Future on an executor. Free; an
        exception of `fit` ends the trial.
        """
        if index in self._unstored:
            if executor is None:
                return self._unstored[index]
            done: Future[Handle] = Future()
            done.set_result(self._unstored[index])
            return done
        x = self.point(index)
        if executor is not None:
            return self.objective.submit(x, executor)
        try:
            return self.objective.evaluate(x)
        except Exception as error:
            self._fail(index, error)
            raise

    def complete(self, index: int, handle: Handle | Future[Handle]) -> None:
        """Charge and release, and give Ax the value. The order in which trials are completed is
        public: it must not depend on durations.

        Raises:
            UsageError: the trial has data, the handle is another trial's, or Ax could not go on
                with the experiment; nothing was charged.
            BudgetExceeded: another process took the last evaluation; the trial is abandoned.
            LedgerUnavailable: the drawn value waits for the ledger; `run`, or `evaluate` and
                `complete`, continue with it.
            PrivateFailure, BrokenExecutor: the score failed on private records, or its worker died.
                The trial stays running.
            Any exception of the fit: the trial is abandoned, and nothing was charged.
        """
        self._require_suitable_trials()
        try:
            ready = handle.result() if isinstance(handle, Future) else handle
        except Exception as error:
            self._fail(index, error)
            raise
        if ready.details.get("x") != self.point(index).tolist():
            raise InputError(
                "handle",
                ready,
                f"the handle of trial {index}",
                "Complete each trial with what `evaluate` returned for it.",
            )
        self.client._experiment.trials[index].update_run_metadata({ENTRY: ready.id})
        try:
            Y, Yvar = self.objective.release(ready)
        except LedgerUnavailable:
            self._unstored[index] = ready
            raise
        except BudgetExceeded:
            self.client.mark_trial_abandoned(index)
            raise
        self._unstored.pop(index, None)
        self._complete_trial(index, Y.item(), Yvar.item())

    def run(
        self,
        trials: int | None = None,
        *,
        executor: Executor | None = None,
        workers: Count = 1,
        ordered: bool = True,
        catch: Sequence[type[Exception]] = (),
    ) -> None:
        """Finish the running trials, then generate and complete `trials` new ones, or until the
        budget is used up.

        Args:
            trials: number of new trials; omitted, as many as the budget covers.
            executor: evaluates trials, for example a process pool; omitted, threads. Everything
                else happens in this thread.
            workers: number of trials at once.
            ordered: release in the order in which trials began, so that values and points do not
                depend on durations. False releases them as they finish, under the statement's
                assumption `durations-tell-nothing` (see `AsynchronousBO`).
            catch: exceptions of a fit that end only their trial, up to ten in a row. Others are
                raised, and so are dpbo's own errors and those of a worker that died.

        Raises:
            UsageError: an experiment in which Ax could not go on after a release; nothing was
                fitted or charged.
        """
        require_of_fit("catch", catch)
        self._require_suitable_trials()
        self._require_points(trials)
        queue = deque(self.running)
        jobs = dict[Future[Handle], int]()
        begun = 0
        failures = 0
        if workers > 1 and not ordered:
            self.objective.curator.assume("durations-tell-nothing")
        with contextlib.ExitStack() as stack:
            pool = executor or stack.enter_context(ThreadPoolExecutor(workers))
            while True:
                wanted = min(
                    workers - len(jobs) - len(queue), workers if trials is None else trials - begun
                )
                try:
                    fresh = self.next(wanted) if wanted > 0 else []
                except (DataRequiredError, MaxParallelismReachedException):
                    # the strategy waits for values of trials that are running
                    if not jobs and not queue:
                        raise
                    fresh = []
                begun += len(fresh)
                queue.extend(fresh)
                while queue and len(jobs) < workers:
                    index = queue.popleft()
                    jobs[self.evaluate(index, executor=pool)] = index
                if not jobs:
                    return
                done = wait(
                    [next(iter(jobs))] if ordered else jobs, return_when=FIRST_COMPLETED
                ).done
                for job in [job for job in jobs if job in done]:
                    try:
                        self.complete(jobs.pop(job), job)
                        failures = 0
                    except BudgetExceeded:
                        continue
                    except (PrivacyError, *LOST):
                        raise
                    except tuple(catch):
                        failures += 1
                        if failures >= _MOST_FAILURES:
                            raise

    def resume(self) -> int:
        """Add to the experiment every released value of the space that none of its trials has;
        returns how many. Calling it twice is harmless.
        """
        trials = self.client._experiment.trials
        complete = {
            t.run_metadata.get(ENTRY) for t in trials.values() if t.status is TrialStatus.COMPLETED
        }
        begun = {trials[i].run_metadata.get(ENTRY): i for i in self.running}
        added = 0
        for value in self.objective.curator.ledger.values(self.objective.name):
            entry = value["handle"]
            if entry in complete:
                continue
            index = begun.get(entry)
            if index is None:
                x = self.space.bounds.new_tensor(value["details"]["x"])
                if not self._encoding.holds_point(x):
                    continue
                index = self.client.attach_trial(self._encoding.shown(x))
                trials[index].update_run_metadata({ENTRY: entry})
            self._complete_trial(index, value["value"][0], value["variance"][0])
            added += 1
        return added

    def recommended(self) -> Recommendation:
        """The released point of highest posterior mean, which is not the trial of highest score:
        that one is the luckiest. It meets the experiment's constraints on parameters.
        """
        X, Y, Yvar = self.objective.history()
        held = list(map(self._encoding.holds_point, X))
        inside = torch.tensor(held, dtype=torch.bool, device="cpu")
        X, Y, Yvar = X[inside], Y[inside], Yvar[inside]
        constraints = self.client._experiment.search_space.parameter_constraints
        shown = map(self._encoding.shown, X)
        feasible = [all(limit.check(one) for limit in constraints) for one in shown]
        return recommended(self.space, X, Y, Yvar, feasible=torch.tensor(feasible, device="cpu"))

    def _complete_trial(self, index: int, mean: float, variance: float) -> None:
        self.client.complete_trial(index, raw_data={METRIC: (mean, math.sqrt(variance))})

    def _fail(self, index: int, error: Exception) -> None:
        """Abandon a trial whose fit failed; Ax would propose the point of a FAILED trial again. A
        private failure leaves no trace.
        """
        if isinstance(error, _PRIVATE):
            return
        self.client._experiment.trials[index].update_run_metadata({"error": type(error).__name__})
        self.client.mark_trial_abandoned(index)

    def _require_suitable(self) -> None:
        """Raises InputError unless the experiment is over this space, asks for the score's maximum
        and for no other metric, and stops no trial early.
        """
        experiment = self.client._experiment
        parameters = experiment.search_space.parameters
        names = [parameter.name for parameter in self._encoding.parameters]
        if sorted(parameters) != sorted(names):
            raise InputError(
                "client", ", ".join(parameters), f"an experiment over {', '.join(names)}"
            )
        for ours in self._encoding.parameters:
            for value in _examples(parameters[ours.name], ours):
                ours.coordinate(value)
        goal = getattr(experiment.optimization_config, "objective", None)
        if goal is None or goal.metric_names != [METRIC] or goal.minimize:
            raise InputError(
                "client",
                str(goal),
                f"an experiment that maximises {METRIC!r}",
                f"configure_optimization({METRIC!r}).",
            )
        constraints = experiment.optimization_config.all_constraints
        if constraints:
            raise InputError(
                "outcome_constraints",
                "; ".join(map(str, constraints)),
                "omitted",
                f"Only {METRIC!r} is released, so Ax would have no values for them. Limit"
                " parameters by `parameter_constraints`.",
            )
        stopping = self.client._maybe_early_stopping_strategy
        if stopping is not None:
            raise InputError(
                "early_stopping_strategy",
                stopping,
                "omitted",
                "It reads intermediate values, which are never released.",
            )

    def _require_suitable_trials(self) -> None:
        """Raises UsageError unless every running trial can be completed, and Ax's model can use
        every trial that ended: an error of Ax between two releases would come after a charge.
        InputError as `_require_suitable`.
        """
        self._require_suitable()
        experiment = self.client._experiment
        data = experiment.lookup_data().df
        for index in self.running:
            arms = len(experiment.trials[index].arms)
            if arms != 1:
                raise UsageError(
                    f"trial {index} has {arms} arms, and a release is of one point: mark it"
                    " abandoned, and attach a trial for each."
                )
            if not self._encoding.holds(experiment.trials[index].arm.parameters):
                raise UsageError(
                    f"trial {index} is outside the space: mark it abandoned, or attach trials"
                    " inside the space only."
                )
            if (data["trial_index"] == index).any():
                raise UsageError(
                    f"trial {index} has data before its release: call `resume`, which completes it"
                    " where they are of this ledger, or mark it abandoned."
                )
        scores = data[data["metric_name"] == METRIC]
        for index in experiment.trial_indices_by_status[TrialStatus.COMPLETED]:
            if not (scores["trial_index"] == index).any():
                raise UsageError(
                    f"trial {index} was completed without a value of {METRIC!r}, which Ax's model"
                    " needs: begin a new experiment, and mark such a trial abandoned."
                )
        unknown = scores.loc[scores["sem"].isna(), "trial_index"]
        for index in unknown:
            if experiment.trials[index].status not in _LEFT_OUT:
                raise UsageError(
                    f"trial {index} has a value of {METRIC!r} without its standard error, and Ax's"
                    " model takes all with one or none: begin a new experiment, and attach public"
                    " values as (mean, sem)."
                )

    def _require_points(self, trials: int | None) -> None:
        """Raises UsageError if the search space has fewer points than trials to generate: Ax ends
        with an error when none is left, after the others were released.
        """
        experiment = self.client._experiment
        wanted = self.objective.remaining - len(self.running)
        if trials is not None:
            wanted = min(wanted, trials)
        points = math.prod(p.cardinality() for p in experiment.search_space.parameters.values())
        left = points - len(experiment.arms_by_signature)
        if wanted > max(left, 0):
            raise UsageError(
                f"{wanted} trials are to be run, but the search space has {points} points, of which"
                f" {max(left, 0)} are new, and Ax ends with an error when none is left: run fewer"
                " by run(trials=...), or reserve fewer evaluations."
            )


def _examples(parameter: Any, ours: Parameter) -> Iterable[Any]:
    """Values of a parameter of Ax's, of which one lies outside ours if any does."""
    if isinstance(parameter, FixedParameter):
        return [parameter.value]
    if isinstance(parameter, ChoiceParameter):
        return parameter.values
    if not isinstance(parameter, RangeParameter):
        raise InputError(ours.name, parameter, "a range, a choice or a fixed value")
    low, high = parameter.lower, parameter.upper
    if parameter.parameter_type is ParameterType.INT:
        # of more whole numbers than there are labels, one of the first has none
        most = max(len(ours.labels) + 1, 2)
        return [*itertools.islice(range(int(low), int(high) + 1), most), int(high)]
    # a number between the ends, which no list and no whole number takes
    return [low, low + (high - low) / math.e, high]


def _config(parameter: Parameter) -> Any:
    """A parameter as Ax configures it."""
    if parameter.labels:
        kind = {bool: "bool", int: "int", float: "float"}.get(type(parameter.labels[0]), "str")
        return ChoiceParameterConfig(
            parameter.name, list(parameter.labels), kind, is_ordered=parameter.kind is Kind.ORDERED
        )
    if parameter.kind is Kind.WHOLE:
        ends = int(parameter.low), int(parameter.high)
        return RangeParameterConfig(
            parameter.name, ends, "int", step_size=parameter.step if parameter.step > 1 else None
        )
    scaling = "log" if parameter.kind is Kind.LOG else "linear"
    return RangeParameterConfig(
        parameter.name, (parameter.low, parameter.high), "float", scaling=scaling
    )


def _is_ax_choice(value: Any, others: Sequence[Any]) -> bool:
    """Whether Ax takes the value as it is: the choices of one parameter must have one type."""
    return isinstance(value, str) or (
        type(value) in (bool, int, float) and all(type(other) is type(value) for other in others)
    )
