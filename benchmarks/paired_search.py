"""Searches (qLogNEI) on paired scores, which the optimiser may exploit: ways to make them safe,
beside plain scores and free choices.

Tasks on which no search had been tried before (the last two of `small_data`); 24 evaluations at
epsilon 1; gain of the mean test score over the default model, times 100. c is the largest
difference that counts.

    plain, paired c: each evaluation releases the mean score, or the mean clipped difference to the
        default model's score.
    moved reference: within a trust region; the reference is the best point so far, whose own
        posterior mean is added to what is released.
    two fidelities: three quarters are narrow (c = 0.05), for 30 % of the budget, and the others
        plain, at the narrow ones' best points, for the rest; one Gaussian process over both
        recommends.
    unbiased on the public records: differences are clipped to [o - c, o + c], where o is chosen for
        each model so that the clip does not move the mean of the out-of-fold differences on the
        public records.
    free: cross-validation on the public records.
    weighted_cv: DPSearch's, with 24 candidates.
    open: the plain search without noise.

Clip's bias: what the clip adds to the recommended point's mean difference on the protected records.
"""

import concurrent.futures
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.models import MultiTaskGP
from numpy.typing import NDArray
from sklearn.model_selection import KFold

from benchmarks.harness import difference, mean_and_error, named, options, record, table, with_bar
from benchmarks.small_data import SPACE, TEST, TRAIN, Boosting, tasks
from dpbo import Budget, Curator, DPSearch, Privacy, Space
from dpbo.accounting import calibrate
from dpbo.acquisition import suggest, suggest_in_trust_region
from dpbo.acquisition.expected_improvement import posterior_mean
from dpbo.isolation import mute_warnings
from dpbo.mechanisms import GaussianMechanism
from dpbo.models.builders import _fitted
from dpbo.privacy import PrivacyUnit
from dpbo.queries import ClippedMean

EVALUATIONS = 24
INITIAL = 8
NARROW = 0.05
NARROW_SHARE = 0.3
MOVED = "moved reference, c 0.1"
UNBIASED = "unbiased on the public records, c 0.1"
# Whose clip is not [-c, c] about the default model.
MOVING = (MOVED, UNBIASED)
UNITS = (300, 1000)
BUDGET = Budget(1.0, 1e-6)
Array = NDArray[np.float64]


def true_class(model: Any, records: Any) -> Array:
    """Probability of the true class."""
    return np.asarray(model.predict_proba(records[0])[np.arange(len(records[1])), records[1]])


def brier(model: Any, records: Any) -> Array:
    """Minus the Brier score, plus 1."""
    return 1.0 - (1.0 - true_class(model, records)) ** 2


SCORES = {"probability of the true class": true_class, "Brier score": brier}


class Study:
    """One split of a task, its models, and a curator over the protected records."""

    def __init__(
        self,
        task: str,
        seed: int,
        n: int,
        score: Callable[[Any, Any], Array],
        evaluations: int,
        *,
        noise: bool = True,
    ) -> None:
        X, y, public, protected = tasks()[task]
        random = np.random.default_rng(seed)
        train = random.permutation(np.flatnonzero(public))[:TRAIN]
        pool = random.permutation(np.flatnonzero(protected))
        parts = (train, pool[:n], pool[n:][:TEST])
        self.train, self.protected, self.test = ((X[part], y[part]) for part in parts)
        self.space = Space(**SPACE)
        self.score = score
        self.seed = seed
        self.evaluations = evaluations
        budget = BUDGET if noise else Budget.gdp(300.0)
        self.curator = Curator(
            self.protected,
            unit=PrivacyUnit("record"),
            adjacency="replace-one",
            budget=budget,
            allow_repeated=True,
        )
        self.budget = budget

    def model(self, x: torch.Tensor | None, records: Any = None) -> Any:
        """Trained on the public records, or on a part of them; None is the default model."""
        parameters = {} if x is None else self.space.decode(x)
        return Boosting(**parameters).fit(*(records or self.train))

    def gain(self, x: torch.Tensor, records: Any) -> Array:
        """Differences to the default model."""
        return self.score(self.model(x), records) - self.score(self.model(None), records)

    def out_of_fold(self, x: torch.Tensor | None) -> Array:
        """Scores of public records by models of the others."""
        X, y = self.train
        scores = np.zeros(len(y))
        for rest, held in KFold(5, shuffle=True, random_state=0).split(X):
            scores[held] = self.score(self.model(x, (X[rest], y[rest])), (X[held], y[held]))
        return scores

    def ask(
        self,
        x: torch.Tensor,
        c: float | None,
        *,
        reference: Any = None,
        middle: float = 0.0,
        releases: int,
        share: float = 1.0,
    ) -> tuple[float, float]:
        """Released mean score, or with c the mean clipped difference to the reference's, and its
        variance.
        """
        other = None if c is None else self.model(reference)
        score = (
            self.score
            if other is None
            else lambda model, records: self.score(model, records) - self.score(other, records)
        )
        query = ClippedMean(
            score, self.model(x), score_range=(0.0, 1.0) if c is None else (middle - c, middle + c)
        )
        law = GaussianMechanism(calibrate(self.budget, releases=releases, share=share))
        released = self.curator.release(query, law)
        return float(released.value), float(released.variance)


def searched(
    study: Study,
    c: float | None,
    *,
    moved: bool = False,
    unbiased: bool = False,
    evaluations: int | None = None,
    **spent: Any,
) -> Any:
    """Points, values and variances of a search."""
    evaluations = study.evaluations if evaluations is None else evaluations
    X = study.space.sample(INITIAL, seed=study.seed)
    Y = torch.zeros(0, 1).double()
    V = torch.zeros(0, 1).double()
    before = study.out_of_fold(None) if unbiased else None
    reference = None
    level = 0.0
    while len(Y) < evaluations:
        if len(Y) >= INITIAL:
            propose = suggest_in_trust_region if moved else suggest
            X = torch.cat([X, propose(study.space, X, Y, V, seed=1000 * study.seed + len(X))])
        x = X[len(Y)]
        middle = 0.0 if before is None else _middle(study.out_of_fold(x) - before, c)
        y, variance = study.ask(
            x, c, reference=reference, middle=middle, **{"releases": evaluations, **spent}
        )
        Y, V = (
            torch.cat([old, torch.tensor([[new]], dtype=torch.float64)])
            for old, new in ((Y, y + level), (V, variance))
        )
        if moved and len(Y) >= INITIAL:
            means = posterior_mean(study.space, X[: len(Y)], Y, V)
            reference = X[means.argmax()]
            level = float(means.max())
    return X, Y, V


def _middle(differences: Array, c: float | None) -> float:
    """o for which clipping to [o - c, o + c] keeps the mean."""
    assert c is not None
    low = -1.0
    high = 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if np.clip(differences, middle - c, middle + c).mean() < differences.mean()
            else (low, middle)
        )
    return (low + high) / 2


def best(study: Study, found: Any) -> torch.Tensor:
    """The point of highest posterior mean."""
    return found[0][posterior_mean(study.space, *found).argmax()]


def two_fidelities(study: Study) -> torch.Tensor:
    """The best point of a Gaussian process over narrow and plain evaluations."""
    few = study.evaluations // 4
    X, Y, V = searched(study, NARROW, evaluations=study.evaluations - few, share=NARROW_SHARE)
    top = posterior_mean(study.space, X, Y, V).argsort(descending=True)[:few]
    plain = [study.ask(X[i], None, releases=few, share=1 - NARROW_SHARE) for i in top]
    Z, W = (
        torch.tensor(part, dtype=torch.float64).unsqueeze(1) for part in zip(*plain, strict=True)
    )
    points = torch.cat(
        [torch.cat([X, torch.zeros(len(X), 1)], 1), torch.cat([X[top], torch.ones(len(top), 1)], 1)]
    ).double()
    values = torch.cat([Y - Y.mean(), Z - Z.mean()])
    scale = Y.std()
    model = _fitted(
        MultiTaskGP(points, values / scale, -1, torch.cat([V, W]) / scale**2, output_tasks=[1])
    )
    with torch.no_grad():
        return X[model.posterior(X).mean[:, 0].argmax()]


def weighted(study: Study) -> tuple[dict[str, Any], dict[str, Any]]:
    """DPSearch's choice by released shares, and the free one."""
    scoring = "neg_brier_score" if study.score is brier else "true_class_probability"
    search = DPSearch(
        Boosting(),
        SPACE,
        budget=BUDGET,
        n_iter=study.evaluations,
        scoring=scoring,
        strategy="weighted_cv",
        random_state=study.seed,
        privacy=Privacy(allow_repeated=True),
    )
    search.fit(*study.train, *study.protected)
    return search.best_params_, search.free_params_


def one_split(task: str, seed: int, n: int, scoring: str, evaluations: int) -> dict[str, Any]:
    """Gains and the clips' biases of every way."""
    make = functools.partial(Study, task, seed, n, SCORES[scoring], evaluations)

    def found(c: float | None, study: Study, **terms: bool) -> torch.Tensor:
        return best(study, searched(study, c, **terms))

    ways: dict[str, tuple[float | None, Callable[[Study], torch.Tensor]]] = {
        "plain": (None, functools.partial(found, None)),
        **{f"paired, c {c:g}": (c, functools.partial(found, c)) for c in (0.25, 0.1)},
        MOVED: (0.1, functools.partial(found, 0.1, moved=True)),
        "two fidelities": (NARROW, two_fidelities),
        UNBIASED: (0.1, functools.partial(found, 0.1, unbiased=True)),
    }
    gains = {}
    biases = {}
    with mute_warnings():
        for way, (c, recommend) in ways.items():
            study = make()
            x = recommend(study)
            gains[way] = 100 * float(study.gain(x, study.test).mean())
            if c is not None and way not in MOVING:
                shown = study.gain(x, study.protected)
                biases[way] = 100 * float((np.clip(shown, -c, c) - shown).mean())
        study = make(noise=False)
        gains["open"] = 100 * float(study.gain(found(None, study), study.test).mean())
        study = make()
        for way, parameters in zip(("weighted_cv", "free"), weighted(study), strict=True):
            model = Boosting(**parameters).fit(*study.train)
            before = study.score(study.model(None), study.test)
            gains[way] = 100 * float((study.score(model, study.test) - before).mean())
    return {"task": task, "n": n, "score": scoring, "seed": seed, "gains": gains, "biases": biases}


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, seeds=4, workers=1)
    ways = [(n, score) for n in UNITS for score in SCORES]
    jobs = [
        (task, seed, *way, EVALUATIONS)
        for seed in range(chosen.seeds)
        for task in list(tasks())[-2:]
        for way in ways
    ]
    jobs = [(*jobs[0][:4], INITIAL + 4)] if chosen.smoke else jobs
    found = []
    with concurrent.futures.ProcessPoolExecutor(chosen.workers) as workers:
        for job in with_bar([workers.submit(one_split, *job) for job in jobs]):
            found.append(job.result())
            print(json.dumps(found[-1]), flush=True)
    rows = []
    for n in UNITS:
        for score in SCORES:
            runs = [run for run in found if run["n"] == n and run["score"] == score]
            for way in runs[0]["gains"] if runs else ():
                gains = [run["gains"][way] for run in runs]
                gap = difference([run["gains"]["plain"] for run in runs], gains)
                bias = (
                    mean_and_error([run["biases"][way] for run in runs])[0]
                    if way in runs[0]["biases"]
                    else ""
                )
                rows.append(
                    [
                        n,
                        score,
                        way,
                        *mean_and_error(gains),
                        -gap.mean,
                        gap.wins,
                        len(runs),
                        min(gains),
                        bias,
                    ]
                )
    header = (
        "n",
        "score",
        "way",
        "gain",
        "error",
        "minus plain's",
        "above plain",
        "of",
        "worst",
        "clip's bias",
    )
    print(table(header, rows))
    record("paired_search", {"rows": named(header, rows)}, chosen)


if __name__ == "__main__":
    main()
