"""The curator holds the private records, and `release` is the only way out for an answer.

# free, may be retried; nothing leaves
handle = curator.evaluate(ClippedMean(score, model, score_range=(0, 1)))
# charged first, then drawn, then stored
release = curator.release(handle, GaussianMechanism(20.0))
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pathlib
import weakref
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from dpbo.accounting.filters import Accounting, GDPFilter, PureFilter
from dpbo.curator.evaluation import (
    FAILURES,
    Job,
    as_it_is_now,
    code_of,
    require_askable,
    submit_job,
)
from dpbo.curator.handle import Handle
from dpbo.curator.hidden_draws import HiddenDraws
from dpbo.curator.pricing import Noise, slot_noise
from dpbo.curator.ranks import OneProcess, Ranks, collective
from dpbo.curator.releasing import Drawn, Releases, published, sampled, terms_of
from dpbo.curator.reservation import Reservation
from dpbo.curator.statements import BudgetUse, compose_statement
from dpbo.entropy import system_entropy
from dpbo.errors import ORDER, InputError, PrivateFailure, UsageError
from dpbo.events import Event
from dpbo.fingerprint import Reached
from dpbo.isolation import mute_warnings
from dpbo.ledger.birth import Birth, require_reservation_terms
from dpbo.ledger.fingerprints import key_of, require_same
from dpbo.ledger.lock import ProcessLock
from dpbo.mechanisms.mechanism import Entropy, Mechanism, NoiseDistribution
from dpbo.notebook import facts_table
from dpbo.places import ledger_of
from dpbo.privacy import (
    Adjacency,
    Budget,
    DeltaWarning,
    PrivacyUnit,
    RowChange,
    describe_budget,
    warn_of_delta,
)
from dpbo.queries.query import Failure, IntegerSum, Outcome, Query
from dpbo.records.containers import count_records, leaves, map_leaves, require_converted
from dpbo.records.digests import RowDigests, digest_of_sums, table_digest
from dpbo.records.form import Form, form_of, require_known_form
from dpbo.records.labels import require_one_index, warn_if_named
from dpbo.records.opaque import Opaque
from dpbo.records.protected_records import ProtectedRecords
from dpbo.records.sources import Source
from dpbo.records.view import PrivateView
from dpbo.release import Release
from dpbo.statement import Guarantee, Statement
from dpbo.validation import Count, Index, Name, checked, printable, require_json

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger


@collective("assume", "bind", "deliver", "evaluate", "release", "release_all", "reserve")
@checked
class Curator(Opaque):
    """Holds private records and releases noisy answers within a budget.

    Each release is charged to the ledger before its noise is drawn. What the budget
    cannot pay for is refused.

    ============================  ===================================================
    `release(query, mechanism)`   an answer with noise: value and variance
    `evaluate`, `submit`          the exact answer, which stays inside until released
    `reserve`                     budget for later releases, under a name that resumes
    `spent`, `remaining_epsilon`  what was paid, and what is left
    `ledger`, `statement()`       every release, and what all together guarantee
    ============================  ===================================================

    >>> import dpbo, torch
    >>> from dpbo.mechanisms import GaussianMechanism
    >>> from dpbo.queries import ClippedMean
    >>> ages, budget = 100 * torch.rand(1000, 1), dpbo.Budget(epsilon=1.0, delta=1e-6)
    >>> curator = dpbo.Curator(ages, unit="person", adjacency="replace-one", budget=budget)
    >>> adult = ClippedMean(lambda _, records: records[:, 0] >= 18, score_range=(0, 1))
    >>> share = curator.release(adult, GaussianMechanism(20.0))  # 20 x what one can move
    >>> print(share.variance.sqrt(), curator.statement().guarantee)
    tensor([0.0200], dtype=torch.float64) (1.000, 1e-06)-DP, 0.2368-GDP

    Args:
        records: a tensor, array, DataFrame, a (nested) tuple or dict of them, anything with `len`
            that the score understands, or a `Source`.
        unit: who is protected; with `PrivacyUnit(name, groups=labels)` all records of one label
            together. A name alone protects one record.
        adjacency: REPLACE_ONE (the number of units is public) or ADD_OR_REMOVE_ONE, also by name,
            such as "replace-one"; or a `RowChange`, how far one row may move.
        budget: the cap on everything that this ledger ever releases. A delta above 1/units warns
            (`DeltaWarning`) where their number is public.

    Ledger args:
        dataset: name of what is protected. All studies of this name on this machine share one
            ledger, and so one budget, whatever folder they are run from. Omitted: the ledger is in
            memory, and the statement begins "this process only".
        ledger: another place than the user's state folder (`~/.local/state/dpbo`, moved by
            the environment variable `DPBO_STATE`): a file name, path or SQLAlchemy URL. Studies on
            several machines need a server's.
        accounting: the filter that guards the cap, or `Planned` with every event there will be;
            omitted, `GDPFilter()`.
        role: what the records are for: "validation", "training" or "candidate".

    Score args:
        example: a few public records of the same form, on which a score is tried first. It is
            refused, before anything is charged, where it is NaN for all of them, out of its range
            for most, not repeatable, or does not score each by itself; the last is tried for every
            model, on two of them. Omitted, a score is tried on made-up numbers in place of tensors
            and arrays, with labels 0 and 1, since which classes there are is not known (other
            records: not at all), and its range and NaN are not tested before a charge.
            Records that cannot be taken apart are not tried on one another. Records in tables, and
            in arrays of other things than numbers, are cast to the form of these, cell by cell
            (records/form.py): without, they are refused.
        schema: public records whose form counts in place of that of `example`, such as the whole
            public table, or one without rows; the score is not tried on them. Or a `Form` of them.
        one_at_a_time: True gives every score one record at a time, with a copy of the model of its
            own. Then the guarantee no longer rests on the assumption `score-per-record`, but on
            less: that the score keeps nothing of a record for the next one. It takes about a
            millisecond a record with scikit-learn, a tenth of that with a small network. Only for
            queries whose user's code can be called so, such as means, sums, cells, candidates,
            quantiles, gradients and outcomes. A ledger is for one way of scoring.

    Permission args:
        allow_conditional: True permits queries whose sensitivity is proven only under an assumption
            about the data, such as `dpbo.papers.kusner.KusnerSearch`, which assumes that scores are
            drawn from a Gaussian process. The statement names the assumption, and says what holds
            without it.
        allow_repeated: True permits records that were already queried under another ledger, or
            that have two roles; the privacy losses add up, and the statement says so. Without it
            a ledger in memory warns (`DPSearch` and `tune` refuse within one process), and a new
            one at a place is refused. Other processes' ledgers are known by whole tables, on this
            machine.

    Machine args:
        entropy: source of noise. Anything but the default voids the statement; for tests.
        ranks: `Ranks()`, where the records are this process's shard of what several hold together.
            Then every rank calls the same methods in the same order; `ledger` and `entropy` are the
            first rank's, or with `Ranks(trust="sum")` each rank's own.
        device: where records are scored, such as "cuda", if they do not lie there: every question
            copies them there block by block, so they may be larger than the device. They must be
            tensors, or a tuple or dict of these; copies are fast and overlap with the score where
            these are contiguous and in pinned memory (`records.pin_memory()`). The score gets a
            block at a time, on the device. A block must not be changed in place. Not for groups of
            records. "cpu" takes the same steps on any machine.

    Raises:
        InputError: an argument outside its range.
        LedgerMismatch: the ledger was made for something else.
        RanksError: see `Ranks`.
    """

    _not_taken: ClassVar = {"groups": "unit=PrivacyUnit('patient', groups=labels) has them."}

    def __init__(
        self,
        records: Any,
        *,
        unit: PrivacyUnit | str,
        adjacency: Adjacency | RowChange | str,
        budget: Budget,
        dataset: str | None = None,
        ledger: str | pathlib.Path | None = None,
        accounting: Accounting | None = None,
        role: str = "validation",
        example: Any = None,
        schema: Any = None,
        one_at_a_time: bool = False,
        allow_conditional: bool = False,
        allow_repeated: bool = False,
        entropy: Entropy = system_entropy,
        ranks: Ranks | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._ranks = OneProcess() if ranks is None else ranks
        self.__answers = weakref.WeakKeyDictionary[Handle, tuple[Query, IntegerSum]]()
        self._mutated = False
        self._lock = ProcessLock()
        # What the selections of this process released, by their names: the ledger holds no output.
        self.selections: dict[str, tuple[int, Any]] = {}
        self._entropy = entropy
        self._allow_repeated = allow_repeated
        if ledger is not None and not dataset:
            allowed = (
                "a name for the records where ledger= is given, the same in every study on them,"
                " such as 'readmissions-2026q3'"
            )
            raise InputError("dataset", dataset, allowed)
        own_unit = PrivacyUnit.of(unit)
        chosen = accounting if accounting is not None else GDPFilter()
        birth = Birth(
            dataset=dataset or "",
            unit=own_unit.name,
            grouped=own_unit.groups is not None,
            adjacency=Adjacency.of(adjacency),
            budget=budget,
            accounting=chosen,
            role=role,
            row_change=adjacency if isinstance(adjacency, RowChange) else None,
            one_at_a_time=one_at_a_time,
            federated=ranks is not None and ranks.trust == "sum",
        )
        for name, given in (("records", records), ("example", example), ("schema", schema)):
            require_converted(name, given)
        if own_unit.groups is None:
            warn_if_named(own_unit.name, records)
        if example is not None:
            count_records(example)
        form = form_of(schema, example)
        promise = (birth.to_json(), birth.grouped, allow_conditional, allow_repeated)
        read = functools.partial(self._read, records, own_unit, birth, form, device)
        view = self._ranks.run_together(f"make a Curator with {budget}", promise, read)
        public = birth.adjacency.replaces
        self.__view = self._ranks.count_units(view, own_unit.groups, public=public)
        repeatable = self._ranks.run_on_rank_0(
            "choose entropy", (), lambda: entropy is not system_entropy
        )

        def opening() -> Ledger:
            place = ledger
            if place is None and dataset and not repeatable:
                place = ledger_of(dataset)
            return Ledger(place, dataclasses.replace(birth, units=self.units))

        # With SQLAlchemy, a tenth of the time that torch takes.
        from dpbo.curator.shared_ledger import OwnLedger, SharedLedger
        from dpbo.ledger.ledger import Ledger

        self._shared: SharedLedger | OwnLedger
        if ranks is not None and ranks.trust == "sum":
            self._shared = OwnLedger(ranks, opening)
        else:
            self._shared = SharedLedger(self._ranks, opening)
        self._releases = Releases(self._shared.own, allow_conditional=allow_conditional)
        if isinstance(self._shared, OwnLedger):
            self._shared.deliver = self._releases.store
        # Kept now, because a Source may not load again.
        self._device = self.__view.device
        self.__versions = self.__view.versions_in_memory()
        self.protected = ProtectedRecords(
            self.__view,
            role,
            self.ledger,
            repetition_allowed=allow_repeated,
            public=example if schema is None else schema,
        )
        if example is None or form is None:
            self._example = self.__view.made_up()
        else:
            self._example = form.cast(example)[0]
        if device is not None:
            self._example = map_leaves(
                self._example,
                lambda part: part.to(self.device) if isinstance(part, Tensor) else part,
            )
        # Code of the questions whose score was tried on public records.
        self._probed: set[Any] = set()
        # Whether the range is tried, too: made-up records tell nothing of it, and a run that is
        # resumed may begin at a bad point.
        self._judged = example is not None and not any(self.ledger.used().values())
        if allow_conditional:
            self.assume("conditional-allowed")
        if allow_repeated:
            self.assume("repeated-records")
        for name in self._ranks.assumptions(grouped=birth.grouped):
            self.assume(name)
        if repeatable:
            self._note("void", "noise came from a source that can be repeated")
        # The guarantee of pure DP has no delta.
        if not (self.rank or isinstance(chosen, PureFilter)):
            warn_of_delta(budget, self.units, birth.unit)

    @property
    def adjacency(self) -> Adjacency:
        """The relation under which every release is private."""
        return self.ledger.birth.adjacency

    @property
    def budget(self) -> Budget:
        """The cap on everything its ledger releases."""
        return self.ledger.birth.budget

    @property
    def accounting(self) -> Accounting:
        """The filter that guards the cap."""
        return self.ledger.birth.accounting

    @property
    def ledger(self) -> Ledger:
        """What was promised, charged and released; on several ranks a copy of the first one's, as
        all saw it last.
        """
        return self._shared.seen

    @property
    def units(self) -> int | None:
        """Number of units where it is public, else None."""
        return self.__view.public_units

    @property
    def device(self) -> torch.device:
        """Where records are scored: `device`, or the device of the first tensor among them; the CPU
        without tensors.
        """
        return self._device

    @property
    def spent(self) -> Guarantee:
        """What all releases so far cost together: bookkeeping. The guarantee is that of the whole
        budget, in `statement()`.
        """
        return self._budget_use().spent

    @property
    def remaining_epsilon(self) -> float | None:
        """Epsilon of the largest `Budget(epsilon, delta)` that is neither charged nor reserved, at
        the budget's delta; rounded down.

        `budget=Budget(curator.remaining_epsilon, delta)` takes it. Under most filters epsilons do
        not add up: after a release that costs epsilon 2 of 3, more than 1 is left. None where the
        budget names no delta, and under `Planned`, which counts slots.
        """
        return self._budget_use().epsilon_left

    @property
    def entropy(self) -> Entropy:
        """The source of noise."""
        return self._entropy

    @property
    def rank(self) -> int:
        """Rank of this process; 0 if not distributed."""
        return self._ranks.rank

    @property
    def ranks(self) -> int:
        """Number of processes that share the records; 1 if not distributed."""
        return self._ranks.world_size

    def in_shares(self, mechanism: Mechanism) -> Mechanism:
        """What a release by this mechanism draws: with `Ranks(trust="sum")` a share, whose `std` is
        that of the total of all ranks; else the mechanism itself.

        Raises UsageError for a choice there, and InputError for other noise of which no sum of
        shares is proved.
        """
        return self._ranks.in_shares(mechanism)

    @classmethod
    def rehearsal(cls, records: Any, **settings: Any) -> Curator:
        """A curator over public stand-in records: the same steps and errors, in memory, nothing
        spent, statement void.
        """
        with mute_warnings(DeltaWarning):  # the number of stand-in records means nothing
            curator = cls(records, **{**settings, "ledger": None})
        curator._note(
            "void",
            "rehearsal on public stand-in records: nothing was protected and nothing was spent",
        )
        return curator

    def evaluate(self, query: Query, *, reservation: Name | None = None, **details: Any) -> Handle:
        """Answer a query, for a later release. Free: nothing leaves.

        Args:
            query: the question.
            reservation: name of the reservation that it is for, which the handle keeps.
            details: public JSON values to keep in the ledger with its release, such as x.

        Raises:
            ScoreError: it fails on public records.
            PrivateFailure: it fails on private ones beyond single units.
        """
        require_json("details", details)
        asked = as_it_is_now(query)
        outcome = self._ranks.reduce(
            f"evaluate {type(query).__name__}",
            (asked, details, Reached(asked)),
            functools.partial(self._evaluated, asked),
        )
        return self._accept(asked, details, reservation, outcome)

    def submit(
        self, query: Query, executor: Executor, *, reservation: Name | None = None, **details: Any
    ) -> Future[Handle]:
        """`evaluate` on any executor: a future of a handle. Not on several ranks, which are the
        workers there.

        The worker sends back clipped integer sums, and the raw losses of questions that keep them
        for later ones. The future raises what `evaluate` raises, and an error of the executor as it
        is where a worker was lost. Any other error of the executor becomes a PrivateFailure,
        because it may show records, as one of pickling does.
        """
        if self.ranks > 1:
            raise InputError(
                "executor",
                type(executor).__name__,
                "left out on several ranks",
                "Each evaluates its own shard.",
            )
        require_json("details", details)
        # as they are now, whatever becomes of them while a worker is busy
        details = copy.deepcopy(details)
        asked = as_it_is_now(query)

        def accept(outcome: Outcome) -> Handle:
            return self._accept(asked, details, reservation, outcome)

        return submit_job(self._job(asked), executor, accept)

    def release(self, question: Query | Handle, mechanism: Mechanism) -> Release:
        """Charge, then draw, then store, then return one answer. A handle released twice gives its
        one value again.

        Raises:
            BudgetExceeded: more than is left; nothing was charged.
            ReleaseLost: charged earlier, but never delivered.
        """
        handle = question if isinstance(question, Handle) else self.evaluate(question)
        return self.release_all([handle], mechanism)[0]

    def release_all(
        self,
        handles: Collection[Handle],
        mechanism: Mechanism,
        *,
        name: Name = "release",
        reservation: Name | None = None,
        used: Index | None = None,
    ) -> tuple[Release, ...]:
        """Release several answers as one ledger entry of so many slots, each with the noise of a
        release of its own.

        Slots are independent and charged as so many; Gaussians of noise_multiplier M are together
        exactly mu-GDP, mu^2 = slots / M^2. With `reservation`, they are charged to the reservation
        of that name. With `used`, a reservation that has used another number of slots refuses,
        uncharged (LedgerError): another process released from it.
        """
        mechanism = self.in_shares(mechanism)
        question = (list(handles), mechanism, name, reservation, used)
        most = 0

        def draw() -> list[Drawn]:
            answers = {handle: self._answer(handle) for handle in handles}
            return self._releases.draw(answers, mechanism, name, reservation, used, self._draw)

        def publish(drawn: list[Drawn]) -> tuple[Release, ...]:
            self._releases.keep(name, [(each.handle, self._published(each)) for each in drawn])
            return tuple(map(self._releases.value, handles))

        def release(compare: Callable[[], None]) -> tuple[Release, ...]:
            return self._shared.release(f"release {name}", question, compare, draw, publish, most)

        with self._lock:
            if not handles:
                return release(lambda: None)
            most = sum(self._answer(handle)[1].numerators.numel() for handle in handles)
            event = mechanism.event(len(handles))
            # An interrupt may come after the charge.
            with self.protected.charging(
                event, lambda: any(map(self._releases.is_charged, handles)), compared=True
            ):
                return release(lambda: self.protected.compare(event))

    def deliver(self) -> None:
        """Store what was charged and drawn while the ledger was out of reach. Every release begins
        with it. Call it before you conclude that a charge without a value is lost: that value may
        wait here.

        Raises LedgerUnavailable where the ledger still is.
        """
        with self._lock:
            self._shared.change("deliver", (), self._releases.store)

    def reserve(
        self,
        name: Name,
        noise: Noise,
        *,
        slots: Count,
        budget: Budget | float | Fraction | None = None,
        query: Query | None = None,
        given: Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
        terms: Mapping[str, Any] | None = None,
        parallel: bool = False,
        limit: Count | None = None,
        ordered: bool = False,
    ) -> Reservation:
        """Take the cost of `slots` releases from the budget now, under a name that later sessions
        can resume.

        Args:
            noise: the mechanism of each release, or the event of one slot. Of a mechanism's class,
                or the first of several that the accounting can pay for, the least noise that
                `budget` pays for.
            slots: number of releases.
            budget: what they may spend, for a class of mechanisms: a `Budget`, or a share in (0, 1]
                of the curator's.
            query: a question as they answer it. Its public inputs, data assumptions and failure
                probability become terms.
            given: scores, functions that train and estimators, by name: a later session must give
                the same, and the same records. Omitted, nothing is compared, except for a parallel
                or ordered reservation.
            tables: records of other roles that are compared as well (`bind`).
            terms: public facts about the reservation, as JSON values. A later session must state
                the same. They name the data assumptions of its releases, and the probability that
                one of them fails even so, where no query does, as {"assumptions":
                dict(query.data_assumptions()), "failure_probability": query.failure_probability()}:
                the statement counts all slots from now on.
            parallel: for answers that each depend on one record alone (`Query.part`), and at most
                `slots` for any one: neighbours differ in one record, so all its releases together
                cost what those of one record do. Records are known by their places, hence the
                assumption `records-keep-their-places`.
            limit: answers of a parallel reservation in all.
            ordered: whether the order of the records counts, because answers are known by their
                places.

        Raises:
            InputError: an accounting that cannot pay for this noise; terms with data assumptions
                that this curator does not allow, with an unknown role, or that count what the
                ledger counts; a parallel reservation where places mean nothing.
            BudgetExceeded: more than is left.
            LedgerMismatch: a reservation of this name has other terms, or (ReservationChanged) it
                began with other things.
        """
        stated = dict(terms or {})
        if query is not None:
            self._require_askable(query)
            stated = {**terms_of(query), **stated}
        mechanism, event = slot_noise(
            self.ledger, noise, budget, slots, query, in_shares=self.in_shares
        )
        if budget is not None and not isinstance(noise, (Event, Mechanism)):
            stated = {"budget": describe_budget(budget), **stated}

        # A reservation of which nothing is charged tells nothing of the records.
        self._shared.on_records("compare tables", lambda: self.protected.compare(event))
        begun = self.ledger.reservation(name) is not None
        if given is not None or parallel or ordered:
            # A reservation of which nothing is charged may go on with a corrected score. Answers of
            # a parallel one are counted by place: in another order one record would be answered
            # again.
            charged = self.ledger.counts(name)[0] > 0
            self.bind(name, given or {}, tables=tables, begun=charged, ordered=ordered or parallel)
        question = (name, event, slots, stated, parallel, limit)
        reserved = self._shared.change(
            f"reserve {name}", question, functools.partial(self._reserved, *question)
        )
        return Reservation(self, name, reserved, slots, mechanism, query, begun=begun)

    def bind(
        self,
        reservation: Name,
        things: Mapping[str, Any],
        *,
        tables: Mapping[str, Any] | None = None,
        begun: bool,
        ordered: bool = False,
    ) -> None:
        """Refuse to resume a reservation with other things than it began with, by fingerprints that
        are kept in a file of the operator's.

        Args:
            reservation: its name.
            things: what it was given, by name: scores, functions that train, estimators. The
                records are compared without being named.
            tables: records of other roles, by name, in any order; also a torch Dataset.
            begun: whether something was charged to it; else what is given is what it begins with.
            ordered: whether the order of the records counts, because answers are known by their
                places.

        Raises:
            ReservationChanged: names what differs. Nothing was charged.
        """
        found: dict[str, str | None] = {}
        # a ledger in memory has one curator, and that its records
        if self.ledger.storage.persistent:
            key = self._shared.change("compare records", (), lambda: key_of(self._shared.own))

            def digests() -> dict[str, str | None]:
                found = {f"{self.ledger.birth.role} records": self._digest(key)}
                if ordered:  # which is refused on several ranks
                    rows = RowDigests.of(self.__view)
                    found[ORDER] = None if rows is None else rows.digest_in_order(key)
                for name, table in (tables or {}).items():
                    found[name] = table_digest(table, key)
                return found

            found = self._shared.on_records("digest records", digests)
        self._shared.change(
            f"bind {reservation}",
            (sorted(things), sorted(found), begun),
            lambda: require_same(self._shared.own, reservation, things, found, begun=begun),
        )

    def mark_probed(self, query: Query) -> None:
        """Note that this question's score was tried on public records: `example=` need not be tried
        again.
        """
        self._probed.add(code_of(query))

    def assume(self, name: str) -> None:
        """Note an assumption, once, for every later statement.

        "durations-tell-nothing": workers, threads or processes release in the order in which they
        finish. Then the order of the values, and every point that is proposed from some values and
        not yet from others, follow from how long the scores took.
        """
        self._note("assume", name)

    def hidden_draws(self, reservation: Name) -> HiddenDraws:
        """A function `draw(query, mechanism)` for the noised answers of hidden runs, which a single
        charge of a private selection has paid for: at most one of them is released, and the others
        must not be published.

        Args:
            reservation: the selection's: charged, and without a value yet.
        """
        if self.ranks > 1:
            raise UsageError(
                "each rank would noise its own shard for one charge: give a curator of one process."
            )
        return HiddenDraws(
            self.ledger, reservation, lambda query: self._job(query)(), self._entropy
        )

    def statement(self, *, delta: float | None = None) -> Statement:
        """What is guaranteed, to whom, under which assumptions. `delta` says where to print epsilon
        for a budget given as mu.
        """
        return compose_statement(self._shared.own, delta=delta, units=self.units)

    def _read(
        self,
        records: Any,
        unit: PrivacyUnit,
        birth: Birth,
        form: Form | None,
        device: torch.device | str | None,
    ) -> PrivateView:
        """The view of the records, cast to their public form."""
        if not isinstance(records, Source):
            parts = leaves(records)
            for place, part in enumerate(parts[1:], 1):
                require_one_index(f"part {place} of the records", part, "part 0", parts[0])
            require_one_index("groups", unit.groups, "the records", *parts[:1])
        view = PrivateView.of(
            records,
            unit,
            units_are_public=birth.adjacency.replaces,
            shard=self.ranks > 1,
            streamed_to=device,
            form=form,
            one_at_a_time=birth.one_at_a_time,
        )
        if form is None:
            require_known_form(view.records)
        return view

    def _evaluated(self, query: Query) -> Outcome:
        """The exact answer on the records."""
        outcome = self._job(query)()
        self._mutated |= isinstance(outcome, Failure) and outcome.kind == "mutated"
        return outcome

    def _reserved(
        self,
        name: str,
        event: Event,
        slots: int,
        terms: Mapping[str, Any],
        parallel: bool,
        limit: int | None,
    ) -> Event:
        """The event of one slot of a reservation that is made now, or was made earlier under the
        same terms.
        """
        require_json("terms", terms)
        require_reservation_terms(terms, self.units)
        self._releases.require_allowed(terms.get("assumptions") or {})
        ledger = self._shared.own
        if not parallel:
            return ledger.reserve(name, event, slots, terms)
        if self.units is None or ledger.birth.grouped or self.ranks > 1:
            allowed = (
                "False where units are groups, their number is private, or they are sharded over"
                " ranks"
            )
            raise InputError("parallel", True, allowed, "A part is one record there.")
        ledger.note("assume", "records-keep-their-places")
        return ledger.reserve(
            name, event, slots, {**terms, "records": self.units}, parallel=True, limit=limit
        )

    def _digest(self, key: bytes) -> str | None:
        """The digest of all records, of use on rank 0; None where some cannot be compared. How they
        are dealt to ranks does not matter.
        """
        mine = RowDigests.of(self.__view)
        sums = self._ranks.add_digests(None if mine is None else mine.sums())
        return None if sums is None else digest_of_sums(sums, key)

    def _note(self, kind: str, text: str) -> None:
        self._shared.change("note", (kind, text), lambda: self._shared.own.note(kind, text))

    def _draw(self, handle: Handle, law: NoiseDistribution, mechanism: Mechanism) -> Any:
        query, answer = self._answer(handle)
        return sampled(query, answer, law, mechanism, self._entropy, units=self.units)

    def _published(self, drawn: Drawn) -> Release:
        query, _ = self._answer(drawn.handle)
        value, variance = published(
            query, drawn.numbers, drawn.law, drawn.mechanism, units=self.units
        )
        lattice = tuple(drawn.numbers.reshape(-1).tolist())
        return Release(value, variance, lattice, drawn.law, drawn.event, drawn.entry)

    def _require_askable(self, query: Query) -> None:
        require_askable(
            query, self.ledger.birth, of_parts=self.ranks > 1 or self.__view.streamed_to is not None
        )

    def _job(self, query: Query) -> Job:
        self._require_askable(query)
        if self._mutated or self.__view.versions_in_memory() != self.__versions:
            raise PrivateFailure(FAILURES["mutated"])
        earlier = []
        for handle in query.handles():
            if (per_unit := self._answer(handle)[1].per_unit) is None:
                raise InputError("earlier", handle, "handles of answers that were kept")
            earlier.append(per_unit)
        query.try_on(self.device)
        return Job(
            as_it_is_now(query),
            dataclasses.replace(self.__view, earlier=tuple(earlier)),
            self._example,
            code_of(query) in self._probed,
            self._judged,
        )

    def _accept(
        self,
        query: Query,
        details: Mapping[str, Any],
        reservation: str | None,
        outcome: Outcome,
    ) -> Handle:
        if isinstance(outcome, Failure):
            if outcome.interruption is not None:
                raise outcome.interruption
            self._mutated |= outcome.kind == "mutated"
            # nothing is noted: readers of the ledger would learn that the score failed, which
            # `score-total` of every statement covers
            tried = ""
            if self._example is None and outcome.kind in ("shape", "exception"):
                tried = (
                    " The score was not tried on public records before: give a few of the same"
                    " form, Curator(..., example=), on which its errors are shown."
                )
            raise PrivateFailure(
                f"{FAILURES[outcome.kind]} Nothing was charged or noted. Tell only those who may"
                f" see the records.{tried}"
            )
        self.mark_probed(query)
        handle = Handle(query, details, self._ranks.new_id(), reservation)
        with self._lock:
            self.__answers[handle] = query, outcome
        return handle

    def _answer(self, handle: Handle) -> tuple[Query, IntegerSum]:
        try:
            return self.__answers[handle]
        except (KeyError, TypeError):
            raise InputError("handle", handle, "one that this curator made") from None

    def _budget_use(self) -> BudgetUse:
        return BudgetUse.of(self.ledger, self.ledger.facts(), self.budget.delta)

    def _repr_html_(self) -> str:
        statement = compose_statement(self.ledger, units=self.units)
        facts = {**statement.facts(), **self._budget_use().facts(self.budget)}
        return facts_table(facts, title=f"Curator of {self._dataset()} records: opaque")

    def __repr__(self) -> str:
        return f"<Curator of {self._dataset()} records, {self.adjacency.value}: opaque>"

    def _dataset(self) -> str:
        return printable(self.ledger.birth.dataset or "unnamed")
