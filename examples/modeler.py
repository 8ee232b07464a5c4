"""Two parties, the one who searches: a company reads the rows that the hospital released
(`examples/data_owner.py`), asks for one patient after another, and recommends one.

    python examples/modeler.py release/ token.txt http://127.0.0.1:8765 300

Killed and started again it goes on: answers that were given are given again, at no cost.
"""

import pathlib
import sys

from gpytorch.kernels import ScaleKernel

from dpbo.models import noisy_inputs
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.po_gp_ucb import Modeler, RemoteOutcomes, read_release, search
from dpbo.papers.po_gp_ucb.modeler import RecommendedRow

# a guess: over this distance the response changes much
LENGTH = 10.0


def searched(folder: str, outcomes: RemoteOutcomes, steps: int) -> RecommendedRow:
    """The row that is recommended after so many answers."""
    rows, facts = read_release(folder)
    lower, upper = facts["outcome_range"]
    # a guess: responses vary by a quarter of their range
    deviation = (upper - lower) / 4
    kernel = ScaleKernel(squared_exponential(LENGTH)).double()
    kernel.outputscale = deviation**2
    modeler = Modeler(
        rows.Z,
        kernel=noisy_inputs(kernel, rows.variance, dimension=rows.Z.shape[1]),
        noise=facts["outcome_variance"],
        mean=(lower + upper) / 2,
        # the theorem's grows, and explores longer
        schedule=lambda _: 4.0,
    )
    return search(modeler, outcomes, steps=steps)


if __name__ == "__main__":
    folder, token, url, steps = sys.argv[1:]
    with RemoteOutcomes(url, pathlib.Path(token).read_text()) as outcomes:
        print(searched(folder, outcomes, int(steps)))
