"""A page around a statement that a privacy officer can sign: what the ledger knows is filled in, the rest is asked."""

from __future__ import annotations

from collections.abc import Sequence

from dpbo.statement import Statement

_BLANK = "______________________"
_CLOSING = "The guarantee holds while every assumption and every answer above does. It is that of the whole budget, not of what was used."
_ASKED = (
    ("Purpose of the study, and the person who answers for it", ""),
    ("Where the records come from, and who may open them", ""),
    ("No copy of these records is tuned on, released or published outside this ledger", "yes / no"),
    ("Ranges, kernels, clips, divisors and candidates were fixed without looking at these records", "yes / no; by whom"),
    ("The score was read, or tested by `check_per_record`, and writes, sends and prints nothing", "yes / no; by whom"),
    ("Who sees released values, proposed points, statements and the ledger", ""),
    ("Who could time evaluations or releases, or watch the machine, and why that is acceptable", ""),
    ("Models: trained on which records, and protected how", ""),
    ("Where the ledger is kept, who can write to it, and where its head hash is noted", ""),
    ("One unit's chance of being told apart, as above, is acceptable for these people", "yes / no"),
    ("What is left of the budget may be used by", ""),
)


def form(statement: Statement | None = None) -> str:
    """Markdown: the statement's facts, the questions that no ledger can answer, and room to sign. Without a statement: the blank form.

    What the ledger states is checked by whoever signs against `python -m dpbo ledger verify FILE --expect HEAD`.
    """
    return "\n".join(
        [
            "# Statement of protection",
            "",
            *([f"**{line}**\n" for line in statement.opening()] if statement is not None else []),
            "## What the ledger states",
            *_table(_facts(statement)),
            "",
            "## What the signer states",
            *_table([(question, answer or _BLANK) for question, answer in _ASKED]),
            "",
            "Nothing is guaranteed." if statement is not None and statement.void else _CLOSING,
            "",
            f"Date {_BLANK} Name and office {_BLANK} Signature {_BLANK}",
            "",
        ]
    )


def _facts(statement: Statement | None) -> Sequence[tuple[str, str]]:
    if statement is None:
        return [(title, _BLANK) for title in Statement.titles()]
    return statement.sections()


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {title.strip()} | {_cell(text)} |" for title, text in rows)]


def _cell(text: str) -> str:
    """One line without bars: a name in it must not make a row of its own."""
    return " ".join(text.replace("|", "\\|").split())
