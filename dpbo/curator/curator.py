"""The curator owns the private records, and `release` is the only door.

handle = curator.evaluate(ClippedMean(score, model, score_range=(0, 1)))     # free, may be retried; nothing leaves
release = curator.release(handle, GaussianMechanism(20.0))                   # charged first, then drawn, then stored
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, NoReturn

import numpy as np
import torch

from dpbo.accounting.filters import Accounting, GDPFilter
from dpbo.curator.birth import birth, require_own_role, require_plan_terms, require_row_change, require_terms
from dpbo.curator.distributed import Alone, Books, Together
from dpbo.curator.entropy import system_entropy
from dpbo.curator.handle import Handle, Job, Opaque, handed_in, shown
from dpbo.curator.ledger import Ledger
from dpbo.curator.pending import Deliveries
from dpbo.curator.record_fingerprints import RepeatedRecordsWarning, Sketch, is_protected, remember, require_same
from dpbo.curator.records import PrivateView, count_records
from dpbo.curator.reporting import compose_statement
from dpbo.errors import InputError, LedgerError, PrivacyError, PrivateFailure, RanksDisagree
from dpbo.events import Event
from dpbo.mechanisms.mechanism import Entropy, Law, Mechanism
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, RowChange
from dpbo.queries.query import Failure, IntegerSum, Query
from dpbo.release import Release
from dpbo.statement import Statement
from dpbo.validation import Index, Name, checked, require_json, warn

_COLLECTIVE = frozenset({"__init__", "bind", "evaluate", "release", "release_all", "reserve"})  # every rank calls them
_FAILURES = {
    "shape": "The score did not return one row of real numbers a record, on private records, beyond single units.",
    "exception": "The score failed on private records, beyond single units. Let it return NaN for records it cannot take.",
    "mutated": "The private records were changed in place, by the score or from outside. Score a copy, and make a new Curator.",
    "source": "The Source could not load the records in this process.",
}


@checked
class Curator(Opaque):
    """Swallows private records and answers questions about them within a budget.

    Args:
        records: a tensor, array, DataFrame, a (nested) tuple or dict of them, anything with `len` that the score understands, or a
            `Source`.
        unit: who is protected; with `groups=` all records of one label together.
        adjacency: REPLACE_ONE (the number of units is public), ADD_OR_REMOVE_ONE, or BOUNDED_ROW_CHANGE with its `row_change`.
        budget: the cap on everything this ledger ever releases.
        dataset: name of what is protected; required with `ledger`. Two studies on one data set share one ledger and add up.
        ledger: file name or SQLAlchemy URL. Omitted: in memory, and the statement begins "this process only".
        accounting: the filter that guards the cap, or `Planned` with every event there will be.
        role: what these records are for: "validation", "training" or "candidate".
        example: a few public records of the same form, on which a score is tried first: one that is NaN for all of them, out of its range
            for most, or does not score each by itself is refused before anything is charged. Omitted: zeros, for tensors and arrays.
        row_change: how far a row moves under BOUNDED_ROW_CHANGE.
        allow_conditional: whether questions may be released whose sensitivity rests on assumptions about the data.
        allow_repeated: whether records may be asked that this process has asked under another ledger already, where this ledger is in
            memory; the statement then says that what the others released comes on top. Otherwise that is warned of (`DPSearch` refuses).
        entropy: source of noise. Anything but the default voids the statement; for tests.
        ranks: `Ranks()`, where the records are this process's shard of what several hold together. Then every rank calls the same methods
            in the same order; `ledger` and `entropy` are the first rank's.

    Raises:
        InputError: an argument outside its range. LedgerMismatch: the ledger was born for something else. RanksError: see `Ranks`.
    """

    def __init__(
        self,
        records: Any,
        *,
        unit: PrivacyUnit,
        adjacency: Adjacency,
        budget: Budget,
        dataset: str | None = None,
        ledger: str | None = None,
        accounting: Accounting | None = None,
        role: str = "validation",
        example: Any = None,
        row_change: RowChange | None = None,
        allow_conditional: bool = False,
        allow_repeated: bool = False,
        entropy: Entropy = system_entropy,
        ranks: Together | None = None,
    ) -> None:
        chosen = accounting if accounting is not None else GDPFilter()
        if ranks is not None and not hasattr(ranks, "together"):
            raise InputError("ranks", type(ranks).__name__, "dpbo.Ranks(), or Ranks(group) for some processes alone")
        self._ranks: Together = ranks if ranks is not None else Alone()
        self.__answers: weakref.WeakKeyDictionary[Handle, tuple[Query, IntegerSum]] = weakref.WeakKeyDictionary()
        self._mutated = False
        self._lock = threading.RLock()
        self._entropy, self._allow_conditional, self._allow_repeated = entropy, allow_conditional, allow_repeated
        self._remembered = False
        self._adjacency, self._budget, self._accounting, self._row_change = adjacency, budget, chosen, row_change

        def swallowed() -> PrivateView:
            require_terms(unit, adjacency, budget, dataset, ledger, role)
            require_row_change(row_change, adjacency, unit)
            chosen.cap(budget)  # refuses a budget the filter cannot serve
            if example is not None:
                count_records(example)
            return PrivateView.of(records, unit, units_are_public=adjacency.replaces, shard=self._ranks.size > 1)

        grouped = getattr(unit, "groups", None) is not None
        terms = (getattr(unit, "name", None), grouped, adjacency, budget, dataset, chosen.name, role, row_change, allow_conditional,
                 allow_repeated)  # fmt: skip
        view = self._ranks.together("make a Curator", terms, swallowed)
        self.__view = self._ranks.whole(view, unit.groups, public=adjacency.replaces)
        self._example = example if example is not None else self.__view.zeros()
        self._examined: set[Any] = set()
        self._books = Books(self._ranks, ledger, birth(unit, adjacency, budget, dataset, chosen, role, row_change, self.units))
        self._deliveries = Deliveries(self._books.own)
        self._examined_all = example is None or any(self.ledger.head().used.values())  # a run that is resumed may begin at a bad point
        if allow_conditional:
            self._books.note("assume", "conditional-allowed")
        if allow_repeated and not self.ledger.storage.persistent:
            self._books.note("assume", "repeated-records")
        if self._ranks.size > 1 and not grouped:
            self._books.note("assume", "shards-are-disjoint")
        if self._ranks.first("choose entropy", (), lambda: entropy is not system_entropy):
            self._books.note("void", "noise came from a source that can be repeated")

    @property
    def adjacency(self) -> Adjacency:
        """The relation under which every release is private."""
        return self._adjacency

    @property
    def budget(self) -> Budget:
        """The cap on everything its ledger releases."""
        return self._budget

    @property
    def accounting(self) -> Accounting:
        """The filter that guards the cap."""
        return self._accounting

    @property
    def ledger(self) -> Ledger:
        """What was promised, charged and released; on several ranks a copy of the first one's, as all saw it last."""
        return self._books.seen

    @property
    def units(self) -> int | None:
        """Number of units where it is public, else None."""
        return self.__view.public_units

    @property
    def rank(self) -> int:
        """Of this process among those that share the records; 0 alone."""
        return self._ranks.rank

    @property
    def ranks(self) -> int:
        """How many processes share the records."""
        return self._ranks.size

    @classmethod
    def rehearsal(cls, records: Any, **settings: Any) -> Curator:
        """A curator over public stand-in records: the same steps and errors, in memory, nothing spent, statement void."""
        curator = cls(records, **{**settings, "ledger": None})
        curator._books.note("void", "rehearsal on public stand-in records: nothing was protected and nothing was spent")
        return curator

    def evaluate(self, query: Query, **details: Any) -> Handle:
        """Answer a query inside, for a later release. Free: nothing leaves.

        Args:
            query: the question.
            details: public JSON values to keep in the ledger with its release, such as x.

        Raises:
            ScoreError: it fails on public records. PrivateFailure: it fails on private ones beyond single units.
        """

        def tried() -> IntegerSum | Failure:
            require_json("details", details)
            return self._tried(query)

        return self._accept(query, details, self._ranks.sum(f"evaluate {type(query).__name__}", (query, details), tried))

    def submit(self, query: Query, executor: Executor, **details: Any) -> Future[Handle]:
        """`evaluate` on any executor: a future of a handle.

        Clipped integer sums come back from the worker, and the raw losses of questions that keep them for later ones. Not on several ranks,
        which are the workers there.

        The future raises what `evaluate` raises; an error of the executor itself as it is where a worker was lost, else as PrivateFailure:
        such as that the job does not pickle, which may show records.
        """
        if self._ranks.size > 1:
            raise InputError("executor", type(executor).__name__, "left out on several ranks", "Each evaluates its own shard.")
        require_json("details", details)
        details, job = copy.deepcopy(details), self._job(query)  # as they are now, whatever becomes of them while a worker is busy
        promised: Future[Handle] = Future()

        def deliver(done: Future[IntegerSum | Failure]) -> None:
            try:
                if (error := done.exception()) is not None:
                    promised.set_exception(shown(error))
                else:
                    promised.set_result(self._accept(query, details, done.result()))
            except BaseException as error:  # the waiting caller gets it
                promised.set_exception(error)

        promised.set_running_or_notify_cancel()
        handed_in(job, executor).add_done_callback(deliver)
        return promised

    def release(self, question: Query | Handle, mechanism: Mechanism) -> Release:
        """Charge, then draw, then store, then return one answer. A handle released twice gives its one value again.

        Raises:
            BudgetExceeded: more than is left; nothing was charged. ReleaseLost: charged earlier, but never delivered.
        """
        handle = question if isinstance(question, Handle) else self.evaluate(question)
        return self.release_all([handle], mechanism)[0]

    def release_all(
        self,
        handles: Collection[Handle],
        mechanism: Mechanism,
        *,
        name: Name = "release",
        plan: Name | None = None,
        used: Index | None = None,
    ) -> tuple[Release, ...]:
        """Release several answers as one ledger entry of so many slots, each with the noise of a release of its own.

        Slots are independent and charged as so many; Gaussians of noise_multiplier M are together exactly mu-GDP, mu^2 = slots / M^2.
        With `used`, a plan that has used another number of slots refuses, uncharged (LedgerError): somebody else took a step.
        """

        def released() -> tuple[Release, ...]:
            self._deliveries.store()
            if fresh := self._deliveries.fresh(handles):
                self._release_fresh(fresh, mechanism, name, plan, used)
            return tuple(map(self._deliveries.of, handles))

        with self._lock:
            return self._books.by_first(f"release {name}", (list(handles), mechanism, plan, used), released)

    def deliver(self) -> None:
        """Store what was paid for and drawn while the ledger was out of reach. Every release begins with it; whoever finds a charge without
        a value calls it first, because that value may wait here.

        Raises LedgerUnavailable where the ledger still is.
        """
        with self._lock:
            self._books.by_first("deliver", (), self._deliveries.store)

    def reserve(
        self, name: Name, event: Event, *, slots: int, terms: Mapping[str, Any], parallel: bool = False, limit: int | None = None
    ) -> Event:
        """Take the cost of `slots` times `event` from the budget now, under a name that later sessions can resume.

        A parallel plan releases answers that each depend on one record alone (`Query.part`), and at most so many for any one:
        neighbours differ in one record, so all its releases together cost what those of one record do. Records are known by their places,
        hence the assumption `records-keep-their-places`. `limit`: answers of a parallel plan in all.
        Returns the event of one slot: this one, or what an earlier session reserved under this name and these terms.

        Raises:
            InputError: terms with data assumptions that this curator does not allow, with an unknown role, or that count what the ledger
            counts; a parallel plan whose places mean nothing. LedgerMismatch: the name is taken by a plan with other terms.
        """

        def reserved() -> Event:
            require_json("terms", terms)
            held = json.loads(json.dumps(dict(terms)))  # as the ledger gives them back
            if name not in self._books.own.head().used:
                require_plan_terms(held, self.units)
            self._require_conditions(held.get("assumptions") or {})
            if not parallel:
                return self._books.own.reserve(name, event, slots, held)
            if self.units is None or self._books.own.birth["grouped"] or self._ranks.size > 1:
                allowed = "False where units are groups, their number is private, or they are shared out over ranks"
                raise InputError("parallel", True, allowed, "A part is one record there.")
            self._books.own.note("assume", "records-keep-their-places")
            return self._books.own.reserve(name, event, slots, {**held, "records": self.units}, parallel=True, limit=limit)

        sketch = self._first_asked(event)
        found = self._books.by_first(f"reserve {name}", (event.to_json(), slots, terms, parallel, limit), reserved)
        self._remember(sketch)
        return found

    def bind(self, plan: Name, things: Mapping[str, Any], *, tables: Mapping[str, Any] | None = None, begun: bool) -> None:
        """Refuse to resume a plan with other things than it began with, by fingerprints that are kept beside the ledger (resuming.py).

        Args:
            plan: its name.
            things: what it was given, by name: scores, functions that train, estimators. The records are compared without being named.
            tables: records of other roles, by name, in any order.
            begun: whether the ledger knows the plan; else what is given is what it begins with.

        Raises:
            PlanChanged: names what differs. Nothing was charged.
        """

        def same() -> None:
            whole = self.__view if self._ranks.size == 1 else None  # how records are dealt to ranks is no part of the question
            require_same(self._books.own, whole, plan, things, tables or {}, begun=begun)

        self._books.by_first(f"bind {plan}", (sorted(things), sorted(tables or {}), begun), same)

    def examined(self, query: Query) -> None:
        """Note that this question's score was judged on public records: `example=` does it no more."""
        self._examined.add(_code_of(query))

    def repeats(self) -> bool:
        """Whether some of its records were asked in this process under another ledger, and this one is in memory. For the operator alone:
        two tables share records or do not."""
        if self.ledger.storage.persistent or self._remembered or self._is_void():
            return False
        return is_protected(Sketch.of(self.__view))

    def statement(self, *, delta: float | None = None) -> Statement:
        """What is guaranteed, to whom, under which assumptions. `delta` says where to print epsilon for a budget given as mu."""
        return compose_statement(self._books.own, delta=delta, units=self.units)

    def _release_fresh(self, handles: Sequence[Handle], mechanism: Mechanism, name: str, plan: str | None, used: int | None) -> None:
        laws = [self._law(handle, mechanism) for handle in handles]
        event = self._event(handles, mechanism)
        self._require_allowed(handles)
        sketch = self._first_asked(event)
        entry = self._charge(handles, name, event, plan, used)
        releases = [self._draw(*pair, mechanism, event, entry) for pair in zip(handles, laws, strict=True)]
        self._deliveries.drawn(entry, name, list(zip(handles, releases, strict=True)))
        self._remember(sketch)
        self._deliveries.store()

    def _first_asked(self, event: Event) -> Sketch | None:
        """Fingerprints to remember once the first event is charged. Nothing is promised of a void ledger, nor of what is free."""
        if self._remembered or event.free:
            return None
        self._remembered = self._is_void()
        sketch = None if self._remembered else Sketch.of(self.__view)
        if not (self.ledger.storage.persistent or self._allow_repeated) and is_protected(sketch):
            text = ("some of these records were asked in this process under another ledger, and this one is in memory: what both release "
                    "adds up to more than either states. Give one dataset= and ledger= for both, or allow_repeated=True, which the "
                    "statement then says.")  # fmt: skip
            warn(text, RepeatedRecordsWarning)
        return sketch

    def _remember(self, sketch: Sketch | None) -> None:
        if sketch is not None:
            remember(sketch)
            self._remembered = True

    def _is_void(self) -> bool:
        return self.ledger.void

    def _charge(self, handles: Sequence[Handle], name: str, event: Event, plan: str | None, used: int | None) -> int:
        slots = [self._described(handle) for handle in handles]
        self._deliveries.charged(handles)  # before it is true: an interrupt may come between the commit and its answer
        try:
            return self._books.own.charge(name, event, {"units": self.units, "slots": slots}, plan, used=used)
        except BaseException as error:
            refused = isinstance(error, PrivacyError) and not getattr(error, "uncertain", False)
            if refused or not self._may_be_charged(handles[0]):
                self._deliveries.refused(handles)
            raise

    def _law(self, handle: Handle, mechanism: Mechanism) -> Law:
        query, answer = self._answer(handle)
        return mechanism.law(query.scale(self.adjacency), answer.quanta)

    def _event(self, handles: Sequence[Handle], mechanism: Mechanism) -> Event:
        """What the joint release costs. Raises InputError where its questions are charged differently."""
        plain = mechanism.event(len(handles))
        events = [self._answer(handle)[0].charged(plain, self.adjacency) for handle in handles]
        if any(event != events[0] for event in events):
            raise InputError("handles", f"{len(handles)} questions", "charged alike", "Release sampled and other questions apart.")
        return events[0]

    def _require_allowed(self, handles: Sequence[Handle]) -> None:
        self._require_conditions({name for handle in handles for name in self._answer(handle)[0].data_assumptions()})

    def _require_conditions(self, names: Iterable[str]) -> None:
        conditions = sorted(names)
        if conditions and not self._allow_conditional:
            raise InputError("allow_conditional", False, f"True for a guarantee that rests on {', '.join(conditions)}",
                             "The statement then says what holds without them.")  # fmt: skip

    def _described(self, handle: Handle) -> dict[str, Any]:
        query, _ = self._answer(handle)
        asked = {"query": type(query).__name__, "public": query.public_inputs(), "details": handle.details}
        conditions = dict(query.data_assumptions())
        part = {} if query.part() is None else {"part": query.part()}
        failing = {"failure_probability": p} if (p := query.failure_probability()) else {}
        return {"handle": handle.id, **asked, **part, **({"assumptions": conditions} if conditions else {}), **failing}

    def _tell_ranks(self, method: str, given: Mapping[str, Any], refused: InputError) -> None:
        """A refusal before a collective is one itself: ranks that were asked for something else are told, and do not wait for this one."""
        ranks = vars(self).get("_ranks", given.get("ranks"))
        if method in _COLLECTIVE and ranks is not None and hasattr(ranks, "first"):
            with contextlib.suppress(RanksDisagree):
                ranks.first("refuse an argument", (str(refused),), lambda: None)

    def _may_be_charged(self, handle: Handle) -> bool:
        try:
            return self._books.own.charged(handle.id)
        except LedgerError:
            return True

    def _draw(self, handle: Handle, law: Law, mechanism: Mechanism, event: Event, entry: int) -> Release:
        query, answer = self._answer(handle)
        # whatever the caller has set: an error now would lose what was paid for; and of underflow it, or a warning, would tell of records
        with torch.device("cpu"), np.errstate(all="ignore"):
            drawn = mechanism._sample(answer.numerators, answer.quanta, law, self._entropy)
            value, variance = map(torch.from_numpy, mechanism.publish(drawn, law, query.affine(self.units)))
            variance = variance + torch.as_tensor(query.variance_within(self.units), dtype=torch.float64)
        return Release(value, variance, tuple(drawn.reshape(-1).tolist()), law, event, entry)

    def _job(self, query: Query) -> Job:
        query.require_public(self.adjacency)
        require_own_role(getattr(query, "role", None), self.ledger.birth["role"])
        if self._ranks.size > 1 and not query.adds_up():
            allowed = "one whose answer is a sum over units, such as ClippedMean"
            raise InputError("query", type(query).__name__, allowed, "Ask it of one process with all records.")
        if query.needs_row_change() not in (None, self._row_change):
            raise InputError(
                "row_change", query.needs_row_change(), f"the curator's own, {self._row_change}", "One ledger has one relation."
            )
        if self._mutated:
            raise PrivateFailure(_FAILURES["mutated"])
        kept = tuple(self._kept(handle) for handle in query.handles())
        examined = self._examined_all or _code_of(query) in self._examined
        return Job(query, dataclasses.replace(self.__view, kept=kept), self._example, examined)

    def _tried(self, query: Query) -> IntegerSum | Failure:
        outcome = self._job(query)()
        if isinstance(outcome, Failure):
            self._mutated |= outcome.kind == "mutated"  # here, even where the ranks hear of another one's failure
        return outcome

    def _kept(self, handle: Handle) -> Any:
        _, answer = self._answer(handle)
        if answer.kept is None:
            raise InputError("earlier", handle, "handles of answers that were kept")
        return answer.kept

    def _accept(self, query: Query, details: Mapping[str, Any], outcome: IntegerSum | Failure) -> Handle:
        if isinstance(outcome, Failure):
            self._refuse_failure(outcome)
        self.examined(query)
        handle = Handle(query, details, self._ranks.name())
        with self._lock:
            self.__answers[handle] = query, outcome
        return handle

    def _refuse_failure(self, failure: Failure) -> NoReturn:
        if failure.kind == "interrupted":
            raise KeyboardInterrupt
        self._mutated |= failure.kind == "mutated"
        # nothing is noted: readers of the ledger would learn that the score failed, which `score-total` of every statement covers
        raise PrivateFailure(f"{_FAILURES[failure.kind]} Nothing was charged or noted. Tell nobody but who may see the records.")

    def _answer(self, handle: Handle) -> tuple[Query, IntegerSum]:
        try:
            return self.__answers[handle]
        except (KeyError, TypeError):
            raise InputError("handle", handle, "one that this curator made") from None

    def __repr__(self) -> str:
        return f"<Curator of {self.ledger.birth['dataset'] or 'unnamed'} records, {self.adjacency.value}: opaque>"


def _code_of(query: Query) -> Any:
    """What its score runs, however often it is made anew: examples are tried on it once."""
    asked = getattr(query, "query", query)
    score = getattr(asked, "score", getattr(asked, "loss", type(asked)))
    score = getattr(score, "func", score)
    return getattr(score, "__code__", type(score))
