"""A disk that fills up or may not be written, in a child process of its own: limits and user ids are the whole process's."""

import os
import pathlib
import resource
import shutil
import signal
import tempfile

import pytest

from dpbo.curator.ledger import Ledger
from dpbo.errors import LedgerUnavailable, ReleaseLost
from dpbo.mechanisms import GaussianMechanism
from tests.fire.runs import MEAN, Drawn, make

NOISE = GaussianMechanism(60.0)
NOBODY = 65534


def release_until_refused(curator, drawn, most=400):
    """The handle on which the ledger could not be written, and what it said."""
    for _ in range(most):
        handle = curator.evaluate(MEAN)
        try:
            curator.release(handle, NOISE)
        except LedgerUnavailable as error:
            return handle, error
    raise AssertionError("the fault never struck")


def require_going_on(curator, drawn, handle, url):
    """The fault is over: the handle is delivered if it was drawn, released if it was not charged, else said to be lost; then life goes on.

    Returns in which step of the release the fault struck.
    """
    was_drawn, was_charged = handle.id in drawn.handles, curator.ledger.charged(handle.id)
    assert was_charged or not was_drawn, "drawn without a charge"
    if was_charged and not was_drawn:
        with pytest.raises(ReleaseLost):
            curator.release(handle, NOISE)
    else:
        curator.release(handle, NOISE)
    curator.release(curator.evaluate(MEAN), NOISE)
    drawn.require_sound(url, lost=int(was_charged and not was_drawn))
    return "value" if was_drawn else "commit of the charge" if was_charged else "charge"


def full_disk(folder, room):
    """A file that may grow by `room` bytes and no further: the system refuses the write, as a full disk does."""
    url, drawn = f"{folder}/l.db", Drawn(pytest.MonkeyPatch())
    curator = make(url)
    curator.release(curator.evaluate(MEAN), NOISE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (pathlib.Path(url).stat().st_size + room, unlimited[1]))
    handle, _ = release_until_refused(curator, drawn)
    with pytest.raises(LedgerUnavailable):
        curator.release(curator.evaluate(MEAN), NOISE)  # still full
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    return require_going_on(curator, drawn, handle, url)


def read_only(what):
    """The file, or its folder, loses its write permission under a curator of an unprivileged user, and gets it back."""
    make(None).release(MEAN, NOISE)  # imports what may not be readable to that user
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dpbo_disk_"))
    url, drawn = f"{folder}/l.db", Drawn(pytest.MonkeyPatch())
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        curator = make(url)
        curator.release(curator.evaluate(MEAN), NOISE)
        shut = folder if what == "folder" else folder / "l.db"
        mode = shut.stat().st_mode
        shut.chmod(mode & ~0o222)
        handle = curator.evaluate(MEAN)
        for call in (lambda: curator.release(handle, NOISE), lambda: make(url).release(MEAN, NOISE)):
            with pytest.raises(LedgerUnavailable) as refused:
                call()
            assert "readonly" in str(refused.value) or "unable to open" in str(refused.value), refused.value
        assert Ledger.existing(url).verify().kind == "value", "who may only read can still verify"
        shut.chmod(mode)
        return require_going_on(curator, drawn, handle, url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
