"""The noise of DP-SGD: Opacus' optimizer with exact Gaussian noise on sums of bounded sensitivity.

Law of a step: p.grad = h floor((S + N) / h + 1/2) / batch_size, where S is the sum of the sample's
gradients, each clipped to norm C, and N is Gaussian of standard deviation noise_multiplier * C,
rounded up; h is a power of two with that deviation in [2^20 h, 2^21 h). N is drawn exactly from a
cipher keyed with the operating system's entropy for each step: on the CPU AES-256
(`curator.entropy`, `mechanisms.rounding`), on a GPU ChaCha20 (device_noise.py). Rounding and what
follows is post-processing.

Sensitivity of the float sum S: a record moves it by at most C, although it is rounded. Proof. Let
g_1 ... g_n be the sample's gradients, as Opacus has computed them, with d coordinates each, n <=
2^20, d <= 2^60.

1. The norm is taken in blocks of m = 1024 coordinates in the gradients' own precision (float32 at
   least), and over blocks in float64; on a GPU all in float64. A sum of m squares, in any order, is
   right to a relative (m + 1) 2^-24; squares that underflow lose less than 2^-126 each, which is
   added. So the true norm is at most (1 + 2^-14) times the computed one, r. Which coordinates make
   a block follows from the parameters' shapes alone, and a record's lie side by side. So r has the
   same bits whatever records stand beside it (tested).
2. The factor is f = min(1, C (1 - 2^-9) / r), zero where r is not finite. So f g has norm at most
   C (1 - 2^-9) (1 + 2^-13).
3. S = sum of f_i g_i in float64, in any order and in parts, is within 2 n 2^-53 sum |f_i g_i| of
   the exact sum, coordinate by coordinate, hence in norm within 2 n^2 2^-53 C <= 2^-12 C.
   On the CPU, float32 gradients of a sample of n <= 1024 records are first summed in float32, in
   blocks of m <= 4096 / n records, where no f_i is below 2^-126 but 0. Each f_i is rounded towards
   zero, which moves the sum by n 2^-23 C <= 2^-13 C at most. A block's sum, in any order, with or
   without fused products, is right within (m + 1) 2^-24 times its sum of |f_i g_i|, and 2 m 2^-126
   for what underflows. In norm the blocks together lose at most (m + 1) n 2^-24 C <= (1 + 1/m)
   2^-12 C, and m >= 4. The sum of blocks in float64 loses less than 2^-33 C. So S is within 2^-11 C
   of the exact sum here, too.
   What S / h loses of its fraction is below 2^-53 a coordinate, and h <= C: together below 2^-23 C.
   Neighbours differ by at most C (1 - 2^-9) (1 + 2^-13) + 2 * (2^-11 + 2^-23) C < C; where one
   record is replaced, by less than 2 C. (Neighbours may be summed in different ways, as n
   or an f_i decides: each sum is near its own exact one, of the same f_i g_i for all others.)

What is not bounded: a record's gradient that depends on other records of its sample. Layers that do
so are refused where they are seen (`rebuilding`). A mean loss with class weights or ignored targets
does it, whose divisor is a sum over records. The last bits of float arithmetic do, too: a mean loss
is divided by the sample's size, and Opacus multiplies it again; and how a layer sums a record's
numbers follows from the number of records. The factor's margin leaves 2^-11 C for all others
together. One more beside 1,000 standardised records moved their sum by 3e-6 C. But features of 10^5
can leave of a residual little more than rounding: one more beside 95 such records moved their sum
by 6 C in float32. In half precision that is the rule (51 C was measured), so a mean is refused
unless all parameters, buffers and results of the module's trial have float32 or float64.

Each step takes one whole fresh Poisson sample: k steps on one sample cost more than k sampled
steps, and a batch whose gradients are not one a record may move the sum further. And each sample
takes a step: one that is left out, for what one record did to the loss, moves the sum by the
gradients of all others, which noise in its place would not hide. So samples are counted where the
loop gets them, records where they are clipped, and steps where their noise is drawn; none of these
counts stands in a hook, which another hook could replace.
"""

import collections
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from dpbo.dpsgd._opacus import load_opacus
from dpbo.dpsgd.device_noise import (
    rounded_on_device,
    runs_on,
    squared_norms_on_device,
    weighted_sum_on_device,
)
from dpbo.dpsgd.rebuilding import PublicCopy
from dpbo.entropy import bernoulli, keyed_stream, system_entropy
from dpbo.errors import InputError, OpacityError, UsageError
from dpbo.isolation import GeneratorStates
from dpbo.mechanisms.additive import ROUND_UP, grid_of
from dpbo.mechanisms.gaussian import NORMALS
from dpbo.mechanisms.rounding import rounded
from dpbo.validation import between, require

MOST_NORM = 1e15
# Of one record's gradient.
Norm = Annotated[float, between(1e-15, MOST_NORM)]
_MOST_RECORDS = 1 << 20
_MARGIN = 1 - 2.0**-9
_BLOCK = 1024
_LOST = 2.0**-126
_BELOW_ONE = 1 - 2.0**-53
# Rows of a block that is summed in float32, times records of the sample; the most and least rows.
_BLOCK_TERMS = 1 << 12
_MOST_ROWS = 32
_LEAST_ROWS = 4
# How many numbers are converted to float64 at a time.
_CACHED = 1 << 16
_DEVICE_CACHED = 1 << 26
# How many columns of small gradients are joined.
_JOINED = 1 << 14
_DEVICE_JOINED = 1 << 18
_DRAWS = 1 << 14
_REMEDY = (
    "Take the next batch from the loader before each step, one optimizer a model, and look no batch"
    " ahead: a second step on the same records costs more than was planned."
)
_SKIPPED = (
    "Take a step on each sample, also on an empty one, and whatever its loss is: how many steps"
    " were taken can be read from the weights. A record's gradient that is not finite counts as"
    " zero by itself. After an interrupt, train on with what `released()` gives."
)
_HALF = (torch.float16, torch.bfloat16)

DPOptimizer: Any = load_opacus("opacus.optimizers").DPOptimizer


class PoissonSamples:
    """A DataLoader's batch sampler that draws Poisson samples (`curator.entropy.bernoulli`) and
    counts them.

    Until the step on a pass's last sample, torch, numpy and Python draw from fresh generators,
    seeded anew for each sample. With a seed that is known, one record more would give all later
    records other masks of dropout, by which the sum moves further than a clip. And how many numbers
    were drawn depends on the records, so the caller's generators are put back afterwards.

    Args:
        records: number of records; each is in a sample with probability `rate`.
        length: number of samples in one pass.
        most: number of samples in all passes together; omitted, no limit.
        ahead: whether workers load samples before the last one's step: a sample then counts when
            `counted` hands it to the loop, and not when it is drawn.

    Attributes:
        drawn: number of samples so far.
        stepped: number of the last sample that a step was taken on.
        size: number of records in the last sample.

    Raises:
        InputError: asked for a sample before a step on the last one. (It comes from the iterator.)
    """

    def __init__(
        self,
        records: int,
        rate: float,
        length: int,
        most: int | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._records = records
        self._rate = rate
        self._length = length
        self._most = most
        self._ahead = ahead
        # the sizes of samples that are drawn and not counted yet, in the newest pass
        self._waiting = collections.deque[int]()
        self.drawn = 0
        self.stepped = 0
        self.size = 0
        self._passing = False
        self._before: GeneratorStates | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        if self._ahead:
            return self._samples(self._waiting)
        return self.counted(lambda: self._samples(self._waiting))

    def counted(self, load: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """A pass of `load()`, which draws samples and may load their records: each is counted as it
        is handed to the loop.
        """
        self._waiting = collections.deque()
        return self._counted(load(), self._waiting)

    def _samples(self, waiting: collections.deque[int]) -> Iterator[list[int]]:
        # Given now, because a generator runs at its first sample: another pass may have begun.
        for _ in range(self._length):
            places = np.flatnonzero(bernoulli(self._records, self._rate)).tolist()
            waiting.append(len(places))
            yield places

    def _counted(self, samples: Iterable[Any], waiting: collections.deque[int]) -> Iterator[Any]:
        self._passing = True
        loaded = iter(samples)
        try:
            while self.drawn != self._most:
                try:
                    sample = next(loaded)
                except StopIteration:
                    return
                except Exception:
                    # Perhaps of one record, so the sample may not be left out.
                    self.drawn += 1
                    raise
                if self.stepped != self.drawn:
                    raise UsageError(
                        "the loader was asked for a sample before a step on the last one."
                        f" {_SKIPPED}"
                    )
                self.drawn += 1
                self.size = waiting.popleft()
                self._hide_generators()
                yield sample
        finally:
            self._passing = False
            self._show_generators()

    def note_step(self) -> None:
        """A step was taken on the last sample."""
        self.stepped = self.drawn
        self._show_generators()

    def _hide_generators(self) -> None:
        if self._before is None:
            self._before = GeneratorStates()
        # For each sample anew: whatever seed the loop has set is known.
        self._before.seed(system_entropy)

    def _show_generators(self) -> None:
        """Put the caller's generators back, if neither a sample nor a step is to come."""
        if self._before is not None and not self._passing and self.stepped == self.drawn:
            self._before.restore()
            self._before = None


class LoaderAhead(DataLoader[Any]):
    """A DataLoader of `PoissonSamples` with workers, which load samples before the loop asks for
    them.

    Workers' generators are seeded from the operating system's entropy, after what the caller does
    in a new worker: PyTorch would seed them from the caller's own.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        samples: Any = self.batch_sampler
        return samples.counted(super().__iter__)


class SeedWorker:
    """What a new worker does: the caller's own, and before and after it forgets every seed."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        generators = GeneratorStates()
        # Before, because the caller's own may make generators of this seed.
        generators.seed(system_entropy)
        if self._own is not None:
            self._own(worker)
        generators.seed(system_entropy)


class NoisedOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' DPOptimizer with this module's sums, noise and counts.

    Args:
        model: the trained module's public copy, which tells whether anything changed outside a
            step.
        samples: the batch sampler of the loader that the gradients come from.
        charge: charges one step, or raises; called before the step's noise is drawn.
        settings: arguments of DPOptimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        model: PublicCopy,
        samples: PoissonSamples,
        charge: Callable[[Any], None],
        **settings: Any,
    ) -> None:
        super().__init__(optimizer, **settings)
        self._model = model
        self._samples = samples
        self._charge = charge
        self._begin_step()

    def __getstate__(self) -> Any:
        """Refused before torch begins: its copy of a DPOptimizer fails halfway, and leaves a class
        whose next step fails, too.
        """
        raise OpacityError(
            "the optimizer of a PrivateEngine cannot be copied or pickled, nor can a scheduler that"
            " holds it: its steps are charged where they are taken. Copy their state_dict()."
        )

    def _begin_step(self) -> None:
        """Reset the current step: its clipped records, its largest norm bound."""
        self._clipped = 0
        self._norm = 0.0

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Refuses torch's GradScaler, which looks at gradients before their noise to decide whether
        to skip a step.
        """
        raise UsageError(
            "a GradScaler looks at gradients before their noise. Use bfloat16 or float32, whose"
            " gradients need no scaling."
        )

    def zero_grad(self, set_to_none: bool = False) -> None:
        """As in Opacus; between two steps it also resets a step that an error interrupted."""
        super().zero_grad(set_to_none)
        if not self._is_last_step_skipped:
            self._begin_step()

    def pre_step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As in Opacus. Gradients without noise, such as that of a parameter that was frozen
        meanwhile, are thrown away.
        """
        noised = set(map(id, self.params))
        if not noised:
            raise UsageError("no parameter of the module requires a gradient.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in noised:
                    parameter.grad = None
        for parameter in self.params:
            if parameter.grad_sample is None:
                raise UsageError(
                    f"the parameter {self._model.name_of(parameter)!r} has no gradient. Call"
                    " backward() before each step, and freeze with requires_grad_(False) what the"
                    " loss does not depend on, before make_private."
                )
        done: float | None = super().pre_step(closure)
        return done

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As in Opacus. Parameters may change here alone."""
        done: float | None = super().step(closure)
        self._model.note_step()
        return done

    def clip_and_accumulate(self) -> None:
        """Add clipped gradients to the sums. Raises UsageError unless they are one a record of one
        fresh sample.
        """
        self._model.require_unchanged()
        self._model.require_tried()
        if self._samples.stepped == self._samples.drawn:
            raise UsageError(
                "this is a second step on a Poisson sample, or one before the first sample."
                f" {_REMEDY}"
            )
        gradients = [
            gradient.reshape(len(gradient), math.prod(gradient.shape[1:])).contiguous()
            for gradient in self.grad_samples
        ]
        # A schedule may change it.
        clip = require("max_grad_norm", self.max_grad_norm, Norm)
        # A mean loss is divided by the sample's size: one record more would round all gradients
        # another way.
        halves = not self._model.is_precise or any(
            gradient.dtype in _HALF for gradient in gradients
        )
        if self.loss_reduction == "mean" and halves:
            raise InputError(
                "loss_reduction", "mean", "'sum' in half precision, in make_private and the loss"
            )
        count, *others = set(map(len, gradients))
        if others or self._clipped + count > self._samples.size:
            raise UsageError(
                f"there are more gradients than the Poisson sample has records. {_REMEDY}"
            )
        if self._clipped + count > _MOST_RECORDS:
            raise InputError(
                "batches", len(self._samples), "so many that a sample has at most 2^20 records"
            )
        self._clipped += count
        self._norm = max(clip, self._norm)
        groups = _groups(gradients)
        joined = [group[0] if len(group) == 1 else torch.cat(group, dim=1) for group in groups]
        factors = _factors(joined, clip)
        totals = list[torch.Tensor]()
        for group, rows in zip(groups, joined, strict=True):
            total = _weighted_sum(rows, factors, self._samples.size)
            totals += total.split_with_sizes([gradient.shape[1] for gradient in group])
        for parameter, total in zip(self.params, totals, strict=True):
            own = total.view(parameter.shape)
            if parameter.summed_grad is None:
                parameter.summed_grad = own
            else:
                parameter.summed_grad = parameter.summed_grad + own
            # A second step finds no gradients.
            parameter.grad_sample = None

    def add_noise(self) -> None:
        """Charge the step, then make the noised sums the parameters' gradients."""
        if self._clipped != self._samples.size:
            raise UsageError(
                f"there is not one gradient for each record of the Poisson sample. {_REMEDY}"
            )
        self._charge(self)
        self._samples.note_step()
        # All parameters together: a model of many layers takes as long as one of few.
        sums = [parameter.summed_grad.reshape(-1) for parameter in self.params]
        total = torch.cat([part.to(sums[0].device) for part in sums])
        noised = self._noised(total)
        parts = torch.split(noised, [len(part) for part in sums])
        for parameter, part in zip(self.params, parts, strict=True):
            parameter.grad = part.view(parameter.shape).to(parameter)
            parameter.summed_grad = None
        self._begin_step()

    def _noised(self, total: torch.Tensor) -> torch.Tensor:
        """The sum of all parameters' gradients, of one dimension, with its noise."""
        return _noised(total, self.noise_multiplier * self._norm)

    @property
    def accumulated_iterations(self) -> int:
        """Always 1: one sample a step."""
        return 1


def _groups(gradients: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Gradients of few columns in groups of one dtype and device: a call for each of many small
    layers would take longer than to copy them together. How many records there are is private, so
    it decides nothing.
    """
    groups = list[list[torch.Tensor]]()
    room = 0
    for gradient in gradients:
        alike = groups and (groups[-1][0].dtype, groups[-1][0].device) == (
            gradient.dtype,
            gradient.device,
        )
        if alike and gradient.shape[1] <= room:
            groups[-1].append(gradient)
        else:
            groups.append([gradient])
            room = _DEVICE_JOINED if gradient.is_cuda else _JOINED
        room -= gradient.shape[1]
    return groups


def _factors(gradients: list[torch.Tensor], clip: float) -> torch.Tensor:
    """Each record's clipping factor, float64; zero if its norm is not finite."""
    squares: Any = 0.0
    for gradient in gradients:
        if runs_on(gradient.device) and gradient.numel():
            squares = squares + squared_norms_on_device(gradient).to(gradients[0].device)
            continue
        if gradient.is_cuda:
            # The order of torch's sums depends there on how many rows there are.
            norms = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64)
            squares = squares + norms.square().to(gradients[0].device)
            continue
        flat = gradient if gradient.dtype == torch.float64 else gradient.float()
        blocks = flat.shape[1] // _BLOCK
        for part in (
            flat[:, : blocks * _BLOCK].reshape(len(flat), blocks, _BLOCK),
            flat[:, None, blocks * _BLOCK :],
        ):
            squares = squares + part.norm(dim=-1).double().square().sum(1).to(gradients[0].device)
        squares = squares + flat.shape[1] * _LOST
    factors = (clip * _MARGIN / squares.sqrt()).clamp(max=1.0)
    return torch.where(squares.isfinite(), factors, 0.0)


def _weighted_sum(rows: torch.Tensor, factors: torch.Tensor, records: int) -> torch.Tensor:
    """The sum of the rows times their factors, in float64; a row with factor zero counts as zero
    even if it is not finite. `records` is the number in the whole sample, of which these rows may
    be a part.
    """
    factors = factors.to(rows.device)
    if runs_on(rows.device) and rows.numel():
        return weighted_sum_on_device(rows, factors)
    if not bool((factors > 0).all()):
        rows = rows.masked_fill((factors == 0).unsqueeze(1), 0.0)
    count, length = rows.shape
    block = min(_BLOCK_TERMS // max(records, 1), _MOST_ROWS)
    normal = bool(((factors == 0) | (factors >= torch.finfo(torch.float32).tiny)).all())
    on_cpu = rows.dtype == torch.float32 and not rows.is_cuda
    if on_cpu and normal and block >= _LEAST_ROWS:
        return _sum_of_blocks(rows.detach().numpy(), factors.detach().numpy(), block)
    most = _DEVICE_CACHED if rows.is_cuda else _CACHED
    width = max(most // max(count, 1), 64)
    # each part is copied into it before it is read
    held = factors.new_empty(count, min(width, length))
    total = factors.new_zeros(length)
    for part, into in zip(torch.split(rows, width, dim=1), torch.split(total, width), strict=True):
        torch.mv(held[:, : len(into)].copy_(part).T, factors, out=into)
    return total


def _sum_of_blocks(
    rows: NDArray[np.float32], factors: NDArray[np.float64], block: int
) -> torch.Tensor:
    """The same, by blocks of rows that are summed in float32."""
    # torch's memory: numpy's asks for huge pages, for which a busy machine may wait
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device="cpu")
    # each product is written into it
    part = torch.empty(rows.shape[1], dtype=torch.float32, device="cpu").numpy()
    # What underflows is too small to matter.
    with np.errstate(all="ignore"):
        below = factors.astype(np.float32)
        below = np.where(below > factors, np.nextafter(below, np.float32(0.0)), below)
        for start in range(0, len(rows), block):
            np.matmul(below[start : start + block], rows[start : start + block], out=part)
            total.numpy()[:] += part
    return total


def _noised(total: torch.Tensor, std: float) -> torch.Tensor:
    """The sum, of one dimension, with its noise, float64, on the sum's device. The sum may be
    overwritten: fresh memory for ten million numbers takes a tenth of the noise's time.
    """
    scale = std * ROUND_UP
    grid = grid_of(scale)
    if runs_on(total.device):
        # `grid` is a power of two, so nothing is rounded.
        steps = total / grid
        below = steps.floor()
        drawn = rounded_on_device(steps.sub_(below).clamp_(max=_BELOW_ONE), scale / grid)
        return below.add_(drawn).mul_(grid)
    noised = total.cpu()
    flat = noised.numpy()

    def draw(start: int) -> None:
        # An error or a warning, such as of underflow, would tell of records.
        with np.errstate(all="ignore"):
            # `grid` is a power of two, so nothing is rounded.
            exact = flat[start : start + _DRAWS] / grid
            whole = np.floor(exact)
            fractions = np.minimum(exact - whole, _BELOW_ONE)
            scales = np.broadcast_to(scale / grid, len(exact))
            whole += rounded(NORMALS, fractions, scales, keyed_stream)
            np.multiply(whole, grid, out=flat[start : start + _DRAWS])

    starts = range(0, len(flat), _DRAWS)
    if len(starts) == 1:
        draw(0)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            collections.deque(pool.map(draw, starts), maxlen=0)
    return noised.to(total.device)
