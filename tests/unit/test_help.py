"""The first screen of `help` on what users start with: a map, and an example that runs."""

import doctest
import functools
import inspect
import re
import traceback

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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("dpbo.tune", "tune is not in dpbo: from dpbo.dpsgd import tune"),
        ("dpbo.ClippedMean", "from dpbo.queries import ClippedMean"),
        ("from dpbo import DPGaussianMixture", "from dpbo.papers.em import DPGaussianMixture"),
        ("DPSearch(cv=5)", "cv: one private row takes part in several fits"),
        ("DPSearch(refit=False)", "refit: a model trained on validation records"),
        ("DPSearch(n_trials=5)", "n_trials: n_iter="),
        ("dpbo.DPGIBO(lr=0.1)", "DPGIBO takes curator, loss, bounds="),
        ("dpbo.Budget(1.0)", "a budget needs epsilon and delta, or mu"),
        ("dpbo.Budget(1.0, 1e-6, mu=1.0)", "mu must be left out where epsilon is given"),
    ],
)
def test_a_wrong_name_says_what_is_there(call, said):
    given = {"dpbo": dpbo, "DPSearch": functools.partial(dpbo.DPSearch, None, {})}
    with pytest.raises(Exception) as raised:
        exec(call, given)
    assert said in "".join(traceback.format_exception_only(raised.value))


def test_a_budget_of_mu_is_that_of_gdp():
    budget = dpbo.Budget(mu=1, delta=1e-6)
    assert budget == dpbo.Budget.gdp(1.0, delta=1e-6)
    assert dpbo.Budget.from_json(budget.to_json()) == budget
