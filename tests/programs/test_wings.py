"""The core does without its wings: in a copy of the project from which their folders are gone."""

import os
import shutil
import subprocess
import sys

from tests.layers import CORE, WINGS
from tests.setups import ROOT

REMOVED = sorted(set(WINGS) - {"testing"})  # what the tests are written with stays
IMPORTING = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_module_of_the_core_is_imported_without_wings(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", *REMOVED)
    shutil.copytree(ROOT / "dpbo", tmp_path / "dpbo", ignore=ignored)
    core = set(" ".join(names for names, _ in CORE).split())
    paths = [path.relative_to(tmp_path) for path in sorted((tmp_path / "dpbo").rglob("*.py"))]
    modules = [
        ".".join(path.with_suffix("").parts)
        for path in paths
        if path.parts[1].removesuffix(".py") in core
        and path.parts[1:3] != ("queries", "gpu")
        and path.stem != "__init__"
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, *modules],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(modules) > 50
