"""One digest, four levels of detail: what each tells apart, and what it takes for the same."""

import functools

import numpy as np
import pytest
import torch

from dpbo.fingerprint import Detail, fingerprint
from dpbo.queries import Query

DETAILS: tuple[Detail, ...] = ("names", "code", "references", "content")
TABLE = torch.tensor([1.0, 2.0])


def adds(number):
    def added(x):
        return x + number

    return added


def looks_up(n):
    return looks_up(n - 1) if n else TABLE


@pytest.mark.parametrize("detail", DETAILS)
def test_values_count_with_type_and_every_bit(detail):
    values = [1, 1.0, "1", True, None, [1, 2], (1, 2), {"a": 1, "b": 2}, {"a": 2, "b": 1}, {1, 2}, TABLE, TABLE.double(), TABLE.numpy(),
              np.array(["a", None], dtype=object), adds, torch.add, torch.nn.Linear, TABLE.bfloat16()]  # fmt: skip
    by_type = 2 if detail == "code" else 0  # three tensors count as one there: a ledger keeps no data
    assert len({fingerprint(value, detail=detail) for value in values}) == len(values) - by_type
    assert fingerprint(np.float64(0.5), detail=detail) == fingerprint(0.5, detail=detail)
    assert fingerprint(values) != fingerprint(values, key=b"k")
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert (fingerprint(one, detail=detail) == fingerprint(other, detail=detail)) == (detail != "content"), "the order is content"


class Clipped(Query):
    """A query that is no data class: its public inputs tell it from others."""

    sensitivity = _evaluate = affine = None  # type: ignore[assignment]

    def __init__(self, clip):
        self.clip = clip

    def public_inputs(self):
        return {"clip": self.clip}


def test_queries_differ_in_their_public_inputs_and_what_a_ledger_keeps_holds_no_data():
    assert len({fingerprint(Clipped(clip)) for clip in (1.0, 1.0, 1e6)}) == 2, "ranks must not ask with other clips"
    held = functools.partial(adds, TABLE), functools.partial(adds, TABLE + 1)
    assert fingerprint(held[0], detail="code") == fingerprint(held[1], detail="code")
    bound = [type("Costs", (), {"of": lambda self: self.costs, "costs": costs})().of for costs in (1.0, 2.0)]
    assert fingerprint(bound[0], detail="code") == fingerprint(bound[1], detail="code")


def test_functions_count_by_name_code_references_or_all_they_close_over(monkeypatch):
    for detail, number, box in zip(DETAILS, (False, False, True, True), (False, False, False, True), strict=True):
        told = [fingerprint(adds(held), detail=detail) for held in (1, 1, 2)], [fingerprint(adds([held]), detail=detail) for held in (1, 2)]
        assert told[0][0] == told[0][1]
        assert (told[0][0] != told[0][2], told[1][0] != told[1][1]) == (number, box), detail
    before = [fingerprint(looks_up, detail=detail) for detail in DETAILS]
    monkeypatch.setitem(globals(), "TABLE", torch.tensor([1.0, 3.0]))
    after = [fingerprint(looks_up, detail=detail) for detail in DETAILS]
    assert [a != b for a, b in zip(before, after, strict=True)] == [False, False, True, False], "no data in what a ledger keeps"
