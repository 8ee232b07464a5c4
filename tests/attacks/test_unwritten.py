"""Memory that nobody wrote holds what the process freed before, records among it: nothing that is
saved may carry it.
"""

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.attacks import unwritten
from tests.attacks.good_calls import NAMES
from tests.attacks.marks import attack
from tests.setups import ROOT

pytestmark = attack("A21")

# Calls that give memory as it is.
UNWRITTEN = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "ndarray",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
# Those that may pass, by file and function: scratch that stays there, or is all written at once.
SCRATCH = {
    "dpbo/records/streaming.py": {"on_device", "to_host"},
    "dpbo/dpsgd/noise.py": {"_sum_of_blocks", "_weighted_sum"},
    "dpbo/gibo/gradient_kernel.py": {"empty_slab"},
    "dpbo/gibo/gradient_query.py": {"clipped_sum"},
    "dpbo/papers/em/moment_features.py": {"features"},
    "dpbo/papers/em/point_sums.py": {"_total_of_view", "chunk_sum"},
    "dpbo/queries/integers.py": {"_chunks"},
    "benchmarks/papers/kusner.py": {"_chosen", "_laplace"},
}
# What nobody can pickle: it holds records, a connection or a ledger.
OPAQUE = {
    "Curator",
    "Curator.evaluate",
    "Curator.reserve",
    "Curator.submit",
    "PrivateObjective",
    "algorithms.AsynchronousBO",
    "curator.Handle",
    "ledger.Ledger",
    "dpsgd.LedgerAccountant",
    "dpsgd.PrivateEngine",
    "integrations.ax.ClientObjective",
    "integrations.optuna.TrialObjective",
    "papers.po_gp_ucb.Outcomes",
    "papers.po_gp_ucb.RemoteOutcomes",
    "papers.po_gp_ucb.serve",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_nothing_public_saves_what_nobody_wrote(measured):
    environment = {**os.environ, "GLIBC_TUNABLES": unwritten.TUNABLES, "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks.unwritten"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["marked"], "the allocator does not mark memory, so nothing was tried"
    saved = found["saved"]
    assert set(saved) == {*unwritten.RUNS, *NAMES}
    holding = [(name, way) for name, ways in saved.items() for way, holds in ways.items() if holds]
    assert not holding
    assert {name for name, ways in saved.items() if "pickled" not in ways} == OPAQUE
    measured(sum(map(len, saved.values())))


def test_each_allocation_that_is_not_written_may_pass():
    found: dict[str, set[str]] = {}
    for path in sorted([*ROOT.glob("dpbo/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and _allocates(function):
                found.setdefault(str(path.relative_to(ROOT)), set()).add(function.name)
    assert found == SCRATCH


def _allocates(function):
    """Whether it takes memory as it is, by itself."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in UNWRITTEN
        for node in _own(function)
    )


def _own(node):
    """What is in a function, but not in functions within it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef):
            yield from _own(child)
