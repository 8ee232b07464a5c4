"""Every public name, called with one hostile argument at a time.

The call works, or a PrivacyError says which argument is wrong and what is allowed. A refused call charges nothing, no call hangs, and no
canary of the private records shows in a message, a cause, a warning, a log line or the output.
"""

import functools
import inspect
import logging
from typing import Any

import numpy as np
import pytest
import torch

from dpbo.errors import InputError
from tests.attacks import good_calls
from tests.attacks.good_calls import CALLS, DOORS, LIVE, NOT_CALLED
from tests.attacks.watched import SCALED, seen_in, watched

NAN, INF, DOUBLE = float("nan"), float("inf"), torch.float64


class Rude:
    """Fails whatever is asked of it."""

    def __len__(self):
        raise RuntimeError("no length")

    __repr__ = __str__ = __getitem__ = __iter__ = __len__


def plain():
    """Wrong whatever was asked for, or nearly so."""
    words = ["", "x", "0.5", "\ud800", "a\0b", "x" * 100_000, b"x"]
    numbers: list[Any] = [None, True, 0, -1, 0.5, 1 + 2j, 2**63, 10**400, NAN, INF, -INF, 1e308, 5e-324, np.float32(0.5), np.int64(3)]
    holders = [[], {}, [NAN], [None], (0.0, 0.0), (0.0, INF), ("a", "b"), [[0.0, 1.0], [0.0]], {"a": 1}, {1: NAN}, set(), iter([1.0])]
    others = [object(), object, Rude(), len, lambda *_, **__: None, np.array(["a"]), np.array([object(), 1.0]), np.array([NAN, 1.0])]
    tensors = [torch.tensor(NAN), torch.zeros(2), torch.zeros(0, 2, dtype=DOUBLE), torch.zeros(2, 3, 4, dtype=DOUBLE)]
    tensors += [torch.ones(2, 2, dtype=kind) for kind in (torch.int64, torch.bool, torch.complex128, torch.bfloat16)]
    tensors += [torch.full((2, 2), value, dtype=DOUBLE) for value in (NAN, INF, 1e308, -1.0)] + [torch.eye(2, dtype=DOUBLE).to_sparse()]
    tensors += [torch.ones(2, 2, dtype=DOUBLE, requires_grad=True), torch.ones(2, 2, dtype=DOUBLE, device="meta")]
    return [*numbers, *words, *holders, *others, *tensors]


def near(good: Any) -> list[Any]:
    """Like the good value but for one thing."""
    if isinstance(good, torch.Tensor):
        changed: list[Any] = [
            good.float(),
            good.long(),
            good.unsqueeze(0),
            good[..., :0],
            good.tolist(),
            torch.cat([good, good], -1),
            good.to("meta"),
        ]
        if good.is_floating_point() and good.numel():
            for value in (NAN, INF, 1e308, -1.0):
                changed.append(good.clone())
                changed[-1].view(-1)[0] = torch.tensor(value, dtype=DOUBLE).to(good.dtype)
            changed += [good.clone().requires_grad_(), good * 1e200]
        return changed
    if isinstance(good, (tuple, list)) and good:
        kind = type(good) if type(good) in (tuple, list) else list
        broken = [kind([value, *good[1:]]) for value in (NAN, INF, -1, "a", None, 10**400)]
        return [kind(reversed(good)), kind(good[:-1]), kind([*good, good[-1]]), kind([good]), *broken]
    if isinstance(good, dict) and good:
        first = next(iter(good))
        wrong: list[Any] = [NAN, None, -1, "x", [], 10**400, Rude()]
        return [{}, {**good, "unknown": 1}, *({**good, first: value} for value in wrong)]
    if isinstance(good, (int, float)) and not isinstance(good, bool):
        return [-good, good + 1, good + 0.5, str(good), [good], np.float64(good), torch.tensor(good)]
    return []


FOREIGN = {  # arguments that another library or the caller's own function judges, by its own errors; "*": all
    "DPSearch.fit": "X_train y_train X_val y_val",
    "accounting.calibrate": "event",
    "acquisition.GPUCB": "schedule",
    "acquisition.argmax_ucb": "schedule",
    "acquisition.next_point": "model",
    "acquisition.posterior_mean": "model",
    "algorithms.GIBOSettings": "optimizer",
    "algorithms.em.DP": "random_state",
    "algorithms.search_then_choose": "fit",
    "integrations.optuna.NoiseAwareSampler": "seed",
    "models.GradientGP": "*",
    "models.SameRow": "*",
    "testing.assert_": "cdf",
    "testing.audit": "draw statistic",
    "testing.check_per_record": "score subject records",
    "testing.replay": "run",
}
KNOWN = {  # found here and not mended yet: take an entry out with its mend
    "acquisition.next_point": "pending",
    "acquisition.pareto_front": "X",
    "algorithms.choose_clip": "bounds",
    "algorithms.choose_start": "candidates",
    "algorithms.em.DP": "radius",
    "algorithms.kusner.KusnerSearch": "candidates",
    "algorithms.outsourced.Modeler": "history",
    "algorithms.outsourced.row_noises": "moves",
    "algorithms.outsourced.write_release": "facts folder",
    "algorithms.search_then_choose": "candidates beta",
    "integrations.recommended": "X",
    "integrations.search": "journal",
    "queries.CellMeans": "score_range",
}
ERRORS = {"testing.": AssertionError}  # beside dpbo's own
FEW = 8  # values for each argument, others for each; fewer where a call takes long
SLOW = {"DPSearch": 1, "DPSearch.fit": 2, "models.sparse_gp": 2, "PrivateObjective": 5, "DPGIBO": 4, "accounting.LedgerAccountant": 4}
SLOW |= {f"algorithms.{name}": 4 for name in ("private_selection", "choose_clip", "search_then_choose")} | {"integrations.search": 3}


def made(name):
    """What is called, and its good arguments."""
    LIVE.clear()
    if name in DOORS:
        return DOORS[name]()
    thing = good_calls.named(name)
    if name == "DPSearch":
        return (lambda **settings: thing(**settings).fit(**good_calls.SPLIT)), CALLS[name]()
    return good_calls.estimating(thing) if ".em.DP" in name else thing, CALLS[name]()


def test_every_public_name_has_a_good_call_or_is_called_by_nobody():
    names = {name for group in NOT_CALLED.values() for name in group.split()}
    assert {name for name in CALLS if not name.startswith(("laws.", "events."))} | names == good_calls.exported(), (
        "add it to CALLS, or say in NOT_CALLED why nobody calls it"
    )
    assert not set(CALLS) & names


def arguments(name):
    """The good arguments, and those with a default that it does not mention."""
    call, good = made(name)
    defaults = {key: p.default for key, p in inspect.signature(call).parameters.items() if p.default is not p.empty}
    return {**defaults, **good}


def tried(name, most):
    """Whether the good call is good, and what became of `most` hostile values for each argument."""
    call, good = made(name)
    error, faults = watched(lambda: call(**good), LIVE)
    assert (error, faults) == (None, []), "the good call fails"
    allowed = tuple(kind for start, kind in ERRORS.items() if name.startswith(start))
    left_out = {word for start, words in [*FOREIGN.items(), *KNOWN.items()] if name.startswith(start) for word in words.split()}
    failed, used = [], set()
    for place, (argument, value) in enumerate(arguments(name).items()):
        if argument in left_out or "*" in left_out:
            continue
        count = len(plain()) + len(near(value))
        step = max(count / most, 1.0)
        for which in [int((place * 0.4 % 1 + i) * step) for i in range(min(most, count))]:
            call, good = made(name)
            hostile = [*near(good.get(argument, value)), *plain()][which]
            used.update(LIVE)
            _, faults = watched(functools.partial(call, **{**good, argument: hostile}), LIVE, allowed)
            failed += [(argument, which, type(hostile).__name__, fault) for fault in faults]
    failed += [fault for curator in used for fault in seen_in(curator)]
    assert not failed, f"{len(failed)}: {failed[:20]}"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """A word is a good file name for a ledger: let it lie where nobody looks."""
    monkeypatch.chdir(tmp_path)
    logging.getLogger("ax").setLevel(logging.ERROR)


NAMES = sorted({**CALLS, **DOORS})


DEEP = ("acquisition.pareto_point",)  # BoTorch compiles a kernel at its first use


@pytest.mark.attack("A5")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name in DEEP)) for name in NAMES])
def test_a_hostile_argument_is_refused_by_name_or_works(name):
    tried(name, SLOW.get(name, FEW))


def test_the_watch_sees_a_leak_a_charge_and_an_untyped_error():
    curator, secret = good_calls.curator(), SCALED[7]

    def charging():
        curator.release(good_calls.query(), good_calls.GAUSSIAN)
        raise InputError("x", 1, "another number")

    def leaking():
        raise InputError("x", secret, "another number")

    assert watched(lambda: print(secret))[1][0].startswith("printed")
    assert watched(leaking)[1][0].startswith("InputError says")
    assert watched(charging, [curator])[1] == ["a refused call left ['charge', 'value'] in the ledger"]
    assert watched(lambda: 1 / 0)[1][0].startswith("ZeroDivisionError at")
