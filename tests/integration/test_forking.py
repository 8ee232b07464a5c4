"""Workers that are forked from a process whose threads torch used do not wait for these."""

import subprocess
import sys

from tests.integration.forking import KINDS


def test_forked_workers_release_scores():
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.forking"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == list(KINDS), done.stderr
