"""A space in other programs' words, and back."""

import numpy as np
import pytest
import scipy.stats
import torch

from dpbo import Space
from dpbo.errors import InputError
from dpbo.integrations.parameter_encoding import ParameterEncoding
from tests.setups import DOUBLE

SPECS = {
    "C": scipy.stats.loguniform(1e-2, 1e3),
    "momentum": scipy.stats.uniform(0.5, 0.4),
    "lag": scipy.stats.norm(3, 1),
    "shifted": scipy.stats.loguniform(1, 10, loc=3),
    "depth": scipy.stats.randint(2, 10),
    "batch": [16, 32, 128],
    "layers": [2, 4, 6],
    "kernel": ["rbf", "poly"],
    "sizes": [(10,), (20, 20), None],
    "flag": [True, False],
}
SPACE = Space(**SPECS)


def plain(value, _others):
    return value is None or isinstance(value, (bool, int, float, str))


def test_words_and_points_are_the_same_place():
    wording = ParameterEncoding(SPACE, plain)
    for x in SPACE.sample(32, seed=3):
        shown = wording.shown(x)
        back = wording.point(shown)
        torch.testing.assert_close(back, x, rtol=1e-12, atol=1e-12)
        here = SPACE.decode(x)
        assert shown["C"] == here["C"]
        assert all(type(shown[name]) is int for name in ("depth", "layers", "batch"))
    for end in SPACE.bounds:
        shown = wording.shown(end)
        assert all(p.labels or p.low <= shown[p.name] <= p.high for p in wording.parameters), (
            "ends stay inside"
        )


def test_labels_are_of_one_type_and_equal_values_keep_words_of_their_own():
    for values, kind in (
        ([0, 0.5, 1], float),
        ([np.float64(0.1), 1], float),
        ([1, 4, 16], int),
    ):
        space = Space(a=values)
        wording = ParameterEncoding(space, plain)
        assert {type(label) for label in wording.parameters[0].labels} == {kind}
        for u in space.discrete_dims[0]:
            x = torch.tensor([u], dtype=DOUBLE)
            assert torch.equal(wording.point(wording.shown(x)), x)
            assert wording.shown(x)["a"] == space.decode(x)["a"]
    for choices in ([None, True, False, 0], [True, 1, 1.0, "x"]):
        wording = ParameterEncoding(Space(a=choices), plain)
        assert len(set(wording.parameters[0].labels)) == len(choices), "no two of them are equal"
        for k in range(len(choices)):
            x = torch.tensor([float(k)], dtype=DOUBLE)
            assert torch.equal(wording.point(wording.shown(x)), x), (choices, k)


def test_what_has_no_words_and_what_lies_outside_the_space_are_refused():
    with pytest.raises(InputError, match="distinct `repr`s"):
        ParameterEncoding(Space(f=[object(), object()]), plain)
    wording = ParameterEncoding(SPACE, plain)
    with pytest.raises(InputError, match="all given"):
        wording.point({"C": 1.0})
    with pytest.raises(InputError, match="kernel"):
        wording.point(wording.shown(SPACE.sample(1, seed=0)[0]) | {"kernel": "linear"})
    wording = ParameterEncoding(SPACE, plain)
    shown = wording.shown(SPACE.sample(1, seed=0)[0])
    assert wording.holds(shown)
    assert not wording.holds({})
    outside = [
        ("C", 1e7),
        ("lag (quantile)", 1.5),
        ("lag (quantile)", "x"),
        ("depth", 10),
        ("batch", 64),
    ]
    for name, value in outside:
        assert not wording.holds(shown | {name: value}), name
        with pytest.raises(InputError, match=name.partition(" ")[0]):
            wording.point(shown | {name: value})
