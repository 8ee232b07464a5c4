"""Four real processes release what one process with all records would have, to the last bit."""

import json
import socket

import pytest

from tests.process.ranks import jobs


def test_four_ranks_release_the_same_bits_as_one_process(met):
    """Of four ranks, one has no record and one a single one."""
    one = json.loads(json.dumps(jobs.everything(None)))
    ranks = met("everything")
    assert len(ranks) == 4
    for number, rank in ranks.items():
        assert rank["error"] is None
        assert rank["value"].keys() == one.keys()
        for part, found in rank["value"].items():
            assert found == one[part], f"{part} on rank {number}"


@pytest.mark.attack("A8")
def test_only_public_numbers_of_units_are_known(met):
    for rank in met("everything").values():
        assert rank["value"]["gibo, units removed"]["units"] is None
        assert rank["value"]["gibo, patients"]["units"] == 102


@pytest.mark.deep
def test_any_number_of_ranks_computes_the_same_integers(met):
    one = json.loads(json.dumps(jobs.exact(None)))
    assert one["mixture"][0]
    for size in (1, 2, 3):
        assert [rank["value"] for rank in met(f"exact on {size}").values()] == [one] * size, size


@pytest.mark.deep
def test_the_example_runs_with_the_variables_of_torchrun(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        (tmp_path / "port").write_text(str(probe.getsockname()[1]))
    assert jobs.started(jobs.many_machines, [(rank, tmp_path) for rank in range(4)]) == [0] * 4
    shown = [(tmp_path / f"{rank}.out").read_text() for rank in range(4)]
    assert "Guarantee: (1.000, 1e-06)-DP" in shown[0]
    assert "all ranks agree: True" in shown[0]
    assert shown[1:] == [""] * 3
