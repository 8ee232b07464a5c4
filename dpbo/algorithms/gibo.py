"""DP-GIBO: local Bayesian optimisation by private gradients (Sopa, Marusic, Avella-Medina & Cunningham 2025, arXiv 2502.06044).

    gibo = DPGIBO(curator, loss, bounds=bounds, budget=Budget.gdp(1.0), iterations=25, batch_size=11, clip=1.0)
    result = gibo.run()                 # or step by step: X = gibo.ask(); gibo.tell(X, gibo.evaluate(X))

Each of T iterations chooses b public points around theta, lets the curator estimate every unit's gradient there from that unit's losses,
clip it to length B and average, and releases the average once, with Gaussian noise of M 2B/n a coordinate (M B/divisor under
ADD_OR_REMOVE_ONE). T Gaussians of multiplier M are sqrt(T)/M-GDP together, exactly. Theta moves by any torch optimizer on what was
released: theta, points and weights never see a loss. Before the run, rho = noise length / B = sqrt(d) M 2/n says whether it can work.

Kernel, clip, bounds and start are public: fixed, or fitted on public data or on released values, never on private losses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel, RBFKernel
from tqdm import tqdm

from dpbo.accounting.calibration import exact_share
from dpbo.algorithms import private_choice
from dpbo.algorithms.gibo_design import RECOMMENDED, Frame, GIBOPoints, GIBOSettings, require_bounds, require_start
from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.curator.reporting import compose_statement
from dpbo.errors import InputError, LedgerError, LedgerMismatch, LedgerUnavailable, PrivacyError
from dpbo.events import GaussianEvent
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.mechanisms.selection import SelectionMechanism
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.objective import BAR, NoiseWarning
from dpbo.privacy import Budget, require_count, require_range
from dpbo.queries.gradient import ClippedGradient, Loss, lengths
from dpbo.queries.query import Query
from dpbo.queries.score_evaluation import tensor_of
from dpbo.queries.utilities import CandidateScores, QuantileUtilities
from dpbo.statement import Statement
from dpbo.validation import POINTS, Positive, checked, warn

_HOPELESS = 0.5


@dataclass(frozen=True, eq=False)
class GIBOResult:
    """What a run found; everything in it is released or public.

    Attributes:
        x: the recommended point, `d`: the mean of the last iterates.
        last: the last iterate, `d`.
        iterates: theta_0, theta_1, ..., `t + 1 x d`.
        gradients: as released, `t x d`, in the algorithm's own coordinates.
        rho: length of the noise of one gradient over the clip.
        statement: gives the ledger's statement, as it is when called.
    """

    x: torch.Tensor
    last: torch.Tensor
    iterates: torch.Tensor
    gradients: torch.Tensor
    rho: float
    statement: Callable[[], Statement]


@checked
class DPGIBO:
    """A search by private gradients, resumed from the curator's ledger under its name.

    Args:
        curator: owner of the records.
        loss: `loss(x, records)`, one number a record, minimised; x is a float64 tensor of shape `d`. Each record by itself.
        bounds: `2 x d`, float64: lower ends, upper ends. Iterates and points stay inside.
        budget: what this run may spend, as a Budget or as a share in (0, 1] of the curator's; or `NoNoise(allow_not_private=True)`, the
            non-private algorithm by the same code.
        iterations: T.
        batch_size: b; d + 1 is recommended.
        clip: B, per box width (`settings.unit_box`) or per unit of x. 1 for losses of about 1 a box width; 0.3 where d >= 30, rho > 0.2
            and no unit is extreme; 3 for log losses and heavy tails. Tune it on public or synthetic data.
        kernel: a GPyTorch kernel in the same coordinates; omitted, RBF of length 1.
        noise: variance of each loss's observation noise.
        mean: public prior mean of the loss.
        tolerance: Algorithm 2's eps_tol; b is then the most points an iteration may take. Without observation noise only.
        start: theta_0, `d`, public; omitted, the centre of the box.
        divisor, loss_range: as in `ClippedGradient`.
        settings: RECOMMENDED or PAPER of dpbo.algorithms, or a change of one.
        seed: of the designs' rotations, never of the noise.
        name: the plan's name in the ledger; the same name and terms resume it, with the records and the loss that it began with.
        callback: called with this object after every iteration.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the budget is not left. LedgerMismatch: the name belongs to another run.
    """

    def __init__(
        self,
        curator: Curator,
        loss: Loss,
        *,
        bounds: torch.Tensor,
        budget: Budget | float | Fraction | NoNoise,
        iterations: int,
        batch_size: int,
        clip: float,
        kernel: Kernel | None = None,
        noise: float = 0.0,
        mean: float = 0.0,
        tolerance: Positive | None = None,
        start: torch.Tensor | None = None,
        divisor: float | None = None,
        loss_range: tuple[float, float] | None = None,
        settings: GIBOSettings = RECOMMENDED,
        seed: int = 0,
        name: str = "dpgibo",
        callback: Callable[[DPGIBO], Any] | None = None,
    ) -> None:
        self.curator, self.name, self.settings, self.iterations = curator, name, settings, require_count("iterations", iterations)
        self._frame = Frame(require_bounds(bounds), settings.unit_box)
        self._theta = torch.nn.Parameter(self._frame.inward(require_start(start, self._frame.bounds)))
        self._loss, self._callback = loss, callback
        self._question: dict[str, Any] = {"clip": clip, "center": mean, "divisor": divisor, "loss_range": loss_range}
        kernel = kernel if kernel is not None else RBFKernel().double()
        posterior = GradientPosterior(kernel, noise, mean=mean, jitter=settings.jitter)
        self._points = GIBOPoints(posterior, self._frame.box, require_count("batch_size", batch_size), tolerance, seed, settings)
        terms = {"bounds": bounds.tolist(), "start": self.theta.tolist(), "batch_size": batch_size, "tolerance": tolerance,
                 "kernel": described_kernel(kernel), "noise": noise, "settings": str(settings), "seed": seed}  # fmt: skip
        self._mechanism = self._reserved(budget, terms)
        self.noise_std, self.rho = self._noise()
        self._optimizer = settings.optimizer([self._theta], lr=settings.step_size(self.rho))
        self._iterates, self._gradients = [self._theta.detach().clone()], list[torch.Tensor]()
        self._earlier = list[Handle]()
        self._asked: tuple[torch.Tensor, torch.Tensor] | None = None
        self._telling: Handle | None = None
        self._offered = set[ClippedGradient]()
        self._sound = True
        self._used = curator.ledger.head().used[name]
        self._resume()
        self._warn()

    @property
    def theta(self) -> torch.Tensor:
        """The current iterate, `d`."""
        return self._frame.outward(self._theta.detach())

    @property
    def remaining(self) -> int:
        """Iterations not yet charged."""
        return self.iterations - self.curator.ledger.head().used.get(self.name, 0)

    def run(self) -> GIBOResult:
        """All iterations that are left, after one that could not be stored earlier."""
        done, hidden = len(self._gradients), True if self.curator.rank else None
        with tqdm(total=self.iterations, initial=done, desc=self.name, disable=hidden, delay=0.1, bar_format=BAR) as bar:
            while self._telling is not None or self.remaining:
                X = self.ask()
                self.tell(X, self._telling if self._telling is not None else self.evaluate(X))
                bar.update()
        return self.result()

    def ask(self) -> torch.Tensor:
        """The points of this iteration, `b x d`; the same until `tell`. Public: asking costs nothing.

        Raises:
            LedgerError: an earlier `tell` was broken off amid its step; an object made anew goes on from the ledger.
        """
        self._require_sound()
        return self._frame.outward(self._proposed()[0])

    def evaluate(self, X: torch.Tensor, *, executor: Executor | None = None) -> Any:
        """A handle of the clipped mean gradient (its Future, on an executor), for `tell`. Free; may be retried."""
        self._require_asked(X)
        query = self._query(*self._proposed(), tuple(self._earlier))
        self._offered.add(query)
        details = {"theta": self.theta.tolist()}
        if executor is not None:
            return self.curator.submit(query, executor, **details)
        return self.curator.evaluate(query, **details)

    def tell(self, X: torch.Tensor, handle: Handle | Future[Handle]) -> torch.Tensor:
        """Release the gradient behind the handle and take one step; returns the new theta, `d`.

        A handle that was charged but could not be stored is finished first, in place of the one given: it answers the same question.

        Raises:
            BudgetExceeded: all iterations are used up. LedgerError: another process took a step, or an earlier `tell` was broken off amid
            one. In each case nothing was charged.
        """
        self._require_asked(X)
        ready = handle.result() if isinstance(handle, Future) else handle
        if not isinstance(ready, Handle) or ready.query not in self._offered:
            raise InputError("handle", ready, "one that evaluate() gave for these points")
        self._telling = self._telling or ready
        try:
            (release,) = self.curator.release_all([self._telling], self._mechanism, name=self.name, plan=self.name, used=self._used)
        except LedgerUnavailable:  # it may be charged: the next tell finishes it
            raise
        except PrivacyError:
            self._telling = None
            raise
        self._sound = False  # an optimizer that is stopped amid its step cannot be put back, and may not step twice
        self._used += 1
        self._advance(release.value, self._telling)
        self._sound = True
        if self._callback is not None:
            self._callback(self)
        return self.theta

    def result(self) -> GIBOResult:
        """What was found so far. Raises LedgerError as `ask` does."""
        self._require_sound()
        path = torch.stack(self._iterates)
        averaged = path[-self.settings.averaged(self.rho, len(path) - 1) :].mean(0)
        gradients = torch.stack(self._gradients) if self._gradients else path[:0]
        outward = self._frame.outward
        statement = functools.partial(compose_statement, self.curator.ledger, units=self.curator.units)  # no curator: it holds the records
        return GIBOResult(outward(averaged), self.theta, outward(path), gradients, self.rho, statement)

    def state_dict(self) -> dict[str, Any]:
        """What has been released, for a checkpoint; public."""
        return {"name": self.name, "gradients": [gradient.tolist() for gradient in self._gradients]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check a checkpoint against the ledger, which is what a run resumes from.

        Raises:
            InputError: `state` is not one that `state_dict` gave. LedgerMismatch: it disagrees with the ledger.
        """
        if not isinstance(state.get("gradients"), list):
            raise InputError("state", state, "what state_dict() gave")
        known = [gradient.tolist() for gradient in self._gradients]
        if state.get("name") != self.name or known[: len(state["gradients"])] != state["gradients"]:
            raise LedgerMismatch("gradients", len(known), len(state["gradients"]), "Open the ledger that this state was saved beside.")

    def __repr__(self) -> str:
        return f"<DPGIBO {self.name!r}: {self.iterations} iterations, noise {self.noise_std:.3g} a coordinate, rho {self.rho:.3g}>"

    def _require_asked(self, X: torch.Tensor) -> None:
        if not torch.equal(X, self.ask()):
            raise InputError("X", tuple(X.shape), "the points that ask() gave", "Evaluate and tell exactly what was asked for.")

    def _require_sound(self) -> None:
        if not self._sound:
            raise LedgerError(f"a step of {self.name!r} was broken off after its gradient was released, and is never taken twice. Nothing "
                              "was charged now. Make this object anew with the same arguments: it steps as its ledger says.")  # fmt: skip

    def _advance(self, gradient: torch.Tensor, handle: Handle | None) -> None:
        """One step of the optimizer, projected into the box."""
        self._theta.grad = gradient.clone()
        self._optimizer.step()
        with torch.no_grad():
            self._theta.clamp_(*self._frame.box)
        self._iterates.append(self._theta.detach().clone())
        self._gradients.append(gradient.clone())
        if handle is not None and self.settings.history:
            self._earlier.append(handle)
        self._asked, self._telling = None, None
        self._offered.clear()

    def _proposed(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._asked is None:
            self._asked = self._points.propose(self._theta.detach().clone(), len(self._gradients))
        return self._asked

    def _query(self, Z: torch.Tensor, weights: torch.Tensor, earlier: Sequence[Handle] = ()) -> ClippedGradient:
        X = self._frame.outward(Z)
        return ClippedGradient(self._loss, X, weights=weights, earlier=earlier, keep=self.settings.history, **self._question)

    def _reserved(self, budget: Budget | float | Fraction | NoNoise, terms: dict[str, Any]) -> GaussianMechanism | NoNoise:
        """The mechanism of every iteration, its T slots taken from the budget now or in an earlier session."""
        query, relation = self._any_query(), self.curator.adjacency
        query.require_public(relation)
        planned = budget if isinstance(budget, NoNoise) else GaussianMechanism(self._multiplier(budget))
        planned.law(query.scale(relation), query.quanta())  # refuses what cannot be drawn before anything is reserved
        shown = {"budget": str(budget), **query.public_inputs(), **terms}
        self.curator.bind(self.name, {"loss": self._loss}, begun=self.name in self.curator.ledger.head().used)
        event = self.curator.reserve(self.name, planned.event(), slots=self.iterations, terms=shown)
        return planned if isinstance(planned, NoNoise) else GaussianMechanism(event.noise_multiplier)

    def _multiplier(self, budget: Budget | float | Fraction) -> float:
        accounting, whole = self.curator.accounting, self.curator.ledger.cap
        available = accounting.cap(budget) if isinstance(budget, Budget) else whole * exact_share(budget)
        multiplier = accounting.multiplier(GaussianEvent, self.iterations, available)
        if multiplier is None:
            raise InputError("accounting", accounting.name, "one that can pay for Gaussian noise", "See dpbo.accounting for others.")
        return multiplier

    def _noise(self) -> tuple[float, float]:
        """Standard deviation of one released coordinate, and the noise's length over the clip."""
        query, units = self._any_query(), self.curator.units
        law = self._mechanism.law(query.scale(self.curator.adjacency), query.quanta())
        std = law.std[0] * query.affine(units)[1]
        return std, std * math.sqrt(len(self._theta)) / query.clip

    def _any_query(self) -> ClippedGradient:
        """One of this run's questions, for its public numbers."""
        d = len(self._theta)
        return self._query(torch.zeros(1, d, dtype=torch.float64), torch.ones(d, 1, dtype=torch.float64))

    def _resume(self) -> None:
        """Take the steps that the ledger already knows; with history, their losses are computed again, which costs nothing."""
        self.curator.deliver()
        for value in self.curator.ledger.values(self.name):
            if value["details"]["theta"] != self.theta.tolist():
                remedy = "Resume with the kernel, the versions and the settings it began with."
                raise LedgerMismatch("theta", value["details"]["theta"], self.theta.tolist(), remedy)
            Z, weights = self._proposed()
            kept = self.curator.evaluate(self._query(Z, weights, tuple(self._earlier))) if self.settings.history else None
            self._advance(torch.tensor(value["value"], dtype=torch.float64), kept)

    def _warn(self) -> None:
        if self.rho > _HOPELESS:
            text = (f"the noise of one gradient is {self.rho:.2g} times the clip, so this run can hardly find anything: "
                    "ask for fewer iterations, a larger budget, fewer dimensions or more units.")  # fmt: skip
            warn(text, NoiseWarning)


def described_kernel(kernel: Any) -> str:
    """A kernel's parts, their settings and their numbers, for the ledger."""
    parts = []
    for path, module in kernel.named_modules():
        settings = {k: v for k, v in vars(module).items() if isinstance(v, (int, float, str)) and not k.startswith("_") and k != "training"}
        parts.append(f"{path}:{module.__class__.__name__}{settings}")
    numbers = {name: value.detach().flatten().tolist() for name, value in kernel.state_dict().items() if isinstance(value, torch.Tensor)}
    return f"{' '.join(parts)} {numbers}"


# ========== MERGED Two choices before a run of DP-GIBO, each a release of its own from the same ledger; both are off unless called.
#
#     start = choose_start(curator, loss, candidates, loss_range=(0.0, 3.0), budget=0.1)
#     clip = choose_clip(curator, loss, bounds=bounds, candidates=[0.1, 0.3, 1.0, 3.0], budget=0.02)
#
# The exponential mechanism chooses; its cost under the curator's accounting is the share of the cap that is named. In paired simulations
# neither was a sure gain, so neither is a default.
#

_TIE = 4.0  # noise scales between neighbours of equal merit: the lower is 50 times likelier


@checked
def choose_start(
    curator: Curator,
    loss: Loss,
    candidates: Annotated[torch.Tensor, POINTS],
    *,
    loss_range: tuple[float, float],
    budget: float | Fraction,
    name: str = "choose start",
) -> torch.Tensor:
    """The public candidate (of `k x d`) with the smallest total loss, chosen privately; `d`.

    A unit counts by its mean clipped loss, so the utilities' sensitivity is the loss range's width under REPLACE_ONE. Asked again under the
    same name and terms, it gives what the ledger holds.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left. LedgerMismatch: the name is another choice's.
    """
    lower, upper = require_range("loss_range", loss_range)
    query = CandidateScores(
        lambda x, records: -tensor_of(loss(x.clone(), records)).double(), list(candidates), score_range=(-upper, -lower)
    )
    chosen = _chosen(curator, query, _mechanism(curator, budget), name, {"candidates": candidates.tolist()})
    return candidates[chosen].clone()


@checked
def choose_clip(
    curator: Curator,
    loss: Loss,
    *,
    bounds: torch.Tensor,
    candidates: Sequence[float],
    budget: float | Fraction,
    quantile: float = 0.9,
    start: torch.Tensor | None = None,
    kernel: Kernel | None = None,
    settings: GIBOSettings = RECOMMENDED,
    seed: int = 0,
    name: str = "choose clip",
) -> float:
    """One of increasing public candidates, near the quantile of the units' gradient lengths at the start, chosen privately.

    Of candidates that are equally good (all beyond the longest gradient), the lowest: a clip too large is noise for nothing. A unit of
    several records counts by the mean of their gradients' lengths. Arguments as in DPGIBO. Asked again under the same name and terms, it
    gives what the ledger holds.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left. LedgerMismatch: the name is another choice's.
    """
    frame = Frame(require_bounds(bounds), settings.unit_box)
    theta, smooth = require_start(start, frame.bounds), kernel if kernel is not None else RBFKernel().double()
    posterior = GradientPosterior(smooth, 0.0, jitter=settings.jitter)
    points = GIBOPoints(posterior, frame.box, bounds.shape[1] + 1, None, seed, settings)
    Z, weights = points.propose(frame.inward(theta), 0)
    X = frame.outward(Z)

    def of_units(_: Any, records: Any) -> torch.Tensor:
        return lengths([tensor_of(loss(x.clone(), records)).double() for x in X], weights)

    mechanism = _mechanism(curator, budget)
    query = QuantileUtilities(of_units, candidates=candidates, quantile=quantile, step_cost=_TIE * mechanism.noise_multiplier)
    terms = {"quantile": quantile, "bounds": bounds.tolist(), "start": theta.tolist(), "kernel": described_kernel(smooth),
             "settings": str(settings), "seed": seed}  # fmt: skip
    return float(candidates[_chosen(curator, query, mechanism, name, terms)])


def _chosen(curator: Curator, query: Query, mechanism: SelectionMechanism, name: str, terms: dict[str, Any]) -> int:
    same = private_choice.reserve(curator, mechanism, name, {**query.public_inputs(), **terms})
    return int(private_choice.make(curator, query, same, name)["value"][0])


def _mechanism(curator: Curator, budget: float | Fraction) -> SelectionMechanism:
    return private_choice.affordable(curator, ExponentialMechanism, exact_share(budget))
