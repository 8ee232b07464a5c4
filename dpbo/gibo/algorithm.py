"""DP-GIBO: local Bayesian optimisation with private gradients (Sopa, Marusic, Avella-Medina &
Cunningham 2025, arXiv 2502.06044).

    gibo = DPGIBO(
        curator, loss, bounds=bounds, budget=Budget.gdp(1.0),
        iterations=25, batch_size=11, clip=1.0,
    )
    # or step by step: X = gibo.ask(); gibo.tell(X, gibo.evaluate(X))
    result = gibo.run()

Each of T iterations chooses b public points around theta. From its losses there the curator
estimates every unit's gradient, clips it to length B, and averages. The average is released once,
with Gaussian noise of standard deviation M 2B/n a coordinate (M B/divisor under ADD_OR_REMOVE_ONE).
T Gaussians of multiplier M are together sqrt(T)/M-GDP, exactly. A torch optimizer moves theta by
what was released, so theta, points and weights depend on losses through releases only. Before the
run, rho = sqrt(d) M 2/n, the noise's length over B, says whether it can work.

Kernel, clip, bounds and start are public: fixed, or fitted on public data or on released values,
never on private losses. For a variant with another model or another loop, use
`posterior_of_one_unit` and `GradientPosterior.gradient_query`: examples/gibo_variant.py.

`choose_start` chooses the start privately, by one release of the exponential mechanism:

    start = choose_start(curator, loss, candidates, loss_range=(0.0, 3.0), budget=0.1)

In paired simulations it was no sure gain, so it is no default.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel, RBFKernel

from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.curator.pricing import priced
from dpbo.curator.statements import compose_statement
from dpbo.errors import InputError, LedgerError, LedgerMismatch, LedgerUnavailable, PrivacyError
from dpbo.gibo.design import BOUNDS, Frame, GIBODesign, GIBOSettings
from dpbo.gibo.gradient_posterior import GradientPosterior
from dpbo.gibo.gradient_query import ClippedGradient, Loss
from dpbo.isolation import without_default_device
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.objective import NoiseWarning
from dpbo.privacy import Budget
from dpbo.queries.query import Query
from dpbo.queries.score_evaluation import tensor_of
from dpbo.queries.utilities import CandidateScores
from dpbo.statement import Statement
from dpbo.validation import POINTS, Count, ScoreRange, checked, warn

# rho above which a run can hardly find anything
_HOPELESS = 0.5
# noise scales between neighbouring clips of equal merit: the lower is 50 times likelier
_TIE = 4.0


@dataclass(frozen=True, eq=False)
class GIBOResult:
    """The result of a DPGIBO run; everything in it is released or public.

    Attributes:
        x: the recommended point, `d`: the mean of the last iterates.
        last: the last iterate, `d`.
        iterates: theta_0, theta_1, ..., `t + 1 x d`.
        gradients: as released, `t x d`, in the algorithm's coordinates.
        noise_std: standard deviation of the noise of one coordinate of a gradient.
        rho: length of one gradient's noise over the clip.
        statement: returns the ledger's statement at the time of the call; of a pickled result, at
            the time when it was pickled.
    """

    x: torch.Tensor
    last: torch.Tensor = field(repr=False)
    iterates: torch.Tensor = field(repr=False)
    gradients: torch.Tensor = field(repr=False)
    noise_std: float
    rho: float
    statement: Callable[[], Statement] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "statement": self.statement()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stated = state["statement"]
        vars(self).update(state, statement=lambda: stated)


@checked
class DPGIBO:
    """Local Bayesian optimisation with private gradients. A run with the same name and arguments
    resumes from the curator's ledger.

    Args:
        curator: owner of the records.
        loss: `loss(x, records)`, one number a record, minimised; x is a float64 tensor of shape
            `d`. Each record by itself.
        bounds: `2 x d`, float64: lower ends, upper ends. Iterates and points stay inside. Points
            are chosen, and results lie, on its device, whatever the device of the records.
        budget: what the run may spend: a `Budget`, or a share in (0, 1] of the curator's.
        mechanism: `NoNoise(allow_not_private=True)` for the non-private algorithm; omitted,
            Gaussian noise.
        iterations: T.
        batch_size: b; d + 1 is recommended.
        clip: B, the largest length of one unit's gradient, in units of the loss per box width
            (`settings.unit_box`), else per unit of x. Use 1 for losses that change by about 1 over
            the box; 0.3 where d >= 30, rho > 0.2 and no unit is extreme; 3 for log losses and heavy
            tails. Tune it on public or synthetic data.
        kernel: a GPyTorch kernel in the same coordinates; omitted, RBF of length scale 1.
        noise: variance of each loss's observation noise.
        mean: public prior mean of the loss.
        start: theta_0, `d`, public; omitted, the centre of the box.
        divisor, loss_range: as in `ClippedGradient`.
        settings: omitted, `GIBOSettings.recommended()`.
        name: name of the reservation in the ledger. A resumed run needs the records and the loss
            that it began with.

    Attributes:
        noise_std: standard deviation of the noise of one released coordinate.
        rho: length of one gradient's noise over the clip.

    Raises:
        InputError: an argument outside its range.
        BudgetExceeded: the budget is not left.
        LedgerMismatch: the name belongs to another run.
    """

    def __init__(
        self,
        curator: Curator,
        loss: Loss,
        *,
        bounds: Annotated[torch.Tensor, BOUNDS],
        budget: Budget | float | Fraction = 1,
        mechanism: NoNoise | None = None,
        iterations: Count,
        batch_size: Count,
        clip: float,
        kernel: Kernel | None = None,
        noise: float = 0.0,
        mean: float = 0.0,
        start: torch.Tensor | None = None,
        divisor: float | None = None,
        loss_range: tuple[float, float] | None = None,
        settings: GIBOSettings | None = None,
        name: str = "dpgibo",
    ) -> None:
        self.curator = curator
        self.name = name
        self.iterations = iterations
        self.settings = GIBOSettings.recommended() if settings is None else settings
        self._loss = loss
        self._options: dict[str, Any] = {"clip": clip, "divisor": divisor, "loss_range": loss_range}
        self._frame = Frame(bounds, self.settings.unit_box)
        # In the algorithm's coordinates z, as are all points and gradients that are kept here.
        # `theta`, `ask` and `tell` speak of x: `Frame` goes between them.
        self._theta = torch.nn.Parameter(self._frame.inward(self._frame.start(start)))
        self._iterates = [self._theta.detach().clone()]
        self._gradients = list[torch.Tensor]()
        kernel = kernel_on(bounds.device, kernel)
        self._posterior = GradientPosterior(kernel, noise, mean=mean, jitter=self.settings.jitter)
        self._design = GIBODesign(self._frame.box, batch_size, self.settings)
        # the points of this iteration, once they are chosen
        self._Z: torch.Tensor | None = None
        # answers of earlier iterations, whose losses are used again; none without history
        self._earlier = list[Handle]()
        # what `evaluate` asked in this iteration: `tell` takes no other handle
        self._queries = set[ClippedGradient]()
        # a handle that may be charged, and whose value is not stored
        self._pending: Handle | None = None
        self._step_complete = True
        terms = {
            "bounds": bounds.tolist(),
            "start": self.theta.tolist(),
            "batch_size": batch_size,
            "kernel": describe_kernel(kernel),
            "noise": noise,
            "settings": str(self.settings),
        }
        self._reservation = curator.reserve(
            name,
            mechanism or GaussianMechanism,
            slots=iterations,
            budget=budget,
            query=self._query(),
            given={"loss": loss},
            terms=terms,
        )
        self.noise_std = float(self._reservation.noise_std[0])
        self.rho = self.noise_std * math.sqrt(len(self._theta)) / clip
        if self.rho > _HOPELESS:
            text = (
                f"the noise of one gradient is {self.rho:.2g} times the clip, so this run can"
                " hardly find anything: plan fewer iterations, a larger budget, fewer dimensions"
                " or more units."
            )
            warn(text, NoiseWarning)
        lr = self.settings.step_size(self.rho)
        with without_default_device():
            self._optimizer = self.settings.optimizer([self._theta], lr=lr)
        self._used = self._reservation.used
        curator.deliver()
        for value in self._reservation.values:
            self._resume(value)

    @property
    def theta(self) -> torch.Tensor:
        """The current iterate, `d`."""
        return self._frame.outward(self._theta.detach())

    @property
    def remaining(self) -> int:
        """Iterations not yet charged."""
        return self._reservation.remaining

    def run(self) -> GIBOResult:
        """Run all iterations that are left, first one whose value could not be stored earlier."""
        self._reservation.show_progress()
        while self._pending is not None or self.remaining:
            X = self.ask()
            self.tell(X, self._pending or self.evaluate(X))
        return self.result()

    def ask(self) -> torch.Tensor:
        """The points of this iteration, `b x d`; the same until `tell`. They are public and cost
        nothing.

        Raises:
            LedgerError: an earlier `tell` was interrupted during its step. A new DPGIBO resumes
                from the ledger.
        """
        self._require_complete_step()
        return self._frame.outward(self._points())

    def evaluate(self, X: torch.Tensor, *, executor: Executor | None = None) -> Any:
        """A handle of the clipped mean gradient, for `tell`; with an executor, its Future. Free;
        may be repeated.
        """
        self._require_asked(X)
        query = self._query()
        self._queries.add(query)
        details: dict[str, Any] = {"theta": self.theta.tolist()}
        if executor is not None:
            return self.curator.submit(query, executor, **details)
        return self.curator.evaluate(query, **details)

    def tell(self, X: torch.Tensor, handle: Handle | Future[Handle]) -> torch.Tensor:
        """Release the gradient of the handle and take one step; returns the new theta, `d`.

        A handle that was charged but could not be stored is released instead of a new one: it
        answers the same query.

        Raises:
            BudgetExceeded: all iterations are used up; nothing was charged.
            LedgerError: another process took a step, or an earlier `tell` was interrupted during
                one; nothing was charged.
        """
        self._require_asked(X)
        ready = handle.result() if isinstance(handle, Future) else handle
        if not isinstance(ready, Handle) or ready.query not in self._queries:
            raise InputError("handle", ready, "one that evaluate() gave for these points")
        self._pending = self._pending or ready
        try:
            (release,) = self._reservation.release_all([self._pending], used=self._used)
        except LedgerUnavailable:
            # it may be charged: the next tell finishes it
            raise
        except PrivacyError:
            self._pending = None
            raise
        # an optimizer that is interrupted cannot be restored, and must not step twice
        self._step_complete = False
        self._used += 1
        self._advance(release.value, self._pending)
        self._step_complete = True
        return self.theta

    def result(self) -> GIBOResult:
        """The result so far. Raises LedgerError as `ask` does."""
        self._require_complete_step()
        path = torch.stack(self._iterates)
        gradients = torch.stack(self._gradients) if self._gradients else path[:0]
        # without the curator's records
        statement = functools.partial(
            compose_statement, self.curator.ledger, units=self.curator.units
        )
        x = self._frame.outward(recommended(path, self.settings, self.rho))
        iterates = self._frame.outward(path)
        return GIBOResult(x, self.theta, iterates, gradients, self.noise_std, self.rho, statement)

    def __repr__(self) -> str:
        return (
            f"<DPGIBO {self.name!r}: {self.iterations} iterations, noise {self.noise_std:.3g} a"
            f" coordinate, rho {self.rho:.3g}>"
        )

    def _require_asked(self, X: torch.Tensor) -> None:
        if not torch.equal(X, self.ask()):
            raise InputError(
                "X", tuple(X.shape), "the points that ask() returned", "Pass them on unchanged."
            )

    def _require_complete_step(self) -> None:
        if not self._step_complete:
            raise LedgerError(
                f"The optimizer step of {self.name!r} was interrupted after its release. Nothing"
                " was charged now. Create DPGIBO again with the same arguments; it resumes from"
                " the ledger."
            )

    def _points(self) -> torch.Tensor:
        """The points of this iteration in the algorithm's coordinates, `b x d`."""
        if self._Z is None:
            self._Z = self._design.points(
                self._posterior, self._theta.detach().clone(), len(self._gradients)
            )
        return self._Z

    def _query(self) -> ClippedGradient:
        """The query of this iteration."""
        Z = self._points()
        return self._posterior.gradient_query(
            self._theta.detach().clone(),
            Z,
            self._loss,
            loss_points=self._frame.outward(Z),
            earlier=tuple(self._earlier),
            keep=self.settings.history,
            **self._options,
        )

    def _resume(self, value: dict[str, Any]) -> None:
        """Take the step of a value that the ledger holds."""
        theta = self.theta.tolist()
        if value["details"]["theta"] != theta:
            remedy = (
                "Resume with the kernel, settings and library versions that the run began with."
            )
            raise LedgerMismatch("theta", value["details"]["theta"], theta, remedy)
        earlier = None
        if self.settings.history:
            # its losses are computed again, which is free
            earlier = self.curator.evaluate(self._query())
        self._advance(torch.tensor(value["value"], dtype=torch.float64, device="cpu"), earlier)

    def _advance(self, gradient: torch.Tensor, handle: Handle | None) -> None:
        """One step of the optimizer, projected into the box."""
        gradient = gradient.to(self._theta.device, copy=True)
        self._theta.grad = gradient.clone()
        with without_default_device():
            self._optimizer.step()
        with torch.no_grad():
            self._theta.clamp_(*self._frame.box)
        self._iterates.append(self._theta.detach().clone())
        self._gradients.append(gradient)
        if handle is not None and self.settings.history:
            self._earlier.append(handle)
            self._posterior.append(self._points())
        self._Z = None
        self._pending = None
        self._queries.clear()


def recommended(path: torch.Tensor, settings: GIBOSettings, rho: float) -> torch.Tensor:
    """The mean of the last iterates of a path, `t + 1 x ... x d`."""
    return path[-settings.averaged_iterates(rho, len(path) - 1) :].mean(0)


def kernel_on(device: torch.device, kernel: Kernel | None) -> Kernel:
    """A copy of the kernel, or an RBF of length scale 1, on this device."""
    if kernel is None:
        with without_default_device():
            kernel = RBFKernel().double()
            # GPyTorch begins at log 2
            kernel.lengthscale = 1.0
    return copy.deepcopy(kernel).to(device)


def describe_kernel(kernel: Any) -> str:
    """The parts of a kernel with their settings and parameters, as text for the ledger."""
    parts = []
    for path, module in kernel.named_modules():
        settings = {}
        for name, value in vars(module).items():
            public = not name.startswith("_") and name != "training"
            if public and isinstance(value, (int, float, str)):
                settings[name] = value
        parts.append(f"{path}:{module.__class__.__name__}{settings}")
    numbers = {}
    for name, value in kernel.state_dict().items():
        if isinstance(value, torch.Tensor):
            numbers[name] = value.detach().flatten().tolist()
    return f"{' '.join(parts)} {numbers}"


@checked
def choose_start(
    curator: Curator,
    loss: Loss,
    candidates: Annotated[torch.Tensor, POINTS],
    *,
    loss_range: ScoreRange,
    budget: Budget | float | Fraction,
    name: str = "choose start",
) -> torch.Tensor:
    """Choose privately the public candidate (of `k x d`) with the smallest total loss; returns it,
    `d`.

    A unit counts by its mean clipped loss, so the utilities' sensitivity is the width of the loss
    range under REPLACE_ONE. Called again with the same name and arguments, it returns what the
    ledger holds.

    Args:
        curator, loss: as in DPGIBO.
        candidates: `k x d`, float64, public.
        loss_range: public (lower, upper) of a record's loss.
        budget: what the choice may spend: a `Budget`, or a share in (0, 1] of the curator's.
        name: name of the choice in the ledger.

    Raises:
        InputError: an argument outside its range.
        BudgetExceeded: the budget is not left.
        LedgerMismatch: the name belongs to another choice.
    """
    lower, upper = loss_range
    query = CandidateScores(
        lambda x, records: -tensor_of(loss(x.clone(), records)).double(),
        list(candidates),
        score_range=(-upper, -lower),
    )
    mechanism = next(priced(curator.ledger, [ExponentialMechanism], budget))
    return candidates[
        _choose(curator, query, mechanism, name, {"candidates": candidates.tolist()}, loss)
    ].clone()


def _choose(
    curator: Curator,
    query: Query,
    mechanism: ChoiceMechanism,
    name: str,
    terms: dict[str, Any],
    loss: Loss,
) -> int:
    given = {"loss": loss}
    reservation = curator.reserve(name, mechanism, slots=1, query=query, given=given, terms=terms)
    return int(reservation.release(query)["value"][0])
