"""DP-SGD steps and dpbo releases in one history, as an Opacus accountant.

    # dpbo's engine: its accountant charges the curator's ledger
    engine = PrivateEngine(curator, config)
    # Opacus' engine in any of its modes, charged to the curator's ledger
    engine = opacus.PrivacyEngine()
    engine.accountant = LedgerAccountant(curator, noise_multiplier=1.1, steps=1000)
    # Opacus' engine, by itself: counts what Opacus counts, and other releases beside it
    engine.accountant = LedgerAccountant()

With a curator, the planned steps are reserved in its ledger before the first one. They are charged
in blocks of a hundredth of the plan, of 16 steps at most: the first step of a block charges the
whole block before its noise is drawn. The steps that a process did not take of its last block stay
charged, and are lost to a later process. A step beyond the plan raises. Opacus' noise multiplier is
the noise standard deviation over the norm bound of one record's gradient, as in a
PoissonGaussianEvent, so no conversion is needed under either relation.

In Opacus' own engine, too, no noise is drawn before its step is durably charged (own_engine.py).
Where several processes train one model, the first alone reserves and charges; before each block the
others wait for what it says, which is a number of steps or an error (`Ranks`).

What dpbo cannot check is attested by the caller, and the statement lists it as the assumption
`dpsgd-attested` (`engine`) or, of Opacus' own engine, `sampling-attested`. That one draws noise and
samples from torch's generator, whose state one released model reveals on the CPU: this is the
assumption `noise-of-opacus`.
"""

from __future__ import annotations

import collections
import copy
import itertools
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist

from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.composition import compose
from dpbo.curator.curator import Curator
from dpbo.curator.ranks import OneProcess, Ranks
from dpbo.curator.reservation import Reservation
from dpbo.dpsgd import own_engine
from dpbo.dpsgd._opacus import load_opacus
from dpbo.errors import BudgetExceeded, InputError, LedgerError, OpacityError, UsageError
from dpbo.events import Event, GaussianEvent, PoissonGaussianEvent, event_from_json
from dpbo.opacus_name import NAME, make_known
from dpbo.privacy import Adjacency
from dpbo.statement import NOT_BOUNDED
from dpbo.validation import Count, Positive, checked, require

IAccountant: Any = load_opacus("opacus.accountants").IAccountant
# Steps at most that one entry of the ledger charges.
_BLOCK = 16
# Noise multiplier, sample rate, how often: Opacus' own entry.
Step = tuple[float, float, int]


@checked
class LedgerAccountant(IAccountant):  # type: ignore[misc]
    """An `opacus.accountants.IAccountant`.

    Args:
        curator: holds the training records and the ledger; omitted, the accountant counts by
            itself, under ADD_OR_REMOVE_ONE. Of several processes that train one model, each gives a
            curator of all records, with the same `ledger=` or `dataset=`.
        noise_multiplier, steps: the planned noise and number of steps; required with a curator.
        name: name of the reservation in the ledger; the same name and terms resume it.

    Raises:
        InputError: an argument outside its range, or a unit that may have several records (Opacus
            clips single records).
        UsageError: a curator of several processes' shards.
    """

    # With a curator only.
    _planned: Step
    _reservation: Reservation
    # With a PrivateEngine, the records that its steps take.
    _tables: Mapping[str, Any] = {}
    # One item for each step that is charged and not yet taken.
    _paid: Iterator[int]

    def __init__(
        self,
        curator: Curator | None = None,
        *,
        noise_multiplier: float | None = None,
        steps: int | None = None,
        name: str = "dp-sgd",
    ) -> None:
        self._curator = curator
        self._name = name
        self._runs: dict[str, list[Step]] = {}
        self._begin_run()
        self._releases: dict[str, Event] = {}
        self._counting = False
        # Those that train one model in Opacus' own engine.
        self._ranks: Ranks | OneProcess = OneProcess()
        if curator is not None:
            if curator.ranks > 1:
                raise UsageError("DP-SGD takes all records: give a curator of one process.")
            if curator.ledger.birth.grouped:
                raise InputError(
                    "unit",
                    curator.ledger.birth.unit,
                    "one record",
                    "Opacus clips and samples single records.",
                )
            self._planned = (
                require("noise_multiplier", noise_multiplier, Positive),
                0.0,
                require("steps", steps, Count),
            )

    def mechanism(self) -> str:
        """The name under which Opacus knows this accountant. Only `make_private_with_epsilon` asks
        for it, and raises UsageError with a curator.
        """
        if self._curator is not None:
            raise UsageError(
                "make_private_with_epsilon would choose the noise, which the accountant has"
                " planned: call make_private with its noise_multiplier."
                " dpbo.accounting.calibrate finds the noise multiplier of an epsilon."
            )
        return NAME

    def protect(self, records: Any) -> None:
        """Note which records the steps take, so that another budget over them is found, and that a
        resumed run takes the same ones.
        """
        assert self._curator is not None
        self._tables = {"loader records": records}
        self._curator.protected.add(records, role="training")

    def reserve(self, sample_rate: float, *, assumption: str = "dpsgd-attested") -> None:
        """Reserve the planned steps at this rate in the curator's ledger, or resume them, under
        this assumption.
        """
        assert self._curator is not None
        multiplier, _, steps = self._planned
        terms = {"attested": "Poisson", "sample_rate": float(sample_rate)}
        step = self._event(multiplier, sample_rate)
        accounting = self._curator.accounting
        if accounting.cost_or_none(step) is None:
            raise UsageError(
                f"the curator's {accounting.name} cannot pay for steps on samples of the records:"
                " make the Curator with accounting=RDPFilter(8.0) of dpbo.accounting, or with"
                " Planned, which is tighter."
            )
        try:
            self._reservation = self._curator.reserve(
                self._name, step, slots=steps, given={}, tables=self._tables, terms=terms
            )
        except BudgetExceeded as error:
            error.add_note(
                "dpbo.accounting.calibrate finds the least noise_multiplier that a budget pays for."
            )
            budget = self._curator.budget
            if budget.epsilon is not None and budget.delta:
                order = 1 + 2 * math.log(1 / budget.delta) / budget.epsilon
                error.add_note(f"Of all RDPFilter(order) one of about {order:.2g} needs the least.")
            raise
        self._curator.ledger.note("assume", assumption)
        self._planned = multiplier, float(sample_rate), steps

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """The hook that Opacus' own `make_private` attaches. With a curator, the steps are reserved
        now, and it charges each before its noise (own_engine.py).

        Raises:
            UsageError: the seed of torch's generator was written by somebody.
            BudgetExceeded: no planned step is left, or the budget does not pay for the plan.
        """
        if self._curator is None or self._tables:
            # A PrivateEngine charges its steps itself.
            hook: Callable[[Any], None] = super().get_optimizer_hook_fn(sample_rate)
            return hook
        if dist.is_available() and dist.is_initialized() and self._ranks.world_size == 1:
            self._ranks = Ranks()
        self._ranks.run_together("look at torch's generators", (), own_engine.require_unknown_seed)
        multiplier, _, steps = self._planned

        def reserve() -> str:
            self.reserve(sample_rate, assumption="sampling-attested")
            if not self._reservation.remaining:
                # Raises.
                self._reservation.charge(_details(self._id))
            return self._id

        # One run, whichever process saves its checkpoint.
        self._id = self._ranks.run_on_rank_0(
            "reserve DP-SGD steps", (multiplier, sample_rate, steps), reserve
        )
        self._runs.setdefault(self._id, [])
        self._planned = multiplier, float(sample_rate), steps
        units = self._curator.units
        # As Opacus computes it.
        expected = None if units is None else int(units * sample_rate) / self._ranks.world_size
        return own_engine.Charges(self._take, self._note_noise, self._ranks, expected)

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one DP-SGD step. Raises BudgetExceeded beyond the plan, InputError if it differs
        from the planned steps.
        """
        self._counting = True
        if self._process != os.getpid():
            self._begin_run()
        if self._curator is not None:
            self._require_planned(noise_multiplier, sample_rate)
            if next(self._paid, None) is None:
                self._paid = iter(range(self._charge_block() - 1))
        _append(self._runs[self._id], (float(noise_multiplier), float(sample_rate), 1))

    def add(self, event: Event) -> None:
        """Count one more release on the same records, under ADD_OR_REMOVE_ONE. A curator counts its
        releases itself.
        """
        if self._curator is not None:
            raise InputError(
                "event",
                event.mechanism,
                "released by the curator itself, which charges the same ledger",
            )
        self._counting = True
        self._releases[uuid.uuid4().hex] = event

    def get_epsilon(self, delta: float, *, refine: bool = True, **_: Any) -> float:
        """Epsilon at delta of the history so far, as in Opacus; with a curator, of all that was
        spent of its ledger. The guarantee is that of the budget (`Curator.statement`).

        Infinite if a release was exact or rests on data assumptions.
        """
        if self._curator is not None:
            statement = self._curator.statement(delta=delta)
            epsilon = statement.spent.epsilon
            if epsilon is None or statement.lines[0].startswith(NOT_BOUNDED):
                return float("inf")
            return epsilon
        steps = [
            self._event(multiplier, rate).repeated(count)
            for multiplier, rate, count in self.history
        ]
        return compose([*steps, *self._releases.values()], delta=delta, refine=refine).epsilon

    @property
    def history(self) -> list[Step]:
        """Every step of all runs, in Opacus' form."""
        return list(itertools.chain.from_iterable(self._runs.values()))

    @history.setter
    def history(self, steps: list[Step]) -> None:
        """For Opacus, which tries noise multipliers on accountants of its own. A history that has
        begun cannot be replaced.
        """
        if self._counting or self._curator is not None:
            raise LedgerError(
                "a history that has begun can only grow; use load_state_dict, which merges, or a"
                " fresh LedgerAccountant."
            )
        self._runs = {
            self._id: [
                (float(multiplier), float(rate), int(count)) for multiplier, rate, count in steps
            ]
        }

    def __len__(self) -> int:
        return sum(count for *_, count in self.history)

    def state_dict(self, destination: Any = None) -> dict[str, Any]:
        """State for a checkpoint: Opacus' fields, and each run's steps and each release under their
        ids.
        """
        state: dict[str, Any] = collections.OrderedDict() if destination is None else destination
        releases = {key: event.to_json() for key, event in self._releases.items()}
        runs = copy.deepcopy(self._runs)
        state.update(history=self.history, mechanism=NAME, runs=runs, releases=releases)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Merge a checkpoint: steps and releases that are new are added (with a curator: charged);
        nothing is ever removed.

        Raises:
            InputError: not a LedgerAccountant's state.
            LedgerError: it contradicts a run or a release that is known here.
        """
        if state_dict.get("mechanism") != NAME or not {"runs", "releases"} <= set(state_dict):
            raise InputError(
                "state_dict", state_dict.get("mechanism"), "one that a LedgerAccountant wrote"
            )
        if self._curator is not None and state_dict["releases"]:
            raise UsageError(
                "an accountant that is bound to a curator loads steps alone, and this state has"
                " releases."
            )
        loaded = dict[str, list[Step]]()
        for run, steps in state_dict["runs"].items():
            loaded[run] = []
            for multiplier, rate, count in steps:
                step = float(multiplier), float(rate), require("count", count, Count)
                # Raises InputError on numbers outside their range.
                self._event(*step[:2])
                loaded[run].append(step)
        runs = {run: _longer(self._runs.get(run, []), steps) for run, steps in loaded.items()}
        releases = {key: event_from_json(body) for key, body in state_dict["releases"].items()}
        if any(self._releases.get(key, event) != event for key, event in releases.items()):
            raise LedgerError(
                "the checkpoint contradicts a release that is known here; nothing was loaded."
            )
        unpaid = list[tuple[str, Event, int]]()
        if self._curator is not None and self._ranks.rank == 0:
            records = self._curator.ledger.records()
            for run, steps in loaded.items():
                charged = list[tuple[Event, int]]()
                for record in records:
                    if record.kind == "charge" and record.body.get("run") == run:
                        event = event_from_json(record.body["event"])
                        charged.append((event.repeated(1), event.count))
                taken = [
                    (self._event(multiplier, rate), count) for multiplier, rate, count in steps
                ]
                unpaid += [(run, *part) for part in _rest(charged, taken)]
        # All are known to continue the ledger before one is charged.
        self._counting = True
        if self._curator is not None:
            for run, event, count in unpaid:
                with self._curator.protected.charging(event):
                    self._curator.ledger.charge(self._name, event.repeated(count), _details(run))
        # Where the checkpoint holds further steps of this run, those that were paid for ahead are
        # among them.
        if self._id in runs and runs[self._id] != self._runs[self._id]:
            self._paid = iter(())
        self._runs.update(runs)
        self._releases.update(releases)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is a run of its own: steps that both take afterwards are counted twice."""
        if state["_curator"] is not None:
            raise OpacityError(
                "an accountant that is bound to a curator cannot be copied: its steps are charged"
                " where they are taken."
            )
        self.__dict__.update(state)
        self._runs = copy.deepcopy(self._runs)
        self._begin_run()

    def _begin_run(self) -> None:
        """Count under a new id from now on: one for each object, and for its copy in a forked
        process.
        """
        self._id = uuid.uuid4().hex
        self._runs[self._id] = []
        # What this one has paid for, a copy may not take.
        self._paid = iter(())
        self._process = os.getpid()

    def _event(self, noise_multiplier: float, sample_rate: float) -> Event:
        """The event of one step, under the ledger's relation, or under Opacus' own without a
        curator.
        """
        relation = Adjacency.ADD_OR_REMOVE_ONE if self._curator is None else self._curator.adjacency
        if sample_rate >= 1.0:
            return convert_adjacency(
                GaussianEvent(float(noise_multiplier)), Adjacency.ADD_OR_REMOVE_ONE, relation
            )
        return PoissonGaussianEvent(
            float(noise_multiplier), rate=float(sample_rate), relation=relation.value
        )

    def _take(self, noise_multiplier: float) -> None:
        """Charge a step of Opacus' own engine."""
        self.step(noise_multiplier=noise_multiplier, sample_rate=self._planned[1])

    def _require_planned(self, noise_multiplier: float, sample_rate: float) -> None:
        """Raises InputError where a step differs from the planned ones."""
        if (float(noise_multiplier), float(sample_rate)) != self._planned[:2]:
            raise InputError(
                "noise_multiplier, sample_rate",
                (noise_multiplier, sample_rate),
                f"as reserved, {self._planned[:2]}",
                "Give make_private the noise_multiplier that the accountant has, and no schedule"
                " of it.",
            )

    def _note_noise(self, optimizer: Any) -> None:
        """Note what is assumed of the noise of an optimizer of Opacus' own."""
        assert self._curator is not None
        if own_engine.is_secure(optimizer):
            return
        self._curator.ledger.note("assume", "noise-of-opacus")
        if any(parameter.device.type == "cpu" for parameter in optimizer.params):
            self._curator.ledger.note("assume", "noise-drawn-on-cpu")

    def _charge_block(self) -> int:
        """Charge a block of the planned steps, or what is left of them; returns how many, one at
        least.
        """

        def charge() -> int:
            count = max(min(self._planned[2] // 100, _BLOCK, self._reservation.remaining), 1)
            self._reservation.charge(_details(self._id), count=count)
            return count

        return self._ranks.run_on_rank_0("charge DP-SGD steps", self._planned, charge)


def _details(run: str) -> dict[str, Any]:
    """What the ledger keeps of a charge."""
    return {"attested": "Poisson", "run": run}


def _append(steps: list[Step], step: Step) -> None:
    if steps and steps[-1][:2] == step[:2]:
        step = (*step[:2], steps.pop()[2] + step[2])
    steps.append(step)


def _longer(known: list[Step], loaded: list[Step]) -> list[Step]:
    """The longer of two histories of one run, of which one continues the other."""
    whole = list(known)
    for step in _rest(known, loaded):
        _append(whole, step)
    return whole


def _rest(known: list[Any], loaded: list[Any]) -> list[Any]:
    """What `loaded` adds to `known`, of tuples that end with how often; empty if it is the shorter
    one. Raises LedgerError if neither continues the other.
    """
    left = list(known)
    ahead = list(loaded)
    while left and ahead:
        *before, begun = left.pop(0)
        *after, count = ahead.pop(0)
        if before != after:
            raise LedgerError(
                "the checkpoint contradicts a run that is known here; nothing was loaded."
            )
        if begun > count:
            left.insert(0, (*before, begun - count))
        elif count > begun:
            ahead.insert(0, (*after, count - begun))
    return ahead


# where something else replaced the table or what finds it
make_known()
