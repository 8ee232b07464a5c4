"""The tables of CONTRIBUTING.md and SECURITY.md are those of the markers, and every class of attack
has a test that is not deep.
"""

import pytest

from tests.attacks.marks import ROOT, by_class, contributing, marks_of, security


def test_the_table_is_the_one_that_the_markers_give():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert page == contributing(page), "run `python -m tests.attacks.marks`"


def test_the_likely_mistakes_are_those_that_the_tests_name():
    page = (ROOT / "SECURITY.md").read_text()
    assert page == security(page), "run `python -m tests.attacks.marks`"


def test_every_class_has_a_test_that_is_not_deep():
    assert [name for name, places in by_class().items() if not any(places.values())] == []


def test_the_marks_of_a_file_are_read_and_those_of_no_test_are_refused():
    with pytest.raises(LookupError):
        marks_of("tests/attacks/test_table.py::test_that_never_was")
    assert marks_of("tests/attacks/test_float_sums.py") == {"A4"}
