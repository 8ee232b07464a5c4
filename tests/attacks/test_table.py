"""CONTRIBUTING.md's table of attacks: every class has its line, and every test it names exists and carries the class's marker."""

import re

import pytest

from tests.attacks.marks import ROOT, marks_of
from tests.attacks.table import CLASSES

ROWS = re.findall(r"^\| (A\d+) \| ([^|]+) \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)


def test_every_class_has_its_line():
    assert [name for name, _, _ in ROWS] == list(CLASSES)


@pytest.mark.parametrize(("name", "nodes"), [(name, nodes) for name, _, nodes in ROWS], ids=[name for name, _, _ in ROWS])
def test_the_named_tests_exist_and_try_their_class(name, nodes):
    named = re.findall(r"`([^`]+)`", nodes)
    assert named
    for node in named:
        assert name in marks_of(f"tests/{node}"), f"{node} does not carry attack({name!r})"


def test_a_test_that_is_not_there_is_noticed():
    with pytest.raises(LookupError):
        marks_of("tests/attacks/test_table.py::test_that_never_was")
