"""The options of `python -m dpbo curate` and `model`; what they do is imported when it is done."""

from __future__ import annotations

import argparse


def curate_options(parser: argparse.ArgumentParser) -> None:
    """The curator's options."""
    parser.set_defaults(run=_curate)
    add = parser.add_argument
    add("data", metavar="DATA", help="csv, csv.gz, npz or parquet; it stays here")
    add("--columns", nargs="+", required=True, help="of the rows that are released")
    add("--center", nargs="+", type=float, help="public constants taken off the columns (default 0)")
    add("--scale", nargs="+", type=float, help="public constants the columns are then divided by (default 1)")
    add("--radius", type=float, required=True, help="public: rows count as within this distance of the centre, in scaled units")
    add("--row-change", type=float, help="protect a row against moving by so much, in scaled units; omitted: against any replacement")
    add("--epsilon", type=float, required=True)
    add("--delta", type=float, default=0.0)
    add("--outcome", required=True, help="the column the modeler asks for")
    add("--outcome-range", nargs=2, type=float, required=True, metavar=("LOWER", "UPPER"), help="public; outcomes are clipped to it")
    add("--outcome-share", type=float, default=0.5, help="part of the budget that protects outcomes (default 0.5)")
    add("--declassify", metavar="REASON", help="publish exact outcomes instead, because of this; the statement repeats it")
    add("--missing", choices=["lower", "upper"], default="lower", help="end of the range that stands for a missing outcome")
    add("--name", default="", help="of another release from the same ledger, where one was lost")
    add("--repeats", type=int, default=1, help="how often a row may be asked (default 1)")
    add("--limit", type=int, help="answers in all")
    add("--projections", nargs="+", type=int, default=[], help="numbers of dimensions to consider projecting to")
    add("--length-scale", type=float, help="public guess of the modeler's, in scaled units: chooses the law of the noise")
    add("--dataset", required=True, help="name of what is protected")
    add("--ledger", required=True, metavar="FILE_OR_URL", help="of the curator; never given away")
    add("--out", required=True, metavar="FOLDER", help="what the modeler gets")
    add("--serve", type=int, metavar="PORT", help="then answer questions until interrupted")
    add("--host", default="127.0.0.1", help="default: this machine alone; put a TLS proxy in front of anything else")
    add("--every", type=float, default=0.1, help="answers leave at multiples of so many seconds (default 0.1)")
    add("--token-file", metavar="FILE", help="the token; made if there is none")


def model_options(parser: argparse.ArgumentParser) -> None:
    """The modeler's options."""
    parser.set_defaults(run=_model)
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="what the curator released")
    add("--curator", required=True, metavar="URL")
    add("--token-file", required=True, metavar="FILE")
    add("--length-scale", type=float, required=True, help="of the outcome over true rows, in scaled units")
    add("--deviation", type=float, help="prior standard deviation of the outcome (default: a quarter of its range)")
    add("--noise", type=float, default=0.0, help="variance of the outcome's own noise, before the curator's")
    add("--minimise", action="store_true", help="look for the smallest outcome")
    add("--steps", type=int, default=50)
    add("--journal", required=True, metavar="FILE", help="what was asked and told; continued if there is one")


def _curate(options: argparse.Namespace) -> None:
    from dpbo.integrations.http.cli import curate

    curate(options)


def _model(options: argparse.Namespace) -> None:
    from dpbo.integrations.http.cli import model

    model(options)
