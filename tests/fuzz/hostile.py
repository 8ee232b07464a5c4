"""Hostile values: what users and programs hand over by mistake. Some are made from the good value, so that only one thing is wrong."""

import fractions

import numpy as np
import torch
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")


class Hostile:
    """Fails whatever is asked of it."""

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __len__(self):
        raise RuntimeError("no length")

    def __getitem__(self, _):
        raise RuntimeError("no item")

    def __iter__(self):
        raise RuntimeError("no items")


def plain():
    """Wrong whatever was asked for, or nearly so."""
    return [
        None,
        True,
        False,
        0,
        -1,
        1,
        2**63,
        -(2**63) - 1,
        10**12,
        10**400,
        -(10**400),
        0.0,
        -0.0,
        0.5,
        -0.5,
        NAN,
        INF,
        -INF,
        1e308,
        -1e308,
        5e-324,
        1e-300,
        1 + 2j,
        fractions.Fraction(1, 3),
        "",
        "x",
        "0.5",
        "\ud800",
        "a\0b",
        "x" * 100_000,
        b"x",
        [],
        (),
        {},
        set(),
        [1],
        [NAN],
        [None],
        (1.0, 0.0),
        (0.0, 0.0),
        (NAN, 1.0),
        (0.0, INF),
        (0.0, 1.0, 2.0),
        ("a", "b"),
        [[]],
        [[0.0, 1.0], [0.0]],
        {"a": 1},
        {1: 2},
        {"a": NAN},
        object(),
        object,
        Hostile(),
        len,
        lambda *_, **__: None,
        range(3),
        iter([1.0]),
        np.float32(0.5),
        np.int64(3),
        np.array(1.0),
        np.array([]),
        np.array(["a"]),
        np.array([NAN, 1.0]),
        np.zeros((2, 3)),
        torch.tensor(0.5),
        torch.tensor([]),
        torch.tensor(NAN),
        torch.zeros(2),
        torch.zeros(2, 2),
        torch.zeros(3, 2, dtype=torch.float64),
        torch.zeros(2, 3, 4, dtype=torch.float64),
        torch.zeros(0, 2, dtype=torch.float64),
        torch.zeros(2, 0, dtype=torch.float64),
        torch.ones(2, 2, dtype=torch.int64),
        torch.ones(2, 2, dtype=torch.bool),
        torch.ones(2, 2, dtype=torch.complex128),
        torch.eye(2, dtype=torch.float64).to_sparse(),
        torch.full((2, 2), NAN, dtype=torch.float64),
        torch.full((2, 2), INF, dtype=torch.float64),
        torch.full((2, 2), 1e308, dtype=torch.float64),
        torch.full((2, 2), -1.0, dtype=torch.float64),
        torch.ones(2, 2, dtype=torch.float64, requires_grad=True),
        torch.ones(2, 2, dtype=torch.float64, device="meta"),
        torch.ones(2, dtype=torch.bfloat16),
        *([torch.ones(2, 2, dtype=torch.float64, device="cuda")] if torch.cuda.is_available() else []),
    ]


def near(good):
    """Like the good value, but for one thing."""
    if isinstance(good, torch.Tensor):
        return _near_tensor(good)
    if isinstance(good, (tuple, list)) and good:
        kind = type(good) if type(good) in (tuple, list) else list
        broken = [kind([value, *good[1:]]) for value in (NAN, INF, -1, 0, "a", None, 10**400, 1e308)]
        return [kind(reversed(good)), kind(good[:-1]), kind([*good, good[-1]]), kind([good[0]] * len(good)), kind([good]), *broken]
    if isinstance(good, dict) and good:
        first = next(iter(good))
        return [
            {},
            {**good, "unknown": 1},
            {k: v for k, v in good.items() if k != first},
            *({**good, first: value} for value in plain()[:30]),
        ]
    if isinstance(good, bool) or not isinstance(good, (int, float)):
        return []
    return [-good, good * 10**9, str(good), [good], np.float64(good), torch.tensor(good)] + (
        [good + 0.5, good + 1, good - 1] if isinstance(good, int) else []
    )


def _near_tensor(good):
    same = good.detach()
    changed = [
        same.float(),
        same.long(),
        same.bool(),
        same.to(torch.complex128),
        same.unsqueeze(0),
        same[..., :0],
        same[:0],
        same.tolist(),
        same.numpy(),
    ]
    changed += [
        same.flatten(),
        torch.cat([same, same]),
        torch.cat([same, same], -1),
        same.new_zeros(same.shape),
        same.to_sparse(),
        same.to("meta"),
    ]
    changed += [same.flip(0), same[:1]] if same.ndim else []
    if same.is_floating_point() and same.numel():
        changed += [_with(same, value) for value in (NAN, INF, -INF, 1e308, -1.0, 1e-320)] + [
            same.clone().requires_grad_(True),
            same * 1e200,
        ]
    return changed


def _with(tensor, value):
    copied = tensor.clone()
    copied.view(-1)[0] = torch.tensor(value, dtype=torch.float64).to(tensor.dtype)
    return copied


def values(good):
    """Everything that may stand in the place of a good value."""
    return plain() + near(good)


def arguments(good, count=1):
    """Strategy: the good arguments with so many of them replaced."""
    names = st.lists(st.sampled_from(sorted(good)), min_size=min(count, len(good)), max_size=min(count, len(good)), unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: st.integers(0, len(values(good[name])) - 1) for name in chosen}))


def replaced(good, picks):
    """The arguments that a draw of `arguments` stands for, made anew."""
    return {**good, **{name: values(good[name])[i] for name, i in picks.items()}}
