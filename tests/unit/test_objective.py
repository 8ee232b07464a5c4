"""PrivateObjective, in the place of the function that a BoTorch loop optimises."""

import functools
import warnings
from typing import Any

import pytest
import scipy.stats
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo import (
    Budget,
    BudgetExceeded,
    PrivateObjective,
    Space,
)
from dpbo.errors import InputError, LedgerMismatch, LedgerUnavailable, ScoreError, UsageError
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from tests.attacks.marks import attack
from tests.setups import DOUBLE, charges, of, owner, point

N = 5000
X = torch.tensor([[0.1, 0.2], [0.5, 0.5], [0.9, 0.3]], dtype=DOUBLE)


def load():
    return torch.linspace(0, 1, N, dtype=DOUBLE)


def score(x, records):
    return 1 - (records - x[0]).abs() * (1 - x[1])


def two(x, records):
    return torch.stack([score(x, records), records], 1)


def truth(X):
    return torch.stack([score(x, load()).mean() for x in X]).unsqueeze(1)


def make(**changes):
    return owner(load(), **{"budget": Budget(3.0, 1e-5), **changes})


def objective(curator, **changes):
    return PrivateObjective(
        curator, score, **{"score_range": (0.0, 1.0), "evaluations": 30, **changes}
    )


def test_values_and_variances_go_straight_into_a_gp():
    curator = make()
    search = objective(curator)
    with pytest.raises(UsageError, match="released no value"):
        search.model()
    Y, Yvar = search(X)
    assert Y.shape == Yvar.shape == (3, 1)
    assert (Y - truth(X)).abs().max() < 6 * Yvar.max().sqrt()
    gp = SingleTaskGP(X, Y, train_Yvar=Yvar)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert torch.allclose(gp.posterior(X).mean, search.model().posterior(X).mean, atol=1e-6)
    space = Space(a=scipy.stats.uniform(), b=scipy.stats.uniform())
    built: Any = search.model(space, builder=lambda *given: (gp, given))
    assert built[1][0] is space
    assert all(map(torch.equal, built[1][1:], (X, Y, Yvar)))


def test_the_noise_is_that_of_its_share_of_the_budget():
    curator = make()
    search, final = (
        objective(curator, budget=0.9),
        objective(curator, evaluations=1, budget=0.1, name="final"),
    )
    assert search.noise_multiplier == pytest.approx((30 / 0.9) ** 0.5 / 0.7191174352217926)
    assert search.noise_std.item() == pytest.approx(search.noise_multiplier / N)
    assert search(X)[1].sqrt()[0].item() == pytest.approx(search.noise_std.item())
    assert final.noise_multiplier == pytest.approx(10**0.5 / 0.7191174352217926)
    assert (
        objective(make(), budget=Budget(1.0, 1e-5)).noise_multiplier
        == objective(make(budget=Budget(1.0, 1e-5))).noise_multiplier
    )
    with pytest.raises(BudgetExceeded):
        objective(curator, evaluations=1, budget=0.001, name="more")


def test_a_joint_batch_is_one_entry_and_its_noise_does_not_depend_on_q():
    curator = make()
    search = objective(curator)
    single, batch = search(X[:1])[1], search(X)[1]
    assert (batch == single).all()
    assert [charge["event"]["count"] for charge in charges(curator.ledger)] == [1, 3]
    assert search.remaining == 26
    assert len({search(X[:1])[0].item() for _ in range(3)}) == 3, (
        "the same point again is a new release"
    )


def test_a_batch_beyond_the_plan_is_refused_whole_before_it_is_evaluated():
    calls = []

    def counted(x, records):
        calls.append(1)
        return score(x, records)

    search = PrivateObjective(make(), counted, score_range=(0.0, 1.0), evaluations=2)
    with pytest.raises(BudgetExceeded) as refused:
        search(X)
    assert (refused.value.requested, refused.value.remaining, refused.value.budget) == (3, 2, 2)
    assert calls == []
    assert search.remaining == 2


def test_history_and_resume_under_a_name(on_disk):
    first = objective(make(**on_disk), name="svm", evaluations=5)
    assert [t.shape for t in first.history()] == [(0, 0), (0, 1), (0, 1)]
    Y, Yvar = first(X)
    again = objective(make(**on_disk), name="svm", evaluations=5)
    assert again.remaining == 2
    for told, kept in zip((X, Y, Yvar), again.history(), strict=True):
        assert torch.equal(told, kept)
        kept.zero_()
    more = again(X[1:2])
    for search in (first, again):
        for told, new, kept in zip((X, Y, Yvar), (X[1:2], *more), search.history(), strict=True):
            assert torch.equal(torch.cat([told, new]), kept)
    for change in ({"evaluations": 6}, {"score_range": (0.0, 2.0)}, {"budget": 0.5}):
        with pytest.raises(LedgerMismatch):
            objective(make(**on_disk), **{"name": "svm", "evaluations": 5, **change})


@attack("A7")
def test_points_that_an_earlier_session_released_are_told_of(on_disk, caplog):
    """A loop that began with its design again paid for it twice, without a word."""
    design = X[:2]
    objective(make(**on_disk))(design)
    assert "released by an earlier session" not in caplog.text
    again = objective(make(**on_disk))
    again(X[2:])
    assert "released by an earlier session" not in caplog.text
    again(X)
    assert "2 of these points were released by an earlier session" in caplog.text


def test_objectives_of_one_plan_that_take_turns_assume_that_durations_tell_nothing(tmp_path):
    for turns, told in (("aabb", False), ("abba", True), ("aba", True), ("abab", True)):
        terms = {"ledger": str(tmp_path / f"{turns}.db"), "dataset": "study"}
        taking: dict[str, PrivateObjective] = {}
        # an object made when another has begun finds its values there: that is resuming
        for turn in turns:
            taking.setdefault(turn, objective(make(**terms)))
            taking[turn](X[:1])
        assert ("durations-tell-nothing" in taking["a"].curator.statement().assumptions) == told, (
            turns
        )


def test_a_release_that_failed_is_nobody_elses(monkeypatch):
    search = objective(make())
    with monkeypatch.context() as without:
        without.setattr(Ledger, "store", cut)
        with pytest.raises(LedgerUnavailable):
            search(X)
    search(X)
    assert search.remaining == 30 - 6
    assert "durations-tell-nothing" not in search.curator.statement().assumptions


def cut(*_, **__):
    raise LedgerUnavailable("cut off")


def test_handles_of_other_plans_and_questions_are_refused_uncharged():
    curator = make()
    search = objective(curator, budget=0.5)
    alike = objective(curator, budget=0.25, name="alike")
    asked = search.evaluate(X[0])
    before = curator.ledger.head()
    for foreign in (
        alike.evaluate(X[0]),
        curator.evaluate(ClippedMean(score, X[0], score_range=(0.0, 1.0)), x=X[0].tolist()),
        curator.evaluate(asked.query),
        curator.evaluate(asked.query, x=[9.0, 9.0]),
        objective(make()).evaluate(X[0]),
        "handle",
    ):
        for handles in (foreign, [search.evaluate(X[0]), foreign]):
            with pytest.raises(InputError, match="handle"):
                search.release(handles)
    assert curator.ledger.head() == before
    search(X)
    assert [len(column) for column in search.history()] == [3, 3, 3]


def test_several_metrics_at_once():
    search = PrivateObjective(make(), two, score_range=[(0.0, 1.0)] * 2, evaluations=10)
    Y, Yvar = search(X)
    assert Y.shape == Yvar.shape == search.history()[1].shape == (3, 2)
    assert (Y[:, :1] - truth(X)).abs().max() < 6 * Yvar.max().sqrt()
    assert search.noise_std[0].item() == pytest.approx(2**0.5 * search.noise_multiplier / N)


def test_fit_gets_x_and_score_gets_the_model_and_a_failing_fit_charges_nothing():
    terms = of(score_range=(0.0, 1.0), evaluations=10)
    assert PrivateObjective(make(), score, fit=functools.partial(torch.mul, 0.5), **terms)(X)[
        0
    ] == pytest.approx(truth(0.5 * X), abs=0.02)
    search = PrivateObjective(make(), score, fit=lambda x: x[9], **terms)
    with pytest.raises(IndexError, match="out of bounds"):
        search(X)
    assert search.remaining == 10


def test_values_of_other_questions_under_its_plan_are_no_part_of_its_history():
    curator = make()
    search = objective(curator, evaluations=4)
    search(X[:1])
    law = GaussianMechanism(search.noise_multiplier)
    others = [
        curator.evaluate(ClippedMean(score, X[0], score_range=(0.0, 1.0))),
        curator.evaluate(ClippedMean(two, X[0], score_range=[(0.0, 1.0)] * 2), x=[0.1, 0.2]),
    ]
    curator.release_all(others, law, reservation="objective")
    search(X[1:2])
    kept, Y, Yvar = search.history()
    assert torch.equal(kept, X[:2])
    assert Y.shape == Yvar.shape == (2, 1)
    assert search.remaining == 0, "they took their slots"


def test_points_far_outside_the_bounds_are_refused_before_anything_is_fitted():
    fitted: list[torch.Tensor] = []

    def fit(x):
        fitted.append(x)
        return x

    bounds = torch.tensor([[0.0, 1e-4], [1.0, 1e-1]], dtype=DOUBLE)
    search = objective(make(), fit=fit, bounds=bounds)
    beyond = r"^X\[1, 1\]=0.5 is not allowed: .* from 0.0001 to 0.1"
    for call, given, place in (
        (search, [[0.5, 0.05], [0.5, 0.5]], beyond),
        (search.evaluate, [-0.3, 0.05], r"^x\[0\]=-0.3"),
        (search, [[0.5, 0.05, 0.5]], "of 2 coordinates"),
    ):
        with pytest.raises(InputError, match=place):
            call(torch.as_tensor(given, dtype=DOUBLE))
    assert not fitted
    assert search.remaining == 30
    search(torch.tensor([[1.005, 0.1 + 1e-9]], dtype=DOUBLE))
    fixed = torch.tensor([[0.0, 3.0], [1.0, 3.0]], dtype=DOUBLE)
    objective(make(), bounds=fixed, evaluations=1)(point(0.5, 3.0))
    with pytest.raises(InputError, match=r"^bounds=.*2 x d"):
        objective(make(), bounds=bounds.flip(0))


@pytest.mark.cuda
def test_a_point_on_another_device_than_the_records_is_said_so():
    with pytest.raises(
        ScoreError, match=r"x is on cuda:0 and the records are on cpu: pass X.to\('cpu'\)"
    ):
        objective(make())(X.cuda())


def test_a_batch_of_optimize_acqf_is_evaluated_and_learned_where_it_decodes_to(on_disk):
    """A category at 2.304 was released as 2.304 and evaluated as category 2."""
    trees, many = [1, 2, 3, 4], scipy.stats.randint(0, 5000)
    space = Space(rate=scipy.stats.uniform(0, 1), trees=trees, many=many, kind=["a", "b", "c", "d"])
    evaluated = []

    def fit(x):
        evaluated.append(x)
        return space.decode(x)

    def ask(curator):
        chance = ClippedMean(lambda _, records: records, fit=fit, score_range=(0.0, 1.0))
        return PrivateObjective(curator, chance, evaluations=6, space=space, progress=False)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* between those of two values")
        f = ask(make(**on_disk))
        f(space.sample(3, seed=0))
        acquisition = qLogNoisyExpectedImprovement(f.model(space), f.history()[0])
        terms = {"q": 2, "num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 5}}
        proposed, _ = optimize_acqf(acquisition, space.bounds, **terms)
        f(proposed)
        # with the same point's handle
        f.release(f.evaluate(proposed[0]))
    X = f.history()[0]
    assert torch.equal(X[3:], space.rounded(proposed)[[0, 1, 0]])
    assert not torch.equal(X[3:5], proposed)
    assert torch.equal(torch.stack(evaluated), X)
    assert torch.equal(ask(make(**on_disk)).history()[0], X)
    for x in X:
        assert space.encode(space.decode(x)).tolist() == pytest.approx(x.tolist(), abs=1e-9)


def test_without_the_space_a_point_between_two_values_is_warned_of():
    space = Space(kind=["a", "b", "c"])
    with pytest.warns(UserWarning, match=r"kind: the coordinate 1\.304 .* decoded as 'b', at 1\."):
        space.decode(torch.tensor([1.304], dtype=DOUBLE))
