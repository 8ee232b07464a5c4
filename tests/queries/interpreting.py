"""Triton kernels without a GPU: a module of cases runs in a process of its own, whose kernels are interpreted."""

import json
import os
import subprocess
import sys

import pytest


def interpreted(module):
    """What `python -m tests.queries.MODULE` prints as JSON; skipped where there is no Triton."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tests.queries.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
