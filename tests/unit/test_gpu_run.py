"""`make gpu` says what is missing and ends in time, and a missing library skips the tests that
import it.
"""

import sys

import pytest
import torch

from tests.conftest import Module
from tools import gpu


@pytest.mark.parametrize(
    ("library", "ci", "outcome"),
    [
        ("opendp", "", pytest.skip.Exception),
        ("opendp", "1", pytest.Module.CollectError),
        ("torch", "", pytest.Module.CollectError),
        ("no_such_library", "", pytest.Module.CollectError),
    ],
)
def test_a_library_that_dpbo_does_not_need_may_be_missing_but_not_in_ci(
    library, ci, outcome, request, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("CI", ci)
    file = tmp_path / f"test_with_{library}.py"
    file.write_text(f"import {library}\n")
    with pytest.raises(outcome, match=library):
        Module.from_parent(request.session, path=file).collect()


def test_it_names_what_is_missing_or_too_old():
    lacking = ["torch>=99", "no-such-package>=1"]
    assert gpu.missing(["torch>=2.8", *lacking, "pytest"]) == lacking
    assert all(name in gpu.advice(lacking) for name in lacking)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for machines without a GPU")
def test_without_a_gpu_it_says_so_and_leaves_no_results(tmp_path):
    results = tmp_path / "results"
    with pytest.raises(SystemExit, match="There is no GPU here"):
        gpu.main(["--results", str(results)])
    assert not results.exists()


def test_a_folder_without_wheels_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="There are no wheels in"):
        gpu.main(["--wheels", str(tmp_path)])


def test_a_program_that_does_not_end_is_killed_and_its_output_kept(tmp_path):
    endless = "import signal; print('begun', flush=True); signal.pause()"
    assert gpu.run([sys.executable, "-c", endless], 0.2, file := tmp_path / "log.txt", {}) < 0
    assert file.read_text().endswith("Killed after 0.2 seconds.\n")
    assert gpu.run([sys.executable, "-c", "print('ended')"], 600.0, file, {}) == 0
    assert file.read_text() == "ended\n"


def test_the_files_it_collects_are_all_with_tests_for_gpus():
    assert {
        "tests/unit/test_devices.py",
        "tests/unit/gpu/test_gpu.py",
        "tests/slow/ranks/test_failures.py",
    } <= {*gpu.marked_files()}
