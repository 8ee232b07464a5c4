"""The instruments must be able to fail: planted leaks are found, and honest code passes."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpbo import Adjacency
from dpbo.events import GaussianEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.privacy import Sensitivity
from dpbo.queries import ClippedMean
from dpbo.queries.clipped import ClippedScores
from dpbo.testing import MechanismContract, QueryContract, SeededEntropy, assert_law, assert_not_law, check_per_record

RECORDS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


def honest(_x, records):
    return (records * records).sum(1)


def batch_normalised(_x, records):
    return (records[:, 0] - records[:, 0].mean()) / records[:, 0].std()


def by_the_largest(_x, records):
    return records[:, 0] / records[:, 0].max()


def by_the_range(_x, records):
    return (records[:, 0] - records[:, 0].min()) / (records[:, 0].max() - records[:, 0].min())


def by_the_count(_x, records):
    return records[:, 0] / len(records)


def ranked(_x, records):
    return records[:, 0].argsort().argsort()


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE])
def test_check_per_record_tells_honest_scores_from_leaking_ones(adjacency):
    check_per_record(honest, None, RECORDS, adjacency=adjacency)
    for leak in (batch_normalised, ranked, by_the_largest, by_the_range):
        with pytest.raises(AssertionError, match="does not treat each record by itself"):
            check_per_record(leak, None, RECORDS, adjacency=adjacency)


def test_check_per_record_takes_integers_and_batches_and_needs_something_to_compare():
    whole = torch.arange(1, 41).reshape(40, 1)
    check_per_record(lambda _x, r: iter(r[:, 0].split(7)), None, whole)
    for leak in (lambda _x, r: (r[:, 0] >= 20).int() + int(r.max() > 1000), lambda _x, r: r[:, 0] * 1.0 + float(r.max() > 1e7)):
        with pytest.raises(AssertionError, match="moved other records"):
            check_per_record(leak, None, whole)

    def only_these(_x, r):
        assert torch.equal(r, whole)
        return r[:, 0]

    with pytest.raises(AssertionError, match="nothing could be compared"):
        check_per_record(only_these, None, whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_check_per_record_takes_records_that_carry_a_gradient(dtype):
    records = RECORDS.to(dtype).requires_grad_()
    check_per_record(lambda _x, r: r[:, 0].double() * 2, None, records)
    with pytest.raises(AssertionError, match="moved other records"):
        check_per_record(lambda _x, r: (r[:, 0] - r[:, 0].mean()).double(), None, records)


def test_a_score_that_depends_on_the_number_of_records_leaks_only_where_that_is_private():
    check_per_record(by_the_count, None, RECORDS)
    for settings in ({"grouped": True}, {"adjacency": Adjacency.ADD_OR_REMOVE_ONE}):
        with pytest.raises(AssertionError, match="leaving out"):
            check_per_record(by_the_count, None, RECORDS, **settings)


def test_laws_are_told_from_wrong_ones():
    samples = norm.ppf(np.random.default_rng(0).random(20_000))
    assert_law(samples, norm.cdf)
    for scale in (0.7, 0.9, 1.1, 1.3):
        assert_not_law(samples, functools.partial(norm.cdf, scale=scale))
        with pytest.raises(AssertionError, match="reject the law"):
            assert_law(samples, functools.partial(norm.cdf, scale=scale))
    with pytest.raises(AssertionError, match="no power"):
        assert_not_law(samples, norm.cdf)


def test_the_seeded_source_repeats_itself_and_differs_by_seed():
    assert [SeededEntropy(1)(8), SeededEntropy(2)(8)] == [SeededEntropy(1)(8), SeededEntropy(2)(8)]
    assert SeededEntropy(1)(8) != SeededEntropy(2)(8)
    source = SeededEntropy(1)
    assert source(8) != source(8)


class _HalfSensitivity(ClippedMean):
    """2B -> B."""

    def sensitivity(self, adjacency):
        true = super().sensitivity(adjacency)
        return Sensitivity(true.l1 / 2, true.l2 / 2, true.linf / 2, true.scale)


class _NoClip(ClippedMean):
    """The clip is computed and not used."""

    def lattices(self, units):
        return [dataclasses.replace(grid, low=-(2**50), high=2**50) for grid in super().lattices(units)]


class _NaNAtTheFarSide(ClippedMean):
    """A NaN becomes a huge number instead of the worst end."""

    def lattices(self, units):
        return [dataclasses.replace(grid, worst=3 * grid.low) for grid in super().lattices(units)]


class _SumThenClip(ClippedMean):
    """A unit's records are summed where their mean is declared."""

    def _evaluate(self, view, subject):
        everyone = dataclasses.replace(view, groups=None, rows=None)
        return super()._evaluate(everyone, subject)


def _contract(query):
    class Contract(QueryContract):
        covers = ClippedScores

        def query(self, score):
            return query(score, score_range=(0.0, 1.0), divisor=10)

    return Contract()


class _NoClipWithoutGroups(ClippedMean):
    """Clipped only where there are groups."""

    def _evaluate(self, view, subject):
        honest = view.groups is not None
        return super()._evaluate(view, subject) if honest else _NoClip(self.score, score_range=(0.0, 1.0))._evaluate(view, subject)


@pytest.mark.parametrize("mutant", [_HalfSensitivity, _NoClip, _NaNAtTheFarSide, _SumThenClip, _NoClipWithoutGroups])
@pytest.mark.attack("A9")
def test_the_query_contract_catches_a_broken_sensitivity(mutant):
    with pytest.raises(AssertionError, match="moved by"):
        _contract(mutant).test_neighbours_stay_within_the_declared_sensitivity()


class _Scaled(GaussianMechanism):
    factor = 0.7

    def _sample(self, numerators, quanta, law, entropy):
        quiet = dataclasses.replace(law, scale=tuple(self.factor * s for s in law.scale))
        return super()._sample(numerators, quanta, quiet, entropy)


class _Loud(_Scaled):
    factor = 1.3


class _Flattering(GaussianMechanism):
    """Charges for a hundred times its noise."""

    def event(self, slots=1):
        return GaussianEvent(100 * self.noise_multiplier, slots)


class _Linf(GaussianMechanism):
    """Scales to the largest coordinate instead of the l2 norm."""

    def law(self, sensitivity, quanta):
        return super().law(dataclasses.replace(sensitivity, l2=sensitivity.linf), quanta)


class _OneScale(GaussianMechanism):
    """The finest coordinate's scale for all."""

    def law(self, sensitivity, quanta):
        return super().law(dataclasses.replace(sensitivity, scale=(min(sensitivity.scale),) * len(sensitivity.scale)), quanta)


class _OneForAll(GaussianMechanism):
    """A batch charged as one release."""

    def event(self, slots=1):
        return GaussianEvent(self.noise_multiplier, 1)


@pytest.mark.parametrize("mutant", [_Flattering, _Linf, _OneScale])
@pytest.mark.attack("A12")
def test_the_mechanism_contract_compares_noise_and_charge(mutant):
    with pytest.raises(AssertionError):
        _mechanism_contract(mutant).test_noise_is_at_least_what_the_event_charges_for()


class _FirstScale(GaussianMechanism):
    """The first coordinate's scale and grid for all."""

    def _sample(self, numerators, quanta, law, entropy):
        count = len(law.scale)
        return super()._sample(
            numerators, quanta, dataclasses.replace(law, scale=law.scale[:1] * count, grid=law.grid[:1] * count), entropy
        )


def test_the_mechanism_contract_looks_at_each_coordinate():
    with pytest.raises(AssertionError, match="reject the law"):
        _mechanism_contract(_FirstScale).test_each_coordinate_has_its_own_scale()


class _Antithetic(GaussianMechanism):
    """The second half of a vector carries the first half's noise, turned round."""

    def _sample(self, numerators, quanta, law, entropy):
        noise = super()._sample(np.zeros_like(numerators), quanta, law, entropy)
        half = len(noise) // 2
        noise[half : 2 * half] = -noise[:half]
        return noise + (np.asarray(numerators) >> 22)


class _Repeating(GaussianMechanism):
    """Its own seed instead of the entropy it is given."""

    def _sample(self, numerators, quanta, law, entropy):
        return super()._sample(numerators, quanta, law, SeededEntropy(0))


def test_the_mechanism_contract_sees_noise_that_cancels_or_repeats():
    with pytest.raises(AssertionError):
        _mechanism_contract(_Antithetic).test_coordinates_are_independent()
    with pytest.raises(AssertionError):
        _mechanism_contract(_Repeating).test_noise_comes_from_the_entropy_and_from_all_of_it()


def test_the_mechanism_contract_counts_slots():
    with pytest.raises(AssertionError):
        _mechanism_contract(_OneForAll).test_several_slots_are_charged_as_several()


class _FloatAdded(GaussianMechanism):
    """Float noise on a float value, rounded to the grid before the value is added: the value's low bits survive."""

    def _sample(self, numerators, quanta, law, entropy):
        noise = super()._sample(np.zeros_like(numerators), quanta, law, entropy)
        return 4 * (noise // 4) + (np.asarray(numerators) >> 20)


@pytest.mark.parametrize("mutant", [_Scaled, _Loud])
@pytest.mark.attack("A12")
def test_the_mechanism_contract_catches_a_wrong_scale(mutant):
    with pytest.raises(AssertionError, match="reject the law"):
        _mechanism_contract(mutant).test_law_is_accepted_and_wrong_scales_are_rejected()


@pytest.mark.attack("A1")
@pytest.mark.attack("A2")
def test_the_mechanism_contract_catches_unequal_supports_and_low_bits():
    with pytest.raises(AssertionError):
        _mechanism_contract(_FloatAdded).test_supports_of_neighbours_are_equal()
    with pytest.raises(AssertionError):
        _mechanism_contract(_FloatAdded).test_low_bits_of_the_output_do_not_depend_on_the_value()


def _mechanism_contract(mechanism):
    class Contract(MechanismContract):
        covers = GaussianMechanism
        norm = "l2"

        def mechanism(self):
            return mechanism(3.0)

        def cdf(self, noise, scale):
            return norm.cdf(noise, scale=scale)

    return Contract()
