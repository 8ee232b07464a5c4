"""Candidates that need not have the same parameters: of several dicts, or of objects that can only
be drawn from, as RandomizedSearchCV takes them.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.fingerprint import fingerprint
from dpbo.space import Space


class Listing(Space):
    """Configurations that were drawn before the search: a space of one coordinate, the place in
    their list. It has no distances, so a search on noised scores cannot use it.
    """

    def __init__(self, configurations: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(configuration=list(range(len(configurations))))
        self.configurations = [dict(each) for each in configurations]
        self.parameters = tuple(dict.fromkeys(itertools.chain.from_iterable(configurations)))

    def decode(self, x: torch.Tensor) -> dict[str, Any]:
        """The parameters of the configuration at a point of shape `1`."""
        return dict(self.configurations[super().decode(x)["configuration"]])

    def to_json(self) -> str:
        """Their number and a digest, as JSON."""
        digest = fingerprint(self.configurations, detail="code").hex()
        return json.dumps({"listed": len(self.configurations), "digest": digest})


def space_of(given: Any, most: int, seed: int) -> Space:
    """The space of a dict of distributions and lists; of other things, a `Listing` of `most`
    configurations that are drawn from them.

    Raises:
        InputError: neither a dict nor a list of dicts of distributions and lists.
    """
    if isinstance(given, (Mapping, list, tuple)) and not any(given):
        allowed = "of at least one named distribution or list"
        raise InputError("param_distributions", given, allowed)
    if isinstance(given, Mapping) and not any(map(_only_drawn, given.values())):
        return Space(**given)
    dicts = [given] if isinstance(given, Mapping) else given
    if not isinstance(dicts, Sequence) or not all(isinstance(one, Mapping) for one in dicts):
        allowed = "a dict of distributions and lists, or a list of such dicts"
        raise InputError("param_distributions", given, allowed)
    # This loads all of scikit-learn's metrics.
    from sklearn.model_selection import ParameterSampler

    try:
        drawn = [*ParameterSampler(dicts, most, random_state=seed)]
    except (TypeError, ValueError) as cause:
        allowed = "dicts of lists, and of objects with rvs(random_state=)"
        raise InputError("param_distributions", given, allowed) from cause
    return Listing(drawn)


def _only_drawn(spec: Any) -> bool:
    """Whether values can be drawn from it, but it has no quantiles."""
    return hasattr(spec, "rvs") and not hasattr(spec, "ppf")
