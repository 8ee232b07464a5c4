"""What a process remembers between runs, and how a later run begins as the first one did.

`ProcessState(work)` notes, and puts back before each run and at the end:

- whole numbers and `itertools.count` objects that a library's module, or a class that it names,
  binds to a name, and whole numbers that such a class has from its bases. Counters are among them,
  such as torch's number of the next hook, threads' and processes' names; the others are constants.
- what the caller's own modules, classes, instances, slots and closures bind to a name, as far as
  `work` reaches them (`reached`): the same objects as before. Names that appear are removed. So are
  attributes of namespaces, tensors and SciPy's distributions, and bytes of `array.array`.
- an `itertools.count`, an iterator of a list, tuple, text or range, and a `SeedSequence`, bound to
  such a name or kept in a list or dict: where it stood. Other iterators are refused.
- settings of the process (`_SETTINGS`), among them the filters of warnings, and the hooks for all
  modules and optimizers of torch.

Each run has generators that are seeded from the operating system: the global ones of torch, numpy
and Python, those that names above are bound to, and that of temporary files' names. Equal seeds
would make the noise of several runs one noise; one stream for all of them would show in a run's
numbers which place in it the run had. Context variables that a run sets are lost with it.

What may differ between runs, therefore: contents of lists, dicts and sets, where runs may leave
notes for the caller, of tensors and arrays, and of libraries' objects; caches, lazily loaded
libraries, and names that libraries bind to a number first within a run; counters in C, such as
those of autograd's graph and of asyncio's tasks; memory addresses, the clock, files, devices and
other processes. A private selection's statement names it in the assumption `runs-hidden`. What
other threads change meanwhile of the same names and settings is put back as well.

Why a run's output then has one law at every place: it is a function of its parameters, its seeds,
the system's entropy and the state that it finds. Parameters follow the law that the accounting pays
for, seeds and entropy are fresh, and the state that is noted is the same. So a run that reads
nothing else gives, for the same parameters, an output of the same law wherever it stands, and the
winner's object tells no more than its parameters and its score, which choose it. That a run reads
nothing else of what earlier runs left is the assumption.

A process for each run would put all of the caller's objects back as well. But a fork does not keep
a GPU, OpenMP's threads hang in it, and everything else that runs notice in the caller's objects
would be lost without a word.
"""

import argparse
import ast
import collections
import contextlib
import contextvars
import copy
import dataclasses
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
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from dpbo.curator.protected_records import protected_tables
from dpbo.dpsgd.reached import BYTES, ITERATORS, NEXT, PLAIN, is_opaque, is_own_class, parts
from dpbo.errors import InputError
from dpbo.fingerprint import attributes, is_own, is_own_module, slots
from dpbo.hidden_run import in_hidden_run
from dpbo.isolation import isolate_generators, mute_warnings

_ABSENT = object()
_CONTAINERS = (list, dict, collections.deque)
# Of these, attributes are put back as of the caller's own objects.
_ATTRIBUTES = (types.SimpleNamespace, argparse.Namespace, torch.Tensor)
# What the import system binds in a module. From a loader of pytest's all tests are reached.
_OF_IMPORTS = frozenset({"__loader__", "__spec__", "__builtins__"})
# The longest container of the caller's that is searched for instances and generators.
_LONGEST = 1000
# `isolate_generators` seeds these.
_GLOBAL_GENERATORS = {
    id(torch.default_generator),
    id(vars(random)["_inst"]),
    id(vars(np.random.mtrand)["_rand"]),
}
# More hooks than runs attach: later hooks on a released module must not take the numbers of its
# own.
_BEYOND = 1 << 32
_ANEW = (
    "Make it within the function that hidden runs call: what one run takes from it, the next would"
    " not find."
)


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
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
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
    (
        lambda: warnings.filters[:],
        lambda filters: warnings.filters.__setitem__(slice(None), filters),  # type: ignore[index]
    ),
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

    Raises:
        InputError: `work` reaches an iterator that cannot be put back.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._numbers = list[tuple[_Numbers, tuple[Any, ...]]]()
        self._inherited = list[tuple[type, frozenset[str]]]()
        self._moving = list[tuple[Any, str, Any]]()
        self._own = list[tuple[Any, dict[str, Any]]]()
        self._generators = dict[int, Any]()
        self._known = set[str]()
        self._take_libraries()
        for holder, whole in _holders_within(work, self._generators):
            before = dict(_names(holder))
            self._note_moving(holder, before)
            if whole:
                self._own.append((holder, before))
        self._settings = [(read, write, read()) for read, write in _SETTINGS]
        self._tables = [(table, table.copy()) for table in _shared_tables()]
        self._protected = protected_tables.now()

    def _take_libraries(self) -> None:
        """The numbers, counts and generators of the libraries loaded since the last call."""
        loaded = dict(sys.modules)
        for name in loaded.keys() - self._known:
            self._known.add(name)
            numbers, others, inherited = _found_in(name, loaded[name])
            self._numbers += [(each, each.now()) for each in numbers]
            for kind, unbound in inherited:
                # What is bound now, since the search, is a number of the class itself.
                if bound := vars(kind).keys() & unbound:
                    own = _Numbers(kind, [*bound])
                    self._numbers.append((own, own.now()))
                self._inherited.append((kind, unbound - bound))
            for holder, names in others:
                held = {each: _names(holder).get(each) for each in names}
                self._note_moving(holder, held)
                for generator in filter(None, map(_seedable, held.values())):
                    self._generators[id(generator)] = generator

    def _note_moving(self, holder: Any, held: dict[Any, Any]) -> None:
        """Note the counts, iterators and seeds among what a holder binds."""
        self._moving += [(holder, name, value) for name, value in held.items() if _moves(value)]

    @contextlib.contextmanager
    def first_run(self, entropy: Callable[[int], bytes]) -> Iterator[Callable[..., Any]]:
        """Puts the state back, and seeds all generators from `entropy` meanwhile.

        Gives what calls a function with its own context.
        """
        self.restore()
        kept = [(generator, _state_of(generator)) for generator in self._generators.values()]
        names = vars(tempfile)["_name_sequence"]
        vars(tempfile)["_name_sequence"] = None
        try:
            # Muting also forgets which warnings each module has shown.
            with isolate_generators(entropy), mute_warnings():
                for generator, _ in kept:
                    _seed(generator, entropy)
                context = contextvars.copy_context()
                context.run(in_hidden_run.set, collections.Counter())
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
        for kind, unbound in self._inherited:
            # A count that a class takes over from its base begins at the base's number again.
            for name in vars(kind).keys() & unbound:
                if type(vars(kind)[name]) is int:
                    _put(kind, name, _ABSENT)
        for holder, held in self._own:
            names = dict(_names(holder))
            for name in {**held, **names}:
                was = held.get(name, _ABSENT)
                now = names.get(name, _ABSENT)
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
        protected_tables.put_back(self._protected)
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
        self._holder = holder
        self._held = _names(holder)
        # The first name twice: of one name alone the getter would give no tuple.
        self._names = [names[0], *names]
        self._read = operator.itemgetter(*self._names)

    def now(self) -> tuple[Any, ...]:
        """What the names are bound to, the first one twice; None where nothing is."""
        return tuple(map(self._held.get, self._names))

    def moved(self, before: tuple[Any, ...]) -> bool:
        """Whether something else is bound now."""
        try:
            return bool(self._read(self._held) != before)
        # A name is unbound, or bound to what cannot be compared.
        except Exception:
            return True

    def put_back(self, before: tuple[Any, ...]) -> None:
        """Binds them to these numbers again, except what is no whole number any more."""
        for name, number in zip(self._names, before, strict=True):
            now = self._held.get(name)
            if type(now) is type(number) is int and now != number:
                _put(self._holder, name, number)


_Found = tuple[list[_Numbers], list[tuple[Any, list[str]]], list[tuple[type, frozenset[str]]]]
_scanned: dict[str, tuple[Any, dict[str, type], list[int], _Found]] = {}
_first_met: dict[int, tuple[Any, str]] = {}


def _found_in(name: str, module: Any) -> _Found:
    """What a library's module and its classes bind to whole numbers, counts and generators, and
    which numbers its classes inherit.

    A module is searched again only where it has other classes than at the last time, as after
    `importlib.reload`, or where it or one of them has more names: to search all takes a quarter of
    a second. A class is searched where it was met first. Types are compared by `type`: objects that
    a library loads when asked would answer `isinstance`.
    """
    namespace = attributes(module)
    last = _scanned.get(name)
    if (
        last is None
        or last[0] is not module
        or [*map(namespace.get, last[1])] != [*last[1].values()]
        or last[2] != _counted_names(namespace, last[1])
    ):
        numbers = list[_Numbers]()
        others = list[tuple[Any, list[str]]]()
        inherited = list[tuple[type, frozenset[str]]]()
        if not namespace or is_own_module(module):
            return numbers, others, inherited
        classes = {
            each: held
            for each, held in list(namespace.items())
            if issubclass(type(held), type)
            and _first_met.setdefault(id(held), (held, name))[1] == name
        }
        for holder in (namespace, *classes.values()):
            ints = []
            names = []
            for each, value in list(_names(holder).items()):
                if type(value) is int:
                    ints.append(each)
                elif _is_count(value) or _seedable(value) is not None:
                    names.append(each)
            if ints:
                numbers.append(_Numbers(holder, ints))
            if names:
                others.append((holder, names))
        for kind in classes.values():
            if unbound := _inherited_numbers(kind):
                inherited.append((kind, unbound))
        counted = _counted_names(namespace, classes)
        _scanned[name] = last = module, classes, counted, (numbers, others, inherited)
    return last[3]


def _counted_names(namespace: dict[str, Any], classes: dict[str, type]) -> list[int]:
    """How many names a module and each of its classes have, beside what these inherit."""
    return [len(namespace), *map(len, map(vars, classes.values()))]


def _inherited_numbers(kind: type) -> frozenset[str]:
    """The names of whole numbers that a class finds in its bases alone."""
    # Without the class itself, and `object`.
    bases = type.__getattribute__(kind, "__mro__")[1:-1]
    held = itertools.chain.from_iterable(list(vars(base).items()) for base in bases)
    return frozenset(name for name, value in held if type(value) is int) - vars(kind).keys()


def _holders_within(work: Any, generators: dict[int, Any]) -> Iterator[tuple[Any, bool]]:
    """What binds names in the caller's code that `work` reaches, and whether all its names count.

    Collects generators. What a library's object holds is searched for generators alone.

    Raises:
        InputError: there is an iterator that cannot be put back.
    """
    waiting = collections.deque([("", True, work)])
    seen = dict[int, Any]()
    bound = set[int]()
    while waiting:
        name, own, thing = waiting.popleft()
        if type(thing) in PLAIN or id(thing) in seen:
            continue
        # The reference keeps its id from being given to another object.
        seen[id(thing)] = thing
        generator = _seedable(thing)
        if generator is not None:
            generators[id(generator)] = generator
            continue
        if own and (is_opaque(thing) or (_moves(thing) and id(thing) not in bound)):
            raise InputError(name or "iterator", thing, "made anew in each run", _ANEW)
        mine = _is_own(thing)
        holders = _holders_of(thing, mine) if mine or own else []
        own = mine or bool(holders) or (own and not attributes(thing))
        for holder, whole in holders:
            if holder is not thing and id(holder) in seen:
                continue
            seen[id(holder)] = holder
            for each, value in _names(holder).items():
                if _moves(value):
                    bound.add(id(value))
                if each not in _OF_IMPORTS:
                    waiting.append((str(each) if whole else name, True, value))
            yield holder, whole
        kind = type(thing)
        if kind.__module__.startswith("dpbo.") and not dataclasses.is_dataclass(kind):
            continue
        inside = parts(thing)
        inside.append(kind if mine else None)
        if len(inside) <= _LONGEST:
            waiting.extend((name, own, part) for part in inside if id(part) not in seen)


def _holders_of(thing: Any, mine: bool) -> list[tuple[Any, bool]]:
    """What binds names in a thing, and whether all of them are put back, or only counts and
    iterators.
    """
    kind = type(thing)
    if kind in _CONTAINERS:
        if len(thing) <= _LONGEST:
            return [(thing, False)]
        return []
    if kind is types.CellType or kind in BYTES:
        return [(thing, True)]
    if not (mine or issubclass(kind, _ATTRIBUTES) or kind.__module__.startswith("scipy.stats.")):
        return []
    if issubclass(kind, type):
        return [(thing, True)]
    spaces: list[Any] = [attributes(thing)]
    if kind is types.FunctionType:
        spaces.append(thing.__globals__)
    elif slots(thing):
        spaces.append(_Slots(thing))
    return [(space, True) for space in spaces]


def _is_own(thing: Any) -> bool:
    """Whether it is the caller's own code, or an object of the caller's own class."""
    kind = type(thing)
    if kind is types.FunctionType:
        return is_own(thing)
    if issubclass(kind, types.ModuleType):
        return is_own_module(thing)
    return is_own_class(thing if issubclass(kind, type) else kind)


class _Slots:
    """The slots of an object."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing


def _names(holder: Any) -> Any:
    """A mapping of what a holder binds."""
    if isinstance(holder, types.CellType):
        return dict(enumerate(parts(holder)))
    if isinstance(holder, _Slots):
        return slots(holder.thing)
    if type(holder) in BYTES:
        return {0: bytes(holder)}
    if isinstance(holder, (list, collections.deque)):
        return dict(enumerate(holder))
    if isinstance(holder, dict):
        return holder
    return vars(holder)


def _put(holder: Any, name: Any, value: Any) -> None:
    """Binds a name, or unbinds it where the value is _ABSENT."""
    if isinstance(holder, types.CellType):
        if value is _ABSENT:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif isinstance(holder, _Slots):
        if value is _ABSENT:
            name.__delete__(holder.thing)
        else:
            name.__set__(holder.thing, value)
    elif type(holder) in BYTES:
        holder[:] = value if isinstance(holder, bytearray) else type(holder)(holder.typecode, value)
    elif isinstance(holder, type):
        if value is _ABSENT:
            type.__delattr__(holder, name)
        else:
            type.__setattr__(holder, name, value)
    elif value is _ABSENT:
        del holder[name]
    # A run may have shortened a list.
    elif isinstance(holder, dict) or name < len(holder):
        holder[name] = value


def _is_count(value: Any) -> bool:
    """Whether it is an `itertools.count` of numbers, or what takes the next number from one."""
    count = value.__self__ if type(value) is NEXT else value
    return (
        type(count) is itertools.count
        and repr(count).replace(".", "").replace("-", "")[6:-1].replace(", ", "").isdigit()
    )


def _moves(value: Any) -> bool:
    """Whether a value is a count, an iterator or a seed, which whoever takes from it moves."""
    return type(value) in (*ITERATORS, np.random.SeedSequence) or _is_count(value)


def _renewed(value: Any, renewed: dict[int, Any]) -> Any:
    """A copy that stands where the count or iterator stands; one for all its names."""
    if type(value) is NEXT:
        return _renewed(value.__self__, renewed).__next__
    if id(value) not in renewed:
        renewed[id(value)] = _copied(value)
    return renewed[id(value)]


def _copied(value: Any) -> Any:
    # Python 3.14 copies no counts.
    if type(value) is itertools.count:
        return itertools.count(*ast.literal_eval(f"[{repr(value)[6:-1]}]"))
    if isinstance(value, np.random.SeedSequence):
        return np.random.SeedSequence(**value.state)
    return copy.copy(value)


def _shared_tables() -> list[Any]:
    """Mappings that all of torch's modules and optimizers look into."""
    found = []
    for module in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for name, held in vars(sys.modules[module]).items():
            if name.startswith("_global_") and isinstance(held, dict):
                found.append(held)
    return found


def _seedable(value: Any) -> Any:
    """The generator that takes the seeds of a generator, except of the global ones; None of
    anything else.
    """
    if issubclass(type(value), np.random.Generator):
        value = value.bit_generator
    kind: Any = type(value)
    if issubclass(kind, np.random.BitGenerator):
        takes_seeds = kind.__module__.startswith("numpy.random.")
    else:
        takes_seeds = (
            issubclass(kind, (torch.Generator, np.random.RandomState, random.Random))
            and id(value) not in _GLOBAL_GENERATORS
        )
    if takes_seeds:
        return value
    return None


def _state_of(generator: Any) -> Any:
    """Of numpy's generators with the seeds that they give to others."""
    if isinstance(generator, np.random.BitGenerator):
        return generator.state, generator.seed_seq
    if isinstance(generator, random.Random):
        return random.Random.getstate(generator)
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.BitGenerator):
        generator.__setstate__(state)  # type: ignore[attr-defined]
    elif isinstance(generator, random.Random):
        random.Random.setstate(generator, state)
    else:
        generator.set_state(state)


def _seed(generator: Any, entropy: Callable[[int], bytes]) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(int.from_bytes(entropy(8), "little") >> 1)
    elif isinstance(generator, np.random.BitGenerator):
        fresh = type(generator)(int.from_bytes(entropy(32), "little"))
        _set_state(generator, _state_of(fresh))
    elif isinstance(generator, np.random.RandomState):
        generator.seed(np.frombuffer(entropy(64), dtype="<u4"))
    else:
        random.Random.seed(generator, entropy(64))
