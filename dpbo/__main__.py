"""The command line of dpbo: `dpbo`, or `python -m dpbo`."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpbo._version import __version__
from dpbo.errors import (
    BudgetExceeded,
    CuratorUnavailable,
    InputError,
    LedgerCorrupt,
    LedgerMismatch,
    LedgerMissing,
    LedgerRolledBack,
    LedgerUnavailable,
    PrivacyError,
    UsageError,
)
from dpbo.papers.po_gp_ucb.http.commands import curate_options, model_options
from dpbo.validation import printable

if TYPE_CHECKING:
    from dpbo.curator.statements import BudgetUse
    from dpbo.ledger.entries import Record
    from dpbo.ledger.facts import Facts
    from dpbo.ledger.ledger import Ledger

EXIT_STATUS: dict[type[PrivacyError], int] = {
    PrivacyError: 1,
    # As argparse has it.
    UsageError: 2,
    BudgetExceeded: 3,
    LedgerMissing: 4,
    LedgerCorrupt: 5,
    LedgerRolledBack: 6,
    LedgerUnavailable: 7,
    CuratorUnavailable: 7,
    LedgerMismatch: 8,
}
"""The exit status of each error; a class that is not listed has that of its nearest base."""

# Numbers of a release, or of its point, that `ledger show` prints.
_LISTED = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit status: 0 done, 1 a closed output pipe, 2 wrong arguments, else that of
    the error, which is printed.
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
    name = error.parameter.replace("-", "_")
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
    commands = parser.add_subparsers(metavar="{plan,ledger,report,curate,model}")
    plan = commands.add_parser(
        "plan", help="show the noise of an evaluation for numbers of units and budgets"
    )
    named = {
        "epsilon": "--epsilons",
        "delta": "--at-delta",
        "evaluations": "--points",
        "score_range": "--range",
        "file": "--plot",
    }
    plan.set_defaults(run=_plan, typed=named)
    plan.add_argument(
        "--units",
        type=int,
        nargs="+",
        default=[500, 1000, 2000, 5000, 10000, 20000, 50000],
        help="numbers of units",
    )
    plan.add_argument(
        "--epsilons",
        type=float,
        nargs="+",
        default=[0.5, 1.0, 2.0, 3.0, 5.0, 8.0],
        help="epsilons of the budgets",
    )
    plan.add_argument(
        "--at-delta", type=float, default=1e-6, help="delta of the budgets (default 1e-6)"
    )
    plan.add_argument("--points", type=int, default=30, help="number of evaluations (default 30)")
    plan.add_argument(
        "--share", type=float, default=0.9, help="share of the budget that they take (default 0.9)"
    )
    plan.add_argument(
        "--dimension",
        type=int,
        help="number of hyper-parameters; adds the recommended strategy for each size and budget",
    )
    scale = (
        "range of a record's score, in whose units all tables then are (default: 0 1, and noise in"
        " percentage points)"
    )
    plan.add_argument("--range", type=float, nargs=2, metavar=("LOWER", "UPPER"), help=scale)
    plan.add_argument(
        "--plot",
        metavar="FILE",
        help="draw the detectable difference by the number of evaluations (needs dpbo[plots])",
    )

    ledger = commands.add_parser(
        "ledger",
        help="show, verify or export a ledger, print a form to sign, or a line of metrics",
    )
    ledger.set_defaults(run=_ledger, typed={"ledger": "FILE_OR_URL"})
    ledger.add_argument("action", choices=["show", "verify", "export", "form", "metrics"])
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
    curate_options(
        commands.add_parser(
            "curate", help="release the rows of a table and serve private outcomes to a modeler"
        )
    )
    model_options(
        commands.add_parser("model", help="search a released table by the answers of a curator")
    )
    return parser


def _demo(options: argparse.Namespace) -> None:
    # Imports torch, which the other commands do not need.
    from dpbo.demo import run

    run(options)


def _plan(options: argparse.Namespace) -> None:
    from dpbo.planning import noise_table, plan, plans_table
    from dpbo.privacy import Budget, exact_share

    given = None if options.range is None else tuple(options.range)
    table = noise_table(
        options.units,
        options.epsilons,
        delta=options.at_delta,
        evaluations=options.points,
        share=options.share,
        score_range=given,
    )
    if given is None:
        units = "percentage points of a score in [0, 1]"
    else:
        units = f"the units of a score in [{given[0]:g}, {given[1]:g}]"
    print(f"Standard deviation of the noise of one evaluation, in {units}:")
    print(
        f"{options.points} evaluations, {options.share:.0%} of the budget (mu^2), delta"
        f" {options.at_delta:g}, replace-one.\n\n{table}"
    )
    score_range = given or (0.0, 1.0)
    if options.dimension is not None:
        terms = {
            "evaluations": options.points,
            "dimension": options.dimension,
            "score_range": score_range,
        }
        final = None if options.share == 1 else float(1 - exact_share(options.share, "share"))
        budgets = [Budget(epsilon, options.at_delta) for epsilon in options.epsilons]
        plans = []
        for n in options.units:
            plans.append([plan(n, one, final_share=final, **terms) for one in budgets])
        if len(plans) * len(plans[0]) == 1:
            print(f"\n{plans[0][0]}")
        else:
            print(
                f"\nRecommended strategy for {options.dimension} hyper-parameters, and its"
                " detectable difference of mean scores:\n"
            )
            print(plans_table(options.units, options.epsilons, plans))
    if options.plot:
        from dpbo.reporting.plots import plot_plan
        from dpbo.validation import named_file

        budget = Budget(options.epsilons[0], options.at_delta)
        picture = plot_plan(
            options.units[0], budget, evaluations=options.points, score_range=score_range
        )
        with named_file("plot", options.plot, "a picture file that can be written"):
            picture.figure.savefig(options.plot, dpi=150)


def _ledger(options: argparse.Namespace) -> None:
    from dpbo.curator.statements import compose_statement
    from dpbo.ledger.ledger import Ledger
    from dpbo.places import place_named
    from dpbo.statement import form

    ledger = Ledger.open(place_named(options.ledger))
    facts = ledger.facts(expect=options.expect)
    if options.action == "verify":
        head = facts.head
        print(f"The hash chain of {head.seq + 1} records is intact. Head: {head.hash}")
        print(
            "It contains the expected head."
            if options.expect
            else "Use --expect HEAD to detect tampering or a rollback."
        )
    elif options.action == "export":
        for record in ledger.each():
            print(json.dumps(record.to_json(), sort_keys=True))
    elif options.action == "metrics":
        print(json.dumps(_metrics(ledger, facts), allow_nan=False))
    elif options.action == "form":
        print(form(compose_statement(ledger, verified=facts)))
    elif options.as_json:
        print(json.dumps(_facts(ledger, facts), indent=2, allow_nan=False))
    else:
        _show(ledger, facts)


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
            print(f"       {_shown(value)}")
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
            **_shares(use),
        },
        "statement": json.loads(compose_statement(ledger, verified=facts).to_json()),
    }


def _metrics(ledger: "Ledger", facts: "Facts") -> dict[str, Any]:
    """Numbers for a collector of logs, with the guarantee in words: one line of JSON."""
    from dpbo.curator.statements import BudgetUse, compose_statement

    use = BudgetUse.of(ledger, facts, ledger.budget.delta)
    head = ledger.head()
    return {
        "dataset": ledger.birth.dataset,
        "role": ledger.birth.role,
        "records": head.seq + 1,
        "head": head.hash,
        "released": sum(len(_values(record)) for record in ledger.each()),
        "lost": len(_lost(facts)),
        "guarantee": compose_statement(ledger, verified=facts).stated(),
        **_shares(use),
        "reservations": {
            name: {"slots": reserved.slots, "used": facts.used[name]}
            for name, reserved in facts.reservations.items()
        },
    }


def _shares(use: "BudgetUse") -> dict[str, float | None]:
    """How much of the budget is used, and what is left."""
    return {
        "spent_share": float(use.spent_share),
        "reserved_share": float(use.reserved_share),
        "epsilon_left": use.epsilon_left,
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


def _shown(value: dict[str, Any]) -> str:
    """A released value with the standard deviation of its noise, and its point where it has one;
    long ones are cut.
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
