"""CONTRIBUTING.md's table of attacks is that of the markers, and every class has a test that is not deep."""

import pytest

from tests.attacks.marks import ROOT, by_class, contributing, marks_of


def test_the_table_is_the_one_that_the_markers_give_and_every_class_has_a_test_that_is_not_deep():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert page == contributing(page), "run `python -m tests.attacks.marks`"
    assert [name for name, places in by_class().items() if not any(places.values())] == []
    with pytest.raises(LookupError):
        marks_of("tests/attacks/test_table.py::test_that_never_was")
    assert marks_of("tests/attacks/test_float_sums.py") == {"A4"}
