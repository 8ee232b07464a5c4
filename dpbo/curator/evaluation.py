"""An evaluation as a job for this process or a worker."""

import copy
import functools
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from dpbo.entropy import system_entropy
from dpbo.errors import InputError, PrivacyError, PrivateFailure, ScoreError, UsageError
from dpbo.isolation import INTERRUPTS, PrivateGenerators, interruption, mute_warnings
from dpbo.ledger.birth import Birth
from dpbo.queries.query import Failure, IntegerSum, Outcome, Query, require_per_unit
from dpbo.records.containers import count_records, map_leaves, read_only, versions
from dpbo.records.examples import examine, examine_again, try_one
from dpbo.records.streaming import blocks, to_host
from dpbo.records.view import PrivateView

T = TypeVar("T")
LOST = (BrokenExecutor, CancelledError)
"""What an executor raises for a job that was lost with its worker."""
private_generators = PrivateGenerators(system_entropy)
"""One for all threads of this process."""
FAILURES = {
    "shape": (
        "On private records, beyond single units, the score did not return one row of real numbers"
        " a record."
    ),
    "exception": (
        "The score failed on private records, beyond single units. Let it return NaN for records"
        " that it cannot score."
    ),
    "sum": (
        "The scores of private records could not be added up where the records are, for example"
        " because a GPU has too little memory or is in error: the score did not fail."
    ),
    "mutated": (
        "The private records were changed in place, by the score or from outside. Score a copy, and"
        " make a new Curator."
    ),
    "source": "The Source could not load the records in this process.",
    "rank": "The evaluation failed on another rank, which alone knows why.",
}
"""What a Failure says to those who may see the records."""
_OF_FIT = "Raised by `fit`, before any private record was read."


@dataclass(frozen=True, eq=False)
class Job:
    """Evaluate one query: fit on public things, then score private records. It can be pickled for a
    worker, which is trusted.

    Errors of the public part are raised; what fails on private records comes back as a Failure. A
    worker sends back clipped integer sums, with the raw losses where a question keeps them for
    later ones, and never noise, so a job that dies or runs twice costs nothing. Every job has an id
    of its own: an executor that runs equal calls once (Dask's default) would give two releases one
    Poisson sample.

    Args:
        query: the question.
        view: the private records.
        example: public records on which the score is tried first; None for none.
        probed: whether the score was tried on them before, at length. That it scores two of them by
            themselves is tried for every model.
        judged: whether the scores of these records must be useful, too (`examine`).
    """

    query: Query
    view: PrivateView = field(repr=False)
    example: Any = field(repr=False)
    probed: bool = True
    judged: bool = True
    home: int = field(default_factory=os.getpid)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self) -> Outcome:
        if os.getpid() != self.home:
            torch.set_num_threads(1)  # one thread a worker: nested threads starve each other
        try:
            subject = self.query.prepare()
        except Exception as error:
            error.add_note(_OF_FIT)
            raise
        if self.example is not None:
            self._probe(subject)
        # A library's warning about a record's value would show that value to the operator's
        # notebook. And no frame of what ends this holds an outcome.
        with private_generators, mute_warnings():
            return self._outcome(subject)

    def _outcome(self, subject: Any) -> Outcome:
        try:
            return self._score(subject, self.view)
        except BaseException as error:
            # With private numbers in its frames: between two calls of the score, or in the code of
            # a query of the user's own, whose text may show a record, too.
            if (ended := interruption(error)) is not None:
                return Failure("interrupted", ended)
            public = isinstance(error, PrivacyError) or is_of_dpbo(self.query)
            if public or not isinstance(error, Exception):
                raise
            return Failure("exception")

    def _score(self, subject: Any, view: PrivateView) -> Outcome:
        try:
            before = view.versions()
        except INTERRUPTS:
            raise
        except BaseException:  # a Source may name records in what it raises
            return Failure("source")
        most = self.query.rows_at_once()
        if view.streamed_to is not None:
            outcome = self._sum_over_blocks(subject, blocks(view))
        elif most is not None and view.count > most and view.can_be_views:
            outcome = self._sum_over_blocks(subject, blocks(view, most))
        else:
            outcome = self.query._evaluate(view, subject)
        if view.versions() == before:
            return outcome
        return Failure("mutated")

    def _sum_over_blocks(self, subject: Any, parts: Iterator[PrivateView]) -> Outcome:
        total = torch.tensor(0, device="cpu")
        quanta = tuple[float, ...]()
        kept = []
        for block in parts:
            answer = self._score(subject, block)
            if isinstance(answer, Failure):
                return answer
            total = total + answer.numerators
            quanta = answer.quanta
            kept.append(map_leaves(answer.per_unit, to_host))
        return IntegerSum(total, quanta, None if kept[0] is None else tuple(kept))

    def _probe(self, subject: Any) -> None:
        before = versions(self.example)
        self.query.probe(read_only(self.example), count_records(self.example), subject)
        if versions(self.example) != before:
            raise ScoreError(
                "score must not change records in place; on public stand-in records it did. Score a"
                " copy."
            )
        for place, (score, subject_scored, ranges) in enumerate(
            self.query.per_record_scores(subject)
        ):
            if self.view.one_at_a_time:
                try_one(score, subject_scored, self.example)
            elif self.probed or place:
                examine_again(score, subject_scored, self.example)
            else:
                examine(score, subject_scored, self.example, ranges, judged=self.judged)


def submit_job(job: Job, executor: Executor, accept: Callable[[Outcome], T]) -> Future[T]:
    """The job on an executor: a future of what `accept` makes of its outcome. Raises `public_error`
    of what the executor raises at once.
    """
    promised: Future[T] = Future()

    def finish(done: Future[Outcome]) -> None:
        try:
            if (error := done.exception()) is not None:
                promised.set_exception(public_error(error))
            else:
                promised.set_result(accept(done.result()))
        except BaseException as error:
            # The waiting caller gets it.
            promised.set_exception(error)

    promised.set_running_or_notify_cancel()
    try:
        submitted = executor.submit(job)
    except Exception as raised:
        error = public_error(raised)
    else:
        submitted.add_done_callback(finish)
        return promised
    raise error


def public_error(error: BaseException) -> BaseException:
    """What the caller may see of a job's error: what `fit` raised, and dpbo's own errors, as they
    are.

    Any other error is the executor's. It may show records, as one of pickling does ("Can't pickle
    Patient('Ada Lovelace', ...)"), and so may its cause: only its type is shown, and the executor's
    own text where a worker was lost.
    """
    public = (PrivacyError, KeyboardInterrupt)
    if isinstance(error, public) or _OF_FIT in getattr(error, "__notes__", ()):
        return error
    if (type(error).__module__, type(error).__name__) == ("distributed.scheduler", "KilledWorker"):
        # By its name, since Dask need not be installed. Its workers died too often with this job.
        return BrokenExecutor("Dask's workers died while they evaluated it")
    if isinstance(error, LOST):
        error.__cause__ = error.__context__ = None
        return error
    return PrivateFailure(
        f"The executor raised {type(error).__name__}, whose text may show private records. Nothing"
        " was charged. Score, fit and records must pickle for workers in other processes: lambdas"
        " and functions of a notebook do not. Try pickle.dumps with public records."
    )


def require_askable(query: Query, birth: Birth, *, of_parts: bool) -> None:
    """Raises InputError where this ledger's records cannot be asked this question.

    Args:
        birth: what the ledger is made for.
        of_parts: whether the answer is added up from parts of the records, of several processes or
            blocks.
    """
    query.require_public(birth.adjacency)
    birth.require_role(getattr(query, "role", None))
    require_per_unit(query, grouped=birth.grouped)
    if of_parts and not query.sums_over_units():
        allowed = "one whose answer is a sum over units, such as ClippedMean"
        raise InputError(
            "query",
            type(query).__name__,
            allowed,
            "Ask it of one process with all records, without device=.",
        )
    if birth.one_at_a_time and not (
        query.scores_one_at_a_time() and type(query).__module__.startswith("dpbo.")
    ):
        allowed = "one of dpbo's whose score can get one record at a time, such as ClippedMean"
        raise InputError(
            "query", type(query).__name__, allowed, "Or make the Curator without one_at_a_time."
        )
    if query.needs_row_change() not in (None, birth.row_change):
        allowed = f"the curator's own, {birth.row_change}"
        raise InputError(
            "row_change", query.needs_row_change(), allowed, "One ledger has one relation."
        )


def code_of(query: Query) -> Any:
    """The code of the query's score, the same for every query made of it: examples are tried on it
    once.
    """
    plain = getattr(query, "query", query)
    score = getattr(plain, "score", getattr(plain, "loss", type(plain)))
    while isinstance(score, functools.partial):
        score = score.func
    return getattr(score, "__code__", score if isinstance(score, type) else type(score))


def is_of_dpbo(query: Query) -> bool:
    """Whether the query's class, and that of the one that it samples, is of this package."""
    inner = getattr(query, "query", None)
    classes = [type(part) for part in (query, inner) if isinstance(part, Query)]
    return all(kind.__module__.startswith("dpbo.") for kind in classes)


def as_it_is_now(query: Query) -> Query:
    """The query, or a copy of it where its class is the caller's own.

    Noise, value and ledger follow from a copy that no evaluation has touched. What `_evaluate`
    keeps in the query, such as the number of units, goes with another copy; and what the caller
    changes after the evaluation changes neither.
    """
    if is_of_dpbo(query):
        return query
    try:
        return copy.deepcopy(query)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    raise UsageError(
        f"a {type(query).__name__} must be one that copy.deepcopy can copy, but that raised"
        f" {reason}."
    )
