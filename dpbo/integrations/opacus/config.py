"""The public terms of a DP-SGD run."""

from __future__ import annotations

from dataclasses import dataclass

from dpbo.accounting.calibration import convert_adjacency
from dpbo.events import Event, GaussianEvent, PoissonGaussianEvent
from dpbo.mechanisms.additive import LEAST, MOST
from dpbo.privacy import Adjacency, require_count, require_positive
from dpbo.validation import checked


@checked
@dataclass(frozen=True, kw_only=True)
class DPSGDConfig:
    """Public terms of every run.

    Attributes:
        noise_multiplier: standard deviation over the norm bound of one record's gradient, as in Opacus; 0.01 to 2^20.
        epochs: passes, in expectation, over the records.
        batches: Poisson samples an epoch; each takes every record with probability 1 / batches.
        batch_size: what the sum of clipped gradients is divided by, a public number; about records / batches.
    """

    noise_multiplier: float
    epochs: int
    batches: int
    batch_size: int

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier, LEAST, MOST)
        for name in ("epochs", "batches", "batch_size"):
            require_count(name, getattr(self, name))

    @property
    def steps(self) -> int:
        """Of one run."""
        return self.epochs * self.batches

    @property
    def rate(self) -> float:
        """Probability with which a sample takes a record."""
        return 1.0 / self.batches

    def event(self, relation: Adjacency) -> Event:
        """What one run costs a training record, under the relation."""
        if self.batches == 1:
            return convert_adjacency(GaussianEvent(float(self.noise_multiplier), self.steps), Adjacency.ADD_OR_REMOVE_ONE, relation)
        return PoissonGaussianEvent(float(self.noise_multiplier), self.steps, rate=self.rate, relation=relation.value)
