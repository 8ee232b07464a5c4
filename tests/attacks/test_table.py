"""The tables of CONTRIBUTING.md and SECURITY.md are those of the markers, and every class of attack
has a test that is not deep.
"""

from tests.attacks.marks import ROOT, by_class, contributing, security


def test_the_table_is_the_one_that_the_markers_give():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert page == contributing(page), "run `python -m tests.attacks.marks`"


def test_the_likely_mistakes_are_those_that_the_tests_name():
    page = (ROOT / "SECURITY.md").read_text()
    assert page == security(page), "run `python -m tests.attacks.marks`"


def test_every_class_has_a_test_that_is_not_deep():
    assert [name for name, places in by_class().items() if not any(places.values())] == []
