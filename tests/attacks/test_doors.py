"""The doors that face other programs, the HTTP application and the command line: typed refusals, no
record shown, nothing charged.
"""

import asyncio
import contextlib
import io

import httpx
import pytest

from dpbo.__main__ import main
from dpbo.papers.po_gp_ucb import serve
from tests.attacks.good_calls import TOKEN, outcomes
from tests.attacks.marks import attack
from tests.attacks.watched import shown

GOOD = b'{"row": 1, "request": "a"}'
ROWS = [b'"1"', b"true", b"0.5", b"NaN", b"-1", b"40", b"9" * 3000]
REQUESTS = [b'""', b"null", b'"\\ud800"', b'["a"]', b'"' + b"x" * 4000 + b'"']
BODIES = [
    *(b"", b"{", b"[]", b"\xff\xfe\x00", b"{}", b'{"row": 1}'),
    *(b'{"row": 1, "request": "a", "more": 1}', b" " * 5000, b"[" * 4000),
    b'{"row": 1, "row": 99, "request": "a"}',
    *map(b'{"row": %b, "request": "a"}'.__mod__, ROWS),
    *map(b'{"row": 1, "request": %b}'.__mod__, REQUESTS),
]
HEADERS = [
    *({}, {"Authorization": ""}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}),
    *(
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": "Bearer " + "x" * 5000},
        {"Authorization": b"Bearer \xff\xfe"},
    ),
]


def answers(questions):
    """The application's answers to (method, path, settings), over the real protocol without a
    socket; nothing may be charged.
    """
    served = outcomes()
    before = served.curator.ledger.head().hash

    async def answered():
        transport = httpx.ASGITransport(serve(served, token=TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://curator") as client:
            return [
                await client.request(method, path, **settings)
                for method, path, settings in questions
            ]

    replies = asyncio.run(answered())
    assert served.curator.ledger.head().hash == before
    return replies


@attack("A5", "A21")
def test_a_hostile_body_gets_a_typed_refusal_and_charges_nothing():
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for body, reply in zip(
        BODIES,
        answers([("POST", "/value", {"content": body, "headers": headers}) for body in BODIES]),
        strict=True,
    ):
        assert 400 <= reply.status_code < 500, (body[:60], reply.text)
        assert set(reply.json()) == {"message"}, body[:60]
        assert not shown(reply.text), body[:60]
        assert len(reply.text) < 2000, body[:60]


@attack("A21")
def test_without_the_token_nothing_is_told():
    asked = [("POST", "/value", {"content": GOOD, "headers": headers}) for headers in HEADERS]
    asked += [("GET", "/statement", {"headers": headers}) for headers in HEADERS]
    for question, reply in zip(asked, answers(asked), strict=True):
        assert reply.status_code == 401, question
        assert not shown(reply.text), question


# Words to begin with, and what may follow.
COMMANDS = {
    "--epsilon": ["nan", "inf", "-1", "x"],
    "--delta": ["2", "nan"],
    "--evaluations": ["0", "-3", "1.5"],
    "--seed": ["-1", "9" * 30, ""],
    "--ledger": ["nosuch://x", "a\0b", "/nonexistent/folder/x.db"],
    "": ["--unknown", "nosuch", "ledger"],
    "ledger": ["verify"],
    "ledger verify": ["nosuch://x", "missing.db", "a\0b"],
    "ledger show": ["missing.db"],
}


@attack("A5")
@pytest.mark.parametrize("words", COMMANDS)
def test_hostile_arguments_of_the_command_line_are_refused(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in COMMANDS[words]:
        arguments = [*words.split(), value]
        told = io.StringIO()
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            try:
                status = main(arguments)
            except SystemExit as leaving:
                # argparse leaves in this way.
                status = leaving.code if isinstance(leaving.code, int) else 1
        # Wrong usage, no ledger, a ledger out of reach.
        assert status in (2, 4, 7), arguments
        assert "Traceback" not in told.getvalue(), arguments
        assert len(told.getvalue()) < 4000, arguments
