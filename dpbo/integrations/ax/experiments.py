"""A private objective as an experiment of Ax's `Client`, by ask and tell.

    loop = ClientObjective(objective, space, Client())
    for index, x in loop.ask().items():
        loop.tell(index, objective.evaluate(x))

Ax sees points, released values and the noise's standard error, so its models, analyses and storage
may use them freely. No trial is generated that the budget does not cover. The ledger holds every
value: after a kill, a new client over the same objective is told them all. Ax also records when
trials begin and end: the statement's assumption `timing-not-observed`.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import UnsupportedError

from dpbo.curator.evaluation import LOST
from dpbo.curator.handle import Handle
from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, PrivacyError, Unshown
from dpbo.integrations.parameter_encoding import Kind, Parameter, ParameterEncoding
from dpbo.integrations.recommendation import Recommendation, recommended
from dpbo.isolation import without_default_device
from dpbo.objective import PrivateObjective
from dpbo.space import Space
from dpbo.validation import Count, checked

METRIC = "score"


@checked
class ClientObjective:
    """An Ax experiment over a private objective: the client proposes, the objective releases.

    Configures the client, and tells it what was released before. Ax gets the released mean and its
    standard error as the metric "score", which it maximises.

    Args:
        objective: an objective of one metric.
        space: its parameters become Ax's: ranges, log ranges, whole numbers, choices; a continuous
            distribution that Ax does not know becomes a range "NAME (quantile)".
        client: a client without an experiment; its generation strategy may be set afterwards.
        parameter_constraints: as in Ax, such as "depth <= 10 - width"; they hold for proposals and
            for `recommended`.

    Raises:
        InputError: an objective of several metrics, a space that has no Ax form, or a client that
            has an experiment.
    """

    def __init__(
        self,
        objective: PrivateObjective,
        space: Space,
        client: Client,
        *,
        parameter_constraints: Sequence[str] = (),
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
        self._running: dict[int, torch.Tensor] = {}
        # perhaps charged when the ledger failed; a second release of a handle gives the same value
        self._unstored: dict[int, Handle] = {}
        # handles of the ledger's values, and the points that Ax was told of
        self._seen: set[str] = set()
        self._inside: set[tuple[float, ...]] = set()
        try:
            client.configure_experiment(
                parameters=[_config(p) for p in self._encoding.parameters],
                parameter_constraints=list(parameter_constraints),
                name=objective.name,
            )
        except UnsupportedError:
            raise InputError(
                "client",
                Unshown(client),
                "one without an experiment",
                "A new client is told every value that the ledger has.",
            ) from None
        client.configure_optimization(objective=METRIC)
        self.resume()

    def ask(self, at_most: Count = 1) -> dict[int, torch.Tensor]:
        """Points, `d`, of new trials by their indices: at most as many as the budget covers beside
        the trials without a value, so perhaps none.
        """
        room = min(at_most, self.objective.remaining - len(self._running))
        if room <= 0:
            return {}
        with without_default_device():
            proposed = self.client.get_next_trials(max_trials=room)
        fresh = {index: self._encoding.point(shown) for index, shown in proposed.items()}
        self._running |= fresh
        return fresh

    def tell(self, index: int, handle: Handle | Future[Handle]) -> None:
        """Charge and release, and give Ax the value. The order in which trials are told is public:
        it must not depend on durations.

        Args:
            index: of a trial from `ask`.
            handle: of `objective.evaluate` at its point, or the Future of `objective.submit`. A
                future with the exception of a fit ends the trial, which is raised.

        Raises:
            InputError: another trial's handle, or a trial without a point; nothing was charged.
            BudgetExceeded: another process took the last evaluation; the trial is abandoned.
            LedgerUnavailable: the drawn value waits for the ledger; tell the same handle again.
            PrivateFailure, BrokenExecutor: the score failed on private records, or its worker died.
                Ax is not told, and the trial can be tried again.
        """
        if index not in self._running:
            raise InputError("index", index, "a trial that was asked for and has no value yet")
        try:
            ready = handle.result() if isinstance(handle, Future) else handle
        except (PrivacyError, *LOST):
            raise
        except Exception:
            self.abandon(index)
            raise
        if ready.details.get("x") != self._running[index].tolist():
            raise InputError("handle", ready, f"the handle of trial {index}")
        try:
            Y, Yvar = self.objective.release(ready)
        except LedgerUnavailable:
            self._unstored[index] = ready
            raise
        except BudgetExceeded:
            self.abandon(index)
            raise
        self._seen.add(ready.id)
        self._complete(index, self._running.pop(index), Y.item(), Yvar.item())

    def abandon(self, index: int) -> None:
        """End a trial without a value, at no charge; its point is not proposed again."""
        self.client.mark_trial_abandoned(index)
        del self._running[index]

    def run(self, trials: Count | None = None) -> None:
        """Ask, evaluate and tell, one trial after another; first those that have no value yet.

        Args:
            trials: number of new trials; omitted, as many as the budget covers.

        Raises:
            BudgetExceeded, LedgerUnavailable, PrivateFailure, BrokenExecutor: as `tell`.
            Any exception of the fit, which ends its trial: nothing was charged.
        """
        begun = 0
        while True:
            for index, x in list(self._running.items()):
                job: Future[Handle] = Future()
                try:
                    job.set_result(self._unstored.get(index) or self.objective.evaluate(x))
                except Exception as error:
                    job.set_exception(error)
                self.tell(index, job)
            if begun == trials or not self.ask():
                return
            begun += 1

    def resume(self) -> int:
        """Tell Ax every released value that it was not told, by another process or an earlier one;
        returns how many.
        """
        added = 0
        for value in self.objective.curator.ledger.values(self.objective.name):
            entry = value["handle"]
            if entry in self._seen:
                continue
            self._seen.add(entry)
            x = self.space.bounds.new_tensor(value["details"]["x"])
            index = self._attached(x)
            if index is not None:
                self._complete(index, x, value["value"][0], value["variance"][0])
                added += 1
        return added

    def recommended(self) -> Recommendation:
        """The point of highest posterior mean of those that Ax was told of, which is not the trial
        of highest score: that one is the luckiest.
        """
        X, Y, Yvar = self.objective.history()
        inside = [tuple(x) in self._inside for x in X.tolist()]
        held = torch.tensor(inside, dtype=torch.bool, device="cpu")
        return recommended(self.space, X[held], Y[held], Yvar[held])

    def _attached(self, x: torch.Tensor) -> int | None:
        """A new trial at a point; None where it lies outside the space or the constraints."""
        if not self._encoding.holds_point(x):
            return None
        try:
            return self.client.attach_trial(self._encoding.shown(x))
        except ValueError:
            return None

    def _complete(self, index: int, x: torch.Tensor, mean: float, variance: float) -> None:
        self._inside.add(tuple(x.tolist()))
        self.client.complete_trial(index, raw_data={METRIC: (mean, math.sqrt(variance))})


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
