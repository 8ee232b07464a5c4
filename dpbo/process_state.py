"""What a process remembers between runs, and how a later run begins as the first one did.

`ProcessState(work)` notes, and puts back before each run and at the end:

- whole numbers and `itertools.count` objects that a module or a class of a library binds to a name.
  Counters are among them, such as torch's number of the next hook, threads' and processes' names;
  the others are constants.
- what the caller's own modules, classes, instances and closures bind to a name, as far as `work`
  reaches them: the same objects as before, and an `itertools.count`, or an iterator of a list,
  tuple, text or range, where it stood. Names that appear are removed.
- settings of the process (`_SETTINGS`), among them the filters of warnings, and the hooks for all
  modules and optimizers of torch.

Each run has generators that are seeded from the operating system: the global ones of torch, numpy
and Python, those that names above are bound to, and that of temporary files' names. Equal seeds
would make the noise of several runs one noise; one stream for all of them would show in a run's
numbers which place in it the run had. Context variables that a run sets are lost with it.

What may differ between runs, therefore: contents of lists, dicts and other objects of the caller,
and of tensors and arrays; caches and lazily loaded libraries; counters in C, such as those of
autograd's graph and of asyncio's tasks; memory addresses, the clock, files, devices and other
processes. A private selection's statement names it in the assumption `runs-hidden`. What other
threads change meanwhile of the same names and settings is put back as well.

Why a run's output then has one law at every place: it is a function of its parameters, its seeds, the
system's entropy and the state that it finds. Parameters follow the law that the accounting pays for,
seeds and entropy are fresh, and the state that is noted is the same. So a run that reads nothing else
gives, for the same parameters, an output of the same law wherever it stands, and the winner's object
tells no more than its parameters and its score, which choose it. That a run reads nothing else of what
earlier runs left is the assumption.

A process for each run would put all of the caller's objects back as well. But a fork does not keep
a GPU, OpenMP's threads hang in it, and everything else that runs notice in the caller's objects
would be lost without a word.
"""

import ast
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import itertools
import logging
import operator
import os
import pathlib
import random
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from dpbo.fingerprint import LIBRARIES, is_own
from dpbo.hidden_run import in_hidden_run
from dpbo.isolation import isolate_generators, mute_warnings

_NEXT: Any = type(itertools.count().__next__)
_ITERATED: tuple[Any, ...] = ([], (), "", b"", range(0), range(1 << 70))
_ITERATORS = tuple(type(iter(kind)) for kind in _ITERATED)
_ABSENT = object()
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
# The longest container of the caller's that is searched for instances and generators.
_LONGEST = 1000
# `isolate_generators` seeds these.
_GLOBAL_GENERATORS = {id(torch.default_generator), id(vars(random)["_inst"]), id(vars(np.random.mtrand)["_rand"])}
# More hooks than runs attach: later hooks on a released module must not take the numbers of its own.
_BEYOND = 1 << 32


def _settable(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _directory() -> str | None:
    # The directory may have been removed.
    with contextlib.suppress(OSError):
        return str(pathlib.Path.cwd())
    return None


def _set_directory(before: str | None) -> None:
    if before is not None:
        with contextlib.suppress(OSError):
            os.chdir(before)


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _set_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_determinism, lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1])),
    _settable(torch.backends.cudnn, "enabled"),
    _settable(torch.backends.cudnn, "benchmark"),
    _settable(torch.backends.cudnn, "deterministic"),
    (np.geterr, lambda modes: np.seterr(**modes)),
    (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    (lambda: warnings.filters[:], lambda filters: warnings.filters.__setitem__(slice(None), filters)),  # type: ignore[index]
    (lambda: logging.root.manager.disable, logging.disable),
    _settable(sys, "stdout"),
    _settable(sys, "stderr"),
    (_directory, _set_directory),
    (_environment, _set_environment),
)


class ProcessState:
    """The state of the process at this moment, as the module's text says.

    Args:
        work: the function whose runs shall not differ by what earlier ones left.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._numbers = list[tuple[_Numbers, tuple[Any, ...]]]()
        self._moving = list[tuple[Any, str, Any]]()
        self._own = list[tuple[Any, dict[str, Any]]]()
        self._generators = dict[int, Any]()
        self._known = set[str]()
        self._take_libraries()
        for holder in _holders_within(work, self._generators):
            before = dict(_names(holder))
            self._own.append((holder, before))
            self._moving += [(holder, name, value) for name, value in before.items() if _moves(value)]
        self._settings = [(read, write, read()) for read, write in _SETTINGS]
        self._tables = [(table, table.copy()) for table in _shared_tables()]

    def _take_libraries(self) -> None:
        """The numbers, counts and generators of the libraries loaded since the last call."""
        loaded = dict(sys.modules)
        for name in loaded.keys() - self._known:
            self._known.add(name)
            numbers, others = _found_in(name, loaded[name])
            self._numbers += [(each, each.now()) for each in numbers]
            for holder, names in others:
                held = {each: _names(holder).get(each) for each in names}
                self._moving += [(holder, each, value) for each, value in held.items() if _moves(value)]
                self._generators.update((id(value), value) for value in held.values() if _is_generator(value))

    @contextlib.contextmanager
    def first_run(self, entropy: Callable[[int], bytes]) -> Iterator[Callable[..., Any]]:
        """Puts the state back, and seeds all generators from `entropy` meanwhile.

        Gives what calls a function with its own context.
        """
        self.restore()
        kept = [(generator, _state_of(generator)) for generator in self._generators.values()]
        names, vars(tempfile)["_name_sequence"] = vars(tempfile)["_name_sequence"], None
        try:
            # Muting also forgets which warnings each module has shown.
            with isolate_generators(entropy), mute_warnings():
                for generator, _ in kept:
                    _seed(generator, entropy)
                context = contextvars.copy_context()
                context.run(in_hidden_run.set, True)
                yield context.run
        finally:
            vars(tempfile)["_name_sequence"] = names
            for generator, state in kept:
                _set_state(generator, state)

    def restore(self) -> None:
        """Everything that was noted is as it was."""
        for numbers, before in self._numbers:
            if numbers.moved(before):
                numbers.put_back(before)
        for holder, held in self._own:
            names = dict(_names(holder))
            for name in {**held, **names}:
                was, now = held.get(name, _ABSENT), names.get(name, _ABSENT)
                if now is not was:
                    _put(holder, name, was)
        renewed = dict[int, Any]()
        # Runs move copies, never the object itself.
        for holder, name, value in self._moving:
            _put(holder, name, _renewed(value, renewed))
        for read, write, setting in self._settings:
            if read() != setting:
                write(setting)
        for table, entries in self._tables:
            if table != entries:
                table.clear()
                table.update(entries)
        self._take_libraries()

    def leave(self) -> None:
        """`restore`, at the end.

        Hooks go on with numbers that no run has used, so that they replace none of a released
        module.
        """
        self.restore()
        for holder, name, value in self._moving:
            _put(holder, name, value)
        RemovableHandle.next_id += _BEYOND


class _Numbers:
    """The whole numbers that a module or class binds.

    They are read at once, because there are thousands, and each run looks at them.
    """

    def __init__(self, holder: Any, names: list[str]) -> None:
        self._holder, self._held, self._names = holder, _names(holder), names
        # The first name twice: of one name alone the getter would give no tuple.
        self._read = operator.itemgetter(names[0], *names)

    def now(self) -> tuple[Any, ...]:
        """What the names are bound to, the first one twice; None where nothing is."""
        return tuple(self._held.get(name) for name in (self._names[0], *self._names))

    def moved(self, before: tuple[Any, ...]) -> bool:
        """Whether something else is bound now."""
        try:
            return bool(self._read(self._held) != before)
        # A name is unbound, or bound to what cannot be compared.
        except Exception:
            return True

    def put_back(self, before: tuple[Any, ...]) -> None:
        """Binds them to these numbers again, except what is no whole number any more."""
        for name, number in zip(self._names, before[1:], strict=True):
            now = self._held.get(name)
            if type(now) is type(number) is int and now != number:
                _put(self._holder, name, number)


_Found = tuple[list[_Numbers], list[tuple[Any, list[str]]]]
_scanned: dict[str, tuple[Any, int, _Found]] = {}
_first_met: dict[int, tuple[Any, str]] = {}


def _found_in(name: str, module: Any) -> _Found:
    """What a library's module and its classes bind to whole numbers, counts and generators.

    A module is searched again only where it has more names than at the last time: to search all
    takes a quarter of a second. A class is searched where it was met first. Types are compared by
    `type`: objects that a library loads when asked would answer `isinstance`.
    """
    namespace = _attributes(module)
    if not namespace or _is_own(module):
        return [], []
    last = _scanned.get(name)
    if last is None or last[0] is not module or last[1] != len(namespace):
        numbers, others = list[_Numbers](), list[tuple[Any, list[str]]]()
        for holder in [namespace, *(held for held in list(namespace.values()) if issubclass(type(held), type))]:
            if holder is not namespace and _first_met.setdefault(id(holder), (holder, name))[1] != name:
                continue
            held = list(_names(holder).items())
            if ints := [each for each, value in held if type(value) is int]:
                numbers.append(_Numbers(holder, ints))
            if names := [each for each, value in held if _is_count(value) or _is_generator(value)]:
                others.append((holder, names))
        _scanned[name] = last = module, len(namespace), (numbers, others)
    return last[2]


class _Globals:
    """The namespace that a function of the caller's looks into."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names


def _holders_within(work: Any, generators: dict[int, Any]) -> Iterator[Any]:
    """What binds names in the caller's code that `work` reaches. Collects generators.

    These are namespaces of modules, classes, instances and closures.
    """
    waiting, seen = collections.deque([work]), dict[int, Any]()
    while waiting:
        thing = waiting.popleft()
        key = id(thing.names) if isinstance(thing, _Globals) else id(thing)
        if key in seen:
            continue
        # The reference keeps its id from being given to another object.
        seen[key] = thing
        if _is_generator(thing):
            generators[id(thing)] = thing
            continue
        if (holder := _holder_of(thing)) is not None:
            yield holder
        waiting.extend(_parts(thing))


def _holder_of(thing: Any) -> Any:
    """A namespace, class or closure's cell that binds names of the caller's; else None."""
    if isinstance(thing, types.CellType):
        return thing
    if isinstance(thing, _Globals):
        return thing.names
    if issubclass(type(thing), type):
        return thing if _is_own(sys.modules.get(thing.__module__)) else None
    if type(thing) is types.FunctionType:
        return vars(thing) if is_own(thing) else None
    return _attributes(thing) if _is_own(sys.modules.get(type(thing).__module__)) else None


def _parts(thing: Any) -> Iterable[Any]:
    """What a thing leads to."""
    if isinstance(thing, types.FunctionType):
        globals_ = [_Globals(thing.__globals__)] if is_own(thing) else []
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return [*(thing.__closure__ or ()), *defaults, *vars(thing).values(), *globals_]
    if isinstance(thing, types.ModuleType):
        return [_Globals(vars(thing))] if _is_own(thing) else []
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if type(thing) in _CONTAINERS:
        return list(thing) if len(thing) <= _LONGEST else []
    if type(thing) is dict:
        return list(thing.values()) if len(thing) <= _LONGEST else []
    if (holder := _holder_of(thing)) is not None:
        return [*_names(holder).values(), type(thing)]
    if isinstance(thing, type) or (type(thing).__module__.startswith("dpbo.") and not dataclasses.is_dataclass(thing)):
        return []
    # An object of a library is searched for generators, such as a DataLoader's.
    return list(_attributes(thing).values())


def _is_own(module: Any) -> bool:
    """Whether a module is the caller's own."""
    file = _attributes(module).get("__file__")
    return module is sys.modules.get("__main__") or (isinstance(file, str) and not file.startswith(LIBRARIES))


def _attributes(thing: Any) -> dict[str, Any]:
    """An object's own attributes, without the code that it may have for reading them."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _names(holder: Any) -> Any:
    """A mapping of what a holder binds."""
    if isinstance(holder, types.CellType):
        try:
            return {"": holder.cell_contents}
        # The cell is empty.
        except ValueError:
            return {}
    return holder if isinstance(holder, dict) else vars(holder)


def _put(holder: Any, name: str, value: Any) -> None:
    """Binds a name, or unbinds it where the value is _ABSENT."""
    if isinstance(holder, types.CellType):
        if value is _ABSENT:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif isinstance(holder, dict):
        if value is _ABSENT:
            del holder[name]
        else:
            holder[name] = value
    elif value is _ABSENT:
        type.__delattr__(holder, name)
    else:
        type.__setattr__(holder, name, value)


def _is_count(value: Any) -> bool:
    """Whether it is an `itertools.count` of numbers, or what takes the next number from one."""
    count = value.__self__ if type(value) is _NEXT else value
    return type(count) is itertools.count and repr(count).replace(".", "").replace("-", "")[6:-1].replace(", ", "").isdigit()


def _moves(value: Any) -> bool:
    """Whether a value is a count or an iterator, which whoever takes a number from it moves."""
    return type(value) in _ITERATORS or _is_count(value)


def _renewed(value: Any, renewed: dict[int, Any]) -> Any:
    """A copy that stands where the count or iterator stands; one for all its names."""
    if type(value) is _NEXT:
        return _renewed(value.__self__, renewed).__next__
    if id(value) not in renewed:
        # Python 3.14 copies no counts.
        is_count = type(value) is itertools.count
        renewed[id(value)] = itertools.count(*ast.literal_eval(f"[{repr(value)[6:-1]}]")) if is_count else copy.copy(value)
    return renewed[id(value)]


def _shared_tables() -> list[Any]:
    """Mappings that all of torch's modules and optimizers look into."""
    found = []
    for module in ("torch.nn.modules.module", "torch.optim.optimizer"):
        found += [held for name, held in vars(sys.modules[module]).items() if name.startswith("_global_") and isinstance(held, dict)]
    return found


def _is_generator(value: Any) -> bool:
    """Whether it is a generator, except the global ones.

    Exactly these types, and numpy's own bit generators, are known to take seeds.
    """
    if id(value) in _GLOBAL_GENERATORS:
        return False
    if type(value) is np.random.Generator:
        return type(value.bit_generator).__module__.startswith("numpy.random.")
    return type(value) in (torch.Generator, np.random.RandomState, random.Random)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _seed(generator: Any, entropy: Callable[[int], bytes]) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(int.from_bytes(entropy(8), "little") >> 1)
    elif isinstance(generator, np.random.Generator):
        kind = type(generator.bit_generator)
        generator.bit_generator.state = kind(int.from_bytes(entropy(32), "little")).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(np.frombuffer(entropy(64), dtype="<u4"))
    else:
        generator.seed(entropy(64))
