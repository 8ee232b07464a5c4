"""What the contract tests share: fewer examples than the package ships for its users, and the
contract of questions about points.
"""

import abc
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbo import Adjacency, PrivacyUnit
from dpbo.queries.query import IntegerSum
from dpbo.records.view import PrivateView
from dpbo.testing.query_contract import SumContract, moved
from tests.setups import DOUBLE

_QUICK = settings(
    deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
)


def tries(examples, *, neighbours=None):
    """Class decorator: every inherited hypothesis test draws so many examples, the hunt for
    neighbours as many as `neighbours` says.
    """

    def decorated(contract):
        for name in dir(contract):
            if found := getattr(getattr(contract, name), "hypothesis", None):
                count = (
                    neighbours or examples
                    if name == "test_neighbours_stay_within_the_declared_sensitivity"
                    else examples
                )
                setattr(
                    contract,
                    name,
                    settings(_QUICK, max_examples=count)(given(st.data())(found.inner_test)),
                )
        return contract

    return decorated


def exact_sum(query, records, unit=None, *, public=True, **how):
    """The whole numbers that a question is answered with before noise; `public`: whether the number
    of units is.
    """
    view = PrivateView.of(records, unit or PrivacyUnit("record"), units_are_public=public, **how)
    found = query._evaluate(view, query.prepare())
    assert isinstance(found, IntegerSum)
    return found


class PointContract(SumContract):
    """Units are single records; `worst` gives record lists whose answers lie as far apart as each
    relation allows.
    """

    tight = True

    @abc.abstractmethod
    def worst(self, adjacency):
        """Two lists of records, neighbours under this relation."""

    def test_worst_case_attains_the_sensitivity(self):
        for adjacency in self.adjacencies:
            query = self.query(lambda _, records: records)
            sensitivity = query.sensitivity(adjacency)
            public = 2 if adjacency is Adjacency.REPLACE_ONE else None
            a, b = (
                self._of_units(query, [[row] for row in rows], DOUBLE, public)
                for rows in self.worst(adjacency)
            )
            _, squared, _ = moved(
                a.numerators.tolist(), b.numerators.tolist(), a.quanta, sensitivity
            )
            assert math.sqrt(squared) <= sensitivity.l2
            if self.tight:
                assert math.sqrt(squared) >= 0.995 * sensitivity.l2
