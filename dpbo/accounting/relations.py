"""From one neighbouring relation to another.

Replacing one unit is removing it and adding another: two steps of add-or-remove-one. So what an event guarantees under add-or-remove-one
it guarantees twice over under replace-one: a vector moves twice as far, which is half the noise multiplier (Gaussian: mu becomes 2 mu; pure
epsilon becomes 2 epsilon). A Poisson-sampled Gaussian is not halved but named anew: its event holds the norm bound of one unit's
contribution, which is the same, and its own pair under replace-one is far better than doubling (poisson.py). Of a private selection, each
run is converted. The way back does not exist: replace-one says nothing about the number of units.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.events import Event, PoissonGaussianEvent, RolesEvent, SelectionEvent
from dpbo.privacy import Adjacency

E = TypeVar("E", bound=Event)


@checked
def convert(event: E, given: Adjacency, wanted: Adjacency) -> E:
    """The event of a release made for the relation `given`, as it counts under `wanted`. Raises InputError where nothing follows."""
    if given is wanted or event.free:
        return event
    if (given, wanted) != (Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE):
        raise InputError("wanted", wanted, "REPLACE_ONE, from ADD_OR_REMOVE_ONE", "No other conversion holds.")
    if isinstance(event, PoissonGaussianEvent):
        return dataclasses.replace(event, relation=wanted.value)
    if isinstance(event, RolesEvent):
        return dataclasses.replace(event, costs=tuple((role, tuple(convert(e, given, wanted) for e in es)) for role, es in event.costs))
    if isinstance(event, SelectionEvent):
        return dataclasses.replace(event, base=tuple(convert(one, given, wanted) for one in event.base))
    return dataclasses.replace(event, noise_multiplier=event.noise_multiplier / 2)
