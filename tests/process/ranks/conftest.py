"""Jobs on ranks, each run once, when a test first asks for it."""

import json

import pytest

from tests.process.ranks.jobs import JOBS, again, run_rank, started


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """`ran(name)`: the folder of a job that has ended."""
    folders = {}

    def place(name):
        if name not in folders:
            folders[name] = folder = tmp_path_factory.mktemp("job")
            size = JOBS[name][0]
            exits = started(run_rank, [(name, rank, size, folder) for rank in range(size)])
            (folder / "exits").write_text(json.dumps(exits))
            assert "dies" in name or exits == [0] * size, f"{name}: {exits}"
            if "dies" in name:
                assert started(again, [(folder,)]) == [0]
        return folders[name]

    return place


@pytest.fixture(scope="session")
def met(ran):
    """`met(name)`: what each rank that lived met, by rank."""
    return lambda name: {
        int(file.stem): json.loads(file.read_text())
        for file in sorted(ran(name).glob("[0-9].json"))
    }
