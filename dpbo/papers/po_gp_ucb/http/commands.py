"""Options of the commands `python -m dpbo curate` and `model`. Their work is in `cli`, which is
imported when it runs.
"""

import argparse
import importlib

_CLI = "dpbo.papers.po_gp_ucb.http.cli"
_CURATE = {
    "norm": "--row-change",
    "diameter": "--radius",
    "value_range": "--outcome-range",
    "declassified": "--declassify",
    "budget": "--outcome-share",
    "lengthscale": "--length-scale",
    "folder": "--out",
    "data": "DATA",
    "port": "--serve",
}
_MODEL = {"folder": "FOLDER", "url": "--curator", "lengthscale": "--length-scale"}


def curate_options(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m dpbo curate`."""
    parser.set_defaults(
        run=lambda options: importlib.import_module(_CLI).curate(options), typed=_CURATE
    )
    add = parser.add_argument
    add(
        "data",
        metavar="DATA",
        help="private table (csv, csv.gz, npz or parquet); it stays on this machine",
    )
    add("--columns", nargs="+", required=True, help="columns of the rows that are released")
    add(
        "--center",
        nargs="+",
        type=float,
        help="public constants subtracted from the columns (default 0)",
    )
    add(
        "--scale",
        nargs="+",
        type=float,
        help="public constants the columns are then divided by (default 1)",
    )
    add(
        "--radius",
        type=float,
        required=True,
        help="public bound on the norm of a row, in scaled units; longer rows are clipped",
    )
    add(
        "--row-change",
        type=float,
        help=(
            "protect a row against a change of at most this norm, in scaled units; omitted: any"
            " replacement"
        ),
    )
    add("--epsilon", type=float, required=True, help="epsilon of the whole budget")
    add("--delta", type=float, default=0.0, help="delta of the whole budget (default 0)")
    add("--outcome", required=True, help="column that the modeler asks for")
    add(
        "--outcome-range",
        nargs=2,
        type=float,
        required=True,
        metavar=("LOWER", "UPPER"),
        help="public range that outcomes are clipped to",
    )
    add(
        "--outcome-share",
        type=float,
        default=0.5,
        help="share of the budget that protects outcomes (default 0.5)",
    )
    add(
        "--declassify",
        metavar="REASON",
        help="publish exact outcomes instead, for this reason, which the statement repeats",
    )
    add(
        "--missing",
        choices=["lower", "upper"],
        default="lower",
        help="end of the range that replaces a missing outcome",
    )
    add(
        "--name",
        default="",
        help="name of a further release from the same ledger, after one was lost",
    )
    add("--repeats", type=int, default=1, help="how often each row may be asked (default 1)")
    add("--limit", type=int, help="largest number of answers in all")
    add(
        "--projections",
        nargs="+",
        type=int,
        default=[],
        help="dimensions of random projections to consider",
    )
    add(
        "--length-scale",
        type=float,
        help="the modeler's public guess, in scaled units, by which the noise is chosen",
    )
    add("--dataset", required=True, help="name of the protected data set")
    add(
        "--ledger",
        required=True,
        metavar="FILE_OR_URL",
        help="the curator's ledger; keep it private",
    )
    add("--out", required=True, metavar="FOLDER", help="folder for the modeler")
    add("--serve", type=int, metavar="PORT", help="serve outcomes on this port until interrupted")
    add(
        "--host",
        default="127.0.0.1",
        help="address to bind to (default: this machine only); use a TLS proxy for others",
    )
    add(
        "--every",
        type=float,
        default=0.1,
        help="send answers at multiples of this many seconds (default 0.1)",
    )
    add(
        "--token-file",
        metavar="FILE",
        help="file of the access token; created if it does not exist",
    )


def model_options(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m dpbo model`."""
    parser.set_defaults(
        run=lambda options: importlib.import_module(_CLI).model(options), typed=_MODEL
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="folder that the curator released")
    add("--curator", required=True, metavar="URL", help="address of the curator's server")
    add("--token-file", required=True, metavar="FILE", help="file of the access token")
    add(
        "--length-scale",
        type=float,
        required=True,
        help="length scale of the outcome over true rows, in scaled units",
    )
    add(
        "--deviation",
        type=float,
        help="prior standard deviation of the outcome (default: a quarter of its range)",
    )
    add(
        "--noise",
        type=float,
        default=0.0,
        help="variance of the outcome's own noise, without the curator's",
    )
    add(
        "--minimise", action="store_true", help="search the smallest outcome instead of the largest"
    )
    add("--steps", type=int, default=50, help="number of questions (default 50)")
    add(
        "--journal",
        required=True,
        metavar="FILE",
        help="file of questions and answers; an existing one is continued",
    )
