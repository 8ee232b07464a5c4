"""One DP-SGD run with Opacus whose cost is the same whatever its hyper-parameters.

    terms = DPSGDConfig(noise_multiplier=2.0, epochs=10, batches=10)

    def fit(parameters, session):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=parameters["lr"])
        net, optimizer, loader = session.make_private(net, optimizer, max_grad_norm=parameters["clip"])
        for X, y in loader:                       # exactly `terms.steps` Poisson samples
            optimizer.zero_grad()
            F.cross_entropy(net(X), y).backward()
            optimizer.step()
        return net

The session has the training records and gives them out by Poisson samples only, as many as the terms have steps; a second step on one
sample raises before its noise is drawn. Noise and samples come from the operating system's entropy (`noise`). What dpbo
cannot see stands in the statement as `dpsgd-attested`: that `fit` takes the records from this loader alone, that one record is one example,
and that a record's gradient depends on no other record. It does where a mean loss has class weights or ignored targets (padding): weigh and
average each record's losses by themselves there, and then take the mean over records.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpbo.errors import InputError
from dpbo.integrations.opacus.config import DPSGDConfig
from dpbo.integrations.opacus.engine import NoisedEngine
from dpbo.validation import checked


class Fit(Protocol):
    """Trains one model, on records that the session gives out."""

    def __call__(self, parameters: dict[str, Any], session: Session) -> nn.Module: ...


@checked
class Session:
    """One run: what `fit` may do with the training records.

    Attributes:
        terms: the run's.
    """

    def __init__(self, records: Dataset[Any], terms: DPSGDConfig) -> None:
        self._records, self.terms, self._begun = records, terms, False

    def make_private(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, *, max_grad_norm: float, **opacus: Any
    ) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
        """`make_private` of an Opacus engine, once, with the session's own noise, samples and number of steps.

        Args:
            max_grad_norm: of one record's gradient; may be a hyper-parameter.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode.

        Raises:
            InputError: a second model, or an argument that is the session's own.
        """
        if self._begun:
            raise InputError("module", type(module).__name__, "the first of this run", "Each model costs a run of its own.")
        if "data_loader" in opacus:
            raise InputError("opacus", ["data_loader"], "left out", "The session gives out the records.")
        prepared = NoisedEngine(self.terms, self._check, once=True).make_private(
            module=module, optimizer=optimizer, data_loader=DataLoader(self._records), max_grad_norm=max_grad_norm, **opacus
        )
        self._begun = True
        return prepared

    def _check(self, optimizer: Any) -> None:
        """Before a step's noise is drawn. Steps need no count: each takes a sample, and there are as many samples as planned steps."""
        if optimizer.noise_multiplier != self.terms.noise_multiplier:
            raise InputError("noise_multiplier", optimizer.noise_multiplier, f"{self.terms.noise_multiplier}, as the terms say")
