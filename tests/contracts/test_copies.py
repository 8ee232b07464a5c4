"""What a question was asked with may be altered in place afterwards: what it declares and what it
answers stay as they were.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel

from dpbo import Adjacency, Budget, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.gibo import ClippedGradient
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.point_sums import ClusterSums, SecondMoment, VectorSum
from dpbo.papers.kusner import AdaptiveLipschitz, KusnerSearch, RegularisedBest
from dpbo.papers.kusner.search import KusnerBest, KusnerValue
from dpbo.papers.po_gp_ucb import RowTable
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import (
    CandidateScores,
    CellMeans,
    ClippedMean,
    ClippedSum,
    QuantileUtilities,
)
from dpbo.queries.ball import Ball
from dpbo.queries.query import IntegerSum, copy_mutable
from dpbo.records.view import PrivateView
from tests.attacks.marks import attack
from tests.setups import DOUBLE, of, owner

RECORDS = torch.linspace(0.1, 0.9, 24, dtype=DOUBLE).reshape(12, 2)


def first(x, records):
    return records[:, 0] * float(x["at"][0])


def two(x, records):
    return records * x


PLANE = {"center": torch.full((2,), 0.2, dtype=DOUBLE), "matrix": torch.eye(2, dtype=DOUBLE) * 2}
POINTS = torch.linspace(0.0, 1.0, 5, dtype=DOUBLE).unsqueeze(1)
PRIOR = RBFKernel().double().initialize(lengthscale=0.3)
KUSNER = {"candidates": POINTS, "kernel": PRIOR, "value_range": [-1.0, 1.0]}


def regularised(adaptive=None, **given):
    fixed = of(lipschitz=0.5, bound=1.0, at_zero=0.5, records=len(RECORDS))
    return RegularisedBest(
        lambda w, r: (r[:, 0] - w).abs(),
        fit=lambda value: 0.1 * value,
        adaptive=adaptive,
        **fixed,
        **given,
    )


def searched(question, **given):
    fixed = of(noise=0.01, evaluations=4, kappa=0.9, delta=0.1)
    return question(KusnerSearch(lambda x, r: float(x[0] - r.mean()), **fixed, **given))


def clusters(center, matrix, **given):
    return ClusterSums(2, ball=Ball(1.0, center=center, matrix=matrix), **given)


def gradient(**given):
    return ClippedGradient(lambda x, r: (r - x).square().sum(1), clip=1.0, **given)


AT = {"subject": {"at": [0.5]}}
SPAN = {"score_range": [0.0, 1.0]}
# class -> (what the caller holds, the question made of it), several of one class where it has
# several forms
CASES: dict[type, list[tuple[dict[str, Any], Callable[..., Any]]]] = {
    ClippedMean: [
        ({**AT, **SPAN}, lambda **g: ClippedMean(first, **g)),
    ],
    ClippedSum: [
        (
            {"subject": torch.tensor([0.5, 0.7]), "score_range": [[0.0, 1.0]] * 2},
            lambda **g: ClippedSum(two, **g),
        )
    ],
    CellMeans: [
        (
            {"subject": {"at": [2.0]}},
            lambda **g: CellMeans(_cell, cells=2, **g),
        )
    ],
    CandidateScores: [
        (
            {"candidates": [{"at": [0.5]}, {"at": [0.7]}], **SPAN},
            lambda **g: CandidateScores(first, **g),
        ),
    ],
    QuantileUtilities: [
        (
            {**AT, "candidates": [0.0, 0.2, 1.0]},
            lambda **g: QuantileUtilities(first, quantile=0.5, **g),
        )
    ],
    RowOutcome: [
        ({"value_range": [0.0, 1.0]}, lambda **g: RowOutcome(lambda r: float(r[0, 0]), row=3, **g))
    ],
    RowTable: [
        (
            {"center": [0.2, 0.3], "projection": torch.ones(2, 1, dtype=DOUBLE)},
            lambda **g: RowTable(radius=1.0, **g),
        ),
    ],
    ClippedGradient: [
        (
            {
                "X": torch.ones(1, 2, dtype=DOUBLE),
                "weights": torch.ones(2, 2, dtype=DOUBLE),
                "earlier": ["the first answer's handle"],
                "loss_range": [0.0, 1.0],
            },
            gradient,
        )
    ],
    SecondMoment: [(PLANE, lambda **g: SecondMoment(2, ball=Ball(1.0, **g)))],
    ClusterSums: [
        ({**PLANE, "centers": torch.eye(2, dtype=DOUBLE), "weights": [1.0, 2.0]}, clusters)
    ],
    VectorSum: [
        (
            {**PLANE, "weights": [1.0, 2.0]},
            lambda center, matrix, **g: VectorSum(
                2, ball=Ball(1.0, center=center, matrix=matrix), **g
            ),
        )
    ],
    MixtureMoments: [
        (
            {"natural": torch.arange(12, dtype=DOUBLE).reshape(2, 6), "weights": [1.0, 2.0, 3.0]},
            lambda **g: MixtureMoments(2, ball=Ball(1.0), **g),
        )
    ],
    RegularisedBest: [
        ({"grid": [0.5, 1.0, 2.0]}, regularised),
        (
            {"grid": [0.5, 1.0, 2.0], "kernel": PRIOR},
            lambda grid, kernel: regularised(AdaptiveLipschitz(kernel, 0.01, 2), grid=grid),
        ),
    ],
    KusnerBest: [(KUSNER, lambda **g: searched(KusnerSearch.best, **g))],
    KusnerValue: [(KUSNER, lambda **g: searched(KusnerSearch.value, **g))],
}


def _cell(x, records):
    return (records[:, 0] * float(x["at"][0])).floor()


def altered(held):
    """In place: numbers doubled and moved, then whatever can be emptied is."""
    if isinstance(held, (torch.Tensor, np.ndarray)):
        held *= 2.0
        held += 3.0
    elif isinstance(held, Kernel):
        held.lengthscale = 30.0
    elif isinstance(held, (list, dict)):
        for part in held.values() if isinstance(held, dict) else held:
            altered(part)
        held.clear()


def told(query):
    """All that a question declares, and its exact answer."""
    view = PrivateView.of(RECORDS.clone(), PrivacyUnit("record"), units_are_public=True)
    view = dataclasses.replace(
        view, earlier=tuple((0.0, RECORDS[:, 0].clone()) for _ in query.handles())
    )
    answer = query._evaluate(view, query.prepare())
    assert isinstance(answer, IntegerSum)
    declared = (
        query.sensitivity(Adjacency.REPLACE_ONE),
        query.affine(12),
    )
    public = query.public_inputs(), query.data_assumptions(), query.handles(), query.part()
    return *declared, *public, answer.numerators.tolist(), answer.quanta


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
@attack("A6")
def test_a_question_is_what_it_was_when_it_was_made(kind):
    for held, asked in CASES[kind]:
        given = copy.deepcopy(held)
        query = asked(**given)
        altered(given)
        assert told(query) == told(asked(**copy.deepcopy(held)))


def made(records):
    return owner(records, budget=Budget(5.0, 0.0), accounting=PureFilter())


def test_a_model_is_itself_and_what_holds_it_a_copy():
    held: dict[str, Any] = {"model": torch.nn.Linear(1, 1), "X": [torch.ones(2)]}
    kept = copy_mutable(held)
    held["X"][0] *= 2
    assert kept["model"] is held["model"]
    assert kept["X"][0].tolist() == [1.0, 1.0]
