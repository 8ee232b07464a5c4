"""Scores, records and labels that fail with private text in hand: nothing of it shows, whatever is asked and whoever looks."""

import concurrent.futures
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
from tests.fuzz import world as w
from tests.fuzz.canaries import LABEL, SECRET, shown, stored
from tests.fuzz.watched import frames_of, seen_in, shown_by

pytestmark = pytest.mark.attack("A21")
POOL = concurrent.futures.ThreadPoolExecutor(1)
TEXT = f"{LABEL} {SECRET!r}"


class Holding(Exception):
    """An error that holds the records."""

    def __init__(self, records):
        super().__init__(TEXT, records)
        self.records = records


def _is_private(records):
    return bool((records != 0).any())  # zeros are the stand-ins


def _raising(error):
    def score(_x, records):
        if _is_private(records):
            raise error(records)
        return records[:, 0]

    return score


def _noted(records):
    error = ValueError(TEXT)
    error.add_note(f"a note about {records[0, 0]!r}")
    return error


def _chained(records):
    error = ValueError("outer")
    error.__cause__ = RuntimeError(TEXT, records)
    return error


ERRORS = {
    "holding": Holding,
    "noted": _noted,
    "chained": _chained,
    "group": lambda records: ExceptionGroup(TEXT, [Holding(records)]),
    "key": lambda records: KeyError(TEXT),
    "exit": lambda records: SystemExit(TEXT),
    "stop": lambda records: StopIteration(TEXT),
    "memory": lambda records: MemoryError(TEXT),
    "base": lambda records: BaseExceptionGroup(TEXT, [SystemExit(TEXT)]),
    "ours": lambda records: InputError("x", TEXT, TEXT),
    "recursion": lambda records: RecursionError(TEXT),
}
RESULTS = {
    "text": lambda records: TEXT,
    "texts": lambda records: [TEXT] * len(records),
    "dict": lambda records: {TEXT: records},
    "short": lambda records: records[:-1, 0],
    "object": lambda records: np.array([TEXT] * len(records), dtype=object),
    "long": lambda records: torch.cat([records[:, 0], records[:, 0]]),
    "complex": lambda records: records[:, 0] * 1j,
    "none": lambda records: None,
    "ragged": lambda records: [[SECRET], [SECRET, SECRET]],
}


def _returning(result):
    return lambda _x, records: result(records) if _is_private(records) else records[:, 0]


def _failed(curator, ask, caplog, capfd):
    """The error that asking gave, after every place where something may show was looked at."""
    caplog.set_level(logging.DEBUG)
    before = curator.ledger.head()
    caught = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            ask()
        except PrivacyError as error:
            caught = error
    told = capfd.readouterr()
    spoken = [told.out, told.err, caplog.text, *(str(warning.message) for warning in warned)]
    assert not shown(" ".join(spoken))
    assert not shown_by(caught)
    assert not seen_in(curator)
    if caught is not None:
        assert not shown("".join(traceback.format_exception(caught)))
        assert not _told_by_frames(caught)
        assert {record.kind for record in curator.ledger.records(after=before.seq)} <= {"assume"}
    return caught


def _told_by_frames(error):
    """dpbo's frames may hold the curator and the question, never a record, a score or what the score raised."""
    private = (torch.Tensor, np.ndarray, pd.DataFrame, BaseException, str)
    return [name for name, value in frames_of(error) if isinstance(value, private) and value is not error and shown(_all_of(value))]


def _all_of(value):
    return repr(value.tolist()) if isinstance(value, (torch.Tensor, np.ndarray)) else repr(value)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_of_the_score_says_nothing(name, grouped, caplog, capfd):
    curator = w.curator(grouped=grouped)
    error = _failed(curator, lambda: curator.evaluate(w.query(score=_raising(ERRORS[name]))), caplog, capfd)
    assert type(error).__name__ == "PrivateFailure", "it fails on every unit"


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_a_wrong_result_of_the_score_says_nothing(name, caplog, capfd):
    curator = w.curator()
    error = _failed(curator, lambda: curator.evaluate(w.query(score=_returning(RESULTS[name]))), caplog, capfd)
    assert type(error).__name__ == "PrivateFailure"


def test_a_score_that_fails_on_one_record_costs_what_any_other_does(caplog, capfd):
    def score(_x, records):
        if bool((records[:, 0] == w.records()[3, 0]).any()):
            raise Holding(records)
        return records[:, 0]

    curator = w.curator()
    assert _failed(curator, lambda: curator.release(w.query(score=score), w.GAUSSIAN), caplog, capfd) is None


@pytest.mark.parametrize("kind", ["error", "executor", "objective", "gibo"])
def test_every_way_in_is_as_silent(kind, caplog, capfd):
    curator = w.curator()
    score = _raising(Holding)
    ways = {
        "error": lambda: curator.release(w.query(score=score), w.GAUSSIAN),
        "executor": lambda: curator.submit(w.query(score=score), POOL).result(),
        "objective": lambda: dpbo.PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=2)(w.grid(2)),
        "gibo": lambda: dpbo.DPGIBO(curator, score, bounds=w.box(), budget=0.5, iterations=1, batch_size=2, clip=1.0).run(),
    }
    caught = None
    caplog.set_level(logging.DEBUG)
    try:
        ways[kind]()
    except PrivacyError as error:
        caught = error
    assert caught is not None
    told = capfd.readouterr()
    assert not shown(told.out + told.err + caplog.text + "".join(traceback.format_exception(caught)))
    assert not shown_by(caught)
    assert not seen_in(curator)


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


class Long(Rude):
    """Says that its length is something else."""

    def __len__(self):
        return -1


FRAME = pd.DataFrame({"a": [SECRET] * 40, LABEL: [TEXT] * 40})
RECORDS = {
    "rude": Rude(),
    "no length": Rude(None),
    "negative": Long(),
    "frame": FRAME,
    "dict": {LABEL: torch.full((40,), SECRET), "b": torch.zeros(39)},
    "tuple": (torch.full((40,), SECRET), [TEXT]),
    "text": TEXT,
    "number": SECRET,
    "generator": (value for value in [SECRET]),
    "none": None,
    "scalar": torch.tensor(SECRET),
    "array": np.array(SECRET),
    "object": np.array([TEXT] * 40, dtype=object),
    "set": {TEXT},
    "sparse": torch.eye(3).to_sparse() * SECRET,
    "source": dpbo.Source(lambda: (_ for _ in ()).throw(Holding(TEXT))),
    "empty": [],
    "nested": {"a": {"b": (FRAME, FRAME)}},
    "class": Rude,
}


def _made(records, **settings):
    return dpbo.Curator(records, **{"unit": dpbo.PrivacyUnit("record"), "adjacency": w.REPLACE, "budget": w.BUDGET, **settings})


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_hostile_records_say_nothing(name, capfd):
    """Either refused by type and rule alone, or swallowed; what the score then meets is private."""
    caught = None
    try:
        curator = _made(RECORDS[name])
        curator.release(w.query(score=lambda _x, records: [float(value) for value in records]), w.GAUSSIAN)
    except PrivacyError as error:
        caught = error
    else:
        assert not seen_in(curator)
    assert not shown_by(caught)
    assert not shown("".join(traceback.format_exception(caught)) if caught else "")
    told = capfd.readouterr()
    assert not shown(told.out + told.err)


LABELS = {
    "missing": [LABEL] * 39 + [None],
    "short": [LABEL],
    "unhashable": [[LABEL]] * 40,
    "rude": Rude(),
    "no length": Rude(None),
    "number": SECRET,
    "text": LABEL,
    "frame": FRAME,
    "tensor": torch.full((40,), SECRET),
    "two columns": [[LABEL, 1]] * 40,
    "nan": [float("nan")] * 40,
    "mixed": [LABEL, 1] * 20,
    "rude ones": [Rude()] * 40,
}


@pytest.mark.parametrize("name", sorted(LABELS))
def test_hostile_labels_say_nothing(name):
    caught = None
    try:
        curator = _made(w.records(), unit=dpbo.PrivacyUnit("patient", groups=LABELS[name]))
    except PrivacyError as error:
        caught = error
    else:
        assert not seen_in(curator)
    assert not shown_by(caught)
    assert not shown("".join(traceback.format_exception(caught)) if caught else "")


def test_nothing_that_leaves_holds_a_record():
    """What is meant to leave, in words and bytes; what is not meant to, refuses."""
    curator = w.curator(grouped=True)
    handle = curator.evaluate(w.query())
    release = curator.release(handle, w.GAUSSIAN)
    objective = w.objective(curator, evaluations=2, budget_share=0.9)
    objective(w.grid(2))
    statement = curator.statement()
    for thing in (curator, handle):
        with pytest.raises(OpacityError):
            pickle.dumps(thing)
    for thing in (curator, handle, release, objective, statement):
        assert not shown(repr(thing) + str(thing))
    assert not stored(pickle.dumps((release, statement)))
    assert not shown(statement.to_json())
    assert not seen_in(curator)
