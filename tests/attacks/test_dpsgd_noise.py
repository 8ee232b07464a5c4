"""A25: the generator as the adversary. From one released step of a linear model, is a record among
those that trained it?

torch's generator on the CPU is the Mersenne Twister, whose outputs are linear over GF(2). A
hypothesis about the records says what the sum of gradients was, so what the noise was; Box-Muller
inverted, what most bits of the generator's outputs were. Right bits keep the parities that the
recurrence forces upon four of them, wrong ones keep half.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo.dpsgd import DPSGDConfig, Session
from dpbo.dpsgd._opacus import load_opacus
from tests.attacks.marks import attack

pytestmark = [attack("A25"), pytest.mark.filterwarnings("ignore::UserWarning")]
RECORDS = 40
X = torch.randn(RECORDS, 200, generator=torch.Generator().manual_seed(1))
Y = torch.randn(RECORDS, 16, generator=torch.Generator().manual_seed(2))
TERMS = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=1, batch_size=RECORDS)
# So many of the 24 bits of an angle, from the highest.
BITS = 18


def step(optimizer, module, batch):
    optimizer.zero_grad()
    (module(batch[0]) * batch[1]).sum().backward()
    optimizer.step()


def by_opacus(members):
    module = nn.Linear(200, 16, bias=False)
    nn.init.zeros_(module.weight)
    loader = DataLoader(TensorDataset(X[:members], Y[:members]), batch_size=members)
    module, optimizer, _ = (
        load_opacus()
        .PrivacyEngine()
        .make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), 1.0),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            loss_reduction="sum",
        )
    )
    step(optimizer, module, (X[:members], Y[:members]))
    return -module.state_dict()["_module.weight"]


def by_session(members):
    module = nn.Linear(200, 16, bias=False)
    nn.init.zeros_(module.weight)
    session = Session(TensorDataset(X[:members], Y[:members]), TERMS)
    private, optimizer, loader = session.make_private(
        module, torch.optim.SGD(module.parameters(), 1.0), max_grad_norm=1.0, loss_reduction="sum"
    )
    step(optimizer, private, next(iter(loader)))
    return -module.weight.detach()


def linear(function):
    """The 32 x 32 matrix over GF(2) of a linear function of words."""
    return np.array(
        [[function(1 << j) >> i & 1 for j in range(32)] for i in range(32)], dtype=np.uint8
    )


def tempered(x):
    x ^= x >> 11
    x ^= (x << 7) & 0x9D2C5680
    x ^= (x << 15) & 0xEFC60000
    return x ^ (x >> 18)


def reduced(matrix):
    """Row echelon form over GF(2), and its pivot columns."""
    matrix = matrix.copy() % 2
    pivots = list[int]()
    for column in range(matrix.shape[1]):
        rows = [row for row in range(len(pivots), len(matrix)) if matrix[row, column]]
        if rows:
            place = len(pivots)
            matrix[[place, rows[0]]] = matrix[[rows[0], place]]
            others = [row for row in range(len(matrix)) if row != place and matrix[row, column]]
            matrix[others] ^= matrix[place]
            pivots.append(column)
    return matrix, pivots


def kept_parities():
    """Masks on the known bits of outputs k + 624 and k + 397, of k + 1, and of k, whose parities
    add up to zero.
    """
    tempering = linear(tempered)
    none = np.zeros(32, dtype=np.uint8)
    inverse = reduced(np.hstack([tempering, np.eye(32, dtype=np.uint8)]))[0][:, 32:]
    lower = linear(lambda x: ((x & 0x7FFFFFFF) >> 1) ^ (0x9908B0DF if x & 1 else 0))
    upper = linear(lambda x: (x & 0x80000000) >> 1)
    known = np.arange(24 - BITS, 24)
    others = [
        (inverse.T @ part.T @ tempering.T % 2).astype(np.uint8)[:, known] for part in (lower, upper)
    ]
    hidden = np.setdiff1d(np.arange(32), known)
    system, pivots = reduced(np.vstack([other[hidden] for other in others]))
    for free in np.setdiff1d(np.arange(BITS), pivots):
        chosen = np.zeros(BITS, dtype=np.uint8)
        chosen[free], chosen[pivots] = 1, system[: len(pivots), free]
        mask = none.copy()
        mask[known] = chosen
        yield (mask, mask, *(other @ chosen % 2 for other in others))


def agreement(noise_values):
    """The part of the parities that the angles of Box-Muller's pairs keep; of numbers from
    elsewhere, a half.
    """
    # torch fills sixteen at a time: eight radii, then eight angles.
    pairs = noise_values.double().flatten().reshape(-1, 2, 8)
    angles = torch.atan2(pairs[:, 1], pairs[:, 0]) / (2 * math.pi) % 1
    outputs = (angles * 2**24).round().long().numpy() % 2**24
    bits = np.zeros((len(outputs), 16, 32), dtype=np.uint8)
    bits[:, 8:] = outputs[..., None] >> np.arange(32) & 1
    words = bits.reshape(-1, 32)
    places = [
        k
        for k in range(len(words) - 624)
        if all((k + ahead) % 16 >= 8 for ahead in (0, 1, 397, 624))
    ]
    kept = [
        sum(
            int(mask @ words[k + ahead])
            for mask, ahead in zip(masks, (624, 397, 1, 0), strict=True)
        )
        % 2
        == 0
        for masks in kept_parities()
        for k in places
    ]
    assert len(kept) > 1000
    return float(np.mean(kept))


def clipped_sum(members):
    """What Opacus sums before its noise."""
    rows = torch.einsum("ni,nj->nij", Y[:members], X[:members])
    return torch.einsum("n,nij->ij", (1 / (rows.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1), rows)


@pytest.mark.parametrize("members", [RECORDS, RECORDS - 1])
def test_a_released_step_tells_members_with_torchs_generator_and_not_with_ours(members):
    hypotheses = {count: clipped_sum(count) for count in (RECORDS, RECORDS - 1)}
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        torchs = by_opacus(members)
    for count, total in hypotheses.items():
        assert (agreement(torchs - total) > 0.75) == (count == members), "the attack must win"
        assert abs(agreement(by_session(members) - total) - 0.5) < 0.1
