"""A curator under fire and what must hold of its ledger, whatever happened."""

import torch

from dpbo import Budget, Curator, PrivateObjective
from dpbo.ledger.ledger import Ledger
from tests.setups import DOUBLE, charged, owner, stored

RECORDS = torch.linspace(0, 1, 2000, dtype=DOUBLE)


def make(url, **changed):
    return owner(RECORDS, ledger=url, **{"budget": Budget(3.0, 1e-5), "dataset": "fire", **changed})


def search(curator, evaluations, name="search", **changed):
    return PrivateObjective(
        curator,
        lambda x, r: 1 - (r - x[0]).abs(),
        score_range=(0.0, 1.0),
        evaluations=evaluations,
        name=name,
        **changed,
    )


class Drawn:
    """Every draw of every curator, in order, with what the ledger held when it was drawn where
    `url` can be read.
    """

    def __init__(self, monkeypatch):
        self.handles: list[str] = []
        draw = Curator._draw

        def noted(curator, handle, *arguments):
            self.handles.append(handle.id)
            return draw(curator, handle, *arguments)

        monkeypatch.setattr(Curator, "_draw", noted)

    def require_sound(self, url, *, lost=0):
        """The chain holds, drawn ⊆ charged, nothing is drawn or charged twice, and exactly `lost`
        charges have no value.
        """
        ledger = Ledger.open(url)
        ledger.verify()
        paid = charged(ledger)
        kept = stored(ledger)
        assert len(self.handles) == len(set(self.handles)), "drawn twice"
        assert len(paid) == len(set(paid)), "charged twice"
        assert set(self.handles) <= set(paid), "drawn without a charge"
        assert set(kept) <= set(self.handles)
        assert len(paid) - len(kept) == lost, f"{len(paid)} charged, {len(kept)} stored"
        return ledger.records()
