"""Opacus' engine with dpbo's samples, sums and noise, whose steps are charged to a curator's ledger.

    terms = DPSGDConfig(noise_multiplier=1.1, epochs=15, batches=14, batch_size=128)
    engine = PrivateEngine(curator, terms)
    module, optimizer, loader = engine.make_private(module=module, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0)

`make_private` reserves the steps of the terms. Each step then takes a slot before its noise is drawn; a step beyond the plan raises. The
rate of the samples and the number that sums are divided by come from the terms, never from the number of records, which is private where
records are added or removed. `noise` says what is drawn and why it protects.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dpbo._opacus import load_opacus
from dpbo.errors import InputError
from dpbo.integrations.opacus.accountant import Bound, LedgerAccountant
from dpbo.integrations.opacus.config import DPSGDConfig
from dpbo.integrations.opacus.noise import LEAST_NORM, MOST_NORM, NoisedOptimizer, PoissonSamples
from dpbo.privacy import require_positive
from dpbo.validation import checked

_loaders: Any = load_opacus("opacus.data_loader")
_OWN = frozenset({"noise_multiplier", "poisson_sampling", "noise_generator", "clipping", "rand_on_empty"})


class NoisedEngine(load_opacus().PrivacyEngine):  # type: ignore[misc]
    """An `opacus.PrivacyEngine` that trains by the terms with the samples, sums and noise of `noise`.

    Args:
        terms: of the run.
        charge: pays for one step of the optimizer it is given, or raises.
        once: the loader gives the samples of all epochs in one pass, and none after them.
    """

    def __init__(self, terms: DPSGDConfig, charge: Callable[[Any], None], *, once: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of generators of its own, which are not used
            super().__init__(accountant="rdp")
        self.terms, self._charge, self._once = terms, charge, once

    def make_private(
        self, *, module: nn.Module, optimizer: torch.optim.Optimizer, data_loader: DataLoader[Any], max_grad_norm: float, **opacus: Any
    ) -> tuple[nn.Module, NoisedOptimizer, DataLoader[Any]]:
        """As Opacus' own, without what the terms say.

        Args:
            data_loader: gives its records and how they are put together; without workers, for samples are counted where they are drawn.
            max_grad_norm: of one record's gradient, 1e-15 to 1e15.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode.

        Raises:
            InputError: an argument outside its range, or one that the terms decide.
        """
        if _OWN & opacus.keys():
            raise InputError("opacus", sorted(_OWN & opacus.keys()), "left out", "The terms fix these for every run.")
        if "ghost" in str(opacus.get("grad_sample_mode", "")):
            raise InputError("grad_sample_mode", opacus["grad_sample_mode"], "one of gradients by record, such as 'hooks'")
        if not {parameter.device.type for parameter in module.parameters()} <= {"cpu", "cuda"}:
            raise InputError("module", "on another device", "on the CPU or CUDA devices", "Move it there before make_private.")
        if data_loader.num_workers or isinstance(data_loader.dataset, IterableDataset) or not len(data_loader.dataset):  # type: ignore[arg-type]
            raise InputError("data_loader", type(data_loader).__name__, "a DataLoader of records with places, with num_workers=0")
        norm = require_positive("max_grad_norm", max_grad_norm, LEAST_NORM, MOST_NORM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks
            prepared: Any = super().make_private(
                module=module, optimizer=optimizer, data_loader=data_loader, max_grad_norm=norm,
                noise_multiplier=float(self.terms.noise_multiplier), **opacus,
            )  # fmt: skip
        prepared[1].step_hook = None  # the accountant's: steps are charged where their noise is drawn
        return prepared[0], prepared[1], prepared[2]

    def _prepare_data_loader(self, data_loader: Any, *, distributed: bool, batch_first: bool = True, **_: Any) -> DataLoader[Any]:
        if distributed:
            raise InputError("module", "distributed", "in one process")
        records, first = data_loader.dataset, data_loader.dataset[0]
        most = self.terms.steps if self._once else None
        self._samples = PoissonSamples(len(records), self.terms.rate, most or self.terms.batches, most)
        collate = _loaders.wrap_collate_with_empty(
            collate_fn=data_loader.collate_fn, batch_first=batch_first,
            sample_empty_shapes=[(0, *_loaders.shape_safe(x)) for x in first], dtypes=[_loaders.dtype_safe(x) for x in first],
        )  # fmt: skip
        return DataLoader(records, batch_sampler=self._samples, collate_fn=collate, pin_memory=data_loader.pin_memory)

    def _prepare_optimizer(
        self, *, optimizer: Any, noise_multiplier: float, max_grad_norm: float, loss_reduction: str = "mean", **_: Any
    ) -> NoisedOptimizer:
        plain = getattr(optimizer, "original_optimizer", optimizer)
        trained = [id(parameter) for group in plain.param_groups for parameter in group["params"]]
        closure = inspect.signature(plain.step).parameters.get("closure")
        if len(trained) != len(set(trained)) or (closure is not None and closure.default is inspect.Parameter.empty):
            raise InputError("optimizer", type(plain).__name__, "one that takes each step from one gradient, each parameter once")
        return NoisedOptimizer(
            plain, samples=self._samples, charge=self._charge,
            noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm, expected_batch_size=self.terms.batch_size,
            loss_reduction=loss_reduction,
        )  # fmt: skip


@checked
class PrivateEngine(NoisedEngine):
    """DP-SGD on a curator's records, charged to its ledger.

    Args:
        curator: owner of the training records and of the ledger.
        terms: of the run.
        name: of the plan in the ledger; the same name and terms resume it.

    Raises:
        InputError: a unit of several records (Opacus clips records).
    """

    def __init__(self, curator: Bound, terms: DPSGDConfig, *, name: str = "dp-sgd") -> None:
        super().__init__(terms, self._pay)
        self.accountant = LedgerAccountant(curator, noise_multiplier=terms.noise_multiplier, steps=terms.steps, name=name)

    def _prepare_optimizer(self, **settings: Any) -> NoisedOptimizer:
        """The last that can be refused; then the steps are reserved."""
        prepared = super()._prepare_optimizer(**settings)
        self.accountant.reserve(self.terms.rate)
        return prepared

    def _pay(self, optimizer: Any) -> None:
        self.accountant.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=self.terms.rate)
