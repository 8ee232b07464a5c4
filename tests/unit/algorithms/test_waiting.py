"""A value that was charged and drawn while the ledger could not store it is no loss: whoever asks
again gets it, drawn once, paid once.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dpbo import Curator
from dpbo.algorithms import AsynchronousBO
from dpbo.errors import LedgerUnavailable, ReleaseLost
from dpbo.mechanisms import L2LaplaceMechanism, PermuteAndFlipMechanism
from dpbo.papers.po_gp_ucb import release_rows
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.unit.algorithms import test_asynchronous as asynchronous
from tests.unit.algorithms import test_search_then_choose as then_choose
from tests.unit.dpsgd import test_private_selection as selection
from tests.unit.gibo import test_gibo as gibo
from tests.unit.papers import test_em_mixture as em
from tests.unit.papers import test_po_gp_ucb_curator_side as po_gp_ucb


def asynchronously(curator):
    tried = AsynchronousBO(
        asynchronous.planned(curator=curator),
        asynchronous.SPACE,
        initial=4,
        workers=3,
        propose=asynchronous.quick,
    )

    def run():
        with ThreadPoolExecutor(3) as executor:
            return tried.run(executor).Y.tolist()

    return run


def begun(curator):
    search = gibo.gibo(curator, iterations=4)
    return lambda: search.run().iterates.tolist()


def answered(curator):
    asked = po_gp_ucb.answers(curator)
    return lambda: [asked.value(row, request=f"{row}").value for row in range(3)]


def chosen(curator):
    best = selection.select(curator)
    return best.parameters, best.score


# algorithm -> (its curator of an entropy, what begins it: a function that runs it, or goes on with
# it, to its public result)
CASES: dict[str, tuple[Any, Any]] = {
    "DP-GIBO": (gibo.make, lambda c: lambda: gibo.gibo(c, iterations=4).run().iterates.tolist()),
    "DP-GIBO, the same object": (gibo.make, begun),
    "asynchronous": (asynchronous.make, asynchronously),
    "search then choose": (
        lambda **terms: Curator(then_choose.RECORDS, **then_choose.TERMS, **terms),
        lambda c: lambda: (then_choose.searched(c).Y.tolist(), then_choose.searched(c).index),
    ),
    "mixture": (
        lambda **terms: em.make(em.blobs(1000), **terms),
        lambda c: lambda: em.mixture(budget=0.5, dimension=2, max_iter=3).fit(c).means_.tolist(),
    ),
    "private selection": (selection.made, lambda c: lambda: chosen(c)),
    "rows": (
        po_gp_ucb.curator,
        lambda c: lambda: release_rows(c, po_gp_ucb.table(), L2LaplaceMechanism.of(1.0)).Z.tolist(),
    ),
    "outcomes": (po_gp_ucb.curator, answered),
}


@attack("A16")
@pytest.mark.parametrize("name", CASES)
def test_what_waits_for_the_ledger_is_delivered_as_it_was_drawn(name, monkeypatch):
    make, begin = CASES[name]
    undisturbed = make(entropy=SeededEntropy(7))
    wanted, count = (
        begin(undisturbed)(),
        [record.kind for record in undisturbed.ledger.records()].count("value"),
    )
    # its objective asks at a point of its own anew
    for at in {count} if name == "search then choose" else {1, count}:
        curator, stored = make(entropy=SeededEntropy(7)), list[Any]()
        run, store = begin(curator), curator.ledger.store

        def away(*values, store=store, stored=stored, at=at):
            if len(stored) == at - 1:
                raise LedgerUnavailable("the ledger is away")
            stored.append(values)
            return store(*values)

        monkeypatch.setattr(curator.ledger, "store", away)
        for _ in range(2):
            with pytest.raises(LedgerUnavailable):
                run()
        monkeypatch.setattr(curator.ledger, "store", store)
        assert run() == run() == wanted, f"{at} of {count}"
        kinds = [record.kind for record in curator.ledger.records()]
        assert kinds.count("charge") == kinds.count("value") == count, at


@attack("A16")
@pytest.mark.parametrize(
    ("name", "mechanism"),
    [("search then choose", PermuteAndFlipMechanism), ("rows", L2LaplaceMechanism)],
)
def test_what_was_charged_and_lost_is_not_drawn_again(name, mechanism, monkeypatch):
    def dies(*_):
        raise RuntimeError("the process died")

    make, begin = CASES[name]
    run = begin(make())
    with monkeypatch.context() as patched:
        patched.setattr(mechanism, "_sample", dies)
        with pytest.raises(RuntimeError):
            run()
    with pytest.raises(ReleaseLost, match="another name"):
        run()
