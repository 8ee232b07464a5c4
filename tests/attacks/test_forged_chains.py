"""Chains that are hashed rightly and hold what dpbo never writes: "intact", and then a traceback or a wrong number; each won once."""

import copy
from typing import Any

import pytest
import torch

from dpbo import Curator, PrivateObjective, report
from dpbo.__main__ import main
from dpbo.curator.chain import Chain, Record
from dpbo.curator.ledger import Ledger, insert
from dpbo.curator.reporting import compose_statement
from dpbo.curator.storage import Storage
from dpbo.errors import InputError, LedgerCorrupt, PrivacyError, UsageError
from dpbo.events import GaussianEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from tests.attacks.test_holes_search import TERMS

pytestmark = pytest.mark.attack("A16")
RECORDS = torch.rand(50, 2, dtype=torch.float64)
HOSTILE: tuple[Any, ...] = (None, True, -1, -0.5, "x", [], ["x"], {"x": "x"}, [[1.0], "x"])


def near(x, records):
    return 1 - (records - x).abs().mean(1)


@pytest.fixture(scope="module")
def honest():
    """The records of a ledger that holds every kind, and every field that dpbo writes."""
    curator = Curator(RECORDS, **TERMS, allow_conditional=True)
    plan = PrivateObjective(curator, near, score_range=(0.0, 1.0), evaluations=2, budget=0.2)
    plan(torch.full((1, 2), 0.5, dtype=torch.float64))
    curator.release(ClippedMean(lambda _, r: r[:, 0], score_range=(0, 1)), GaussianMechanism(60.0))
    slot = {"handle": "0" * 32, "query": "q", "public": {"a": 1}, "details": {"x": [0.5]}, "part": 3,
            "assumptions": {"gp": "a text"}, "failure_probability": 0.1}  # fmt: skip
    curator.ledger.charge("release", GaussianEvent(60.0), {"units": 50, "slots": [slot]})
    curator.ledger.note("void", "for the test")
    return curator.ledger.records()


def places(body, path=()):
    """Every place in a body, those of lists by their first element, with what stands there."""
    if path:
        yield path
    inside = body.items() if isinstance(body, dict) else [(0, body[0])] if isinstance(body, list) and body else []
    for name, value in inside:
        if (*path, name) != ("state",):
            yield from places(value, (*path, name))


def put(body, path, value):
    changed = copy.deepcopy(body)
    inner: Any = changed
    for name in path[:-1]:
        inner = inner[name]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def rewritten(honest, seq, body):
    """The chain with this body there, hashed anew, with the states that follow where the rules give one."""
    chain, records, head = Chain(), list[Record](), None
    for record in honest:
        held = {**(body if record.seq == seq else record.body)}
        try:
            state = chain.next_state(record.kind, record.name, held)
            held["state"] = chain.carried(state, held)
            head = Record.following(head, record.kind, record.name, held)
            chain.follow(head)
        except Exception:  # a forger writes it all the same
            head = Record.following(head, record.kind, record.name, held)
        records.append(head)
    return records


def require_sound_or_refused(url, capsys, what):
    """Either the chain does not hold, or everything that shows it works."""
    try:
        ledger = Ledger.open(url)
        ledger.verify()
    except PrivacyError:
        return False
    statement = compose_statement(ledger)
    assert 0 <= statement.failure_probability <= 1, what
    assert main(["ledger", "show", url]) == 0, what
    assert main(["ledger", "form", url]) == 0, what
    capsys.readouterr()
    assert report(ledger), what
    return True


def forgeries(honest):
    """Each place in each record with each hostile value, or left out."""
    for record in honest:
        for path in places(record.body):
            for value in (KeyError, *HOSTILE):
                if path[-1] != 0 or value is not KeyError:
                    yield record, path, value


@pytest.mark.parametrize("step", [67, pytest.param(5, marks=pytest.mark.deep)])
def test_what_dpbo_does_not_write_is_refused_and_what_is_accepted_can_be_shown(honest, tmp_path, capsys, step):
    """Some of them, each hostile value in turn."""
    told = {True: 0, False: 0}
    for number, (record, path, value) in enumerate(list(forgeries(honest))[::step]):
        url = str(tmp_path / f"{number}.db")
        with Storage(url).writing() as connection:
            for link in rewritten(honest, record.seq, put(record.body, path, value)):
                insert(connection, link)
        told[require_sound_or_refused(url, capsys, f"{record.kind} {path} {value}")] += 1
    assert told[False] > told[True] > 0, told


def test_a_negative_failure_probability_hides_no_other(honest):
    """0.3 and -0.3 were stated as none."""
    ledger = Curator(RECORDS, **TERMS).ledger
    for wrong in (-0.3, 1.5, True, "0", float("nan")):
        with pytest.raises(InputError, match=r"slots=|details="):
            ledger.charge("release", GaussianEvent(60.0), {"slots": [{"failure_probability": wrong}]})


def test_a_handle_is_charged_once(honest, tmp_path):
    ledger = Curator(RECORDS, **TERMS).ledger
    slot = {"handle": "a" * 32}
    ledger.charge("release", GaussianEvent(60.0), {"slots": [slot]})
    for slots, event in (([slot], GaussianEvent(60.0)), ([{"handle": "b"}] * 2, GaussianEvent(60.0).repeated(2))):
        with pytest.raises(UsageError, match="charged once"):
            ledger.charge("release", event, {"slots": slots})
    charge = next(record for record in honest if record.kind == "charge")
    forged = [*honest, Record.following(honest[-1], "charge", charge.name, {**charge.body, "state": {"total": "0", "used": {}}})]
    with Storage(url := str(tmp_path / "l.db")).writing() as connection:
        for link in forged:
            insert(connection, link)
    with pytest.raises(LedgerCorrupt):
        Ledger.open(url)
