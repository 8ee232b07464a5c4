"""One digest, four levels of detail: what each tells apart, and what it takes for the same."""

import argparse
import dataclasses
import functools
import textwrap
import types
from typing import Any

import numpy as np
import pytest
import torch

from dpbo.fingerprint import Detail, Reached, fingerprint
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
    values = [
        *(1, 1.0, "1", True, None, [1, 2], (1, 2), {1, 2}),
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
        *(TABLE, TABLE.double(), TABLE.bfloat16(), TABLE.numpy()),
        np.array(["a", None], dtype=object),
        *(adds, torch.add, torch.nn.Linear),
    ]
    # three tensors count as one there: a ledger keeps no data
    by_type = 2 if detail == "code" else 0
    assert len({fingerprint(value, detail=detail) for value in values}) == len(values) - by_type
    assert fingerprint(np.float64(0.5), detail=detail) == fingerprint(0.5, detail=detail)
    assert fingerprint(values) != fingerprint(values, key=b"k")
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert (fingerprint(one, detail=detail) == fingerprint(other, detail=detail)) == (
        detail != "content"
    ), "the order is content"


class Clipped(Query):
    """A query that is no data class: its public inputs tell it from others."""

    sensitivity = _evaluate = affine = None  # type: ignore[assignment]

    def __init__(self, clip):
        self.clip = clip

    def public_inputs(self):
        return {"clip": self.clip}


def test_queries_differ_in_their_public_inputs_and_what_a_ledger_keeps_holds_no_data():
    assert len({fingerprint(Clipped(clip)) for clip in (1.0, 1.0, 1e6)}) == 2, (
        "ranks must not ask with other clips"
    )
    held = functools.partial(adds, TABLE), functools.partial(adds, TABLE + 1)
    assert fingerprint(held[0], detail="code") == fingerprint(held[1], detail="code")
    bound = [
        type("Costs", (), {"of": lambda self: self.costs, "costs": costs})().of
        for costs in (1.0, 2.0)
    ]
    assert fingerprint(bound[0], detail="code") == fingerprint(bound[1], detail="code")


def test_functions_count_by_name_code_references_or_all_they_close_over(monkeypatch):
    for detail, number, box in zip(
        DETAILS, (False, False, True, True), (False, False, False, True), strict=True
    ):
        told = (
            [fingerprint(adds(held), detail=detail) for held in (1, 1, 2)],
            [fingerprint(adds([held]), detail=detail) for held in (1, 2)],
        )
        assert told[0][0] == told[0][1]
        assert (told[0][0] != told[0][2], told[1][0] != told[1][1]) == (number, box), detail
    before = [fingerprint(looks_up, detail=detail) for detail in DETAILS]
    monkeypatch.setitem(globals(), "TABLE", torch.tensor([1.0, 3.0]))
    after = [fingerprint(looks_up, detail=detail) for detail in DETAILS]
    assert [a != b for a, b in zip(before, after, strict=True)] == [
        False,
        False,
        True,
        False,
    ], "no data in what a ledger keeps"


@dataclasses.dataclass(frozen=True)
class Settings:
    weight: float


def reads(text, held):
    """What `score` is in a module of the caller's that binds HELD."""
    module = types.ModuleType("callers_own")
    vars(module)["__file__"] = "/home/caller/callers_own.py"
    vars(module)["HELD"] = held
    exec(compile(text, "/home/caller/callers_own.py", "exec"), vars(module))
    return vars(module)["score"]


FUNCTION = "def score(x):\n    return x * HELD[0]"
CLASS = "class score:\n    {}\n\n    def __call__(self, x):\n        return x"
READ = [
    pytest.param(FUNCTION, np.ones(1), np.zeros(1), id="array"),
    pytest.param(FUNCTION, lambda: 1.0, lambda: 2.0, id="function"),
    pytest.param(FUNCTION, Settings(1.0), Settings(2.0), id="frozen dataclass"),
    pytest.param("score = lambda x, kept=HELD: kept", [1.0], [2.0], id="default"),
    pytest.param(CLASS.format("weights = HELD"), (1.0,), (2.0,), id="class constant"),
    pytest.param(
        CLASS.format("@property\n    def of(self):\n        return HELD"), 1.0, 2.0, id="property"
    ),
    pytest.param(
        "class base:\n    of = lambda self: HELD\nclass score(base):\n    pass",
        1.0,
        2.0,
        id="inherited method",
    ),
]


@pytest.mark.parametrize(("text", "one", "other"), READ)
def test_what_code_reads_counts(text, one, other):
    found = [fingerprint(reads(text, held), detail="references") for held in (one, one, other)]
    assert found[0] == found[1] != found[2]


def own_module(**names):
    other = types.ModuleType("callers_other")
    vars(other).update(__file__="/home/caller/callers_other.py", **names)
    return other


NAMESPACES = [own_module, types.SimpleNamespace, argparse.Namespace]


@pytest.mark.parametrize("make", NAMESPACES)
@pytest.mark.parametrize("closed_over", [False, True], ids=["global", "closed over"])
def test_what_code_names_in_a_namespace_counts_and_what_it_counts_there_does_not(make, closed_over):
    text = "def score(x):\n    HELD.calls += 1\n    return HELD.RATE * HELD.WEIGHTS[0]"
    if closed_over:
        text = f"def outer(HELD):\n{textwrap.indent(text, '    ')}\n    return score\n"
        text += "score = outer(HELD)"

    def found(weights, rate, calls, other):
        held = make(WEIGHTS=weights, RATE=rate, calls=calls, other=other)
        return fingerprint(reads(text, held), detail="references")

    same = found((1.0,), 1.0, 0, "--resume")
    assert same == found((1.0,), 1.0, 3, "--begin")
    assert same != found((2.0,), 1.0, 0, "--resume")
    assert same != found((1.0,), 2.0, 0, "--resume")


@pytest.mark.parametrize(
    "line", ["HELD.append(x)", "HELD[0] += x", "[HELD.extend([x]) for x in ()]"]
)
def test_a_container_that_the_code_fills_does_not_count(line):
    """A score that keeps a list of its calls is resumed in the same process."""
    text = f"def score(x):\n    {line}"
    found = [fingerprint(reads(text, held), detail="references") for held in ([], [1])]
    assert found[0] == found[1]


def test_a_class_attribute_that_methods_change_does_not_count():
    text = CLASS.format("held = HELD\n    def of(self, x):\n        score.held += 1")
    found = [fingerprint(reads(text, held), detail="references") for held in (1, 2)]
    assert found[0] == found[1]


class Keeper:
    def __init__(self, weights, seen):
        self.weights = weights
        self.seen = seen

    def __call__(self, x):
        self.seen[x] = self.weights


def test_ranks_compare_what_an_object_reads_and_not_what_it_fills():
    found = [
        fingerprint(Reached(Keeper(weights, seen)))
        for weights, seen in ((1.0, {}), (1.0, {1: 1}), (2.0, {}))
    ]
    assert found[0] == found[1] != found[2]


def test_what_leads_back_to_itself_counts_once():
    circle: list[Any] = [Keeper([1.0], {})]
    circle[0].weights.append(circle)
    assert fingerprint(Reached(Keeper(circle, {}))) == fingerprint(Reached(Keeper(circle, {})))
