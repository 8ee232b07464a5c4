"""Two parties, the one with the records: a hospital releases its patients' measurements with noise,
and answers a modeler who says whom to try next (`examples/modeler.py`).

    python examples/data_owner.py release/ token.txt 8765

Killed and started again it goes on: everything that was drawn stands in the ledger.
"""

import os
import pathlib
import secrets
import sys

import torch
import uvicorn

import dpbo
from dpbo.accounting import PureFilter
from dpbo.papers.po_gp_ucb import (
    Outcomes,
    RowTable,
    plan_rows,
    release_rows,
    row_noises,
    serve,
    write_release,
)

RADIUS = 25.0
# nobody finds out where exactly, within this distance, a patient lies
MOVE = dpbo.RowChange(1.0, diameter=2 * RADIUS, table="rows")


def patients(count: int = 1500) -> dict[str, torch.Tensor]:
    """Made-up measurements, and the response of each patient to the therapy."""
    draw = torch.Generator().manual_seed(7)
    rows = torch.randn(count, 3, dtype=torch.float64, generator=draw)
    rows = RADIUS * rows / rows.norm(dim=1, keepdim=True).clamp_min(3.14)
    best = torch.tensor([8.0, -6.0, 3.0], dtype=torch.float64)
    return {"rows": rows, "response": (-(rows - best).square().sum(1) / 200.0).exp()}


def released(folder: str, ledger: str, epsilon: float) -> Outcomes:
    """Says what the noise means, releases the rows into the folder, and returns who answers."""
    curator = dpbo.Curator(
        patients(),
        unit=dpbo.PrivacyUnit("patient"),
        adjacency=MOVE,
        budget=dpbo.Budget(epsilon, 0.0),
        accounting=PureFilter(),
        dataset="patients",
        ledger=ledger,
        role="candidate",
    )
    table = RowTable((0.0, 0.0, 0.0), RADIUS, row_change=MOVE)
    # a third for the rows, the rest for one answer of each patient
    way = row_noises(
        3,
        budget=curator.budget,
        sensitivity=MOVE.norm,
        accounting=curator.accounting,
        share=1 / 3,
    )[0]
    print(plan_rows(curator, table, way.mechanism), flush=True)
    rows = release_rows(curator, table, way.mechanism)
    outcomes = Outcomes(
        curator,
        lambda patient: patient["response"],
        value_range=(0.0, 1.0),
        budget=0.66,
    )
    facts = {"outcome_range": [0.0, 1.0], "outcome_variance": outcomes.variance}
    write_release(folder, rows, facts, curator.statement())
    return outcomes


def access_token(path: str) -> str:
    """The token of the file, which is made if there is none; for its owner's eyes."""
    file = pathlib.Path(path)
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as made:
            made.write(secrets.token_urlsafe())
    return file.read_text()


if __name__ == "__main__":
    folder, token, port = sys.argv[1:]
    outcomes = released(folder, "patients.db", epsilon=12.0)
    print(outcomes.curator.statement(), flush=True)
    # on this machine alone; for others put a TLS proxy in front
    application = serve(outcomes, token=access_token(token))
    uvicorn.run(application, host="127.0.0.1", port=int(port), log_level="warning")
