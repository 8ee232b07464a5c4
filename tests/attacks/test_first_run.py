"""A32: every hidden run is the first run: what the winner returns does not tell which one it was.

Each attack returns something of the process that numbers things or continues a stream, and wins on
the runs' place: the pieces of one stream and one counter told 12 of 12 places.
"""

import array
import concurrent.futures
import contextlib
import itertools
import random
import sys
import tempfile
import threading
import types
import warnings
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Budget, Curator, Space
from dpbo.accounting import RDPFilter
from dpbo.dpsgd import DPSGDConfig, hidden_runs, plan_tuning, tune
from dpbo.errors import InputError, LedgerError
from dpbo.events import GaussianEvent
from dpbo.fingerprint import fingerprint
from dpbo.run_counts import FixedRuns
from tests.attacks.marks import attack
from tests.attacks.setups import (
    MEAN,
    NOISE,
    RATES,
    TERMS,
    best_run,
    fit,
    kinds,
    owner_of_runs,
    right,
)
from tests.setups import DOUBLE

pytestmark = attack("A32")
RECORDS = torch.zeros(50)
BASE = (GaussianEvent(1000.0),)
CALLS = 0
NUMBERS = itertools.count()
SEEDS = iter(range(100))
NUMPY = np.random.default_rng(0)
OLD_NUMPY = np.random.RandomState(0)
TORCH = torch.Generator().manual_seed(0)
PYTHON = random.Random(0)


class Counting:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.name = f"model {self.made}"


class Trainer:
    """An own object that keeps count and a generator."""

    def __init__(self):
        self.calls = 0
        self.generator = np.random.default_rng(0)

    def __call__(self):
        self.calls += 1
        return self.calls, self.generator.random()


TRAINER = Trainer()


BEST = np.float64(0.0)
HUNDRED: Any = range(100)
LOADER: Any = DataLoader(HUNDRED, shuffle=True, generator=torch.Generator().manual_seed(0))


def own_number_of_numpy():
    global BEST
    BEST = np.float64(BEST + 1.0)
    return float(BEST)


def with_hook():
    model = nn.Linear(2, 2)
    model.register_forward_hook(hook)
    return list(model._forward_hooks)


def hook(*_): ...


def own_global():
    global CALLS
    CALLS += 1
    return CALLS


def new_global():
    """A name that no run had bound before."""
    globals()["NEW"] = globals().get("NEW", 0) + 1
    return globals()["NEW"]


def count_on(holder):
    holder.calls = getattr(holder, "calls", 0) + 1
    return holder.calls


def own_function():
    return count_on(own_function)


def in_closure():
    calls = 0

    def counted():
        nonlocal calls
        calls += 1
        return calls

    return counted


def default_dtype():
    before = torch.rand(1).dtype
    torch.set_default_dtype(DOUBLE)
    return str(before)


def filters_of_warnings():
    warnings.filterwarnings("error", "another in each run: " + str(len(warnings.filters)))
    return len(warnings.filters)


def function_number():
    class Own(torch.autograd.Function): ...

    return Own._backward_cls._autograd_function_id  # type: ignore[attr-defined]


def subclasses():
    class Own(nn.Module): ...

    return len(nn.Module.__subclasses__())


def finaliser():
    made = weakref.finalize(Counting, print)
    made.atexit = False
    return made._registry[made].index  # type: ignore[attr-defined]


def errors_of_numpy():
    before = np.geterr()["over"]
    np.seterr(over="ignore")
    return before


def of_threads():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return threading.Thread().name, pool._thread_name_prefix


class Slotted:
    __slots__ = ("__calls", "new")

    def __init__(self):
        self.__calls = 0

    def __call__(self):
        self.__calls += 1
        self.new = getattr(self, "new", 0) + 1
        return self.__calls, self.new


class Own(random.Random): ...


SLOTTED = Slotted()
NAMESPACE = types.SimpleNamespace(calls=0)
PARAMETER = nn.Parameter(torch.zeros(1))
ARRAY = array.array("l", [0])
BYTES = bytearray(1)
OWN = Own(0)
BITS = np.random.PCG64(0)
SEED = np.random.SeedSequence(0)
DISTRIBUTION = scipy.stats.norm()
DRAW = random.Random(0).random
HELD: dict[str, Any] = {"numbers": itertools.count(), "seeds": [iter([1, 2, 3, 4, 5, 6, 7])]}


def in_arrays():
    ARRAY[0] += 1
    ARRAY.append(0)
    BYTES[0] += 1
    return ARRAY.tolist(), bytes(BYTES)


def of_distribution():
    before = (
        type(DISTRIBUTION.random_state).__name__,
        DISTRIBUTION.random_state is np.random.mtrand._rand,
    )
    DISTRIBUTION.random_state = 1
    return before


def spawned():
    spawned_bits: Any = NUMPY.spawn(1)[0].bit_generator
    return spawned_bits.seed_seq.spawn_key, SEED.spawn(1)[0].spawn_key


KINDS: dict[str, Any] = {
    "slots": SLOTTED,
    "namespace": lambda: count_on(NAMESPACE),
    "attribute of a parameter": lambda: count_on(PARAMETER),
    "arrays": in_arrays,
    "distribution": of_distribution,
    "spawned": spawned,
    "kept in a dict": lambda: (next(HELD["numbers"]), next(HELD["seeds"][0])),
    "own kind of generator": lambda: OWN.random(),
    "bits": lambda: BITS.random_raw(),
    "method of a generator": lambda: DRAW(),
    "number of a hook": with_hook,
    "global hook": lambda: nn.modules.module.register_module_forward_hook(hook).id,
    "autograd's function": function_number,
    "finaliser": finaliser,
    "threads": of_threads,
    "own global": own_global,
    "new global": new_global,
    "own number of numpy": own_number_of_numpy,
    "generator of a loader": lambda: next(iter(LOADER)).item(),
    "own class": lambda: Counting().name,
    "own object": TRAINER,
    "own function": own_function,
    "own closure": in_closure(),
    "own count": lambda: next(NUMBERS),
    "own list of seeds": lambda: next(SEEDS),
    "subclasses": subclasses,
    "default dtype": default_dtype,
    "numpy's errors": errors_of_numpy,
    "filters of warnings": filters_of_warnings,
    "torch": lambda: torch.rand(3).tolist(),
    "numpy": lambda: np.random.rand(3).tolist(),
    "Python": lambda: random.random(),
    "own generator of numpy": lambda: NUMPY.random(),
    "own old generator of numpy": lambda: OLD_NUMPY.rand(),
    "own generator of torch": lambda: torch.rand(3, generator=TORCH).tolist(),
    "own generator of Python": lambda: PYTHON.random(),
}


# A selection begins at other numbers than the one before, whatever its runs did.
STEPPED = ("number of a hook", "global hook", "finaliser", "subclasses")


def winner(read, place, runs, seen=None):
    """What the run at this place returns, which wins.

    `seen` gets what each run returns: a list of the caller's is no number.
    """
    done = [] if seen is None else seen

    def train(_):
        done.append(read())
        return done[-1], float(len(done) == place)

    return best_run(owner_of_runs(RECORDS, BASE, runs), train, BASE, runs).output


@pytest.fixture
def same_seeds(monkeypatch):
    """Every run draws the same seeds, so that two runs may differ by their place alone."""
    monkeypatch.setattr(hidden_runs, "system_entropy", lambda size: bytes(range(size)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("same_seeds")
def test_the_winner_is_the_same_to_the_bit_wherever_it_stands(kind):
    alone = winner(KINDS[kind], 1, 1)
    assert alone is not None
    seen: list[Any] = []
    last = winner(KINDS[kind], 6, 6, seen)
    outputs = [last, *seen, *([] if kind in STEPPED else [alone])]
    assert len({fingerprint(each, detail="content") for each in outputs}) == 1, seen


LIBRARY = """
class Base:
    made = 0

class Layer(Base):
    pass
"""


def test_what_a_librarys_class_counts_is_put_back_where_it_inherits_or_is_loaded_again(monkeypatch):
    library = types.ModuleType("a_library")
    monkeypatch.setitem(sys.modules, library.__name__, library)

    def made():
        library.Base.made += 1
        library.Layer.made += 1
        return library.Base.made, library.Layer.made

    def late():
        library.Layer.late += 1
        return library.Layer.late

    for _ in range(2):
        # As by importlib.reload.
        exec(LIBRARY, vars(library))
        seen = list[Any]()
        winner(made, 6, 6, seen)
        assert seen == [(1, 2)] * 6
    library.Layer.late = 0
    seen = []
    winner(late, 6, 6, seen)
    assert seen == [1] * 6
    del library.Layer.late
    library.Layer.made = 5
    seen = []
    winner(made, 6, 6, seen)
    assert seen == [(1, 6)] * 6
    assert library.Layer.made == 5, "what was bound before is no run's"


ITEMS = range(100)
ITERATORS: dict[str, Any] = {
    "generator": lambda: (number for number in ITEMS),
    "zip": lambda: zip(ITEMS, ITEMS, strict=True),
    "map": lambda: map(abs, ITEMS),
    "enumerate": lambda: enumerate(ITEMS),
    "cycle": lambda: itertools.cycle(ITEMS),
    "islice": lambda: itertools.islice(ITEMS, 100),
    "_SingleProcessDataLoaderIter": lambda: iter(DataLoader(TensorDataset(torch.zeros(9, 1)))),
    "count": lambda: (itertools.count(),),
    "range_iterator": lambda: (iter(ITEMS),),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_that_cannot_be_put_back_is_refused_by_name_before_a_charge(kind):
    """Which item a run took told its place: 12 of 12."""
    batches = ITERATORS[kind]()

    def train(_):
        return next(batches[0] if isinstance(batches, tuple) else batches), 0.5

    curator = owner_of_runs(RECORDS, BASE)
    with pytest.raises(InputError, match=f"=<{kind}> is not allowed.*made anew"):
        best_run(curator, train, BASE)
    assert "charge" not in kinds(curator)


def test_the_winner_is_as_its_own_run_left_it():
    """Runs that return one object, such as an estimator made outside, released the last run's state
    as the winner's.
    """
    shared: dict[str, Any] = {}

    def read():
        shared["runs"] = shared.get("runs", 0) + 1
        return shared

    assert winner(read, 2, 4) == {"runs": 2}


def test_a_run_that_changes_its_parameters_changes_no_other_runs():
    """A list among the values had as many new items afterwards as there were runs."""
    seen: list[int] = []

    def train(parameters):
        parameters["hidden"].append(2)
        seen.append(len(parameters["hidden"]))
        return None, 0.5

    found = best_run(owner_of_runs(RECORDS, BASE, 3), train, BASE, 3, space=Space(hidden=[[8]]))
    assert seen == [2, 2, 2]
    assert found.parameters == {"hidden": [8]}


def _begins_afresh():
    """Whether the streams stand at their beginning."""
    again = torch.rand(4, generator=torch.Generator().manual_seed(torch.initial_seed()))
    numpy: Any = np.random.get_state()
    python = random.getstate()
    names = tempfile._get_candidate_names().rng.getstate()  # type: ignore[attr-defined]
    # numpy begins a stream that is seeded by a whole number one place before the end of its words.
    return torch.equal(torch.rand(4), again), numpy[2] == 623, python[1][-1] == names[1][-1] == 624


def test_every_run_begins_a_stream_of_its_own():
    """A frozen random layer is the first piece of a stream, another stream in each run."""
    seen = list[Any]()

    def read():
        afresh = _begins_afresh()
        names = next(tempfile._get_candidate_names())  # type: ignore[attr-defined]
        drawn = (
            *torch.rand(2).tolist(),
            *np.random.rand(2),
            random.random(),
            NUMPY.random(),
            OLD_NUMPY.rand(),
            PYTHON.random(),
            names,
        )
        seen.append((afresh, (*drawn, *torch.rand(2, generator=TORCH).tolist())))
        return None

    def states():
        states = (
            NUMPY.bit_generator.state,
            PYTHON.getstate(),
            TORCH.get_state(),
            OLD_NUMPY.get_state(legacy=False),
        )
        return fingerprint(states, detail="content")

    before = states()
    winner(read, 3, 5)
    assert [all(afresh) for afresh, _ in seen] == [True] * 5
    assert len({number for _, drawn in seen for number in drawn}) == 5 * len(seen[0][1])
    assert states() == before


def test_no_run_leaves_a_record_in_a_ledger():
    """Runs that released left a charge each: as many as there were runs."""
    curator = owner_of_runs(RECORDS, BASE, accounting=RDPFilter(16.0))
    own = Curator.rehearsal(torch.ones(50), **TERMS)
    done = []

    def train(_):
        own.release(MEAN, NOISE)
        for act in (lambda: curator.release(MEAN, NOISE), lambda: curator.assume("mine")):
            with contextlib.suppress(LedgerError):
                done.append(act())
        return None, 0.5

    best_run(curator, train, BASE, 4)
    assert done == []
    assert kinds(curator).count("charge") == 1
    curator.release(MEAN, NOISE)


# Its plan takes the accountant seconds.
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_no_model_that_tune_trains_tells_its_place():
    """A random layer was a piece of one stream, and a hook's number counted on: 12 of 12 each."""
    seen = list[tuple[Any, ...]]()

    def train(_, session):
        afresh = _begins_afresh()
        number = with_hook()
        net = nn.Linear(4, 2)
        trained = fit(
            *session.make_private(net, torch.optim.SGD(net.parameters(), lr=0.1), max_grad_norm=1.0)
        )
        seen.append((afresh, number, torch.rand(8).tolist()))
        return trained

    rows = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    labels = (rows[:, 0] > 0).long()
    training = TensorDataset(rows[:300], labels[:300])
    config = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=5, batch_size=60)
    plan = plan_tuning(Budget(4.0, 1e-5), config, runs=4, validation=200, run_count=FixedRuns(4))[
        "selection"
    ]
    validation = rows[300:], labels[300:]
    tune(
        train,
        right,
        training=training,
        validation=validation,
        space=RATES,
        plan=plan,
        try_first=False,
    )
    assert [all(afresh) for afresh, _, _ in seen] == [True] * 4
    assert len({str(number) for _, number, _ in seen}) == 1
    assert len({str(drawn) for _, _, drawn in seen}) == 4


def _numbers():
    """Plain numbers, texts and counts of modules, of their classes and of objects bound there."""
    plain = int, bool, str, bytes, type(None)
    bound: Any = type(itertools.count().__next__)

    def named(place, names, deeper):
        for name, held in list(names.items()):
            where = f"{place}.{name}"
            if type(held) in plain:
                yield where, held
            elif type(count := held.__self__ if type(held) is bound else held) is itertools.count:
                yield where, int(repr(count)[6:-1].partition(",")[0])
            elif deeper and not issubclass(
                type(held), (type, types.ModuleType, types.FunctionType)
            ):
                try:
                    attributes = object.__getattribute__(held, "__dict__")
                except AttributeError:
                    continue
                yield from named(where, attributes, False)
            elif deeper and issubclass(type(held), type):
                yield from named(where, vars(held), False)

    for module, content in list(sys.modules.items()):
        if isinstance(getattr(content, "__dict__", None), dict) and module != "warnings":
            yield from named(module, vars(content), True)


def _busy():
    """Uses what counts: hooks, optimizers, loaders, threads, finalisers."""
    model = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 1))
    model.register_forward_hook(hook)
    optimizer = torch.optim.Adam(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for (rows,) in DataLoader(TensorDataset(torch.rand(20, 2)), batch_size=10, shuffle=True):
        optimizer.zero_grad()
        model(rows).sum().backward()
        optimizer.step()
    of_threads()
    weakref.finalize(model, hook)
    return model.state_dict()


@pytest.mark.usefixtures("same_seeds")
def test_no_number_in_any_module_tells_how_many_runs_there_were():
    """The hunt: what libraries count stands as before, and is the same in every run."""
    begun = list[dict[str, Any]]()

    def read():
        if len(begun) < 2:
            begun.append(dict(_numbers()))
        return _busy()

    # The first selection loads what is loaded lazily.
    winner(_busy, 1, 1)
    states = [dict(_numbers())]
    kept = []
    for used, runs in ((_busy, 1), (read, 12)):
        kept.append(winner(used, runs, runs))
        states.append(dict(_numbers()))
    assert not {name for name in begun[0] if begun[1].get(name) != begun[0][name]}
    steps = [
        {name: (before[name], after[name]) for name in before if after.get(name) != before[name]}
        for before, after in pairwise(states)
    ]
    for moved in steps:
        assert {name.rpartition(".")[2] for name in moved} == {
            "next_id",
            "_index_iter",
        }, "hooks' public step, and the curator's finaliser"
    for name in steps[0]:
        assert steps[0][name][1] - steps[0][name][0] == steps[1][name][1] - steps[1][name][0] > 0
    assert len({fingerprint([*state.values()], detail="content") for state in kept}) == 1
