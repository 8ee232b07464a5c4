"""Every candidate of a task and split, fitted once: what a choice among them needs, in one file.

`build/zoo/TASK-SPLIT.npz` holds, where row 0 is the default model and 16 candidates follow:

- `oof_SCORE`, `17 x public`: out-of-fold scores of the public records.
- `pool_SCORE`, `17 x protected`: scores of the protected records by the models that learned from
  the whole public table. The first `tuning` records are to tune on, the rest to test on.
- `described`, `labels`, `pdescribed`, `plabels`: the features and the labels of the public and of
  the protected records, as `dpbo.search.public_scores.Features` makes them.
- `points`, `16 x d`: the candidates.
- `width_SCORE` and `width`: the length of the range of a score, for one and for the first.
"""

import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.models import forget_fits, model_and_space
from benchmarks.zoo.tasks import MOST_ERROR, Task, demo_records, records
from dpbo import Space
from dpbo.errors import UsageError
from dpbo.isolation import mute_warnings
from dpbo.search.public_scores import Features, out_of_fold, public_candidates
from dpbo.search.scorings import Scoring, label_array, scoring_named
from dpbo.search.training import Trainer

FOLDER = pathlib.Path("build/zoo")
CANDIDATES = 16
TUNING = 1000
POOL = 3000

Cache = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Split:
    """A task's records, divided by a seed.

    Attributes:
        X, y: the public training table.
        protected_x, protected_y: protected records.
        tuning: how many of these, the first ones, are to tune on; the rest are to test on.
        model, space: what is tuned.
        candidates: how many are tried beside the default model.
    """

    X: Any
    y: Any
    protected_x: Any
    protected_y: Any
    tuning: int
    model: Any
    space: dict[str, Any]
    candidates: int


def refuse_if_locked(task: Task) -> None:
    """Do nothing for an open task.

    Raises:
        UsageError: the task is kept back.
    """
    if task.locked:
        raise UsageError(
            f"The task {task.name!r} is kept back: run it once, when the method is final, with"
            " --locked."
        )


def split_of(task: Task, seed: int, *, locked: bool = False, smoke: bool = False) -> Split:
    """The task's records at this seed, and its model.

    Raises:
        UsageError: the task is kept back and `locked` is not given.
    """
    if not locked:
        refuse_if_locked(task)
    model, space = model_and_space(task.model, classes=task.classes)
    if smoke:
        found = demo_records()
        model.set_params(max_iter=5)
    else:
        found = records(task)
    random = np.random.default_rng(seed)
    train = random.permutation(found.public)[: 200 if smoke else task.train]
    pool = random.permutation(found.protected)[: 400 if smoke else POOL]
    return Split(
        found.X[train],
        found.y[train],
        found.X[pool],
        found.y[pool],
        min(TUNING, len(pool) // 2),
        model,
        space,
        4 if smoke else CANDIDATES,
    )


def scoring_of(score: str, labels: Any) -> Scoring:
    """The scoring of this name; a squared error is clipped at a public bound."""
    return scoring_named(score, range_of(score), labels)


def range_of(score: str) -> tuple[float, float] | None:
    """The range of a score that has none of its own."""
    return (-MOST_ERROR, 0.0) if score == "neg_mean_squared_error" else None


def fitted(task: Task, split: Split, seed: int) -> Cache:
    """Scores of the default model and of every candidate on all records of the split."""
    space = Space(**split.space)
    trainer = Trainer(split.model, space, split.X, split.y, "raise")
    points = public_candidates(space, split.candidates, seed)
    features = Features.of(trainer)
    cache: Cache = {
        "points": points.numpy(),
        "labels": split.y,
        "plabels": split.protected_y,
        "tuning": np.array(split.tuning),
    }
    for score in task.scores:
        scoring = scoring_of(score, split.y)
        with mute_warnings():
            cache[f"oof_{score}"], cache["described"] = out_of_fold(
                trainer, scoring, [None, *points], features, seed
            )
        cache[f"width_{score}"] = np.array(scoring.bounds[1] - scoring.bounds[0])
        rows = []
        for x in [None, *points]:
            with mute_warnings():
                model = trainer.public_model(x)
                if x is None:
                    cache["pdescribed"] = features(model, split.protected_x, split.protected_y)
                found = label_array(scoring(model, (split.protected_x, split.protected_y)))
            rows.append(np.clip(found.reshape(-1).astype(np.float64), *scoring.bounds))
        cache[f"pool_{score}"] = np.array(rows)
    cache["width"] = cache[f"width_{task.scores[0]}"]
    return cache


def file_of(folder: pathlib.Path, task: Task, seed: int) -> pathlib.Path:
    """Where the cache of this task and split is."""
    name = "".join(letter if letter.isalnum() else "_" for letter in task.name)
    return folder / f"{name.replace('__', '_')}-{seed}.npz"


def cached(task: Task, split: Split, seed: int, folder: pathlib.Path) -> Cache:
    """The same as `fitted`, from its file if there is one."""
    file = file_of(folder, task, seed)
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        found: Any = fitted(task, split, seed)
        with part.open("wb") as empty:
            np.savez_compressed(empty, **found)
        part.rename(file)
        forget_fits()
    with np.load(file) as opened:
        return dict(opened)
