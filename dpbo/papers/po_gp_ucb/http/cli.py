"""The commands `dpbo curate` and `dpbo model`: two parties that share a folder.

The curator reads a table, releases its rows once into the folder, and serves outcomes. The modeler
reads the folder and asks. Every public choice is an option and is written to release.json. Both
commands continue after an interruption: the curator from its ledger, the modeler from its journal.
"""

import argparse
import operator
import os
import pathlib
import secrets
from collections.abc import Sequence
from fractions import Fraction

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from dpbo.accounting.filters import GDPFilter, PureFilter
from dpbo.curator.curator import Curator
from dpbo.errors import InputError
from dpbo.models.noisy_inputs import noisy_inputs
from dpbo.papers.po_gp_ucb.curator_side import Outcomes, read_release, release_rows, write_release
from dpbo.papers.po_gp_ucb.http.tables import read_columns
from dpbo.papers.po_gp_ucb.modeler import Modeler
from dpbo.papers.po_gp_ucb.row_noise import RowNoise, row_noises
from dpbo.papers.po_gp_ucb.rows import RowTable
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, RowChange, exact_share
from dpbo.validation import Positive, named_file, require

# key of the table among the curator's records
_TABLE = "rows"


def curate(options: argparse.Namespace) -> None:
    """Release the rows, or read them from the ledger if they were released; write the folder; serve
    outcomes.
    """
    token = ""
    # what serving needs is seen to be there before anything is charged
    if options.serve is not None:
        from dpbo.papers.po_gp_ucb.http.server import require_address, serve

        token = _token(options.token_file)
        require("every", options.every, Positive)
        require_address(options.host, options.serve)
    require("radius", options.radius, Positive)
    require("length_scale", options.length_scale, Positive | None)
    with named_file("out", options.out, "a folder, or where one can be made"):
        pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    curator = _curator(options)
    chosen = _noise(options, curator)
    if options.declassify:
        protection = {"declassified": options.declassify}
    else:
        protection = {"budget": options.outcome_share}
    outcomes = Outcomes(
        curator,
        operator.itemgetter("outcome"),
        value_range=tuple(options.outcome_range),
        repeats=options.repeats,
        limit=options.limit,
        worst=options.missing,
        terms={"outcome": options.outcome},
        name=f"outcomes {options.name}".strip(),
        **protection,
    )
    table = RowTable(
        (0.0,) * len(options.columns),
        options.radius,
        row_change=_row_change(options),
        projection=chosen.projection,
        table=_TABLE,
    )
    scaling = {
        "columns": options.columns,
        "subtracted": options.center,
        "divided by": options.scale,
    }
    released = release_rows(
        curator, table, chosen.mechanism, name=f"rows {options.name}".strip(), terms=scaling
    )
    facts = {
        name: getattr(options, name)
        for name in ("columns", "center", "scale", "radius", "row_change", "repeats", "limit")
    }
    facts["outcome"] = {
        "range": options.outcome_range,
        "variance": outcomes.variance,
        "declassified": options.declassify,
    }
    statement = curator.statement()
    write_release(options.out, released, facts, statement)
    print(f"{chosen}\n{statement}\nReleased {len(released.Z)} rows into {options.out}.")
    if options.serve is not None:
        print(f"Serving outcomes at http://{options.host}:{options.serve}", flush=True)
        serve(outcomes, token=token, host=options.host, port=options.serve, every=options.every)


def model(options: argparse.Namespace) -> None:
    """Ask for the outcomes of rows, one after another, and recommend a row."""
    from dpbo.papers.po_gp_ucb.http.client import RemoteCurator, search

    rows, facts = read_release(options.folder)
    lower, upper = facts["outcome"]["range"]
    deviation = options.deviation or (upper - lower) / 4
    prior = ScaleKernel(RBFKernel()).double()
    # GPyTorch would round a plain number to float32.
    scales = torch.tensor([options.length_scale, deviation**2], dtype=torch.float64, device="cpu")
    prior.base_kernel.lengthscale, prior.outputscale = scales
    modeler = Modeler(
        rows.Z,
        kernel=noisy_inputs(prior, rows.variance, dimension=rows.Z.shape[1]),
        noise=max(options.noise + facts["outcome"]["variance"], 1e-6 * deviation**2),
        mean=(lower + upper) / (-2 if options.minimise else 2),
        repeats=facts["repeats"] > 1,
    )
    with named_file("token-file", options.token_file, "a file that can be read"):
        token = pathlib.Path(options.token_file).read_text().strip()
    with RemoteCurator(options.curator, token) as curator:
        answers = search(
            modeler,
            curator,
            steps=options.steps,
            journal=options.journal,
            minimise=options.minimise,
        )
    if not answers:
        print("The curator gave no answers.")
        return
    # the best noisy answer is the luckiest
    mean, best = max((float(modeler.model.mean[answer.row]), answer.row) for answer in answers)
    print(
        f"{len(answers)} answers. Row {best} has the best posterior mean,"
        f" {-mean if options.minimise else mean:.4g}."
    )


def _curator(options: argparse.Namespace) -> Curator:
    X = read_columns(options.data, options.columns)
    center = _constants("center", options.center, X, 0.0)
    scale = _constants("scale", options.scale, X, 1.0)
    if bool((scale <= 0).any()):
        raise InputError("scale", tuple(scale.tolist()), "above 0")
    change = _row_change(options)
    return Curator(
        {
            _TABLE: (X - center) / scale,
            "outcome": read_columns(options.data, [options.outcome])[:, 0],
        },
        unit=PrivacyUnit("row"),
        adjacency=change or Adjacency.REPLACE_ONE,
        budget=Budget(options.epsilon, options.delta),
        accounting=PureFilter() if options.delta == 0 else GDPFilter(),
        dataset=options.dataset,
        ledger=options.ledger,
        role="candidate",
        allow_conditional=options.declassify is not None,
    )


def _noise(options: argparse.Namespace, curator: Curator) -> RowNoise:
    """The least noise for the rows, from the share of the budget that outcomes leave."""
    if options.declassify:
        rest = Fraction(1)
    else:
        rest = 1 - exact_share(options.outcome_share, "outcome-share")
    if rest == 0:
        raise InputError(
            "outcome-share", options.outcome_share, "below 1", "The rest pays for the rows."
        )
    return row_noises(
        len(options.columns),
        budget=curator.budget,
        sensitivity=options.row_change if options.row_change is not None else 2 * options.radius,
        accounting=curator.accounting,
        share=rest,
        projections=options.projections,
        lengthscale=options.length_scale,
    )[0]


def _row_change(options: argparse.Namespace) -> RowChange | None:
    if options.row_change is None:
        return None
    return RowChange(options.row_change, diameter=2 * options.radius, table=_TABLE)


def _constants(
    name: str, given: Sequence[float] | None, X: torch.Tensor, default: float
) -> torch.Tensor:
    values = torch.tensor(
        given if given is not None else [default] * X.shape[1], dtype=torch.float64, device="cpu"
    )
    if values.shape != X.shape[1:] or not bool(values.isfinite().all()):
        raise InputError(
            name, tuple(values.tolist()), f"one finite number for each of {X.shape[1]} columns"
        )
    return values


def _token(path: str | None) -> str:
    """The token in the file, which is created if it does not exist; only its owner may read it."""
    if path is None:
        raise InputError(
            "token-file",
            None,
            "the file of the access token",
            "--serve needs --token-file FILE (created if missing).",
        )
    file = pathlib.Path(path)
    with named_file("token-file", path, "a file that can be read, or made"):
        if not file.exists():
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as created:
                created.write(secrets.token_urlsafe(32))
        if file.stat().st_mode & 0o077:
            raise InputError(
                "token-file", str(file), "readable by its owner only", f"chmod 600 {file}"
            )
        return file.read_text().strip()
