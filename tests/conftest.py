"""One thread a process, before torch is imported; noise that is the same in every run; and what is
skipped where something is missing.
"""

import gc
import hashlib
import importlib
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import tempfile

import hypothesis
import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
OPTIONAL = (
    "ax",
    "cryptography",
    "distributed",
    "dp_accounting",
    "httpx",
    "IPython",
    "jupytext",
    "loky",
    "matplotlib",
    "mypy",
    "nbformat",
    "optuna",
    "pandas",
    "peft",
    "prompt_toolkit",
    "psutil",
    "psycopg",
    "starlette",
    "transformers",
    "uvicorn",
)
# With forkserver, processes are forked from one that has imported it.
multiprocessing.set_forkserver_preload(["tests.preloaded"])

# No example fails for taking long, also where a test sets nothing: a machine may be slow, or busy.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


# Folders of the user's state, one a test, and none of them the user's own.
STATES = pathlib.Path(tempfile.mkdtemp(prefix="dpbo-state-"))
os.environ["DPBO_STATE"] = str(STATES / "collection")
# Of processes that the tests fork: their server begins in any test.
os.environ["DPBO_FORKED_STATE"] = str(STATES / "forked")
(STATES / "forked" / "tables.db").mkdir(parents=True)


def pytest_unconfigure():
    shutil.rmtree(STATES, ignore_errors=True)


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "cuda: needs a CUDA device, and is skipped where there is none; `make gpu` runs it",
    )
    config.addinivalue_line(
        "markers", "gpu: runs on a GPU where there is one, and without one, too; `make gpu` runs it"
    )


def pytest_collection():
    # While modules are imported there is no garbage to speak of.
    gc.disable()


def pytest_collection_finish():
    keep_what_is_left()
    gc.enable()


# After the teardown of the file's own fixtures.
@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        keep_what_is_left()


def keep_what_is_left():
    """What the libraries and the tests hold by now stays to the end: no collection of garbage walks
    over it again, which took up to a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Every test, and what it sets up, draws the same numbers in every run and order of tests:
    torch and numpy seed their generators anew in each process.
    """
    # They are not imported above, where the variables are not set.
    import numpy as np
    import torch

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    # Another test may have asked about the same records.
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
    os.environ["DPBO_STATE"] = str(STATES / name)
    # A folder in the file's place: several ledgers of one test know nothing of one another. Tests
    # of what they know have a folder of their own.
    (STATES / name / "tables.db").mkdir(parents=True, exist_ok=True)
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def skip_without_library(error):
    """Skips what cannot be imported for want of a library that dpbo itself does not need; not in
    CI, which has them all.
    """
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name in OPTIONAL
        and not os.environ.get("CI")
    ):
        pytest.skip(f"needs {error.name}, which is not installed", allow_module_level=True)


class Module(pytest.Module):
    """A file of tests, skipped as a whole where it imports a missing library."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            skip_without_library(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """A test that imports a missing library while it runs is skipped, and those that ask for a
    fixture that does so.
    """
    try:
        return (yield)
    except ModuleNotFoundError as error:
        skip_without_library(error)
        raise


pytest_fixture_setup = pytest_pyfunc_call


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
    """The system's entropy as a fixed stream: a search finds the same in every run and order of
    tests. Only in this process.
    """
    from tests.setups import seeded_system

    module = importlib.import_module("dpbo.entropy")
    for name, replaced in seeded_system().items():
        monkeypatch.setattr(module, name, replaced)


@pytest.fixture
def unknown_records():
    """Tests before this one may have asked about the same records in this process."""
    from dpbo.records.protected_records import protected_tables

    before = protected_tables.now()
    protected_tables.put_back([])
    yield
    protected_tables.put_back(before)
