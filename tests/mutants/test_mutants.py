"""The mutants fit the package as it is: each still applies, and each that is written by hand has a test that kills it."""

import ast
import re

import pytest

from tests.mutants import blind, written
from tests.mutants.generic import generic
from tests.mutants.known import KILLERS, explained, read, reasons
from tests.mutants.mutant import ROOT

BY_HAND = [*written.MUTANTS, *blind.MUTANTS]


@pytest.mark.parametrize("mutant", BY_HAND, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_has_a_test_that_kills_it(mutant):
    ast.parse(mutant.source())
    assert mutant.within() in read(KILLERS), "hunt it: python -m tests.mutants --keep written"


def test_every_killer_is_there():
    """A test that was renamed kills nothing: the next hunt would have to find another."""
    names = {tuple(re.split(r"::|\[| \(", killer)[:2]) for killer in read(KILLERS).values()}
    texts = {file: (ROOT / file).read_text() for file, _ in names}
    for file, name in names - {(file, "import)") for file in texts}:
        assert re.search(rf"^(def |class |from \S+ import .*\b){name}\b", texts[file], re.MULTILINE), (file, name)


def test_there_are_many_and_half_are_by_somebody_who_has_not_seen_the_tests():
    assert len({mutant.name for mutant in BY_HAND}) == len(BY_HAND) >= 40
    assert len(blind.MUTANTS) >= len(written.MUTANTS)


def test_every_explanation_explains_something_and_none_what_is_killed():
    killers, made = read(KILLERS), generic()
    assert reasons().keys() <= {mutant.name for mutant in made}
    assert not [mutant.name for mutant in made if explained(mutant) and mutant.within() in killers]
