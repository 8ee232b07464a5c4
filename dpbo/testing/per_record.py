"""Does a score keep its promise: is every record scored by itself?

A score that normalises by the batch, ranks, or averages makes one record change the others' numbers, and no clipping bounds that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from dpbo.checking import Count, Seed, checked
from dpbo.curator.records import PrivateView, leaves
from dpbo.privacy import Adjacency, PrivacyUnit

_EXTREMES = (1e6, -1e6, 1e30, -1e30, float("nan"))


@checked
def check_per_record(
    score: Callable[[Any, Any], Any],
    subject: Any,
    records: Any,
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    grouped: bool = False,
    trials: Count = 20,
    seed: Seed = 0,
) -> None:
    """Change single records and require every other record's score to keep its bits.

    Run it on public stand-in records: what it reports would be private otherwise.

    Args:
        score, subject: as in ClippedMean; `score(subject, records)`.
        records: public records that can be sliced, at least two.
        adjacency: REPLACE_ONE puts in one place another record, zeros, huge numbers or NaN. ADD_OR_REMOVE_ONE also leaves records out.
        grouped: units are groups of records, so a replaced unit may change the number of records: leaves records out too.
        trials: how many records are changed, among them those of lowest and highest score.

    Raises:
        AssertionError: names the record that moved another one's score, and by how much.
    """
    view = PrivateView.of(records, PrivacyUnit("record"), units_are_public=True)
    assert view.can_take, "records must be tensors, arrays, DataFrames or lists to be taken apart"
    assert view.count >= 2, "two records or more are needed"
    before = _scores(score(subject, view.records))
    assert len(before) == view.count, f"score returned {len(before)} rows for {view.count} records"
    compared, rng, everyone = 0, np.random.default_rng(seed), torch.arange(view.count)
    for changed in _victims(before, trials, rng):
        others = everyone[everyone != changed]
        for name, neighbour in _replacements(view, changed, rng):
            after = _scores_or_none(score, subject, neighbour)
            compared += after is not None
            if after is not None:
                _require_equal(before[others.numpy()], after[others.numpy()], f"replacing record {changed} by {name}")
    assert compared, "the score raised on every neighbour: nothing could be compared"
    if grouped or adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        _check_parts(score, subject, view, before, rng)


def _check_parts(score: Callable[[Any, Any], Any], subject: Any, view: PrivateView, before: np.ndarray[Any, Any], rng: Any) -> None:
    for size in sorted({1, 2, 7, view.count // 2, view.count - 1} & set(range(1, view.count))):
        kept = torch.from_numpy(np.sort(rng.choice(view.count, size=size, replace=False)))
        after = _scores_or_none(score, subject, view.take(kept))
        if after is not None:
            _require_equal(before[kept.numpy()], after, f"leaving out {view.count - size} records")


def _victims(scores: np.ndarray[Any, Any], trials: int, rng: np.random.Generator) -> list[int]:
    first = scores.reshape(len(scores), -1)[:, 0]
    drawn = rng.choice(len(scores), size=min(trials, len(scores)), replace=False).tolist()
    return list(dict.fromkeys([int(first.argmin()), int(first.argmax()), *drawn]))


def _replacements(view: PrivateView, changed: int, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Neighbours of the records in one place: another record anywhere, and for numbers also zeros, huge values of both signs, NaN."""
    positions = torch.arange(view.count)
    positions[changed] = (changed + int(rng.integers(1, view.count))) % view.count
    yield "another one", view.take(positions)
    for name, value in (("zeros", 0.0), *((f"{end:g}", end) for end in _EXTREMES)):
        neighbour = view.take(torch.arange(view.count))
        if [part for part in leaves(neighbour) if _overwritten(part, changed, value)]:
            yield name, neighbour


def _overwritten(part: Any, changed: int, value: float) -> bool:
    """Put `value`, as far as the dtype reaches, in one row of a numeric part; False where that means nothing."""
    kind = _kind(part)
    if kind == "f":
        part[changed] = value
        return True
    if kind in ("i", "u") and not math.isnan(value):
        ends = torch.iinfo(part.dtype) if isinstance(part, torch.Tensor) else np.iinfo(part.dtype)
        part[changed] = int(min(max(value, ends.min), ends.max))
        return True
    return False


def _kind(part: Any) -> str:
    """numpy's letter for the dtype; "" where it is none of numpy's or torch's."""
    if isinstance(part, torch.Tensor):
        return "f" if part.is_floating_point() else str(torch.empty(0, dtype=part.dtype).numpy().dtype.kind)
    return part.dtype.kind if isinstance(part, np.ndarray) else ""


def _scores_or_none(score: Callable[[Any, Any], Any], subject: Any, records: Any) -> np.ndarray[Any, Any] | None:
    """None where the score raises: the curator confines that to the record that causes it."""
    try:
        return _scores(score(subject, records))
    except Exception:
        return None


def _scores(result: Any) -> np.ndarray[Any, Any]:
    if isinstance(result, Iterator):
        return np.concatenate([_scores(batch) for batch in result])
    return result.detach().cpu().numpy() if isinstance(result, torch.Tensor) else np.asarray(result)


def _require_equal(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], change: str) -> None:
    if np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
        return
    largest = float(np.nanmax(np.abs(before.astype(float) - after.astype(float)))) if before.shape == after.shape else float("nan")
    raise AssertionError(f"{change} moved other records' scores by up to {largest:.3g}: "
                         "the score does not treat each record by itself, so no sensitivity holds")  # fmt: skip
