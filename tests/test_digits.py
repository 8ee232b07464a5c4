"""mpmath's precision in threads."""

import threading

import mpmath

from dpbo.digits import precision


def test_no_thread_takes_digits_from_another():
    inside = threading.Event()

    def other():
        with precision(80):
            inside.set()

    before, thread = mpmath.mp.prec, threading.Thread(target=other)
    with precision(300):
        thread.start()
        assert not inside.wait(0.2)
        assert mpmath.mp.prec == 300
    thread.join()
    assert inside.is_set()
    assert mpmath.mp.prec == before
