"""The statement: what is guaranteed, to whom, under which assumptions, in words that can be handed to a reader.

Epsilon and mu are rounded up. The guarantee is that of the plan or the cap, never of what happens to be spent.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from dpbo.errors import InputError
from dpbo.privacy import Adjacency
from dpbo.validation import checked

NOT_BOUNDED = "not bounded"
_TITLES = (
    "Protected", "Not protected", "Guarantee", "  all releases, unconditionally", "  unconditional releases alone",
    "  all releases, under the assumptions", "Assumptions", "Means", "Declared public by the caller, without looking at the data",
    "Bookkeeping (not a guarantee)", "Ledger",
)  # fmt: skip


@dataclass(frozen=True)
class Guarantee:
    """mu of Gaussian DP where the filter has one, and epsilon at delta where one was named; infinite where nothing is bounded.

    Shown rounded up, delta as it is.
    """

    mu: float | None
    epsilon: float | None
    delta: float | None

    @classmethod
    def none(cls) -> Guarantee:
        """Of exact answers."""
        return cls(math.inf, math.inf, 0.0)

    def __str__(self) -> str:
        if self.epsilon == math.inf and self.mu in (None, math.inf):
            return NOT_BOUNDED
        pair = "" if self.epsilon is None else f"({format_up(self.epsilon)}, {self.delta!r})-DP"
        return ", ".join(filter(None, (pair, "" if self.mu is None else f"{format_up(self.mu)}-GDP"))) or "name a delta to read epsilon"


@checked
@dataclass(frozen=True)
class Statement:
    """Every field of the guarantee as data; `str()` gives the text, `to_json()` the fields.

    Attributes:
        void: why nothing is guaranteed, or "".
        scope: "this process only" for a ledger in memory, else "".
        guarantee: of everything this ledger may ever release (the cap of its filter).
        lines: the guarantee of all releases unconditionally, of the unconditional ones alone, of all under the named assumptions.
        spent: bookkeeping, not a guarantee: what the charges so far cost.
        assumptions: name -> what must hold.
        public_inputs: what the user declared without looking at the data, by plan; what questions under a plan took on trust otherwise
            than its terms say, by declaration or from earlier releases; and what those of no plan did.
        radius: under BOUNDED_ROW_CHANGE, how far a row may move, and what share of the diameter that is; else "".
        counted: of several roles, the one whose records are counted; else "".
        conditions: names of the data assumptions, without which `guarantee` and the last of `lines` do not hold.
        failure_probability: with which they may fail even under these: the sum over all releases so far, capped at 1.
        entries, head: number of ledger records and the hash of the newest one.
    """

    void: str
    scope: str
    dataset: str
    unit: str
    units: int | None
    adjacency: str
    role: str
    not_protected: tuple[str, ...]
    guarantee: Guarantee
    lines: tuple[str, str, str]
    spent: Guarantee
    reserved: Guarantee
    assumptions: dict[str, str]
    public_inputs: dict[str, dict[str, Any]]
    entries: int
    head: str
    meaning: tuple[str, ...]
    radius: str = ""
    counted: str = ""
    conditions: tuple[str, ...] = ()
    failure_probability: float = 0.0

    def voided(self, reason: str) -> Statement:
        """The same statement, void for one more reason."""
        if not reason:
            raise InputError("reason", reason, "a sentence")
        return dataclasses.replace(self, void="; ".join(filter(None, (self.void, reason))))

    def to_json(self) -> str:
        """All fields as one JSON object."""
        return json.dumps(_finite(dataclasses.asdict(self)), indent=2)

    def __str__(self) -> str:
        sections = [f"{title}: {text}" for title, text in self.sections()]
        return "\n".join(self.opening() + sections)

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{html.escape(title)}</th><td>{html.escape(text)}</td></tr>" for title, text in self.sections())
        opening = "".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in self.opening())
        return f"{opening}<table>{rows}</table>"

    def opening(self) -> list[str]:
        """What must be read first: why nothing is guaranteed, and that a ledger in memory adds up with no other study."""
        void = [f"VOID: {self.void}. Nothing below is a guarantee."] if self.void else []
        scope = (
            [f"{self.scope[:1].upper()}{self.scope[1:]}: this ledger is in memory and adds up with no other study."] if self.scope else []
        )
        return void + scope

    @classmethod
    def titles(cls) -> tuple[str, ...]:
        """Of its sections, in their order."""
        return _TITLES

    def sections(self) -> list[tuple[str, str]]:
        """Title and text of everything it says, in the order of the text."""
        private = " (their number is private)" if self.adjacency == Adjacency.ADD_OR_REMOVE_ONE.value else ""
        them = f"{self.counted} ones" if self.counted else "of them"
        count = f" ({self.units} {them}, a public number)" if self.units is not None else private
        name = f" {self.dataset!r}" if self.dataset else ""
        radius = f": {self.radius}" if self.radius else ""
        inputs = [f"{plan}: {_terms(terms)}" for plan, terms in self.public_inputs.items()]
        texts = [
            f"each {self.unit} of the {self.role} records{name}{count}, under {self.adjacency}{radius}",
            "; ".join(self.not_protected),
            self._headline(),
            *self.lines,
            "; ".join(f"{name} ({text})" for name, text in self.assumptions.items()),
            " ".join(self.meaning),
            "; ".join(inputs) or "nothing",
            f"reserved {self.reserved}; charged so far {self.spent}",
            f"{self.entries} records, head {self.head}",
        ]
        return list(zip(_TITLES, texts, strict=True))

    def _headline(self) -> str:
        """What holds unconditionally first."""
        if not self.conditions:
            return str(self.guarantee)
        return f"unconditionally {NOT_BOUNDED}; under {conditional(self.conditions, self.failure_probability)}: {self.guarantee}"


def conditional(names: Iterable[str], failure_probability: float) -> str:
    """Under which data assumptions something is said, and how likely it is false even so."""
    if not failure_probability:
        return ", ".join(names)
    return f"{', '.join(names)}, except with probability {failure_probability!r} (summed over releases so far, capped at 1)"


def format_up(value: float, digits: int = 4) -> str:
    """`value` with so many significant digits, rounded up: 4.37718 gives 4.378."""
    exact = Decimal(value)
    if not exact.is_finite() or exact == 0:
        return str(value)
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact)
    rounded = rounded.quantize(Decimal(1).scaleb(rounded.adjusted() - digits + 1))
    return f"{rounded:f}" if -4 <= rounded.adjusted() < 12 else f"{rounded:e}"


def _finite(value: Any) -> Any:
    """Infinities as words, because JSON has none."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return "infinite" if value == math.inf else value


def _terms(terms: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in terms.items())


# ========== MERGED A page around a statement that a privacy officer can sign: what the ledger knows is filled in, the rest is asked.

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
