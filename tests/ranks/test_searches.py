"""Four real processes release what one process with all records would have, to the last bit."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
PARTS = ("gibo", "gibo with history", "gibo, units removed", "gibo, patients", "mixture", "k-means", "factors", "objective", "cells",
         "start", "exact", "statement")  # fmt: skip


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process found, and what each of four ranks did, of which one has no record and one a single one."""
    folder = tmp_path_factory.mktemp("ranks")
    run([sys.executable, "-m", "tests.ranks.searches", str(folder)])
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("one", 0, 1, 2, 3)]


@pytest.mark.parametrize("part", PARTS)
def test_four_ranks_release_the_same_bits_as_one_process(results, part):
    one, *ranks = results
    assert set(one) == set(PARTS)
    for rank in ranks:
        assert rank[part] == one[part]


@pytest.mark.attack("A8")
def test_only_public_numbers_of_units_are_known(results):
    for rank in results:
        assert rank["gibo, units removed"]["units"] is None
        assert rank["gibo, patients"]["units"] == 102


def test_the_example_runs_under_torchrun():
    shown = run([*TORCHRUN, "-m", "examples.many_machines", "--records", "20000"])
    assert "Guarantee: (1.000, 1e-06)-DP" in shown
    assert shown.count("all four ranks agree: True") == 1
