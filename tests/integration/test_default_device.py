"""Under a default device other than the CPU each integration does as it does without one. It is
`meta` here: whatever is made there has no numbers, and fails. tests/unit/test_devices.py has the
other paths.
"""

import functools

import pytest
import torch
from ax.api.client import Client
from torch import nn

from dpbo.integrations.ax import ClientObjective
from dpbo.integrations.optuna import NoiseAwareSampler, TrialObjective
from dpbo.reporting.plots import plot_convergence, plot_slices
from dpbo.search import NoisedSearch
from tests.integration.searches import SPACE, objective
from tests.integration.test_opacus_noise import backward, private, session
from tests.integration.test_optuna import a_study
from tests.integration.test_search import fitted

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = torch.device("cpu")


def study():
    asked = TrialObjective(objective(), SPACE)
    sampler = NoiseAwareSampler(SPACE, initial=4)
    a_study(sampler=sampler).optimize(asked, n_trials=6)
    return asked.objective.remaining


def experiment():
    asked = objective()
    ClientObjective(asked, SPACE, Client(random_seed=1)).run()
    return asked.remaining


def search():
    found = fitted(strategy=NoisedSearch(n_initial=4), n_iter=6)
    for plot in (plot_convergence, plot_slices):
        plot(found)
    return len(found.results_["params"])


def training(prepare):
    with CPU:
        module = nn.Linear(4, 2)
    *_, trained, optimizer, loader = prepare(module=module)
    # torch's own loader draws a seed on the default device
    with CPU:
        batches = iter(loader)
    for batch in batches:
        backward(trained, optimizer, batch)
        optimizer.step()
    return bool(torch.stack([p.isfinite().all() for p in trained.parameters()]).all())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (study, 0),
        (experiment, 0),
        (search, 6),
        (functools.partial(training, session), True),
        (functools.partial(training, private), True),
    ],
    ids=["Optuna", "Ax", "DPSearch", "Session", "PrivateEngine"],
)
def test_no_tensor_lies_on_the_callers_default_device(path, expected):
    with torch.device("meta"):
        assert path() == expected
