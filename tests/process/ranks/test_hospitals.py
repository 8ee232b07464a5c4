"""Ranks that do not trust each other, in real processes: the same bits, nothing in any message but
masked words, a ledger for each, and what a rank that dies, lies or differs can do.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpbo.curator.evaluation import Job
from dpbo.curator.secure_sum import fingerprint_of
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms.shares import GaussianShare, LaplaceShare
from dpbo.privacy import Adjacency
from dpbo.testing import SeededEntropy
from tests.attacks.family import audited
from tests.attacks.marks import attack
from tests.process.ranks import jobs
from tests.process.ranks.hospitals import example, one_rank, read
from tests.setups import ROOT, charged

LEVEL = 1e-6
SIZE = 3


class Shard:
    """Which rank's records `jobs.opened` takes."""

    def __init__(self, rank):
        self.rank = rank
        self.world_size = SIZE


@pytest.fixture(scope="session")
def told(tmp_path_factory):
    """`told(name, folder, dead)`: what each rank that lived met, and the folder of its notes."""
    done = {}

    def ran(name, folder=None, dead=()):
        if (name, folder) not in done:
            place = folder or tmp_path_factory.mktemp("hospitals")
            arguments: list[Any] = [(name, rank, SIZE, place, {}) for rank in range(SIZE)]
            exits = jobs.started(one_rank, arguments)
            assert exits == [-9 if rank in dead else 0 for rank in range(SIZE)], (name, exits)
            met = [
                json.loads(file.read_text())
                for rank in range(SIZE)
                if (file := place / f"{name}-{rank}.json").exists()
            ]
            done[name, folder] = met, place
        return done[name, folder]

    return ran


def alike(met):
    """The value of every rank, which is the same."""
    assert len(met) == SIZE
    for rank in met:
        assert rank == met[0]
    assert met[0]["error"] is None
    return met[0]["value"]


def test_masked_sums_are_those_of_one_process_to_the_last_bit(told):
    assert alike(told("exact")[0]) == json.loads(json.dumps(jobs.exact(None)))


def partial_sums(query):
    """Each rank's exact answer, in numbers of the public quantum for all units."""
    sums = []
    for rank in range(SIZE):
        curator = jobs.opened(None)
        job = curator._job(query)
        mine = jobs.rows()[jobs.dealt(jobs.N, Shard(rank))]
        view = dataclasses.replace(job.view, container=mine, count=len(mine), shard=True)
        sums.append(Job(query, view, None)())
    return sums


@attack("A17")
def test_a_release_is_what_one_process_adds_up_of_the_same_shares(told):
    value, variance, lattice = alike(told("released")[0])["first"]
    query = jobs.mean()
    answers = partial_sums(query)
    share = GaussianShare(jobs.NOISE.noise_multiplier, ranks=SIZE, tolerate=1)
    law = share.distribution(query.sensitivity(Adjacency.REPLACE_ONE), answers[0].quanta)
    shares = [
        share._sample(answer.numerators, answer.quanta, law, SeededEntropy(rank))
        for rank, answer in enumerate(answers)
    ]
    drawn = np.sum(shares, axis=0)
    published = share.publish(drawn, law, query.affine(jobs.N))
    assert drawn.tolist() == lattice
    assert [part.tolist() for part in published] == [value, variance]
    plain = jobs.NOISE.distribution(query.sensitivity(Adjacency.REPLACE_ONE), answers[0].quanta)
    assert variance[0] == pytest.approx(1.5 * plain.std[0] ** 2 / jobs.N**2)


@attack("A9", "A37")
def test_hospitals_keep_a_pure_budget_with_laplace_noise(told):
    """A mean, an objective and k-means by Lloyd's algorithm."""
    found = alike(told("laplace")[0])
    share = LaplaceShare(20.0, ranks=SIZE, tolerate=1)
    query = jobs.mean()
    law = share.distribution(
        query.sensitivity(Adjacency.REPLACE_ONE), partial_sums(query)[0].quanta
    )
    value, (variance,), (drawn,) = found["first"]
    assert value == [pytest.approx(0.5 + drawn * law.grid[0] / jobs.N, rel=1e-12)]
    assert variance == pytest.approx(1.5 * 2.0 * law.scale[0] ** 2 / jobs.N**2)
    assert {*found["events"]} == {"discrete-laplace"}
    assert len(found["events"]) == 4
    assert "masks-hide-shares" in found["assumptions"]
    assert found["spent"].startswith("(")


@pytest.mark.deep
@attack("A37")
def test_searches_run_on_sums_and_say_what_to_take_where_a_choice_is_asked_for(told):
    found, refused, as_before, centers = alike(told("searches")[0])
    assert [*map(list, found)] == [["C"]] * 4
    assert [error for error, _ in refused] == ["InputError", "InputError", "UsageError"]
    assert all(text.startswith("strategy") for _, text in refused[:2])
    assert "strategy='auto' or 'bo'" in refused[2][1]
    assert as_before, "nothing was charged or reserved"
    assert np.isfinite(centers).all()


def test_every_rank_has_the_whole_ledger_and_the_statement_says_what_is_assumed(told):
    found = alike(told("released")[0])
    assert {
        "people-are-disjoint",
        "ranks-follow-the-protocol: all but 1 of 3",
        "coordinator-relays-keys",
    } < {*found["assumptions"]}
    assert "shards-are-disjoint" not in found["assumptions"]
    kinds = [kind for kind, _, _ in found["ledger"]]
    assert kinds.count("charge") == kinds.count("value") > 6


def bytes_of(numbers):
    return np.asarray(numbers, dtype="<i8").reshape(-1)


def sent_by_all(folder):
    """What each rank sent: the kind of each message, and its bytes."""
    return [read(folder, rank, "sent") for rank in range(SIZE)]


def test_where_ranks_trust_each_other_messages_hold_partial_sums(told):
    """So the test below would see them."""
    folder = told("trusted")[1]
    partial = [
        [data for kind, data in rank if kind == "reduce"][-1] for rank in sent_by_all(folder)
    ]
    ((exact, _, _),) = read(folder, 0, "drawn")
    found = np.sum([np.frombuffer(data, dtype="<i8") for data in partial], axis=0)
    assert found.tolist() == exact


@attack("A37")
def test_no_message_holds_a_partial_sum_a_share_or_a_total_without_noise(told):
    """Every message of every rank."""
    folder = told("released")[1]
    sent = sent_by_all(folder)
    assert {kind for rank in sent for kind, _ in rank} == {"all_gather"}
    messages = b"".join(data for rank in sent for _, data in rank)
    private = 0
    for each in zip(*(read(folder, rank, "drawn") for rank in range(SIZE)), strict=True):
        numbers = [[bytes_of(part) for part in rank] for rank in each]
        totals = np.sum([rank[:2] for rank in numbers], axis=0)
        for number in np.concatenate([*totals, *(part for rank in numbers for part in rank)]):
            # Smaller ones might be found in lengths and counts.
            if abs(number) > 2**30:
                private += 1
                assert number.tobytes() not in messages
    assert private > 200
    # Digests have 128 bytes, keys 64, what ledgers hold 40.
    masked = [data for rank in sent for _, data in rank if len(data) not in (128, 64, 40)]
    words = np.frombuffer(b"".join(masked), dtype=np.uint8)
    assert len(words) > 1500
    assert scipy.stats.chisquare(np.bincount(words, minlength=256)).pvalue > LEVEL


def goes_on(told, name, who):
    """What becomes of a run in which a rank killed itself, and of the next start."""
    met, folder = told(name, dead=(who,))
    assert {rank["error"][0] for rank in met} == {"RankLost"}
    files = [folder / f"{rank}.db" for rank in range(SIZE)]
    before = [charged(Ledger.open(file)) if file.exists() else [] for file in files]
    met, _ = told("again", folder)
    after = alike(met)
    paid = [charged(Ledger.open(file)) for file in files]
    for rank in range(SIZE):
        ledger = Ledger.open(files[rank])
        ledger.verify()
        assert paid[rank] == paid[0]
        assert len(paid[0]) == len({*paid[0]}) == jobs.STEPS
        assert paid[rank][: len(before[rank])] == before[rank], "what was charged stays charged"
        assert [value["value"] for value in ledger.values("dpgibo")] == after
        # A draw a charge, by every rank, but for what was charged and never drawn.
        assert jobs.STEPS - 1 <= len(read(folder, rank, "drawn")) <= jobs.STEPS
    assert jobs.STEPS - 1 <= len(after) <= jobs.STEPS


@attack("A16", "A37")
def test_a_killed_rank_ends_the_step_on_all_and_the_next_start_goes_on(told):
    goes_on(told, "killed", 1)


@pytest.mark.deep
@attack("A16")
@pytest.mark.parametrize("message", range(2, 56))
def test_a_rank_that_is_killed_before_any_message(told, message):
    who = message % SIZE
    goes_on(told, f"dies {who} {message}", who)


@attack("A37")
def test_random_words_are_refused_and_a_chosen_shift_spoils_a_value_alone(told):
    value, (random, shifted), again, entries, (other,) = alike(told("garbage")[0])
    assert [random[0][0], random[1][0]] == ["RanksError", "ReleaseLost"]
    assert "do not cancel" in random[0][1]
    assert shifted == [None, None]
    assert value != again
    kinds = [kind for kind, _, _ in entries]
    assert (kinds.count("charge"), kinds.count("value")) == (4, 3), "what was refused was charged"
    assert other[0] == "RankFailed", "a ledger that differs by one entry gives other masks"


@attack("A16", "A37")
def test_where_one_rank_cannot_charge_or_draw_the_others_read_a_random_word(told):
    values = []
    for number, rank in enumerate(told("unpaid")[0]):
        between, stored, after, alike, steps, lost = rank["value"]
        own = "LedgerUnavailable"
        assert between == [own if number == 1 else "RanksDisagree"] * 2, "nobody waits"
        assert stored == (own if number == 1 else None), "the others have the value"
        assert number == 1 or "rank 1 to stop for an error of its own" in after[1]
        values.append(alike)
        assert lost == (own if number == 1 else "RankLost")
        for step, (met, words, charged_here) in enumerate(steps):
            assert met == (own if number == 1 else "RankFailed")
            assert len(words) == (3 if step == 1 else 2)
            assert min(words) > 2**40, "its part of each sum, and whether it failed"
            assert charged_here == step + 2 - (step == 3 and number == 1)
    assert values == [values[0]] * SIZE, "it stores the value before the next step, and all go on"


@attack("A22", "A37")
def test_a_ledger_that_differs_stops_all_and_a_lost_one_is_filled_again(told):
    for number, rank in enumerate(told("other ledger")[0]):
        met, (written, lost), warned, changed, void, forked, kept, shared, *second = rank["value"]
        assert met[0] == "RanksDisagree"
        assert "rank 1 to release release after entry" in met[1]
        assert [kind for kind, _, _ in written].count("charge") == 2
        assert ["assume", "another program", {}] in written, "all took it over"
        assert lost[: len(written)] == written, "a lost ledger is filled from the others"
        assert len(warned) == (number == 2)
        assert number != 2 or "2 of them charges, from rank 0's" in warned[0]
        assert changed[0] == "RanksError"
        assert ("[1, 2]" if number == 0 else "[0]") in changed[1]
        assert void[0] == ("RankFailed" if number == 0 else "UsageError")
        # A lost ledger takes nothing over that any other rank's contradicts.
        assert forked[0] == ("LedgerMismatch" if number == 1 else "RanksError")
        assert kept == (2, 1, -len(lost))[number]
        repeated, entries = second
        assert repeated[0] == ("UsageError" if number == 1 else "RankFailed")
        assert "charge" not in [kind for kind, _, _ in entries], "nobody pays for a refusal"
        assert shared[0] == "UsageError"
        assert "two ranks opened the same ledger" in shared[1]


@attack("A21", "A37")
def test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was(told):
    ranks, folder = told("refused")
    sent = sent_by_all(folder)
    assert {kind for rank in sent for kind, _ in rank} == {"all_gather"}
    assert 1 not in {len(data) for rank in sent for _, data in rank}, "no mark goes in clear"
    for rank, each in enumerate(ranks):
        met, entries, changed, mine, stds, (fewer,) = each["value"]
        choice, searched, fails, much, *others = met
        *events, some, tolerate, all_of_them, prints, terms, budget = others
        assert choice[0] == searched[0] == "UsageError"
        assert "A sum shows every score" in choice[1]
        assert searched[1] == choice[1]
        assert fails[0] == "PrivateFailure"
        assert ("on another rank" in fails[1]) == (rank != 2)
        assert much[0] == "BudgetExceeded", "each finds that by itself, and nothing is unpickled"
        assert "secret" not in str(met)
        assert changed[0] == ("ReservationChanged" if rank == 1 else "RankFailed")
        assert rank == 1 or changed[1].startswith(
            "another rank raised an error, or sent something else:"
        )
        assert mine[0] == "LedgerMismatch"
        assert "federated=False" in mine[1]
        one, other, trusted, planned, alone = stds
        assert planned == pytest.approx(1.5**0.5 * alone), "a search is told the noise of all"
        assert one == other, "a share is made for the ranks that there are"
        assert trusted, "and is whole where ranks trust each other"
        assert fewer[0] == ("RankFailed" if rank == 0 else "RanksError")
        assert all("noise" in error[1] for error in events), "no share ever has such an event"
        refusals = [*events, some, all_of_them, tolerate, prints]
        assert [error[0] for error in refusals] == ["InputError"] * 4 + ["UsageError"] * 2
        assert [terms[0], budget[0]] == ["RanksDisagree"] * 2
        assert "rank 1 to meet with tolerate=2, without fingerprints" in terms[1]
        assert "rank 1 to make a Curator with Budget(epsilon=None, delta=None, mu=9.0)" in budget[1]
        kinds = [kind for kind, _, _ in entries]
        assert kinds.count("charge") == 1
        assert kinds.count("reserve") == 0, "what is refused reserves nothing"


@attack("A8", "A37")
def test_a_private_number_of_units_changes_no_size_of_a_message(told):
    few, more = (told(name)[1] for name in ("removed", "removed, one more"))
    assert alike(told("removed")[0]) == alike(told("removed, one more")[0])
    for rank in range(SIZE):
        sizes = [
            [(kind, len(data)) for kind, data in read(folder, rank, "sent")]
            for folder in (few, more)
        ]
        assert sizes[0] == sizes[1]


@pytest.mark.deep
@attack("A24", "A37")
def test_what_two_hospitals_show_to_the_third_is_as_private_as_is_charged(told, measured):
    """The third subtracts its own share from every total."""
    met, folder = told("many")
    released = np.array(alike(met), dtype=np.int64)
    runs = released.shape[1]
    noted = [read(folder, rank, "drawn") for rank in range(SIZE)]
    exact, own = (
        np.sum([[each[part][0] for each in noted[rank]] for rank in ranks], axis=0).reshape(2, runs)
        for part, ranks in ((1, (0, 1)), (2, (2,)))
    )
    middle = exact[:, 0].mean()
    sides = [iter(side) for side in (released - own - middle).astype(np.float64)]

    def draw(which, count):
        return np.array([next(sides[which]) for _ in range(count)])

    audit = audited("hospitals", draw, runs=runs, threshold=0.0, statistic=lambda seen: seen)
    measured(runs, audit.mu, 3.2, least=0.9)


@pytest.mark.deep
@attack("A37")
def test_four_hospitals_with_keys_of_their_own_finish_the_example(tmp_path):
    """A DP-GIBO run and the tuning of a scikit-learn model, each on its own records and ledger."""
    prints = []
    for rank in range(4):
        key = X25519PrivateKey.generate()
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / f"{rank}.pem").write_bytes(key.private_bytes(*form))
        prints.append(f"{fingerprint_of(key.public_key())}  -")
    (tmp_path / "fingerprints").write_text("\n".join(prints))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        (tmp_path / "port").write_text(str(probe.getsockname()[1]))
    assert jobs.started(example, [(rank, tmp_path) for rank in range(4)]) == [0] * 4
    shown = [(tmp_path / f"{rank}.out").read_text() for rank in range(4)]
    assert "Guarantee: (2.000, 1e-06)-DP" in shown[0]
    assert "1200, a public number" in shown[0]
    assert "coordinator-relays-keys" not in shown[0]
    assert "ranks-follow-the-protocol: all but 1 of 4" in " ".join(shown[0].split())
    results = {text.splitlines()[0].partition(": ")[2] for text in shown}
    assert len(results) == 1
    ledgers = [Ledger.open(tmp_path / f"{rank}.db") for rank in range(4)]
    assert len({ledger.id for ledger in ledgers}) == 4
    assert len({tuple(charged(ledger)) for ledger in ledgers}) == 1
    assert len(charged(ledgers[0])) > 5


@pytest.mark.deep
def test_the_page_says_what_this_torch_says_of_tls():
    program = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "GLOO_DEVICE_TRANSPORT": "TCP_TLS"},
    )
    error = done.stderr.strip().splitlines()[-1].removeprefix("RuntimeError: ")
    assert done.returncode != 0
    assert error in (ROOT / "docs" / "machines.md").read_text()
