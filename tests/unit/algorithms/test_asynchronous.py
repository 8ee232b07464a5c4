"""Asynchronous BO: points in flight are pending, the order of release is public, nothing paid is
lost. Real executors throughout.
"""

import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import pytest
import scipy.stats
import torch

from dpbo import Budget, PrivateObjective, Space
from dpbo.algorithms import AsynchronousBO
from dpbo.errors import InputError, PrivateFailure, UsageError, WorkersDied
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import DOUBLE, owner
from tests.unit.algorithms.worker_scores import load, near

SPACE = Space(a=scipy.stats.uniform(0, 1), b=scipy.stats.uniform(0, 1))


def make(**changes):
    settings = {"budget": Budget(8.0, 1e-5), "entropy": SeededEntropy(0)}
    return owner(load(), **{**settings, **changes})


def planned(score=near, evaluations=12, curator=None, **changes):
    return PrivateObjective(
        curator or make(), score, score_range=(0.0, 1.0), evaluations=evaluations, **changes
    )


def quick(X, Y, Yvar, pending, *, seed):
    """A proposal that depends on everything it is given, at no cost."""
    told = float(Y.sum()) + float(pending.sum()) + seed
    return torch.tensor([[told % 1.0, (7 * told) % 1.0]], dtype=DOUBLE)


def search(objective, executor, **settings):
    return AsynchronousBO(objective, SPACE, **{"initial": 4, "propose": quick, **settings}).run(
        executor
    )


def require_same(found, other):
    """The same points, and every value with its first and only noise."""
    assert torch.equal(found.X, other.X)
    assert torch.equal(found.Y, other.Y)


class AtOnce(Executor):
    """A job has ended when it is submitted."""

    def submit(self, fn, /, *args, **kwargs):
        done: Future[object] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def on_release(objective, told):
    """Calls `told` after each release, in the thread that asked for it."""
    release = objective.release

    def released(handle):
        values = release(handle)
        told()
        return values

    objective.release = released
    return objective


def ending(after):
    """An objective whose k-th job ends once `after(k)` values are released: an order in which jobs
    end, on any machine.
    """
    place = dict[tuple[float, ...], int]()
    released = 0
    turn = threading.Condition()

    def score(x, records):
        if len(records) > 20:
            with turn:
                turn.wait_for(lambda: released >= after(place[tuple(x.tolist())]), timeout=60)
        return near(x, records)

    def told():
        nonlocal released
        with turn:
            released += 1
            turn.notify_all()

    objective = on_release(planned(score), told)
    submit = objective.submit

    def submitted(x, executor):
        place.setdefault(tuple(x.tolist()), len(place))
        return submit(x, executor)

    objective.submit = submitted
    return objective


def in_turn(k):
    return k


def first_one_late(k):
    return int(k == 0)


@attack("A7")
def test_in_order_every_point_and_value_is_the_same_however_long_jobs_take():
    """Where each has ended before the next point is proposed, and where none ends before its
    turn.
    """

    def run(after, **settings):
        with ThreadPoolExecutor(4) as executor:
            return search(ending(after), executor, **settings)

    first, second = search(planned(), AtOnce()), run(in_turn)
    require_same(first, second)
    by_turns, otherwise = (run(after, ordered=False) for after in (in_turn, first_one_late))
    assert torch.equal(by_turns.X[0], first.X[0])
    assert not torch.equal(otherwise.X[0], first.X[0]), (
        "else the durations showed nothing in any order"
    )


@attack("A3")
def test_only_a_search_in_the_order_of_finishing_assumes_that_durations_tell_nothing():
    for ordered, workers, assumed in ((True, 3, False), (False, 1, False), (False, 3, True)):
        objective = planned()
        with ThreadPoolExecutor(3) as executor:
            search(objective, executor, ordered=ordered, workers=workers)
        statement = objective.curator.statement()
        assert ("durations-tell-nothing" in statement.assumptions) == assumed
        assert "timing-not-observed" in statement.assumptions


def test_what_is_in_flight_is_pending_and_there_are_never_more_than_the_workers():
    flying, most, begun, seen, lock, meet = 0, 0, 0, [], threading.Lock(), threading.Barrier(3)

    def score(x, records):
        nonlocal flying, most, begun
        if len(records) > 20:
            with lock:
                flying, most, begun = flying + 1, max(most, flying + 1), begun + 1
                first = begun <= 3
            if first:
                meet.wait(60)  # none of the first three is done before all fly
            time.sleep(0.02)
            with lock:
                flying -= 1
        return near(x, records)

    def propose(X, Y, Yvar, pending, *, seed):
        seen.append((X, pending))
        return quick(X, Y, Yvar, pending, seed=seed)

    with ThreadPoolExecutor(8) as executor:
        found = search(planned(score), executor, workers=3, propose=propose)
    assert most == 3
    for X, pending in seen:
        assert len(pending) == 2
        assert torch.equal(torch.cat([X, pending]), found.X[: len(X) + 2]), (
            "pending are the points that are released next"
        )


def test_an_interrupted_search_goes_on_from_its_history_and_points_in_flight(on_disk):
    def tiring(X, Y, Yvar, pending, *, seed):
        if len(X) == 6 and tired:
            raise tired.pop()
        return quick(X, Y, Yvar, pending, seed=seed)

    tired = [KeyboardInterrupt] * 2
    with ThreadPoolExecutor(3) as executor:
        with pytest.raises(KeyboardInterrupt):
            search(planned(curator=make(**on_disk)), executor, workers=3, propose=tiring)
        again = planned(curator=make(**on_disk))
        assert again.remaining == 6
        before = again.history()
        found = search(again, executor, workers=3)
        tried = AsynchronousBO(planned(), SPACE, initial=4, workers=3, propose=tiring)
        with pytest.raises(KeyboardInterrupt):
            tried.run(executor)
        require_same(tried.run(executor), search(planned(), executor, workers=3))
    assert (again.remaining, len(found.X)) == (0, 12)
    for old, new in zip(before, (found.X, found.Y, found.Yvar), strict=True):
        assert torch.equal(old, new[:6])


class Singular(Exception):
    """What a fit may raise."""


def fit_on_the_left(x):
    if x[0] > 0.6:
        raise Singular("no model there")
    return x


@pytest.mark.parametrize("ordered", [True, False])
def test_points_whose_fit_fails_are_skipped_uncharged_and_stay_pending(ordered):
    objective, seen = planned(fit=fit_on_the_left), []

    def propose(X, Y, Yvar, pending, *, seed):
        seen.append(pending)
        # the same points in any order of release
        return torch.tensor([[0.37 * seed % 1.0, 0.11 * seed % 1.0]], dtype=DOUBLE)

    with ThreadPoolExecutor(3) as executor:
        found = search(
            objective, executor, workers=3, ordered=ordered, skip=[Singular], propose=propose
        )
    assert (len(found.X), objective.remaining) == (12, 0)
    assert (found.X[:, 0] <= 0.6).all()
    assert len(found.skipped) > 0
    assert (found.skipped[:, 0] > 0.6).all()
    assert all(any(torch.equal(x, p) for p in seen[-1]) for x in found.skipped[:1])


def test_a_fit_that_fails_unnamed_or_always_or_a_private_failure_stops_the_search_uncharged():
    def never(x):
        raise Singular("never")

    def score(x, records):
        if len(records) > 20:
            raise Singular("private")
        return near(x, records)

    for objective, skip, error in (
        (planned(fit=fit_on_the_left), [], Singular),
        (planned(fit=never), [Singular], Singular),
        (planned(score), [Singular], PrivateFailure),
    ):
        with ThreadPoolExecutor(3) as executor, pytest.raises(error):
            search(objective, executor, workers=3, skip=skip)
        assert objective.remaining == 12 - len(objective.history()[0])
    assert objective.remaining == 12


def test_two_searches_share_one_plan(on_disk):
    """Neither goes on before both have released a value, so one finds that the other did in
    between.
    """
    terms = {**on_disk, "entropy": SeededEntropy(0)}
    meet = threading.Barrier(2)

    def beginning():
        once = iter([meet])

        def told():
            for barrier in once:
                barrier.wait(60)

        return on_release(planned(curator=make(**terms)), told)

    with ThreadPoolExecutor(4) as executor, ThreadPoolExecutor(2) as both:
        objectives = [beginning() for _ in range(2)]
        list(both.map(lambda objective: search(objective, executor, workers=3), objectives))
    assert len(objectives[0].history()[0]) == 12
    assert objectives[0].remaining == 0
    assert "durations-tell-nothing" in objectives[0].curator.statement().assumptions, (
        "they took turns as they finished"
    )


class Breaking(Executor):
    """Breaks at its k-th job, as a process pool does when a worker dies."""

    def __init__(self, inner, k):
        self.inner, self.left = inner, k

    def submit(self, fn, /, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise BrokenExecutor("a worker died")
        return self.inner.submit(fn, *args, **kwargs) if self.left else _broken()


def _broken():
    future: Future[object] = Future()
    future.set_exception(BrokenExecutor("a worker died"))
    return future


def test_broken_executors_are_replaced_thrice_or_by_hand_and_points_stay_the_same():
    with ThreadPoolExecutor(3) as threads:
        whole = search(planned(), threads, workers=3)
        breaks = iter([2, 1, 1, 5, 100])
        itself = search(planned(), lambda: Breaking(threads, next(breaks)), workers=3)
        tried = AsynchronousBO(planned(), SPACE, initial=4, workers=3, propose=quick)
        with pytest.raises(
            WorkersDied,
            match=(
                r"A worker process died.* Nothing was charged.* with a callable that makes an"
                r" executor"
            ),
        ):
            tried.run(Breaking(threads, 5))
        for found in (itself, tried.run(threads)):
            require_same(found, whole)
        objective = planned()
        with pytest.raises(WorkersDied, match=r"died 4 times .* Nothing was charged"):
            search(objective, lambda: Breaking(threads, 1), workers=3)
        assert objective.remaining == 12


class Refusing(Breaking):
    """Its k-th job ends with an error of the executor's own."""

    def submit(self, fn, /, *args, **kwargs):
        self.left -= 1
        if self.left:
            return self.inner.submit(fn, *args, **kwargs)
        future: Future[object] = Future()
        future.set_exception(OSError("no connection"))
        return future


@pytest.mark.parametrize("k", [1, 2, 6])
def test_after_any_error_of_an_executor_the_next_run_goes_on_with_the_same_points(k):
    with ThreadPoolExecutor(3) as threads:
        whole = search(planned(), threads, workers=3)
        tried = AsynchronousBO(planned(), SPACE, initial=4, workers=3, propose=quick)
        with pytest.raises(PrivateFailure, match="The executor raised OSError"):
            tried.run(Refusing(threads, k))
        found = tried.run(threads)
    require_same(found, whole)


def test_bad_settings_several_metrics_and_no_executor_are_refused_uncharged():
    both = PrivateObjective(
        make(), lambda x, r: torch.stack([r, r], 1), score_range=[(0.0, 1.0)] * 2, evaluations=3
    )
    with pytest.raises(InputError, match="one metric"):
        AsynchronousBO(both, SPACE)
    objective = planned()
    with pytest.raises(InputError, match="skip"):
        AsynchronousBO(objective, SPACE, skip=[RuntimeError, PrivateFailure])
    with pytest.raises(InputError, match="executor"):
        AsynchronousBO(objective, SPACE).run(4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="released no value"):
        AsynchronousBO(objective, SPACE).result()
    assert objective.remaining == 12
