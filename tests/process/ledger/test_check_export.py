"""The second program reads an export with the standard library alone, agrees with the statement,
and finds forgeries made by the rules.
"""

import ast
import contextlib
import dataclasses
import hashlib
import io
import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

from dpbo import Budget, PrivateObjective
from dpbo.__main__ import main
from dpbo.accounting import GDPFilter, Planned, PureFilter, RDPFilter, ZCDPFilter
from dpbo.events import LaplaceEvent, PoissonGaussianEvent, RolesEvent
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.papers.kusner import AdaptiveLipschitz, RegularisedBest
from examples.check_export import check
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH
from tests.process.ledger.runs import make
from tests.setups import DOUBLE, EXACT, MEAN, of
from tests.unit.accounting.test_exported import EVENTS, SAMPLED, exported

PROGRAM = pathlib.Path(__file__).parents[3] / "examples" / "check_export.py"
# what the program reports as a broken chain
BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
pytestmark = attack("A16")


def printed(url):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["ledger", "export", url]) == 0
    return out.getvalue().splitlines()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """An export: birth, a plan of six slots, two charges of it for three slots, each with its
    value, and a release besides.
    """
    curator = make(url := str(tmp_path_factory.mktemp("search") / "l.db"))
    terms = of(score_range=(0.0, 1.0), evaluations=6, name="search", budget=0.75)
    objective = PrivateObjective(curator, lambda x, r: 1 - (r - x[0]).abs(), **terms)
    for x in ([[0.125], [0.25]], [[0.5]]):
        objective(torch.tensor(x, dtype=DOUBLE))
    curator.release(MEAN, GaussianMechanism(20.0))
    return [json.loads(line) for line in printed(url)]


def summary(lines, *arguments):
    """What the program says of these records."""
    return check([json.dumps(line) for line in lines], *arguments)


def checked(lines, *arguments):
    """What the program prints, run as its docstring says: isolated, without site-packages."""
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    return subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_is_short_and_imports_the_standard_library_alone():
    text = PROGRAM.read_text()
    lines = text.splitlines()
    assert sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text))) <= 120
    imported = {
        line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    "accounting", [GDPFilter(), PureFilter(), ZCDPFilter(), RDPFilter(8.0)], ids=lambda a: a.name
)
def test_it_agrees_with_the_statement(tmp_path, capsys, accounting, measured):
    """Gaussian, Laplace, exponential, permute-and-flip, sampled; in a plan and besides."""
    statement, lines = exported(tmp_path, capsys, accounting)
    done = checked(lines, "1e-6")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name in ("spent", "guarantee", "reserved"):
        assert told["epsilon"][name] == pytest.approx(getattr(statement, name).epsilon, rel=1e-6), (
            name
        )
    assert (told["records"], told["head"]) == (statement.entries, statement.head)
    assert told["taken as stated"] == (["poisson-gaussian"] if accounting == RDPFilter(8.0) else [])
    measured(len(lines), told["epsilon"]["spent"], statement.guarantee.epsilon, least=0.0)


def test_it_holds_for_next_to_no_noise(tmp_path):
    """Once, it printed 700 where mu 40 is epsilon 989.2, and called honest ledgers broken where its
    formulas overflowed.
    """
    wide = Budget(1e4, 1e-6)
    law = LaplaceMechanism
    ledgers: list[tuple[dict[str, Any], Any]] = [
        ({"budget": Budget.gdp(40.0, delta=1e-6)}, GaussianMechanism(0.03)),
        ({"budget": wide, "accounting": RDPFilter(30.0)}, law(0.02)),
        ({"budget": wide, "accounting": GDPFilter()}, law(0.01)),
    ]
    for number, (terms, mechanism) in enumerate(ledgers):
        curator = make(url := str(tmp_path / f"{number}.db"), **terms)
        curator.release(MEAN, mechanism)
        told = check(printed(url))["epsilon"]
        statement = curator.statement()
        assert told["guarantee"] == pytest.approx(statement.guarantee.epsilon, rel=1e-9)
        assert told["spent"] == pytest.approx(statement.spent.epsilon, rel=1e-9)
    assert check(printed(str(tmp_path / "0.db")))["epsilon"]["guarantee"] == pytest.approx(
        989.1922, rel=1e-6
    )


def test_a_plan_of_exact_answers_is_bounded_by_nothing_before_the_first_of_them(tmp_path):
    curator = make(url := str(tmp_path / "l.db"), budget=Budget(5.0, 1e-6))
    curator.reserve("exact", EXACT.event(), slots=3, terms={})
    told = check(printed(url))["epsilon"]
    assert curator.statement().guarantee.epsilon == told["guarantee"] == math.inf
    assert curator.statement().spent.epsilon == told["spent"] == 0.0


def test_it_reads_a_parallel_plan(tmp_path):
    """Two outcomes of one row cost twice; one of another row costs nothing beside them."""
    birth = dataclasses.replace(BIRTH, accounting=PureFilter(), budget=Budget(6.0, 0.0))
    ledger = Ledger(url := str(tmp_path / "l.db"), birth)
    event = LaplaceEvent(1.0)
    ledger.reserve("y", event, 2, {"records": 6}, parallel=True)
    for handle, part in (("a", 0), ("b", 3), ("c", 3)):
        slot = {"handle": handle, "query": "RowOutcome", "public": {}, "part": part}
        ledger.store(
            ledger.charge("y", event, {"units": 6, "slots": [slot]}, "y"),
            "y",
            [{"handle": handle, "value": [0.5]}],
        )
    told = check(printed(url))
    assert told["records"] == 8
    assert told["epsilon"] == {"spent": 2.0, "reserved": 2.0, "guarantee": 6.0}


def rehashed(lines):
    """The same chain, by the rules."""
    head = "0" * 64
    chain = []
    for seq, line in enumerate(lines):
        body = json.dumps(line["body"], sort_keys=True, separators=(",", ":"))
        columns = [line[name] for name in ("kind", "name", "reservation", "used", "answers")]
        content = json.dumps([head, seq, *columns, body, line["total"]], separators=(",", ":"))
        head = hashlib.sha256(content.encode()).hexdigest()
        chain.append({**line, "seq": seq, "hash": head})
    return chain


def column(lines, seq, **columns):
    return [{**line, **columns} if line["seq"] == seq else line for line in lines]


def changed(lines, seq, **body):
    return [
        {**line, "body": {**line["body"], **body}} if line["seq"] == seq else line for line in lines
    ]


def event(lines, seq, **fields):
    return changed(lines, seq, event={**lines[seq]["body"]["event"], **fields})


FORGERIES = {
    "more noise than was charged": lambda c: event(c, 6, noise_multiplier=40.0),
    "less noise than the plan's": lambda c: event(c, 2, noise_multiplier=1.0),
    "a total that is too low": lambda c: column(c, 6, total="1/1000"),
    "slots that are not counted": lambda c: column(c, 2, used=1),
    "more slots than the plan has": lambda c: changed(c, 1, slots=2),
    "a refund": lambda c: event(c, 6, count=-3),
    "a release without a charge": lambda c: column(c, 3, answers=1),
    "a value delivered twice": lambda c: [*c, {**c[7]}],
    "another handle's value": lambda c: changed(c, 7, values=c[5]["body"]["values"]),
    "a handle charged twice": lambda c: changed(
        changed(c, 6, slots=c[4]["body"]["slots"]), 7, values=c[5]["body"]["values"]
    ),
    "a plan reserved twice": lambda c: [*c, {**c[1]}],
    "a cap above the budget": lambda c: changed(c, 0, cap="100"),
    "an accounting from nowhere": lambda c: changed(c, 0, accounting="FreeFilter"),
    "a second birth": lambda c: [*c, {**c[0]}],
    "a charge left out": lambda c: [*c[:6], c[7]],
    "a kind from nowhere": lambda c: [*c, {**c[5], "kind": "release"}],
    "nothing": lambda c: [],
}


def planned(tmp_path, capsys):
    """The statement and export of a fixed plan, with an event of roles as `tune` plans it, and the
    mechanisms in its order.
    """
    steps = RolesEvent(
        count=2,
        costs=(("training", (PoissonGaussianEvent(3.0, 4, rate=0.25, relation="replace-one"),)),),
    )
    statement, lines = exported(tmp_path, capsys, Planned([*EVENTS, SAMPLED, steps]))
    return (
        statement,
        lines,
        [
            event["mechanism"]
            for event in json.loads(lines[0]["body"]["accounting"].removeprefix("Planned(")[:-1])
        ],
    )


def test_it_counts_the_slots_of_a_planned_ledger_and_takes_its_epsilon_as_stated(tmp_path, capsys):
    statement, lines, _ = planned(tmp_path, capsys)
    done = checked(lines)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["records"], told["head"]) == (statement.entries, statement.head)
    assert told["epsilon"] == {"spent": None, "reserved": None, "guarantee": 20.0}
    assert statement.guarantee.epsilon <= 20.0
    assert told["taken as stated"] == ["the budget's epsilon"]
    (reason,) = told["why null"]
    assert "at the budget's delta" in reason
    assert summary(lines, 1e-9)["epsilon"]["guarantee"] is None, (
        "which is stated at the budget's delta alone"
    )


def recounted(lines, change):
    """The chain with every total of a plan changed."""
    return [{**line, "total": change(line["total"])} for line in lines]


PLANNED_FORGERIES = {
    "slots counted for another event": lambda c: recounted(
        c, lambda total: " ".join(reversed(total.split(" ")))
    ),
    "totals of fewer events": lambda c: recounted(c, lambda total: total.rpartition(" ")[0]),
    "a release that was not planned": lambda c: event(c, 1, noise_multiplier=400.0),
    "slots that are not counted": lambda c: event(c, 1, count=2),
    "a cap above the plan": lambda c: changed(c, 0, cap=c[0]["body"]["cap"].replace("6", "7")),
}


def test_it_finds_what_breaks_a_plan_though_every_hash_was_made_anew(tmp_path, capsys):
    _, lines, _ = planned(tmp_path, capsys)
    for name, forge in PLANNED_FORGERIES.items():
        forged = forge(lines)
        assert forged != lines, name
        with pytest.raises(ValueError, match=r"does not keep|not in list|zip"):
            print(name, summary(rehashed(forged)))


def test_it_finds_what_breaks_the_rules_though_every_hash_was_made_anew(lines):
    assert summary(rehashed(lines))["head"] == lines[-1]["hash"], (
        "so the forger hashes as dpbo does"
    )
    for name, forge in FORGERIES.items():
        with pytest.raises((*BROKEN, UnboundLocalError)):
            print(name, summary(rehashed(forge(lines))))
    done = checked(rehashed(FORGERIES["a refund"](lines)))
    assert done.returncode == 1
    assert done.stderr.startswith("the chain does not hold")


def test_it_finds_every_changed_line(lines, measured):
    tried = 0
    for seq in range(len(lines)):
        for other in (
            lines[:seq] + lines[seq + 1 :],
            [*lines[:seq], lines[seq], *lines[seq:]],
            changed(lines, seq, told="otherwise"),
        ):
            if other == lines[:-1]:
                continue  # the last record's loss is seen against a head kept elsewhere alone
            with pytest.raises((ValueError, KeyError)):
                summary(other)
            tried += 1
    assert summary(lines[:-1])["head"] != lines[-1]["hash"]
    measured(tried)


def test_it_bounds_nothing_without_the_assumptions_that_a_release_is_under(tmp_path):
    curator = make(
        url := str(tmp_path / "l.db"),
        budget=Budget(1.0, 0.0),
        accounting=PureFilter(),
        allow_conditional=True,
    )
    curator.ledger.note("assume", "durations-tell-nothing")
    rule = AdaptiveLipschitz(RBFKernel().double(), 0.01, 3)
    bounds = of(lipschitz=0.5, bound=1.0, at_zero=0.5, records=2000, adaptive=rule)
    curator.release(
        RegularisedBest(lambda w, r: r, fit=lambda x: x, grid=[1.0, 2.0, 3.0], **bounds),
        LaplaceMechanism(2.0),
    )
    told = check(printed(url))
    assert told["epsilon"] == {"spent": 0.5, "reserved": 0.5, "guarantee": math.inf}
    assert (told["under"], told["assume"]) == (
        ["loss-lipschitz"],
        ["conditional-allowed", "durations-tell-nothing"],
    )
    assert curator.statement().lines[0] == "not bounded"


def test_it_tells_what_voids_and_where_no_guarantee_is_stated(lines):
    note = {"kind": "void", "name": "noise that repeats", "body": {}}
    plain = {"reservation": None, "used": 0, "answers": None}
    voided = rehashed([*lines, {**lines[-1], **plain, **note}])
    assert summary(voided)["void"] == ["noise that repeats"]
    with pytest.raises(ValueError, match="DELTA"):
        summary(lines, 2.0)
