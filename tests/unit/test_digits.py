"""mpmath's precision in threads."""

import functools
import threading
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpbo import _mpmath
from dpbo._mpmath import precision
from dpbo.accounting import gdp
from dpbo.accounting.gdp import true_positive_rate
from dpbo.mechanisms import exponential, permute_and_flip
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.l2_laplace import _decided
from dpbo.mechanisms.laplace import LAPLACE
from dpbo.mechanisms.rounding import decide
from dpbo.mechanisms.run_count import draw_run_count
from dpbo.statement import Guarantee
from dpbo.testing import SeededEntropy
from tests.unit.mechanisms.test_run_count import LAWS


def test_no_thread_takes_digits_from_another():
    inside = threading.Event()

    def other():
        with precision(80):
            inside.set()

    before = mpmath.mp.prec
    thread = threading.Thread(target=other)
    with precision(300):
        thread.start()
        assert not inside.wait(0.2)
        assert mpmath.mp.prec == 300
    thread.join()
    assert inside.is_set()
    assert mpmath.mp.prec == before


@pytest.fixture
def turns(monkeypatch):
    """Whether each setting of mpmath's precision was in a block, its own thread's turn."""
    found: list[bool] = []
    kind = next(each for each in type(mpmath.mp).__mro__ if "prec" in vars(each))
    own = vars(kind)["prec"]

    def watched(context, bits):
        found.append(_mpmath._lock._is_owned())  # type: ignore[attr-defined]
        own.fset(context, bits)

    monkeypatch.setattr(kind, "prec", property(own.fget, watched))
    return found


def test_laws_draws_and_curves_set_the_precision_in_their_turn(turns):
    # next to an edge, whatever is drawn: floats do not decide
    fraction, scale = 0.5 - 2.0**-53, 2.0**-54
    works: list[Callable[[], object]] = [
        lambda: decide(NORMAL, 1 << 62, False, fraction, scale, SeededEntropy(0)),
        lambda: decide(LAPLACE, 1 << 62, False, fraction, scale, SeededEntropy(0)),
        lambda: _decided(
            np.arange(1, 5, dtype=np.uint64), [0.5, 0.5], [2.0**20] * 2, SeededEntropy(0)
        ),
        lambda: exponential._exactly(
            np.array([3, 2]), np.array([0, 5]), Fraction(1, 3), 1 << 63, 64
        ),
        lambda: permute_and_flip._exactly(3, 5, Fraction(1, 3), 1 << 63, 64),
        lambda: gdp._exact_delta(1.0, 1.0),
        lambda: true_positive_rate(Guarantee(1.0, None, None), 0.01),
        *(functools.partial(_used, law) for law in LAWS),
    ]
    for place, work in enumerate(works):
        turns.clear()
        work()
        assert turns, place
        assert all(turns), place
    turns.clear()
    # A function that sets the precision by itself is seen.
    mpmath.expm1(1)
    assert turns
    assert not any(turns)


def _used(law):
    law.first()
    law.quantile(0.95)
    draw_run_count(law, SeededEntropy(0))
