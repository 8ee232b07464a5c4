"""What a process remembers from one piece of work to the next, and how a later piece of work begins as the first one did.

`ProcessState(work)` notes, and puts back before each run and at the end:

- whole numbers and `itertools.count` objects that a module or a class of a library binds to a name. Counters are among them, such as
  torch's number of the next hook, threads' and processes' names; the others are constants.
- what the caller's own modules, classes, instances and closures bind to a name, as far as `work` reaches them, where it is immutable or
  an `itertools.count`. Names that appear are removed.
- settings of the process (`_SETTINGS`), among them the filters of warnings, and the hooks for all modules and optimizers of torch.

Each run has generators that are seeded from the operating system: the global ones of torch, numpy and Python, those that names above are
bound to, and that of temporary files' names. Equal seeds would make the noise of several runs one noise; one stream for all of them
would show in a run's numbers which place in it the run had. Context variables that a run sets are lost with it.

What may differ between runs, therefore: contents of lists, dicts and other objects of the caller, and of tensors and arrays; caches and
lazily loaded libraries; counters in C, such as those of autograd's graph and of asyncio's tasks; memory addresses, the clock, files,
devices and other processes. A private selection's statement lists it under the assumption `runs-hidden` or `runs-attested`.

A process for each run would put all of the caller's objects back as well. But a fork does not keep a GPU, OpenMP's threads hang in it, and
everything else that runs notice in the caller's objects would be lost without a word.
"""

import ast
import collections
import contextlib
import contextvars
import dataclasses
import functools
import itertools
import logging
import os
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
from dpbo.isolation import isolate_generators, mute_warnings

_IMMUTABLE = (int, bool, float, complex, str, bytes, tuple, frozenset, type(None), torch.dtype, torch.device)
_NEXT = type(itertools.count().__next__)
_ABSENT = object()
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_LONGEST = 1000  # of a container of the caller's that is searched for instances and generators
_BEYOND = 1 << 32  # more hooks than runs attach: later hooks on a released module must not take the numbers of its own


def _settable(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


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
    (os.getcwd, os.chdir),
    (_environment, _set_environment),
)


class ProcessState:
    """The state of the process at this moment, as the module's text says.

    Args:
        work: the function whose runs shall not differ by what earlier ones left.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._numbers = list[tuple[Any, Any, list[tuple[str, int | None]]]]()
        self._counts = list[tuple[Any, str, Any, str]]()
        self._own = list[tuple[Any, dict[str, Any]]]()
        self._generators = dict[int, Any]()
        self._known, self._holders = set[str](), dict[int, Any]()
        self._take_libraries()
        for holder in _holders_within(work, self._generators):
            before = dict(_names(holder))
            self._own.append((holder, before))
            self._take_counts(holder, before)
        self._settings = [(read, write, read()) for read, write in _SETTINGS]
        self._tables = [(table, table.copy()) for table in _shared_tables()]

    def _take_libraries(self) -> None:
        """The numbers and counts of libraries, also of those that were loaded since the last call."""
        for name, module in list(sys.modules.items()):
            if name not in self._known:
                self._known.add(name)
                for holder, names in _numbered(name, module):
                    if id(holder) not in self._holders:
                        self._holders[id(holder)] = holder
                        self._take(holder, names)

    def _take(self, holder: Any, names: Iterable[str]) -> None:
        held = _names(holder)
        known = {name: held[name] for name in names if name in held}
        self._numbers.append((holder, held, [(name, value) for name, value in known.items() if type(value) in (int, type(None))]))
        self._take_counts(holder, known)
        self._generators.update((id(value), value) for value in known.values() if _is_generator(value))

    def _take_counts(self, holder: Any, names: dict[str, Any]) -> None:
        self._counts += [(holder, name, value, repr(_count_of(value))) for name, value in names.items() if _count_of(value) is not None]

    @contextlib.contextmanager
    def first_run(self, entropy: Callable[[int], bytes]) -> Iterator[Callable[..., Any]]:
        """Puts the state back, and seeds all generators from `entropy` meanwhile. Gives what calls a function with its own context."""
        self.restore()
        kept = [(generator, _state_of(generator)) for generator in self._generators.values()]
        names, vars(tempfile)["_name_sequence"] = vars(tempfile)["_name_sequence"], None
        try:
            with isolate_generators(entropy), mute_warnings():  # which also forgets the warnings that each module has shown
                for generator, _ in kept:
                    _seed(generator, entropy)
                yield contextvars.copy_context().run
        finally:
            vars(tempfile)["_name_sequence"] = names
            for generator, state in kept:
                _set_state(generator, state)

    def restore(self) -> None:
        """Everything that was noted is as it was."""
        for holder, held, numbers in self._numbers:
            for name, number in numbers:
                if (now := held.get(name)) is not number and type(now) is int:
                    _put(holder, name, number)
        for holder, before in self._own:
            for name, now in list(_names(holder).items()):
                changed = now is not before.get(name, _ABSENT)
                if changed and (type(now) in _IMMUTABLE or _count_of(now) is not None):
                    _put(holder, name, before.get(name, _ABSENT))
        fresh = dict[int, Any]()
        for holder, name, value, text in self._counts:
            count = fresh.setdefault(id(_count_of(value)), _count_from(text))
            _put(holder, name, count.__next__ if type(value) is _NEXT else count)
        for read, write, before in self._settings:
            if read() != before:
                write(before)
        for table, before in self._tables:
            if table != before:
                table.clear()
                table.update(before)
        self._take_libraries()

    def leave(self) -> None:
        """`restore`, at the end. Hooks go on with numbers that no run has used, so that they replace none of a released module."""
        self.restore()
        RemovableHandle.next_id += _BEYOND


_scanned: dict[str, tuple[Any, int, list[tuple[Any, list[str]]]]] = {}


def _numbered(name: str, module: Any) -> list[tuple[Any, list[str]]]:
    """The module and its classes, each with its names of whole numbers, of None, of counts and of generators.

    A module is searched again only where it has more names than at the last time: to search all takes a quarter of a second. Types are
    compared by `type`, because `isinstance` would ask objects that a library loads or warns of when they are asked.
    """
    namespace = getattr(module, "__dict__", None)
    if not isinstance(namespace, dict) or _is_own(module):
        return []
    last = _scanned.get(name)
    if last is None or last[0] is not module or last[1] != len(namespace):
        holders = [namespace, *dict.fromkeys(held for held in list(namespace.values()) if issubclass(type(held), type))]
        kept = [(holder, [each for each, held in list(_names(holder).items()) if _counts_or_draws(held)]) for holder in holders]
        _scanned[name] = last = module, len(namespace), [(holder, names) for holder, names in kept if names]
    return last[2]


def _counts_or_draws(value: Any) -> bool:
    return type(value) in (int, type(None)) or _count_of(value) is not None or _is_generator(value)


class _Globals:
    """The namespace that a function of the caller's looks into."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names


def _holders_within(work: Any, generators: dict[int, Any]) -> Iterator[Any]:
    """What binds names, of the caller's code that `work` reaches: modules, classes, instances and closures. Collects generators."""
    waiting, seen = collections.deque([work]), dict[int, Any]()
    while waiting:
        thing = waiting.popleft()
        key = id(thing.names) if isinstance(thing, _Globals) else id(thing)
        if key in seen:
            continue
        seen[key] = thing  # keeps it, so that its id is not given to another
        if _is_generator(thing):
            generators[id(thing)] = thing
            continue
        if (holder := _holder_of(thing)) is not None:
            yield holder
        waiting.extend(_parts(thing))


def _holder_of(thing: Any) -> Any:
    """What binds the names of a thing of the caller's: a namespace, a class or a closure's cell; else None."""
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
    ours = type(thing).__module__.startswith("dpbo.") and dataclasses.is_dataclass(thing) and not isinstance(thing, type)
    return list(_attributes(thing).values()) if ours else []


def _is_own(module: Any) -> bool:
    """Whether a module is the caller's own."""
    file = getattr(module, "__file__", None)
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
        except ValueError:  # nothing yet
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


def _count_of(value: Any) -> Any:
    """The `itertools.count` that a value is, or takes numbers from; else None."""
    if type(value) is _NEXT:
        value = value.__self__
    return value if type(value) is itertools.count else None


def _count_from(text: str) -> Any:
    return itertools.count(*ast.literal_eval(f"[{text.removeprefix('count(').removesuffix(')')}]"))


def _shared_tables() -> list[Any]:
    """Mappings that all of torch's modules and optimizers look into."""
    found = []
    for module in ("torch.nn.modules.module", "torch.optim.optimizer"):
        found += [held for name, held in vars(sys.modules[module]).items() if name.startswith("_global_") and isinstance(held, dict)]
    return found


def _is_generator(value: Any) -> bool:
    """Whether it is a generator whose seeding is known: of exactly these types, and of numpy's own bit generators."""
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
