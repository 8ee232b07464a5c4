"""Every public name, called with one hostile argument at a time.

The call works, or a PrivacyError says which argument is wrong and what is allowed. A refused call
charges nothing, no call hangs, and no canary of the private records shows in a message, a cause, a
warning, a log line or the output.
"""

import copy
import fnmatch
import functools
import inspect
from typing import Any

import numpy as np
import pytest
import torch

from dpbo.errors import InputError
from tests.attacks.good_calls import GAUSSIAN, LIVE, NAMES, VALUES, curator, good_call, query
from tests.attacks.marks import attack
from tests.attacks.watched import SCALED, seen_in, watched
from tests.setups import DOUBLE

NAN = float("nan")
INF = float("inf")


class Rude:
    """Fails when it is shown or counted."""

    __len__: Any = lambda self: 1 / 0
    __repr__ = __str__ = __len__


def plain():
    """Wrong whatever was asked for, or nearly so."""
    numbers: list[Any] = [
        None,
        True,
        0,
        -1,
        0.5,
        2**63,
        10**400,
        NAN,
        INF,
        1e308,
        np.float32(0.5),
        np.array(["a"]),
        np.array([NAN, 1.0]),
    ]
    others = [
        "",
        "a\0b",
        "x" * 100_000,
        b"x",
        [],
        [NAN],
        (0.0, INF),
        {},
        {1: NAN},
        iter([1.0]),
        Rude(),
        object,
        len,
    ]
    tensors = [
        torch.tensor(NAN),
        torch.zeros(0, 2, dtype=DOUBLE),
        torch.zeros(2, 3, 4, dtype=DOUBLE),
        torch.eye(2, dtype=DOUBLE).to_sparse(),
    ]
    tensors += [
        torch.full((2, 2), 1e308, dtype=DOUBLE),
        torch.ones(2, 2, dtype=DOUBLE, requires_grad=True),
    ]
    return [
        *numbers,
        *others,
        *tensors,
        torch.ones(2, 2, dtype=torch.complex128),
        torch.ones(2, 2, device="meta"),
    ]


def near(good: Any) -> list[Any]:
    if isinstance(good, torch.Tensor):
        broken = good.clone()
        broken.view(-1)[:1] = NAN if good.is_floating_point() else 99
        return [
            good.float(),
            good.unsqueeze(0),
            good[..., :0],
            broken,
            -good,
            good * 1e200,
            good.tolist(),
        ]
    if isinstance(good, (tuple, list)) and good:
        return [
            [*good, good[-1]],
            good[:-1],
            good[::-1],
            *([value, *good[1:]] for value in (NAN, -1, "a", 10**400)),
        ]
    if isinstance(good, dict) and good:
        return [
            {**good, "unknown": 1},
            *({**good, next(iter(good)): value} for value in (NAN, -1, None, (), Rude())),
        ]
    if isinstance(good, (int, float)) and not isinstance(good, bool):
        return [-good, good + 1, good + 0.5, str(good), [good], torch.tensor(good)]
    return []


# What another library or the caller's own function judges, by its own errors.
FOREIGN = (
    "DPSearch.estimator DPSearch.param_distributions DPSearch.fit.[Xy]_* accounting.calibrate.event"
    " acquisition.*.schedule *.random_state acquisition.suggest.model *.posterior_mean.model"
    " gibo.GIBOSettings.optimizer algorithms.search_then_choose.fit"
    " gibo.GradientGP.train_* gibo.GradientGP.likelihood gibo.GradientGP.*_module"
    " gibo.GradientGP.*_transform"
    " integrations.optuna.NoiseAwareSampler.seed models.noisy_inputs.SameRow.*"
    " *.callback testing.audit.draw testing.audit.statistic"
    " testing.check_per_record.s[cu]* testing.check_per_record.records testing.replay.run"
)
SLOW = {
    "DPSearch": 40,
    "DPSearch.fit": 20,
    "rehearse": 20,
    "DPGIBO": 10,
    "PrivateObjective": 8,
    "models.sparse_gp": 20,
    "papers.po_gp_ucb.search": 15,
}
SLOW |= {f"algorithms.{name}": 10 for name in ("private_selection", "search_then_choose")}
# BoTorch compiles a kernel at its first use.
DEEP = ("acquisition.suggest_pareto",)


@attack("A5")
# The watch sees them.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] * (name in DEEP)) for name in NAMES]
)
def test_a_hostile_argument_is_refused_by_name_or_works(name, tmp_path, monkeypatch):
    # A word is a good file name for a ledger.
    monkeypatch.chdir(tmp_path)
    call, good = good_call(name)
    used = set(LIVE)
    failed = []
    # An argument meets every fifth value, the next one others.
    step = SLOW.get(name, 5)
    assert watched(lambda: call(**good), used) == (None, []), "the good call fails"
    defaults = {
        word: p.default
        for word, p in inspect.signature(call).parameters.items()
        if p.default is not p.empty
    }
    for place, (argument, value) in enumerate({**defaults, **good}.items(), len(name)):
        like = VALUES.get(argument) if value is None else value
        if any(fnmatch.fnmatchcase(f"{name}.{argument}", pattern) for pattern in FOREIGN.split()):
            continue
        for which in range(place % step, len(near(like)) + len(plain()), step):
            call, good = good_call(name)
            hostile = [*near(good.get(argument, like)), *plain()][which]
            allowed = [AssertionError] * name.startswith("testing.")
            _, faults = watched(
                functools.partial(call, **{**good, argument: hostile}), LIVE, allowed
            )
            failed += [(argument, which, type(hostile).__name__, fault) for fault in faults]
            used.update(LIVE)
    failed += [fault for owner in used for fault in seen_in(owner)]
    assert not failed, f"{len(failed)}: {failed[:20]}"


def in_float32(good):
    if isinstance(good, torch.Tensor) and good.dtype == DOUBLE:
        return good.float()
    if isinstance(good, torch.nn.Module):
        return copy.deepcopy(good).float()
    return None


@attack("A5")
@pytest.mark.filterwarnings("ignore")
def test_float32_which_torch_makes_by_default_is_taken_or_refused_with_the_way_to_float64(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def refusal(argument, value):
        call, good = good_call(name)
        try:
            call(**{**good, argument: value})
        except InputError as error:
            return error
        return None

    refused = 0
    for name in NAMES:
        call, good = good_call(name)
        for argument, parameter in inspect.signature(call).parameters.items():
            double = good.get(argument, parameter.default)
            if double is None:
                double = VALUES.get(argument)
            single = in_float32(double)
            error = None if single is None else refusal(argument, single)
            if error is None:
                continue
            told = "float64" in error.allowed and ".double()" in error.remedy
            assert told or refusal(argument, double), (name, argument, error)
            refused += told
    assert refused > 50


def test_the_watch_sees_a_leak_a_charge_and_an_untyped_error():
    owner = curator()
    secret = SCALED[7]

    def refusing(value):
        if value == "charge":
            owner.release(query(), GAUSSIAN)
        raise InputError("x", value, "another number")

    assert watched(lambda: print(secret))[1][0].startswith("printed")
    assert watched(lambda: refusing(secret))[1][0].startswith("InputError says")
    assert watched(lambda: refusing("charge"), [owner])[1] == [
        "a refused call left ['charge', 'value'] in the ledger"
    ]
    assert watched(lambda: 1 / 0)[1][0].startswith("ZeroDivisionError at")
