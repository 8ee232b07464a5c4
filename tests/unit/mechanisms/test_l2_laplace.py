"""The l2-norm Laplace mechanism under its contract, its privacy on densities, and through the
curator.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from dpbo import Budget
from dpbo.accounting import GDPFilter, PureFilter
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.l2_laplace import _decided
from dpbo.papers.po_gp_ucb import RowTable
from tests.attacks.marks import attack
from tests.contracts.mechanism_contract import VectorContract
from tests.setups import DOUBLE, owner
from tests.unit.mechanisms.words import Words, words_of


class TestL2Laplace(VectorContract):
    covers = L2LaplaceMechanism

    def mechanism(self):
        return L2LaplaceMechanism(2.0)

    def radius(self, radius, dimension):
        return stats.gamma(dimension).cdf(radius)

    def slowly(self, fractions, scale, entropy):
        words = np.frombuffer(entropy(16 * len(fractions)), dtype="<u8")
        return _decided(words, fractions.tolist(), scale.tolist(), entropy)


def noise(fractions, scales, entropy):
    return L2LaplaceMechanism(1.0).noise(np.array(fractions), np.array(scales), entropy).tolist()


@attack("A14")
def test_two_words_that_are_an_edges_own_bits_leave_it_to_the_third():
    """One dimension, a radius of which nearly no uniform number is left: its last bit outweighs
    those of the direction.
    """
    scale, fraction, edge = 2.0**20 * 1.37, 0.8125, int(2.0**20 * 1.37 * 30)
    _require_the_third_word_to_decide(fraction, scale, edge, 1)


@attack("A14")
def test_the_bits_of_one_direction_decide_another_coordinate():
    """Two dimensions, the second normal far out: its last bit outweighs those of all other numbers
    in the first coordinate.
    """
    scale, radius_words, small = 2.0**20 * 1.37, (3 << 62, 1 << 62), 1 << 61
    half = mpmath.mpf(1) / 2
    with mpmath.workdps(90):
        radius = -sum(
            mpmath.log(mpmath.mpf(word) / 2**64 + mpmath.mpf(2) ** -65 + mpmath.mpf(2) ** -129)
            for word in radius_words
        )
        z = -NORMAL.exact(mpmath.mpf(small) / 2**64 + mpmath.mpf(2) ** -65 + mpmath.mpf(2) ** -129)
        edge = int(radius * z / mpmath.sqrt(z**2 + mpmath.mpf(7.4) ** 2) * scale)
        fractions = [0.8125, 0.0]
        length = radius * z * scale / (edge - mpmath.mpf(fractions[0]) - half)
        first, second, third = words_of(mpmath.ncdf(-mpmath.sqrt(length**2 - z**2)))
        other = radius * mpmath.sqrt(length**2 - z**2) / length * scale
        fractions[1] = float(-other % 1)  # as far from an edge of its own as can be
        beside = int(mpmath.floor(other + fractions[1] + half))
    for last, value in ((third - 1, edge - 1), (third + 1, edge), (0, edge - 1), (2**64 - 1, edge)):
        words = Words(
            (*radius_words, small, first),
            (1 << 63, 1 << 63, 1 << 63, second),
            (1 << 63, 1 << 63, 1 << 63, last),
        )
        assert noise(fractions, [scale] * 2, words) == [value, beside]
        assert words.asked == 3


@attack("A14")
def test_ends_that_the_digits_carried_cannot_tell_from_an_edge_wait_for_more_bits():
    """A scale so small that two words leave less open than mpmath's margin: the edge lies between
    their ends, and either may be over it.
    """
    _require_the_third_word_to_decide(0.8125, 1.37, 2, 2**50)


def _require_the_third_word_to_decide(fraction, scale, edge, distance):
    """In one dimension, where the first two words of the radius are the edge's own, and the third
    lies at this distance from it or at an end.
    """
    with mpmath.workdps(90):
        first, second, third = words_of(
            mpmath.exp((mpmath.mpf(fraction) + mpmath.mpf(1) / 2 - edge) / scale)
        )
    for last, value in (
        (third - distance, edge),
        (third + distance, edge - 1),
        (0, edge),
        (2**64 - 1, edge - 1),
    ):
        words = Words((first, 1 << 61), (second, 1 << 63), (last, 1 << 63))
        assert noise([fraction], [scale], words) == [value]
        assert words.asked == 3


@attack("A14")
def test_words_next_to_zero_give_the_sign_and_the_direction():
    """A coordinate next to zero, at a fraction that rounds up with nothing added and down with the
    least taken away.
    """
    for word, value in (((1 << 63) - 1, 1), ((1 << 64) - 1, 0)):
        words = Words((1 << 62, 1 << 62, word, 1 << 61), middle=True)
        assert noise([0.5, 0.0], [2.0**20] * 2, words)[0] == value
    length = 2 * math.log(4) * 2**20
    words = Words((1 << 62, 1 << 62, (1 << 63) - 1, (1 << 63) - (1 << 34)), middle=True)
    fractions = [0.5 - 2.0**-5, -length % 1]
    assert noise(fractions, [2.0**20] * 2, words) == [0, math.ceil(length)]


@pytest.mark.parametrize("place", [0, 1])
def test_words_of_nothing_but_zeros_go_on_to_the_next(place):
    """Neither a radius nor a direction is known of a number of which 128 bits are zero."""
    middle = [1 << 62, 1 << 61]
    starts = [0 if i == place else word for i, word in enumerate(middle)]
    words = Words(tuple(starts), tuple(starts), (1 << 63, 1 << 63), middle=True)
    drawn = noise([0.0], [2.0**20], words)
    with mpmath.workdps(90):
        radius = -mpmath.log(mpmath.mpf(2) ** -129 if place == 0 else mpmath.mpf(1) / 4)
    assert words.asked > 2
    assert drawn[0] == pytest.approx(float(radius) * 2**20, rel=1e-3)


@pytest.mark.parametrize(
    ("mechanism", "delta", "accounting"),
    [(L2LaplaceMechanism(1.0), 0.0, PureFilter()), (GaussianMechanism(1.0), 1e-5, GDPFilter())],
    ids=["l2-laplace", "gaussian"],
)
def test_rows_of_a_table_have_noise_of_their_own(mechanism, delta, accounting):
    """Equal rows stay equal nowhere: two that shared their noise would tell their difference
    exactly.
    """
    records = torch.zeros(400, 2, dtype=DOUBLE)
    curator = owner(records, budget=Budget(50.0, delta), accounting=accounting)
    rows = curator.release(RowTable((0.0, 0.0), 1.0), mechanism).value.reshape(400, 2).numpy()
    assert len(np.unique(rows, axis=0)) == 400
    assert abs(np.corrcoef(rows[:-1, 0], rows[1:, 0])[0, 1]) < 0.3, "six standard deviations"
