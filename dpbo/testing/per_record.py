"""Does a score keep its promise: is every record scored by itself?

A score that normalises by the batch, ranks, or averages makes one record change the others' numbers, and no clipping bounds that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpbo.curator.examples import require_per_record
from dpbo.curator.records import PrivateView
from dpbo.privacy import Adjacency, PrivacyUnit
from dpbo.validation import Count, Seed, checked


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
    parts = grouped or adjacency is Adjacency.ADD_OR_REMOVE_ONE
    require_per_record(score, subject, view, trials=trials, seed=seed, parts=parts)
