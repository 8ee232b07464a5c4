"""Statements that promised what did not hold, or told what they should not: each test runs the
attack that showed it.
"""

import contextlib
import html
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

import dpbo
from dpbo import Budget, Space
from dpbo.__main__ import main
from dpbo.accounting import Planned, PureFilter
from dpbo.errors import InputError, PrivateFailure
from dpbo.events import SelectionEvent
from dpbo.mechanisms import ExponentialMechanism, LaplaceMechanism
from dpbo.papers.kusner import KusnerSearch, RegularisedBest
from dpbo.queries import ClippedMean
from dpbo.run_counts import FixedRuns
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, EXACT, best_run, itself, kinds, of, owner

RECORDS = torch.linspace(0, 1, 9, dtype=DOUBLE)
CANDIDATES = RECORDS.unsqueeze(1)


def make(records, epsilon=1.0, **settings):
    terms = {"accounting": PureFilter(), "allow_conditional": True, **settings}
    return owner(records, budget=Budget(epsilon, 0.0), **terms)


def best(**changes):
    """A margin loss, 1/2-Lipschitz in w, whose models are w = 1/l."""
    terms = of(
        fit=lambda weight: 1 / weight, grid=[4.0], lipschitz=0.5, bound=1.0, at_zero=0.5, records=5
    )
    return RegularisedBest(
        lambda w, r: (0.5 - 0.5 * r[:, 1] * w * r[:, 0]).clamp(0, 1), **{**terms, **changes}
    )


def search(delta, **changes):
    terms = of(noise=1e-2, evaluations=2, kappa=0.9, value_range=(-1.0, 1.0))
    kernel = RBFKernel().double()
    return KusnerSearch(
        lambda x, records: 0.0, CANDIDATES, kernel=kernel, delta=delta, **{**terms, **changes}
    )


@attack("A19", "A32")
@pytest.mark.parametrize("question", ["may fail", "assumes", "exact"])
def test_a_hidden_run_draws_nothing_that_the_statement_would_have_to_name(question):
    """A conditional query was drawn within `train` under a statement that named no condition:
    epsilon 7.62 where .167 was charged.
    """
    query, mechanism = {
        "may fail": (search(0.1, evaluations=9).last(amplitude=0.0, tau=1.0), LAPLACE),
        "assumes": (_Sure(), LAPLACE),
        "exact": (_Exact(), EXACT),
    }[question]
    base = (LAPLACE.event(),)
    drawn = []
    curator = make(RECORDS, accounting=Planned([SelectionEvent(base=base, run_count=FixedRuns(3))]))

    def train(_):
        drawn.append(curator.hidden_draws("selection")(query, mechanism))
        return drawn[-1], 0.0

    chosen = best_run(curator, train, base, 3, space=Space(t=[0.0, 1.0]))
    assert not drawn
    assert chosen.output is None
    assert chosen.score is None
    assert not curator.statement().conditions


class _Exact(ClippedMean):
    """An unconditional question, which is to be answered without noise."""

    def __init__(self):
        super().__init__(itself, score_range=(0.0, 1.0))


class _Sure(_Exact):
    """A question that rests on an assumption, and never fails where that holds."""

    def data_assumptions(self):
        return {"gp-prior": "the objective is a draw of the declared prior"}


class _Failing(_Exact):
    """A question that may fail, and names no assumption."""

    def failure_probability(self):
        return 0.05


LAPLACE = LaplaceMechanism(50.0)
CHOICE = ExponentialMechanism.of(0.02)
SURFACES: dict[str, Callable[[dpbo.Curator, str], str]] = {
    "text": lambda curator, _: str(curator.statement()),
    "facts": lambda curator, _: str(curator.statement().facts()),
    "statement in a notebook": lambda curator, _: curator.statement()._repr_html_(),
    "curator in a notebook": lambda curator, _: curator._repr_html_(),
    "JSON": lambda curator, _: json.loads(curator.statement().to_json())["stated"],
    "report": lambda curator, _: dpbo.report(curator),
    "ledger report": lambda _, path: dpbo.report(path),
    "ledger show": lambda _, path: _printed("show", path),
    "ledger form": lambda _, path: _printed("form", path),
}


def _printed(action, path):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["ledger", action, path]) == 0
    return text.getvalue()


def _plan(curator, slots=10):
    question = search(0.05).best()
    terms = of(
        assumptions=dict(question.data_assumptions()),
        failure_probability=question.failure_probability(),
    )
    curator.reserve("plan", CHOICE.event(), slots=slots, terms=terms)


CASES: dict[str, tuple[Any, str]] = {
    "assumed": ((_Sure(), LAPLACE), "under gp-prior: (1.000, 0.0)-DP"),
    "may fail": ((_Failing(), LAPLACE), "under declared-sensitivity, except with probability 0.05"),
    "both": ((search(0.4).best(), CHOICE), "under gp-prior, except with probability 0.4"),
    "reserved": ((), "under gp-prior, except with probability 0.5"),
    "void": ((_Exact(), EXACT), "none, because this statement is void"),
}


@attack("A19")
@pytest.mark.parametrize("case", CASES)
def test_every_surface_that_shows_a_guarantee_shows_what_it_hangs_on(case, tmp_path):
    """Facts, notebooks and the report's cards showed "(1.000, 0.0)-DP" alone."""
    path = str(tmp_path / "l.db")
    curator = make(RECORDS, dataset="d", ledger=path)
    released, words = CASES[case]
    if case == "reserved":
        _plan(curator)
    else:
        curator.release(*released)
    for surface, shown in SURFACES.items():
        text = " ".join(html.unescape(shown(curator, path)).split())
        assert words in text or (case == "assumed" and words.partition(":")[0] in text), surface
        plain = text.replace(curator.statement().stated(), "")
        assert "Guarantee: (" not in plain.replace("'", ""), surface
    tile = dpbo.report(curator).partition('class="tile"')[2].partition("</div>")[0]
    assert (curator.statement().condition() or "void") in html.unescape(tile)


@attack("A19")
def test_a_reserved_plan_states_from_the_start_how_probably_it_fails():
    """A plan of ten releases that fail with .05 each said 0, and .15 after three of them."""
    curator = make(RECORDS)
    _plan(curator)

    def released(probability):
        curator.release_all(
            [curator.evaluate(search(probability).best())], CHOICE, reservation="plan"
        )

    assert curator.statement().failure_probability == 0.5
    for _ in range(2):
        released(0.05)
        assert curator.statement().failure_probability == 0.5
    curator.release(search(0.1).best(), CHOICE)
    assert curator.statement().failure_probability == 0.6
    for worse in (0.06, 0.9):
        with pytest.raises(InputError, match="fail with probability"):
            released(worse)


def test_a_failure_probability_comes_with_its_assumption_and_in_0_to_1():
    refused = [{"failure_probability": 0.1}]
    refused += [
        of(assumptions={"gp-prior": "x"}, failure_probability=wrong) for wrong in (-0.1, 1.1, "0.1")
    ]
    for terms in refused:
        with pytest.raises(InputError, match=r"^terms.*failure_probability"):
            make(RECORDS).reserve("another", LAPLACE.event(), slots=1, terms=terms)


def test_a_question_that_may_fail_is_refused_unless_conditionals_are_allowed():
    with pytest.raises(InputError, match="allow_conditional"):
        make(RECORDS, allow_conditional=False).release(_Failing(), LAPLACE)


@attack("A21")
def test_nothing_that_readers_see_depends_on_whether_a_score_failed_as_a_whole():
    """Seven of eight records or all eight fail: that was one bit, in the ledger's kinds of record
    and in the statement.
    """

    def picky(_, records):
        if bool((records == 1.0).any()):
            raise ValueError
        return records

    seen = []
    failures = 0
    for failing in (7, 8):
        curator = make(torch.tensor([1.0] * failing + [0.0] * (8 - failing), dtype=DOUBLE))
        try:
            curator.evaluate(ClippedMean(picky, score_range=(0.0, 1.0)))
        except PrivateFailure:
            failures += 1
        statement = curator.statement()
        seen.append((kinds(curator), str(statement).replace(statement.head, "")))
    assert failures == 1
    assert seen[0] == seen[1]
    assert "score-total" in statement.assumptions
