"""Ranks that die, come late, differ, or hold rows of one unit: a typed error on all, no second charge, no second noise."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, Ranks
from dpbo.curator.ledger import Ledger
from dpbo.curator.shards import names_of
from dpbo.errors import InputError
from tests.ranks.forked import JOBS, STEPS

ROOT = pathlib.Path(__file__).parents[2]
DEATHS = {name: [2] if "before a charge" in name or "after" in name else [0] for name in JOBS if "dies" in name}
DEVICES = "on devices"


def forked(folder, names):
    command = [sys.executable, "-m", "tests.ranks.forked", str(folder), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forked")
    forked(folder, [name for name in JOBS if name != DEVICES])
    return folder


def place(cases, name):
    return cases / name.replace(" ", "_")


def met(cases, name):
    """What each rank that lived met, by rank."""
    return {int(file.stem): json.loads(file.read_text()) for file in place(cases, name).glob("[0-9].json")}


def refusals(cases, name):
    """The error that all four met."""
    errors = [rank["error"] for rank in met(cases, name).values()]
    assert len(errors) == 4
    assert all(error == errors[0] for error in errors)
    return errors[0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_ranks_computes_the_same_integers(cases, size):
    found = [rank["value"] for rank in met(cases, f"exact{size}").values()]
    assert len(found) == size
    assert found == [next(iter(met(cases, "exact1").values()))["value"]] * size
    assert found[0]["mixture"][0]


@pytest.mark.parametrize("name", DEATHS)
@pytest.mark.attack("A16")
def test_a_killed_rank_ends_the_run_on_all_and_the_next_one_goes_on(cases, name):
    folder, survivors = place(cases, name), met(cases, name)
    assert json.loads((folder / "exits").read_text()) == [-9 if rank in DEATHS[name] else 0 for rank in range(4)]
    assert [rank["error"][0] for rank in survivors.values()] == ["RankLost"] * 3
    assert all(rank["seconds"] < 60 for rank in survivors.values()), "nobody waits for the timeout of 90 s"

    ledger = Ledger.existing(str(folder / "l.db"))
    ledger.verify()
    records = ledger.records()
    charged = [slot["handle"] for record in records if record.kind == "charge" for slot in record.body["slots"]]
    draws = [line.split() for line in (folder / "draws").read_text().splitlines()]
    lost = 1 if "between" in name else 0
    assert len(charged) == len(set(charged)) == STEPS, "the plan is used up, no more and no less"
    assert {rank for rank, _ in draws} == {"0"}, "noise is drawn on the first rank alone"
    assert len(draws) == len({handle for _, handle in draws}), "a handle was drawn twice"

    after, values = json.loads((folder / "after.json").read_text()), [value["value"] for value in ledger.values("dpgibo")]
    assert after == values
    assert len(values) == STEPS - lost
    for seen in folder.glob("seen[0-3]"):
        known = json.loads(seen.read_text())
        assert 2 <= len(known) <= 3
        assert after[: len(known)] == known, "what ranks saw is what is resumed"


@pytest.mark.attack("A20")
def test_labels_on_two_ranks_are_refused_on_all_before_there_is_a_ledger(cases):
    name, text = refusals(cases, "unit on two ranks")
    assert name == "InputError"
    assert "all rows of a unit are on one rank" in text
    assert not (place(cases, "unit on two ranks") / "l.db").exists()
    assert refusals(cases, "words and numbers")[0] == "InputError"
    assert refusals(cases, "no records")[0] == "InputError"


def test_ranks_that_ask_for_different_things_are_refused_and_may_go_on(cases):
    for rank in met(cases, "other questions").values():
        point, alone, step, noise, charges, left = rank["value"]
        assert [point[0], alone, step[0], noise[0]] == ["RanksDisagree", None, "RanksDisagree", "RanksDisagree"]
        assert "rank 3 to do so with other public numbers" in point[1]
        assert "rank 3 to evaluate ClippedMean" in step[1]
        assert "rank 1" in noise[1]
        assert (charges, left) == (1, 2), "only what all asked for was charged"
    assert refusals(cases, "other terms")[0] == "RanksDisagree"


def test_an_argument_refused_on_one_rank_keeps_the_others_in_step(cases):
    told = met(cases, "refused before it is asked")
    assert len(told) == 2
    for number, rank in told.items():
        made, apart, named, alike, together, charges = rank["value"]
        assert [made[0], apart[0]] == (["InputError"] * 2 if number == 1 else ["RanksDisagree"] * 2)
        assert named[0] in ("InputError", "RanksDisagree")
        assert (alike[0], charges) == ("InputError", 1)
        assert together == told[0]["value"][4], "the release that both asked for"
        assert rank["seconds"] < 60


def test_ranks_note_together_that_others_take_turns(cases):
    told = met(cases, "others take turns")
    assert [rank["value"] for rank in told.values()] == [[False, False, True]] * 2


def test_what_one_rank_cannot_do_none_does(cases):
    for number, rank in met(cases, "refused by one").items():
        score, fit, utilities, row, ledger, seedless, much, noted = rank["value"]
        assert score[0] == "PrivateFailure"
        assert "secret" not in str(rank)
        assert fit[0] == ("ZeroDivisionError" if number == 2 else "RankFailed")
        assert [utilities[0], row[0], ledger[0], much[0]] == ["InputError", "InputError", "LedgerError", "BudgetExceeded"]
        assert seedless[0] == "InputError"
        assert "random_state" in seedless[1]
        assert noted


def test_ranks_that_fail_in_two_ways_stay_together(cases):
    for number, rank in met(cases, "fail in two ways").items():
        error, private, changed, local, bound = rank["value"]
        assert "secret" not in str(rank)
        assert error[0] == ("ZeroDivisionError" if number == 1 else "RankFailed"), "an error comes before a failure, on all"
        assert private[0] == changed[0] == "PrivateFailure"
        assert "changed in place" in changed[1]
        assert local[0] == ("Local" if number == 0 else "RankFailed")
        assert bound[0] == "RanksDisagree"


def test_a_single_unit_that_fails_ends_no_evaluation_though_it_is_all_of_a_shard(cases):
    for rank in met(cases, "fails on one shard").values():
        assert rank["error"] is None
        shared, alone = rank["value"]
        assert shared == alone


def test_hidden_runs_are_refused_on_ranks_before_they_cost(cases):
    for rank in met(cases, "no hidden runs").values():
        selection, inside, last = rank["value"]
        assert [selection[0], inside[0]] == ["InputError", "InputError"]
        assert "several ranks" in selection[1]
        assert last == 2, "birth and two notes"


def test_a_rank_that_comes_late_is_given_up(cases):
    for number, rank in met(cases, "comes late").items():
        assert rank["error"][0] == "RankLost"
        assert number == 1 or rank["seconds"] < 15, "long before the other comes"


def test_equal_labels_have_one_name_and_others_another():
    def names(labels, key=b"k"):
        return [tuple(row) for row in names_of(labels, key).hashes.tolist()]

    assert names(torch.tensor([3, 4])) == names([3.0, 4.0]) == names(torch.tensor([3.0, 4.0, 3.0], dtype=torch.float32))
    words = [0.5, 1, "1", b"1", "", ("1",), ("1", ""), ("", "1"), (("1",),), 2**80, -1, float("inf")]
    assert len(set(names(words))) == len(words)
    assert names(["a"]) != names(["a"], b"another key")
    assert names([]) == []
    with pytest.raises(InputError, match="groups"):
        names([object()])


def test_parts_of_tuples_have_kinds_too():
    def kinds(labels):
        column = np.empty(len(labels), dtype=object)
        column[:] = labels
        return names_of(column, b"k").kinds

    assert kinds([(3, "a")]) != kinds([("3", "a")])
    assert kinds([(3, "a"), ("3", 1)]) != kinds([(3, "a")])
    assert kinds([(3, "a")]) == kinds([(4.0, "b"), (5, "c")])
    assert kinds([((1, "x"), 2)]) != kinds([(("1", "x"), 2)])
    assert any(kinds([(0,) * 40]))


@pytest.mark.skipif(not (torch.cuda.is_available() and dist.is_nccl_available()), reason="needs CUDA with NCCL")
def test_partial_sums_add_up_on_devices(tmp_path):
    forked(tmp_path, [DEVICES])
    for rank in met(tmp_path, DEVICES).values():
        assert rank["error"] is None
        shared, alone = rank["value"]
        assert shared == alone


def test_ranks_need_a_group_and_a_timeout():
    with pytest.raises(InputError, match="init_process_group"):
        Ranks()
    with pytest.raises(InputError, match="ranks"):
        Curator(torch.rand(3), unit=PrivacyUnit("u"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0), ranks=object())  # type: ignore[arg-type]


def test_partial_sums_are_added_in_whole_numbers(tmp_path):
    """A float64 keeps no number beyond 2^53 apart from its neighbours; sums go up to 2^61."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        large = torch.tensor([2**60 + 1, -(2**53) - 1])
        assert Ranks().added(large).tolist() == large.tolist()
    finally:
        dist.destroy_process_group()
