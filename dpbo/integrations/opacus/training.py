"""One DP-SGD run with Opacus whose cost is the same whatever its hyper-parameters.

    terms = DPSGD(noise_multiplier=2.0, epochs=10, batches=10)

    def fit(parameters, session):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=parameters["lr"])
        net, optimizer, loader = session.make_private(net, optimizer, max_grad_norm=parameters["clip"])
        for X, y in loader:                       # exactly `terms.steps` Poisson samples
            optimizer.zero_grad()
            F.cross_entropy(net(X), y).backward()
            optimizer.step()
        return net

The session has the training records and gives them out by Poisson samples only; it counts steps, and a step beyond the terms raises before
the noised gradient is used. Noise and samples come from generators that the operating system seeds, so that a script that seeds torch gives
away neither. What dpbo cannot see stands in the statement as `dpsgd-attested`: that `fit` takes the records from this loader alone, that
one record is one example, and that Opacus' float noise is as good as its law.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import Dataset

from dpbo.accounting.relations import convert
from dpbo.checking import checked
from dpbo.curator.entropy import system_entropy
from dpbo.errors import InputError
from dpbo.events import Event, GaussianEvent, PoissonGaussianEvent
from dpbo.loading import load_opacus
from dpbo.privacy import Adjacency, require_count, require_positive

_HEAD, _WORDS = 24, 624  # of the Mersenne Twister's state, as torch lays it out


@checked
@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """Public terms of every run.

    Attributes:
        noise_multiplier: standard deviation over the norm bound of one record's gradient, as in Opacus.
        epochs: passes, in expectation, over the records.
        batches: Poisson samples an epoch; each takes every record with probability 1 / batches.
        batch_size: what the sum of clipped gradients is divided by, a public number; about records / batches.
    """

    noise_multiplier: float
    epochs: int
    batches: int
    batch_size: int

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)
        for name in ("epochs", "batches", "batch_size"):
            require_count(name, getattr(self, name))

    @property
    def steps(self) -> int:
        """Of one run."""
        return self.epochs * self.batches

    def event(self, relation: Adjacency) -> Event:
        """What one run costs a training record, under the relation."""
        if self.batches == 1:
            return convert(GaussianEvent(float(self.noise_multiplier), self.steps), Adjacency.ADD_OR_REMOVE_ONE, relation)
        return PoissonGaussianEvent(float(self.noise_multiplier), self.steps, rate=1.0 / self.batches, relation=relation.value)


class Fit(Protocol):
    """Trains one model, on records that the session gives out."""

    def __call__(self, parameters: dict[str, Any], session: Session) -> nn.Module: ...


@checked
class Session:
    """One run: what `fit` may do with the training records.

    Attributes:
        terms: the run's.
    """

    def __init__(self, records: Dataset[Any], terms: DPSGD) -> None:
        self._records, self.terms, self._taken, self._begun = records, terms, 0, False

    def make_private(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, *, max_grad_norm: float, **opacus: Any
    ) -> tuple[nn.Module, torch.optim.Optimizer, Iterator[Any]]:
        """Opacus' `make_private`, once, with the session's own noise, samples and number of steps.

        Args:
            max_grad_norm: of one record's gradient; may be a hyper-parameter.
            opacus: further arguments of `PrivacyEngine.make_private`, such as grad_sample_mode.

        Raises:
            InputError: a second model, or an argument that is the session's own.
        """
        if self._begun:
            raise InputError("module", type(module).__name__, "the first of this run", "Each model costs a run of its own.")
        own = {"noise_multiplier", "data_loader", "poisson_sampling", "noise_generator", "clipping"} & opacus.keys()
        if own:
            raise InputError("opacus", sorted(own), "left out", "The terms fix these for every run.")
        if "ghost" in str(opacus.get("grad_sample_mode", "")):
            raise InputError("grad_sample_mode", opacus["grad_sample_mode"], "one of gradients by record, such as 'hooks'")
        devices = {parameter.device for parameter in module.parameters() if parameter.requires_grad}
        if len(devices) != 1:
            raise InputError("module", sorted(map(str, devices)), "on one device", "Move it there before make_private.")
        self._begun = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of generators of its own, and of hooks
            engine = load_opacus().PrivacyEngine(accountant="rdp")
            prepared: Any = engine.make_private(
                module=module, optimizer=optimizer, data_loader=self._loader(), poisson_sampling=False,
                noise_multiplier=float(self.terms.noise_multiplier), max_grad_norm=require_positive("max_grad_norm", max_grad_norm),
                noise_generator=_seeded(devices.pop()), **opacus,
            )  # fmt: skip
        module, noised, loader = prepared
        prepared[0].forbid_grad_accumulation()  # a record in two samples of one step would count twice; Opacus forbids it where it samples
        noised.expected_batch_size = self.terms.batch_size
        noised.attach_step_hook(self._count)
        return module, noised, self._batches(loader)

    def _loader(self) -> Any:
        return load_opacus("opacus.data_loader").DPDataLoader(
            self._records, sample_rate=1.0 / self.terms.batches, generator=_seeded(torch.device("cpu"))
        )

    def _batches(self, loader: Any) -> Iterator[Any]:
        for _ in range(self.terms.epochs):
            yield from loader

    def _count(self, _optimizer: Any) -> None:
        """After Opacus' own noise, before the step is taken."""
        self._taken += 1
        if self._taken > self.terms.steps:
            raise InputError("steps", self._taken, f"at most {self.terms.steps}, as the terms say", "Take one step a batch of the loader.")


def _seeded(device: torch.device) -> torch.Generator:
    """From the operating system's entropy, whatever a script does with torch's own seed.

    On the CPU a seed decides 32 bits only, few enough to try them all, so there the whole state is drawn: after 24 bytes of counters, 624
    words of 32 bits, each in 8 bytes.
    """
    generator = torch.Generator(device).manual_seed(int.from_bytes(system_entropy(8), "little") >> 1)
    if device.type == "cpu":
        state = generator.get_state()
        words = torch.frombuffer(bytearray(system_entropy(4 * _WORDS)), dtype=torch.uint8).reshape(_WORDS, 4)
        state[_HEAD : _HEAD + 8 * _WORDS].view(_WORDS, 8)[:, :4] = words
        generator.set_state(state)
    return generator
