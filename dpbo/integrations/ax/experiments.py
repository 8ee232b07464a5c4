"""A private objective as an experiment of Ax's `Client`.

    loop = ClientObjective(objective, space, Client())      # configures it; a client that was loaded goes on
    loop.resume()                                           # what the ledger knows and the experiment does not
    loop.run()                                              # or by hand: for i in loop.next(): loop.complete(i, loop.evaluate(i))

Ax sees points, released values and the standard deviation of their noise, so its models, analyses and storage may do with them what they
like. Nothing is generated that cannot be paid for. Ax also notes when trials begin and end: the statement's `timing-not-observed`.
Of a score that failed on private records Ax hears nothing: the error ends the run, and the trial stays running, to be tried again.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.core.trial_status import TrialStatus
from ax.generation_strategy.generation_strategy import GenerationStrategy

from dpbo.curator.handle import LOST, Handle
from dpbo.curator.turns import assume_durations_tell_nothing
from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, PrivacyError, PrivateFailure
from dpbo.integrations.ax.strategies import noisy_improvement
from dpbo.integrations.parameter_encoding import Kind, Parameter, Wording
from dpbo.integrations.recommendation import Recommendation, recommended
from dpbo.objective import PrivateObjective
from dpbo.privacy import require_count
from dpbo.space import Space
from dpbo.validation import checked

ENTRY = "entry"
"""Of a trial's run metadata: the name under which the ledger knows its value."""
METRIC = "score"
_PRIVATE = (PrivateFailure, *LOST)  # a worker may die of a private record, too
_FRUITLESS = 10  # failures in a row: trials that cost nothing would go on for ever


@checked
class ClientObjective:
    """Generate what can be paid for, fit and score inside, charge, release; the released mean and its SEM go to Ax as "score".

    Several processes may share one ledger, each with a client of its own; `resume` then also brings what the others released.

    Args:
        objective: of one metric, maximised.
        space: its parameters are Ax's: ranges, log ranges, whole numbers, choices; a continuous distribution that Ax does not know
            is a range "NAME (quantile)".
        client: without an experiment, it is configured; with one, it must be this one, e.g. loaded from JSON.
        strategy: for a client without an experiment; omitted, `noisy_improvement()`.

    Raises:
        InputError: an objective of several metrics, a space that cannot be put into words, an experiment of another space or direction,
            or one that stops trials early.
    """

    def __init__(self, objective: PrivateObjective, space: Space, client: Client, *, strategy: GenerationStrategy | None = None) -> None:
        if objective.metrics != 1:
            raise InputError("objective", objective.metrics, "of one metric", "Combine metrics in the loop of your own.")
        self.objective, self.space, self.client = objective, space, client
        self._wording = Wording(space, _expressible)
        self._unstored: dict[int, Handle] = {}  # charged, perhaps, when the ledger failed: released again, a handle gives its one value
        if client._maybe_experiment is None:
            client.configure_experiment(parameters=[_config(p) for p in self._wording.parameters], name=objective.name)
            client.configure_optimization(objective=METRIC)
            client.set_generation_strategy(strategy if strategy is not None else noisy_improvement())
        elif strategy is not None:
            raise InputError("strategy", strategy, "left out for a client that has an experiment", "It keeps the strategy it has.")
        self._require_fitting()

    @property
    def running(self) -> list[int]:
        """Trials that were generated and have no value yet, also those of a process that was killed."""
        return sorted(self.client._experiment.trial_indices_by_status[TrialStatus.RUNNING])

    def next(self, at_most: int = 1) -> list[int]:
        """Generate trials and return their indices: no more than can be paid for beside those that are running, so perhaps none."""
        self._require_fitting()
        room = min(require_count("at_most", at_most), self.objective.remaining - len(self.running))
        return sorted(self.client.get_next_trials(max_trials=room)) if room > 0 else []

    def point(self, index: int) -> torch.Tensor:
        """The point of a trial, `d`."""
        trials = self.client._experiment.trials
        if index not in trials:
            raise InputError("index", index, "that of a trial of this experiment")
        return self._wording.point(trials[index].arm.parameters)

    def evaluate(self, index: int, *, executor: Executor | None = None) -> Any:
        """Fit and score a trial, for `complete`: a handle, or its Future on an executor. Free; what `fit` raises ends the trial."""
        if index in self._unstored:
            return self._unstored[index] if executor is None else _done(self._unstored[index])
        x = self.point(index)
        if executor is not None:
            return self.objective.submit(x, executor)
        try:
            return self.objective.evaluate(x)
        except Exception as error:
            self._fail(index, error)
            raise

    def complete(self, index: int, handle: Handle | Future[Handle]) -> None:
        """Charge, release and tell Ax. In which order trials are completed is public, and must not follow from how long scores took.

        Raises:
            InputError: the trial has data, or the handle is another trial's; nothing was charged.
            BudgetExceeded: another process was faster; the trial is abandoned.
            LedgerUnavailable: what was drawn waits for the ledger; `run`, or `evaluate` and `complete`, go on with it.
            PrivateFailure, BrokenExecutor: the score failed on private records, or its worker died. The trial stays running.
            Whatever the fit raised: the trial is abandoned, and nothing was charged.
        """
        if not self.client._experiment.lookup_data(trial_indices=[index]).df.empty:
            raise InputError("trial", index, "without data", "Nobody released what it holds: begin a new experiment.")
        try:
            ready = handle.result() if isinstance(handle, Future) else handle
        except Exception as error:
            self._fail(index, error)
            raise
        if ready.details.get("x") != self.point(index).tolist():
            raise InputError("handle", ready, f"the one of trial {index}", "Complete each trial with what `evaluate` gave for it.")
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
        self._tell(index, Y.item(), Yvar.item())

    def run(
        self,
        trials: int | None = None,
        *,
        executor: Executor | None = None,
        workers: int = 1,
        ordered: bool = True,
        catch: Sequence[type[Exception]] = (),
    ) -> None:
        """Finish what is running, then generate and complete trials until so many were, or the plan is used up.

        Keyword args:
            executor: where trials are evaluated, e.g. a process pool; omitted, threads. Everything else happens in this thread.
            workers: trials at once.
            ordered: release in the order in which trials were begun, so that values and points tell nothing of how long scores took; False
                releases as they finish, under the statement's assumption `durations-tell-nothing` (see `AsynchronousBO`).
            catch: errors of a fit that fail their trial alone, up to ten in a row; others are raised, and so is every error of dpbo's
                and of a worker that died.
        """
        if any(issubclass(PrivateFailure, kind) for kind in catch):
            raise InputError("catch", "a class of all errors", "made of errors that fit alone raises", "For example (FloatingPointError,).")
        queue, jobs, begun, failures = deque(self.running), dict[Future[Handle], int](), 0, 0
        if require_count("workers", workers) > 1 and not ordered:
            assume_durations_tell_nothing(self.objective.curator)
        with contextlib.ExitStack() as stack:
            pool = executor or stack.enter_context(ThreadPoolExecutor(workers))
            while True:
                wanted = min(workers - len(jobs) - len(queue), workers if trials is None else trials - begun)
                fresh = self.next(wanted) if wanted > 0 else []
                begun, queue = begun + len(fresh), deque([*queue, *fresh])
                while queue and len(jobs) < workers:
                    index = queue.popleft()
                    jobs[self.evaluate(index, executor=pool)] = index
                if not jobs:
                    return
                done = wait([next(iter(jobs))] if ordered else jobs, return_when=FIRST_COMPLETED).done
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
                        if failures >= _FRUITLESS:
                            raise

    def resume(self) -> int:
        """Give the experiment every released value that no trial of it has; returns how many. Said twice, it adds nothing."""
        trials = self.client._experiment.trials
        told = {t.run_metadata.get(ENTRY) for t in trials.values() if t.status is TrialStatus.COMPLETED}
        begun = {trials[i].run_metadata.get(ENTRY): i for i in self.running}
        values = self.objective.curator.ledger.values(self.objective.name)
        missing = [value for value in values if value["handle"] not in told]
        for value in missing:
            index = begun.get(value["handle"])
            self._tell(self._attached(value) if index is None else index, value["value"][0], value["variance"][0])
        return len(missing)

    def recommended(self) -> Recommendation:
        """The released point of highest posterior mean: not the trial with the highest score, which is the luckiest."""
        return recommended(self.space, *self.objective.history())

    def _attached(self, value: dict[str, Any]) -> int:
        index: int = self.client.attach_trial(self._wording.shown(torch.tensor(value["details"]["x"], dtype=torch.float64)))
        self.client._experiment.trials[index].update_run_metadata({ENTRY: value["handle"]})
        return index

    def _tell(self, index: int, mean: float, variance: float) -> None:
        self.client.complete_trial(index, raw_data={METRIC: (mean, math.sqrt(variance))})

    def _fail(self, index: int, error: Exception) -> None:
        """Abandoned, not failed, in Ax's words: it proposes a failed point again, and a fit would fail there again.

        Of a private failure nothing is stored, as if this process had been killed.
        """
        if isinstance(error, _PRIVATE):
            return
        self.client._experiment.trials[index].update_run_metadata({"error": type(error).__name__})
        self.client.mark_trial_abandoned(index)

    def _require_fitting(self) -> None:
        experiment = self.client._experiment
        names = [parameter.name for parameter in self._wording.parameters]
        if sorted(experiment.search_space.parameters) != sorted(names):
            raise InputError("client", ", ".join(experiment.search_space.parameters), f"an experiment over {', '.join(names)}")
        aim = getattr(experiment.optimization_config, "objective", None)
        if aim is None or aim.metric_names != [METRIC] or aim.minimize:
            raise InputError("client", str(aim), f"an experiment that maximises {METRIC!r}", f"configure_optimization({METRIC!r}).")
        if self.client._maybe_early_stopping_strategy is not None:
            raise InputError("early_stopping_strategy", "set", "omitted", "It reads intermediate values, which nobody released.")


def _done(handle: Handle) -> Future[Handle]:
    future: Future[Handle] = Future()
    future.set_result(handle)
    return future


def _config(parameter: Parameter) -> Any:
    """A parameter in Ax's words."""
    if parameter.labels:
        kind = {bool: "bool", int: "int", float: "float"}.get(type(parameter.labels[0]), "str")
        return ChoiceParameterConfig(parameter.name, list(parameter.labels), kind, is_ordered=parameter.kind is Kind.ORDERED)
    if parameter.kind is Kind.WHOLE:
        ends = int(parameter.low), int(parameter.high)
        return RangeParameterConfig(parameter.name, ends, "int", step_size=parameter.step if parameter.step > 1 else None)
    scaling = "log" if parameter.kind is Kind.LOG else "linear"
    return RangeParameterConfig(parameter.name, (parameter.low, parameter.high), "float", scaling=scaling)


def _expressible(value: Any, others: Sequence[Any]) -> bool:
    """Ax wants the choices of one parameter to be of one type."""
    return isinstance(value, str) or (type(value) in (bool, int, float) and all(type(other) is type(value) for other in others))
