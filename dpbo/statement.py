"""The statement: what is guaranteed, to whom and under which assumptions, and the form that a
privacy officer signs.

Epsilon and mu are rounded up. The guarantee is that of the plan or the cap, never of what happens
to be spent.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from dpbo.errors import InputError
from dpbo.notebook import facts_table
from dpbo.privacy import Adjacency
from dpbo.validation import checked, printable

NOT_BOUNDED = "not bounded"
_SECTIONS = {
    "protected": "Protected",
    "guarantee": "Guarantee",
    "everything": "  all releases, unconditionally",
    "unconditional": "  unconditional releases alone",
    "assumed": "  all releases, under the assumptions",
    "meaning": "What it means",
    "not_protected": "Not protected",
    "assumptions": "Assumptions",
    "public_inputs": "Declared public by the caller, without looking at the data",
    "budget": "Budget (bookkeeping, not a guarantee)",
    "ledger": "Ledger",
    "recommended": "Result",
}
# where a unit is one record, and where it is all records with one label
_CHANGES = {
    Adjacency.REPLACE_ONE: (
        "one record is replaced by another",
        "one {unit}'s records are replaced by others",
    ),
    Adjacency.ADD_OR_REMOVE_ONE: (
        "one record is added or removed",
        "all records of one {unit} are added or removed",
    ),
    Adjacency.BOUNDED_ROW_CHANGE: ("one row has moved: {radius}",) * 2,
}
_SHOWN_FIRST = (
    "evaluations",
    "evaluations of each row",
    "in all at most",
    "query",
    "score_range",
    "bounds",
    "clip",
    "cells",
)
# letters of the declared inputs of one reservation
_TWO_LINES = 200
# of declared inputs whose name says too little
_WORDS = {"worst": "NaN counts as"}


@dataclass(frozen=True)
class Guarantee:
    """A bound on privacy loss: mu of Gaussian DP, epsilon at delta, or both. Shown rounded up,
    delta as it is.

    Attributes:
        mu: where the accounting has one, else None; infinite where nothing is bounded.
        epsilon, delta: where a delta was named, else None; epsilon is infinite where nothing is
            bounded.
    """

    mu: float | None
    epsilon: float | None
    delta: float | None

    @classmethod
    def none(cls) -> Guarantee:
        """The guarantee of exact answers: none."""
        return cls(math.inf, math.inf, 0.0)

    def __str__(self) -> str:
        if self.epsilon == math.inf and self.mu in (None, math.inf):
            return NOT_BOUNDED
        bounds = []
        if self.epsilon is not None:
            bounds.append(f"({format_up(self.epsilon)}, {self.delta!r})-DP")
        if self.mu is not None:
            bounds.append(f"{format_up(self.mu)}-GDP")
        return ", ".join(bounds) or "name a delta to read epsilon"


@checked
@dataclass(frozen=True)
class Statement:
    """The guarantee as data; `str()` gives a text for a reader, `to_json()` every field.

    Attributes:
        void: why nothing is guaranteed, or "".
        scope: "this process only" for a ledger in memory, "this machine only, ledger FILE", with
            the whole path, for one in a file, "" for one on a server.
        dataset, unit, grouped, units, adjacency, role: what is protected: `grouped` says whether a
            unit is all records with one label or a single record; the number of units is None where
            it is private.
        not_protected: what the guarantee does not cover.
        guarantee: of everything this ledger may ever release (the cap of its filter).
        lines: three guarantees in words: of all releases, whatever the data are; of those releases
            alone that assume nothing about the data; of all releases where the assumptions about
            the data are true. The three are the same if no release needs such an assumption and
            none gives an exact answer.
        spent: what the charges so far cost; bookkeeping, not a guarantee.
        reserved: what the charges and everything reserved cost together; bookkeeping, not a
            guarantee.
        assumptions: name -> what must hold.
        public_inputs: name of a reservation -> what the caller declared public when it was made
            (score range, divisor, ...), and how many releases it has. A query that declared
            something else than its reservation has an entry of its own, "NAME, question 1", and so
            has each kind of release without a reservation, "release 1" by the first one.
        entries, head: number of ledger records, and the hash of the newest one.
        meaning: what the guarantee means, in sentences, and warnings.
        radius: under BOUNDED_ROW_CHANGE, how far a row may move, and what share of the diameter
            that is; else "".
        counted: where other roles have other records, the role whose records are counted; else "".
        conditions: names of the assumptions about the data. If one of them is false, `guarantee`
            and the last of `lines` need not hold. Empty for most ledgers.
        failure_probability: the probability, at most, that these two do not hold although all
            `conditions` are true. It is the sum of `Query.failure_probability` over everything
            reserved or released, capped at 1; 0 for most ledgers.
        remaining: share of the budget that is neither reserved nor charged, rounded down.
        recommended: of a search, what it recommends and what was shown of it; else "".
    """

    void: str
    scope: str
    dataset: str
    unit: str
    grouped: bool
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
    remaining: float = 0.0
    recommended: str = ""

    def voided(self, reason: str) -> Statement:
        """The same statement, void for one more reason."""
        if not reason:
            raise InputError("reason", reason, "a sentence")
        return dataclasses.replace(self, void="; ".join(filter(None, (self.void, reason))))

    def to_json(self) -> str:
        """All fields as one JSON object, and `stated()`.

        Infinite numbers are "infinite", because JSON has none.
        """
        fields = {**dataclasses.asdict(self), "stated": self.stated()}
        for bound in (fields["guarantee"], fields["spent"], fields["reserved"]):
            for name, value in bound.items():
                if value == math.inf:
                    bound[name] = "infinite"
        return json.dumps(fields, indent=2)

    def __str__(self) -> str:
        lines = self.opening()
        for title, text in self.sections():
            gap = "\n" if "\n" in text else " "
            lines.append(f"{title}:{gap}{text}".replace("\n", "\n  "))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        opening = "".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in self.opening())
        return opening + facts_table(dict(self.sections()))

    def facts(self) -> dict[str, str | None]:
        """The shortest account of it, for a notebook: what must be read first, whom it protects,
        and how well.
        """
        return {
            "Read first": "\n".join(self.opening()) or None,
            "Protected": _line(self.protected()),
            "Guarantee": _line(self.stated()),
        }

    def stated(self) -> str:
        """The guarantee in one line with all that it hangs on.

        Whatever shows a guarantee shows this, or `condition` beside its numbers.
        """
        condition = self.condition()
        if condition:
            bound = f"unconditionally {NOT_BOUNDED}; {condition}: {self.guarantee}"
        else:
            bound = str(self.guarantee)
        if not self.void:
            return bound
        return "none, because this statement is void" + (
            "" if bound == NOT_BOUNDED else f"; if it were not: {bound}"
        )

    def condition(self) -> str:
        """Under which data assumptions the guarantee holds; "" where it always does.

        With the probability that it fails even so.
        """
        if self.conditions:
            return f"under {conditional(self.conditions, self.failure_probability)}"
        return ""

    def opening(self) -> list[str]:
        """What must be read first: why nothing is guaranteed, and which other studies are not
        counted.
        """
        lines = []
        if self.void:
            lines.append(f"VOID: {_line(self.void)}. Nothing below is a guarantee.")
        if self.scope:
            lines.append(
                f"{self.scope[:1].upper()}{self.scope[1:]}: the guarantee does not count what other"
                " ledgers released about these records."
            )
        return lines

    @classmethod
    def titles(cls) -> tuple[str, ...]:
        """Titles of all sections that a statement may have, in their order."""
        return tuple(_SECTIONS.values())

    def sections(self) -> list[tuple[str, str]]:
        """Title and text of each section. The three lines appear where they differ: a release was
        conditional, or had no guarantee.
        """
        texts = {
            "protected": self.protected(),
            "guarantee": self.stated(),
            "meaning": " ".join(self.meaning),
            "not_protected": "; ".join(self.not_protected),
            "budget": (
                f"releases so far cost {self.spent}; with all that is reserved: {self.reserved};"
                f" left: {100 * self.remaining:g} %"
            ),
            "ledger": (
                f"{self.entries} entries; the last one's hash is {self.head}: note it elsewhere, to"
                " detect later changes"
            ),
        }
        if len(set(self.lines)) > 1:
            texts |= dict(zip(("everything", "unconditional", "assumed"), self.lines, strict=True))
        texts = {name: _line(text) for name, text in texts.items()}
        texts["assumptions"] = "\n".join(
            _line(f"{name} ({text})") for name, text in self.assumptions.items()
        )
        texts["public_inputs"] = (
            "\n".join(
                _line(f"{name}: {_short(terms)}") for name, terms in self.public_inputs.items()
            )
            or "nothing"
        )
        if self.recommended:
            texts["recommended"] = _line(self.recommended)
        return [(title, texts[name]) for name, title in _SECTIONS.items() if name in texts]

    def protected(self) -> str:
        """What a unit is, how many there are, and with which other data the guarantee compares
        these.
        """
        return (
            f"{self.whose()}, under {self.adjacency}, which compares these data with data in which"
            f" {self.change()}"
        )

    def change(self) -> str:
        """In what the data differ with which the guarantee compares these."""
        return _CHANGES[Adjacency(self.adjacency)][self.grouped].format(
            unit=self.unit, radius=self.radius
        )

    def whose(self) -> str:
        """What a unit is, how many there are, and of which records."""
        single = "" if self.unit == "record" else f"every record counts as its own {self.unit}"
        count = ""
        if self.units is not None:
            count = (
                f"{self.units}{f' in the {self.counted} records' if self.counted else ''}, a public"
                " number"
            )
        elif self.adjacency == Adjacency.ADD_OR_REMOVE_ONE.value:
            count = "their number is private"
        facts = "; ".join(
            filter(None, ("all records with one label together" if self.grouped else single, count))
        )
        name = f" {self.dataset!r}" if self.dataset else ""
        # also of a study without models, where nothing is validated
        role = "protected" if self.role == "validation" else self.role
        return f"each {self.unit}{f' ({facts})' if facts else ''} of the {role} records{name}"


def conditional(names: Iterable[str], failure_probability: float) -> str:
    """The data assumptions under which something holds, and the probability that it is false even
    so.
    """
    if not failure_probability:
        return ", ".join(names)
    return (
        f"{', '.join(names)}, except with probability {failure_probability!r} (summed over all that"
        " was reserved or released, capped at 1)"
    )


def format_up(value: float, digits: int = 4) -> str:
    """`value` with `digits` significant digits, rounded up: 4.37718 gives 4.378."""
    return _rounded(value, digits, ROUND_CEILING)


def format_down(value: float, digits: int = 4) -> str:
    """`value` with `digits` significant digits, rounded down: 4.37788 gives 4.377."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    exact = Decimal(value)
    if not exact.is_finite() or exact == 0:
        return str(value)
    rounded = Context(prec=digits, rounding=rounding).create_decimal(exact)
    rounded = rounded.quantize(Decimal(1).scaleb(rounded.adjusted() - digits + 1))
    if -4 <= rounded.adjusted() < 12:
        return f"{rounded:f}"
    return f"{rounded:e}"


def _line(text: str) -> str:
    """One line of printable characters: a name in it must not begin a line of its own, or steer a
    terminal.
    """
    return printable(" ".join(text.split()))


def _short(terms: Mapping[str, Any]) -> str:
    """The first declared inputs, as many as fit into two lines, and how many there are besides."""
    given = {name: value for name, value in terms.items() if value is not None}
    shown: list[str] = []
    for name in sorted(
        given,
        key=lambda name: _SHOWN_FIRST.index(name) if name in _SHOWN_FIRST else len(_SHOWN_FIRST),
    ):
        value = given[name]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is False:
            value = "no"
        longer = [*shown, f"{_WORDS.get(name, name.replace('_', ' '))} {value}"]
        if len(", ".join(longer)) <= _TWO_LINES:
            shown = longer
    more = f"{len(given) - len(shown)} more in to_json()" if len(shown) < len(given) else ""
    return "; ".join(filter(None, (", ".join(shown), more)))


_BLANK = "______________________"
_CLOSING = (
    "The guarantee holds while every assumption and every answer above does. It is that of the"
    " whole budget, not of what was used."
)
_QUESTIONS = (
    ("Purpose of the study, and the person who answers for it", ""),
    ("Where the records come from, and who may open them", ""),
    ("No copy of these records is tuned on, released or published outside this ledger", "yes / no"),
    (
        (
            "Ranges, kernels, clips, divisors and candidates were fixed without looking at these"
            " records"
        ),
        "yes / no; by whom",
    ),
    (
        "The score was read, or tested by `check_per_record`, and writes, sends and prints nothing",
        "yes / no; by whom",
    ),
    ("Who sees released values, proposed points, statements and the ledger", ""),
    (
        "Who could time evaluations or releases, or watch the machine, and why that is acceptable",
        "",
    ),
    ("Models: trained on which records, and protected how", ""),
    ("Where the ledger is kept, who can write to it, and where its head hash is noted", ""),
    ("What a membership test can find out, as above, is acceptable for these people", "yes / no"),
    ("What is left of the budget may be used by", ""),
)


def form(statement: Statement | None = None) -> str:
    """A page in Markdown: the statement's facts, the questions that no ledger can answer, and room
    to sign.

    Args:
        statement: whose facts are filled in; omitted, the form is blank. Whoever signs checks them
            against `python -m dpbo ledger verify FILE --expect HEAD`.
    """
    opening: list[str] = []
    facts = [(title, _BLANK) for title in Statement.titles()]
    closing = _CLOSING
    if statement is not None:
        opening = [f"**{line}**\n" for line in statement.opening()]
        facts = statement.sections()
        if statement.void:
            closing = "Nothing is guaranteed."
    lines = [
        "# Statement of protection",
        "",
        *opening,
        "## What the ledger states",
        *_table(facts),
        "",
        "## What the signer states",
        *_table([(question, answer or _BLANK) for question, answer in _QUESTIONS]),
        "",
        closing,
        "",
        f"Date {_BLANK} Name and office {_BLANK} Signature {_BLANK}",
        "",
    ]
    return "\n".join(lines)


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    cells = [
        (title.strip(), html.escape(text, quote=False).replace("|", "\\|").replace("\n", "<br>"))
        for title, text in rows
    ]
    return ["| | |", "|---|---|", *(f"| {title} | {text} |" for title, text in cells)]
