"""The fused kernel gives the CPU's integers: in Triton's interpreter everywhere, and on a GPU where there is one."""

import json
import os
import subprocess
import sys

import pytest
import torch

from dpbo.queries import vectors
from dpbo.queries.fused import MOST_DIMENSION, can_fuse
from tests.queries.fused_cases import AIMS, CASES, both, exact

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.attack("A4")
def test_interpreted_it_gives_the_cpus_integers():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.queries.fused_cases"], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * len(CASES) * len(AIMS)


@on_a_gpu
@pytest.mark.attack("A4")
@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("case", [*CASES, (100_003, 34, 33, 9.0)], ids=str)
def test_on_a_gpu_it_gives_the_cpus_integers(case, aim):
    fused, own = both(case, aim, "cuda")
    assert fused == own


@on_a_gpu
def test_on_a_gpu_one_unit_changes_no_others_bits():
    W = torch.randn(33, 256, dtype=torch.float64).cuda()
    Y = torch.randn(256, 70_001, device="cuda")
    quantum = vectors.quantum_of(2.0, 33)

    def summed(part):
        columns = [column.contiguous() for column in part]
        assert can_fuse(columns, 33)
        return vectors.clipped_sum(columns, W, 2.0, quantum)

    whole, last, first = summed(Y), summed(Y[:, -1:]), summed(Y[:, :1])
    assert (summed(Y[:, :-1]) + last).tolist() == whole.tolist()
    assert (summed(Y[:, 1:]) + first).tolist() == whole.tolist()
    assert summed(Y[:, torch.randperm(70_001, device="cuda")]).tolist() == whole.tolist()


def test_elsewhere_the_other_path_is_taken():
    Y, W = exact(9, 3, 2)
    assert not can_fuse(Y, len(W))
    assert MOST_DIMENSION == 256
