"""Does a score keep its promise: is every record scored by itself?

A score that normalises by the batch, ranks, or averages makes one record change the others' numbers, and no clipping bounds that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpbo.curator.records import PrivateView
from dpbo.privacy import Adjacency, PrivacyUnit


def check_per_record(
    score: Callable[[Any, Any], Any],
    subject: Any,
    records: Any,
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    trials: int = 20,
    seed: int = 0,
) -> None:
    """Replace (or remove) single records and require every other record's score to keep its bits.

    Run it on public stand-in records: what it reports would be private otherwise.

    Args:
        score, subject: as in ClippedMean; `score(subject, records)`.
        records: public records that can be sliced, at least two.
        adjacency: REPLACE_ONE puts another record in one place; ADD_OR_REMOVE_ONE leaves one out.
        trials: how many records are tried.

    Raises:
        AssertionError: names the record that moved another one's score, and by how much.
    """
    view = PrivateView.of(records, PrivacyUnit("record"), units_are_public=True)
    assert view.can_take, "records must be tensors, arrays, DataFrames or lists to be taken apart"
    assert view.count >= 2, "two records or more are needed"
    before = _scores(score(subject, records))
    assert len(before) == view.count, f"score returned {len(before)} rows for {view.count} records"
    rng = np.random.default_rng(seed)
    for changed in rng.choice(view.count, size=min(trials, view.count), replace=False).tolist():
        others = torch.arange(view.count) != changed
        if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            after = _scores(score(subject, view.take(torch.arange(view.count)[others])))
        else:
            after = _scores(score(subject, view.take(_with_other(view.count, changed, rng))))[others.numpy()]
        _require_equal(before[others.numpy()], after, changed, adjacency)


def _with_other(count: int, changed: int, rng: np.random.Generator) -> torch.Tensor:
    positions = torch.arange(count)
    positions[changed] = (changed + int(rng.integers(1, count))) % count
    return positions


def _scores(result: Any) -> np.ndarray[Any, Any]:
    return result.detach().cpu().numpy() if isinstance(result, torch.Tensor) else np.asarray(result)


def _require_equal(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], changed: int, adjacency: Adjacency) -> None:
    if np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
        return
    largest = float(np.nanmax(np.abs(before.astype(float) - after.astype(float)))) if before.shape == after.shape else float("nan")
    raise AssertionError(f"under {adjacency.value}, changing record {changed} moved other records' scores by up to {largest:.3g}: "
                         "the score does not treat each record by itself, so no sensitivity holds")  # fmt: skip
