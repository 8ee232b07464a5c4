"""Statements that promised what did not hold, or told what they should not: each test runs the attack that showed it."""

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
from dpbo import Adjacency, Budget, Curator, PrivacyUnit, Space
from dpbo.__main__ import main
from dpbo.accounting import Planned, PureFilter
from dpbo.dpsgd import private_selection
from dpbo.errors import InputError, PrivateFailure
from dpbo.events import SelectionEvent
from dpbo.mechanisms import ExponentialMechanism, LaplaceMechanism, NoNoise
from dpbo.papers.kusner import AdaptiveLipschitz, KusnerSearch, RegularisedBest
from dpbo.queries import ClippedMean
from dpbo.run_counts import FixedRuns

CANDIDATES = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(1)
ONCE = AdaptiveLipschitz(RBFKernel().double(), 1e-2, 1)


def make(records: torch.Tensor, epsilon: float = 1.0, **settings: Any) -> Curator:
    terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "accounting": PureFilter()}
    return Curator(records, budget=Budget(epsilon, 0.0), **{"allow_conditional": True, **terms, **settings})


def best(**changes: Any) -> RegularisedBest:
    """A margin loss, 1/2-Lipschitz in w, whose models are w = 1/l."""
    terms: dict[str, Any] = {"fit": lambda l: 1 / l, "grid": [4.0], "lipschitz": 0.5, "bound": 1.0, "at_zero": 0.5, "records": 5}  # noqa: E741
    return RegularisedBest(lambda w, r: (0.5 - 0.5 * r[:, 1] * w * r[:, 0]).clamp(0, 1), **{**terms, **changes})


def search(delta: float, **changes: Any) -> KusnerSearch:
    terms: dict[str, Any] = {"noise": 1e-2, "evaluations": 2, "kappa": 0.9, "delta": delta, "value_range": (-1.0, 1.0), **changes}
    return KusnerSearch(lambda x, records: 0.0, CANDIDATES, kernel=RBFKernel().double(), **terms)


@pytest.mark.attack("A9", "A19")
def test_the_papers_constants_are_never_vouched_for():
    """One flipped label moves the value by .05, and the paper's constant says .025."""
    data = torch.tensor([[1.0, 1.0]] * 5, dtype=torch.float64)
    flipped = data.clone()
    flipped[0, 1] = -1.0
    for refused in (best, lambda **paper: search(0.1, **{k: v for k, v in paper.items() if k != "adaptive"})):
        with pytest.raises(InputError, match="allow_not_private"):
            refused(constants="paper", adaptive=ONCE)
    query = best(constants="paper", adaptive=ONCE, allow_not_private=True)
    moved = [float(make(records).release(query, NoNoise(allow_not_private=True)).value) for records in (data, flipped)]
    assert abs(moved[0] - moved[1]) > 1.9 * query.sensitivity(Adjacency.REPLACE_ONE).l1 / 5
    for asked in (query, search(0.1, constants="paper", allow_not_private=True).value()):
        curator = make(data)
        curator.release(asked, LaplaceMechanism(1.0))
        statement = curator.statement()
        assert str(statement).startswith("VOID: answers without any guarantee")
        assert str(statement.guarantee) == statement.lines[0] == statement.lines[2].split(",")[0] == "not bounded"


def test_over_the_whole_grid_no_constants_are_taken_or_shown():
    for constants in ("paper", "corrected"):
        with pytest.raises(InputError, match=r"constants=.*whole grid"):
            best(constants=constants, allow_not_private=True)
    assert "constants" not in best().public_inputs()


@pytest.mark.attack("A19")
def test_failure_probabilities_add_up_and_the_headline_begins_with_what_holds_unconditionally():
    """The paper's own union: two releases at delta fail with probability 2 delta; three at .4 promise nothing."""
    curator = make(torch.ones(9, dtype=torch.float64), 15.0)
    for released, probability in ((1, 0.4), (2, 0.8), (3, 1.0)):
        curator.release(search(0.4).best(), ExponentialMechanism.of(5.0))
        statement = curator.statement()
        headline = dict(statement.sections())["Guarantee"]
        assert statement.failure_probability == json.loads(statement.to_json())["failure_probability"] == probability
        assert headline.startswith("unconditionally not bounded; under gp-prior, except with probability ")
        for text in (headline, statement.lines[2], statement.meaning[0]):
            assert f"except with probability {probability}" in text
            assert ("(15.00, 0.0)-DP" in text) == (released < 3 and text is not statement.meaning[0])
    assert str(statement.guarantee) == "not bounded"


@pytest.mark.attack("A19", "A32")
@pytest.mark.parametrize("question", ["may fail", "assumes", "exact"])
def test_a_hidden_run_draws_nothing_that_the_statement_would_have_to_name(question: str):
    """A conditional query was drawn within `train` under a statement that named no condition: epsilon 7.62 where .167 was charged."""
    law, drawn = FixedRuns(3), list[Any]()
    query = {"may fail": search(0.1, evaluations=9).last(amplitude=0.0, tau=1.0), "assumes": _Sure(), "exact": _Exact()}[question]
    mechanism = NoNoise(allow_not_private=True) if question == "exact" else LAPLACE
    plan = Planned([SelectionEvent(base=(LAPLACE.event(),), run_count=law)])
    curator = make(torch.linspace(0.0, 1.0, 9, dtype=torch.float64), accounting=plan)

    def train(_: Any) -> Any:
        drawn.append(curator.hidden_draws("selection")(query, mechanism))
        return drawn[-1], 0.0

    chosen = private_selection(curator, train, space=Space(t=[0.0, 1.0]), run_count=law, base=[LAPLACE.event()])
    assert not drawn
    assert chosen.output is None
    assert chosen.score is None
    assert not curator.statement().conditions


class _Exact(ClippedMean):
    """An unconditional question, which is to be answered without noise."""

    def __init__(self) -> None:
        super().__init__(lambda _, r: r, score_range=(0.0, 1.0))


class _Sure(_Exact):
    """A question that rests on an assumption, and never fails where that holds."""

    def data_assumptions(self) -> dict[str, str]:
        return {"gp-prior": "the objective is a draw of the declared prior"}


class _Failing(_Exact):
    """A question that may fail, and names no assumption."""

    def failure_probability(self) -> float:
        return 0.05


LAPLACE, CHOICE = LaplaceMechanism(50.0), ExponentialMechanism.of(0.02)
SURFACES: dict[str, Callable[[Curator, str], str]] = {
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


def _printed(action: str, path: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["ledger", action, path]) == 0
    return text.getvalue()


def _plan(curator: Curator, slots: int = 10) -> None:
    question = search(0.05).best()
    terms = {"assumptions": dict(question.data_assumptions()), "failure_probability": question.failure_probability()}
    curator.reserve("plan", CHOICE.event(), slots=slots, terms=terms)


CASES: dict[str, tuple[Callable[[Curator], Any], str]] = {
    "assumed": (lambda curator: curator.release(_Sure(), LAPLACE), "under gp-prior: (1.000, 0.0)-DP"),
    "may fail": (lambda curator: curator.release(_Failing(), LAPLACE), "under declared-sensitivity, except with probability 0.05"),
    "both": (lambda curator: curator.release(search(0.4).best(), CHOICE), "under gp-prior, except with probability 0.4"),
    "reserved": (_plan, "under gp-prior, except with probability 0.5"),
    "void": (lambda curator: curator.release(_Exact(), NoNoise(allow_not_private=True)), "none, because this statement is void"),
}


@pytest.mark.attack("A19")
@pytest.mark.parametrize("case", CASES)
def test_every_surface_that_shows_a_guarantee_shows_what_it_hangs_on(case: str, tmp_path: Any):
    """Facts, notebooks and the report's cards showed "(1.000, 0.0)-DP" alone."""
    path = str(tmp_path / "l.db")
    curator = make(torch.linspace(0.0, 1.0, 9, dtype=torch.float64), dataset="d", ledger=path)
    act, words = CASES[case]
    act(curator)
    for surface, shown in SURFACES.items():
        text = " ".join(html.unescape(shown(curator, path)).split())
        assert words in text or (case == "assumed" and words.partition(":")[0] in text), surface
        plain = text.replace(curator.statement().stated(), "")
        assert "Guarantee: (" not in plain.replace("'", ""), surface
    tile = dpbo.report(curator).partition('class="tile"')[2].partition("</div>")[0]
    assert (curator.statement().condition() or "void") in html.unescape(tile)


@pytest.mark.attack("A19")
def test_a_reserved_plan_states_from_the_start_how_probably_it_fails():
    """A plan of ten releases that fail with .05 each said 0, and .15 after three of them."""
    curator = make(torch.ones(9, dtype=torch.float64))
    _plan(curator)
    told = [curator.statement().failure_probability]
    for _ in range(2):
        handle = curator.evaluate(search(0.05).best())
        curator.release_all([handle], CHOICE, reservation="plan")
        told.append(curator.statement().failure_probability)
    curator.release(search(0.1).best(), CHOICE)
    assert [*told, curator.statement().failure_probability] == [0.5, 0.5, 0.5, 0.6]
    for worse in (0.06, 0.9):
        handle = curator.evaluate(search(worse).best())
        with pytest.raises(InputError, match="fail with probability"):
            curator.release_all([handle], CHOICE, reservation="plan")
    refused: list[dict[str, Any]] = [{"failure_probability": 0.1}]
    refused += [{"assumptions": {"gp-prior": "x"}, "failure_probability": wrong} for wrong in (-0.1, 1.1, "0.1")]
    for terms in refused:
        with pytest.raises(InputError, match=r"^terms.*failure_probability"):
            curator.reserve("another", LAPLACE.event(), slots=1, terms=terms)
    with pytest.raises(InputError, match="allow_conditional"):
        make(torch.ones(9, dtype=torch.float64), allow_conditional=False).release(_Failing(), LAPLACE)


@pytest.mark.attack("A21")
def test_nothing_that_readers_see_depends_on_whether_a_score_failed_as_a_whole():
    """Seven of eight records or all eight fail: that was one bit, in the ledger's kinds of record and in the statement."""

    def picky(_: Any, records: torch.Tensor) -> torch.Tensor:
        if bool((records > 0.5).any()):
            raise ValueError
        return records

    seen, failures = [], 0
    for failing in (7, 8):
        curator = make(torch.tensor([1.0] * failing + [0.0] * (8 - failing), dtype=torch.float64))
        try:
            curator.evaluate(ClippedMean(picky, score_range=(0.0, 1.0)))
        except PrivateFailure:
            failures += 1
        statement = curator.statement()
        seen.append(([record.kind for record in curator.ledger.records()], str(statement).replace(statement.head, "")))
    assert failures == 1
    assert seen[0] == seen[1]
    assert "score-total" in statement.assumptions
