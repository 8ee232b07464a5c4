"""A sampler for Optuna that uses the known noise of private values, and the recommendation for such
a study.

Optuna's own samplers work on a private objective too, but they take its values as exact or estimate
their noise. Here each trial carries its noise variance, and the Gaussian process behind
`dpbo.acquisition.suggest` uses it.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import optuna
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.models import ModelListGP
from botorch.sampling import SobolQMCNormalSampler
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from dpbo.acquisition.expected_improvement import maximize, suggest
from dpbo.integrations.optuna.trials import ENTRY, YVAR, Suggestions
from dpbo.integrations.recommendation import Recommendation, recommended
from dpbo.isolation import seed_torch, without_default_device
from dpbo.models.builders import default_gp, mute_optimizer_warnings
from dpbo.space import Space
from dpbo.validation import Seed, at_least, checked

# points that are tried in place of a pruned one
_OTHERS = 1024


@checked
class NoiseAwareSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Proposes Sobol points, then points by qLogNEI on a GP with the known noise of every value.

    Trials without a known noise or outside the space are left out, and a value that is in the study
    twice counts once. Points of running, failed and pruned trials count as pending, so that workers
    do not propose the same point, and a pruned one is proposed again only where a thousand others
    were pruned, too. The next point depends on the seed, the trial's number and the other trials
    only. Each proposal refits the GP.

    Args:
        space: the TrialObjective's space.
        seed: of Sobol points and acquisition functions.
        initial: number of trials with Sobol points, by trial number; at least 2.
    """

    def __init__(
        self, space: Space, *, seed: Seed = 0, initial: Annotated[int, at_least(2)] = 8
    ) -> None:
        self._space = space
        self._seed = seed
        self._initial = initial
        self._suggestions = Suggestions(space)
        self._others = optuna.samplers.RandomSampler(seed)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The whole space: all parameters are proposed together."""
        return self._suggestions.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next point as Optuna parameters."""
        finished = _observed(study, self._suggestions)
        X, Y, Yvar = columns_of(finished, self._suggestions)
        if trial.number < self._initial or len(X) < 2:
            first = self._space.sample(trial.number + 1, seed=self._seed)[-1]
            return self._not_pruned(study, first)
        entries = {known.user_attrs[ENTRY] for known in finished}
        waiting = []
        # where a fit failed or was pruned, it would again
        for other in study.get_trials(
            deepcopy=False, states=(TrialState.RUNNING, TrialState.FAIL, TrialState.PRUNED)
        ):
            known = other.number == trial.number or other.user_attrs.get(ENTRY) in entries
            if not known and self._suggestions.holds(other.params):
                waiting.append(other.params)
        pending = self._suggestions.points(waiting)
        seed = 1000 * self._seed + trial.number
        constraints = _constraint_values(study, finished)
        if constraints.shape[1] == 0:
            x = suggest(self._space, X, Y, Yvar, seed=seed, pending=pending)
        else:
            x = _suggest_feasible(self._space, X, Y, Yvar, constraints, pending, seed)
        return self._not_pruned(study, x[0])

    def _not_pruned(self, study: optuna.Study, x: torch.Tensor) -> dict[str, Any]:
        """The point as Optuna parameters; another one where a trial was pruned there."""
        shown = self._suggestions.shown(x)
        pruned = []
        for other in study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)):
            pruned.append({name: other.params.get(name) for name in shown})
        if shown not in pruned:
            return shown
        others = map(self._suggestions.shown, self._space.sample(_OTHERS, seed=self._seed))
        return next((other for other in others if other not in pruned), shown)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value for a parameter outside the space."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """For parallel loops; points of the space depend on trial numbers, so they need no new
        seed.
        """
        self._others.reseed_rng()


@checked
def recommended_trial(study: optuna.Study, space: Space) -> Recommendation:
    """The released point of highest posterior mean. Use it instead of `study.best_trial`, which is
    the luckiest one.

    Only a trial that meets all constraints of the study (`trial.set_constraint`, or a sampler's
    `constraints_func`) is recommended. One that lacks a constraint that others have, such as one
    that `resume` added, does not count as meeting it.

    Raises:
        InputError: no trial of the study has a released value.
        UsageError: no trial is known to meet all constraints.
    """
    suggestions = Suggestions(space)
    trials = _observed(study, suggestions)
    X, Y, Yvar = columns_of(trials, suggestions)
    return recommended(space, X, Y, Yvar, feasible=feasible_trials(study, trials))


def _observed(study: optuna.Study, suggestions: Suggestions) -> list[FrozenTrial]:
    """Those of the released trials that are over this space."""
    return [trial for trial in released_trials(study) if suggestions.holds(trial.params)]


def released_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Complete trials that have a released value, each value once."""
    released = {}
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        if {ENTRY, YVAR} <= trial.user_attrs.keys():
            released[trial.user_attrs[ENTRY]] = trial
    return list(released.values())


def columns_of(
    trials: list[FrozenTrial], suggestions: Suggestions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """X `t x d`, Y `t x 1`, Yvar `t x 1`."""
    X = suggestions.points([trial.params for trial in trials])
    values = X.new_tensor([[t.value, t.user_attrs[YVAR]] for t in trials]).reshape(-1, 2)
    return X, values[:, :1], values[:, 1:]


def feasible_trials(study: optuna.Study, trials: list[FrozenTrial]) -> torch.Tensor:
    """Which released trials are known to meet all constraints that any of them has, `t` bools."""
    # NaN is not below 0
    return (_constraint_values(study, trials) <= 0).all(1)


def _constraint_values(study: optuna.Study, trials: list[FrozenTrial]) -> torch.Tensor:
    """The k constraints that released trials of the study have, `t x k`, NaN where one lacks it.

    A value may be in the study twice, as a killed worker's trial and as what `resume` made of it,
    and either may hold the constraints.
    """
    known: dict[str, dict[str, float]] = {trial.user_attrs[ENTRY]: {} for trial in trials}
    for trial in study.get_trials(deepcopy=False):
        entry = trial.user_attrs.get(ENTRY)
        if entry in known:
            known[entry].update(_constraints(trial))
    names = sorted(set().union(*known.values()))
    rows = [[values.get(name, torch.nan) for name in names] for values in known.values()]
    return torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(len(trials), len(names))


def _constraints(trial: FrozenTrial) -> dict[str, float]:
    """The trial's constraints by name, met where they are 0 or less."""
    if hasattr(trial, "constraints"):
        return dict(trial.constraints)
    # Optuna 4 has those of a sampler's `constraints_func` only
    values = trial.system_attrs.get("constraints") or ()
    return {str(i): value for i, value in enumerate(values)}


def _suggest_feasible(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    constraints: torch.Tensor,
    pending: torch.Tensor,
    seed: int,
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEI under constraints, `t x k`, NaN where one is unknown."""
    with mute_optimizer_warnings(), seed_torch(seed), without_default_device():
        models = [default_gp(space, X, Y, Yvar)]
        for values in constraints.T:
            known = ~values.isnan()
            # a model needs two values
            if int(known.sum()) < 2:
                continue
            # only the sign says what is feasible, so the scale is free, and infinity is its end
            largest = float(values.where(values.isfinite(), 0.0).abs().max())
            scaled = (values[known] / (largest or 1.0)).clamp(-1.0, 1.0).unsqueeze(1)
            models.append(default_gp(space, X[known], scaled, torch.zeros_like(scaled)))
        acquisition = qLogNoisyExpectedImprovement(
            ModelListGP(*models),
            X,
            sampler=SobolQMCNormalSampler(torch.Size([64]), seed=seed),
            objective=LinearMCObjective(
                torch.eye(len(models), dtype=torch.float64, device="cpu")[0]
            ),
            constraints=[lambda Z, k=k: Z[..., k] for k in range(1, len(models))] or None,
            X_pending=pending if len(pending) else None,
        )
        return maximize(acquisition, space, space.bounds)
