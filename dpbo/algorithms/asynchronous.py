"""Bayesian optimisation with many workers: whenever a job is done, the next point is proposed, with those in flight as pending.

search = AsynchronousBO(objective, space, workers=4)
found = search.run(lambda: ProcessPoolExecutor(4, mp_context=get_context("spawn")))      # made anew when a killed worker breaks it
found = search.run(client.get_executor(pure=False))                                      # or Dask, or loky, or threads
best = space.decode(found.x)

Workers send back exact integer sums and draw nothing; this process alone charges, draws and stores, a value at a time. A job that dies
was never charged and is handed in again; Dask does that by itself. So a killed worker costs no charge, and no second noise.

The order of release. How long a score takes may depend on private records, and no noise covers that. `ordered=True` releases in the order
of submission: which points are proposed, and every value, are the same however long each job took (proposal j is made from the values
0 .. j - workers, the others pending), so durations show only to somebody who times the search (the assumption `timing-not-observed` of
every statement). A job that is done early waits for those before it, and its worker is idle. `ordered=False` releases in the order of
finishing and keeps every worker busy, but then that order, and the points that follow from it, stand in the ledger for every reader: the
statement names the further assumption `durations-tell-nothing`. Choose it where durations are public, as of a fit that outweighs the score.
The statement also names it as soon as another search releases under the same plan, because the two then take turns as they finish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import torch

from dpbo.acquisition.expected_improvement import Proposer, Proposes, posterior_mean
from dpbo.curator.handle import LOST, Handle
from dpbo.curator.turns import assume_durations_tell_nothing
from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, PrivacyError, PrivateFailure
from dpbo.objective import PrivateObjective
from dpbo.privacy import require_count
from dpbo.space import Space
from dpbo.validation import checked

# ========== MERGED An executor that is made anew when a killed worker breaks it.
#
# A worker that dies breaks the whole of a process pool (also loky's), with every job in it; threads and Dask do not know this. Nothing is
# charged for a job that is lost, so it is simply handed in again.
#

Executors = Executor | Callable[[], Executor]
_MOST_BREAKS = 3


class Pool:
    """Runs jobs on an executor that its caller keeps, or on those that a callable makes: they are shut down at the end.

    Raises:
        InputError: neither an executor nor callable.
    """

    def __init__(self, executor: Executors) -> None:
        if not isinstance(executor, Executor) and not callable(executor):
            raise InputError("executor", executor, "a concurrent.futures.Executor, or a callable that makes one")
        self._make = None if isinstance(executor, Executor) else executor
        self._executor = executor if isinstance(executor, Executor) else executor()
        self._breaks = 0

    def submit(self, begin: Callable[[Executor], Future[Handle]]) -> Future[Handle]:
        """The future that `begin(executor)` gives; one that is lost where the executor is broken by now."""
        try:
            return begin(self._executor)
        except BrokenExecutor as error:
            lost: Future[Handle] = Future()
            lost.set_exception(error)
            return lost

    def worked(self) -> None:
        """A job came back: breaks are counted anew."""
        self._breaks = 0

    def renew(self, error: BaseException) -> None:
        """Another executor in place of a broken one; raises the error where there is none, or after three breaks without a job."""
        self._breaks += 1
        if self._make is None or self._breaks > _MOST_BREAKS:
            error.add_note("Nothing was charged. A callable that makes an executor, in place of the executor, survives up to three "
                           "breaks in a row; run() again goes on with the same points.")  # fmt: skip
            raise error
        self._executor.shutdown(wait=False)
        self._executor = self._make()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Where something went wrong, jobs that run are not waited for."""
        if self._make is not None:
            self._executor.shutdown(wait=kind is None)


@dataclass(frozen=True, eq=False)
class AsynchronousResult:
    """What was found; everything in it is released or public, and follows from nobody's clock.

    Attributes:
        x: the recommended point, `d`: of the highest posterior mean among those evaluated.
        X, Y, Yvar: all observations under the objective's name: `t x d`, `t x 1`, `t x 1`, in the order of release.
        skipped: points at which `fit` failed, `k x d`.
    """

    x: torch.Tensor
    X: torch.Tensor
    Y: torch.Tensor
    Yvar: torch.Tensor
    skipped: torch.Tensor


@dataclass(eq=False)
class _Job:
    """A point in flight."""

    x: torch.Tensor
    future: Future[Handle]


@checked
class AsynchronousBO:
    """A search with up to `workers` evaluations in flight until the objective's plan is used up; resumed from its history.

    Args:
        objective: of one metric, maximised. Its score and fit must be picklable where workers are processes.
        space: where to look.

    Keyword args:
        workers: evaluations in flight; 1 is the serial search.
        initial: Sobol points before the model is asked; at least 2 values are waited for.
        ordered: release in the order of submission; see above what False saves and what it assumes.
        skip: exceptions of `fit` at which its point is left out, uncharged, and the search looks elsewhere. That `fit` fails there is
            public, because it sees no protected record. At any other error, and when more points were left out than the plan has
            evaluations, `run` raises it.
        propose: where to look next; `Proposer(space)` if omitted.
        seed: of design and proposals, never of the noise.

    Attributes:
        proposing: seconds that each proposal took, for the operator alone: scores that ran beside it on private records slowed it down.

    Raises:
        InputError: an argument outside its range.
    """

    def __init__(
        self,
        objective: PrivateObjective,
        space: Space,
        *,
        workers: int = 4,
        initial: int = 8,
        ordered: bool = True,
        skip: Sequence[type[Exception]] = (),
        propose: Proposes | None = None,
        seed: int = 0,
    ) -> None:
        if objective.metrics != 1:
            raise InputError("objective", objective.metrics, "of one metric", "Combine several in a loop of your own.")
        if any(issubclass(PrivateFailure, kind) for kind in skip):
            raise InputError("skip", "a class of all errors", "made of errors that fit alone raises", "For example (FloatingPointError,).")
        self.objective, self.space = objective, space
        self._workers, self._initial = require_count("workers", workers), max(require_count("initial", initial), 2)
        self._ordered, self._skip, self._seed = ordered, tuple(skip), seed
        self._propose = Proposer(space) if propose is None else propose
        self._jobs: list[_Job] = []
        self._skipped: list[torch.Tensor] = []
        self.proposing: list[float] = []

    def run(self, executor: Executors) -> AsynchronousResult:
        """Search until the plan is used up. After an error, `run` again goes on with the points in flight.

        Args:
            executor: any `concurrent.futures.Executor`, used and left open; or a callable that makes one, called again when a killed
                worker broke it; what it made is shut down at the end.

        Raises:
            BrokenExecutor: the given executor broke, or three in a row did. PrivateFailure: the score failed. LedgerUnavailable: a
            value waits for the ledger, and the next `run` stores it. Whatever `fit` raises and `skip` does not name.
        """
        if self._workers > 1 and not self._ordered:
            assume_durations_tell_nothing(self.objective.curator)
        with Pool(executor) as pool:
            self._begin_again(pool)
            self._fill(pool)
            while self._jobs:
                self._finish(self._next(), pool)
                self._fill(pool)
        return self.result()

    def result(self) -> AsynchronousResult:
        """What was found so far. Raises InputError before the first value."""
        X, Y, Yvar = self.objective.history()
        if len(X) == 0:
            raise InputError("objective", "without values", "one that has released a value", "Run the search first.")
        best = X[posterior_mean(self.space, X, Y, Yvar).argmax()]
        skipped = torch.stack(self._skipped) if self._skipped else X[:0]
        return AsynchronousResult(best, X, Y, Yvar, skipped)

    def _fill(self, pool: Pool) -> None:
        """Propose and submit until all workers have a job, or every slot that is left has one."""
        while len(self._jobs) < min(self._workers, self.objective.remaining):
            x = self._proposal()
            self._jobs.append(_Job(x, self._begun(x, pool)))

    def _begun(self, x: torch.Tensor, pool: Pool) -> Future[Handle]:
        return pool.submit(lambda executor: self.objective.submit(x, executor))

    def _next(self) -> _Job:
        """The job to finish now: the oldest one, or the first that is done."""
        oldest = self._jobs[0].future
        done, _ = wait([oldest] if self._ordered else [job.future for job in self._jobs], return_when=FIRST_COMPLETED)
        return next(job for job in self._jobs if job.future in done)

    def _finish(self, job: _Job, pool: Pool) -> None:
        """Release one job's value; or skip its point, or hand it in again."""
        try:
            handle = job.future.result()
        except LOST as error:
            self._again(error, pool)
            return
        except Exception as error:
            self._jobs.remove(job)
            refused = isinstance(error, PrivacyError) or not isinstance(error, self._skip)
            if refused or len(self._skipped) >= self.objective.evaluations:  # a fit that never works would be asked for ever
                raise
            self._skipped.append(job.x)
            return
        pool.worked()
        self._release(job, handle)

    def _release(self, job: _Job, handle: Handle) -> None:
        """Charge, draw and store one value. A job that could not be stored stays: released again, a handle gives its one value."""
        try:
            self.objective.release(handle)
        except LedgerUnavailable:
            raise
        except BudgetExceeded:  # another process took this plan's last slot: nothing was charged here
            self._jobs.remove(job)
            if self.objective.remaining:
                raise
        except PrivacyError:
            self._jobs.remove(job)
            raise
        else:
            self._jobs.remove(job)

    def _again(self, error: BaseException, pool: Pool) -> None:
        """Hand in every job that was lost with its executor to another one."""
        wait([job.future for job in self._jobs])  # all that a broken executor had fail at once
        pool.renew(error)
        self._begin_again(pool)

    def _begin_again(self, pool: Pool) -> None:
        """Hand in the jobs that were lost or interrupted, now or in an earlier run: same points, same order."""
        for job in self._jobs:
            if job.future.done() and isinstance(job.future.exception(), (*LOST, KeyboardInterrupt)):
                job.future = self._begun(job.x, pool)

    def _proposal(self) -> torch.Tensor:
        """The next point, `d`, from what is released and what is in flight."""
        X, Y, Yvar = self.objective.history()
        pending = [job.x for job in self._jobs] + self._skipped
        made = len(X) + len(pending)
        if made < self._initial or len(X) < 2:
            return self._designed([*X, *pending])
        start = time.perf_counter()
        x = self._propose(X, Y, Yvar, torch.stack(pending) if pending else X[:0], seed=1000 * self._seed + made)[0]
        self.proposing.append(time.perf_counter() - start)
        return x

    def _designed(self, taken: Sequence[torch.Tensor]) -> torch.Tensor:
        """The first point of the public design that nobody took yet."""
        design = self.space.sample(len(taken) + 1, seed=self._seed)
        return next((x for x in design if not any(torch.equal(x, other) for other in taken)), design[-1])
