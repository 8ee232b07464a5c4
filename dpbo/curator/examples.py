"""Tries a score on public example records before anything is charged."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from dpbo.curator.records import PrivateView, leaves
from dpbo.errors import ScoreError
from dpbo.isolation import mute_warnings
from dpbo.privacy import PrivacyUnit
from dpbo.queries.score_evaluation import describe_result, tensor_of

Score = Callable[[Any, Any], Any]
_EXTREMES = (1e6, -1e6, 1e30, -1e30, float("nan"))


class MostlyClipped(ScoreError):
    """Most scores of the example records are useless: they lie outside the score range, or all are NaN."""


def examine(score: Score, subject: Any, example: Any, ranges: Sequence[tuple[float, float]]) -> None:
    """Refuse a score whose releases would be useless, or would get noise for the wrong sensitivity: one that is NaN on all records, out
    of its range on most, or not computed record by record.

    Args:
        score: `score(subject, records)`.
        subject: what is scored, such as a fitted model.
        example: public records.
        ranges: (lower, upper) of each metric; empty, the range is not checked.

    Raises:
        ScoreError: says what the score returned and how to mend it.
    """
    view = PrivateView.of(example, PrivacyUnit("record"), units_are_public=True)
    with mute_warnings():
        result = score(subject, view.records)
        again = score(subject, view.records)
    scores, repeated = (tensor_of(found).cpu().double().reshape(view.count, -1) for found in (result, again))
    returned = f"on the {view.count} records of Curator(..., example=) it returned {describe_result(result, scores)}"
    if view.count and not bool(scores.isfinite().any(0).all()):
        fix = ("Return a finite number for records that it can score, or give example records that it can score. If only this point fails, "
               "begin at another.")  # fmt: skip
        raise MostlyClipped(f"score is NaN or infinite for every record: {returned}. Such records count as the worst score. {fix}")
    for column, (lower, upper) in zip(scores.T, ranges, strict=False):
        outside = int(((column < lower) | (column > upper)).sum())
        if 2 * outside > view.count:
            fix = "Give the range that records' scores have, or scale them to it. If only this point is out of range, begin at another."
            beyond = f"score lies outside score_range ({lower:g}, {upper:g}) for {outside} records"
            raise MostlyClipped(f"{beyond}, where it is clipped: {returned}. {fix}")
    if view.can_take and view.count > 1 and torch.equal(scores.nan_to_num(), repeated.nan_to_num()):
        try:
            with mute_warnings():
                require_per_record(score, subject, view, trials=1, seed=0, wild=False)
        except AssertionError as moved:
            fix = "Compute each record's score from that record alone: no mean, rank, normalisation or batch statistics over the others."
            raise ScoreError(f"score does not score each record by itself: {returned}, and {moved}. {fix}") from None


def require_per_record(
    score: Score, subject: Any, view: PrivateView, *, trials: int, seed: int, parts: bool = False, wild: bool = True
) -> None:
    """Require that changing one record leaves every other one's score the same to the last bit; for `examine`, and for
    `dpbo.testing.check_per_record` on records of the caller's choice.

    Args:
        score: `score(subject, records)`.
        subject: what is scored.
        view: public records that can be taken apart.
        trials: how many records are changed, besides those of lowest and highest score.
        seed: chooses these records.
        parts: whether records are also left out.
        wild: whether whole numbers may leave the range that the records have: a label or an index beyond it can end a process.

    Raises:
        AssertionError: names the record that moved another one's score, and by how much.
    """
    before = _scores(score(subject, view.records))
    assert len(before) == view.count, f"score returned {len(before)} rows for {view.count} records"
    compared, rng, everyone = 0, np.random.default_rng(seed), torch.arange(view.count)
    first = before.reshape(len(before), -1)[:, 0]
    drawn = rng.choice(len(before), size=min(trials, len(before)), replace=False).tolist()
    for changed in dict.fromkeys([int(first.argmin()), int(first.argmax()), *drawn]):
        others = everyone[everyone != changed]
        for name, neighbour in _replacements(view, changed, rng, wild):
            after = _scores_or_none(score, subject, neighbour)
            compared += after is not None
            if after is not None:
                _require_equal(before[others.numpy()], after[others.numpy()], f"replacing record {changed} by {name}")
    assert compared, "the score raised on every neighbour: nothing could be compared"
    for size in sorted({1, 2, 7, view.count // 2, view.count - 1} & set(range(1, view.count))) if parts else ():
        chosen = torch.from_numpy(np.sort(rng.choice(view.count, size=size, replace=False)))
        after = _scores_or_none(score, subject, view.take(chosen))
        if after is not None:
            _require_equal(before[chosen.numpy()], after, f"leaving out {view.count - size} records")


def _replacements(view: PrivateView, changed: int, rng: np.random.Generator, wild: bool) -> Iterator[tuple[str, Any]]:
    """The records with one of them replaced: by another one of them, and where they are numbers by zeros, huge values and NaN."""
    positions = torch.arange(view.count)
    positions[changed] = (changed + int(rng.integers(1, view.count))) % view.count
    yield "another one", view.take(positions)
    for name, value in (("zeros", 0.0), *((f"{end:g}", end) for end in _EXTREMES)):
        neighbour = view.take(torch.arange(view.count))
        if [part for part in leaves(neighbour) if _overwrite(part, changed, value, wild)]:
            yield name, neighbour


def _overwrite(part: Any, changed: int, value: float, wild: bool) -> bool:
    """Write `value`, or what is nearest to it in the dtype, into one row of a numeric part; False where that means nothing."""
    kind = part.dtype.kind if isinstance(part, np.ndarray) else ""
    if isinstance(part, torch.Tensor):
        kind = "f" if part.is_floating_point() else torch.empty(0, dtype=part.dtype).numpy().dtype.kind
    if kind == "f":
        part[changed] = value
        return True
    if kind in ("i", "u") and not math.isnan(value):
        ends = torch.iinfo(part.dtype) if isinstance(part, torch.Tensor) else np.iinfo(part.dtype)
        lower, upper = (ends.min, ends.max) if wild else (int(part.min()), int(part.max()))
        part[changed] = int(min(max(value, lower), upper))
        return True
    return False


def _scores_or_none(score: Callable[[Any, Any], Any], subject: Any, records: Any) -> np.ndarray[Any, Any] | None:
    """None where the score raises: the curator would count the failing records as the worst score."""
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
