"""The instruments must be able to fail: planted leaks are found, and honest code passes."""

import functools

import numpy as np
import pytest
import scipy.stats
import torch

from dpbo import Adjacency
from dpbo.testing import SeededEntropy, check_per_record
from tests.contracts.mechanism_contract import assert_law, assert_not_law

RECORDS = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


WHOLE = torch.arange(1, 41).reshape(40, 1)


def test_check_per_record_needs_something_to_compare():
    def only_these(_x, r):
        assert torch.equal(r, WHOLE)
        return r[:, 0]

    with pytest.raises(AssertionError, match="nothing could be compared"):
        check_per_record(only_these, None, WHOLE)


def test_a_score_of_the_number_of_records_leaks_only_where_that_is_private():
    def by_the_count(_x, records):
        return records[:, 0] / len(records)

    check_per_record(by_the_count, None, RECORDS, trials=2)
    for settings in ({"grouped": True}, {"adjacency": Adjacency.ADD_OR_REMOVE_ONE}):
        with pytest.raises(AssertionError, match="leaving out"):
            check_per_record(by_the_count, None, RECORDS, trials=2, **settings)


def test_laws_are_told_from_wrong_ones():
    samples = scipy.stats.norm.ppf(np.random.default_rng(0).random(20_000))
    assert_law(samples, scipy.stats.norm.cdf)
    for scale in (0.9, 1.1):
        assert_not_law(samples, functools.partial(scipy.stats.norm.cdf, scale=scale))
        with pytest.raises(AssertionError, match="reject the law"):
            assert_law(samples, functools.partial(scipy.stats.norm.cdf, scale=scale))
    with pytest.raises(AssertionError, match="no power"):
        assert_not_law(samples, scipy.stats.norm.cdf)


def test_the_seeded_source_repeats_itself_and_differs_by_seed():
    assert SeededEntropy(1)(8) == SeededEntropy(1)(8) != SeededEntropy(2)(8)
    source = SeededEntropy(1)
    assert source(8) != source(8)
