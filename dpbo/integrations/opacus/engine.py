"""DP-SGD with Opacus' per-record gradients and dpbo's samples, sums and noise, which `noise` describes and proves.

A `PrivateEngine` trains on a curator's records and charges its ledger:

    config = DPSGDConfig(noise_multiplier=1.1, epochs=15, batches=14, batch_size=128)
    engine = PrivateEngine(curator, config)
    module, optimizer, loader = engine.make_private(module=module, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0)

`make_private` reserves the configured steps. Each is charged before its noise is drawn, in blocks of a hundredth of the steps (16 at most);
a step beyond the last raises. The sampling rate and the number that sums are divided by come from the configuration, never from the number
of records, which is private under ADD_OR_REMOVE_ONE.

A `Session` is one run inside `tune`, whose cost is the same whatever its hyper-parameters:

    def fit(parameters, session):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=parameters["lr"])
        net, optimizer, loader = session.make_private(net, optimizer, max_grad_norm=parameters["clip"])
        for X, y in loader:                       # exactly `config.steps` Poisson samples
            optimizer.zero_grad()
            F.cross_entropy(net(X), y).backward()
            optimizer.step()
        return net

What dpbo cannot check stands in the statement as `dpsgd-attested`: that training takes records from this loader alone, that one record is
one example, and that a record's gradient depends on no other record. A mean loss with class weights or ignored targets (padding) breaks
the last one: weight and average each record's losses by themselves there, then take the mean over records.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dpbo._opacus import load_opacus
from dpbo.curator.curator import Curator
from dpbo.curator.record_fingerprints import RepeatedRecordsWarning, note_trained
from dpbo.errors import InputError
from dpbo.integrations.opacus.accountant import LedgerAccountant
from dpbo.integrations.opacus.noise import LEAST_NORM, MOST_NORM, NoisedOptimizer, PoissonSamples
from dpbo.integrations.opacus.planning import DPSGDConfig
from dpbo.validation import Count, between, checked, require

_loaders: Any = load_opacus("opacus.data_loader")
_OWN = frozenset({"noise_multiplier", "poisson_sampling", "noise_generator", "clipping", "rand_on_empty"})


class NoisedEngine(load_opacus().PrivacyEngine):  # type: ignore[misc]
    """An `opacus.PrivacyEngine` with the samples, sums and noise of the module `noise`.

    Args:
        config: the run's settings.
        charge: charges one step of the optimizer that it gets, or raises.
        samples: the loader gives so many samples of the configured ones, in one pass, and none afterwards; omitted, an epoch's a pass,
            without end.
    """

    def __init__(self, config: DPSGDConfig, charge: Callable[[Any], None], *, samples: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Opacus' own generators, which are not used
            super().__init__(accountant="rdp")
        self.config, self._charge, self._most = config, charge, samples

    def make_private(
        self, *, module: nn.Module, optimizer: torch.optim.Optimizer, data_loader: DataLoader[Any], max_grad_norm: float, **opacus: Any
    ) -> tuple[nn.Module, NoisedOptimizer, DataLoader[Any]]:
        """Opacus' `make_private`, without the arguments that the configuration decides.

        Args:
            data_loader: its records and collate function are used. It must have no workers, because samples are counted where they are
                drawn.
            max_grad_norm: clip bound of one record's gradient, 1e-15 to 1e15.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode.

        Raises:
            InputError: an argument outside its range, or one that the configuration decides.
        """
        if _OWN & opacus.keys():
            decided = ", ".join(sorted(_OWN & opacus.keys()))
            remedy = f"Remove {decided} from the call: the DPSGDConfig decides it for every run."
            raise InputError("opacus", decided, "without the arguments that the DPSGDConfig decides", remedy)
        if "ghost" in str(opacus.get("grad_sample_mode", "")):
            raise InputError("grad_sample_mode", opacus["grad_sample_mode"], "a mode with per-record gradients, such as 'hooks'")
        if not {parameter.device.type for parameter in module.parameters()} <= {"cpu", "cuda"}:
            raise InputError("module", "on another device", "on the CPU or CUDA devices", "Move it there before make_private.")
        if data_loader.num_workers or isinstance(data_loader.dataset, IterableDataset) or not len(data_loader.dataset):  # type: ignore[arg-type]
            raise InputError("data_loader", type(data_loader).__name__, "a DataLoader of records with places, with num_workers=0")
        norm = require("max_grad_norm", max_grad_norm, Annotated[float, between(LEAST_NORM, MOST_NORM)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about hooks
            warnings.simplefilter("always", RepeatedRecordsWarning)
            prepared: Any = super().make_private(
                module=module, optimizer=optimizer, data_loader=data_loader, max_grad_norm=norm,
                noise_multiplier=self.config.noise_multiplier, **opacus,
            )  # fmt: skip
        prepared[1].step_hook = None  # steps are charged where their noise is drawn, not by a hook
        return prepared[0], prepared[1], prepared[2]

    def _prepare_data_loader(self, data_loader: Any, *, distributed: bool, batch_first: bool = True, **_: Any) -> DataLoader[Any]:
        if distributed:
            raise InputError("module", "distributed", "in one process")
        records, first = data_loader.dataset, data_loader.dataset[0]
        length = self.config.batches if self._most is None else self.config.steps
        self._samples = PoissonSamples(len(records), self.config.rate, length, self._most)
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
            noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm, expected_batch_size=self.config.batch_size,
            loss_reduction=loss_reduction,
        )  # fmt: skip


@checked
class PrivateEngine(NoisedEngine):
    """DP-SGD on a curator's records, charged to its ledger.

    Args:
        curator: holds the training records and the ledger.
        config: the run's settings.
        name: name of the reservation in the ledger; the same name and settings resume it.

    Raises:
        InputError: a unit may have several records (Opacus clips single records).
    """

    def __init__(self, curator: Curator, config: DPSGDConfig, *, name: str = "dp-sgd") -> None:
        super().__init__(config, self._charge_step)
        self.accountant = LedgerAccountant(curator, noise_multiplier=config.noise_multiplier, steps=config.steps, name=name)

    def _prepare_data_loader(self, data_loader: Any, **settings: Any) -> DataLoader[Any]:
        prepared = super()._prepare_data_loader(data_loader, **settings)
        self.accountant.protect(data_loader.dataset)
        return prepared

    def _prepare_optimizer(self, **settings: Any) -> NoisedOptimizer:
        prepared = super()._prepare_optimizer(**settings)  # nothing after this can be refused
        self.accountant.reserve(self.config.rate)
        return prepared

    def _charge_step(self, optimizer: Any) -> None:
        self.accountant.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=self.config.rate)


@checked
class Session:
    """One DP-SGD run: gives `fit` the training records as Poisson samples, as many as the configuration has steps.

    A second step on one sample raises before its noise is drawn. A session charges no ledger: `tune`
    does, and `private_selection`. Where a ledger of this process protects some of the records already,
    a session outside `tune` warns (`RepeatedRecordsWarning`).

    Args:
        records: the training records.
        config: the run's settings.
        samples: end the loader after so many of the configured steps; omitted, after all. `tune` tries `fit` in this way.
    """

    def __init__(self, records: Dataset[Any], config: DPSGDConfig, *, samples: Count | None = None) -> None:
        self._records, self.config, self._begun = records, config, False
        self._most = min(config.steps, samples or config.steps)

    def make_private(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, *, max_grad_norm: float, **opacus: Any
    ) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
        """Opacus' `make_private`, once, with the session's own noise, samples and number of steps.

        Args:
            max_grad_norm: clip bound of one record's gradient; may be a hyper-parameter.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode.

        Raises:
            InputError: a second model, or an argument that the session decides.
        """
        if self._begun:
            raise InputError("module", type(module).__name__, "the first of this run", "Each model costs a run of its own.")
        if "data_loader" in opacus:
            raise InputError("opacus", "data_loader", "without data_loader", "Remove data_loader from the call: the session makes it.")
        prepared = NoisedEngine(self.config, self._require_noise, samples=self._most).make_private(
            module=module, optimizer=optimizer, data_loader=DataLoader(self._records), max_grad_norm=max_grad_norm, **opacus
        )
        self._begun = True
        self._note_records()
        return prepared

    def _note_records(self) -> None:
        """Let this process know that a private training takes these records."""
        note_trained(self._records)

    def _require_noise(self, optimizer: Any) -> None:
        """Called before a step's noise is drawn. Steps need no count: each takes one sample, and there are as many samples as steps."""
        if optimizer.noise_multiplier != self.config.noise_multiplier:
            raise InputError("noise_multiplier", optimizer.noise_multiplier, f"{self.config.noise_multiplier}, as configured")


Fit = Callable[[dict[str, Any], Session], nn.Module]
"""`fit(parameters, session)`: trains one model on the records of a session."""
