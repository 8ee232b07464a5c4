"""A fixed number of releases, reserved at once, answered from the ledger as far as it goes.

Everything an iterative algorithm does between two releases is public, so a run that is resumed under its name computes the same questions
again, finds the answers that were paid for, and goes on with the first one that was not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpbo.accounting.calibrate import exact_share
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import Budget
from dpbo.queries.points import PointSums


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch, for the ledger."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no setting")


def _digest(query: PointSums) -> str:
    """Of everything public that was asked, to six digits, which another machine computes alike."""
    return hashlib.sha256("\n".join(_parts(query)).encode()).hexdigest()[:16]


def _parts(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, torch.Tensor):
        yield " ".join(f"{number:.5e}" for number in value.flatten().tolist())
    elif callable(value):
        yield getattr(value, "__qualname__", type(value).__qualname__)
    else:
        yield f"{value:.5e}" if isinstance(value, float) else repr(value)


Spending = Budget | float | NoNoise | None


@dataclass(frozen=True, eq=False)
class Answer:
    """One release: values, and the standard deviation of the noise of each; float64, of the query's length."""

    value: torch.Tensor
    std: torch.Tensor


class Plan:
    """`slots` releases of equal multiplier under one name.

    Args:
        curator: owner of the records.
        name: in the ledger.
        budget: a Budget, a share in (0, 1] of the curator's, or NoNoise(allow_not_private=True).
        slots: how many releases there will be.
        terms: public settings of the algorithm; a run resumes under the same ones only.
        mechanism: law of the noise.
    """

    def __init__(
        self,
        curator: Curator,
        name: str,
        budget: Spending,
        slots: int,
        terms: Mapping[str, Any],
        mechanism: type[AdditiveMechanism] = GaussianMechanism,
    ) -> None:
        self.curator, self.name, self.slots = curator, name, slots
        planned = budget if isinstance(budget, NoNoise) else mechanism(self._multiplier(budget, mechanism))
        held = {"budget": str(budget), "records": curator.units, "role": "training", **terms}
        curator.bind(name, {}, begun=name in curator.ledger.head().used)
        event = curator.reserve(name, planned.event(), slots=slots, terms=json.loads(json.dumps(held, default=_plain)))
        self.mechanism = planned if isinstance(planned, NoNoise) else mechanism(event.noise_multiplier)
        curator.deliver()
        self._known = curator.ledger.values(name)
        if curator.ledger.head().used[name] != len(self._known):
            raise LedgerMismatch("values", len(self._known), curator.ledger.head().used[name], "A release was charged but lost.")
        self._turn = 0

    def std(self, query: PointSums) -> torch.Tensor:
        """Standard deviation of the noise of each number of this question's answer; public."""
        law = self.mechanism.law(query.scale(self.curator.adjacency), query.quanta(self.curator.units))
        return torch.tensor(law.std, dtype=torch.float64)

    def ask(self, query: PointSums, stage: str) -> Answer:
        """The next release: from the ledger if it was made before, else charged and made now."""
        if self._turn >= self.slots:
            raise BudgetExceeded(1, 0, self.slots, "slots", f"the release for {self.name!r}", self.curator.ledger.account())
        if self._turn < len(self._known):
            known = self._known[self._turn]
            asked = known["details"].get("stage"), known["details"].get("question")
            if asked != (stage, _digest(query)):
                raise LedgerMismatch("question", asked[0], stage, "Resume with the settings and the version it began with.")
            value = torch.tensor(known["value"], dtype=torch.float64)
        else:
            handle = self.curator.evaluate(query, stage=stage, question=_digest(query))
            (release,) = self.curator.release_all([handle], self.mechanism, name=self.name, plan=self.name, used=self._turn)
            value = release.value
        self._turn += 1
        return Answer(value, self.std(query))

    def _multiplier(self, budget: Any, mechanism: type[AdditiveMechanism]) -> float:
        accounting, cap = self.curator.accounting, self.curator.ledger.cap
        if not isinstance(budget, (Budget, float, int)) or isinstance(budget, bool):
            raise InputError("budget", budget, "a Budget, a share of the curator's, or NoNoise(allow_not_private=True)")
        available = accounting.cap(budget) if isinstance(budget, Budget) else cap * exact_share(budget)
        multiplier = accounting.multiplier(mechanism.kind, self.slots, available)
        if multiplier is None:
            raise InputError("accounting", accounting.name, f"one that can pay for {mechanism.kind.mechanism} noise")
        return multiplier
