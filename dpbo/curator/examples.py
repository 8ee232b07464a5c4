"""Tries a score on public example records before anything is charged.

What cannot be tried is refused, never passed over: a score that gives other numbers on the same
records is no function of them. So every call here starts from the same state of torch's, numpy's
and Python's generators, which are put back afterwards. And each model is tried: a score may treat
each record by itself with one model, and not with the next, such as one that was left in training
mode.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.curator.labels import on_host
from dpbo.curator.public_form import Form
from dpbo.curator.records import PrivateView, count_records, leaves, map_leaves
from dpbo.errors import ScoreError
from dpbo.isolation import fix_generators, mute_warnings, raised_by_signal
from dpbo.queries.score_evaluation import ask, describe_result, tensor_of

Score = Callable[[Any, Any], Any]
# Their places.
Columns = NDArray[np.int64]
_EXTREMES = (1e6, -1e6, 1e30, -1e30, float("nan"))
_HUGE = 1e30
# a mean over a few records that moves by this is far from all of them
_LARGE = 1e6
# texts that come before and after most others, so that they shift the codes of categories
_FIRST_AND_LAST = ("", "\uffff")
# Columns of a table that are tried one by one, and tries of a wider one's: each of either costs as
# much as the table is wide.
_SINGLY = 32
_TRIES = 64
_HOSTILE = (None, math.nan, _HUGE, -_HUGE, 10**9, -(10**9), 0, *_FIRST_AND_LAST)
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


def examine(
    score: Score, subject: Any, example: Any, ranges: Sequence[tuple[float, float]]
) -> None:
    """Refuse a score whose releases would be useless, or would get noise for the wrong sensitivity:
    one that is NaN on all records, out of its range on most, not repeatable, or not computed record
    by record.

    Args:
        score: `score(subject, records)`.
        subject: what is scored, such as a fitted model.
        example: public records.
        ranges: (lower, upper) of each metric; empty, the range is not checked.

    Raises:
        ScoreError: says what the score returned and how to mend it.
    """
    view = PrivateView.of_records(example)
    with mute_warnings():
        result, again = (_called(score, subject, view.records) for _ in range(2))
    scores, repeated = (
        tensor_of(found).cpu().double().reshape(view.count, -1) for found in (result, again)
    )
    returned = (
        f"on the {view.count} records of Curator(..., example=) it returned"
        f" {describe_result(result, scores)}"
    )
    if view.count and not bool(scores.isfinite().any(0).all()):
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
        if 2 * outside > view.count:
            fix = (
                "Give the range that records' scores have, or scale them to it. If only this point"
                " is out of range, begin at another."
            )
            beyond = f"score lies outside score_range ({lower:g}, {upper:g}) for {outside} records"
            raise MostlyClipped(f"{beyond}, where it is clipped: {returned}. {fix}")
    if not torch.equal(scores.nan_to_num(), repeated.nan_to_num()):
        raise ScoreError(_NOT_REPEATABLE.format(view.count))
    if view.can_take and view.count > 1:
        try:
            with mute_warnings():
                require_per_record(score, subject, view, trials=1, seed=0, wild=False)
        except AssertionError as moved:
            raise ScoreError(
                f"score does not score each record by itself: {returned}, and {moved}. {_FIX}"
            ) from None


class Pair(NamedTuple):
    """Two public records, changed in four ways.

    Attributes:
        records: as they are, with the first one missing, with the second one huge, and with both;
            None where the records' form cannot hold that.
        alike: the first one twice.
    """

    records: tuple[Any, Any, Any, Any]
    alike: Any


def pair_of(example: Any) -> Pair | None:
    """The first and the last of the example records; None where these cannot be taken apart."""
    whole = PrivateView.of_records(example)
    if not whole.can_take or not whole.count:
        return None
    form = _form_of(example)
    pair = whole.take(torch.tensor([0, whole.count - 1], device="cpu"))
    first = _with_row(pair, 0, form, None)
    second = _with_row(pair, 1, form, _HUGE)
    both = None if first is None else _with_row(first, 1, form, _HUGE)
    alike = whole.take(torch.tensor([0, 0], device="cpu"))
    return Pair((pair, first, second, both), alike)


def examine_pair(score: Score, subject: Any, pair: Pair | None) -> None:
    """The cheap part of `examine`, for every model: two public records, the first as it is or
    missing, the second as it is or huge.

    Neither's score may move when the other one is replaced. That takes four calls of the score.
    Where it cannot take a huge record, the second one is a copy of the first. Where a score does
    move, the calls are made again from a fixed state of the generators, which a score without
    randomness need not wait for.

    Raises:
        ScoreError: the other record's score moved, or the score is not repeatable.
    """
    if pair is None:
        return
    records = [*pair.records]
    with mute_warnings():
        results = _in_one_transfer([_result_or_none(score, subject, each) for each in records])
        found = list(map(_checked_or_none, results, records))
        if found[2] is None:
            records[2] = pair.alike
            alike = _result_or_none(score, subject, pair.alike)
            found[2:] = _checked_or_none(alike, pair.alike), None
        if _moved_in_pair(found) is None:
            return
        records[3] = None if found[3] is None else records[3]
        found = [_scores_or_none(score, subject, each) for each in records]
        if found[0] is not None and not _equal(
            found[0], _scores_or_none(score, subject, records[0])
        ):
            raise ScoreError(_NOT_REPEATABLE.format(2))
        if (moved := _moved_in_pair(found)) is not None:
            raise ScoreError(
                f"score does not score each record by itself: of two public records, {moved}."
                f" {_FIX}"
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
        if raised_by_signal(cause):
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


def _moved_in_pair(found: Sequence[Any]) -> str | None:
    """How one record moved the other's score; None where it did not. `found`: scores of the pair as
    it is, with the first record missing, with the second one huge, and with both; None where the
    score could not take them."""
    for before, after, other, change in (
        (0, 2, 0, "another one"),
        (0, 1, 1, "a missing one"),
        (1, 3, 0, "another one"),
        (2, 3, 1, "a missing one"),
    ):
        if found[before] is None or found[after] is None:
            continue
        own = found[before][[other]]
        moved = found[after][[other]]
        if not _equal(own, moved):
            return f"replacing one by {change} moved the other's score by {_largest(own, moved)}"
    return None


def require_per_record(
    score: Score,
    subject: Any,
    view: PrivateView,
    *,
    trials: int,
    seed: int,
    parts: bool = False,
    wild: bool = True,
) -> None:
    """Require that changing one record leaves every other one's score the same to the last bit; for
    `examine`, and for `dpbo.testing.check_per_record` on records of the caller's choice.

    A record is replaced by another one and by hostile ones: huge numbers, missing values, texts
    that come first or last, in all of its cells, or in one where the score cannot take that. Tables
    are cast to the form of `view` afterwards, as the curator casts private ones. A second record is
    missing meanwhile, because what stands in for missing values often is a mean over the others.
    And each record is scored
    among copies of itself: alone, but for the number of records.

    Args:
        score: `score(subject, records)`.
        subject: what is scored.
        view: public records that can be taken apart.
        trials: how many records are changed, besides those of lowest and highest score.
        seed: chooses these records.
        parts: whether records are also left out.
        wild: whether whole numbers may leave the range that the records have: a label or an index
            beyond it can end a process.

    Raises:
        AssertionError: names the record that moved another one's score, and by how much; or the
            score is not repeatable.
    """
    before = _scores(_called(score, subject, view.records))
    assert len(before) == view.count, f"score returned {len(before)} rows for {view.count} records"
    assert _equal(before, _scores(_called(score, subject, view.records))), _NOT_REPEATABLE.format(
        view.count
    )
    scores_of = functools.partial(_scores_or_none, score, subject)
    compared = 0
    rng = np.random.default_rng(seed)
    form = _form_of(view.records)
    first = before.reshape(len(before), -1)[:, 0]
    drawn = rng.choice(len(before), size=min(trials, len(before)), replace=False).tolist()
    for turn, changed in enumerate(
        dict.fromkeys([int(first.argmin()), int(first.argmax()), *drawn])
    ):
        compared += _require_unmoved(scores_of, view, changed, rng, form, wild)
        if turn < 2:
            gap = _with_row(view.records, (changed + 1) % view.count, form, None)
            if gap is not None:
                among = PrivateView.of_records(gap)
                compared += _require_unmoved(scores_of, among, changed, rng, form, wild)
            _require_unmoved_among_alike(scores_of, view, changed, form)
        copies = scores_of(view.take(torch.full((view.count,), changed, device="cpu")))
        if copies is not None:
            _require_equal(
                before[[changed]],
                copies[[changed]],
                f"putting record {changed} in the place of all others",
                "its own score",
            )
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
    changed: int,
    rng: np.random.Generator,
    form: Form | None,
    wild: bool,
) -> int:
    """Replace record `changed`. Returns how many times the others could be compared; raises
    AssertionError where one moved."""
    compared = 0
    others = np.delete(np.arange(view.count), changed)
    before = scores_of(view.records)
    if before is None:
        return 0

    def stays(name: str, neighbour: Any) -> bool:
        after = scores_of(neighbour)
        if after is not None:
            _require_equal(before[others], after[others], f"replacing record {changed} by {name}")
        return after is not None

    failed: list[Any] = []
    for name, neighbour in _replacements(view, changed, rng, form, wild):
        if stays(name, neighbour):
            compared += 1
            continue
        # It cannot take all of these cells at once. Many are alike once they are cast: among
        # numbers each text is missing.
        if not any(_are_alike(neighbour, earlier) for earlier in failed):
            failed.append(neighbour)
            compared += _compared_by_columns(stays, view, form, name, neighbour)
    return compared


def _are_alike(records: Any, others: Any) -> bool:
    """Whether tables, columns and numbers have the same cells; what else there is counts as
    different."""

    def alike(part: Any, other: Any) -> bool:
        if hasattr(part, "iloc"):
            return bool(part.equals(other))
        if isinstance(part, Tensor):
            return torch.equal(part, other)
        return isinstance(part, np.ndarray) and part.dtype.kind in "biuf" and _equal(part, other)

    return all(map(alike, leaves(records), leaves(others)))


def _require_unmoved_among_alike(
    scores_of: Callable[[Any], Any], view: PrivateView, changed: int, form: Form | None
) -> None:
    """As `_require_unmoved`, where the records share the cells of a column.

    What is computed over groups, such as the mean income of a zip code, moves where few public
    records share no group. In a wide table they share those of a quarter of the columns: that by
    which one groups, and not that of which one takes the mean (`_separated`).
    """
    others = np.delete(np.arange(view.count), changed)
    width = max((part.shape[1] for part in leaves(view.records) if _is_frame(part)), default=0)
    alike = [
        part.iloc[[changed] * view.count] if _is_frame(part) else None
        for part in leaves(view.records)
    ]
    replaced = {cell: _with_row(view.records, changed, form, cell) for cell in (_LARGE, -_LARGE)}
    for columns in _separated(width):
        before = scores_of(_with_columns_of(view.records, alike, columns))
        if before is None:
            continue
        for cell, neighbour in replaced.items():
            if neighbour is None:
                continue
            after = scores_of(_with_columns_of(neighbour, alike, columns))
            if after is not None:
                what = (
                    f"replacing record {changed} by {cell:g} among records that share"
                    f" {_told(columns)}"
                )
                _require_equal(before[others], after[others], what)


def _separated(width: int) -> list[Columns]:
    """Sets of columns, such that of any two columns one set has the first and not the second: each
    alone in a table of few.

    In a wider one, columns whose places have one digit in common, to base 4: two places differ in a
    digit. That takes sets by the logarithm of the width.
    """
    places = np.arange(width)
    if width <= _SINGLY:
        return list(places[:, None])
    sets = []
    step = 1
    while step < width:
        sets += [places[places // step % 4 == digit] for digit in range(4)]
        step *= 4
    return list(filter(len, sets))


def _told(columns: Columns) -> str:
    """These columns, in words."""
    if len(columns) == 1:
        return f"column {columns[0]}"
    return f"{len(columns)} columns, such as {columns[0]}"


def _is_frame(part: Any) -> bool:
    return hasattr(part, "iloc") and part.ndim == 2


def _replacements(
    view: PrivateView, changed: int, rng: np.random.Generator, form: Form | None, wild: bool
) -> Iterator[tuple[str, Any]]:
    """The records with one of them replaced: by another one of them, by numbers in tensors and
    arrays, by hostile cells elsewhere."""
    positions = torch.arange(view.count, device="cpu")
    positions[changed] = (changed + int(rng.integers(1, view.count))) % view.count
    yield "another one", view.take(positions)
    for value in (0.0, *_EXTREMES):
        neighbour = view.take(torch.arange(view.count, device="cpu"))
        if _overwrite_all(neighbour, changed, value, wild):
            yield "zeros" if value == 0.0 else f"{value:g}", neighbour
    for cell in _HOSTILE:
        neighbour = _with_cells(view.records, changed, form, cell)
        if neighbour is not None:
            yield repr(cell), neighbour


def _with_row(records: Any, row: int, form: Form | None, cell: Any) -> Any:
    """A copy of the records with every cell of one of them replaced, also its numbers; None where
    no part can hold this."""
    value = math.nan if cell is None else float(cell)
    changed = map_leaves(
        records, lambda part: part.clone() if isinstance(part, Tensor) else copy.copy(part)
    )
    numeric = _overwrite_all(changed, row, value, wild=False)
    found = _with_cells(changed, row, form, cell)
    if found is None and numeric:
        return changed
    return found


def _with_cells(records: Any, row: int, form: Form | None, cell: Any) -> Any:
    """The records with this in the cells of one of them: in tables, lists and arrays of anything
    but numbers; None where it cannot be put there."""
    fits = False

    def put(part: Any) -> Any:
        nonlocal fits
        changed = _put(part, row, cell)
        if changed is None:
            return part
        fits = True
        return changed

    neighbour = map_leaves(records, put)
    if not fits:
        return None
    if form is None:
        return neighbour
    return form.cast(neighbour)[0]


def _compared_by_columns(
    stays: Callable[[str, Any], bool], view: PrivateView, form: Form | None, name: str, hostile: Any
) -> int:
    """How many replacements that are hostile in some columns alone the score could take. A form
    casts each column by itself, so `hostile`, the replacement in all columns, has each of them
    already.

    Each column of a table of few is tried. A wider one's are tried in halves, and what the score
    cannot take in halves again: among columns that it can take, it finds the few that it cannot.
    """
    widths = [part.shape[1] for part in leaves(view.records) if _has_loose_columns(part)]
    if name not in map(repr, _HOSTILE) or not widths:
        return 0
    plain = view.records if form is None else form.cast(view.records)[0]
    places = np.arange(max(widths))
    untried = np.array_split(places, len(places) if len(places) <= _SINGLY else 2)
    compared = 0
    for _ in range(_TRIES):
        if not untried:
            break
        columns = untried.pop(0)
        if stays(f"{name} in {_told(columns)}", _with_columns_of(plain, leaves(hostile), columns)):
            compared += 1
        elif len(columns) > 1:
            untried += np.array_split(columns, 2)
    return compared


def _has_loose_columns(part: Any) -> bool:
    return getattr(part, "ndim", 0) == 2 and not hasattr(part, "tocsr") and _is_loose(part)


def _with_columns_of(records: Any, others: Iterable[Any], columns: Columns) -> Any:
    """The records with these columns of other parts, and with all of those that have no columns. A
    part stays where the other one is None."""
    given = iter(others)

    def mixed(part: Any) -> Any:
        other = next(given)
        if other is None:
            return part
        if not _has_loose_columns(part):
            return other
        taken = columns[columns < part.shape[1]]
        if not _is_frame(part):
            changed = part.copy()
            changed[:, taken] = other[:, taken]
            return changed
        import pandas as pd

        # One by one they would take time with the square of the width.
        table = pd.concat([part, other.set_axis(part.index)], axis=1)
        places = np.arange(part.shape[1])
        places[taken] += part.shape[1]
        table = table.iloc[:, places]
        table.columns = part.columns
        return table

    return map_leaves(records, mixed)


def _is_loose(part: Any) -> bool:
    """Whether a cell can be of a type of its own."""
    kind = part.dtype.kind if isinstance(part, np.ndarray) else ""
    return hasattr(part, "iloc") or isinstance(part, list) or kind not in "biufc"


def _put(part: Any, row: int, cell: Any) -> Any:
    """The part with this in the cells of a row; None where it cannot be put there."""
    if hasattr(part, "tocsr"):
        if isinstance(cell, str):
            return None
        matrix = part.tolil(copy=True)
        with np.errstate(all="ignore"):
            matrix[row, :] = np.nan_to_num(np.array(cell, dtype=np.float64)).astype(part.dtype)
        return matrix.tocsr()
    if not _is_loose(part):
        return None
    if isinstance(part, list):
        return [*part[:row], _sample_of(part[row], cell), *part[row + 1 :]]
    if isinstance(part, np.ndarray) and part.dtype.names:
        changed = part.copy()
        fits = [_assign(changed[name], row, cell) for name in part.dtype.names]
        if any(fits):
            return changed
        return None
    if hasattr(part, "iloc") and part.ndim == 2:
        objects = part.astype(object).to_numpy(copy=True)
        objects[row] = cell
        return type(part)(objects, index=part.index, columns=part.columns, dtype=object)
    if hasattr(part, "iloc"):
        cells = list(part)
        cells[row] = cell
        return type(part)(
            np.fromiter(cells, dtype=object, count=len(cells)),
            index=part.index,
            name=part.name,
            dtype=object,
        )
    # numpy makes whole numbers of dates that become objects, so they are taken one by one
    objects = np.fromiter(part.reshape(-1), object, part.size).reshape(part.shape)
    flat = objects.reshape(len(objects), -1)
    for place in range(flat.shape[1]):
        flat[row, place] = cell
    return flat.reshape(objects.shape)


def _sample_of(sample: Any, cell: Any) -> Any:
    """A sample of a list with this in each of its places, or this itself."""
    if isinstance(sample, dict):
        return {key: _sample_of(part, cell) for key, part in sample.items()}
    if isinstance(sample, (tuple, list)):
        return type(sample)(_sample_of(part, cell) for part in sample)
    if isinstance(sample, (np.ndarray, Tensor)):
        changed = sample.copy() if isinstance(sample, np.ndarray) else sample.clone()
        return changed if _assign(changed, ..., math.nan if cell is None else cell) else sample
    return cell


def _assign(part: Any, place: Any, cell: Any) -> bool:
    """Write into an array or a tensor; False where its dtype cannot hold this."""
    try:
        with np.errstate(all="ignore"):
            part[place] = cell
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return True


def _overwrite_all(records: Any, changed: int, value: float, wild: bool) -> bool:
    """`_overwrite` in each part; False where that means nothing in any."""
    written = [_overwrite(part, changed, value, wild) for part in leaves(records)]
    return any(written)


def _overwrite(part: Any, changed: int, value: float, wild: bool) -> bool:
    """Write `value`, or what is nearest to it in the dtype, into one row of a numeric part; False
    where that means nothing.
    """
    kind = part.dtype.kind if isinstance(part, np.ndarray) else ""
    if isinstance(part, Tensor):
        if part.is_floating_point():
            kind = "f"
        else:
            kind = torch.zeros(0, dtype=part.dtype, device="cpu").numpy().dtype.kind
    if kind == "f":
        part[changed] = value
        return True
    if kind in ("i", "u") and not math.isnan(value):
        ends = torch.iinfo(part.dtype) if isinstance(part, Tensor) else np.iinfo(part.dtype)
        lower, upper = (ends.min, ends.max) if wild else (int(part.min()), int(part.max()))
        part[changed] = int(min(max(value, lower), upper))
        return True
    return False


def _scores_or_none(score: Score, subject: Any, records: Any) -> Any:
    """None without records, and where the score raises or gives anything but a number a record: the
    curator would count the failing records as the worst score."""
    return _checked_or_none(_result_or_none(score, subject, records, _called), records)


def _result_or_none(
    score: Score, subject: Any, records: Any, call: Callable[[Score, Any, Any], Any] = ask
) -> Any:
    """What the score returns, batches joined; None without records, and where it raises."""
    if records is None:
        return None
    try:
        result = call(score, subject, records)
        if isinstance(result, Iterator):
            return _scores(result)
        return result
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or raised_by_signal(error):
            raise
        # A score may end the program on a record; here it is a public one.
        return None


def _in_one_transfer(results: list[Any]) -> list[Any]:
    """The same results; tensors of one form are fetched from their device at once, so that it is
    waited for once.
    """
    tensors = [result for result in results if result is not None]
    if not all(isinstance(result, Tensor) and result.ndim for result in tensors):
        return results
    if len({(result.device, result.dtype, result.shape[1:]) for result in tensors}) != 1:
        return results
    parts = iter(torch.cat(tensors).detach().cpu().split_with_sizes(list(map(len, tensors))))
    return [None if result is None else next(parts) for result in results]


def _checked_or_none(result: Any, records: Any) -> Any:
    """The scores of these records; None for anything but a number a record."""
    if result is None:
        return None
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


def _form_of(records: Any) -> Form | None:
    """The form of public records that hold tables or objects; None where they have none that could
    change."""
    if any(map(_is_loose, leaves(records))):
        return Form.of(records)
    return None


def _equal(before: Any, after: Any) -> bool:
    floats = before.dtype.kind == "f" and after is not None and after.dtype.kind == "f"
    return after is not None and np.array_equal(before, after, equal_nan=floats)


def _largest(before: Any, after: Any) -> str:
    """The largest difference, in words."""
    if before.shape != after.shape:
        return "a change of form"
    return f"up to {float(np.nanmax(np.abs(before.astype(float) - after.astype(float)))):.3g}"


def _require_equal(
    before: Any, after: Any, change: str, whose: str = "other records' scores"
) -> None:
    if not _equal(before, after):
        raise AssertionError(
            f"{change} moved {whose} by {_largest(before, after)}: the score does not treat each"
            " record by itself, so no sensitivity holds"
        )
