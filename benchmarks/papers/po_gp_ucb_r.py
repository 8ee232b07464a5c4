"""PO-GP-UCB's guideline (Kharkovskii et al. 2020, Section 4): of the numbers of columns r take the
largest with sigma_min(X) >= omega. What it gives, and what r does to the regret.

    python -m benchmarks.papers.po_gp_ucb_r [--json FILE] [--plot DIR]

`largest_r` reads the rows, so its result tells of them, and what it is for is NOT PRIVATE at any r.
The paper's own are the largest that it tested. The picture is of stored rows, those of
`benchmarks.papers.po_gp_ucb`: fifty runs for each r.
"""

import json
import math
import pathlib
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import RESULTS
from benchmarks.harness import named, options, record, table
from benchmarks.papers import po_gp_ucb_problems as problems
from dpbo.papers.po_gp_ucb.transform import po_gp_ucb_omega


def largest_r(X: Tensor, *, epsilon: float, delta: float) -> int:
    """The largest r whose omega is at most the least singular value of the centred X, `n x d`; 0
    where there is none.
    """
    least = float(torch.linalg.svdvals(X - X.mean(0))[-1])
    r = 0
    while po_gp_ucb_omega(epsilon=epsilon, delta=delta, r=r + 1) <= least:
        r += 1
    return r


def picture(stored: dict[str, Any], folder: pathlib.Path) -> None:
    """Mean regret by r with its standard error, beside the printed one; a panel a problem."""
    from matplotlib.figure import Figure

    names = ("synthetic, l = 5", "loans", "property")
    figure = Figure(figsize=(4.5 * len(names), 3.8), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, problem in zip(panels, names, strict=True):
        tables = {k: v for k, v in stored.items() if k.startswith(f"by r, {problem}, ")}
        for number, (name, found) in enumerate(tables.items()):
            rows = found["rows"]
            r = [int(row["r"].split()[0].rstrip("*")) for row in rows]
            colour = f"C{number}"
            means, errors = ([row[key] for row in rows] for key in ("mean S_T", "SE"))
            label = name.rpartition(", ")[2]
            axes.errorbar(r, means, errors, color=colour, marker="o", capsize=2, label=label)
            axes.plot(r, [row["paper's"] for row in rows], color=colour, ls=":", marker="x")
            axes.axvline(found["star"], color=colour, lw=0.7)
        axes.set(title=problem, xlabel="columns r", ylabel="mean simple regret")
        axes.legend(title="epsilon", fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "po_gp_ucb_by_r.png", dpi=110)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    every = [problems.synthetic(5.0, 10 if chosen.smoke else 100, 1, 1, chosen.seed)]
    if not chosen.smoke:
        every += filter(None, (problems.loans(1, 0), problems.property_prices(1, 0)))
    rows = []
    for problem in every:
        for log_epsilon, printed in problem.tables.items():
            found = largest_r(problem.X, epsilon=math.exp(log_epsilon), delta=problem.delta)
            tested = max((r for r in printed if r <= found), default=0)
            rows.append([problem.name, f"e^{log_epsilon:g}", found, tested])
    header = ["problem", "epsilon", "largest r", "largest tested"]
    print(table(header, rows))
    if chosen.plot is not None:
        stored = json.loads((RESULTS / "po_gp_ucb.json").read_text())["figures"]
        picture(stored, chosen.plot)
    record("po_gp_ucb_r", {"rows": named(header, rows)}, chosen)


if __name__ == "__main__":
    main()
