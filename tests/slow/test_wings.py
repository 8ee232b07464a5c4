"""The core does without its wings: in a copy of the project from which their folders are gone."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.layers import CORE, WINGS, imported
from tests.setups import ROOT

REMOVED = sorted(set(WINGS) - {"testing"})  # what the tests are written with stays
IMPORTING = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.fixture
def without_wings(tmp_path):
    """A copy of the project without its wings."""
    for folder in ("dpbo", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", *REMOVED)
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def core_modules(folder: pathlib.Path) -> list[str]:
    parts = set(" ".join(names for names, _ in CORE).split())
    paths = (
        path.relative_to(folder).with_suffix("") for path in sorted((folder / "dpbo").rglob("*.py"))
    )
    return [
        ".".join(path.parts)
        for path in paths
        if len(path.parts) > 1 and path.parts[1] in parts and path.name != "__init__"
    ]


def reaches_a_wing(path: pathlib.Path, names: dict[str, Any]) -> bool:
    """Whether a file, or a file of the tests that it imports, imports a wing or what dpbo exports
    of one.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        for module in imported(node):
            parts = module.split(".")
            if (
                parts[0] == "dpbo"
                and len(parts) > 1
                and (parts[1] in REMOVED or names.get(parts[1]) in REMOVED)
            ):
                return True
            if parts[0] in ("benchmarks", "examples") or parts[:2] in (
                ["dpbo", "demo"],
                ["dpbo", "__main__"],
                ["tests", "attacks"],
                ["tests", "layers"],
            ):
                return True
            file = ROOT.joinpath(*parts).with_suffix(".py")
            if parts[0] == "tests" and file.exists() and reaches_a_wing(file, names):
                return True
    return False


def core_tests() -> list[str]:
    """The unit tests that import nothing of a wing."""
    stub = ast.parse((ROOT / "dpbo" / "__init__.pyi").read_text())
    homes = {
        name.name: (node.module or "").split(".")[0]
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    files = [*(ROOT / "tests" / "unit").rglob("test_*.py")]
    inside = [
        path
        for path in files
        if path.relative_to(ROOT / "tests" / "unit").parts[0] not in {*REMOVED, "gpu"}
    ]
    return sorted(str(path.relative_to(ROOT)) for path in inside if not reaches_a_wing(path, homes))


def test_every_module_of_the_core_is_imported_without_wings(without_wings):
    modules = [
        name for name in core_modules(without_wings) if not name.startswith("dpbo.queries.gpu.")
    ]
    done = run(without_wings, "-c", IMPORTING, *modules)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(modules) > 50


@pytest.mark.deep
def test_the_cores_tests_pass_without_wings(without_wings):
    files = core_tests()
    assert len(files) > 35
    plugins = [
        option for name in ("dpbo", "hypothesispytest", "timeout") for option in ("-p", name)
    ]
    done = run(
        without_wings, "-m", "pytest", *plugins, "-q", "-x", "-p", "no:cacheprovider", *files
    )
    assert done.returncode == 0, done.stdout[-3000:]
