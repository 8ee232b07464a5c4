"""A sampler for noised values, and what to recommend from them.

Optuna's own samplers work on a private objective, but take its values for exact, or guess their noise. dpbo knows the noise: each trial
carries its variance, and the Gaussian process behind `dpbo.acquisition.suggest` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from dpbo.acquisition.expected_improvement import suggest
from dpbo.integrations.optuna.trials import ENTRY, YVAR, Suggestions
from dpbo.integrations.recommendation import Recommendation, recommended
from dpbo.privacy import require_count
from dpbo.space import Space
from dpbo.validation import checked


@checked
class NoiseAwareSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna is not followed by mypy here
    """Sobol points, then qLogNEI on a GP that knows the noise of every value.

    Trials without a known noise, or outside the space, are left out, and a value that is in the study twice counts once. Points of
    trials that others are running count as seen, so that workers do not follow each other, and so do those of failed trials. Which
    point comes next depends on the seed, the trial's number and the other trials alone. Each choice refits the GP.

    Args:
        space: the TrialObjective's.
        seed: of designs and acquisitions.
        initial: trials of Sobol points, by their numbers; 2 or more.
    """

    def __init__(self, space: Space, *, seed: int = 0, initial: int = 8) -> None:
        self._space, self._seed, self._initial = space, require_count("seed", seed, 0), require_count("initial", initial, 2)
        self._suggestions = Suggestions(space)
        self._others = optuna.samplers.RandomSampler(seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The whole space, at once."""
        return self._suggestions.distributions

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
        """The next point in Optuna's words."""
        finished = _observed(study, self._suggestions)
        X, Y, Yvar = _columns(finished, self._suggestions)
        if trial.number < self._initial or len(X) < 2:
            return self._suggestions.shown(self._space.sample(trial.number + 1, seed=self._seed)[-1])
        pending = self._pending(study, trial, {known.user_attrs[ENTRY] for known in finished})
        x = suggest(self._space, X, Y, Yvar, seed=1000 * self._seed + trial.number, pending=pending)
        return self._suggestions.shown(x[0])

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution) -> Any:
        """A parameter that is not of the space, at random."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """For loops of several threads; points of the space hang on trial numbers and need none."""
        self._others.reseed_rng()

    def _pending(self, study: optuna.Study, trial: FrozenTrial, finished: set[str]) -> torch.Tensor:
        """The points, `k x d`, of trials that others are running; and of failed ones, where a fit would fail again."""
        without = study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.FAIL))
        others = [t for t in without if t.number != trial.number and t.user_attrs.get(ENTRY) not in finished]
        points = [self._suggestions.point(t.params) for t in others if self._suggestions.holds(t.params)]
        return torch.stack(points) if points else torch.empty(0, len(self._space.names), dtype=torch.float64)


@checked
def recommended_of(study: optuna.Study, space: Space) -> Recommendation:
    """The released point of highest posterior mean. Use it in place of `study.best_trial`, which is the luckiest value.

    Raises:
        InputError: no trial of the study has a released value.
    """
    suggestions = Suggestions(space)
    return recommended(space, *_columns(_observed(study, suggestions), suggestions))


def _observed(study: optuna.Study, suggestions: Suggestions) -> list[FrozenTrial]:
    """Complete trials over this space with a released value, each value once."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    ours = [t for t in complete if {ENTRY, YVAR} <= t.user_attrs.keys() and suggestions.holds(t.params)]
    return list({t.user_attrs[ENTRY]: t for t in ours}.values())


def _columns(trials: list[FrozenTrial], suggestions: Suggestions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """X `t x d`, Y `t x 1`, Yvar `t x 1`."""
    if not trials:
        return torch.empty(0, len(suggestions.parameters)).double(), torch.empty(0, 1).double(), torch.empty(0, 1).double()
    X = torch.stack([suggestions.point(trial.params) for trial in trials])
    Y, Yvar = ([[trial.value] for trial in trials], [[trial.user_attrs[YVAR]] for trial in trials])
    return X, torch.tensor(Y, dtype=torch.float64), torch.tensor(Yvar, dtype=torch.float64)
