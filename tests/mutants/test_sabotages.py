"""The list of sabotages is sound, and the runner tells a caught one from one that lives."""

import dataclasses

import pytest

from tests.attacks.marks import marks_of
from tests.mutants.__main__ import caught, some
from tests.mutants.sabotages import SABOTAGES, Sabotage


def test_every_sabotage_changes_the_package_and_names_a_test_that_is_there():
    assert len({sabotage.name for sabotage in SABOTAGES}) == len(SABOTAGES) >= 60
    for sabotage in SABOTAGES:
        compile(sabotage.applied(sabotage.file().read_text()), sabotage.where, "exec")
        file, *names = sabotage.test.partition("[")[0].split("::")
        # A method may be inherited from its contract.
        marks_of("::".join([file, *names[:1]]))


SOURCE = "def first(x):\n    return f(\n        x,\n    )\n\n\ndef second(x):\n    return f(x, x)\n"


def test_a_text_is_found_whatever_its_line_breaks():
    sabotage = Sabotage("name", "module:first", old="return f(x)", new="return x", test="")
    assert sabotage.applied(SOURCE) == SOURCE.replace("f(\n        x,\n    )", "x")


@pytest.mark.parametrize(
    ("where", "old"),
    [
        pytest.param("module:first", "f(x, x)", id="text of another function"),
        pytest.param("module:second", "x", id="text that is there twice"),
        pytest.param("module:third", "f(x)", id="no such function"),
    ],
)
def test_a_text_that_is_not_once_in_its_function_is_refused(where, old):
    with pytest.raises(ValueError, match=r"not one|not once"):
        Sabotage("name", where, old, new="", test="").applied(SOURCE)


def test_another_commit_chooses_others():
    first, second = (
        {sabotage.name for sabotage in some(SABOTAGES, 12, commit)} for commit in ("a", "b")
    )
    assert len(first) == len(second) == 12
    assert first != second


@pytest.mark.deep
def test_the_runner_tells_caught_from_living_and_from_a_test_that_is_not_there():
    sabotage = next(
        sabotage for sabotage in SABOTAGES if sabotage.where.startswith("dpbo.statement:")
    )
    assert caught(sabotage) == "caught"
    assert caught(dataclasses.replace(sabotage, new=sabotage.old)) == "LIVES"
    assert caught(dataclasses.replace(sabotage, test=sabotage.test + "_that_never_was")) == "ERROR"
