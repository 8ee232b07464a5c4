"""Chains that are hashed rightly and hold what dpbo never writes: "intact", and then a traceback or
a wrong number; each won once.
"""

import contextlib
import copy
import functools
import operator
from typing import Any

import pytest
import torch

from dpbo import PrivateObjective, report
from dpbo.__main__ import main
from dpbo.curator.chain import Chain, Record
from dpbo.curator.ledger import Ledger, insert
from dpbo.curator.statements import compose_statement
from dpbo.curator.storage import Storage
from dpbo.errors import InputError, LedgerCorrupt, PrivacyError, UsageError
from dpbo.events import GaussianEvent
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, FIRST_MEAN, NOISE, owner, point

pytestmark = attack("A16")
RECORDS = torch.rand(50, 2, dtype=DOUBLE)
EVENT = GaussianEvent(60.0)
HOSTILE: tuple[Any, ...] = (None, True, -1, -0.5, "x", [], ["x"], {"x": "x"}, [[1.0], "x"])


def near(x, records):
    return 1 - (records - x).abs().mean(1)


@pytest.fixture(scope="module")
def honest():
    """The records of a ledger that holds every kind, and every field that dpbo writes."""
    curator = owner(RECORDS, allow_conditional=True)
    plan = PrivateObjective(curator, near, score_range=(0.0, 1.0), evaluations=2, budget=0.2)
    plan(point(0.5, 0.5))
    curator.release(FIRST_MEAN, NOISE)
    slot = {
        "handle": "0" * 32,
        "query": "q",
        "public": {"a": 1},
        "details": {"x": [0.5]},
        "part": 3,
        "assumptions": {"gp": "a text"},
        "failure_probability": 0.1,
    }
    curator.ledger.charge("release", EVENT, {"units": 50, "slots": [slot]})
    curator.ledger.note("void", "for the test")
    return curator.ledger.records()


def places(body, path=()):
    """Every place in a body, those of lists by their first element, with what stands there."""
    if path:
        yield path
    inside = {}
    if isinstance(body, dict):
        inside = body
    elif isinstance(body, list):
        inside = dict(enumerate(body[:1]))
    for name, value in inside.items():
        if (*path, name) != ("state",):
            yield from places(value, (*path, name))


def put(body, path, value):
    changed = copy.deepcopy(body)
    inner = functools.reduce(operator.getitem, path[:-1], changed)
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def rewritten(honest, seq, body):
    """The chain with this body there, hashed anew, with the states that follow where the rules give
    one.
    """
    chain = Chain()
    records: list[Any] = [None]
    for record in honest:
        held = {**(body if record.seq == seq else record.body)}
        # A forger writes also what the rules refuse.
        with contextlib.suppress(Exception):
            state = chain.next_state(record.kind, record.name, held)
            held["state"] = chain.carried(state)
            chain.follow(Record.following(records[-1], record.kind, record.name, held))
        records.append(Record.following(records[-1], record.kind, record.name, held))
    return records[1:]


def write(url, records):
    with Storage(url).writing() as connection:
        for record in records:
            insert(connection, record)


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
def test_what_dpbo_does_not_write_is_refused_and_what_is_accepted_can_be_shown(
    honest, tmp_path, capsys, step
):
    """Some of them, each hostile value in turn."""
    told = {True: 0, False: 0}
    for number, (record, path, value) in enumerate(list(forgeries(honest))[::step]):
        url = str(tmp_path / f"{number}.db")
        write(url, rewritten(honest, record.seq, put(record.body, path, value)))
        told[require_sound_or_refused(url, capsys, f"{record.kind} {path} {value}")] += 1
    assert told[False] > told[True] > 0, told


def test_a_negative_failure_probability_hides_no_other():
    """0.3 and -0.3 were stated as none."""
    ledger = owner(RECORDS).ledger
    for wrong in (-0.3, 1.5, True, "0", float("nan")):
        with pytest.raises(InputError, match=r"slots=|details="):
            ledger.charge("release", EVENT, {"slots": [{"failure_probability": wrong}]})


def test_a_handle_is_charged_once():
    ledger = owner(RECORDS).ledger
    slot = {"handle": "a" * 32}
    ledger.charge("release", EVENT, {"slots": [slot]})
    for slots, event in (([slot], EVENT), ([{"handle": "b"}] * 2, EVENT.repeated(2))):
        with pytest.raises(UsageError, match="charged once"):
            ledger.charge("release", event, {"slots": slots})


def test_a_chain_that_charges_a_handle_twice_is_corrupt(honest, tmp_path):
    charge = next(record for record in honest if record.kind == "charge")
    forged = [
        *honest,
        Record.following(
            honest[-1], "charge", charge.name, {**charge.body, "state": {"total": "0", "used": {}}}
        ),
    ]
    url = str(tmp_path / "l.db")
    write(url, forged)
    with pytest.raises(LedgerCorrupt):
        Ledger.open(url)
