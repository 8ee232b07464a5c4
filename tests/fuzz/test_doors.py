"""The doors that face other programs: the HTTP application and the command line. Typed refusals, no record shown, nothing charged."""

import asyncio
import contextlib
import io
from typing import Any

import httpx
import pytest

from dpbo.__main__ import main
from dpbo.integrations import application
from tests.fuzz import world as w
from tests.fuzz.canaries import shown
from tests.fuzz.cases_algorithms import _outcomes

TOKEN = "a token of enough letters"
BODIES = {
    "nothing": b"",
    "no json": b"{",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "bytes": b"\xff\xfe\x00",
    "empty": b"{}",
    "one field": b'{"row": 1}',
    "another field": b'{"row": 1, "request": "a", "more": 1}',
    "text row": b'{"row": "1", "request": "a"}',
    "true": b'{"row": true, "request": "a"}',
    "half": b'{"row": 0.5, "request": "a"}',
    "nan": b'{"row": NaN, "request": "a"}',
    "inf": b'{"row": Infinity, "request": "a"}',
    "below": b'{"row": -1, "request": "a"}',
    "beyond": b'{"row": 40, "request": "a"}',
    "64 bits": b'{"row": 9223372036854775808, "request": "a"}',
    "digits": b'{"row": ' + b"9" * 3000 + b', "request": "a"}',
    "many digits": b'{"row": 1' + b"0" * 4060 + b', "request": "a"}',
    "no name": b'{"row": 1, "request": ""}',
    "null name": b'{"row": 1, "request": null}',
    "surrogate": b'{"row": 1, "request": "\\ud800"}',
    "list name": b'{"row": 1, "request": ["a"]}',
    "long name": b'{"row": 1, "request": "' + b"x" * 4000 + b'"}',
    "too long": b" " * 5000,
    "deep": b"[" * 4000,
    "twice": b'{"row": 1, "row": 99, "request": "a"}',
}


def _asked(outcomes: Any, method: str, path: str, **question: Any) -> httpx.Response:
    """The application's answer, over the real protocol without a socket."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(application(outcomes, token=TOKEN, every=0.001))
        async with httpx.AsyncClient(transport=transport, base_url="http://curator") as client:
            return await client.request(method, path, **question)

    return asyncio.run(asked())


@pytest.mark.attack("A21")
@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_hostile_body_gets_a_typed_refusal_and_charges_nothing(name):
    outcomes = _outcomes()
    before = outcomes.curator.ledger.head().hash
    reply = _asked(outcomes, "POST", "/value", content=BODIES[name], headers={"Authorization": f"Bearer {TOKEN}"})
    assert 400 <= reply.status_code < 500, reply.text
    assert set(reply.json()) == {"error", "message"}
    assert not shown(reply.text)
    assert len(reply.text) < 2000
    assert outcomes.curator.ledger.head().hash == before


HEADERS = [
    {},
    {"Authorization": ""},
    {"Authorization": TOKEN},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": f"Bearer {TOKEN} "[:-2]},
    {"Authorization": "Bearer " + "x" * 5000},
]


@pytest.mark.attack("A21")
@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("path", ["/value", "/statement"])
def test_without_the_token_nothing_is_told(headers, path):
    outcomes = _outcomes()
    before = outcomes.curator.ledger.head().hash
    question = {"content": b'{"row": 1, "request": "a"}'} if path == "/value" else {}
    reply = _asked(outcomes, "POST" if path == "/value" else "GET", path, headers=headers, **question)
    assert reply.status_code == 401
    assert not shown(reply.text)
    assert outcomes.curator.ledger.head().hash == before


COMMANDS = [
    ["--epsilon", "nan"],
    ["--epsilon", "inf"],
    ["--epsilon", "-1"],
    ["--epsilon", "x"],
    ["--delta", "2"],
    ["--delta", "nan"],
    ["--evaluations", "0"],
    ["--evaluations", "-3"],
    ["--evaluations", "1.5"],
    ["--seed", "-1"],
    ["--seed", "9" * 30],
    ["--seed", ""],
    ["--ledger", "nosuch://x"],
    ["--ledger", "a\0b"],
    ["--ledger", "/nonexistent/folder/x.db"],
    ["--unknown"],
    ["nosuch"],
    ["plan", "--units", "0"],
    ["plan", "--units", "-1"],
    ["plan", "--units", "nan"],
    ["plan", "--epsilons", "nan"],
    ["plan", "--epsilons", "0"],
    ["plan", "--at-delta", "1"],
    ["plan", "--at-delta", "nan"],
    ["plan", "--points", "0"],
    ["plan", "--share", "0"],
    ["plan", "--share", "nan"],
    ["plan", "--share", "1e400"],
    ["plan", "--dimension", "0"],
    ["plan", "--dimension", "2", "--range", "1", "0"],
    ["plan", "--dimension", "2", "--range", "nan", "1"],
    ["plan", "--units", "9" * 400],
    ["ledger"],
    ["ledger", "verify"],
    ["ledger", "nosuch", "x"],
    ["ledger", "verify", "nosuch://x"],
    ["ledger", "verify", "missing.db"],
    ["ledger", "show", "missing.db"],
    ["ledger", "verify", "a\0b"],
    ["curate"],
    ["curate", "--nosuch"],
    ["model"],
    ["model", "--nosuch"],
]


@pytest.mark.attack("A5")
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: " ".join(word[:20] for word in words).replace("\0", "NUL"))
def test_hostile_arguments_of_the_command_line_are_refused(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
        try:
            status = main(arguments)
        except SystemExit as leaving:  # argparse's own
            status = leaving.code if isinstance(leaving.code, int) else 1
    assert status in (1, 2)
    assert "Traceback" not in told.getvalue()
    assert len(told.getvalue()) < 4000


def test_every_canary_is_in_the_records_behind_the_doors():
    assert shown(" ".join(map(repr, w.records()[:, 0].tolist())))
