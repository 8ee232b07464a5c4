"""A name that clears the terminal and prints a guarantee of its own, on every surface that prints
names; each won once.
"""

import dataclasses
import logging
from typing import Any

import pytest
import torch

from dpbo import PrivacyUnit, PrivateObjective, report
from dpbo.__main__ import main
from dpbo.curator.statements import compose_statement
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.ledger.entries import table
from dpbo.ledger.ledger import Ledger
from dpbo.ledger.storage import SCHEMA, Storage
from dpbo.notebook import facts_table
from dpbo.statement import form
from tests.attacks.marks import attack
from tests.attacks.setups import of, owner
from tests.contracts.ledger_contract import BIRTH
from tests.setups import DOUBLE, following

pytestmark = attack("A21")
CODES = (
    "\x1b[2J\x1b[H",
    "\x9b2J",
    "\u202e",
    "\u200b",
    "\r",
    "\n",
    "\x85",
    "\ufeff",
    "\U000e0041",
    "\ud800",
)
FORGED = "Guarantee: (0.001, 1e-09)-DP"
EVENT = GaussianEvent(20.0)
RECORDS = torch.linspace(0, 1, 50, dtype=DOUBLE)


def forged(code):
    return f"people{code}{FORGED}"


@pytest.fixture
def old(tmp_path):
    """A ledger, as an older version or another program writes it: its names are hostile."""
    name = forged("".join(CODES[:-1]))
    url = str(tmp_path / "l.db")
    birth = dataclasses.replace(BIRTH, dataset=name, unit=name)
    terms = {"role": name, "assumptions": {name: name}, name: name, "score_range": [name]}
    slot = {
        "handle": "0" * 32,
        "query": name,
        "public": {name: name},
        "details": {"x": [0.5], name: name},
        "assumptions": {name: name},
    }
    value = {
        "handle": "0" * 32,
        "value": [0.5],
        "variance": [0.01],
        "distribution": {},
        "details": slot["details"],
    }
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        (
            "birth",
            "",
            {"schema": SCHEMA, "id": "0" * 32, "cap": str(birth.cap()), **birth.to_json()},
        ),
        ("assume", name, {}),
        ("void", name, {}),
        (
            "reserve",
            name,
            {
                "event": EVENT.to_json(),
                "slots": 2,
                "terms": terms,
                "parallel": False,
                "limit": None,
            },
        ),
        (
            "charge",
            name,
            {"event": EVENT.to_json(), "units": 50, "slots": [slot]},
        ),
        ("value", name, {"values": [value]}),
        (
            "charge",
            name,
            {
                "event": EVENT.to_json(),
                "units": 50,
                "slots": [{**slot, "handle": "1" * 32}],
            },
        ),
    ]
    of_reservation: dict[int, dict[str, Any]] = {
        3: {"total": "1/200"},
        4: {"reservation": name, "used": 1},
        5: {"reservation": name, "used": 1, "answers": 4},
    }
    record = None
    with Storage(url).writing(create=True) as connection:
        for seq, (kind, title, body) in enumerate(bodies):
            record = following(record, kind, title, body, **of_reservation.get(seq, {}))
            connection.execute(table.insert().values(record.columns()))
    return url


def test_old_names_are_printed_without_a_single_control_character(old, capsys, caplog):
    ledger = Ledger.open(old)
    statement = compose_statement(ledger)
    pieces = [
        str(statement),
        statement._repr_html_(),
        form(statement),
        *map(str, statement.facts().values()),
        statement.to_json(),
    ]
    pieces += [
        facts_table(statement.facts(), title=statement.dataset),
        report(ledger),
        repr(ledger.account()),
    ]
    for command in ("show", "form", "verify", "export"):
        assert main(["ledger", command, old]) in (0, 9)
        pieces.append(capsys.readouterr().out)
    held = owner(RECORDS)
    held.ledger.birth = ledger.birth
    pieces += [repr(held), held._repr_html_()]
    caplog.set_level(logging.INFO, "dpbo")
    ledger.reserve(forged("another"), EVENT, 1, {})
    assert main(["ledger", "show", f"{old}\x1b[2J"]) == 4
    pieces += [caplog.text, capsys.readouterr().err]
    for piece in pieces:
        hidden = {letter for letter in piece if not letter.isprintable()} - {"\n"}
        assert not hidden, (hidden, piece[:200])
        assert not [line for line in piece.splitlines() if line.strip().startswith(FORGED)], (
            "a name began a line of its own"
        )


def test_new_names_of_control_characters_are_refused_at_every_door(tmp_path):
    held = owner(RECORDS)
    plan = of(score_range=(0, 1), evaluations=1)
    doors = {
        "unit": lambda name: PrivacyUnit(name),
        "dataset": lambda name: owner(RECORDS, dataset=name, ledger=str(tmp_path / "l.db")),
        "name": lambda name: PrivateObjective(held, lambda x, r: r, name=name, **plan),
        "reserve": lambda name: held.reserve(name, EVENT, slots=1, terms={}),
        "note": lambda name: held.ledger.note("assume", name),
    }
    for ask in doors.values():
        for code in CODES:
            with pytest.raises(InputError, match=r"printable|valid Unicode"):
                ask(forged(code))
    assert held.ledger.head().seq == 0
    assert not (tmp_path / "l.db").exists()
    assert owner(RECORDS, unit="Kranke in Köln, 東京 🙂").statement().unit
