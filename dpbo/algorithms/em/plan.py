"""A fixed number of releases, reserved at once, answered from the ledger as far as it goes.

Everything an iterative algorithm does between two releases is public, so a run that is resumed under its name computes the same questions
again, finds the answers that were paid for, and goes on with the first one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dpbo.accounting.calibrate import exact_share
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import Budget
from dpbo.queries.points import PointSums

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
        event = curator.reserve(name, planned.event(), slots=slots, terms={"budget": str(budget), **terms})
        self.mechanism = planned if isinstance(planned, NoNoise) else mechanism(event.noise_multiplier)
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
            raise BudgetExceeded(1, 0, self.slots, "slots", f"the release for {self.name!r}")
        if self._turn < len(self._known):
            known = self._known[self._turn]
            if known["details"].get("stage") != stage:
                raise LedgerMismatch("stage", known["details"].get("stage"), stage, "Resume with the version it began with.")
            value = torch.tensor(known["value"], dtype=torch.float64)
        else:
            handle = self.curator.evaluate(query, stage=stage)
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
