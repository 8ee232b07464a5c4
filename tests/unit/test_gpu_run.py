"""`make gpu` says what is missing and ends in time, and a missing library skips the tests that
import it.
"""

import sys

from tools import gpu


def test_it_names_what_is_missing_or_too_old():
    lacking = ["torch>=99", "no-such-package>=1"]
    assert gpu.missing(["torch>=2.8", *lacking, "pytest"]) == lacking
    assert all(name in gpu.advice(lacking) for name in lacking)


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
        "tests/process/ranks/test_failures.py",
    } <= {*gpu.marked_files()}
