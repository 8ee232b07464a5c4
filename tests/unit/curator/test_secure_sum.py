"""Masks: they cancel exactly, no part of a sum is seen, no stream is used twice, and what colluding
ranks read is what the module says.
"""

import threading
from typing import Any

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpbo.curator.secure_sum import Masks, fingerprint_of
from dpbo.errors import InputError
from tests.attacks.marks import attack

LEVEL = 1e-6
MOST = 2**63 - 1


def at_once(work, ranks):
    """`work(rank)` of every rank, in threads; what each returned or raised."""
    found: list[Any] = [None] * ranks

    def run(rank):
        try:
            found[rank] = work(rank)
        except InputError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def masks(ranks, *, relay=lambda rows, rank: rows, keys=None, fingerprints=None, tolerate=1):
    """The masks of all ranks after one exchange, through a relay that may change the messages."""
    keys = keys or [None] * ranks
    rows: list[bytes] = [b""] * ranks
    sent = threading.Barrier(ranks)

    def meet(rank):
        def exchange(row):
            rows[rank] = row
            sent.wait()
            return relay(list(rows), rank)

        return Masks(rank, tolerate, keys[rank], fingerprints, exchange)

    return at_once(meet, ranks)


def words(parties, numbers, about=b"a"):
    return [
        np.frombuffer(party.masked(np.asarray(each), about), dtype="<u8")
        for party, each in zip(parties, numbers, strict=True)
    ]


def total(rows):
    return Masks.total([row.tobytes() for row in rows]).tolist()


def stored(folder, count):
    """Keys in files, and their fingerprints."""
    files = []
    prints = []
    for number in range(count):
        key = x25519.X25519PrivateKey.generate()
        files.append(folder / f"{number}.pem")
        files[-1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        prints.append(fingerprint_of(key.public_key()))
    return files, prints


@attack("A4")
def test_masks_cancel_to_the_last_bit_also_where_numbers_wrap():
    draw = np.random.default_rng(0)
    for ranks in (2, 3, 5):
        parties = masks(ranks)
        for _ in range(2):
            numbers = draw.integers(-MOST, MOST, (ranks, 9))
            numbers[:, 0] = MOST
            with np.errstate(over="ignore"):
                exact = numbers.sum(axis=0)
            assert total(words(parties, numbers)) == exact.tolist()


@attack("A37")
def test_every_word_is_uniform_and_no_two_sums_or_starts_share_a_stream(tmp_path):
    silent = np.zeros((3, 20_000), dtype=np.int64)
    keys, _ = stored(tmp_path, 3)
    first, second = (masks(3, keys=keys) for _ in range(2))
    seen = [words(first, silent), words(first, silent), words(second, silent)]
    for rows in seen:
        for row in rows:
            for part in (row >> np.uint64(56), row & np.uint64(255)):
                counts = np.bincount(part.astype(np.int64), minlength=256)
                assert scipy.stats.chisquare(counts).pvalue > LEVEL
    every = np.concatenate([np.concatenate(rows) for rows in seen])
    assert len(np.unique(every)) == len(every)
    # The same numbers under the same masks would give the same differences.
    pairs = [row - other for rows in zip(*seen, strict=True) for row in rows for other in rows]
    assert sum(bool((pair == 0).any()) for pair in pairs) == 3 * 3


@attack("A37")
def test_a_message_that_another_changes_or_another_rank_holds_otherwise_is_not_confirmed():
    """Whoever relays it, and the third rank, lack the secret of the two."""
    parties = masks(3)
    held = list(zip(parties, (b"a", b"a", b"b"), strict=True))
    rows = [party.tags(message) for party, message in held]
    assert [party.unlike(rows, message) for party, message in held] == [[2], [2], [0, 1]]
    told = [party.tags(b"b") for party in parties]
    assert parties[0].unlike(rows, b"b") == [1, 2], "what was sent before confirms nothing"
    # For rank 1's proof come rank 2's, and what rank 0 itself sent to rank 1.
    for proof in (told[2], told[0][32:]):
        assert parties[0].unlike([told[0], proof, told[2]], b"b") == [1]


@attack("A37")
def test_ranks_that_are_told_different_things_send_words_that_do_not_add_up():
    """A coordinator that asks one rank for less noise would learn a sum with too little of it."""
    parties = masks(4)
    numbers = np.full((4, 500), 7)
    rows = words(parties[:2], numbers[:2], b"noise 1") + words(parties[2:], numbers[2:], b"noise 2")
    for chosen in (rows, rows[:2], rows[2:]):
        sums = np.array(total(chosen))
        assert not (np.abs(sums) < 2**40).any()
        assert len(np.unique(sums)) == 500


def guesses(parties, colluders, hospital, runs):
    """How often colluders, who know all words and their own streams, tell whether the hospital's
    number was -A or A.
    """
    draw = np.random.default_rng(1)
    truth = draw.integers(0, 2, runs) * 2 - 1
    numbers = draw.integers(-(2**30), 2**30, (len(parties), runs))
    numbers[hospital] = truth * 2**40
    seen = words(parties, numbers)[hospital].copy()
    for other in colluders:
        # Its stream with the hospital: what its word of zeros has alone.
        alone = object.__new__(Masks)
        alone.__dict__.update(vars(parties[other]))
        alone._secrets = {hospital: parties[other]._secrets[hospital]}
        alone._count -= 1
        seen += np.frombuffer(alone.masked(np.zeros(runs, dtype=np.int64), b"a"), dtype="<u8")
    return float(np.mean(np.sign(seen.view("<i8")) == truth))


@attack("A37")
def test_all_other_ranks_but_one_read_nothing_of_a_hospital_and_all_others_read_its_word():
    parties = masks(4)
    runs = 4000
    assert guesses(parties, (0, 1, 3), 2, runs) == 1.0, "the attack works where nothing hides"
    right = guesses(parties, (0, 1), 2, runs)
    assert scipy.stats.binomtest(round(right * runs), runs).pvalue > LEVEL


def exchanged(row):
    """A relay's own keys in place of a rank's."""
    own = [x25519.X25519PrivateKey.generate().public_key() for _ in range(2)]
    return b"".join(key.public_bytes_raw() for key in own)


@attack("A37")
def test_a_relay_that_exchanges_keys_is_noticed_by_fingerprints(tmp_path):
    keys, prints = stored(tmp_path, 3)
    printed = [f"{each.upper()}  -" for each in prints[::-1]] + [""]
    honest = masks(3, keys=keys, fingerprints=printed)
    assert all(party.compared for party in honest)
    assert total(words(honest, np.full((3, 1), 5))) == [15]

    def relay(rows, rank):
        return [row if other == rank else exchanged(row) for other, row in enumerate(rows)]

    for error in masks(3, relay=relay, keys=keys, fingerprints=prints):
        assert isinstance(error, InputError)
        assert "exchanges keys" in str(error)
    assert not any(party.compared for party in masks(3, relay=relay, keys=keys))
    others = [prints[0], prints[1], "0" * 64]
    for error in masks(3, keys=keys, fingerprints=others):
        assert "0" * 64 in str(error)
        assert not any(each in str(error) for each in prints), "what came is not for the file"
    for error in masks(3, keys=keys, fingerprints=prints[:2]):
        assert "2 fingerprints" in str(error)


@attack("A37")
def test_a_relay_that_exchanges_the_keys_of_this_start_alone_learns_no_stream(tmp_path):
    """It knows the secrets of the keys that it gave, and not of those in the files."""
    keys, prints = stored(tmp_path, 2)
    fresh = x25519.X25519PrivateKey.generate()
    kept: list[list[bytes]] = []

    def relay(rows, rank):
        kept.append(rows)
        own = fresh.public_key().public_bytes_raw()
        return [row if at == rank else row[:32] + own for at, row in enumerate(rows)]

    first, second = masks(2, relay=relay, keys=keys, fingerprints=prints)
    for party, other in ((first, 1), (second, 0)):
        sent = kept[0][other ^ 1]
        known = fresh.exchange(x25519.X25519PublicKey.from_public_bytes(sent[32:]))
        (secret,) = party._secrets.values()
        assert secret[32:] == known, "the relay knows this half"
        assert secret[:32] not in (known, bytes(32))
    assert first._salt != second._salt


def test_a_file_without_such_a_key_is_refused(tmp_path):
    other = ed25519.Ed25519PrivateKey.generate()
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "other.pem").write_bytes(other.private_bytes(*form))
    (tmp_path / "text.pem").write_text("no key")
    for name in ("other.pem", "text.pem", "missing.pem"):
        with pytest.raises(InputError, match="openssl genpkey"):
            Masks(0, 1, tmp_path / name, None, lambda row: [row])
