"""What stands before the noise of an optimizer of Opacus' own engine.

Opacus' `make_private` ends with giving the optimizer a hook of the accountant, which it calls after
a step's noise. It is there alone that the accountant meets the optimizer, so `attach_step_hook` is
extended: a hook of this module puts its charge in front of the optimizer's `add_noise` at once,
which virtual steps (BatchMemoryManager) do not reach. Another hook that is attached later replaces
no charge. In ghost mode the loss of `make_private` clips, in `backward`, which is extended to mark
the optimizer: a step on gradients that another loss gave is refused.
"""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dpbo.curator.ranks import OneProcess, Ranks
from dpbo.dpsgd._opacus import load_opacus
from dpbo.errors import InputError, UsageError

# Below it lie the seeds that people write. Those that torch draws have 53 bits or more.
_WRITTEN_SEEDS = 1 << 32
_SEEDED = (
    "torch's generator was seeded, as by torch.manual_seed, or is a copy, as in a forked process."
    " Opacus draws noise and samples from it: who knows the seed knows them, and who has models of"
    " two copies takes their noise away. Call torch.seed() before make_private, and seed nothing"
    " after it."
)
# Of an optimizer whose gradients the loss of ghost mode clipped.
_CLIPPED = "clipped_by_loss"
# Of the process that this one was forked from.
_inherited: list[int] = []


class Charges:
    """The hook of one optimizer.

    Args:
        charge: charges one step with this noise multiplier, or raises.
        note: notes what is assumed of an optimizer's noise.
        ranks: the processes that train the model.
        expected: number of records that a sample of one process is expected to have, by the
            curator; None where that is private.
    """

    def __init__(
        self,
        charge: Callable[[float], None],
        note: Callable[[Any], None],
        ranks: Ranks | OneProcess,
        expected: float | None,
    ) -> None:
        self._charge = charge
        self._note = note
        self._ranks = ranks
        self._expected = expected
        self._process = os.getpid()
        # Of the parts of the sample that is being summed.
        self._clips: list[float] = []

    def __call__(self, optimizer: Any) -> None:
        """Nothing is left to do after the noise."""

    def attach(self, optimizer: Any) -> None:
        """Put the charge before the optimizer's noise.

        Raises:
            InputError: a generator of the caller's; or (where the number of records is public) a
                loader of clearly another number than the curator's.
            UsageError: each of several processes trains a model of its own.
        """
        several = self._ranks.world_size
        if several > 1 and not hasattr(optimizer, "world_size"):
            raise UsageError(
                f"each of the {several} processes trains a model of its own: wrap the module, as by"
                " opacus.distributed.DifferentiallyPrivateDistributedDataParallel, before"
                " make_private."
            )
        if optimizer.generator is not None and not optimizer.secure_mode:
            raise InputError(
                "noise_generator", type(optimizer.generator).__name__, "left out", "It has a seed."
            )
        if self._expected is not None and optimizer.expected_batch_size not in (
            None,
            self._expected,
        ):
            raise InputError(
                "data_loader",
                f"of samples of about {optimizer.expected_batch_size:g} records",
                f"of the curator's records, whose samples have about {self._expected:g}",
            )
        self._ranks.run_on_rank_0("assume", (), functools.partial(self._note, optimizer))
        # Parts are summed by one of these.
        name = "accumulate" if _is_ghost(optimizer) else "clip_and_accumulate"
        summed = functools.partial(self._sum, optimizer, getattr(optimizer, name))
        setattr(optimizer, name, summed)
        self._first = float(optimizer.max_grad_norm)
        optimizer.add_noise = functools.partial(self._draw, optimizer, optimizer.add_noise)

    def _sum(self, optimizer: Any, add: Callable[[], None]) -> None:
        """Add a part of a sample.

        Raises:
            UsageError: in ghost mode, by another loss than that of `make_private`, which clips.
        """
        if _is_ghost(optimizer) and not vars(optimizer).pop(_CLIPPED, False):
            raise UsageError(
                "the gradients were not clipped: in ghost mode the loss of make_private clips them,"
                " in loss(module(x), y).backward()."
            )
        if not optimizer._is_last_step_skipped:
            self._clips = []
        self._clips.append(float(optimizer.max_grad_norm))
        add()

    def _draw(self, optimizer: Any, add_noise: Callable[[], None]) -> None:
        """Charge a step, then draw its noise. The sum of a step that is refused is thrown away, or
        the next one would add to it.
        """
        try:
            self._require_planned(optimizer)
            self._charge(optimizer.noise_multiplier)
        except BaseException:
            for parameter in optimizer.params:
                parameter.summed_grad = None
            optimizer._is_last_step_skipped = False
            raise
        add_noise()

    def _require_planned(self, optimizer: Any) -> None:
        """Raises UsageError or InputError where a step would cost more than was planned."""
        if os.getpid() != self._process:
            raise UsageError("call make_private in the process that trains.")
        if not is_secure(optimizer):
            require_unknown_seed(parameter.device.type for parameter in optimizer.params)
        if hasattr(optimizer, "_adjusted_noise_multiplier"):
            raise UsageError(
                "adaptive clipping in ghost mode draws noise before its step is charged: use"
                " clipping='adaptive' with grad_sample_mode='hooks'."
            )
        # A record may be in each sample, and move the sum by as many clips.
        if (samples := optimizer.accumulated_iterations) != 1:
            raise UsageError(
                f"the step sums {samples} samples, which costs more than was planned. Take a step"
                " on each. For samples larger than memory, Opacus' BatchMemoryManager takes one"
                " step on all parts of a sample."
            )
        clip = float(optimizer.max_grad_norm)
        # What clips there does not follow the norm that scales the noise.
        fixed = _is_ghost(optimizer) or hasattr(optimizer, "max_grad_norms")
        if (fixed and clip != self._first) or {*self._clips} - {clip}:
            raise UsageError(
                "max_grad_norm changed, which scales the noise, and not the clip of all gradients"
                " that were summed: in ghost mode and with clips a layer keep it, else change it"
                " only after the step on a whole sample."
            )


def require_unknown_seed(devices: Iterable[str] = ()) -> None:
    """Raises UsageError where a seed of torch's generators was written by somebody, or is another
    process' own. Samples are drawn on the CPU, noise on these devices.
    """
    seeds = [torch.initial_seed()]
    if "cuda" in devices:
        seeds.append(torch.cuda.initial_seed())
    if any(seed < _WRITTEN_SEEDS or seed in _inherited for seed in seeds):
        raise UsageError(_SEEDED)


def is_secure(optimizer: Any) -> bool:
    """Whether Opacus draws the noise from a generator that is a cipher."""
    return optimizer.secure_mode and optimizer.generator is not None


def _is_ghost(optimizer: Any) -> bool:
    return hasattr(optimizer, "accumulate")


def _note_fork() -> None:
    _inherited[:] = [torch.initial_seed()]


def _attaching(attach: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(attach)
    def attach_step_hook(optimizer: Any, hook: Any) -> None:
        attach(optimizer, hook)
        if isinstance(hook, Charges):
            hook.attach(optimizer)

    return attach_step_hook


def _marking(backward: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(backward)
    def marked(loss: Any) -> None:
        backward(loss)
        setattr(loss.optimizer, _CLIPPED, True)

    return marked


DPOptimizer: Any = load_opacus("opacus.optimizers").DPOptimizer
Loss: Any = load_opacus("opacus.utils.fast_gradient_clipping_utils").DPTensorFastGradientClipping
DPOptimizer.attach_step_hook = _attaching(DPOptimizer.attach_step_hook)
Loss.backward = _marking(Loss.backward)
os.register_at_fork(after_in_child=_note_fork)
