"""The instruments must be able to fail: planted leaks are found, and honest code passes."""

import dataclasses
import functools
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.stats
import torch

from dpbo import Adjacency
from dpbo.accounting.filters import Filter
from dpbo.events import GaussianEvent
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.privacy import Sensitivity
from dpbo.queries import ClippedMean, ClippedSum, Query
from dpbo.queries.clipped import ClippedScores
from dpbo.testing import MechanismContract, QueryContract, SeededEntropy, check_per_record
from dpbo.testing.mechanism_contract import assert_law, assert_not_law
from tests.attacks.marks import attack
from tests.contracts import test_ledger_contract
from tests.setups import of

RECORDS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


def test_check_per_record_tells_honest_scores_from_leaking_ones():
    leaks = {
        "normalised by the batch": lambda _x, r: (r[:, 0] - r[:, 0].mean()) / r[:, 0].std(),
        "ranked": lambda _x, r: r[:, 0].argsort().argsort(),
    }
    for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE):
        check_per_record(lambda _x, r: (r * r).sum(1), None, RECORDS, adjacency=adjacency)
        for leak in leaks.values():
            with pytest.raises(AssertionError, match="does not treat each record by itself"):
                check_per_record(leak, None, RECORDS, adjacency=adjacency)


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

    check_per_record(by_the_count, None, RECORDS)
    for settings in ({"grouped": True}, {"adjacency": Adjacency.ADD_OR_REMOVE_ONE}):
        with pytest.raises(AssertionError, match="leaving out"):
            check_per_record(by_the_count, None, RECORDS, **settings)


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
    assert [SeededEntropy(1)(8), SeededEntropy(2)(8)] == [SeededEntropy(1)(8), SeededEntropy(2)(8)]
    assert SeededEntropy(1)(8) != SeededEntropy(2)(8)
    source = SeededEntropy(1)
    assert source(8) != source(8)


def mutant(honest, **methods):
    """A subclass that some methods are replaced in, and that vouches for them."""
    return type(
        "Mutant", (honest,), {"per_unit": True, **methods} if issubclass(honest, Query) else methods
    )


replace = dataclasses.replace
lattices = ClippedMean.lattices
evaluate = ClippedMean._evaluate
sensitivity = ClippedMean.sensitivity
sample = GaussianMechanism._sample
law_of = GaussianMechanism.distribution


def unclipped(self, units):
    return [replace(grid, low=-(2**50), high=2**50) for grid in lattices(self, units)]


def halved(self, adjacency):
    true = sensitivity(self, adjacency)
    return Sensitivity(true.l1 / 2, true.l2 / 2, true.linf / 2, true.scale)


BROKEN_QUERIES: dict[str, dict[str, Any]] = {
    "B for 2B": {"sensitivity": halved},
    "the clip is not used": {"lattices": unclipped},
    "a unit's records summed where their mean is declared": {
        "_evaluate": lambda self, view, subject: evaluate(
            self, replace(view, groups=None, rows=None), subject
        )
    },
    "clipped only where there are groups": {
        "_evaluate": lambda self, view, subject: evaluate(
            (
                self
                if view.groups is not None
                else mutant(ClippedMean, lattices=unclipped)(self.score, score_range=(0.0, 1.0))
            ),
            view,
            subject,
        )
    },
}


def without_a_cap(self, view, subject):
    return ClippedSum._evaluate(replace(self, max_records_per_unit=10**6), view, subject)


def unclipped_in_large_data_sets(self, view, subject):
    free = mutant(
        ClippedSum,
        lattices=lambda self, units: [
            replace(g, low=-(2**45)) for g in ClippedSum.lattices(self, units)
        ],
    )
    return ClippedSum._evaluate(
        self if view.units <= 1000 else free(self.score, score_range=(-1.0, 1.0)), view, subject
    )


@pytest.mark.parametrize(
    ("evaluated", "most", "guard"),
    [
        (without_a_cap, 8, "a_unit_of_any_size"),
        (unclipped_in_large_data_sets, 1, "one_of_many_units"),
    ],
)
@attack("A9", "A20", "A36")
def test_the_query_contract_catches_what_is_wrong_at_some_sizes_alone(evaluated, most, guard):
    class Contract(QueryContract):
        covers = ClippedScores

        def query(self, score):
            return mutant(ClippedSum, _evaluate=evaluated)(
                score, score_range=(-1.0, 1.0), max_records_per_unit=most
            )

    with pytest.raises(AssertionError, match="moved by"):
        getattr(Contract(), f"test_{guard}_stays_within_the_declared_sensitivity")()


@pytest.mark.parametrize("name", BROKEN_QUERIES)
@attack("A9")
def test_the_query_contract_catches_a_broken_sensitivity(name):
    class Contract(QueryContract):
        covers = ClippedScores

        def query(self, score):
            return mutant(ClippedMean, **BROKEN_QUERIES[name])(
                score, score_range=(0.0, 1.0), divisor=10
            )

    hunt: Any = Contract.test_neighbours_stay_within_the_declared_sensitivity
    terms = of(phases=[hypothesis.Phase.generate], database=None, derandomize=True, deadline=None)
    found = hypothesis.settings(max_examples=500, report_multiple_bugs=False, **terms)
    with pytest.raises(AssertionError, match="moved by"):
        found(hypothesis.given(hypothesis.strategies.data())(hunt.hypothesis.inner_test))(
            Contract()
        )


def scaled(factor):
    def drawn(self, numerators, quanta, law, entropy):
        return sample(
            self,
            numerators,
            quanta,
            replace(law, scale=tuple(factor * s for s in law.scale)),
            entropy,
        )

    return {"_sample": drawn}


def by_the_first(self, numerators, quanta, law, entropy):
    count = len(law.scale)
    return sample(
        self,
        numerators,
        quanta,
        replace(law, scale=law.scale[:1] * count, grid=law.grid[:1] * count),
        entropy,
    )


def reused(self, numerators, quanta, law, entropy):
    """Seven coordinates apart the noise is the same."""
    noise = sample(self, np.zeros_like(numerators), quanta, law, entropy)
    pairs = noise[: len(noise) // 14 * 14].reshape(-1, 2, 7)
    pairs[:, 1] = pairs[:, 0]
    return noise + (np.asarray(numerators) >> 22)


def none_on_large_values(self, numerators, quanta, law, entropy):
    exact = np.asarray(numerators)
    whole = sample(self, exact, quanta, law, entropy)
    return np.where(np.abs(exact) > 2**50, exact // round(law.grid[0] / quanta[0]), whole)


def too_little_at_some_widths(self, numerators, quanta, law, entropy):
    return scaled(0.5 if 3 <= len(numerators) <= 99 else 1.0)["_sample"](
        self, numerators, quanta, law, entropy
    )


def by_linf_at_some_widths(self, sensitivity, quanta):
    return law_of(
        self,
        replace(sensitivity, l2=sensitivity.linf) if 3 <= len(quanta) <= 99 else sensitivity,
        quanta,
    )


def added_as_floats(self, numerators, quanta, law, entropy):
    """The noise is rounded to the grid before the value is added: the value's low bits survive."""
    return 4 * (sample(self, np.zeros_like(numerators), quanta, law, entropy) // 4) + (
        np.asarray(numerators) >> 20
    )


# by the contract's test that must see it
BROKEN_NOISE: dict[str, list[dict[str, Any]]] = {
    "noise_is_at_least_what_the_event_charges_for": [
        {"event": lambda self, count=1: GaussianEvent(100 * self.noise_multiplier, count)},
        {"distribution": by_linf_at_some_widths},
    ],
    "each_coordinate_has_its_own_scale": [{"_sample": by_the_first}],
    "coordinates_are_independent": [{"_sample": reused}],
    "vectors_of_every_width_get_the_noise_of_their_event": [{"_sample": too_little_at_some_widths}],
    "noise_is_added_to_the_exact_value": [{"_sample": none_on_large_values}],
    "noise_comes_from_the_entropy_and_from_all_of_it": [
        {
            "_sample": lambda self, numerators, quanta, law, entropy: sample(
                self, numerators, quanta, law, SeededEntropy(0)
            )
        }
    ],
    "several_slots_are_charged_as_several": [
        {"event": lambda self, count=1: GaussianEvent(self.noise_multiplier, 1)}
    ],
    "law_is_accepted_and_wrong_scales_are_rejected": [scaled(0.7)],
    "supports_of_neighbours_are_equal": [{"_sample": added_as_floats}],
}


@pytest.mark.parametrize("guard", BROKEN_NOISE)
@attack("A1", "A2", "A12")
def test_the_mechanism_contract_catches_wrong_noise_supports_and_charges(guard):
    for methods in BROKEN_NOISE[guard]:

        class Contract(MechanismContract):
            covers = GaussianMechanism
            norm = "l2"
            methods_of = methods

            def mechanism(self):
                return mutant(GaussianMechanism, **self.methods_of)(3.0)

            def cdf(self, noise, scale):
                return scipy.stats.norm.cdf(noise, scale=scale)

        with pytest.raises(AssertionError, match="reject the law" if "scale" in guard else None):
            getattr(Contract(), f"test_{guard}")()


@attack("A16")
def test_the_ledger_contract_catches_a_dropped_charge_and_a_batch_charged_as_one(monkeypatch):
    contract: Any = test_ledger_contract.TestMemory()
    cost = Filter.cost_or_none
    for guard, owner, method, sabotage in (
        (contract.test_cap, Ledger, "charge", lambda ledger, *charged, **how: 1),
        (
            contract.test_plan,
            Filter,
            "cost_or_none",
            lambda accounting, event: cost(accounting, event.repeated(1)),
        ),
    ):
        guard(None)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, sabotage)
            with pytest.raises((AssertionError, pytest.fail.Exception)):
                guard(None)
