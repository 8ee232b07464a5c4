"""The command line of dpbo: `dpbo`, or `python -m dpbo`."""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpbo._version import __version__
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerCorrupt,
    LedgerMismatch,
    LedgerMissing,
    LedgerRolledBack,
    LedgerUnavailable,
    PrivacyError,
    UsageError,
)
from dpbo.validation import printable

if TYPE_CHECKING:
    from dpbo.ledger.entries import Record
    from dpbo.ledger.facts import Facts
    from dpbo.ledger.ledger import Ledger
    from dpbo.space import Space

EXIT_STATUS: dict[type[PrivacyError], int] = {
    PrivacyError: 1,
    # As argparse has it.
    UsageError: 2,
    BudgetExceeded: 3,
    LedgerMissing: 4,
    LedgerCorrupt: 5,
    LedgerRolledBack: 6,
    LedgerUnavailable: 7,
    LedgerMismatch: 8,
}
"""The exit status of each error; a class that is not listed has that of its nearest base."""
_END_UNKNOWN = 9
"""That of `ledger verify` where nothing tells whether records were cut off the ledger's end."""

# Numbers of a release, or of its point, that `ledger show` prints.
_LISTED = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit status: 0 done, 1 a closed output pipe, 2 wrong arguments, 9 a ledger
    whose end `verify` cannot tell, else that of the error, which is printed.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is not _demo and options.json is not None:
        parser.error(
            "--json FILE is of the demo alone: write `ledger show FILE_OR_URL --json` to print a"
            " ledger as JSON"
        )
    if options.run is _ledger and options.as_json and options.action != "show":
        parser.error(
            "--json goes with `ledger show` alone; `ledger export` prints every record as JSON"
        )
    try:
        status = int(options.run(options) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PrivacyError as error:
        text = _in_typed_words(error, options) if isinstance(error, InputError) else str(error)
        print(f"{type(error).__name__}: {printable(text)}", file=sys.stderr)
        return exit_status(error)


def exit_status(error: PrivacyError) -> int:
    """The exit status of an error."""
    return next(EXIT_STATUS[kind] for kind in type(error).__mro__ if kind in EXIT_STATUS)


def _in_typed_words(error: InputError, options: argparse.Namespace) -> str:
    """The error with the flag, or the place, in which its value was typed, in place of the
    parameter's name in Python.
    """
    name = error.parameter
    typed = options.typed.get(
        name, f"--{name.replace('_', '-')}" if name in vars(options) else None
    )
    if typed is None:
        return str(error)
    refused = f"{typed} {error.value} is not allowed: {typed} must be {error.allowed}."
    return f"{refused} {error.remedy}".rstrip()


def _parser() -> argparse.ArgumentParser:
    demo = (
        "a demo that tunes a model of incomes, trained on public records of people without a"
        " degree, for protected records of graduates"
    )
    about = f"Differentially private Bayesian optimisation. Without a command: {demo}."
    # The console script is a file of that name.
    called = "dpbo" if pathlib.Path(sys.argv[0]).stem == "dpbo" else "python -m dpbo"
    parser = argparse.ArgumentParser(prog=called, description=about)
    parser.add_argument("--version", action="version", version=f"dpbo {__version__}")
    # typed: see main
    parser.set_defaults(
        run=_demo, typed={"n_iter": "--candidates", "random_state": "--seed", "file": "--plot"}
    )
    parser.add_argument(
        "--epsilon", type=float, default=1.0, help="epsilon of the demo's budget (default 1)"
    )
    parser.add_argument(
        "--delta", type=float, default=1e-6, help="delta of the demo's budget (default 1e-6)"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        default=24,
        help="number of configurations to choose from (default 24)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the split and the search, not of the noise (default 0)",
    )
    parser.add_argument(
        "--ledger",
        metavar="FILE_OR_URL",
        help="keep the ledger in this file or database, and resume from it",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the accuracies (needs dpbo[plots])")
    parser.add_argument(
        "--json", metavar="FILE", help="write the result and the statement to this file"
    )
    commands = parser.add_subparsers(metavar="{ledger,report}")
    ledger = commands.add_parser(
        "ledger",
        help="show, verify or export a ledger, or print a form to sign",
    )
    ledger.set_defaults(run=_ledger, typed={"ledger": "FILE_OR_URL"})
    ledger.add_argument("action", choices=["show", "verify", "form", "export"])
    ledger.add_argument("ledger", metavar="FILE_OR_URL")
    ledger.add_argument(
        "--json",
        action="store_true",
        dest="as_json",
        help="with show: print everything as one JSON object",
    )
    report = commands.add_parser(
        "report", help="write what a ledger promises, spent and released as one HTML page"
    )
    report.set_defaults(run=_report, typed={"ledger": "FILE_OR_URL", "delta": "--at-delta"})
    report.add_argument("ledger", metavar="FILE_OR_URL")
    report.add_argument(
        "--output",
        metavar="FILE",
        default="report.html",
        help="the page to write (default report.html)",
    )
    report.add_argument(
        "--title", default="", help="title of the page (default: the name of the data set)"
    )
    report.add_argument(
        "--at-delta", type=float, help="where to read epsilon, for a budget given as mu"
    )
    for command in (ledger, report):
        command.add_argument(
            "--expect",
            metavar="HEAD",
            help="a head hash that was kept elsewhere; fails if the ledger does not contain it",
        )
    return parser


def _demo(options: argparse.Namespace) -> None:
    # Imports torch, which the other commands do not need.
    from dpbo.demo import run

    run(options)


def _ledger(options: argparse.Namespace) -> int:
    from dpbo.curator.statements import compose_statement
    from dpbo.ledger.kept import kept_head
    from dpbo.ledger.ledger import Ledger
    from dpbo.places import place_named
    from dpbo.statement import form

    ledger = Ledger.open(place_named(options.ledger))
    facts = ledger.facts(expect=options.expect)
    if options.action == "verify":
        head = facts.head
        print(f"The hash chain of {head.seq + 1} records is intact. Head: {head.hash}")
        if options.expect:
            print("It contains the expected head.")
        elif kept_head(ledger.storage) is not None:
            print("It contains the newest record that this user's programs have seen.")
        else:
            print(
                "Records that were cut off its end, or a chain that was made anew, are not seen so."
                " Add --expect HEAD: the hash in the last line of a statement that was kept"
                " elsewhere."
            )
            return _END_UNKNOWN
    elif options.action == "export":
        for record in ledger.each():
            print(json.dumps(record.to_json(), sort_keys=True))
    elif options.action == "form":
        print(form(compose_statement(ledger, verified=facts)))
    elif options.as_json:
        print(json.dumps(_facts(ledger, facts), indent=2, allow_nan=False))
    else:
        _show(ledger, facts)
    return 0


def _show(ledger: "Ledger", facts: "Facts") -> None:
    """Print the records, what is used of the budget, and the statement."""
    from dpbo.curator.statements import BudgetUse, compose_statement
    from dpbo.statement import format_down

    lost = _lost(facts)
    run_by = None
    for record in ledger.each():
        note = "  value lost" if record.seq in lost else ""
        print(
            f"{record.seq:5d}  {printable(record.kind):8s} {printable(record.name):20s}"
            f" {record.hash[:16]}{note}"
        )
        for value in _values(record):
            print(f"       {_shown(value, _space_of(record, facts))}")
        if record.body.get("run_by") != run_by:
            run_by = record.body.get("run_by")
            print(f"       from here on by {printable(run_by or 'nobody who is named')}")
    use = BudgetUse.of(ledger, facts, ledger.budget.delta)
    if use.epsilon_left is None:
        left = ""
    else:
        left = f"; a further budget of epsilon {format_down(use.epsilon_left)} is left"
    unit = ledger.accounting.unit.removeprefix("of ")
    shares = (
        f"Spent {float(use.spent_share):.1%}, with reservations {float(use.reserved_share):.1%}"
        f" (shares of {unit})"
    )
    if lost:
        print(
            f"\nCharges without a value: {len(lost)}. It is lost and is never drawn again, unless a"
            " process is releasing it now."
        )
    print(f"\nBudget: {use.budget}. {shares}{left}.\n")
    print(compose_statement(ledger, verified=facts))


def _facts(ledger: "Ledger", facts: "Facts") -> dict[str, Any]:
    """What `ledger show` prints, as JSON values: nothing is cut or rounded."""
    from dpbo.curator.statements import BudgetUse, compose_statement

    lost = _lost(facts)
    records = []
    for record in ledger.each():
        told = {
            "seq": record.seq,
            "kind": record.kind,
            "name": record.name,
            "hash": record.hash,
            "lost": record.seq in lost,
            "run_by": record.body.get("run_by"),
            "values": list(map(_released, _values(record))),
        }
        records.append(told)
    use = BudgetUse.of(ledger, facts, ledger.budget.delta)
    return {
        "dpbo": __version__,
        "records": records,
        "budget": {
            "text": use.budget,
            "unit": ledger.accounting.unit.removeprefix("of "),
            "spent_share": float(use.spent_share),
            "reserved_share": float(use.reserved_share),
            "epsilon_left": use.epsilon_left,
        },
        "statement": json.loads(compose_statement(ledger, verified=facts).to_json()),
    }


def _lost(facts: "Facts") -> set[int]:
    """Numbers of the charges whose value was never stored: lost, unless a process is releasing it
    now.
    """
    return {number for number, charge in facts.unanswered.items() if "slots" in charge.body}


def _values(record: "Record") -> list[dict[str, Any]]:
    """What a record says was released."""
    return record.body["values"] if record.kind == "value" else []


def _released(value: dict[str, Any]) -> dict[str, Any]:
    """A released value, the standard deviation of its noise, and its point where it has one."""
    import numpy as np

    details = value.get("details", {})
    point = {"x": details["x"]} if "x" in details else {}
    return {"value": value["value"], "noise": np.sqrt(value.get("variance", [])).tolist(), **point}


def _space_of(record: "Record", facts: "Facts") -> "Space | None":
    """The space of a record's points, where its reservation names one."""
    reserved = facts.reservations.get(record.reservation or record.name)
    text = None if reserved is None else reserved.terms.get("space")
    return _space_from(text) if isinstance(text, str) else None


@functools.cache
def _space_from(text: str) -> "Space | None":
    """The space of this JSON text, made once for all values of a reservation."""
    # Imports torch, which the ledger does not need.
    from dpbo.space import Space

    # A list of configurations, or values that JSON cannot hold: only their digests are kept.
    with contextlib.suppress(InputError):
        return Space.from_json(text)
    return None


def _shown(value: dict[str, Any], space: "Space | None" = None) -> str:
    """A released value with the standard deviation of its noise, and its point where it has one, by
    its parameters where the ledger names them; long ones are cut.
    """
    import numpy as np

    def numbers(held: Any) -> str:
        values = np.ravel(held)
        return ", ".join(f"{number:.4g}" for number in values[:_LISTED]) + (
            ", ..." if len(values) > _LISTED else ""
        )

    variance = value.get("variance", [])
    x = value.get("details", {}).get("x")
    noise = f"   noise {numbers(np.sqrt(variance))}" if np.any(variance) else ""
    point = f"   at {numbers(x)}" if _holds_numbers(x) else ""
    if space is not None and isinstance(x, list) and len(x) == len(space.names):
        parameters = space.decode(space.bounds.new_tensor(x))
        named = (
            f"{name}={held:.4g}" if isinstance(held, float) else f"{name}={held!r}"
            for name, held in parameters.items()
        )
        point = f"   at {printable(', '.join(named))}"
    return f"{numbers(value['value'])}{noise}{point}"


def _holds_numbers(x: Any) -> bool:
    """Whether it is a number or a list of numbers."""
    return all(isinstance(number, (int, float)) for number in (x if isinstance(x, list) else [x]))


def _report(options: argparse.Namespace) -> None:
    from dpbo.ledger.ledger import Ledger
    from dpbo.places import place_named
    from dpbo.reporting.page import report
    from dpbo.validation import named_file

    ledger = Ledger.open(place_named(options.ledger))
    if options.expect is not None:
        ledger.verify(expect=options.expect)
    page = report(ledger, title=options.title, delta=options.at_delta)
    with named_file("output", options.output, "a file that can be written"):
        pathlib.Path(options.output).write_text(page, encoding="ascii")
    print(f"Wrote {options.output}.")


if __name__ == "__main__":
    sys.exit(main())
