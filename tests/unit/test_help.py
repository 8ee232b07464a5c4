"""The first screen of `help` on what users start with: a map, and an example that runs."""

import doctest
import inspect
import re

import pytest

import dpbo

SCREEN = 24


@pytest.mark.usefixtures("seeded_noise")
@pytest.mark.parametrize(
    "start", [dpbo, dpbo.Curator, dpbo.DPSearch], ids=lambda start: start.__name__
)
def test_the_first_screen_is_a_map_and_an_example_that_runs(start):
    text = inspect.getdoc(start) or ""
    first, _, rest = text.partition("\n\nArgs:")
    lines = first.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 88
    assert any(line.startswith("=====") for line in lines), "a table of what there is"
    if inspect.isclass(start):
        told = set(re.findall(r"^ +(\w+): ", rest, flags=re.MULTILINE))
        assert told >= set(inspect.signature(start).parameters)
    example = doctest.DocTestParser().get_doctest(text, {}, start.__name__, None, 0)
    assert len(example.examples) > 3
    printed: list[str] = []
    done = doctest.DocTestRunner().run(example, out=printed.append)
    assert done.failed == 0, "".join(printed)
