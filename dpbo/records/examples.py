"""Tries a score on public records before anything is charged: one trial of whether it scores each
record by itself.

A score that gives other numbers on the same records is no function of them, and is refused. So
every call here starts from the same state of torch's, numpy's and Python's generators, which are
put back afterwards.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.errors import ScoreError
from dpbo.fingerprint import columns_of
from dpbo.isolation import INTERRUPTS, fix_generators, mute_warnings
from dpbo.queries.score_evaluation import ask, describe_result, tensor_of
from dpbo.records.containers import count_records, leaves, map_leaves
from dpbo.records.form import Form
from dpbo.records.labels import on_host
from dpbo.records.view import PrivateView

Score = Callable[[Any, Any], Any]
# Places of records, or of columns.
Places = NDArray[np.int64]
# Columns that are tried one by one. Those of more are tried in sets, because each try costs as much
# as the records are wide.
_SINGLY = 16
# Fewer records are repeated until they are as many: of 10 or fewer none can lie beyond three
# standard deviations.
_LEAST = 12
_FIX = (
    "Compute each record's score from that record alone: no mean, rank, normalisation or batch"
    " statistics over the others. A model belongs in evaluation mode."
)
_NOT_REPEATABLE = (
    "score is not repeatable: on the same {} public records it gave other numbers the second time,"
    " though torch's, numpy's and Python's generators were in the same state. So it cannot be"
    " tested that it scores each record by itself. Put the model in evaluation mode, give the score"
    " a fixed random_state, and on a GPU use torch.use_deterministic_algorithms(True)."
)


class MostlyClipped(ScoreError):
    """Most scores of the example records are useless: they lie outside the score range, or all are
    NaN.
    """


class _Cell(NamedTuple):
    """What is put into a cell: of numbers, and of anything else."""

    real: float
    text: str | None


# A missing one, a low and a high one. The texts come before and after most others, so that they
# shift the codes of categories.
_HOSTILE = (_Cell(math.nan, None), _Cell(-1e6, ""), _Cell(1e30, "\uffff"))


def examine(
    score: Score,
    subject: Any,
    example: Any,
    ranges: Sequence[tuple[float, float]],
    *,
    judged: bool = True,
) -> None:
    """Refuse a score whose releases would be useless, or would get noise for the wrong sensitivity:
    one that is NaN on all records, out of its range on most, not repeatable, or not computed record
    by record.

    Args:
        score: `score(subject, records)`.
        subject: what is scored, such as a fitted model.
        example: public records.
        ranges: (lower, upper) of each metric; empty, the range is not checked.
        judged: whether the scores' values count too, and not only whether each record's is its own:
            False for made-up records, and for a run that is resumed, which may begin at a bad
            point.

    Raises:
        ScoreError: says what the score returned and how to mend it.
    """
    view = PrivateView.of_records(example)
    with mute_warnings():
        result, again = (_called(score, subject, view.records) for _ in range(2))
    scores, repeated = (
        tensor_of(found).cpu().double().reshape(view.count, -1) for found in (result, again)
    )
    returned = f"on {view.count} public records it returned {describe_result(result, scores)}"
    if judged:
        _require_useful(scores, ranges, returned)
    if not torch.equal(scores.nan_to_num(), repeated.nan_to_num()):
        raise ScoreError(_NOT_REPEATABLE.format(view.count))
    if view.can_take and view.count > 1:
        try:
            with mute_warnings():
                require_per_record(score, subject, view, trials=0, seed=0)
        except AssertionError as moved:
            raise ScoreError(
                f"score does not score each record by itself: {returned}, and {moved}. {_FIX}"
            ) from None


def _require_useful(scores: Tensor, ranges: Sequence[tuple[float, float]], returned: str) -> None:
    """Raises MostlyClipped where all scores are NaN, or most lie outside their range."""
    if len(scores) and not bool(scores.isfinite().any(0).all()):
        fix = (
            "Return a finite number for records that it can score, or give example records that it"
            " can score. If only this point fails, begin at another."
        )
        raise MostlyClipped(
            f"score is NaN or infinite for every record: {returned}. Such records count as the"
            f" worst score. {fix}"
        )
    for column, (lower, upper) in zip(scores.T, ranges, strict=False):
        outside = int(((column < lower) | (column > upper)).sum())
        if 2 * outside > len(scores):
            fix = (
                "Give the range that records' scores have, or scale them to it. If only this point"
                " is out of range, begin at another."
            )
            beyond = f"score lies outside score_range ({lower:g}, {upper:g}) for {outside} records"
            raise MostlyClipped(f"{beyond}, where it is clipped: {returned}. {fix}")


def examine_again(score: Score, subject: Any, example: Any) -> None:
    """The cheap part of `examine`, for every later model: one may have been left in training mode.

    Of the first and the last record, each is scored beside the other one and beside a copy of
    itself. A score without randomness need not wait for the generators: only where it moves, the
    calls are made again from a fixed state of theirs.

    Raises:
        ScoreError: the other record moved a score, or the score is not repeatable.
    """
    whole = PrivateView.of_records(example)
    if not whole.can_take or not whole.count:
        return
    places = ([0, whole.count - 1], [0, 0], [whole.count - 1] * 2)
    pair, *alike = (whole.take(torch.tensor(each, device="cpu")) for each in places)
    with mute_warnings():
        for call in (ask, _called):
            before, *after = _all_scores(score, subject, [pair, *alike], call)
            if before is None or all(
                own is None or _equal(before[place], own[place]) for place, own in enumerate(after)
            ):
                return
        if not _equal(before, _scores_or_none(score, subject, pair)):
            raise ScoreError(_NOT_REPEATABLE.format(2))
    raise ScoreError(
        "score does not score each record by itself: of two public records, replacing one by a copy"
        f" of the other moved the other's score. {_FIX}"
    )


def try_one(score: Score, subject: Any, example: Any) -> None:
    """Where scores get one record at a time: try one public record, with a copy of the subject.

    Raises:
        ScoreError: the score raises on it, or the subject cannot be copied.
    """
    record = PrivateView.of_records(example).single(0).records
    try:
        own_score, own_subject = copy.deepcopy((score, subject))
        found = _scores(own_score(own_subject, record))
    except Exception as cause:
        if isinstance(cause, INTERRUPTS):
            raise
        remedy = (
            "The curator gives it one record at a time, and a copy of the model (copy.deepcopy)"
            " each time."
        )
        raise ScoreError(
            f"score must score a single record. On one public record it raised {cause!r}. {remedy}"
        ) from cause
    if found.shape[:1] != (1,):
        raise ScoreError(
            "score must score a single record. For one public record it returned"
            f" {describe_result(found)}."
        )


def require_per_record(
    score: Score, subject: Any, view: PrivateView, *, trials: int, seed: int, parts: bool = False
) -> None:
    """Require that changing some records leaves every other one's score the same to the last bit;
    for `examine`, and for `dpbo.testing.check_per_record` on records of the caller's choice.

    Half of the records are replaced by others, and the rest must keep their scores
    (`_require_unmoved`). Tables are cast to the form of `view` before, as the curator casts private
    ones.

    Args:
        score: `score(subject, records)`.
        subject: what is scored.
        view: public records that can be taken apart, at least two.
        trials: how many halves are replaced, besides the first and the last one.
        seed: chooses these halves.
        parts: whether records are also left out.

    Raises:
        AssertionError: says which change moved the score of a record that stayed, and by how much;
            or the score is not repeatable.
    """

    def scores_of(records: Any) -> Any:
        return _scores_or_none(score, subject, records)

    before = _scores(_called(score, subject, view.records))
    assert len(before) == view.count, f"score returned {len(before)} rows for {view.count} records"
    assert _equal(before, _scores(_called(score, subject, view.records))), _NOT_REPEATABLE.format(
        view.count
    )
    rng = np.random.default_rng(seed)
    copies = math.ceil(_LEAST / view.count)
    tried = np.arange(view.count * copies)
    pool = _with_hostile(view, tried // copies)
    orders = [tried, tried[::-1], *(rng.permutation(tried) for _ in range(trials))]
    compared = sum(_require_unmoved(scores_of, pool, order) for order in orders)
    assert compared, "the score raised on every neighbour: nothing could be compared"
    if not parts:
        return
    for size in sorted({1, 2, 7, view.count // 2, view.count - 1} & set(range(1, view.count))):
        chosen = torch.from_numpy(np.sort(rng.choice(view.count, size=size, replace=False)))
        after = scores_of(view.take(chosen))
        if after is not None:
            _require_equal(
                before[chosen.numpy()], after, f"leaving out {view.count - size} records"
            )


def _with_hostile(view: PrivateView, places: Places) -> PrivateView:
    """The records at these places, in their own form, and one more of each of `_HOSTILE`."""
    rows = np.append(places, np.zeros(len(_HOSTILE), dtype=places.dtype))
    records = view.take(torch.from_numpy(rows))
    form = Form.of(records) if any(map(_is_loose, leaves(records))) else None
    records = map_leaves(records, _put)
    return PrivateView.of_records(records if form is None else form.cast(records)[0])


def _require_unmoved(scores_of: Callable[[Any], Any], pool: PrivateView, order: Places) -> int:
    """Replace the first half of the records by a copy of another one, a missing one, a low one and
    a high one, in all columns and in some of them (`_sets_of_columns`).

    This is done from three starts, which have in these columns:

    - copies of the records that stay, in that half: so each of these shares its group with one that
      then differs from it;
    - one record's cells in all records, but a missing cell in one that stays: what fills it is a
      statistic of the others, such as the mean or the mode;
    - the same with a high cell: an outlier, where no other is missing.

    Args:
        scores_of: the scores of records, or None where there are none.
        pool: the records, and the hostile ones after them.
        order: of the records; the first half is replaced.

    Returns how many times scores could be compared; raises AssertionError where one moved.
    """
    count = len(order)
    half, kept = np.split(order, [math.ceil(count / 2)])
    missing, low, high = range(count, pool.count)
    pairs = np.arange(count)
    pairs[half] = np.resize(kept, len(half))
    starts = [pairs]
    for odd in (missing, high):
        alike = np.full(count, kept[-1])
        alike[kept[0]] = odd
        starts.append(alike)
    changes = {"copies of another one": kept[0], "missing ones": missing}
    changes |= {"low ones": low, "high ones": high}

    def replaced(start: Places, by: int) -> Any:
        places = start.copy()
        places[half] = by
        return pool.take(torch.from_numpy(places))

    begun = [pool.take(torch.from_numpy(start)) for start in starts]
    changed = [{name: replaced(start, by) for name, by in changes.items()} for start in starts]
    plain = begun[0]
    compared = 0
    for columns in _sets_of_columns(sum(map(_width, leaves(plain)))):
        for start, neighbours in zip(begun, changed, strict=True):
            before = scores_of(_mixed(plain, start, columns))
            if before is None:
                continue
            for name, neighbour in neighbours.items():
                after = scores_of(_mixed(plain, neighbour, columns))
                if after is None:
                    continue
                compared += 1
                what = f"replacing half of the records by {name} in columns {columns[:3].tolist()}"
                _require_equal(before[kept], after[kept], what)
    return compared


def _sets_of_columns(width: int) -> Iterator[Places]:
    """All columns, and sets such that of any two columns one set has the first and not the second:
    each alone where they are few, else those whose places have one binary digit in common.

    What is computed over groups moves where the column by which one groups stays, and that of which
    one takes the mean does not.
    """
    places = np.arange(width)
    yield places
    if width <= _SINGLY:
        yield from places[:, None] if width > 1 else ()
        return
    for digit in range((width - 1).bit_length()):
        for value in (0, 1):
            yield places[(places >> digit) & 1 == value]


def _width(part: Any) -> int:
    """Number of columns of a table, or of a matrix of numbers; 1 of anything else."""
    if getattr(part, "ndim", 0) == 2 and not hasattr(part, "tocsr"):
        return int(part.shape[1])
    return 1


def _mixed(records: Any, others: Any, columns: Places) -> Any:
    """The records with these columns of the others. Columns are counted through all parts."""
    given = iter(leaves(others))
    start = 0

    def mixed(part: Any) -> Any:
        nonlocal start
        other = next(given)
        width = _width(part)
        taken = columns[(columns >= start) & (columns < start + width)] - start
        start += width
        if len(taken) in (0, width):
            return other if len(taken) else part
        if not hasattr(part, "iloc"):
            changed = _copy_of(part)
            changed[:, taken] = other[:, taken]
            return changed
        import pandas as pd

        # One by one they would take time with the square of the width.
        table = pd.concat([part, other.set_axis(part.index)], axis=1)
        places = np.arange(width)
        places[taken] += width
        table = table.iloc[:, places]
        table.columns = part.columns
        return table

    return map_leaves(records, mixed)


def _is_loose(part: Any) -> bool:
    """Whether a cell can be of a type of its own."""
    kind = part.dtype.kind if isinstance(part, np.ndarray) else ""
    return hasattr(part, "iloc") or isinstance(part, list) or kind not in "biufc"


def _copy_of(part: Any) -> Any:
    return part.clone() if isinstance(part, Tensor) else part.copy()


def _put(part: Any) -> Any:
    """A copy of the part whose last rows have the cells of `_HOSTILE`, where it can hold them."""
    first = count_records(part) - len(_HOSTILE)
    if isinstance(part, list):
        return [*part[:first], *map(_sample_of, part[first:], _HOSTILE)]
    if getattr(getattr(part, "dtype", None), "names", None):
        return part
    if hasattr(part, "iloc"):
        columns = columns_of(part)
        cells = [[_fitting(column, cell) for column in columns] for cell in _HOSTILE]
        rows = np.array(cells, dtype=object)
        objects = part.astype(object)
        objects.iloc[first:] = rows if part.ndim == 2 else rows[:, 0]
        return objects
    if hasattr(part, "tocsr"):
        changed = part.tolil(copy=True)
    elif _is_loose(part):
        # numpy makes whole numbers of dates that become objects, so they are taken one by one
        changed = np.fromiter(part.reshape(-1), object, part.size).reshape(part.shape)
    else:
        changed = _copy_of(part)
    for row, cell in enumerate(_HOSTILE, first):
        value = _fitting(part, cell)
        if value is not None or _is_loose(part):
            changed[row] = value
    return changed.tocsr() if hasattr(part, "tocsr") else changed


def _sample_of(sample: Any, cell: _Cell) -> Any:
    """A sample of a list with this in each of its places. Whole numbers stay, or are missing: which
    other samples have in the same place is not known."""

    def put(part: Any) -> Any:
        if isinstance(part, list):
            return [_sample_of(each, cell) for each in part]
        if isinstance(part, (np.ndarray, Tensor)):
            changed = _copy_of(part)
            if isinstance(value := _fitting(part, cell), (int, float)):
                changed[...] = value
            return changed
        if isinstance(part, float):
            return cell.real
        return part if isinstance(part, int) and cell.text is not None else cell.text

    return map_leaves(sample, put)


def _fitting(part: Any, cell: _Cell) -> Any:
    """What the dtype of an array, a tensor or a column can hold of this; None for none.

    Whole numbers stay between those that are there: one beyond them can end a process, as a label
    or an index, or keep it busy for ever, as a count.
    """
    tensor = isinstance(part, Tensor)
    kind = "" if tensor else part.dtype.kind
    if kind == "f" or (tensor and part.is_floating_point()):
        ends: Any = torch.finfo(part.dtype) if tensor else np.finfo(part.dtype)
        return min(max(cell.real, float(ends.min)), float(ends.max))
    if kind == "c" or (tensor and part.is_complex()):
        return None
    if tensor or kind in "biu":
        missing = math.isnan(cell.real)
        return None if missing else int(min(max(cell.real, int(part.min())), int(part.max())))
    return cell.text


def _scores_or_none(score: Score, subject: Any, records: Any) -> Any:
    """The scores of these records; None where the score raises or gives anything but a number a
    record: the curator would count the failing records as the worst score."""
    return _all_scores(score, subject, [records], _called)[0]


def _all_scores(
    score: Score, subject: Any, tables: Sequence[Any], call: Callable[[Score, Any, Any], Any]
) -> list[Any]:
    """`_scores_or_none` of several tables. Tensors are fetched from their device at once, so that
    it is waited for once."""
    results = []
    for records in tables:
        try:
            result = call(score, subject, records)
            results.append(_scores(result) if isinstance(result, Iterator) else result)
        except INTERRUPTS:
            raise
        except BaseException:
            results.append(None)
    tensors = [result for result in results if isinstance(result, Tensor)]
    forms = {(each.device, each.dtype, each.shape) for each in tensors}
    if len(tensors) == len(results) and len(forms) == 1:
        results = [*torch.stack(tensors).detach().cpu()]
    found = []
    for result, records in zip(results, tables, strict=True):
        scores = None
        with contextlib.suppress(Exception):
            scores = _scores(result)
            numeric = scores.dtype.kind in "biuf" and scores.ndim > 0
            if not numeric or len(scores) != count_records(records):
                scores = None
        found.append(scores)
    return found


def _scores(result: Any) -> NDArray[Any]:
    if isinstance(result, Iterator):
        return np.concatenate(list(map(_scores, result)))
    return np.asarray(on_host(result))


def _called(score: Score, subject: Any, records: Any) -> Any:
    """What the score returns where every generator is in a fixed state; batches are taken within
    it, too."""
    with fix_generators():
        result = ask(score, subject, records)
        if isinstance(result, Iterator):
            return iter([tensor_of(batch).clone() for batch in result])
        return result


def _equal(before: Any, after: Any) -> bool:
    floats = before.dtype.kind == "f" and after is not None and after.dtype.kind == "f"
    return after is not None and np.array_equal(before, after, equal_nan=floats)


def _require_equal(before: Any, after: Any, change: str) -> None:
    if _equal(before, after):
        return
    moved = "a change of form"
    if before.shape == after.shape:
        with np.errstate(all="ignore"):
            moves = np.abs(before.astype(float) - after.astype(float))
        moved = f"up to {np.fmax.reduce(moves, axis=None, initial=0.0):.3g}"
    raise AssertionError(
        f"{change} moved other records' scores by {moved}: the score does not treat each record by"
        " itself, so no sensitivity holds"
    )
