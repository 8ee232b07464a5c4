"""Running the user's score on private records, so that nothing but per-record numbers can come back.

An exception is a one-bit leak: it is confined to the units that cause it, which then count as the worst score. What cannot be
confined becomes a `Failure`, a value that the curator turns into an error without any private frame.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from dpbo.errors import ScoreError
from dpbo.isolation import ctrl_c_came
from dpbo.queries.query import Failure, View

Score = Callable[[Any, Any], Any]
T = TypeVar("T")
_MOST_CALLS = 1 << 12
_FRUITLESS_CALLS = 1 << 8
_DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_DTYPES |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_NOTHING = object()
_MEAN = "One number for all records is perhaps their mean: return each record's own score, and dpbo takes the mean."
_SCORER = (
    "Scorers of scikit-learn, such as make_scorer's, give one number for all records: give a function that scores each record, such as "
    "`lambda model, records: model.predict(records[0]) == records[1]`, or to DPSearch a name such as scoring='f1'. "
)
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_DTYPES |= _UNSIGNED


class _WrongShape(Exception):
    """The score returned something other than one row of numbers a record."""


def over_records(score: Score, subject: Any, view: View, metrics: int, reduce: Callable[[Iterable[torch.Tensor]], T]) -> T | Failure:
    """`reduce` applied to the scores of all records, as pieces of shape `rows x metrics` in record order. Never raises."""
    found = _guarded(lambda: reduce([] if view.count == 0 else _pieces(score(subject, view.records), view.count, metrics)))
    if not isinstance(found, Failure) or found.kind == "interrupted" or not view.can_take:
        return found
    scores = _isolated(score, subject, view, metrics)
    return scores if isinstance(scores, Failure) else _guarded(lambda: reduce([scores]))


def _guarded(work: Callable[[], T | Failure]) -> T | Failure:
    """`work()`, or that it failed: whatever its error is, it is private."""
    try:
        return work()
    except BaseException as error:
        return Failure(_kind(error))


def try_on(score: Score, subject: Any, example: Any, metrics: int, count: int, reduce: Callable[[Iterable[torch.Tensor]], Any]) -> None:
    """Score and reduce public records. Raises ScoreError where that fails or the shape is wrong: what was returned, and the fix."""
    shape = "one real number a record, shape (n,)" if metrics == 1 else f"{metrics} numbers a record, shape (n, {metrics})"
    must = f"score must return {shape}; on {count} public stand-in records it"
    scorer = _SCORER if _is_scorer(score) else ""
    remedy = f"{scorer}If stand-in zeros are no valid records, give public ones: Curator(..., example=)."
    result = _NOTHING
    try:
        result = score(subject, example)
        reduce(_pieces(result, count, metrics))
    except Exception as cause:
        if result is _NOTHING or isinstance(result, Iterator):
            raise ScoreError(f"{must} raised {cause!r}. {remedy}") from cause
        mean = f"{_MEAN} " if _is_number(result) and not scorer else ""
        raise ScoreError(f"{must} returned {described(result)}. {mean}{remedy}") from None


def described(result: Any, scores: torch.Tensor | None = None) -> str:
    """Type and shape of what a score returned on public records; with `scores`, its numbers, also their range."""
    if isinstance(result, Iterator):
        kind = "batches"
    elif hasattr(result, "shape") and hasattr(result, "dtype"):
        kind = f"a {type(result).__name__} of {result.dtype}, shape {tuple(result.shape)}"
    elif isinstance(result, (list, tuple)):
        kind = f"a {type(result).__name__} of {len(result)}"
    else:
        kind = "None" if result is None else f"a {type(result).__name__}"
    finite = None if scores is None else scores[scores.isfinite()]
    return kind if finite is None or not len(finite) else f"{kind}, from {finite.min():.4g} to {finite.max():.4g}"


def _is_number(result: Any) -> bool:
    return isinstance(result, (int, float)) or getattr(result, "shape", None) == ()


def _is_scorer(score: Any) -> bool:
    """Whether it is one of scikit-learn's scorers, perhaps within a score of dpbo's."""
    inner = next((held for name in ("measure", "score", "func") if (held := getattr(score, name, None)) is not None), None)
    return hasattr(score, "_score_func") or (callable(inner) and _is_scorer(inner))


def _isolated(score: Score, subject: Any, view: View, metrics: int) -> torch.Tensor | Failure:
    """Scores by bisection over units; units that fail alone are NaN, the worst end, or what `score.score_of_failed` gives them.

    Every call scores as many records as there are, with repeats in the place of those left out, because a record's bits may depend on
    how many are scored together. A Failure, for the operator alone (assumption `score-total`): where more units fail than the calls
    settle, because those left over must not count as worst for another unit's sake; and where nothing can be scored at all, because then
    the score is broken and a release of worst scores would be paid for. Of a shard or a sample that says little: it may be of one unit,
    which must not end the evaluation for all. So its units count as worst, unless there are more than the fruitless calls settle.
    """
    scores, failed, kind = torch.full((view.count, metrics), torch.nan, dtype=torch.float64), view.units, ""
    known = torch.zeros(view.count, dtype=torch.bool)
    positions_of = _positions(view)
    waiting = collections.deque([(0, view.units)])
    for calls in range(_MOST_CALLS):
        if not waiting or (calls >= _FRUITLESS_CALLS and failed == view.units):
            break
        first, last = waiting.popleft()
        kept = positions_of(first, last)
        padded = torch.full((view.count,), int(kept[0]))
        padded[kept] = kept
        try:
            pieces = _pieces(score(subject, view.take(padded)), view.count, metrics)
            part = torch.cat([piece.to("cpu", torch.float64, copy=True) for piece in pieces])  # a score may use its buffer again
            scores[kept], known[kept], failed = part[kept], True, failed - (last - first)
        except BaseException as error:
            kind = _kind(error)
            if kind == "interrupted":
                return Failure(kind)
            if last - first > 1:
                middle = (first + last) // 2
                waiting.extend([(first, middle), (middle, last)])
    if waiting or (failed == view.units and not view.shard):
        return Failure(kind)
    worst = getattr(score, "score_of_failed", None)
    return scores if worst is None or failed == 0 else _filled(scores, known, _isolated(worst, None, view, metrics))


def _filled(scores: torch.Tensor, known: torch.Tensor, worst: torch.Tensor | Failure) -> torch.Tensor | Failure:
    """With what counts for each record that the score failed on, found record by record as the scores are.

    A record that is scored as NaN is known: it counts alike whether or not another one's score fails.
    """
    return worst if isinstance(worst, Failure) else scores.where(known[:, None], worst)


def _kind(error: BaseException) -> str:
    if ctrl_c_came():
        return "interrupted"
    return "shape" if isinstance(error, _WrongShape) else "exception"


def _positions(view: View) -> Callable[[int, int], torch.Tensor]:
    """Record positions of units first..last-1, in record order."""
    if view.groups is None or view.rows is None:
        return torch.arange
    order = torch.argsort(view.groups.cpu(), stable=True)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), view.rows.cpu().cumsum(0)])
    return lambda first, last: order[int(ends[first]) : int(ends[last])].sort().values


def _pieces(result: Any, count: int, metrics: int) -> Iterator[torch.Tensor]:
    """What a score may return (tensor, array, list, or an iterator of batches of those) as checked pieces `rows x metrics`."""
    seen = 0
    for batch in result if isinstance(result, Iterator) else (result,):
        piece = _as_rows(batch, metrics)
        seen += len(piece)
        yield piece
    if seen != count:
        raise _WrongShape


def tensor_of(result: Any) -> torch.Tensor:
    """What a score returned, as one tensor of real numbers: a tensor, an array, a list, or an iterator of batches of those.

    A list's kind of number is that of all its records together, so what one kind counts as beside another it must count as alone: else
    one record decided how the others count. Unsigned numbers become floats beside most others, so they always do; and batches of several
    kinds are joined as float64, because torch would join whole numbers with float32 as float32.
    """
    if isinstance(result, Iterator):
        return torch.cat([tensor_of(batch).to(torch.float64, copy=True) for batch in result])  # a score may use its buffer again
    tensor = result.detach() if isinstance(result, torch.Tensor) else _as_tensor(np.asarray(result))
    if tensor.dtype not in _DTYPES:
        raise _WrongShape
    return tensor.to(torch.float64) if tensor.dtype in _UNSIGNED else tensor


def _as_rows(batch: Any, metrics: int) -> torch.Tensor:
    scores = tensor_of(batch)
    rows = scores.unsqueeze(1) if scores.ndim == 1 and metrics == 1 else scores
    if rows.ndim != 2 or rows.shape[1] != metrics:
        raise _WrongShape
    return rows


def _as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.kind == "u":
        return torch.from_numpy(array.astype(np.float64))  # here, because torch does not know each of numpy's unsigned kinds
    return torch.from_numpy(array if array.flags.writeable else array.copy())
