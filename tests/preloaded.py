"""For the server that the tests' processes are forked from, and for it alone: whatever they import
early or late is imported here, once.
"""

import contextlib
import importlib
import os

from tests.process.ledger import test_killed
from tests.process.ranks import jobs

os.environ["DPBO_STATE"] = os.environ["DPBO_FORKED_STATE"]
for name in (
    "optuna",
    "psycopg",
    "uvicorn",
    "benchmarks.machines",
    "examples.data_owner",
    "examples.modeler",
    "examples.parallel_torch",
    "tests.integration.searches",
    "tests.process.ledger.test_processes",
):
    with contextlib.suppress(Exception):  # the tests themselves say what fails
        importlib.import_module(name)
with contextlib.suppress(Exception):
    test_killed.small(None)
    jobs.everything(None)  # both on ledgers in memory
