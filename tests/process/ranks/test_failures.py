"""Ranks that die, come late, differ, or hold rows of one unit: a typed error on all, no second
charge, no second noise.
"""

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dpbo import Budget, PrivacyUnit, Ranks
from dpbo.errors import InputError, UsageError
from dpbo.ledger.ledger import Ledger
from dpbo.records.labels import hash_labels
from tests.attacks.marks import attack
from tests.process.ranks.jobs import JOBS, STEPS
from tests.setups import charged, owner

DEATHS = {
    name: 2 if "before a charge" in name or "after" in name else 0
    for name in JOBS
    if "dies" in name
}


def refusal(met, name):
    """The error that all four ranks met."""
    errors = [rank["error"] for rank in met(name).values()]
    assert len(errors) == 4
    assert all(error == errors[0] for error in errors)
    return errors[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.deep] * ("between" not in name)) for name in DEATHS],
)
@attack("A16")
def test_a_killed_rank_ends_the_run_on_all_and_the_next_one_goes_on(ran, met, name):
    folder = ran(name)
    survivors = met(name)
    assert json.loads((folder / "exits").read_text()) == [
        -9 if rank == DEATHS[name] else 0 for rank in range(4)
    ]
    assert [rank["error"][0] for rank in survivors.values()] == ["RankLost"] * 3

    ledger = Ledger.open(str(folder / "l.db"))
    ledger.verify()
    paid = charged(ledger)
    draws = [line.split() for line in (folder / "draws").read_text().splitlines()]
    lost = 1 if "between" in name else 0
    assert len(paid) == len(set(paid)) == STEPS, "the plan is used up, no more and no less"
    assert {rank for rank, _ in draws} == {"0"}, "noise is drawn on the first rank alone"
    assert len(draws) == len({handle for _, handle in draws}), "a handle was drawn twice"

    after = json.loads((folder / "after.json").read_text())
    values = [value["value"] for value in ledger.values("dpgibo")]
    assert after == values
    assert len(values) == STEPS - lost
    for seen in folder.glob("seen[0-3]"):
        known = json.loads(seen.read_text())
        assert 2 <= len(known) <= 3
        assert after[: len(known)] == known, "what ranks saw is what is resumed"


@attack("A20")
@pytest.mark.deep
def test_labels_on_two_ranks_are_refused_on_all_before_there_is_a_ledger(ran, met):
    name, text = refusal(met, "unit on two ranks")
    assert name == "InputError"
    assert "all rows of a unit are on one rank" in text
    assert not (ran("unit on two ranks") / "l.db").exists()


def test_a_data_set_is_found_by_its_name_alone_by_the_first_rank(ran, met):
    assert [rank["value"] for rank in met("named alone").values()] == [[True, 1]] * 2
    (file,) = ran("named alone").glob("d-*.db")
    assert len(charged(Ledger.open(str(file)))) == 1


@attack("A26")
def test_one_name_written_in_two_ways_on_two_ranks_is_said(met):
    """Labels in NFC and NFD, in other capitals or with a zero-width space made four units of three
    people, without a word.
    """
    for number, rank in met("written in another way").items():
        *texts, error = rank["value"]
        assert ["differ only in case" in text for text in texts] == [True, True, True, False]
        assert error[0] == ("MemoryError" if number else "RankFailed"), "nobody waits"


@attack("A30", "A35")
def test_ranks_resume_with_the_same_records_however_they_are_dealt(met):
    """They resumed on other records without a word, and only the first rank knew later what had
    been released.
    """
    for rank in met("resumed with others").values():
        first, again, other, remembered = rank["value"]
        assert (first, again, remembered) == (2, 2, True)
        assert other[0] == "ReservationChanged"
        assert "began with other validation records" in other[1]


def test_ranks_that_ask_for_different_things_are_refused_and_may_go_on(met):
    for rank in met("other questions").values():
        point, alone, step, noise, charges, left = rank["value"]
        assert [point[0], alone, step[0], noise[0]] == [
            "RanksDisagree",
            None,
            "RanksDisagree",
            "RanksDisagree",
        ]
        assert "rank 3 to do so with other code, numbers or models" in point[1]
        assert "rank 3 to evaluate ClippedMean" in step[1]
        assert "rank 1" in noise[1]
        assert (charges, left) == (1, 2), "only what all asked for was charged"


@attack("A35")
def test_ranks_with_other_code_globals_or_models_are_refused_before_a_charge(met):
    """They were accepted: the sum was of scores by two models, which no statement says."""
    for rank in met("other models").values():
        *others, alike, charges = rank["value"]
        for kind, error in others:
            assert error is not None, kind
            assert error[0] == "RanksDisagree", kind
            assert "rank 1 to do so with other code, numbers or models" in error[1], kind
        assert alike == [None]
        assert charges == 0


@attack("A16", "A17")
def test_a_rank_that_lies_causes_no_second_noise_and_no_release_without_a_charge(ran, met):
    """What it sends of its own records is believed. All else is compared before anything is
    charged.
    """
    told = [rank["value"] for rank in met("lies").values()]
    assert len(told) == 2
    assert told[0][1:] == told[1][1:], "the same value and ledger on both"
    charged, stored = told[0][2:]
    assert len(charged) == len(set(charged))
    assert charged == stored
    drawn = [line.split() for line in (ran("lies") / "draws").read_text().splitlines()]
    assert {rank for rank, _ in drawn} == {"0"}
    assert [handle for _, handle in drawn] == charged, "one draw a charge"
    for steps in (each[0] for each in told):
        false_sum, after, repeated, goes_on, hidden, again, alone = steps
        assert [false_sum, after, goes_on, hidden, again] == [None] * 5
        assert [repeated[0], alone[0]] == ["RanksDisagree"] * 2


@pytest.mark.deep
def test_ranks_note_together_that_others_take_turns(met):
    told = met("others take turns")
    assert [rank["value"] for rank in told.values()] == [[False, False, True]] * 2


@pytest.mark.deep
def test_what_one_rank_cannot_do_none_does(met):
    for number, rank in met("refused by one").items():
        score, fit, utilities, row, ledger, seedless, much = rank["value"]
        assert score[0] == "PrivateFailure"
        assert "secret" not in str(rank)
        assert fit[0] == ("ZeroDivisionError" if number == 2 else "RankFailed")
        assert [utilities[0], row[0], ledger[0], much[0]] == [
            "InputError",
            "InputError",
            "LedgerError",
            "BudgetExceeded",
        ]
        assert seedless[0] == "InputError"
        assert "random_state" in seedless[1]


@pytest.mark.deep
def test_ranks_that_fail_in_two_ways_stay_together(met):
    for number, rank in met("fail in two ways").items():
        error, private, changed, local, bound = rank["value"]
        assert "secret" not in str(rank)
        assert error[0] == ("ZeroDivisionError" if number == 1 else "RankFailed"), (
            "an error comes before a failure, on all"
        )
        assert private[0] == changed[0] == "PrivateFailure"
        assert "changed in place" in changed[1]
        assert local[0] == ("Local" if number == 0 else "RankFailed")
        assert bound[0] == "RanksDisagree"


@pytest.mark.deep
def test_a_single_unit_that_fails_ends_no_evaluation_though_it_is_all_of_a_shard(met):
    for rank in met("fails on one shard").values():
        assert rank["error"] is None
        shared, alone = rank["value"]
        assert shared == alone


@pytest.mark.deep
def test_hidden_runs_are_refused_on_ranks_before_they_cost(met):
    for rank in met("no hidden runs").values():
        selection, inside, last = rank["value"]
        assert [selection[0], inside[0]] == ["UsageError", "UsageError"]
        assert "a curator of one process" in selection[1]
        assert last == 2, "birth and two notes"


@attack("A17", "A27")
def test_a_training_that_several_processes_share_is_refused(met):
    for rank in met("trains together").values():
        *modules, curator, noted = rank["value"]
        assert len(modules) == 4
        for kind, text in modules:
            assert (kind, "must be in one process" in text) == ("InputError", True), text
        assert curator == [
            "UsageError",
            "DP-SGD takes all records: give a curator of one process.",
        ]
        assert noted == 0


@attack("A17", "A27")
def test_two_processes_train_one_model_in_opacus_own_engine_and_the_first_alone_charges(met):
    first, second = met("trained in Opacus").values()
    one, other = first["value"], second["value"]
    for mode in ("hooks", "ghost"):
        ((run, steps),) = one[mode]["runs"].items()
        assert steps == [[1.3, 0.5, 8]], mode
        assert one[mode] == other[mode], f"{mode}: weights, refusals, ledger and history"
        assert one[mode]["charged"] == [[run, 1]] * 8, mode
        assert one[mode]["unchanged"], mode
        beyond, none_left = one[mode]["refused"]
        assert beyond[0] == none_left[0] == "BudgetExceeded", mode
        assert {"sampling-attested", "noise-of-opacus", "noise-drawn-on-cpu"} <= {
            *one[mode]["assumed"]
        }
    assert not {*one["records"]} & {*other["records"]}
    assert len({*one["records"], *other["records"]}) == 64
    # Of 64 records in 400 samples, each with probability 1/2; five deviations.
    assert abs(one["samples"] + other["samples"] - 12800) < 5 * 80
    for apart in (one["apart"], other["apart"]):
        assert apart[0] == "UsageError"
        assert "trains a model of its own" in apart[1]


@pytest.mark.deep
def test_a_rank_that_comes_late_is_given_up(met):
    """By its own limit: the group's is an hour."""
    assert {
        number: rank["error"][0] for number, rank in met("comes late").items()
    } == dict.fromkeys(range(4), "RankLost")


def test_equal_labels_have_one_name_and_others_another():
    def names(labels, key=b"k"):
        return [tuple(row) for row in hash_labels(labels, key)[0].tolist()]

    assert names(torch.tensor([3, 4])) == names([3, 4, 3]) == names(np.array([4, 3]))
    for alike in ([0, 1, 2**80, -1], ["1", "", "a"]):
        assert len(set(names(alike))) == len(alike)
    assert names(["a"]) != names(["a"], b"another key")
    kinds = [hash_labels(labels, b"k")[1] for labels in ([1], ["1"], [b"1"], [True])]
    assert len(set(kinds)) == len(kinds), "labels of different kinds are seen, not compared"
    assert kinds[0] == hash_labels(torch.tensor([4]), b"k")[1]
    with pytest.raises(InputError, match="groups"):
        names([object()])


NCCL = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or not dist.is_nccl_available(), reason="needs two GPUs and NCCL"
)


@pytest.mark.parametrize(
    "name", ["on two CPUs", pytest.param("on devices", marks=[pytest.mark.cuda, NCCL])]
)
def test_partial_sums_add_up_on_devices_also_from_blocks(met, name):
    assert len(met(name)) >= 2
    for rank in met(name).values():
        assert rank["error"] is None
        resident, streamed, alone = rank["value"]
        assert resident == streamed == alone


def test_ranks_need_a_group_and_a_timeout():
    with pytest.raises(UsageError, match="init_process_group"):
        Ranks()
    with pytest.raises(InputError, match="ranks"):
        owner(torch.rand(3), unit=PrivacyUnit("u"), budget=Budget.gdp(1.0), ranks=object())


def test_partial_sums_are_added_in_whole_numbers(tmp_path):
    """A float64 keeps no number beyond 2^53 apart from its neighbours; sums go up to 2^61."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        large = torch.tensor([2**60 + 1, -(2**53) - 1])
        assert Ranks().reduce_tensor(large).tolist() == large.tolist()
    finally:
        dist.destroy_process_group()
