"""Bayesian optimisation with several workers: whenever an evaluation is done, the next point is
proposed, with the others pending.

    search = AsynchronousBO(objective, space, workers=4)
    # made again if a killed worker breaks it
    result = search.run(lambda: ProcessPoolExecutor(4, mp_context=get_context("spawn")))
    # or Dask, loky, threads
    result = search.run(client.get_executor(pure=False))
    best = space.decode(result.x)

Workers return exact integer sums and draw no noise. This process alone charges, draws and stores,
one value at a time. A job whose worker died was never charged and is submitted again (Dask does
that itself), so a killed worker costs neither budget nor a second noise.

Order of release. How long a score takes may depend on private records, and no noise covers that.

- `ordered=True` releases in the order of submission. Points and values are the same however long
  each job took: point j depends on the values 0 .. j - workers, with the others pending. Durations
  show only to an observer who times the search (the assumption `timing-not-observed` of every
  statement). A job that is done early waits for those before it, and its worker is idle.
- `ordered=False` releases as jobs finish and keeps every worker busy. The order of release, and the
  points that follow from it, then stand in the ledger, and the statement names the further
  assumption `durations-tell-nothing`. Choose it where durations are public, for example if the fit
  takes far longer than the score.

The statement also names that assumption as soon as another search releases under the same plan,
because both then release as they finish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import torch

from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.curator.evaluation import LOST
from dpbo.curator.handle import Handle
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerUnavailable,
    PrivacyError,
    PrivateFailure,
    UsageError,
    WorkersDied,
)
from dpbo.objective import PrivateObjective
from dpbo.space import Space
from dpbo.validation import Count, checked

Executors = Executor | Callable[[], Executor]
# (X, Y, Yvar, pending, seed=): `t x d`, `t x 1`, `t x 1`, `k x d`; the answer is `1 x d`
Proposes = Callable[..., torch.Tensor]
_MOST_BREAKS = 3


def require_of_fit(name: str, errors: Sequence[type[Exception]]) -> None:
    """Raises InputError for a kind of error that a score may raise on private records, too."""
    for kind in errors:
        if issubclass(PrivateFailure, kind):
            raise InputError(
                name,
                kind.__name__,
                "errors that only fit raises",
                "For example (FloatingPointError,).",
            )


class Pool:
    """Runs jobs on an executor, as `AsynchronousBO.run` describes it. A worker that dies breaks a
    process pool with every job in it.

    Attributes:
        breaks: number of executors in a row that broke before a job was finished.
    """

    def __init__(self, executor: Executors) -> None:
        self._make = None
        if not isinstance(executor, Executor):
            self._make = executor
            executor = executor()
        self._executor = executor
        self.breaks = 0

    def submit(self, begin: Callable[[Executor], Future[Handle]]) -> Future[Handle]:
        """The future that `begin(executor)` gives, or a failed future if the executor is broken."""
        try:
            return begin(self._executor)
        except BrokenExecutor as error:
            lost: Future[Handle] = Future()
            lost.set_exception(error)
            return lost

    def renew(self, error: BaseException) -> None:
        """Replace a broken executor. Raises WorkersDied if no callable was given, or after three
        breaks without a finished job.
        """
        self.breaks += 1
        if self._make is None:
            raise WorkersDied(
                "A worker process died: it was killed, ran out of memory, or the score or fit ended"
                " it. Nothing was charged. Call run() again with a callable that makes an executor,"
                " such as run(lambda: ProcessPoolExecutor(4)): it replaces dead workers and goes on"
                " with the same points."
            ) from error
        if self.breaks > _MOST_BREAKS:
            raise WorkersDied(
                f"Workers died {self.breaks} times without finishing an evaluation: the score or"
                " fit ends its process, or memory runs out. Nothing was charged. Try score and fit"
                " on public records in one process; run() again goes on with the same points."
            ) from error
        self._executor.shutdown(wait=False)
        self._executor = self._make()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._make is not None:
            # after an error, running jobs are not waited for
            self._executor.shutdown(wait=kind is None)


@dataclass(frozen=True, eq=False)
class AsynchronousResult:
    """The result of an `AsynchronousBO`; everything in it is released or public.

    Attributes:
        x: the evaluated point with the highest posterior mean, `d`.
        X, Y, Yvar: all points, values and noise variances under the objective's name, in the order
            of release: `t x d`, `t x 1`, `t x 1`.
        skipped: points at which `fit` failed, `k x d`.
    """

    x: torch.Tensor
    X: torch.Tensor
    Y: torch.Tensor
    Yvar: torch.Tensor
    skipped: torch.Tensor


@dataclass(eq=False)
class _Job:
    """A point that is being evaluated."""

    x: torch.Tensor
    future: Future[Handle]


@checked
class AsynchronousBO:
    """A search with up to `workers` evaluations at a time, until the objective's plan is used up.
    It resumes from the objective's history.

    Args:
        objective: of one metric, maximised. Its score and fit must be picklable if workers are
            processes.
        space: the space of the points.
        workers: number of evaluations at a time; 1 is the serial search.
        initial: number of Sobol points before the model proposes; the model waits for at least 2
            values.
        ordered: release in the order of submission; the module's text says what False gains and
            assumes.
        skip: exceptions of `fit` after which its point is skipped, uncharged. Such a failure is
            public, because `fit` sees no protected record. `run` raises any other error, and also
            these once more points were skipped than the plan has evaluations.
        propose: proposes the next point; `suggest` on a SingleTaskGP if omitted.
        seed: seed of design and proposals, not of the noise.

    Attributes:
        proposing: seconds that each proposal took, for the operator only: scores of private records
            that ran meanwhile slowed it down.

    Raises:
        InputError: an argument outside its range.
    """

    def __init__(
        self,
        objective: PrivateObjective,
        space: Space,
        *,
        workers: Count = 4,
        initial: Count = 8,
        ordered: bool = True,
        skip: Sequence[type[Exception]] = (),
        propose: Proposes | None = None,
        seed: int = 0,
    ) -> None:
        if objective.metrics != 1:
            raise InputError(
                "objective",
                objective.metrics,
                "of one metric",
                "Combine several metrics in a loop of your own.",
            )
        require_of_fit("skip", skip)
        self.objective = objective
        self.space = space
        self._workers = workers
        self._initial = max(initial, 2)
        self._ordered = ordered
        self._skip = tuple(skip)
        self._seed = seed
        self._propose = self._suggested if propose is None else propose
        self._jobs: list[_Job] = []
        self._skipped: list[torch.Tensor] = []
        self.proposing: list[float] = []

    def run(self, executor: Executors) -> AsynchronousResult:
        """Search until the plan is used up. After an error, calling `run` again goes on with the
        unfinished points.

        Args:
            executor: any `concurrent.futures.Executor`, which is used and left open; or a callable
                that makes one. The callable is called again if a killed worker broke its executor,
                and what it made is shut down at the end.

        Raises:
            WorkersDied: a BrokenExecutor; the given executor broke, or more than three in a row
                did.
            PrivateFailure: the score failed.
            LedgerUnavailable: the ledger could not be written; the next `run` stores the value.
            Exception: whatever `fit` raises and `skip` does not name.
        """
        if self._workers > 1 and not self._ordered:
            self.objective.curator.assume("durations-tell-nothing")
        with Pool(executor) as pool:
            self._submit_again(pool, Exception, KeyboardInterrupt)
            self._fill(pool)
            while self._jobs:
                self._finish_one(pool)
                self._fill(pool)
        return self.result()

    def result(self) -> AsynchronousResult:
        """The result so far. Raises UsageError before the first value."""
        X, Y, Yvar = self.objective.history()
        if len(X) == 0:
            raise UsageError("the objective has released no value yet: run the search first.")
        best = X[posterior_mean(self.space, X, Y, Yvar).argmax()]
        skipped = torch.stack(self._skipped) if self._skipped else X[:0]
        return AsynchronousResult(best, X, Y, Yvar, skipped)

    def _fill(self, pool: Pool) -> None:
        """Propose and submit until every worker, or every evaluation that is left, has a job."""
        while len(self._jobs) < min(self._workers, self.objective.remaining):
            x = self._next_point()
            self._jobs.append(_Job(x, self._submitted(x, pool)))

    def _submitted(self, x: torch.Tensor, pool: Pool) -> Future[Handle]:
        return pool.submit(lambda executor: self.objective.submit(x, executor))

    def _submit_again(self, pool: Pool, *errors: type[BaseException]) -> None:
        """Submit the jobs that ended with one of these errors once more, in their order."""
        for job in self._jobs:
            if job.future.done() and isinstance(job.future.exception(), errors):
                job.future = self._submitted(job.x, pool)

    def _finish_one(self, pool: Pool) -> None:
        """Wait for a job (the oldest, or the first that is done) and release its value. Skip its
        point if `fit` failed as allowed.
        """
        waiting = self._jobs[:1] if self._ordered else self._jobs
        done, _ = wait([job.future for job in waiting], return_when=FIRST_COMPLETED)
        job = next(job for job in self._jobs if job.future in done)
        try:
            handle = job.future.result()
        except LOST as error:
            # a broken executor fails all its jobs
            wait([each.future for each in self._jobs])
            pool.renew(error)
            self._submit_again(pool, *LOST)
            return
        except Exception as error:
            allowed = isinstance(error, self._skip) and not isinstance(error, PrivacyError)
            # A fit that always fails would never end. The job stays for the next `run`: nothing was
            # charged for it.
            if not allowed or len(self._skipped) >= self.objective.evaluations:
                raise
            self._jobs.remove(job)
            self._skipped.append(job.x)
            return
        pool.breaks = 0
        try:
            self.objective.release(handle)
        except LedgerUnavailable:
            # the job stays: a handle released again gives its one value
            raise
        except PrivacyError as error:
            self._jobs.remove(job)
            if not isinstance(error, BudgetExceeded) or self.objective.remaining:
                # else another process took the plan's last evaluation; nothing was charged here
                raise
        else:
            self._jobs.remove(job)

    def _suggested(
        self,
        X: torch.Tensor,
        Y: torch.Tensor,
        Yvar: torch.Tensor,
        pending: torch.Tensor,
        *,
        seed: int,
    ) -> torch.Tensor:
        return suggest(self.space, X, Y, Yvar, seed=seed, pending=pending)

    def _next_point(self) -> torch.Tensor:
        """The next point, `d`: of the public design, or proposed from the released values with the
        unfinished points pending.
        """
        X, Y, Yvar = self.objective.history()
        pending = [job.x for job in self._jobs] + self._skipped
        count = len(X) + len(pending)
        if count < self._initial or len(X) < 2:
            taken = [*X, *pending]
            for x in self.space.sample(count + 1, seed=self._seed):
                if not any(torch.equal(x, other) for other in taken):
                    break
            # the last point where none is free
            return x
        start = time.perf_counter()
        waiting = torch.stack(pending) if pending else X[:0]
        x = self._propose(X, Y, Yvar, waiting, seed=1000 * self._seed + count)[0]
        self.proposing.append(time.perf_counter() - start)
        return x
