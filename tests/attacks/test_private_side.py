"""Scores, records and labels that fail with private text in hand: nothing of it shows, whatever is
asked and whoever looks.
"""

import logging
import pickle
import traceback
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import dpbo
from dpbo.errors import InputError, OpacityError, PrivacyError
from tests.attacks import good_calls as calls
from tests.attacks.marks import attack
from tests.attacks.watched import LABEL, SECRET, seen_in, shown, shown_by

pytestmark = attack("A21")
TEXT = f"{LABEL} {SECRET!r}"


class Holding(Exception):
    def __init__(self, records):
        super().__init__(TEXT, records)
        self.records = records


def _noted(records):
    error = ValueError(TEXT)
    error.add_note(f"a note about {records[0, 0]!r}")
    return error


def _chained(records):
    error = ValueError("outer")
    error.__cause__ = RuntimeError(TEXT, records)
    return error


ERRORS = [
    Holding,
    _noted,
    _chained,
    lambda records: InputError("x", TEXT, TEXT),
    lambda records: ExceptionGroup(TEXT, [Holding(records)]),
    lambda records: BaseExceptionGroup(TEXT, [SystemExit(TEXT)]),
    lambda records: StopIteration(TEXT),
]
RESULTS = [
    lambda records: [TEXT] * len(records),
    lambda records: {TEXT: records},
    lambda records: records[:-1, 0],
    lambda records: records[:, 0] * 1j,
    lambda records: [[SECRET], [SECRET, SECRET]],
]


def _returning(result):
    """A score of this result on private records; others are the stand-ins."""

    def score(_x, records):
        private = bool(torch.isin(records, calls.records()).any())
        return result(records) if private else records[:, 0]

    return score


def _raising(error):
    def failing(records):
        raise error(records)

    return _returning(failing)


@pytest.fixture
def failed(caplog, capfd):
    """The error that asking gave, after every place where something may show was looked at."""
    caplog.set_level(logging.DEBUG)

    def asking(curator, ask, kinds=("assume",)):
        before = curator.ledger.head()
        caught = None
        caplog.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                ask()
            except PrivacyError as error:
                caught = error
        told = capfd.readouterr()
        assert not shown(
            " ".join(
                [told.out, told.err, caplog.text, *(str(warning.message) for warning in warned)]
            )
        )
        _is_silent(caught)
        assert not seen_in(curator)
        if caught is not None:
            assert not _told_by_frames(caught)
            assert {record.kind for record in curator.ledger.records(after=before.seq)} <= set(
                kinds
            )
        return caught

    return asking


def _is_silent(error):
    assert not shown_by(error)
    assert not shown("".join(traceback.format_exception(error)) if error else "")


def _told_by_frames(error):
    """dpbo's frames may hold the curator and the question, never a record, a score or what the
    score raised.
    """
    private = (torch.Tensor, np.ndarray, pd.DataFrame, BaseException, str)
    return [
        name
        for name, value in _frames_of(error)
        if isinstance(value, private) and value is not error and shown(_all_of(value))
    ]


def _frames_of(error):
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if f"{dpbo.__path__[0]}/" in frame.f_code.co_filename:
                yield from (
                    (f"{frame.f_code.co_name}.{name}", value)
                    for name, value in frame.f_locals.items()
                )
        error = error.__cause__ or error.__context__


def _all_of(value):
    return repr(value.tolist()) if isinstance(value, (torch.Tensor, np.ndarray)) else repr(value)


@attack("A5")
@pytest.mark.parametrize("kind", ["", "grouped"])
@pytest.mark.parametrize("score", [*map(_raising, ERRORS), *map(_returning, RESULTS)])
def test_errors_and_wrong_results_of_the_score_say_nothing(failed, score, kind):
    """Each fails on every unit."""
    curator = calls.curator(kind)
    error = failed(curator, lambda: curator.evaluate(calls.query(score)))
    assert type(error).__name__ == "PrivateFailure"


def test_a_score_that_fails_on_one_record_costs_what_any_other_does(failed):
    def score(_x, records):
        if bool((records[:, 0] == calls.records()[3, 0]).any()):
            raise Holding(records)
        return records[:, 0]

    curator = calls.curator()
    assert failed(curator, lambda: curator.release(calls.query(score), calls.GAUSSIAN)) is None


FAILING = _raising(Holding)


@pytest.mark.parametrize(
    "way",
    [
        lambda curator: curator.release(calls.query(FAILING), calls.GAUSSIAN),
        lambda curator: curator.submit(calls.query(FAILING), calls.POOL).result(),
        lambda curator: dpbo.PrivateObjective(
            curator, FAILING, score_range=(0.0, 1.0), evaluations=2
        )(calls.grid(2)),
        lambda curator: dpbo.DPGIBO(
            **{**calls.good_call("DPGIBO")[1], "curator": curator, "loss": FAILING}
        ).run(),
    ],
    ids=["release", "submit", "objective", "DPGIBO"],
)
def test_every_way_in_is_as_silent(failed, way):
    curator = calls.curator()
    assert failed(curator, lambda: way(curator), ("assume", "reserve")) is not None


class Rude:
    """Records whose every method fails with private text."""

    def __init__(self, length=40):
        self._length = length

    def __len__(self):
        if self._length is None:
            raise RuntimeError(TEXT)
        return self._length

    def __repr__(self):
        return TEXT

    def __getitem__(self, _):
        raise KeyError(TEXT)

    def __iter__(self):
        raise ValueError(TEXT)


FRAME = pd.DataFrame({"a": [SECRET] * 40, LABEL: [TEXT] * 40})
SECRETS = torch.full((40,), SECRET)
RECORDS = [
    *(Rude(), Rude(None), FRAME, TEXT, SECRET),
    {"a": {"b": (FRAME, FRAME)}},
    {LABEL: SECRETS, "b": torch.zeros(39)},
    (SECRETS, [TEXT]),
    np.array([TEXT] * 40, dtype=object),
    torch.eye(3).to_sparse() * SECRET,
    dpbo.Source(lambda: (_ for _ in ()).throw(Holding(TEXT))),
]
LABELS = [
    *([LABEL] * 39 + [None], [LABEL], [[LABEL]] * 40, Rude(), SECRET, FRAME, SECRETS),
    *([[LABEL, 1]] * 40, [LABEL, 1] * 20, [Rude()] * 40),
]


def test_hostile_records_and_labels_say_nothing(capfd):
    """Either refused by type and rule alone, or taken; what the score then meets is private."""
    worlds = [{"records": rows} for rows in RECORDS]
    worlds += [{"unit": dpbo.PrivacyUnit("patient", groups=labels)} for labels in LABELS]
    refused = 0
    for world in worlds:
        curator = caught = None
        try:
            curator = calls.curator(**world)
            curator.release(
                calls.query(lambda _x, records: [float(value) for value in records]), calls.GAUSSIAN
            )
        except PrivacyError as error:
            caught = error
            refused = refused + 1
        assert curator is None or not seen_in(curator)
        _is_silent(caught)
        told = capfd.readouterr()
        assert not shown(told.out + told.err)
    assert refused >= 12


def test_nothing_that_leaves_holds_a_record():
    """What is meant to leave, in words and bytes; what is not meant to, refuses."""
    curator = calls.curator("grouped")
    handle = curator.evaluate(calls.query())
    release = curator.release(handle, calls.GAUSSIAN)
    objective = dpbo.PrivateObjective(
        curator, calls.score, score_range=(0.0, 1.0), evaluations=2, budget=0.9
    )
    objective(calls.grid(2))
    statement = curator.statement()
    for thing in (curator, handle):
        with pytest.raises(OpacityError):
            pickle.dumps(thing)
    for thing in (curator, handle, release, objective, statement):
        assert not shown(repr(thing) + str(thing))
    assert not shown(pickle.dumps((release, statement)))
    assert not shown(statement.to_json())
    assert not seen_in(curator)
