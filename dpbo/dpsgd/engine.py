"""DP-SGD with Opacus' per-record gradients and dpbo's samples, sums and noise, which `noise`
describes and proves.

A `PrivateEngine` trains on a curator's records and charges its ledger:

    config = DPSGDConfig(noise_multiplier=1.1, epochs=15, batches=14, batch_size=128)
    engine = PrivateEngine(curator, config)
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0
    )

`make_private` reserves the configured steps. Each is charged before its noise is drawn, in blocks
of a hundredth of the steps (16 at most); a step beyond the last raises. The sampling rate and the
number that sums are divided by come from the configuration, never from the number of records, which
is private under ADD_OR_REMOVE_ONE.

A `Session` is one run inside `tune`, whose cost is the same whatever its hyper-parameters:

    def fit(parameters, session):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=parameters["lr"])
        net, optimizer, loader = session.make_private(
            net, optimizer, max_grad_norm=parameters["clip"]
        )
        # exactly `config.steps` Poisson samples
        for X, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(X), y).backward()
            optimizer.step()
        return net

Both give the trained model by `released()`: a copy made before training, with the noised parameters
(`rebuilding`). `tune` does it for the module that `fit` returns.

What dpbo cannot check stands in the statement as `dpsgd-attested`:
- Training takes records from this loader alone, and one record is one example. Nothing else of the
  records enters the module, such as their mean: what a forward pass, a hook or the loop keeps of
  them in attributes, in the optimizer's state or past torch's version counters is not looked for.
- A record's gradient depends on no other record. A mean loss with class weights or ignored targets
  (padding) breaks that: weight and average each record's losses by themselves there, then take the
  mean over records. So does a collate function that pads inputs to the sample's longest, where the
  module does not mask what was added: pad to a public length. So does a mean loss under TF32, as of
  cuDNN's convolutions, whose rounding follows the sample's size: sum the loss, or turn TF32 off.
  Rounding does so in float32, too, where inputs or targets are not standardised (`noise`).
- Random numbers, such as dropout's masks, come from the global generators of torch, NumPy and
  Python. Each sample seeds them anew. A seed that the loop sets between a sample and its step, or a
  generator of the caller's own, is known, and one record more gives all later ones other numbers.
- Nothing in a record makes the loop stop, fail, skip a step, or change a rate or a bound: neither a
  loss, an accuracy or a gradient that was not noised, nor a label without a class. The weights tell
  how many noises were added, and how large: 23 steps in place of 40 told that one record's loss was
  not finite. Rates may follow the number of the step, or a released score.

Of the last, two things are seen and refused: a sample without a step, and a Session's model after
fewer steps than configured. To add the missing noise instead would not do: where one record makes
the loop skip its sample, the sum lacks the gradients of all others, and noise is sized for one.
A refused run has no model, in place of one that tells how far it came. That it was refused may
still depend on the records, as any failure of a training may; that is why it is attested.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from dpbo.curator.curator import Curator
from dpbo.dpsgd._opacus import load_opacus
from dpbo.dpsgd.accountant import LedgerAccountant
from dpbo.dpsgd.noise import (
    LoaderAhead,
    NoisedOptimizer,
    Norm,
    PoissonSamples,
    SeedWorker,
)
from dpbo.dpsgd.planning import DPSGDConfig
from dpbo.dpsgd.rebuilding import PublicCopy, map_parts
from dpbo.errors import InputError, UsageError
from dpbo.hidden_run import in_hidden_run
from dpbo.records.protected_records import RepeatedRecordsWarning, note_trained
from dpbo.validation import Count, checked, require

# Whose modules share gradients or parameters among processes.
_SPREAD = ("torch.nn.parallel.distributed", "torch.distributed.", "opacus.distributed")
_OWN = frozenset(
    {"noise_multiplier", "poisson_sampling", "noise_generator", "clipping", "rand_on_empty"}
)


class NoisedEngine(load_opacus().PrivacyEngine):  # type: ignore[misc]
    """An `opacus.PrivacyEngine` with the samples, sums and noise of the module `noise`.

    Args:
        config: the run's settings.
        charge: charges one step of the optimizer that it gets, or raises.
        samples: the loader gives so many samples of the configured ones, in one pass, and none
            afterwards; omitted, an epoch's a pass, without end.
    """

    _sampler: type[PoissonSamples] = PoissonSamples
    _optimizer: type[NoisedOptimizer] = NoisedOptimizer

    def __init__(
        self, config: DPSGDConfig, charge: Callable[[Any], None], *, samples: int | None = None
    ) -> None:
        with warnings.catch_warnings():
            # About Opacus' own generators, which are not used.
            warnings.simplefilter("ignore")
            super().__init__(accountant="rdp")
        self.config = config
        self._charge = charge
        self._most = samples
        self._public: PublicCopy

    def make_private_with_epsilon(self, *_args: Any, **_named: Any) -> Any:
        """Refused: a run's noise is fixed before it.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "make_private_with_epsilon would choose the noise of this run, which is planned before:"
            " call make_private. dpbo.accounting.calibrate finds the noise multiplier of an"
            " epsilon."
        )

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        example: tuple[Any, ...] | Mapping[str, Any] | None = None,
        **opacus: Any,
    ) -> tuple[nn.Module, NoisedOptimizer, DataLoader[Any]]:
        """Opacus' `make_private`, without the arguments that the configuration decides.

        Args:
            module: not trained before, and without layers that keep or mix records, such as batch
                norm in training mode.
            optimizer: of its parameters; code of your own in a step uses no records.
            data_loader: its records, collate function and workers are used, and whether it pins
                memory. Workers load samples ahead of the step, each with fresh generators; Opacus'
                BatchMemoryManager is for loaders without workers.
            max_grad_norm: clip bound of one record's gradient, 1e-15 to 1e15.
            example: the module's inputs for three different public records, a tuple or a dict by
                keyword. Whether it mixes records is tried on them; omitted, on made-up numbers of
                the first sample's shape, on which some modules fail.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode.

        Raises:
            InputError: an argument outside its range, or one that the configuration decides. Steps
                raise it if a parameter or buffer changed since the last step, the loader if the
                last sample took no step.
        """
        if _OWN & opacus.keys():
            decided = ", ".join(sorted(_OWN & opacus.keys()))
            raise UsageError(
                f"remove {decided} from the call: the DPSGDConfig decides it for every run."
            )
        if "ghost" in str(opacus.get("grad_sample_mode", "")):
            raise InputError(
                "grad_sample_mode",
                opacus["grad_sample_mode"],
                "a mode with per-record gradients, such as 'hooks'",
            )
        for part in module.modules():
            if any(kind.__module__.startswith(_SPREAD) for kind in type(part).__mro__):
                raise InputError(
                    "module",
                    type(part).__name__,
                    "in one process",
                    "Several would each draw samples and noise of their own. Give the module"
                    " without that wrapper, in one process.",
                )
        if not {parameter.device.type for parameter in module.parameters()} <= {"cpu", "cuda"}:
            raise InputError(
                "module", module, "on the CPU or CUDA devices", "Move it there before make_private."
            )
        records: Any = data_loader.dataset
        if isinstance(records, IterableDataset) or not len(records):
            raise InputError(
                "data_loader",
                f"of {type(records).__name__}",
                "a DataLoader of records with places",
                "A Poisson sample takes each record by its place, with equal chance; a stream has"
                " no places. Read it into a list first.",
            )
        # Opacus' own takes Poisson samples, too.
        poisson = load_opacus("opacus.utils.uniform_sampler").UniformWithReplacementSampler
        batches = data_loader.batch_sampler
        sampler: Any = data_loader.sampler if batches is None else batches
        if type(batches) is BatchSampler:
            sampler = batches.sampler
        whole = type(sampler) is SequentialSampler or (
            type(sampler) is RandomSampler
            and not sampler.replacement
            and sampler.num_samples == len(records)
        )
        if not whole and not isinstance(sampler, (PoissonSamples, poisson)):
            raise InputError(
                "data_loader",
                f"with a {type(sampler).__name__}",
                "without a sampler of its own, which Poisson samples would replace",
                "In place of weights, multiply each record's loss by a public one of its class;"
                " in place of places, give torch.utils.data.Subset(dataset, places), and the"
                " curator the same.",
            )
        norm = require("max_grad_norm", max_grad_norm, Norm)
        trained = _parameters_of(optimizer)
        given = set(map(id, trained))
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in given:
                raise UsageError(
                    f"the optimizer does not have the module's trainable parameter {name!r}: give"
                    " it all of them, or freeze the others with requires_grad_(False)."
                )
        self._public = PublicCopy(module, trained)
        self._wrapped: Any = None
        try:
            with warnings.catch_warnings():
                # About hooks.
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", RepeatedRecordsWarning)
                private, noised, loader = super().make_private(
                    module=module,
                    optimizer=optimizer,
                    data_loader=data_loader,
                    max_grad_norm=norm,
                    noise_multiplier=self.config.noise_multiplier,
                    **opacus,
                )
            # Steps are charged where their noise is drawn, not by a hook.
            noised.step_hook = None
            self._public.begin(0 if opacus.get("batch_first", True) else 1, example)
        except BaseException:
            # The next call would refuse a module with hooks that its caller never wrote.
            if self._wrapped is not None:
                self._wrapped.remove_hooks()
            raise
        return private, noised, loader

    def _prepare_model(self, module: nn.Module, **terms: Any) -> Any:
        self._wrapped = super()._prepare_model(module, **terms)
        return self._wrapped

    def released(self) -> nn.Module:
        """The trained model as it may leave, in evaluation mode.

        It is a copy of the module as `make_private` got it, with the noised parameters' numbers.
        Nothing else of the trained module is in it.

        Raises:
            InputError: there is no model yet, or a parameter or buffer changed since the last
                step.
        """
        if not hasattr(self, "_public"):
            raise UsageError("released() must be called after make_private.")
        return self._public.rebuilt()

    @property
    def steps(self) -> int:
        """Number of steps taken, each on a sample of its own."""
        return self._samples.stepped

    def _prepare_data_loader(
        self, data_loader: Any, *, batch_first: bool = True, **_: Any
    ) -> DataLoader[Any]:
        records = data_loader.dataset
        length = self.config.batches if self._most is None else self.config.steps
        workers = data_loader.num_workers
        self._samples = self._sampler(
            len(records), self.config.rate, length, self._most, ahead=workers > 0
        )
        settings = {
            "batch_sampler": self._samples,
            "collate_fn": _Collate(data_loader.collate_fn, records[0], 0 if batch_first else 1),
            "pin_memory": data_loader.pin_memory,
        }
        if not workers:
            return DataLoader(records, **settings)
        return LoaderAhead(
            records,
            **settings,
            num_workers=workers,
            worker_init_fn=SeedWorker(data_loader.worker_init_fn),
            prefetch_factor=data_loader.prefetch_factor,
            persistent_workers=data_loader.persistent_workers,
            multiprocessing_context=data_loader.multiprocessing_context,
            timeout=data_loader.timeout,
        )

    def _prepare_optimizer(
        self,
        *,
        optimizer: Any,
        noise_multiplier: float,
        max_grad_norm: float,
        loss_reduction: str = "mean",
        **_: Any,
    ) -> NoisedOptimizer:
        plain = getattr(optimizer, "original_optimizer", optimizer)
        trained = list(map(id, _parameters_of(plain)))
        closure = inspect.signature(plain.step).parameters.get("closure")
        if len(trained) != len(set(trained)) or (
            closure is not None and closure.default is inspect.Parameter.empty
        ):
            raise InputError(
                "optimizer",
                type(plain).__name__,
                "one that takes each step from one gradient, each parameter once",
            )
        return self._optimizer(
            plain,
            model=self._public,
            samples=self._samples,
            charge=self._charge,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=self.config.batch_size,
            loss_reduction=loss_reduction,
        )


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    groups = (group["params"] for group in optimizer.param_groups)
    return list(itertools.chain.from_iterable(groups))


@checked
class PrivateEngine(NoisedEngine):
    """DP-SGD on a curator's records, charged to its ledger.

    Args:
        curator: holds the training records and the ledger.
        config: the run's settings.
        name: name of the reservation in the ledger; the same name and settings resume it.

    Raises:
        InputError: a unit may have several records (Opacus clips single records). `make_private`
            also raises it for a loader of other records than the curator's.
    """

    def __init__(self, curator: Curator, config: DPSGDConfig, *, name: str = "dp-sgd") -> None:
        super().__init__(config, self._charge_step)
        self._curator = curator
        self.accountant = LedgerAccountant(
            curator, noise_multiplier=config.noise_multiplier, steps=config.steps, name=name
        )

    def _prepare_data_loader(self, data_loader: Any, **settings: Any) -> DataLoader[Any]:
        if not self._curator.protected.are(data_loader.dataset) and not self._curator.protected.are(
            _table(data_loader.dataset)
        ):
            remedy = (
                "Load what the curator holds, such as DataLoader(TensorDataset(*records)). A"
                " dataset that transforms its records is compared if the curator holds the dataset"
                " itself."
            )
            raise InputError(
                "data_loader", data_loader, "of the curator's records, each of them once", remedy
            )
        prepared = super()._prepare_data_loader(data_loader, **settings)
        self.accountant.protect(data_loader.dataset)
        return prepared

    def _prepare_optimizer(self, **settings: Any) -> NoisedOptimizer:
        # Nothing after this can be refused.
        prepared = super()._prepare_optimizer(**settings)
        self.accountant.reserve(self.config.rate)
        return prepared

    def _charge_step(self, optimizer: Any) -> None:
        self.accountant.step(
            noise_multiplier=optimizer.noise_multiplier, sample_rate=self.config.rate
        )


@checked
class Session:
    """One DP-SGD run: gives `fit` the training records as Poisson samples, as many as the
    configuration has steps.

    A second step on one sample raises before its noise is drawn. A session charges no ledger:
    `tune` does, and `private_selection`. Where a ledger of this process protects some of the
    records already, a session outside `tune` warns (`RepeatedRecordsWarning`).

    Args:
        records: the training records.
        config: the run's settings.
        samples: end the loader after so many of the configured steps; omitted, after all.
    """

    _engine_kind: type[NoisedEngine] = NoisedEngine

    def __init__(
        self, records: Dataset[Any], config: DPSGDConfig, *, samples: Count | None = None
    ) -> None:
        self._records = records
        self._config = config
        self._most = min(config.steps, samples or config.steps)
        self._engine: NoisedEngine | None = None
        self._models: tuple[nn.Module, ...] = ()

    @property
    def config(self) -> DPSGDConfig:
        """The run's settings, which are charged."""
        return self._config

    def make_private(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float,
        **opacus: Any,
    ) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
        """Opacus' `make_private`, once, with the session's own noise, samples and number of steps.

        Args:
            max_grad_norm: clip bound of one record's gradient; may be a hyper-parameter.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode, and
                `example`, as in `PrivateEngine`.

        Raises:
            InputError: a second model, or an argument that the session decides.
        """
        if self._engine is not None:
            raise InputError(
                "module",
                type(module).__name__,
                "the first of this run",
                "Each model costs a run of its own.",
            )
        if "data_loader" in opacus:
            raise InputError(
                "data_loader", opacus["data_loader"], "omitted", "The session makes it."
            )
        unpaid = in_hidden_run.get()
        if unpaid is not None:
            taken = next((choices for choices in unpaid if self.config in choices), None)
            if taken is None:
                raise UsageError(
                    "a hidden run trains more than base= names: give it the DPSGDConfig of each"
                    " Session."
                )
            unpaid.remove(taken)
        engine = self._engine_kind(self.config, self._require_noise, samples=self._most)
        prepared = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=DataLoader(self._records),
            max_grad_norm=max_grad_norm,
            **opacus,
        )
        self._engine = engine
        self._models = (module, prepared[0])
        self._note_records()
        return prepared

    def released(self) -> nn.Module:
        """The trained model as it may leave, as `PrivateEngine.released`, after all steps.

        Raises:
            InputError: fewer steps were taken than configured, or a parameter or buffer changed
                since the last one.
        """
        if self._engine is None or self._engine.steps != self._most:
            raise UsageError(
                "fit took fewer steps than configured: take a step on every sample of the loader."
                " Stopping early tells of the records, because the weights show it. To tune how"
                " long a run trains, give plan_tuning several configurations."
            )
        return self._engine.released()

    def is_model(self, thing: object) -> bool:
        """Whether this is the module that the session trains, or Opacus' wrapper of it."""
        return any(thing is model for model in self._models)

    def _note_records(self) -> None:
        """Let this process know that a private training takes these records."""
        note_trained(self._records)

    def _require_noise(self, optimizer: Any) -> None:
        """Called before a step's noise is drawn."""
        if optimizer.noise_multiplier != self.config.noise_multiplier:
            raise InputError(
                "noise_multiplier",
                optimizer.noise_multiplier,
                f"{self.config.noise_multiplier}, as configured",
            )


class _Collate:
    """A loader's collate function. Of no records it makes what it makes of one, without its row.

    Opacus' own would log that a sample is empty, which is private.

    Args:
        collate: of the caller's loader.
        record: any one; only its form is kept.
        axis: of records, in a batch.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], record: Any, axis: int) -> None:
        self._collate = collate
        self._axis = axis
        self._empty = _emptied(collate([record]), axis)

    def __call__(self, records: list[Any]) -> Any:
        if records:
            return self._collate(records)
        return _emptied(self._empty, self._axis)


def _emptied(batch: Any, axis: int) -> Any:
    """The batch's form, without records."""
    if isinstance(batch, torch.Tensor):
        shape = [*batch.shape]
        if shape:
            shape[axis if axis < len(shape) else 0] = 0
        return batch.new_zeros(shape)
    # Other lists hold one part of each record, such as text.
    if isinstance(batch, (tuple, list)) and not any(
        isinstance(part, (torch.Tensor, Mapping, tuple, list)) for part in batch
    ):
        return type(batch)()
    return map_parts(batch, lambda part: _emptied(part, axis))


def _table(dataset: Any) -> Any:
    """A dataset's records as tensors; None where they are no numbers, or of several shapes."""
    # A subclass may give other records than its tensors.
    if type(dataset) is TensorDataset:
        return dataset.tensors
    # An error may show a record.
    with contextlib.suppress(Exception):
        rows = default_collate([dataset[place] for place in range(len(dataset))])
        if isinstance(rows, list):
            return tuple(rows)
        return rows
    return None


Fit = Callable[[dict[str, Any], Session], nn.Module]
"""`fit(parameters, session)`: trains one model on the records of a session, and returns its
module.
"""
