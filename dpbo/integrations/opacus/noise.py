"""Opacus' optimizer with sums of bounded sensitivity and noise that no generator repeats.

Law of a step: p.grad = h floor((S + N) / h + 1/2) / batch_size, where S is the sum of the sample's gradients, each clipped to norm C, and N
is Gaussian of standard deviation noise_multiplier * C, rounded up; h is a power of two with that deviation in [2^20 h, 2^21 h). N is drawn
exactly, from the operating system's entropy (`mechanisms.rounding`), for any device; rounding and what follows is post-processing.

Sensitivity of the float sum S: a record moves it by at most C, although it is rounded. Proof. Let g_1 ... g_n be the sample's gradients, as
Opacus has computed them, with d coordinates each, n <= 2^20, d <= 2^60.
1. The norm is taken in blocks of m = 1024 coordinates in the gradients' own precision (float32 at least), and over blocks in float64. A sum
   of m squares, in any order, is right to a relative (m + 1) 2^-24; squares that underflow lose less than 2^-126 each, which is added. So
   the true norm is at most (1 + 2^-14) times the computed one, r.
2. The factor is f = min(1, C (1 - 2^-9) / r), zero where r is not finite. So f g has norm at most C (1 - 2^-9) (1 + 2^-13).
3. S = sum of f_i g_i in float64, in any order and in parts, is within 2 n 2^-53 sum |f_i g_i| of the exact sum, coordinate by coordinate,
   hence in norm within 2 n^2 2^-53 C <= 2^-12 C. What S / h loses of its fraction is below 2^-53 a coordinate, and h <= C: together
   below 2^-23 C. Neighbours differ by at most C (1 - 2^-9) (1 + 2^-13) + 2 * (2^-12 + 2^-23) C < C; where one record is replaced, by less
   than 2 C.
What is not bounded: a gradient of one record that depends on other records of its sample. A batch norm makes it so (Opacus refuses those),
and a mean loss with class weights or ignored targets, whose divisor is a sum over records. So do the last bits of float arithmetic: a mean
loss is divided by the sample's size, and multiplied again by Opacus; in half precision that is no small matter, and refused.

One step takes one fresh Poisson sample, whole: k steps on one sample cost more than k sampled steps, and gradients that are not one for
each record may move further. So samples are counted where they are drawn, records where they are clipped, and steps where their noise is
drawn, none of them in a hook that another one replaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo._opacus import load_opacus
from dpbo.curator.entropy import bernoulli, system_entropy
from dpbo.errors import InputError
from dpbo.mechanisms.additive import ROUND_UP, grid_of
from dpbo.mechanisms.gaussian import NORMALS
from dpbo.mechanisms.rounding import rounded
from dpbo.privacy import require_positive

LEAST_NORM, MOST_NORM = 1e-15, 1e15
_MOST_RECORDS = 1 << 20
_MARGIN = 1 - 2.0**-9
_BLOCK, _LOST, _BELOW_ONE = 1024, 2.0**-126, 1 - 2.0**-53
_CACHED = 1 << 16  # numbers that are converted to float64 at a time
_DRAWS = 1 << 14
_REMEDY = (
    "Take the next batch from the loader before each step, one optimizer a model, and look no batch ahead: a second step on the same "
    "records costs more than was planned."
)
_HALF = (torch.float16, torch.bfloat16)

DPOptimizer: Any = load_opacus("opacus.optimizers").DPOptimizer


class PoissonSamples:
    """Samples of places, from the operating system's entropy, as a DataLoader's batch sampler; counts what it gave.

    Args:
        records: how many there are; each is in a sample with probability `rate`.
        length: samples of one pass.
        most: samples of all passes together; no limit where it is left out.

    Attributes:
        given: samples so far; size: records in the last one.
    """

    def __init__(self, records: int, rate: float, length: int, most: int | None = None) -> None:
        self._records, self._rate, self._length, self._most = records, rate, length, most
        self.given, self.size = 0, 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._length):
            if self.given == self._most:
                return
            places = np.flatnonzero(bernoulli(self._records, self._rate)).tolist()
            self.given, self.size = self.given + 1, len(places)
            yield places


class NoisedOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' DPOptimizer with the sums, the noise and the counts of this module.

    Args:
        samples: of the loader that its gradients come from.
        charge: pays for one step, or raises; called before the step's noise is drawn.
        settings: as of DPOptimizer.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, samples: PoissonSamples, charge: Callable[[Any], None], **settings: Any
    ) -> None:
        super().__init__(optimizer, **settings)
        self._samples, self._charge = samples, charge
        self._stepped = 0  # the sample of the last step
        self._begin()

    def _begin(self) -> None:
        """The sample, the records and the largest norm bound of the step under way."""
        self._begun, self._clipped, self._norm = 0, 0, 0.0

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by torch's GradScaler, which skips steps by looking at gradients before their noise."""
        raise InputError("optimizer", "in a GradScaler", "without one", "Use bfloat16 or float32, whose gradients need no scaling.")

    def zero_grad(self, set_to_none: bool = False) -> None:
        """As in Opacus. Between two steps it also forgets a step that an error has broken off."""
        super().zero_grad(set_to_none)
        if not self._is_last_step_skipped:
            self._begin()

    def pre_step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As in Opacus. What has no noise, such as the gradient of a parameter that was frozen since, is thrown away."""
        noised = {id(parameter) for parameter in self.params}
        if not noised:
            raise InputError("module", "without a parameter to train", "one with parameters that require gradients")
        for parameter in (parameter for group in self.param_groups for parameter in group["params"] if id(parameter) not in noised):
            parameter.grad = None
        done: float | None = super().pre_step(closure)
        return done

    def clip_and_accumulate(self) -> None:
        """Adds clipped gradients to the sums. Raises InputError where they are not of one fresh sample."""
        drawn = self._fresh()
        gradients = [gradient.reshape(len(gradient), math.prod(gradient.shape[1:])) for gradient in self.grad_samples]
        clip = require_positive("max_grad_norm", self.max_grad_norm, LEAST_NORM, MOST_NORM)  # a schedule may have moved it
        self._take(drawn, gradients)
        self._norm = max(clip, self._norm)
        factors = _factors(gradients, clip)
        for parameter, gradient in zip(self.params, gradients, strict=True):
            total = _weighted_sum(gradient, factors).view(parameter.shape)
            parameter.summed_grad = total if parameter.summed_grad is None else parameter.summed_grad + total
            parameter.grad_sample = None  # they are used: a second step on them finds none

    def add_noise(self) -> None:
        """Charges the step, then puts the noised sums where the optimizer looks."""
        if self._clipped != self._samples.size:
            raise InputError("step", "gradients that are not one for each record of the Poisson sample", "one of each record", _REMEDY)
        self._charge(self)
        self._stepped = self._begun
        for parameter in self.params:
            parameter.grad = _noised(parameter.summed_grad, self.noise_multiplier * self._norm).to(parameter.dtype)
            parameter.summed_grad = None
        self._begin()

    @property
    def accumulated_iterations(self) -> int:
        """Always one sample a step."""
        return 1

    def _fresh(self) -> int:
        """Which sample the loader gave last. Raises InputError where it has had its step."""
        drawn = self._samples.given
        if drawn == self._stepped:
            raise InputError("step", "a second one on a Poisson sample, or before the first", "one on each sample of the loader", _REMEDY)
        if self._begun not in (0, drawn):
            raise InputError("step", "gradients of two Poisson samples", "of one sample", "A record may be in both. Step after each batch; "
                             "after a sample that was left in the middle, call make_private again.")  # fmt: skip
        return drawn

    def _take(self, drawn: int, gradients: list[torch.Tensor]) -> None:
        """Note the records of the sample that these are of."""
        if self.loss_reduction == "mean" and any(gradient.dtype in _HALF for gradient in gradients):
            raise InputError("loss_reduction", "mean, in half precision", "'sum', in make_private and the loss, or float32")
        (count, *others) = {len(gradient) for gradient in gradients}
        if others or self._clipped + count > self._samples.size:
            raise InputError("step", "more gradients than the Poisson sample has records", "one of each record", _REMEDY)
        if self._clipped + count > _MOST_RECORDS:
            raise InputError("batches", len(self._samples), "so many that a sample has at most 2^20 records")
        self._begun, self._clipped = drawn, self._clipped + count


def _factors(gradients: list[torch.Tensor], clip: float) -> torch.Tensor:
    """What each record's gradient is multiplied by, float64; zero where its norm is not finite."""
    squares: Any = 0.0
    for gradient in gradients:
        flat = gradient if gradient.dtype == torch.float64 else gradient.float()
        blocks = flat.shape[1] // _BLOCK
        for part in (flat[:, : blocks * _BLOCK].reshape(len(flat), blocks, _BLOCK), flat[:, None, blocks * _BLOCK :]):
            squares = squares + part.norm(dim=-1).double().square().sum(1).to(gradients[0].device)
        squares = squares + flat.shape[1] * _LOST
    factors = (clip * _MARGIN / squares.sqrt()).clamp(max=1.0)
    return torch.where(squares.isfinite(), factors, 0.0)


def _weighted_sum(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Of the rows, in float64; a row of factor zero counts as zero, whatever is in it."""
    factors = factors.to(rows.device)
    if not bool((factors > 0).all()):
        rows = rows.masked_fill((factors == 0).unsqueeze(1), 0.0)
    count, length = rows.shape
    width = length if rows.is_cuda else max(_CACHED // max(count, 1), 64)
    held, total = factors.new_empty(count, min(width, length)), factors.new_empty(length)
    for part, into in zip(torch.split(rows, width, dim=1), torch.split(total, width), strict=True):
        torch.mv(held[:, : len(into)].copy_(part).T, factors, out=into)
    return total


def _noised(total: torch.Tensor, std: float) -> torch.Tensor:
    """The sum with its noise, float64, where the sum lies."""
    scale = std * ROUND_UP
    grid = grid_of(scale)
    flat = total.detach().cpu().reshape(-1).numpy()

    def draw(start: int) -> NDArray[Any]:
        exact = flat[start : start + _DRAWS] / grid  # a power of two: not rounded
        whole = np.floor(exact)
        lattice = rounded(NORMALS, np.minimum(exact - whole, _BELOW_ONE), np.full(len(exact), scale / grid), system_entropy)
        return (whole + lattice) * grid

    starts = range(0, max(len(flat), 1), _DRAWS)
    if len(starts) == 1:
        parts = [draw(0)]
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            parts = list(pool.map(draw, starts))
    return torch.from_numpy(np.concatenate(parts)).view(total.shape).to(total.device)
