"""A noised answer that stays inside: for work whose one ledger entry has paid for many such answers, of which at most one is released.

No row, no note, no error leaves: whether an answer failed is as private as the answer.
"""

from __future__ import annotations

import numpy as np
import torch

from dpbo.curator.curator import Curator
from dpbo.errors import InputError
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.queries.query import Failure, Query


def noised_inside(curator: Curator, query: Query, mechanism: Mechanism) -> torch.Tensor | None:
    """The answer with the noise that `mechanism` would release it with, `m`; None where it fails. Never for the eyes of a caller."""
    if curator.ranks > 1:
        raise InputError("curator", "on several ranks", "of one process", "Each rank would noise its own shard, for one charge.")
    outcome = curator._job(query)()
    if isinstance(outcome, Failure):
        if outcome.kind == "interrupted":
            raise KeyboardInterrupt
        return None
    law = mechanism.law(query.scale(curator.adjacency), outcome.quanta)
    with np.errstate(all="ignore"):  # as for a release
        drawn = mechanism._sample(outcome.numerators, outcome.quanta, law, curator._entropy)
        return torch.from_numpy(mechanism.publish(drawn, law, query.affine(curator.units))[0])
