"""Audits reach nine tenths of every claim, never pass it, and catch what is sabotaged."""

import numpy as np
import pytest

from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism
from dpbo.testing import audit
from dpbo.testing.auditing import reachable
from tests.attacks.test_audits import drawing
from tests.setups import of


def test_an_audit_finds_what_so_many_runs_can():
    """Whatever the threshold: chosen from as many runs, or fixed beforehand."""
    mu = 3.0
    runs = 5000
    fixed = of(statistic=lambda x: x[:, 0], threshold=0.5)
    for settings in (of(), fixed):
        found = audit(drawing(GaussianMechanism(1 / mu), seed=1), runs=runs, **settings)
        assert reachable(mu, runs) == pytest.approx(found.mu, rel=0.03)
        assert f"{runs:,} measured runs" in str(found)


def test_draws_that_break_the_audits_assumptions_are_refused():
    with pytest.raises(InputError, match="independent in every call"):
        audit(lambda which, count: np.random.default_rng(which).normal(size=(count, 5)), runs=200)
    with pytest.raises(InputError, match="as many outputs"):
        audit(lambda which, count: np.zeros(count // 2), runs=200)
