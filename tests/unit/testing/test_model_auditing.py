"""Audits of one training: they reach a third of a claim, refute noise at half its size and a
missing clip, and bound the number of right guesses as the exact worst case does.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch.utils.data import TensorDataset

from dpbo.accounting import compose
from dpbo.dpsgd import DPSGDConfig, Session
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.privacy import Adjacency
from dpbo.testing import audit_model
from dpbo.testing.model_auditing import too_likely
from tests.attacks.marks import attack
from tests.setups import of

DELTA = 1e-5
CANARIES = 100_000


def summed(noise, clip=1.0):
    """A training that releases the noised sum of gradients: each canary is a direction of its own,
    in which its gradient has norm 5.
    """

    def train(included):
        total = np.zeros(CANARIES)
        total[included] = min(5.0, clip)
        return total + noise * np.random.default_rng().normal(size=CANARIES)

    return train


def shown(train):
    return audit_model(train, lambda model, canary: model[canary], range(CANARIES)).epsilon(DELTA)


@attack("A24")
def test_one_run_shows_a_third_of_the_claim_and_refutes_too_little_noise_and_no_clip():
    claim = compose([GaussianEvent(1.0)], delta=DELTA).epsilon
    assert claim / 3 < shown(summed(1.0)) < claim
    assert shown(summed(0.5)) > claim
    assert shown(summed(1.0, clip=np.inf)) > claim


def test_canaries_that_leave_no_trace_show_nothing():
    found = audit_model(lambda included: None, lambda model, canary: 0.0, range(400))
    assert found.epsilon(0.0) < 0.7
    assert "400 canaries" in str(found)
    assert found.guesses[0][0] == 400


@attack("A24")
def test_no_leak_makes_more_guesses_right_than_the_bound():
    """The worst mechanism of this guarantee, guess by guess: with probability delta it tells
    whether a canary is in, and else gives randomised response. All of its outcomes are counted.
    """
    for epsilon, delta, canaries in ((0.5, 0.02, 8), (1.0, 0.2, 5), (2.0, 0.0, 12)):
        q = np.exp(epsilon) / (1 + np.exp(epsilon))
        right = delta + (1 - delta) * q
        masses = np.array([1.0])
        for _ in range(canaries):
            masses = np.convolve(masses, [1 - right, right])
        for least in range(1, canaries + 1):
            bound = too_likely(canaries, least, canaries, epsilon, delta)
            assert masses[least:].sum() <= bound * (1 + 1e-12)
            if not delta:
                assert masses[least:].sum() == pytest.approx(bound)


def test_the_bound_is_the_best_way_to_spend_what_delta_allows():
    """Against all ways to move outcomes up on a small problem: a linear program."""
    guessed, least, epsilon, delta = 6, 5, 0.8, 0.03
    q = np.exp(epsilon) / (1 + np.exp(epsilon))
    masses = [
        sum(
            np.prod([q if hit else 1 - q for hit in hits])
            for hits in itertools.product((0, 1), repeat=guessed)
            if sum(hits) == count
        )
        for count in range(guessed + 1)
    ]
    costs = np.array([least - count for count in range(least)])
    best = linprog(
        -np.ones(least),
        A_ub=[costs],
        b_ub=[guessed * delta / (1 + np.exp(epsilon))],
        bounds=[(0, mass) for mass in masses[:least]],
    )
    expected = sum(masses[least:]) - best.fun
    assert too_likely(guessed, least, guessed, epsilon, delta) == pytest.approx(expected)


def test_a_training_sees_about_half_of_the_canaries_and_once():
    seen = []
    audit_model(lambda included: seen.append(included), lambda model, canary: canary, range(2000))
    (included,) = seen
    assert set(included) < set(range(2000))
    assert abs(len(included) - 1000) < 150
    for changed in (
        of(canaries=range(19)),
        of(score=lambda model, canary: float("nan")),
        of(level=0.0),
    ):
        terms = {"train": len, "score": lambda model, canary: canary, "canaries": range(20)}
        with pytest.raises(InputError):
            audit_model(**{**terms, **changed})


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::UserWarning")
@attack("A24")
def test_one_training_by_dp_sgd_shows_a_third_of_its_claim():
    """A logistic model of as many features as canaries: each canary has one of its own, and the
    weight of that feature moves by its gradient alone, so little that it stays near the clip.
    """
    count = 4000
    config = DPSGDConfig(noise_multiplier=4 / 3, epochs=4, batches=1, batch_size=count)
    claim = compose([config.event(Adjacency.ADD_OR_REMOVE_ONE)], delta=DELTA).epsilon

    def train(included):
        features = 10 * torch.eye(count)[included]
        session = Session(TensorDataset(features, torch.ones(len(included))), config)
        model = nn.Linear(count, 1, bias=False)
        nn.init.zeros_(model.weight)
        net, optimizer, loader = session.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.01 * count), max_grad_norm=1.0
        )
        for inputs, labels in loader:
            optimizer.zero_grad()
            outputs = net(inputs)[:, 0]
            nn.functional.binary_cross_entropy_with_logits(outputs, labels).backward()
            optimizer.step()
        return session.released().state_dict()["weight"][0]

    found = audit_model(train, lambda weights, canary: float(weights[canary]), range(count))
    assert claim / 3 < found.epsilon(DELTA) < claim
