"""L-BFGS within boxes, for many independent problems at once, on the device of its inputs.

Each run has its own point, step and end; all advance by the same operations. A trial that lowers
the value enough is taken, another shortens that run's step, and a run that has ended does not
change any more. The direction is the compact form of L-BFGS (Byrd, Nocedal & Schnabel 1994,
theorem 2.2) on the coordinates that are free, those that no bound holds back (Bertsekas 1982), and
the step is projected into the box. Nothing waits for the host but a look, now and then, at whether
any run goes on.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# values and gradients at points, `r x n`
Objective = Callable[[Tensor], tuple[Tensor, Tensor]]

# pairs of a step and the gradient's change that are remembered
_MEMORY = 10
# of the decrease that the slope promises
_ENOUGH = 1e-4
# of the squared change of the slope over the start's value: less is rounding
_BENDS = 1e-12
# of the length of a step that was too long
_SHORTER = 0.25
# steps on a device between two looks at whether any run goes on
_LOOK = 8
# runs that have ended leave the batch on the CPU once only so many of it go on
_GOING_ON = 0.5


def minimize_in_boxes(
    objective_of: Callable[[Tensor | None], Objective],
    U: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    going: Tensor,
    steps: int,
    close: float,
) -> Tensor:
    """Points of low value, `r x n`, one a run.

    Args:
        objective_of: the objective of the runs of these numbers, or of all; not finite where there
            is no value. A run without a value at its start stays there.
        U: starts, `r x n`, within their boxes.
        lower, upper: ends of the boxes, `r x n`.

    Keyword args:
        going: which runs to search, `r`; the others stay where they are.
        steps: most values and gradients a run.
        close: a run ends with a step that lowers its value by no more than this share of the
            start's.
    """
    found = U.clone()
    runs = torch.arange(len(U), device=U.device)
    objective = objective_of(None)
    value, slope = objective(U)
    going = going & value.isfinite()
    # where all is known, rounding may leave 0 or less
    unit = value.abs().clamp_min(1e-300)
    # a point and its slope are kept, compared and replaced together, `r x 2 x n`
    here = torch.stack([U, slope], dim=1)
    pairs = here.new_zeros(len(U), 2, _MEMORY, U.shape[1])
    # of the inverse Hessian
    scale = 1.0 / unit
    direction = -slope * scale.unsqueeze(-1)
    length = 1.0 / direction.norm(dim=-1).clamp_min(1.0)
    on_cpu = U.device.type == "cpu"
    for step in range(steps):
        if on_cpu or step % _LOOK == 0:
            left = int(going.sum())
            if left == 0:
                break
            if on_cpu and left <= _GOING_ON * len(runs):
                found[runs] = here[:, 0]
                kept = going.nonzero().squeeze(1)
                runs = runs[kept]
                state = (here, lower, upper, value, pairs, scale, direction, length, unit)
                here, lower, upper, value, pairs, scale, direction, length, unit = (
                    part.index_select(0, kept) for part in state
                )
                going = going[kept]
                objective = objective_of(runs)
        U, slope = here.unbind(1)
        trial = torch.addcmul(U, length.unsqueeze(-1), direction).clamp(lower, upper)
        new_value, new_slope = objective(trial)
        there = torch.stack([trial, new_slope], dim=1)
        change = there - here
        promised = (slope * change[:, 0]).sum(-1)
        gain = value - new_value
        # nothing is true of NaN
        good = gain >= -_ENOUGH * promised
        taken = good & going
        going = going & (torch.where(good, gain, promised.abs()) > close * unit)
        length = torch.where(good, 1.0, _SHORTER * length)
        curvature, square = (change * change[:, 1:]).sum(-1).unbind(1)
        bends = taken & (curvature * unit > _BENDS * square)
        scale = torch.where(bends, curvature / square, scale)
        # what teaches nothing is remembered as zeros, which change no direction
        pair = torch.where(bends[:, None, None], change, 0.0)
        pairs = torch.cat([pairs[:, :, 1:], pair.unsqueeze(2)], dim=2)
        here = torch.where(taken[:, None, None], there, here)
        value = torch.where(taken, new_value, value)
        U, slope = here.unbind(1)
        # what a bound holds back stays
        free = (U - slope).clamp(lower, upper) != U
        direction = _downhill(pairs, slope, scale, free)
    found[runs] = here[:, 0]
    return found


def _downhill(pairs: Tensor, slope: Tensor, scale: Tensor, free: Tensor) -> Tensor:
    """Minus the inverse Hessian's product with the slope on the free coordinates, `r x n`.

    With S and Y the pairs there (`m x n`), R the upper triangle of S Y^T and D its diagonal, the
    inverse Hessian is scale I + [S; scale Y]^T M [S; scale Y] with
        M = [[R^-T (D + scale Y Y^T) R^-1, -R^-T], [-R^-1, 0]].
    """
    m = pairs.shape[2]
    slope = slope * free
    V = (pairs * free[:, None, None]).flatten(1, 2)
    products = torch.bmm(V, torch.cat([V[:, m:], slope.unsqueeze(1)], dim=1).mT)
    SY, Sg = products[:, :m, :m], products[:, :m, m:]
    YY, Yg = products[:, m:, :m], products[:, m:, m:]
    curvatures = SY.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    # pairs of zeros, and those that lose their curvature with the coordinates that are not free,
    # are left out: each keeps a row and a column of the unit matrix
    kept = curvatures > 0.0
    R = torch.where(kept & kept.mT, SY, 0.0).triu()
    R.diagonal(dim1=-2, dim2=-1).add_(~kept.squeeze(-1))
    by_run = scale[:, None, None]
    u = torch.linalg.solve_triangular(R, Sg * kept, upper=True)
    middle = torch.addcmul(curvatures * u, by_run, torch.baddbmm(Yg, YY, u, beta=-1.0)) * kept
    a = torch.linalg.solve_triangular(R.mT, middle, upper=False)
    coefficients = torch.cat([a, -by_run * u], dim=1)
    # a product alone has the same bits for one run as in a batch, added in place it has not
    step = torch.addcmul(torch.bmm(coefficients.mT, V).squeeze(1), scale.unsqueeze(-1), slope)
    return -step
