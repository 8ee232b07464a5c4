"""For the server that the tests' processes are forked from, and for it alone: whatever they import early or late is imported here, once."""

import contextlib
import importlib

from tests.slow.ledger import test_killed
from tests.slow.ranks import jobs

for name in ("psycopg", "benchmarks.asynchronous", "benchmarks.machines", "examples.parallel_torch", "tests.slow.ledger.test_processes"):
    importlib.import_module(name)
with contextlib.suppress(Exception):  # the tests themselves say what fails
    test_killed.small(None)
    jobs.everything(None)  # both on ledgers in memory
