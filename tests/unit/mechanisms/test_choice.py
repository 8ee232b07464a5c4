"""What the contract leaves open: exact decisions, the whole way through a curator, sabotage, bad
input.
"""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from dpbo import Budget
from dpbo.accounting import PureFilter, event_costs
from dpbo.errors import UsageError
from dpbo.mechanisms import ExponentialMechanism, LaplaceMechanism, PermuteAndFlipMechanism, choice
from dpbo.mechanisms.choice import LEVELS as LEVELS_IN_ALL
from dpbo.mechanisms.choice import draw_below
from dpbo.mechanisms.permute_and_flip import _noisy
from dpbo.privacy import Sensitivity
from dpbo.queries import ClippedSum
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import owner
from tests.unit.mechanisms.words import Words, words_of

BOTH = [ExponentialMechanism, PermuteAndFlipMechanism]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def votes(_x, records):
    return torch.nn.functional.one_hot(records, 5)


def make():
    records = torch.tensor([0] * 10 + [1] * 40 + [2] * 5 + [3] * 30 + [4] * 15)
    return owner(records, budget=Budget(40.0, 0.0), accounting=PureFilter())


def filled(numbers):
    """How many candidates lie at each distance below the best, of {distance: how many}."""
    counts = np.zeros(LEVELS_IN_ALL, dtype=np.int64)
    counts[list(numbers)] = list(numbers.values())
    return counts


LEVELS, COUNTS = [0, 1, 2, 5, 9, 14, 40, 41, 100], [3, 1, 4, 1, 5, 9, 2, 6, 5]
MANY = filled(dict(zip(LEVELS, COUNTS, strict=True)))


def exact_sums(rate):
    """Running weights of the levels."""
    decay = mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator)
    return np.cumsum([count * decay**level for level, count in zip(LEVELS, COUNTS, strict=True)])


@pytest.mark.parametrize(
    ("rate", "next_to"), [(Fraction(1, 9), None), (Fraction(1, 71), 0), (Fraction(1, 19), 2**8 - 1)]
)
@attack("A14")
def test_at_the_edge_between_two_levels_further_bits_decide(rate, next_to):
    """The running weight passes a share of 64 bits somewhere within the last bit: what the next
    word says of it is obeyed.

    One edge of the second rate lies in the first 256th of what two words leave open, one of the
    third in the last: the margin holds them.
    """
    with mpmath.workdps(90):
        sums = exact_sums(rate)
        words = [words_of(value / sums[-1]) for value in sums[:-1]]
    assert next_to is None or next_to in {last >> 56 for _, _, last in words}
    for place, (word, rest, last) in enumerate(words):
        for third, chosen in (
            (last - 2, place),
            (last + 2, place + 1),
            (0, place),
            (2**64 - 1, place + 1),
        ):
            bits = Words(word, rest, third)
            assert ExponentialMechanism(2.0).choose(MANY, rate, bits) == LEVELS[chosen]
            assert bits.asked == 3
        for second, chosen in (
            (0, place),
            (rest - 2, place),
            (rest + 2, place + 1),
            (2**64 - 1, place + 1),
        ):
            assert (
                ExponentialMechanism(2.0).choose(MANY, rate, Words(word, second)) == LEVELS[chosen]
            )
        for near, chosen in ((word - 1, place), (word + 1, place + 1)):
            assert (
                ExponentialMechanism(2.0).choose(MANY, rate, Words(near, 2**63)) == LEVELS[chosen]
            )


def test_rivals_whose_first_two_words_are_level_are_decided_by_the_third():
    counts, rate, first = filled({0: 3, 12: 1000}), Fraction(1, 3), 3 << 62
    with mpmath.workdps(100):
        noise = -mpmath.log(
            1
            - (mpmath.mpf(first) / 2**64 + mpmath.mpf(2) ** -65 + mpmath.mpf(2) ** -129)
            ** (mpmath.mpf(1) / 3)
        )
        own = words_of((1 - mpmath.exp(-(noise + 4))) ** 1000)
    for third, chosen in ((own[2] + 2**12, 12), (own[2] - 2**12, 0), (2**64 - 1, 12), (0, 0)):
        words = Words((first, own[0]), 1 << 63, own[1], 1 << 63, third)
        assert PermuteAndFlipMechanism(2.0).choose(counts, rate, words) == chosen
        assert words.asked == 5


@attack("A14")
def test_bounds_on_a_levels_noise_hold_it_between_them():
    """Down to words next to 2^64, of which a float keeps only the first 53 bits while the noise
    depends on the last.
    """
    words = [0, 1, 5, 1 << 30, (1 << 53) + 1, 1 << 63, (3 << 62) + 1]
    words += [
        2**64 - (1 << j) + more
        for j in range(1, 62)
        for more in (-1023, -1, 0, 1, 1023)
        if 2**64 - (1 << j) + more < 2**64
    ]
    rate = Fraction(1, 1000)
    for count, level in ((1, 0), (1, 60_000), (3, 12), (1000, 0), (10**8, 7)):
        numbers, levels = np.full(len(words), count), np.full(len(words), level)
        low, high = (
            _noisy(numbers, levels, float(rate), np.array(words, dtype=np.uint64), end).tolist()
            for end in (0, 1)
        )
        with mpmath.workdps(60):
            for i, word in enumerate(words):
                ends = [
                    -mpmath.log(1 - (mpmath.mpf(end) / 2**64) ** (mpmath.mpf(1) / count))
                    for end in (word, word + 1)
                ]
                assert (
                    low[i]
                    < ends[0] - mpmath.mpf(level) / 1000
                    < ends[1] - mpmath.mpf(level) / 1000
                    <= high[i]
                )


def test_uniform_is_uniform_and_never_out_of_range():
    entropy = SeededEntropy(1)
    assert (
        chisquare(np.bincount([draw_below(7, entropy) for _ in range(7000)], minlength=7)).pvalue
        > 1e-6
    )
    assert draw_below(1, entropy) == 0
    assert draw_below(3, Words(2**64 - 1, 1)) == 1, (
        "words beyond the last whole multiple are thrown away"
    )
    assert draw_below(3, Words(2**64 - 2)) == 2
    assert draw_below(2**64, Words((7, 5))) == 7, "a count of 64 bits and more takes more words"


@attack("A10")
def test_levels_are_wide_enough_and_neighbours_never_move_further():
    """Of what a float sensitivity and a quantum leave open, everything is rounded up; the lowest
    level lies 64 noise scales down.
    """
    # of 2^-40 below a whole number of quanta
    within, beyond = 1 - 2.0**-41, 1 - 3 * 2.0**-41
    sums = [(0.3, 2.0**-20), (7.7, 2.0**-30), (2.0**-20, 2.0**-20), (5e-7, 2.0**-20)]
    sums += [(within, 2.0**-7), (beyond, 2.0**-7)]
    for multiplier, (linf, quantum) in itertools.product((0.01, 5.0, 200.0), sums):
        mechanism = ExponentialMechanism(multiplier)
        law = mechanism.distribution(Sensitivity(linf, linf, linf), [quantum, quantum])
        most = math.ceil(Fraction(linf) * (1 + Fraction(1, 2**40)) / Fraction(quantum))
        assert law.moves == math.ceil(Fraction(most, law.width))
        assert law.moves * law.width * Fraction(quantum) > Fraction(linf)
        assert (LEVELS_IN_ALL - 1) * law.width >= 64 * multiplier * most


@pytest.mark.parametrize("kind", BOTH)
def test_utilities_at_the_ends_of_their_type_are_as_far_apart_as_can_be(kind):
    mechanism, utilities = kind(0.01), np.array([-(2**63), 2**63 - 1, -(2**62)])
    law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [1.0])
    assert law.width == 1
    value, variance = mechanism.publish(
        mechanism._sample(utilities, [1.0], law, SeededEntropy(0)), law, ((0.0,), 1.0)
    )
    assert value.tolist() == [1.0]
    assert variance.size == 0, "a choice has none"


@pytest.mark.parametrize("device", DEVICES)
def test_more_candidates_than_one_chunk_holds_are_one_set(device, monkeypatch):
    monkeypatch.setattr(choice, "_DEVICE_CHUNK", 1 << 20)
    mechanism, count = ExponentialMechanism(0.01), (1 << 20) + 3
    utilities = torch.full((count,), -(10**9), device=device)
    utilities[-1] = 10**9
    law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [1.0])
    assert mechanism._sample(utilities, [1.0], law, SeededEntropy(0)).tolist() == [count - 1]
    utilities[[5, 6]] = 10**9
    drawn = {
        int(mechanism._sample(utilities, [1.0], law, SeededEntropy(seed))[0]) for seed in range(12)
    }
    assert drawn == {5, 6, count - 1}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("device", DEVICES)
def test_a_choice_is_the_same_wherever_the_utilities_lie(kind, device):
    """As a list, an array or a tensor on any device, far below the best and far above all sums."""
    mechanism, utilities = kind(2.0), [7, -(2**62), 2**40, 2**40 - 3, 2**40 + 1, -5, 2**40]
    law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [0.25])
    ways = (utilities, np.array(utilities), torch.tensor(utilities, device=device))
    for seed in range(30):
        drawn = [int(mechanism._sample(way, [0.25], law, SeededEntropy(seed))[0]) for way in ways]
        assert len(set(drawn)) == 1


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 7.7])
@pytest.mark.parametrize("kind", [*BOTH, LaplaceMechanism])
def test_an_epsilon_is_nearly_used_up_and_never_exceeded(kind, epsilon):
    spent = event_costs.pure(kind.of(epsilon).event())
    assert spent is not None
    assert Fraction(epsilon) * (1 - Fraction(1, 2**50)) <= spent <= Fraction(epsilon)


@pytest.mark.parametrize("kind", BOTH)
def test_a_choice_among_several_ranges_charges_nothing(kind):
    curator = make()
    several = ClippedSum(
        votes, score_range=[(0.0, 1.0), (0.0, 2.0), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]
    )
    with pytest.raises(UsageError, match="single unit and range"):
        curator.release(several, kind.of(1.0))
    assert curator.ledger.head().kind == "birth"
