"""Bytes of the SQLite file flipped or cut off, anywhere: seen, with a typed error, or the very same
chain is read.

Bytes that no record uses (free space, change counters) may flip unseen; what then is read must be
the original chain, record by record.
"""

import contextlib
import io
import os
import pathlib
import random

import pytest

from dpbo.__main__ import main
from dpbo.curator.statements import compose_statement
from dpbo.errors import LedgerCorrupt, LedgerError, LedgerUnavailable
from dpbo.events import GaussianEvent
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH

SEED = int(os.environ.get("DPBO_FIRE_SEED", "20261121"))
EVENT = GaussianEvent(10.0)
pytestmark = attack("A16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A ledger's bytes and its chain: two plans, releases in and outside them, values, a note; 27
    records over several pages.
    """
    url = str(tmp_path_factory.mktemp("whole") / "l.db")
    ledger = Ledger(url, BIRTH)
    for name in ("search", "final"):
        ledger.reserve(name, EVENT, 20, {"score_range": [0.0, 1.0], "told": "x" * 300})
    for number in range(12):
        plan = (None, "search", "final")[number % 3]
        handle = f"{number:032}"
        details = {"units": 500, "slots": [{"handle": handle, "query": "q", "public": {}}]}
        entry = ledger.charge(plan or "release", EVENT, details, plan)
        ledger.store(
            entry,
            plan or "release",
            [{"handle": handle, "value": [number / 7], "details": {"x": [0.5] * 20}}],
        )
    return pathlib.Path(url).read_bytes(), ledger.records()


def outcome(file, chain, expect=None):
    """ "seen", or "harmless" after the original chain was read. Fails on any other error, and on
    any other chain.
    """
    seen = []
    for look in (
        lambda: Ledger.open(str(file)).verify(),
        lambda: compose_statement(Ledger.open(str(file))),
        lambda: Ledger.open(str(file)).records(),
        lambda: Ledger.open(str(file)).values("search"),
        lambda: Ledger.open(str(file)).charged("0" * 32),
    ):
        try:
            found = look()
        except LedgerError:
            seen.append(look)
        else:
            if isinstance(found, list) and found and not isinstance(found[0], dict):
                assert found == chain, "another chain was read, and nobody noticed"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(["ledger", "verify", str(file)])
    assert status in ((4, 5, 6, 7) if seen else (0, 9)), (
        "no ledger, a damaged one, an older one, or one that SQLite does not open"
    )
    writes(file, chain, harmless=not seen)
    return "seen" if seen else "harmless"


def writes(file, chain, *, harmless):
    """Whoever opens it to go on gets a typed error, or goes on from the last record: never from a
    new birth.
    """
    before = file.read_bytes()
    done = []
    for write in (
        lambda ledger: ledger.charge("release", EVENT, {}),
        lambda ledger: ledger.charge("search", EVENT, {}, "search"),
        lambda ledger: ledger.reserve("search", EVENT, 20, {}),
        lambda ledger: ledger.note("void", "why not"),
    ):
        with contextlib.suppress(LedgerError):
            ledger = Ledger(str(file), BIRTH)
            write(ledger)
            done.append(ledger.head().seq)
            assert ledger.head().seq >= chain[-1].seq, "it began anew"
    with contextlib.nullcontext() if harmless else pytest.raises(LedgerError):
        assert Ledger.open(str(file)).verify().seq == max([chain[-1].seq, *done])
        assert Ledger.open(str(file)).records()[: len(chain)] == chain
    file.write_bytes(before)


def flipped(whole, rng, file):
    """Flip one to eight bits of one byte, anywhere."""
    damaged = bytearray(whole)
    place = rng.randrange(len(whole))
    mask = rng.choice([1 << rng.randrange(8), rng.randrange(1, 256)])
    damaged[place] ^= mask
    for extra in ("-journal", "-wal", "-shm"):
        pathlib.Path(f"{file}{extra}").unlink(missing_ok=True)
    file.write_bytes(damaged)
    return place, mask


@pytest.mark.parametrize(
    ("chunk", "flips"),
    [(0, 30), *(pytest.param(n, 100, marks=pytest.mark.deep) for n in range(1, 5))],
)
def test_a_flipped_byte_is_seen_or_changes_nothing(whole, tmp_path, measured, chunk, flips):
    rng = random.Random(f"{SEED} flips {chunk}")
    outcomes = []
    for _ in range(flips):
        place, mask = flipped(whole[0], rng, tmp_path / "l.db")
        try:
            outcomes.append(outcome(tmp_path / "l.db", whole[1]))
        except BaseException:
            print(f"seed {SEED}: byte {place} of {len(whole[0])}, mask {mask}")
            raise
    assert "seen" in outcomes
    measured(flips, outcomes.count("seen"))


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.deep)])
def test_bytes_of_the_header_and_the_schema(whole, tmp_path, measured, step):
    """The first hundred bytes say how all others are read; the last ones of the first page say
    where the table is.
    """
    places = [*range(100), *range(whole[0][:4096].index(b"table"), 4096, 17)][::step]
    for place in places:
        damaged = bytearray(whole[0])
        damaged[place] ^= 1 << (place % 8)
        (tmp_path / "l.db").write_bytes(damaged)
        outcome(tmp_path / "l.db", whole[1])
    measured(len(places))


@pytest.mark.parametrize(("chunk", "cuts"), [(0, 12), pytest.param(1, 150, marks=pytest.mark.deep)])
def test_a_file_cut_off_anywhere_is_seen(whole, tmp_path, measured, chunk, cuts):
    rng = random.Random(f"{SEED} cuts {chunk}")
    size = len(whole[0])
    edges = [1, 100, 511, 512, 4096, size - 4096, size - 1]
    for length in [*edges, *(rng.randrange(1, size) for _ in range(cuts))]:
        (tmp_path / "l.db").write_bytes(whole[0][:length])
        assert outcome(tmp_path / "l.db", whole[1]) == "seen", (
            f"seed {SEED}: cut to {length} of {size} bytes"
        )
    measured(len(edges) + cuts)


def test_a_file_cut_to_nothing_is_as_one_that_was_deleted(whole, tmp_path):
    """SQLite itself leaves an empty file where a birth was cut short; only a head kept elsewhere
    tells the two apart.
    """
    file = tmp_path / "l.db"
    file.write_bytes(b"")
    with pytest.raises(LedgerUnavailable, match="there is no ledger"):
        Ledger.open(str(file))
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        Ledger(str(file), BIRTH).verify(expect=whole[1][-1].hash)
