"""A6, A7, A21 of hidden runs: with every noised score frozen, a neighbour's runs are as many, look
at the same places, and end alike.

`replay` freezes what is released; here nothing is but the winner, so the scores inside are frozen
as they are drawn, from the same entropy. Each exact score may move within its sensitivity;
proposals, the number of runs, the winner, the ledger and everything public must not move.
"""

from typing import Any

import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpbo import Adjacency, Budget, Space
from dpbo.accounting import Planned
from dpbo.curator.hidden_draws import HiddenDraws
from dpbo.dpsgd import NoisedScore, plan_tuning, private_selection, tune, tuning
from dpbo.dpsgd.hidden_runs import DensityRatioProposals
from dpbo.events import SelectionEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.run_counts import TruncatedNegativeBinomial
from dpbo.testing import SeededEntropy
from dpbo.testing.query_contract import require_within
from dpbo.testing.replaying import RecordingCurator, _public, _require_same, _without_ids
from tests.attacks.marks import attack
from tests.attacks.public import _HASH, public
from tests.attacks.setups import DOUBLE, RATES, fit, of, owner
from tests.integration.test_opacus_tuning import BUDGET, TERMS

pytestmark = attack("A6", "A7", "A21")
RECORDS = torch.rand(300, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
NEIGHBOUR = torch.cat([torch.tensor([float("nan")], dtype=DOUBLE), RECORDS[1:]])
SPACE = Space(lr=scipy.stats.uniform(0.0, 1.0), depth=[1, 2, 4])


class Inside:
    """Stands for `HiddenDraws.__call__`: notes each question and exact answer, and gives the first
    run's noised scores to the second.
    """

    def __init__(self, monkeypatch):
        self._honest = HiddenDraws.__call__
        self._runs = []
        monkeypatch.setattr(HiddenDraws, "__call__", lambda *arguments: self(*arguments))

    def begin(self):
        self._runs.append([])

    def __call__(self, draw, query, mechanism):
        # Also when frozen: it takes as much entropy.
        drawn = self._honest(draw, query, mechanism)
        answer = draw._answer(query)
        turn = len(self._runs[-1])
        value = drawn if len(self._runs) == 1 else self._runs[0][turn][3]
        self._runs[-1].append(
            (_public(query), answer, query.sensitivity(draw._birth.adjacency), value)
        )
        return value

    def compare(self):
        first, second = self._runs
        assert len(first) == len(second) > 0, "the number of runs depends on the records"
        for a, b in zip(first, second, strict=True):
            assert a[0] == b[0], "a run looked elsewhere"
            require_within(
                a[1].numerators.tolist(),
                b[1].numerators.tolist(),
                a[1].quanta,
                a[2],
                "a hidden score",
            )
        return len(first)


def near(model, records):
    return 1.0 - (model - 0.7) ** 2 - 0.1 * records


SCORE = NoisedScore(near, (0.0, 1.0), GaussianMechanism(50.0))
LAW = TruncatedNegativeBinomial.of_mean(6.0, shape=1.0)


def selected(records, train=lambda given: given["lr"], run_count=LAW, adaptive=None, **settings):
    spread = (1.0, 1.0) if adaptive is None else adaptive.spread
    accounting = Planned(
        [SelectionEvent(base=(SCORE.mechanism.event(),), run_count=run_count, spread=spread)]
    )
    curator = owner(
        records, budget=Budget(50.0, 1e-6), accounting=accounting, entropy=SeededEntropy(4)
    )
    best = private_selection(
        curator, train, space=SPACE, run_count=run_count, score=SCORE, adaptive=adaptive, **settings
    )
    return (
        public(best),
        [_without_ids(record) for record in curator.ledger.records()],
        public(curator.statement()),
    )


ADAPTIVE = DensityRatioProposals(SPACE, spread=(0.5, 2.0), noise_std=0.01, candidates=32)
WAYS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "adaptive": {"adaptive": ADAPTIVE},
}


@pytest.mark.parametrize("way", WAYS)
def test_hidden_runs_follow_from_noised_scores_alone(way, monkeypatch):
    inside = Inside(monkeypatch)
    shown = []
    for records in (RECORDS, NEIGHBOUR):
        inside.begin()
        shown.append(selected(records, **WAYS[way]))
    assert inside.compare() >= 1
    assert repr(shown[0]) == repr(shown[1])


TRAINING = TensorDataset(torch.zeros(300, 1).double(), torch.zeros(300).long())


def train(given, session):
    """A model that follows from its parameters: what DP-SGD would have released, frozen, by steps
    of length zero.
    """
    model = nn.Linear(1, 1).double()
    nn.init.constant_(model.weight, given["lr"])
    nn.init.zeros_(model.bias)
    model, optimizer, loader = session.make_private(
        model, torch.optim.SGD(model.parameters(), 0.0), max_grad_norm=1.0
    )
    return fit(model, optimizer, loader, lambda outputs, _: outputs.sum())


def close(model, records):
    with torch.no_grad():
        return 1 - (model(records[:, :1])[:, 0] - 0.4).abs()


# Its plans are calibrated for seconds.
@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["search", "selection", "hypo"])
def test_tuning_follows_from_noised_scores_alone(strategy, monkeypatch):
    """The whole of `tune`, its curator replaced by one that notes and freezes; training is frozen
    too, being another role's.
    """
    curators: list[Any] = []
    inside = Inside(monkeypatch)
    shown = []

    def recording(records, **settings):
        frozen = tuple(curators[0].steps) if curators else ()
        curators.append(
            RecordingCurator(records, frozen=frozen, entropy=SeededEntropy(3), **settings)
        )
        return curators[-1]

    monkeypatch.setattr(tuning, "Curator", recording)
    plan = plan_tuning(
        BUDGET, TERMS, runs=3, validation=300, adjacency=Adjacency.ADD_OR_REMOVE_ONE
    )[strategy]
    # Under add-or-remove-one a neighbour has one record fewer.
    for records in (RECORDS, RECORDS[1:]):
        inside.begin()
        terms = of(space=RATES, try_first=False, allow_repeated=True)
        found = tune(
            train, close, training=TRAINING, validation=records[:, None], plan=plan, **terms
        )
        shown.append(repr(public(found)))
    first, second = curators
    if strategy == "search":
        _require_same("evaluation", first.evaluations, second.evaluations)
        _require_same(
            "release",
            [step.question for step in first.steps],
            [step.question for step in second.steps],
        )
        for a, b in zip(first.steps, second.steps, strict=True):
            require_within(a.numerators, b.numerators, a.quanta, a.sensitivity, "a score")
    else:
        inside.compare()
    ledgers = [
        _HASH.sub("#", repr([_without_ids(record) for record in curator.ledger.records()]))
        for curator in curators
    ]
    assert ledgers[0] == ledgers[1]
    assert shown[0] == shown[1]
