"""`python -m dpbo`: the main job on the bundled digits; `plan`: what a budget buys; `ledger`: look at a ledger;
`curate` and `model`: outsourced optimisation between two parties."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from dpbo.accounting.calibration import exact_share
from dpbo.errors import PrivacyError
from dpbo.integrations.http.commands import curate_options, model_options
from dpbo.privacy import Budget


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 a typed error (printed) or a reader of the output who left, 2 unusable arguments."""
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return 1
    except PrivacyError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dpbo", description=__doc__)
    parser.set_defaults(run=_demo)
    parser.add_argument("--epsilon", type=float, default=3.0, help="budget of the main job (default 3)")
    parser.add_argument("--delta", type=float, default=1e-5, help="its delta (default 1e-5)")
    parser.add_argument("--evaluations", type=int, default=30, help="points to evaluate (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the public side: split and search, never of the noise")
    parser.add_argument("--ledger", metavar="FILE_OR_URL", help="keep the ledger and resume it; omitted: in memory")
    parser.add_argument("--plot", metavar="FILE", help="draw convergence with noise bands and budget (needs dpbo[plots])")
    parser.add_argument("--json", metavar="FILE", help="write the result and the statement")
    parser.add_argument("--reveal-for-demo", action="store_true", help="add non-private BO and true values; voids the statement")
    commands = parser.add_subparsers(metavar="{plan,ledger,curate,model}")
    _plan_parser(commands.add_parser("plan", help="noise per evaluation for a number of units and a budget"))
    _ledger_parser(commands.add_parser("ledger", help="show, verify or export a ledger, or print a form to sign"))
    curate_options(commands.add_parser("curate", help="release a table's rows, and serve outcomes to a modeler"))
    model_options(commands.add_parser("model", help="search a released table with a curator's answers"))
    return parser


def _plan_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_plan)
    parser.add_argument("--units", type=int, nargs="+", default=[500, 1000, 2000, 5000, 10000, 20000, 50000])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
    parser.add_argument("--at-delta", type=float, default=1e-6)
    parser.add_argument("--points", type=int, default=30, help="evaluations in the plan")
    parser.add_argument("--share", type=float, default=0.9, help="part of the budget they take")
    parser.add_argument("--dimension", type=int, help="add which strategy fits this many hyper-parameters, and what each costs")
    parser.add_argument(
        "--range", type=float, nargs=2, default=[0.0, 1.0], metavar=("LOWER", "UPPER"), help="of a record's score, for that"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw what can be told apart against the number of evaluations (needs dpbo[plots])")


def _ledger_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_ledger)
    parser.add_argument("action", choices=["show", "verify", "export", "form"])
    parser.add_argument("ledger", metavar="FILE_OR_URL")
    parser.add_argument("--expect", metavar="HEAD", help="a head hash noted elsewhere; verify fails where the chain lacks it")


def _demo(options: argparse.Namespace) -> None:
    from dpbo.demo import run

    run(options)


def _plan(options: argparse.Namespace) -> None:
    from dpbo.planning import noise_table

    print("Standard deviation of the noise of one evaluation, in percentage points of a score in [0, 1]:")
    print(f"{options.points} evaluations, {options.share:.0%} of the budget (mu^2), delta {options.at_delta:g}, replace-one.\n")
    print(noise_table(options.units, options.epsilons, delta=options.at_delta, evaluations=options.points, share=options.share))
    if options.dimension is not None:
        _plan_strategies(options)
    if options.plot:
        from dpbo.plots import plot_plan

        plot_plan(options.units[0], Budget(options.epsilons[0], options.at_delta), evaluations=options.points, file=options.plot)


def _plan_strategies(options: argparse.Namespace) -> None:
    from dpbo.planning import plan, plans_table

    terms = {"evaluations": options.points, "dimension": options.dimension, "score_range": tuple(options.range)}
    final = None if options.share == 1 else float(1 - exact_share(options.share, "share"))
    plans = [[plan(n, Budget(e, options.at_delta), final_share=final, **terms) for e in options.epsilons] for n in options.units]
    if len(plans) * len(plans[0]) == 1:
        print(f"\n{plans[0][0]}")
    else:
        print(f"\nWhat fits {options.dimension} hyper-parameters, and the difference of mean scores that it tells apart:\n")
        print(plans_table(options.units, options.epsilons, plans))


def _ledger(options: argparse.Namespace) -> None:
    from dpbo.curator.ledger import Ledger
    from dpbo.curator.reporting import compose_statement
    from dpbo.statement import form

    ledger = Ledger.existing(options.ledger)
    head = ledger.verify(expect=options.expect)
    if options.action == "verify":
        kept = "the expected head is in it" if options.expect else "give --expect HEAD to notice tampering or a rollback"
        print(f"the chain of {head.seq + 1} records holds ({kept}); head {head.hash}")
    elif options.action == "export":
        for record in ledger.records():
            print(json.dumps(vars(record), sort_keys=True))
    elif options.action == "form":
        print(form(compose_statement(ledger)))
    else:
        for record in ledger.records():
            print(f"{record.seq:5d}  {record.kind:8s} {record.name:20s} {record.hash[:16]}")
        print(compose_statement(ledger))


if __name__ == "__main__":
    sys.exit(main())
