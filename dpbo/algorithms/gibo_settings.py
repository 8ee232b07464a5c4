"""How DP-GIBO chooses points and steps, as data: the paper's way and the recommended one.

Both are the same algorithm; `dataclasses.replace(RECOMMENDED, learning_rate=0.1)` changes one thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dpbo.checking import checked
from dpbo.errors import InputError

_NOISY = 0.2  # rho above which smaller steps and a longer average pay (paired simulations on six tasks)


@checked
@dataclass(frozen=True)
class GIBOSettings:
    """Everything about a run that is neither the problem nor the budget.

    Attributes:
        unit_box: work in coordinates where the box is [0, 1]^d, so that clip, lengths and steps are per box width; else in x's own.
        rotate: turn each design at random, so that no direction is favoured.
        radius: of the design, in those coordinates; None, and wherever losses carry noise: the one that leaves the gradient most certain.
            Losses that bend within a twentieth of the box want 0.002 to 0.01 and a smaller clip (benchmarks.dpgibo, experiment 4.3).
        history: use the losses at all earlier points again.
        jitter: relative variance that the posterior takes every loss to carry, at least 1e-6.
        optimizer: a class of torch.optim, fed with the released gradient.
        learning_rate: its `lr`; None: 0.2, or 0.1 where rho > 0.2.
        tail: share of the last iterates that are averaged into the result; None: 0.25, or 0.5 where rho > 0.2; 0: the last one.
    """

    unit_box: bool = True
    rotate: bool = True
    radius: float | None = 0.04
    history: bool = False
    jitter: float = 1e-6
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adagrad
    learning_rate: float | None = None
    tail: float | None = None

    def step_size(self, rho: float) -> float:
        """The learning rate for this noise."""
        return self.learning_rate if self.learning_rate is not None else 0.1 if rho > _NOISY else 0.2

    def __post_init__(self) -> None:
        tried = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        tried.grad = torch.zeros_like(tried)
        try:
            self.optimizer([tried], lr=1.0).step()
        except TypeError:
            name = getattr(self.optimizer, "__name__", type(self.optimizer).__name__)
            raise InputError("optimizer", name, "a class of torch.optim that steps on a gradient, as Adagrad") from None

    def averaged(self, rho: float, iterations: int) -> int:
        """How many of the last iterates make up the result."""
        share = self.tail if self.tail is not None else 0.5 if rho > _NOISY else 0.25
        return max(1, round(share * iterations))


RECOMMENDED = GIBOSettings()
PAPER = GIBOSettings(unit_box=False, rotate=False, radius=None, history=True, jitter=5e-6, learning_rate=1.0, tail=0.0)
