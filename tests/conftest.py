"""One thread a process, before torch is imported; and noise that is the same in every run, for tests that ask for it."""

import importlib
import multiprocessing
import os
import signal
import types

import hypothesis
import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
multiprocessing.set_forkserver_preload(["tests.preloaded"])  # forkserver: processes are forked from one that has imported it

# No example fails for taking long, also where a test sets nothing: a machine may be slow, or busy.
hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any machine")


@pytest.fixture
def ctrl_c():
    """SIGINT interrupts, also where the tests run in the background, whose shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def on_disk(tmp_path):
    """Terms of a curator whose ledger is a file."""
    return {"dataset": "d", "ledger": str(tmp_path / "l.db")}


@pytest.fixture
def seeded_noise(monkeypatch):
    """The system's entropy as a fixed stream, and torch's generator, which proposals ask, at its start: a search finds the same in
    every run and order of tests. Only in this process. `system_entropy` stays the same function, so statements are not void.
    """
    import torch  # not above, before the variables are set

    from dpbo.testing import SeededEntropy

    torch.manual_seed(0)
    monkeypatch.setattr(importlib.import_module("dpbo.curator.entropy"), "os", types.SimpleNamespace(urandom=SeededEntropy(0)))
