"""Tries a score on public records before anything is charged: one trial of whether it scores each
record by itself.

A score that gives other numbers on the same records is no function of them, and is refused. So
every call here starts from the same state of torch's, numpy's and Python's generators, which are
put back afterwards.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.curator.labels import on_host
from dpbo.curator.public_form import Form
from dpbo.curator.records import PrivateView, count_records, leaves, map_leaves
from dpbo.errors import ScoreError
from dpbo.isolation import INTERRUPTS, fix_generators, mute_warnings
from dpbo.queries.score_evaluation import ask, describe_result, tensor_of

Score = Callable[[Any, Any], Any]
# Places of records, or of columns.
Places = NDArray[np.int64]
# Columns that are tried one by one. Those of more are tried in sets, because each try costs as much
# as the records are wide.
_SINGLY = 16
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
    """What is put into a cell, by the kind of its column."""

    real: float
    whole: int | None
    text: str | None


_MISSING = _Cell(math.nan, None, None)
# The texts come before and after most others, so that they shift the codes of categories.
_HOSTILE = {
    "a missing one": _MISSING,
    "a low one": _Cell(-1e6, -(10**9), ""),
    "a high one": _Cell(1e30, 10**9, "\uffff"),
}


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

    Half of the records are replaced by copies of the others. One of the copies is then replaced by
    another record, by a missing one, a low one and a high one, in all columns and in some of them
    (`_sets_of_columns`): so a record shares its group with one that differs from it elsewhere. All
    this is done again where one of the kept records is missing in the same columns, because what
    stands in for missing values often is a mean over the others. Tables are cast to the form of
    `view` afterwards, as the curator casts private ones.

    Args:
        score: `score(subject, records)`.
        subject: what is scored.
        view: public records that can be taken apart, at least two.
        trials: how many records are changed, besides the first and the last one.
        seed: chooses these records, and the halves.
        parts: whether records are also left out.

    Raises:
        AssertionError: names the record that moved another one's score, and by how much; or the
            score is not repeatable.
    """

    def scores_of(records: Any) -> Any:
        return _scores_or_none(score, subject, records)

    before = _scores(_called(score, subject, view.records))
    assert len(before) == view.count, f"score returned {len(before)} rows for {view.count} records"
    assert _equal(before, _scores(_called(score, subject, view.records))), _NOT_REPEATABLE.format(
        view.count
    )
    rng = np.random.default_rng(seed)
    form = Form.of(view.records) if any(map(_is_loose, leaves(view.records))) else None
    drawn = rng.choice(view.count, size=min(trials, view.count), replace=False).tolist()
    compared = 0
    for turn, changed in enumerate([0, view.count - 1, *drawn]):
        rest = np.delete(np.arange(view.count), changed)
        if turn == 1:
            rest = rest[::-1]
        elif turn:
            rng.shuffle(rest)
        half, kept = np.split(np.array([changed, *rest]), [view.count // 2])
        compared += _require_unmoved(scores_of, view, half, kept, form)
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


def _require_unmoved(
    scores_of: Callable[[Any], Any],
    view: PrivateView,
    half: Places,
    kept: Places,
    form: Form | None,
) -> int:
    """Replace this half of the records by copies of those that are kept, and then its first one.

    Returns how many times scores could be compared; raises AssertionError where one moved.
    """
    compared = 0

    def compare(before: Any, records: Any, others: Places, change: str) -> None:
        nonlocal compared
        if before is None or (after := scores_of(records)) is None:
            return
        compared += 1
        _require_equal(before[others], after[others], change)

    def with_cells(records: Any, row: int, cell: _Cell) -> Any:
        changed = map_leaves(records, lambda part: _put(part, row, cell))
        return changed if form is None else form.cast(changed)[0]

    whole = scores_of(view.records)
    positions = np.arange(view.count)
    # Copies of one record alone change how often each class is there, whatever the classes are.
    for copied in (kept[:1], kept[-1:], np.resize(kept, len(half))):
        positions[half] = copied
        halved = view.take(torch.from_numpy(positions))
        compare(whole, halved, kept, "replacing half of the records by copies of the others")
    changed = int(half[0])
    twin = int(kept[0])
    others = np.delete(np.arange(view.count), changed)
    plain = halved if form is None else form.cast(halved)[0]
    positions[changed] = kept[-1]
    neighbours = {"another one": view.take(torch.from_numpy(positions))}
    neighbours |= {name: with_cells(halved, changed, cell) for name, cell in _HOSTILE.items()}
    gap = with_cells(halved, twin, _MISSING)
    among_gap = {name: with_cells(each, twin, _MISSING) for name, each in neighbours.items()}
    for columns in _sets_of_columns(sum(map(_width, leaves(plain)))):
        for start, changes in ((plain, neighbours), (gap, among_gap)):
            before = scores_of(_mixed(plain, start, columns))
            for name, neighbour in changes.items():
                what = f"replacing record {changed} by {name} in columns {columns[:3].tolist()}"
                compare(before, _mixed(plain, neighbour, columns), others, what)
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


def _put(part: Any, row: int, cell: _Cell) -> Any:
    """A copy of the part with this in the cells of a row, where it can hold that."""
    if isinstance(part, list):
        return [*part[:row], _sample_of(part[row], cell), *part[row + 1 :]]
    if getattr(getattr(part, "dtype", None), "names", None):
        return part
    if hasattr(part, "tocsr"):
        matrix = part.tolil(copy=True)
        with np.errstate(all="ignore"):
            matrix[row, :] = np.nan_to_num(np.array(cell.real)).astype(part.dtype)
        return matrix.tocsr()
    if hasattr(part, "iloc"):
        kinds = [dtype.kind for dtype in (part.dtypes if part.ndim == 2 else [part.dtype])]
        cells = [
            {"f": cell.real, "i": cell.whole, "u": cell.whole}.get(kind, cell.text)
            for kind in kinds
        ]
        objects = part.astype(object)
        objects.iloc[row] = cells if part.ndim == 2 else cells[0]
        return objects
    if _is_loose(part):
        # numpy makes whole numbers of dates that become objects, so they are taken one by one
        objects = np.fromiter(part.reshape(-1), object, part.size).reshape(part.shape)
        objects[row] = cell.text
        return objects
    changed = _copy_of(part)
    if (value := _nearest(part, cell)) is not None:
        changed[row] = value
    return changed


def _sample_of(sample: Any, cell: _Cell) -> Any:
    """A sample of a list with this in each of its places."""

    def put(part: Any) -> Any:
        if isinstance(part, list):
            return [_sample_of(each, cell) for each in part]
        if isinstance(part, (np.ndarray, Tensor)):
            changed = _copy_of(part)
            if (value := _nearest(part, cell)) is not None:
                changed[...] = value
            return changed
        if isinstance(part, float):
            return cell.real
        return cell.whole if isinstance(part, int) else cell.text

    return map_leaves(sample, put)


def _nearest(part: Any, cell: _Cell) -> float | None:
    """The number that the part's dtype can hold; whole numbers stay among those that are there,
    because a label or an index beyond them can end a process. None for none."""
    kind = part.dtype.kind if isinstance(part, np.ndarray) else ""
    if kind == "f" or (isinstance(part, Tensor) and part.is_floating_point()):
        ends: Any = torch.finfo(part.dtype) if isinstance(part, Tensor) else np.finfo(part.dtype)
        return min(max(cell.real, float(ends.min)), float(ends.max))
    if kind == "c" or (isinstance(part, Tensor) and part.is_complex()) or cell.whole is None:
        return None
    return min(max(cell.whole, int(part.min())), int(part.max()))


def _scores_or_none(
    score: Score, subject: Any, records: Any, call: Callable[[Score, Any, Any], Any] | None = None
) -> Any:
    """The scores of these records; None where the score raises or gives anything but a number a
    record: the curator would count the failing records as the worst score."""
    return _all_scores(score, subject, [records], call or _called)[0]


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
    return list(map(_checked_or_none, results, tables))


def _checked_or_none(result: Any, records: Any) -> Any:
    """The scores of these records; None for anything but a number a record."""
    try:
        scores = _scores(result)
    except Exception:
        return None
    numeric = scores.dtype.kind in "biuf" and scores.ndim > 0
    if numeric and len(scores) == count_records(records):
        return scores
    return None


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
