"""Runs the user's score on private records, so that nothing but one row of numbers per record can
come back.

Whether a score raises an exception tells something about the records. So an exception is confined
to the units that cause it, which then count as the worst score. What cannot be confined becomes a
`Failure`: the curator turns this value into an error without private frames.
"""

import collections
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpbo.errors import ScoreError
from dpbo.isolation import INTERRUPTS, interruption
from dpbo.queries.query import Failure, View, copy_mutable

Score = Callable[[Any, Any], Any]
T = TypeVar("T")
# scores, which records have one, and how the last call failed
_Found = tuple[Tensor, Tensor, str]
# Records of which scores are in memory at once.
ROWS_AT_ONCE = 1 << 22
_MOST_CALLS = 1 << 12
_FRUITLESS_CALLS = 1 << 8
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_DTYPES = _UNSIGNED | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_DTYPES |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_NOT_CALLED = object()
_MEAN = (
    "One number for all records is perhaps their mean: return each record's own score, and dpbo"
    " takes the mean."
)
_SCORER = (
    "Scorers of scikit-learn, such as make_scorer's, give one number for all records: give a"
    " function that scores each record, such as `lambda model, records: model.predict(records[0])"
    " == records[1]`, or to DPSearch a name such as scoring='f1'. "
)
_POINT = (
    "Without a fit= the score's first argument is the point itself, a float64 tensor:"
    " x.to(records.dtype) has their dtype. "
)


class _WrongShape(Exception):
    """The score returned something other than one row of numbers a record."""


def score_records(
    score: Score,
    subject: Any,
    view: View,
    metrics: int,
    reduce: Callable[[Iterable[Tensor]], T],
) -> T | Failure:
    """`reduce` applied to the scores of all records. Never raises.

    Args:
        score: `score(subject, records)`.
        view: the private records.
        metrics: m, numbers a record.
        reduce: gets the scores as pieces `rows x m` in record order.
    """

    def guarded(scores: Callable[[], Iterable[Tensor]]) -> T | Failure:
        try:
            return reduce(scores())
        # private, whatever it is
        except BaseException as error:
            return _failure(error)

    if not view.one_at_a_time:
        result = guarded(lambda: _together(score, subject, view, metrics))
        if not isinstance(result, Failure) or result.interruption is not None or not view.can_take:
            return result
    scores = _scores(score, subject, view, metrics)
    if isinstance(scores, Failure):
        return scores
    result = guarded(lambda: _with_unfit_as_nan([scores], view))
    # with every score at hand: the sum failed, not the score
    if isinstance(result, Failure) and result.kind == "exception":
        return Failure("sum")
    return result


def ask(score: Score, subject: Any, records: Any) -> Any:
    """What the score returns about a copy of the subject, if that is of tensors and arrays.

    A score may write into its argument. Were it the same one in the next call, which there is for
    another block of records, or where one record makes the score fail, then that record would move
    the scores of others.
    """
    return score(copy_mutable(subject), records)


def _together(score: Score, subject: Any, view: View, metrics: int) -> Iterable[Tensor]:
    """The scores of all records by one call."""
    if view.count == 0:
        return []
    pieces = _pieces(ask(score, subject, view.records), view.count, metrics)
    return _with_unfit_as_nan(pieces, view)


def probe_score(
    score: Score,
    subject: Any,
    example: Any,
    metrics: int,
    count: int,
    reduce: Callable[[Iterable[Tensor]], Any],
) -> None:
    """Scores and reduces `count` public stand-in records. Raises ScoreError where that fails: what
    the score returned, and the fix.
    """
    shape = f"{metrics} numbers a record, shape (n, {metrics})"
    hint = f"Of {metrics} arrays of n numbers make one: np.stack([...], axis=1), or torch.stack. "
    if metrics == 1:
        shape = "one real number a record, shape (n,)"
        hint = "Several numbers a record need a range each: score_range=[(0, 1), (0, 1)]. "
    must = (
        f"score must return {shape}. It was tried on {count} public records before any private one"
        " (made up, or `example`): there it"
    )
    scorer = _SCORER if _is_scorer(score) else ""
    point = _POINT if isinstance(subject, Tensor) else ""
    remedy = (
        f"{scorer}{point}If made-up numbers are not valid records, give public ones: Curator(...,"
        " example=)."
    )
    result = _NOT_CALLED
    try:
        result = ask(score, subject, example)
        reduce(_pieces(result, count, metrics))
    except Exception as cause:
        if isinstance(cause, INTERRUPTS):
            raise
        of_batches = isinstance(result, Iterator) and not isinstance(cause, _WrongShape)
        if result is _NOT_CALLED or of_batches:
            raise ScoreError(f"{must} raised {cause!r}. {remedy}") from cause
        one_number = isinstance(result, (int, float)) or getattr(result, "shape", None) == ()
        several = isinstance(result, (list, tuple, dict)) or getattr(result, "ndim", 0) > 1
        if one_number and not scorer:
            remedy = f"{_MEAN} {remedy}"
        elif several:
            remedy = f"{hint}{remedy}"
        raise ScoreError(f"{must} returned {describe_result(result)}. {remedy}") from None


def describe_result(result: Any, scores: Tensor | None = None) -> str:
    """Type and shape of what a score returned on public records; with `scores`, its numbers, also
    their range.
    """
    if isinstance(result, Iterator):
        kind = "an iterator, which is taken for one of batches"
    elif hasattr(result, "shape") and hasattr(result, "dtype"):
        kind = f"a {type(result).__name__} of {result.dtype}, shape {tuple(result.shape)}"
    elif isinstance(result, (list, tuple)):
        kind = f"a {type(result).__name__} of {len(result)}"
    elif result is None:
        kind = "None"
    else:
        kind = f"a {type(result).__name__}"
    if scores is None or not scores.isfinite().any():
        return kind
    finite = scores[scores.isfinite()]
    return f"{kind}, from {finite.min():.4g} to {finite.max():.4g}"


def tensor_of(result: Any) -> Tensor:
    """What a score returned, as one tensor of real numbers: a tensor, an array, a list, or an
    iterator of batches of those.

    The dtype of a list depends on all its records. So a number must become the same float whatever
    stands beside it, or one record would decide how the others count. Unsigned numbers become
    float64, because numpy makes them floats beside most other numbers; and batches are joined as
    float64, because torch would join whole numbers with float32 as float32.
    """
    if isinstance(result, Iterator):
        # a score may use its buffer again
        return torch.cat([tensor_of(batch).to(torch.float64, copy=True) for batch in result])
    if isinstance(result, Tensor):
        tensor = result.detach()
    else:
        array = np.asarray(result)
        if array.dtype.kind == "u":
            # here, because torch does not know all of numpy's unsigned dtypes
            array = array.astype(np.float64)
        if not array.flags.writeable:
            array = array.copy()
        tensor = torch.from_numpy(array)
    if tensor.dtype not in _DTYPES:
        raise _WrongShape
    if tensor.dtype in _UNSIGNED:
        return tensor.to(torch.float64)
    return tensor


def _pieces(result: Any, count: int, metrics: int) -> Iterator[Tensor]:
    """What a score returned, as pieces of shape `rows x metrics`. Raises _WrongShape unless they
    are `count` rows.
    """
    rows = 0
    for batch in result if isinstance(result, Iterator) else (result,):
        piece = tensor_of(batch)
        if piece.ndim == metrics == 1:
            piece = piece.unsqueeze(1)
        if piece.ndim != 2 or piece.shape[1] != metrics:
            raise _WrongShape
        rows += len(piece)
        yield piece
    if rows != count:
        raise _WrongShape


def _scores(score: Score, subject: Any, view: View, metrics: int) -> Tensor | Failure:
    """Scores of all records: NaN, the worst value, where the score fails, or what
    `score.score_of_failed` gives there.

    A score that fails on all records is broken, and a release of worst values would be paid for: a
    Failure. But a shard or a sample may hold a single unit, which must not end the evaluation for
    all.
    """
    if hasattr(score, "sides"):
        return _compared(score, subject, view, metrics)
    found = (_one_by_one if view.one_at_a_time else _isolated)(score, subject, view, metrics)
    if isinstance(found, Failure):
        return found
    scores, known, kind = found
    if view.count and not known.any() and not view.shard:
        return Failure(kind)
    score_of_failed = getattr(score, "score_of_failed", None)
    if score_of_failed is None or bool(known.all()):
        return scores
    worst = _scores(score_of_failed, None, view, metrics)
    if isinstance(worst, Failure):
        return worst
    return scores.where(known[:, None], worst)


def _compared(paired: Any, subject: Any, view: View, metrics: int) -> Tensor | Failure:
    """Score differences where the score fails on some record: each side is scored by itself, so
    that a record which one side cannot take counts as its worst against the other's own score.
    """
    sides = []
    for each in paired.sides(subject):
        scores = _scores(paired.score, each, view, metrics)
        if isinstance(scores, Failure):
            return scores
        sides.append(scores)
    difference: Tensor = paired.difference(*sides)
    return difference


def _one_by_one(score: Score, subject: Any, view: View, metrics: int) -> _Found | Failure:
    """Scores of records that the score gets one at a time.

    Theorem. A record's score follows from that record, the subject and fresh randomness alone, if
    the score keeps nothing of a record for the next call (assumption `score-keeps-nothing`, in the
    place of `score-per-record`). Proof: the call gets a container of that one record, so neither a
    statistic over records, nor a dtype chosen by all of them, nor the shape of an array can bring
    in another one. It gets copies of the subject and of the score of its own, so what these change
    in themselves, such as running statistics, is gone. Random numbers that the score draws come
    from generators with a fresh seed (`PrivateGenerators`): they are independent of those of
    earlier calls, however many they drew. An exception is that record's own.
    """
    scores, known = _no_scores_yet(view, metrics)
    kind = ""
    for row in range(view.count):
        try:
            own_score, own_subject = copy.deepcopy((score, subject))
            scores[row] = _joined(own_score(own_subject, view.single(row).records), 1, metrics)[0]
            known[row] = True
        except BaseException as error:
            failure = _failure(error)
            if failure.interruption is not None:
                return failure
            kind = failure.kind
    return scores, known, kind


def _isolated(score: Score, subject: Any, view: View, metrics: int) -> _Found | Failure:
    """Scores by bisection over units, down to those that fail on their own.

    Each call scores as many records as there are, with repeats in the place of those left out,
    because a record's bits may depend on how many are scored together. It is a Failure, which only
    the operator sees (assumption `score-total`), if more units fail than the calls can find: those
    not yet tried must not count as worst because of another unit. Where nothing can be scored, few
    calls are made.

    A record that is scored as NaN keeps it: it counts the same whether or not the score fails on
    another record.
    """
    scores, known = _no_scores_yet(view, metrics)
    kind = ""
    # unit i holds the records order[ends[i]:ends[i + 1]]
    order = torch.arange(view.count, device="cpu")
    ends = torch.arange(view.units + 1, device="cpu")
    if view.groups is not None and view.rows is not None:
        order = torch.argsort(view.groups.cpu(), stable=True)
        ends = torch.cat(
            [torch.zeros(1, dtype=torch.int64, device="cpu"), view.rows.cpu().cumsum(0)]
        )
    waiting = collections.deque([(0, view.units)])
    for calls in range(_MOST_CALLS):
        if not waiting or (calls >= _FRUITLESS_CALLS and not known.any()):
            break
        first, last = waiting.popleft()
        positions = order[int(ends[first]) : int(ends[last])].sort().values
        padded = torch.full((view.count,), int(positions[0]), device="cpu")
        padded[positions] = positions
        try:
            found = _joined(ask(score, subject, view.take(padded)), view.count, metrics)
            scores[positions] = found[positions]
            known[positions] = True
        except BaseException as error:
            failure = _failure(error)
            if failure.interruption is not None:
                return failure
            kind = failure.kind
            if last - first > 1:
                middle = (first + last) // 2
                waiting.extend([(first, middle), (middle, last)])
    if waiting:
        return Failure(kind)
    return (scores, known, kind)


def _no_scores_yet(view: View, metrics: int) -> tuple[Tensor, Tensor]:
    """Scores of no record yet, and which records have one."""
    scores = torch.full((view.count, metrics), torch.nan, dtype=torch.float64, device="cpu")
    return scores, torch.zeros(view.count, dtype=torch.bool, device="cpu")


def _joined(result: Any, count: int, metrics: int) -> Tensor:
    """What a score returned, as a copy, because a score may use its buffer again: float64 on the
    CPU, `count x metrics`.
    """
    return torch.cat(
        [piece.to("cpu", torch.float64, copy=True) for piece in _pieces(result, count, metrics)]
    )


def _with_unfit_as_nan(pieces: Iterable[Tensor], view: View) -> Iterable[Tensor]:
    """The pieces with NaN, the worst value, for records that the public form has no value for.

    Where a record can be unfit, all whole numbers become floats, so that no record's number depends
    on whether another one is.
    """
    if view.unfit is None:
        yield from pieces
        return
    first = 0
    for piece in pieces:
        floats = piece if piece.is_floating_point() else piece.to(torch.float64)
        unfit = view.unfit[first : first + len(piece)].to(piece.device)
        yield floats.masked_fill(unfit.unsqueeze(1), torch.nan)
        first += len(piece)


def _failure(error: BaseException) -> Failure:
    if (ended := interruption(error)) is not None:
        return Failure("interrupted", ended)
    return Failure("shape" if isinstance(error, _WrongShape) else "exception")


def _is_scorer(score: Any) -> bool:
    """Whether it is one of scikit-learn's scorers, perhaps within a score of dpbo's."""
    if hasattr(score, "_score_func"):
        return True
    inner = [getattr(score, name, None) for name in ("measure", "score", "func")]
    return any(callable(held) and _is_scorer(held) for held in inner)
