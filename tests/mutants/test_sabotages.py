"""The list of sabotages is sound, and the runner tells a caught one from one that lives."""

import dataclasses

import pytest

from tests.attacks.marks import ROOT, marks_of
from tests.mutants.__main__ import caught, some
from tests.mutants.sabotages import SABOTAGES


def test_every_sabotage_changes_the_package_and_names_a_test_that_is_there():
    assert len({sabotage.name for sabotage in SABOTAGES}) == len(SABOTAGES) >= 60
    for sabotage in SABOTAGES:
        compile(sabotage.applied((ROOT / "dpbo" / sabotage.file).read_text()), sabotage.file, "exec")
        file, *names = sabotage.test.partition("[")[0].split("::")
        marks_of("::".join([file, *names[:1]]))  # a method may be inherited from its contract


def test_another_commit_chooses_others():
    first, second = ({sabotage.name for sabotage in some(SABOTAGES, 12, commit)} for commit in ("a", "b"))
    assert len(first) == len(second) == 12
    assert first != second


@pytest.mark.deep
def test_the_runner_tells_caught_from_living_and_from_a_test_that_is_not_there():
    sabotage = next(sabotage for sabotage in SABOTAGES if sabotage.file == "statement.py")
    assert caught(sabotage) == "caught"
    assert caught(dataclasses.replace(sabotage, new=sabotage.old)) == "LIVES"
    assert caught(dataclasses.replace(sabotage, test=sabotage.test + "_that_never_was")) == "ERROR"
