"""Workers that are forked from a process whose threads torch used do not wait for these."""

import subprocess
import sys

import pytest

from tests.integration.forking import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_forked_workers_release_scores(kind):
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.forking", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["done"], done.stderr
