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
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, Space
from dpbo.accounting import Planned, RDPFilter
from dpbo.dpsgd import DPSGDConfig, Session, hidden_runs, plan_tuning, private_selection, tune
from dpbo.errors import InputError, LedgerError
from dpbo.events import GaussianEvent, SelectionEvent
from dpbo.fingerprint import fingerprint
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.run_counts import FixedRuns

pytestmark = pytest.mark.attack("A32")
SPACE = Space(lr=scipy.stats.uniform(0.0, 1.0))
SETTINGS: dict[str, Any] = {
    "unit": PrivacyUnit("record"),
    "adjacency": Adjacency.REPLACE_ONE,
    "budget": Budget(1e4, 1e-6),
    "allow_repeated": True,
}
BASE = (GaussianEvent(1000.0),)
CALLS = 0
NUMBERS = itertools.count()
SEEDS = iter(range(100))
NUMPY, OLD_NUMPY = np.random.default_rng(0), np.random.RandomState(0)
TORCH, PYTHON = torch.Generator().manual_seed(0), random.Random(0)


class Counting:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.name = f"model {self.made}"


class Trainer:
    """An own object that keeps count and a generator."""

    def __init__(self) -> None:
        self.calls, self.generator = 0, np.random.default_rng(0)

    def __call__(self) -> Any:
        self.calls += 1
        return self.calls, self.generator.random()


TRAINER = Trainer()


BEST = np.float64(0.0)
LOADER = DataLoader(range(100), shuffle=True, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type, var-annotated]


def own_number_of_numpy() -> float:
    global BEST
    BEST = np.float64(BEST + 1.0)
    return float(BEST)


def with_hook() -> Any:
    model = nn.Linear(2, 2)
    model.register_forward_hook(hook)
    return list(model._forward_hooks)


def hook(*_: Any) -> None: ...


def own_global() -> int:
    global CALLS
    CALLS += 1
    return CALLS


def new_global() -> int:
    """A name that no run had bound before."""
    globals()["NEW"] = globals().get("NEW", 0) + 1
    return globals()["NEW"]


def own_attribute() -> int:
    own_attribute.calls = getattr(own_attribute, "calls", 0) + 1  # type: ignore[attr-defined]
    return own_attribute.calls  # type: ignore[attr-defined]


def in_closure() -> Callable[[], int]:
    calls = 0

    def counted() -> int:
        nonlocal calls
        calls += 1
        return calls

    return counted


def default_dtype() -> str:
    before = torch.rand(1).dtype
    torch.set_default_dtype(torch.float64)
    return str(before)


def filters_of_warnings() -> int:
    warnings.filterwarnings("error", "another in each run: " + str(len(warnings.filters)))
    return len(warnings.filters)


def function_number() -> Any:
    class Own(torch.autograd.Function): ...

    return Own._backward_cls._autograd_function_id  # type: ignore[attr-defined]


def subclasses() -> int:
    class Own(nn.Module): ...

    return len(nn.Module.__subclasses__())


def finaliser() -> Any:
    made = weakref.finalize(Counting, print)
    made.atexit = False
    return made._registry[made].index  # type: ignore[attr-defined]


def errors_of_numpy() -> Any:
    before = np.geterr()["over"]
    np.seterr(over="ignore")
    return before


def of_threads() -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return threading.Thread().name, pool._thread_name_prefix


class Slotted:
    __slots__ = ("__calls", "new")

    def __init__(self) -> None:
        self.__calls = 0

    def __call__(self) -> Any:
        self.__calls += 1
        self.new = getattr(self, "new", 0) + 1
        return self.__calls, self.new


class Own(random.Random): ...


SLOTTED, NAMESPACE, PARAMETER = Slotted(), types.SimpleNamespace(calls=0), nn.Parameter(torch.zeros(1))
ARRAY, BYTES = array.array("l", [0]), bytearray(1)
OWN, BITS, SEED = Own(0), np.random.PCG64(0), np.random.SeedSequence(0)
DISTRIBUTION = scipy.stats.norm()
DRAW = random.Random(0).random
HELD: dict[str, Any] = {"numbers": itertools.count(), "seeds": [iter([1, 2, 3, 4, 5, 6, 7])]}


def in_namespace() -> int:
    NAMESPACE.calls += 1
    return NAMESPACE.calls


def on_parameter() -> int:
    PARAMETER.calls = getattr(PARAMETER, "calls", 0) + 1  # type: ignore[attr-defined]
    return PARAMETER.calls  # type: ignore[attr-defined]


def in_arrays() -> Any:
    ARRAY[0] += 1
    ARRAY.append(0)
    BYTES[0] += 1
    return ARRAY.tolist(), bytes(BYTES)


def of_distribution() -> Any:
    before = type(DISTRIBUTION.random_state).__name__, DISTRIBUTION.random_state is np.random.mtrand._rand
    DISTRIBUTION.random_state = 1
    return before


def spawned() -> Any:
    return NUMPY.spawn(1)[0].bit_generator.seed_seq.spawn_key, SEED.spawn(1)[0].spawn_key  # type: ignore[attr-defined]


KINDS: dict[str, Callable[[], Any]] = {
    "slots": SLOTTED,
    "namespace": in_namespace,
    "attribute of a parameter": on_parameter,
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
    "own function": own_attribute,
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


def winner(read: Callable[[], Any], place: int, runs: int, seen: list[Any] | None = None) -> Any:
    """What the run at this place returns, which wins.

    `seen` gets what each run returns: a list of the caller's is no number.
    """
    done = [] if seen is None else seen

    def train(_: dict[str, Any]) -> tuple[Any, float]:
        done.append(read())
        return done[-1], float(len(done) == place)

    law = FixedRuns(runs)
    curator = Curator(torch.zeros(50), **SETTINGS, accounting=Planned([SelectionEvent(base=BASE, run_count=law)]))
    return private_selection(curator, train, space=SPACE, run_count=law, base=BASE).output


@pytest.fixture
def same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run draws the same seeds, so that two runs may differ by their place alone."""
    monkeypatch.setattr(hidden_runs, "system_entropy", lambda size: bytes(range(size)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("same_seeds")
def test_the_winner_is_the_same_to_the_bit_wherever_it_stands(kind: str) -> None:
    alone, seen = winner(KINDS[kind], 1, 1), list[Any]()
    last = winner(KINDS[kind], 6, 6, seen)
    assert alone is not None
    assert len({fingerprint(each, detail="content") for each in [last, *seen, *([] if kind in STEPPED else [alone])]}) == 1, seen


ITERATORS: dict[str, Callable[[], Any]] = {
    "generator": lambda: (number for number in range(100)),
    "zip": lambda: zip(range(100), range(100), strict=True),
    "map": lambda: map(abs, range(100)),
    "enumerate": lambda: enumerate(range(100)),
    "cycle": lambda: itertools.cycle(range(100)),
    "islice": lambda: itertools.islice(range(100), 100),
    "_SingleProcessDataLoaderIter": lambda: iter(DataLoader(TensorDataset(torch.zeros(9, 1)))),
    "count": lambda: (itertools.count(),),
    "range_iterator": lambda: (iter(range(100)),),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_that_cannot_be_put_back_is_refused_by_name_before_anything_is_charged(kind: str) -> None:
    """Which item a run took told its place: 12 of 12."""
    batches = ITERATORS[kind]()

    def train(_: dict[str, Any]) -> tuple[Any, float]:
        return next(batches[0] if isinstance(batches, tuple) else batches), 0.5

    law = FixedRuns(2)
    curator = Curator(torch.zeros(50), **SETTINGS, accounting=Planned([SelectionEvent(base=BASE, run_count=law)]))
    with pytest.raises(InputError, match=f"=<{kind}> is not allowed.*made anew"):
        private_selection(curator, train, space=SPACE, run_count=law, base=BASE)
    assert "charge" not in [record.kind for record in curator.ledger.records()]


def test_the_winner_is_as_its_own_run_left_it() -> None:
    """Runs that return one object, such as an estimator made outside, released the last run's state as the winner's."""
    shared: dict[str, Any] = {}

    def read() -> Any:
        shared["runs"] = shared.get("runs", 0) + 1
        return shared

    assert winner(read, 2, 4) == {"runs": 2}


def test_a_run_that_changes_its_parameters_changes_no_other_runs() -> None:
    """A list among the values had as many new items afterwards as there were runs."""
    seen, law = list[int](), FixedRuns(3)

    def train(parameters: dict[str, Any]) -> tuple[Any, float]:
        parameters["hidden"].append(2)
        seen.append(len(parameters["hidden"]))
        return None, 0.5

    curator = Curator(torch.zeros(50), **SETTINGS, accounting=Planned([SelectionEvent(base=BASE, run_count=law)]))
    found = private_selection(curator, train, space=Space(hidden=[[8]]), run_count=law, base=BASE)
    assert seen == [2, 2, 2]
    assert found.parameters == {"hidden": [8]}


def _begins_afresh() -> tuple[bool, ...]:
    """Whether the streams stand at their beginning."""
    again = torch.rand(4, generator=torch.Generator().manual_seed(torch.initial_seed()))
    numpy: Any = np.random.get_state()
    python, names = random.getstate(), tempfile._get_candidate_names().rng.getstate()  # type: ignore[attr-defined]
    # numpy begins a stream that is seeded by a whole number one place before the end of its words
    return torch.equal(torch.rand(4), again), numpy[2] == 623, python[1][-1] == names[1][-1] == 624


def test_every_run_begins_a_stream_of_its_own() -> None:
    """A frozen random layer is the first piece of a stream, another stream in each run."""
    seen = list[Any]()

    def read() -> Any:
        afresh = _begins_afresh()
        names = next(tempfile._get_candidate_names())  # type: ignore[attr-defined]
        drawn = (*torch.rand(2).tolist(), *np.random.rand(2), random.random(), NUMPY.random(), OLD_NUMPY.rand(), PYTHON.random(), names)
        seen.append((afresh, (*drawn, *torch.rand(2, generator=TORCH).tolist())))
        return None

    before = NUMPY.bit_generator.state, PYTHON.getstate(), TORCH.get_state(), OLD_NUMPY.get_state(legacy=False)
    winner(read, 3, 5)
    assert [all(afresh) for afresh, _ in seen] == [True] * 5
    assert len({number for _, drawn in seen for number in drawn}) == 5 * len(seen[0][1])
    after = NUMPY.bit_generator.state, PYTHON.getstate(), TORCH.get_state(), OLD_NUMPY.get_state(legacy=False)
    assert fingerprint(before, detail="content") == fingerprint(after, detail="content")


def test_no_run_leaves_a_record_in_a_ledger() -> None:
    """Runs that released left a charge each: as many as there were runs."""
    law, refused = FixedRuns(4), list[bool]()
    curator = Curator(torch.zeros(50), **SETTINGS, accounting=RDPFilter(16.0))
    question = ClippedMean(lambda _, r: r, score_range=(0.0, 1.0))

    def train(_: dict[str, Any]) -> tuple[Any, float]:
        own = Curator.rehearsal(torch.ones(50), **SETTINGS)
        own.release(question, GaussianMechanism(100.0))
        for act in (lambda: curator.release(question, GaussianMechanism(100.0)), lambda: curator.assume("mine")):
            with contextlib.suppress(LedgerError):
                act()
                refused.append(False)
                continue
            refused.append(True)
        return None, 0.5

    private_selection(curator, train, space=SPACE, run_count=law, base=BASE)
    assert refused == [True] * 8
    assert [record.kind for record in curator.ledger.records()].count("charge") == 1
    curator.release(question, GaussianMechanism(100.0))


# Its plan takes the accountant seconds.
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_no_model_that_tune_trains_tells_its_place() -> None:
    """A random layer was a piece of one stream, and a hook's number counted on: 12 of 12 each."""
    seen = list[tuple[Any, ...]]()

    def fit(_: dict[str, Any], session: Session) -> nn.Module:
        afresh, number = _begins_afresh(), with_hook()
        net = nn.Linear(4, 2)
        trained, optimizer, batches = session.make_private(net, torch.optim.SGD(net.parameters(), lr=0.1), max_grad_norm=1.0)
        for rows, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(trained(rows), labels).backward()
            optimizer.step()
        seen.append((afresh, number, torch.rand(8).tolist()))
        return trained

    rows = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    labels = (rows[:, 0] > 0).long()
    training = TensorDataset(rows[:300], labels[:300])
    config = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=5, batch_size=60)
    plan = plan_tuning(Budget(4.0, 1e-5), config, runs=4, validation=200, run_count=FixedRuns(4))["selection"]
    validation = rows[300:], labels[300:]
    tune(fit, _right, training=training, validation=validation, space=SPACE, plan=plan, try_first=False)
    assert [all(afresh) for afresh, _, _ in seen] == [True] * 4
    assert len({str(number) for _, number, _ in seen}) == 1
    assert len({str(drawn) for _, _, drawn in seen}) == 4


def _right(model: Any, records: Any) -> torch.Tensor:
    with torch.no_grad():
        return (model(records[0]).argmax(1) == records[1]).double()


def _numbers() -> Iterator[tuple[str, Any]]:
    """Plain numbers, texts and counts of modules, of their classes and of objects bound there."""
    plain = int, bool, str, bytes, type(None)
    bound: Any = type(itertools.count().__next__)

    def named(place: str, names: Any, deeper: bool) -> Iterator[tuple[str, Any]]:
        for name, held in list(names.items()):
            where = f"{place}.{name}"
            if type(held) in plain:
                yield where, held
            elif type(count := held.__self__ if type(held) is bound else held) is itertools.count:
                yield where, int(repr(count)[6:-1].partition(",")[0])
            elif deeper and not issubclass(type(held), (type, types.ModuleType, types.FunctionType)):
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


def _busy() -> Any:
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
    return model


@pytest.mark.usefixtures("same_seeds")
def test_no_number_in_any_module_tells_how_many_runs_there_were() -> None:
    """The hunt: what libraries count stands as before, and is the same in every run."""
    begun = list[dict[str, Any]]()

    def read() -> Any:
        if len(begun) < 2:
            begun.append(dict(_numbers()))
        return _busy()

    # The first selection loads what is loaded lazily.
    winner(_busy, 1, 1)
    states, models = [dict(_numbers())], []
    for used, runs in ((_busy, 1), (read, 12)):
        models.append(winner(used, runs, runs))
        states.append(dict(_numbers()))
    assert not {name for name in begun[0] if begun[1].get(name) != begun[0][name]}
    steps = [
        {name: (before[name], after[name]) for name in before if after.get(name) != before[name]} for before, after in pairwise(states)
    ]
    for moved in steps:
        assert {name.rpartition(".")[2] for name in moved} == {"next_id", "_index_iter"}, "hooks' public step, and the curator's finaliser"
    for name in steps[0]:
        assert steps[0][name][1] - steps[0][name][0] == steps[1][name][1] - steps[1][name][0] > 0
    assert len({fingerprint([*model.state_dict().values()], detail="content") for model in models}) == 1
