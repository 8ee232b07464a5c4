"""Runs a module's cases in Triton's interpreter, where there is no GPU."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest


def interpreted(module: str) -> Any:
    """What the module prints as JSON, in a process of its own whose kernels are interpreted."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", module],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
