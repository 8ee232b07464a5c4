"""An executor that is made anew when a killed worker breaks it.

A worker that dies breaks the whole of a process pool (also loky's), with every job in it; threads and Dask do not know this. Nothing is
charged for a job that is lost, so it is simply handed in again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from dpbo.curator.handle import Handle
from dpbo.errors import InputError

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
