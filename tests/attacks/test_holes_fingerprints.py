"""The file of fingerprints that lost plans, and a ledger that was put back: each attack won
once.
"""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from dpbo import Curator, PrivateObjective
from dpbo.__main__ import main
from dpbo.errors import LedgerRolledBack, LedgerUnavailable, ReservationChanged
from dpbo.gibo import DPGIBO, choose_start
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism
from dpbo.papers.em import DPKMeans
from dpbo.papers.po_gp_ucb import Outcomes, release_rows
from dpbo.queries import ClippedMean
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, FIRST_MEAN, NOISE, owner
from tests.setups import of, point
from tests.unit.papers.test_po_gp_ucb_curator_side import rows_of, terms
from tests.unit.papers.test_po_gp_ucb_curator_side import table as row_table

pytestmark = attack("A16")
RECORDS = torch.rand(50, 2, dtype=DOUBLE)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "l.db"


@pytest.fixture
def kept(tmp_path):
    """The private file of fingerprints beside the ledger's."""
    return tmp_path / "l.db.fingerprints"


def curator(file):
    return owner(RECORDS, dataset="d", ledger=str(file))


@attack("A30")
def test_plans_that_several_writers_begin_at_once_are_all_kept(file, kept, tmp_path):
    """Six processes lost 4 of 36 plans, which were then resumed unchecked.

    Each thread has its own ledger, as a process has.
    """
    writers = 6
    owners = [curator(file) for _ in range(writers)]
    together = Barrier(writers)

    def begin(number):
        together.wait()
        for plan in range(6):
            owners[number].bind(f"{number} {plan}", {}, begun=False)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(begin, range(writers)))
    assert len(json.loads(kept.read_text().partition("\n")[2])["reservations"]) == 36
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "l.db",
        "l.db.fingerprints",
    ], "no drafts are left"


def test_an_older_copy_of_the_ledger_is_refused_until_it_is_taken_on_purpose(file, kept, capsys):
    """It was continued without a word, and what it had released was paid for once more."""
    held = curator(file)
    held.release(FIRST_MEAN, NOISE)
    old = file.read_bytes()
    held.release(FIRST_MEAN, NOISE)
    newest = held.ledger.head()
    whole = file.read_bytes()
    del held
    file.write_bytes(old)
    for call in (lambda: curator(file), lambda: Ledger.open(str(file))):
        with pytest.raises(
            LedgerRolledBack, match=f"lacks record {newest.seq}, .*delete l.db.fingerprints"
        ):
            call()
    assert main(["ledger", "verify", str(file)]) == 6
    assert "LedgerRolledBack: the ledger lacks" in capsys.readouterr().err
    # A new ledger in its place is an older one, too.
    file.unlink()
    with pytest.raises(LedgerRolledBack):
        curator(file)
    assert file.read_bytes() != whole
    file.write_bytes(whole)
    assert curator(file).ledger.head() == newest
    file.write_bytes(old)
    kept.unlink()
    curator(file).release(FIRST_MEAN, NOISE)
    assert Ledger.open(str(file)).head().seq == newest.seq


def test_a_file_that_cannot_be_read_is_not_passed_over(file, kept):
    curator(file)
    kept.write_text(kept.read_text()[:30])
    with pytest.raises(
        LedgerUnavailable, match=r"'l.db.fingerprints', .* cannot be read or written"
    ):
        curator(file)


@attack("A30", "A35")
def test_a_table_in_another_order_does_not_answer_a_record_again(file):
    """Sorted anew in six sessions, a table answered one record six times: answers are counted by
    place.
    """
    places = torch.arange(40)

    def outcome(record):
        return record["y"]

    def opened(order):
        records = {"rows": rows_of(40)[order], "y": rows_of(40)[:, 0].sigmoid()[order]}
        return Curator(records, **terms(), dataset="d", ledger=str(file))

    def asked_of(curator, answer=outcome):
        return Outcomes(curator, answer, value_range=(0.0, 1.0), budget=0.4)

    def rows_by(curator):
        return release_rows(curator, row_table(), L2LaplaceMechanism.of(2.0)).Z.tolist()

    held = opened(places)
    first = asked_of(held).value(7, request="a")
    rows = rows_by(held)
    for order in (places.flip(0), places.roll(1)):
        with pytest.raises(
            ReservationChanged,
            match=r"'outcomes' began with another order of the records, .*counted by their places",
        ):
            asked_of(opened(order))
        with pytest.raises(ReservationChanged, match="another order of the records"):
            rows_by(opened(order))
    with pytest.raises(ReservationChanged, match="began with other candidate records"):
        asked_of(opened(places * 0))
    with pytest.raises(ReservationChanged, match="began with another outcome"):
        asked_of(held, lambda record: 1 - record["y"])
    again = opened(places)
    assert asked_of(again).value(7, request="a") == first
    assert rows_by(again) == rows


class Held:
    """A score that is an object, with a number of its own."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, _, records):
        return records[:, 0] > self.limit

    method = __call__


def over_an_object(limit):
    held = Held(limit)
    return lambda x, records: held(x, records)


def over_a_network(limit):
    net = torch.nn.Linear(2, 1).double()
    torch.nn.init.constant_(net.weight, limit)
    return lambda _, records: net(records)[:, 0].detach()


MADE = {
    "an object": Held,
    "a method": lambda limit: Held(limit).method,
    "over an object": over_an_object,
    "over a network": over_a_network,
}


@attack("A30")
@pytest.mark.parametrize("kind", MADE)
def test_a_score_that_holds_another_number_is_another_score(kind, file):
    """Values of both stood in one history."""

    def objective(limit):
        score = MADE[kind](limit)
        return PrivateObjective(curator(file), score, score_range=(0.0, 1.0), evaluations=3)

    torch.manual_seed(0)
    objective(0.2)(point(0.0))
    torch.manual_seed(0)
    assert objective(0.2).remaining == 2
    with pytest.raises(ReservationChanged):
        objective(0.9)


@attack("A30")
def test_another_loss_or_other_vectors_are_another_question(file):
    """An earlier choice was given for another loss, and k-means went on with other vectors."""
    start = torch.linspace(0.0, 1.0, 4, dtype=DOUBLE).unsqueeze(1)

    def choose(loss):
        choose_start(curator(file), loss, start, loss_range=(0.0, 1.0), budget=0.2)

    def cluster(vectors):
        means = DPKMeans(2, radius=2.0, dimension=2, vectors=vectors, budget=0.2)
        means.fit(curator(file))

    def descend(loss):
        box = torch.tensor([[0.0], [1.0]], dtype=DOUBLE)
        terms = of(budget=0.2, iterations=2, batch_size=3, clip=1.0)
        DPGIBO(curator(file), loss, bounds=box, **terms).run()

    for ask in (choose, descend):
        ask(lambda x, records: (records[:, 0] - x[0]) ** 2)
        with pytest.raises(ReservationChanged, match="another loss"):
            ask(lambda x, records: (records[:, 1] - x[0]) ** 2)
    cluster(lambda records: records)
    with pytest.raises(ReservationChanged, match="another vectors"):
        cluster(lambda records: -records)


def test_slots_that_were_released_together_are_read_one_by_one(file):
    """Each later slot gave the first one's value."""
    owned = curator(file)
    question = ClippedMean(lambda s, rows: s * rows[:, 0], 1.0, score_range=(0.0, 1.0))

    def reserved(owner):
        return owner.reserve("run", GaussianMechanism, slots=4, budget=0.5, query=question)

    handles = [owned.evaluate(question.about(s), s=s) for s in (1.0, 2.0, 3.0)]
    reserved(owned).release_all(handles)
    again = reserved(curator(file))
    told = [again.release(question.about(s), s=s)["details"]["s"] for s in (1.0, 2.0, 3.0, 4.0)]
    assert told == [1.0, 2.0, 3.0, 4.0]
