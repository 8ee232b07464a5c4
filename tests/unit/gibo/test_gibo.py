"""DP-GIBO: it finds what it should, spends what it says, resumes without a second noise, and looks
at nothing it may not see.
"""

import concurrent.futures
import copy
import dataclasses
import functools
import inspect
import math
import pickle
import sys

import gpytorch
import pytest
import torch

from dpbo import DPGIBO, Adjacency, Budget, BudgetExceeded
from dpbo.accounting import Planned, PureFilter
from dpbo.errors import InputError, LedgerError, LedgerMismatch, UsageError
from dpbo.events import GaussianEvent
from dpbo.gibo import GIBOSettings, choose_start
from dpbo.objective import NoiseWarning
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, FIRST_MEAN, charges, of, owner

PAPER, RECOMMENDED = GIBOSettings.paper(), GIBOSettings.recommended()
D = 4


def users(n=400, seed=0):
    return 0.3 + 0.4 * torch.rand(n, D, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def distance(x, records):
    return ((records - x) ** 2).sum(1)


def box(d=D, low=0.0, high=1.0):
    return torch.tensor([[low] * d, [high] * d], dtype=DOUBLE)


def make(records=None, **settings):
    terms = {"budget": Budget.gdp(2.0, delta=1e-5), **settings}
    return owner(users() if records is None else records, **terms)


def gibo(curator, **changes):
    terms = of(
        bounds=box(),
        budget=1.0,
        iterations=12,
        batch_size=D + 1,
        clip=1.0,
        start=torch.full((D,), 0.05, dtype=DOUBLE),
    )
    return DPGIBO(curator, changes.pop("loss", distance), **{**terms, **changes})


def test_it_walks_to_the_minimum_and_says_what_it_spent():
    for settings in (RECOMMENDED, dataclasses.replace(PAPER, learning_rate=0.2)):
        search = gibo(make(), settings=settings)
        result = search.run()
        assert (result.x - users().mean(0)).abs().max() < 0.12, settings
        assert result.iterates.shape == (13, D)
        assert search.remaining == 0
        assert str(result.statement().guarantee).endswith("2.000-GDP")
        assert "dpgibo: evaluations 12" in str(result.statement())
        with pytest.raises(BudgetExceeded):
            search.tell(search.ask(), search.evaluate(search.ask()))


def test_a_result_is_short_to_read_and_may_be_pickled():
    run = gibo(make())
    result = run.run()
    assert repr(result).startswith("GIBOResult(x=tensor(")
    assert "iterates" not in repr(result)
    for read in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert torch.equal(read.x, result.x)
        assert torch.equal(read.iterates, result.iterates)
        assert str(read.statement()) == str(result.statement())
        assert pickle.dumps(read)


def test_without_noise_it_is_the_same_search_and_exact():
    curator = make()
    result = gibo(curator, mechanism=EXACT, iterations=40).run()
    assert (result.x - users().mean(0)).abs().max() < 1e-2
    assert result.rho == 0.0
    unit = gpytorch.kernels.RBFKernel().double()
    unit.lengthscale = 1.0
    explicit, omitted = (
        gibo(make(), mechanism=EXACT, iterations=5, settings=PAPER, **terms).run()
        for terms in ({"kernel": unit}, {})
    )
    assert torch.equal(explicit.iterates, omitted.iterates), (
        "an omitted kernel has length 1, not GPyTorch's log 2"
    )
    assert str(curator.statement().guarantee) == "not bounded"


def test_the_noise_is_what_the_paper_states():
    """2 B sqrt(T) / (n mu) a coordinate under replace-one, half of it under add-or-remove; rho is
    its length over B.
    """
    for adjacency, factor, divisor in (
        (Adjacency.REPLACE_ONE, 2.0, None),
        (Adjacency.ADD_OR_REMOVE_ONE, 1.0, 400.0),
    ):
        search = gibo(make(adjacency=adjacency), clip=0.7, divisor=divisor, budget=Budget.gdp(0.5))
        assert search.noise_std == pytest.approx(factor * 0.7 * math.sqrt(12) / (400 * 0.5))
        assert search.rho == pytest.approx(search.noise_std * math.sqrt(D) / 0.7)


def test_the_released_gradients_carry_exactly_this_noise():
    exact = (
        gibo(make(), mechanism=EXACT, iterations=1, loss=lambda x, r: r[:, 0] * 0).run().gradients
    )
    assert exact.abs().max() == 0
    noisy = gibo(make(entropy=SeededEntropy(2)), iterations=100, loss=lambda x, r: r[:, 0] * 0)
    assert noisy.run().gradients.std().item() == pytest.approx(noisy.noise_std, rel=0.12)


def test_gradients_are_those_of_the_mean_loss_per_box_width():
    """Far inside the clip: the release is the gradient of the mean, in box widths; with x's own
    units, per unit.
    """
    wide = torch.tensor([[-3.0] * D, [5.0] * D], dtype=DOUBLE)
    start = torch.full((D,), 0.8, dtype=DOUBLE)
    slope = (2 * (start - users())).mean(0)
    for unit_box, scale in ((True, 8.0), (False, 1.0)):
        settings = dataclasses.replace(RECOMMENDED, unit_box=unit_box, radius=0.01)
        search = gibo(
            make(),
            bounds=wide,
            start=start,
            mechanism=EXACT,
            clip=1e3,
            iterations=1,
            settings=settings,
            loss=distance,
        )
        assert torch.allclose(search.run().gradients[0], scale * slope, rtol=2e-2, atol=2e-2)


def test_step_by_step_on_an_executor_and_out_of_turn():
    curator = make()
    search = gibo(curator)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        X = search.ask()
        assert torch.equal(X, search.ask())
        # evaluating is free and may be repeated
        again, future = search.evaluate(X), search.evaluate(X, executor=pool)
        theta = search.tell(X, future)
    assert torch.equal(theta, search.theta)
    for wrong in (lambda: search.tell(X, again), lambda: search.evaluate(X)):
        with pytest.raises(InputError, match="ask"):
            wrong()
    foreign = curator.evaluate(FIRST_MEAN)
    for handle in (again, foreign):
        with pytest.raises(InputError, match="handle"):
            search.tell(search.ask(), handle)
    assert search.remaining == 11


@pytest.mark.parametrize("history", [False, True])
@attack("A16")
def test_a_run_resumes_from_its_ledger_without_a_second_charge_or_noise(on_disk, history):
    settings = dataclasses.replace(RECOMMENDED, history=history)
    first = gibo(make(**on_disk), settings=settings)
    for _ in range(5):
        first.tell(first.ask(), first.evaluate(first.ask()))
    asked = first.ask()
    again = gibo(make(**on_disk), settings=settings)
    assert again.remaining == 7
    assert torch.equal(again.result().iterates, first.result().iterates)
    assert torch.equal(again.ask(), asked)
    final = again.run()
    assert len(final.gradients) == 12
    assert len(charges(again.curator.ledger)) == 12
    assert torch.equal(gibo(make(**on_disk), settings=settings).result().iterates, final.iterates)
    for change in (
        {"clip": 2.0},
        {"kernel": gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()},
    ):
        with pytest.raises(LedgerMismatch):
            gibo(make(**on_disk), settings=settings, **change)


def test_a_second_process_is_refused_uncharged_and_resumes_rightly(on_disk):
    first, second = gibo(make(**on_disk)), gibo(make(**on_disk))
    handle = second.evaluate(second.ask())
    first.tell(first.ask(), first.evaluate(first.ask()))
    with pytest.raises(LedgerError, match="another process"):
        second.tell(second.ask(), handle)
    assert first.remaining == 11
    again = gibo(make(**on_disk))
    assert torch.equal(again.theta, first.theta)
    again.run()


def test_wherever_a_tell_is_interrupted_a_gradient_moves_theta_once(tmp_path):
    """An interrupt at every fifth line in turn: the same object goes on as the ledger has it, or it
    refuses.
    """
    refused = 0
    for line in range(1, 100, 5):
        terms = {"dataset": "d", "ledger": str(tmp_path / f"{line}.db")}
        search = gibo(make(**terms), iterations=1)
        X = search.ask()
        handle = search.evaluate(X)
        if not interrupted_at(line, functools.partial(search.tell, X, handle)):
            break
        try:
            path = search.run().iterates
        except LedgerError as error:
            refused += "Create DPGIBO again" in str(error)
            path = None
        again = gibo(make(**terms), iterations=1).run().iterates
        assert len(again) == 2
        assert path is None or torch.equal(path, again)
    assert line > 15
    assert refused > 1


def interrupted_at(line, call):
    """Whether the call came to so many lines of the algorithm's own file, and was interrupted
    there.
    """
    left, before, gradients = [line], sys.gettrace(), torch.is_grad_enabled()

    def trace(frame, event, _):
        if frame.f_code.co_filename != inspect.getsourcefile(DPGIBO):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        # which an interrupt on the way out of torch's no_grad leaves off
        torch.set_grad_enabled(gradients)
    return False


def test_algorithm_two_takes_as_few_points_as_it_needs():
    """With history a tolerance is met by fewer and fewer points, never more than the batch."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 1.0
    settings = dataclasses.replace(
        RECOMMENDED, history=True, radius=None, jitter=5e-6, tolerance=0.5
    )
    search = gibo(make(), settings=settings, kernel=kernel, mechanism=EXACT, iterations=6)
    sizes = []
    for _ in range(6):
        X = search.ask()
        sizes.append(len(X))
        search.tell(X, search.evaluate(X))
    assert max(sizes) <= D + 1
    assert sizes[-1] < sizes[0] <= D + 1


def test_the_accounting_may_be_a_plan_or_refuse_and_what_cannot_work_charges_nothing():
    plan = Planned([GaussianEvent(9.0, 12), GaussianEvent(30.0)])
    search = gibo(make(accounting=plan, budget=Budget(4.0, 1e-5)))
    assert search.noise_std == pytest.approx(9.0 * 2 / 400)
    with pytest.raises(UsageError, match="PureFilter cannot pay for GaussianMechanism"):
        gibo(make(accounting=PureFilter(), budget=Budget(4.0, 0.0)))
    curator = make()
    for change in (
        {"start": torch.full((D,), 2.0).double()},
        {"bounds": torch.ones(2, 3).double()},
        {"divisor": 0.5},
    ):
        with pytest.raises(InputError, match=next(iter(change))):
            gibo(curator, **change)
    with pytest.raises(InputError, match="optimizer"):
        dataclasses.replace(RECOMMENDED, optimizer=torch.optim.LBFGS)
    with pytest.warns(NoiseWarning, match="hardly"):
        gibo(make(users(20)), budget=Budget.gdp(0.2))
    assert curator.ledger.head().kind == "birth"


def test_a_start_is_chosen_privately_among_public_candidates():
    curator = make()
    candidates = torch.tensor([[0.05] * D, [0.5] * D, [0.95] * D], dtype=DOUBLE)
    terms = of(loss_range=(0.0, 4.0), budget=0.1)
    start = choose_start(curator, distance, candidates, **terms)
    assert start.tolist() == [0.5] * D
    gibo(curator, start=start, budget=0.9).run()
    assert curator.ledger.verify().total <= curator.ledger.cap
    before = curator.ledger.head().seq
    assert torch.equal(choose_start(curator, distance, candidates, **terms), start)
    assert curator.ledger.head().seq == before, "asked again it costs nothing"
    with pytest.raises(BudgetExceeded):
        choose_start(curator, distance, candidates, **terms, name="another")


def test_where_losses_are_noisy_the_points_lie_further_apart():
    """A fixed small radius would drown the differences in the losses' noise, and the clip's noise
    in the shrunken gradient.
    """

    def distances(noise):
        search = gibo(make(), noise=noise, settings=dataclasses.replace(RECOMMENDED, radius=0.04))
        return (search.ask() - search.theta).norm(dim=1)

    assert distances(0.0).max() < 0.09, "as asked for; pulled inside the box as a whole"
    assert distances(0.01).min() > 0.09
