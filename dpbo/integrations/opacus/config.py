"""The public settings of a DP-SGD run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dpbo.accounting.calibration import convert_adjacency
from dpbo.events import Event, GaussianEvent, PoissonGaussianEvent
from dpbo.mechanisms.additive import LEAST, MOST
from dpbo.privacy import Adjacency
from dpbo.validation import Count, between, checked


@checked
@dataclass(frozen=True, kw_only=True)
class DPSGDConfig:
    """Public settings of every DP-SGD run.

    Attributes:
        noise_multiplier: noise standard deviation over the norm bound of one record's gradient, as in Opacus; from 0.01 to 2^20.
        epochs: expected number of passes over the records.
        batches: number of Poisson samples an epoch; each takes every record with probability 1 / batches.
        batch_size: public number that the sum of clipped gradients is divided by; about records / batches.
    """

    noise_multiplier: Annotated[float, between(LEAST, MOST)]
    epochs: Count
    batches: Count
    batch_size: Count

    @property
    def steps(self) -> int:
        """Number of steps of one run."""
        return self.epochs * self.batches

    @property
    def rate(self) -> float:
        """Probability with which a Poisson sample takes a record."""
        return 1.0 / self.batches

    def event(self, adjacency: Adjacency) -> Event:
        """What one run costs a training record under this relation."""
        if self.batches == 1:
            return convert_adjacency(GaussianEvent(self.noise_multiplier, self.steps), Adjacency.ADD_OR_REMOVE_ONE, adjacency)
        return PoissonGaussianEvent(self.noise_multiplier, self.steps, rate=self.rate, relation=adjacency.value)
