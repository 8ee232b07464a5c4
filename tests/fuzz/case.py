"""One good call of something public."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """`build()` gives what is called, `good()` its arguments by name; both anew for each call, as a call may change them.

    `dear`: seconds a good call takes, roughly; decides how many examples there are. `foreign`: arguments that another library judges, by
    its own errors. `raises`: errors beside dpbo's own that are part of the contract.
    """

    build: Callable[[], Callable[..., Any]]
    good: Callable[[], dict[str, Any]]
    dear: float = 0.0
    foreign: tuple[str, ...] = ()
    raises: tuple[type[BaseException], ...] = ()


def of(thing, dear=0.0, foreign=(), raises=(), **good):
    """A case of a function or class with arguments that nothing changes."""
    return Case(lambda: thing, lambda: dict(good), dear, tuple(foreign), tuple(raises))
