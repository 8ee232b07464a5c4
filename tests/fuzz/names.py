"""Every public name of dpbo, read from the stubs and from the modules of values that are public by themselves."""

import importlib
import inspect
import pathlib
import re
import types

import dpbo

ROOT = pathlib.Path(dpbo.__file__).parent
VALUES = ("laws", "events", "privacy", "planning", "objective")


def public():
    """Qualified name -> object; one object that has two names is under the first."""
    found = {}
    for stub in sorted(ROOT.rglob("__init__.pyi")):
        module = ".".join(stub.parent.relative_to(ROOT.parent).parts)
        for name in re.findall(r" as (\w+)$", stub.read_text(), re.MULTILINE):
            found[f"{module}.{name}"] = getattr(importlib.import_module(module), name)
    for part in VALUES:
        values = importlib.import_module(f"dpbo.{part}")
        own = {name: thing for name, thing in vars(values).items() if getattr(thing, "__module__", "") == values.__name__}
        found |= {f"{values.__name__}.{name}": thing for name, thing in own.items() if not name.startswith("_") and callable(thing)}
    seen: dict[int, str] = {}
    return {
        name: thing for name, thing in found.items() if not isinstance(thing, types.ModuleType) and seen.setdefault(id(thing), name) == name
    }


def methods(thing):
    """Names of the public methods that a class brings itself, with `__call__`; not those by which another library calls it."""
    if not inspect.isclass(thing):
        return []
    foreign = {name for base in thing.__mro__[1:] if not base.__module__.startswith("dpbo") and base is not object for name in vars(base)}
    own = [base for base in thing.__mro__ if base.__module__.startswith("dpbo")]
    members = {name: member for base in reversed(own) for name, member in vars(base).items()}
    callables = (types.FunctionType, classmethod, staticmethod)
    public = {
        name for name, member in members.items() if isinstance(member, callables) and (name == "__call__" or not name.startswith("_"))
    }
    return sorted(name for name in public - foreign if _takes_something(getattr(thing, name)))


def _takes_something(method):
    return bool(set(inspect.signature(method).parameters) - {"self"})
