"""The modeler: Algorithm 2's choices, rows under way, and continuing from what was told."""

import ast
import inspect
import math

import pytest
import scipy.stats
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from gpytorch.means import ZeroMean

from dpbo.acquisition import SrinivasFinite
from dpbo.errors import InputError, UsageError
from dpbo.models import FiniteGP, noisy_inputs
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.po_gp_ucb import Modeler, modeler
from tests.setups import DOUBLE

NOISE = 1e-4


def rows(n=60):
    return torch.rand(n, 2, dtype=DOUBLE)


def kernel(variance=0.01):
    return noisy_inputs(squared_exponential(0.4), variance, dimension=2)


def value(Z, index):
    return float(torch.sin(5.0 * Z[index, 0]) + torch.cos(4.0 * Z[index, 1]))


def played(asking, Z, steps):
    for _ in range(steps):
        index = asking.ask()
        asking.tell(index, value(Z, index))
    return [index for index, _ in asking.history]


@pytest.mark.parametrize(
    ("repeats", "n", "noise"),
    [pytest.param(True, 8, 0.3, id="as printed"), pytest.param(False, 60, NOISE, id="each once")],
)
def test_it_is_algorithm_2_written_with_botorch(repeats, n, noise):
    Z = rows(n)
    asking = Modeler(Z, kernel=kernel(), noise=noise, repeats=repeats)
    played_rows = played(asking, Z, 12)
    schedule = SrinivasFinite(count=len(Z), delta=0.025)
    chosen = [0]
    for t in range(1, 12):
        Y = torch.tensor([[value(Z, index)] for index in chosen], dtype=DOUBLE)
        model = SingleTaskGP(
            Z[chosen],
            Y,
            train_Yvar=torch.full_like(Y, noise),
            covar_module=kernel(),
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        with torch.no_grad():
            scores = UpperConfidenceBound(model.double().eval(), beta=schedule(t + 1))(
                Z.unsqueeze(-2)
            )
        if not repeats:
            scores[chosen] = -math.inf
        chosen.append(int(scores.argmax()))
    assert played_rows == chosen
    assert (len(set(chosen)) < 12) is repeats


def test_a_row_is_asked_once_unless_repeats_are_wanted():
    Z = rows(8)
    asking = Modeler(Z, kernel=kernel(), noise=NOISE)
    assert sorted(played(asking, Z, 8)) == list(range(8))
    with pytest.raises(InputError, match="repeats"):
        asking.ask()
    again = played(Modeler(Z, kernel=squared_exponential(0.4), noise=1.0, repeats=True), Z, 30)
    assert len(set(again)) < 30


def test_rows_under_way_count_as_seen_at_their_mean():
    Z = rows()
    asking = Modeler(Z, kernel=kernel(), noise=NOISE)
    played(asking, Z, 4)
    model = FiniteGP(Z, kernel(), NOISE)
    schedule = SrinivasFinite(count=len(Z), delta=0.025)
    expected = []
    asked = []
    for index, y in asking.history:
        model.observe(index, y)
        asked.append(index)
    before = asking.model.variance.clone()
    for _ in range(3):
        expected.append(
            int(
                model.argmax_upper(
                    schedule(model.num_observations + 1), exclude=torch.tensor(asked)
                )
            )
        )
        asked.append(expected[-1])
        model.observe(expected[-1], float(model.mean[expected[-1]]))
    assert [asking.ask() for _ in range(3)] == expected == asking.pending
    assert torch.equal(asking.model.variance, before), "what is under way is not learned"
    for index in reversed(expected):
        asking.tell(index, value(Z, index))
    assert asking.pending == []


def test_it_continues_from_what_was_told():
    Z = rows()
    first = Modeler(Z, kernel=kernel(), noise=NOISE)
    played(first, Z, 6)
    resumed = Modeler(Z, kernel=kernel(), noise=NOISE, history=first.history)
    assert resumed.history == first.history
    assert played(resumed, Z, 6) == played(first, Z, 6)


@pytest.mark.parametrize(
    ("index", "y", "message"),
    [
        pytest.param(-1, 0.0, "index", id="below"),
        pytest.param(5, 0.0, "index", id="above"),
        pytest.param(1, math.nan, "y=nan", id="nan"),
        pytest.param(0, 1.0, "index=0", id="told before"),
    ],
)
def test_what_is_no_new_outcome_is_refused(index, y, message):
    asking = Modeler(rows(5), kernel=kernel(), noise=NOISE)
    asking.tell(0, 1.0)
    with pytest.raises(InputError, match=message):
        asking.tell(index, y)
    assert asking.history == [(0, 1.0)]


def test_the_modeler_sees_no_curator():
    imported = {
        node.module
        for node in ast.walk(ast.parse(inspect.getsource(modeler)))
        if isinstance(node, ast.ImportFrom)
    }
    assert imported
    trusted = tuple(f"dpbo.{room}" for room in ("curator", "records", "queries", "mechanisms"))
    assert not [name for name in imported if name and name.startswith(trusted)]


def test_a_recommendation_has_a_margin_and_says_where_nothing_was_found():
    """Pure noise is called found in no more than .05 of the searches, a peak in most."""
    Z = torch.linspace(0, 6, 40, dtype=DOUBLE).unsqueeze(1)
    peak = (-(Z[:, 0] - 4.0).square()).exp()
    found = {"nothing": 0, "a peak": 0}
    for name, values in (("nothing", torch.zeros(40)), ("a peak", peak)):
        for seed in range(20):
            draw = torch.Generator().manual_seed(seed)
            asking = Modeler(Z, kernel=squared_exponential(0.5), noise=0.04)
            for _ in range(25):
                row = asking.ask()
                asking.tell(row, float(values[row] + 0.2 * torch.randn((), generator=draw)))
            told = asking.recommend()
            found[name] += told.found
            assert told.row in dict(asking.history)
            assert told.margin == pytest.approx(told.std * scipy.stats.norm.isf(0.001), rel=1e-6)
            shown = f"{told.mean:.3g} +- {told.margin:.2g} (95 %)"
            assert shown in str(told)
            assert str(told).startswith("Row" if told.found else "Nothing was found: row")
    assert found["nothing"] <= 1
    assert found["a peak"] >= 15
    with pytest.raises(UsageError):
        Modeler(Z, kernel=squared_exponential(0.5), noise=0.04).recommend()
