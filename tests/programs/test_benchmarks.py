"""Every benchmark runs to its end at a tiny size, and writes its figures and pictures."""

import importlib
import json

import pytest
import torch

from benchmarks.zoo import LISTED, is_locked
from benchmarks.zoo.__main__ import main as run_zoo
from benchmarks.zoo.caches import split_of
from benchmarks.zoo.tasks import LOCKED, OPEN, TASKS
from dpbo.errors import UsageError
from tests.setups import ROOT

FOLDER = ROOT / "benchmarks"
FILES = [file for file in sorted(FOLDER.rglob("*.py")) if "def main(arguments" in file.read_text()]
NAMES = [".".join(file.relative_to(FOLDER).with_suffix("").parts) for file in FILES]
# They take 1 to 20 s.
DEEP = [
    "__main__",
    "dpsgd_tuning",
    "end_to_end",
    "gibo_step",
    "machines",
    "main_job",
    "opacus_engine",
    "papers.attacks",
    "papers.dpem",
    "papers.dpem_models",
    "papers.dpgibo",
    "papers.kusner",
    "papers.po_gp_ucb",
    "papers.private_bo",
    "secure_sum",
    "zoo.__main__",
    "zoo.tested",
    "zoo.ways",
]


@pytest.fixture(autouse=True)
def same_threads(monkeypatch):
    """Benchmarks choose their own number of threads. Data sets and other interpreters are for full
    runs.
    """
    for variable in ("DPBO_DATA", "PEER_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] * (name in DEEP)) for name in NAMES]
)
def test_benchmark_smoke(name, tmp_path, capsys):
    importlib.import_module(f"benchmarks.{name}").main(
        ["--smoke", "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path)]
    )
    assert "| --- |" in capsys.readouterr().out
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["smoke"] is True
    assert result["figures"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "part", "among"),
    [
        ("papers.kusner", ["--costly"], ["whole", "costly"]),
        (
            "papers.dpgibo",
            ["--experiment", "noisy", "--searches"],
            ["whole", "noisy with PrivateObjective"],
        ),
        ("papers.po_gp_ucb", ["--claims"], ["synthetic, l = 5", "Branin"]),
    ],
)
def test_a_part_goes_among_the_stored_figures(name, part, among, tmp_path, capsys):
    file = tmp_path / "r.json"
    file.write_text(json.dumps({"date": "2026-11-01", "figures": {"whole": [1]}}))
    importlib.import_module(f"benchmarks.{name}").main(["--smoke", "--json", str(file), *part])
    assert "| --- |" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert list(result["figures"]) == among
    assert list(result.get("parts", [])) == among[1:] * ("whole" in among)


def test_the_zoo_keeps_half_of_its_data_sets_back(tmp_path):
    assert [task.locked for task in (*OPEN, *LOCKED)] == [False] * len(OPEN) + [True] * len(LOCKED)
    assert len(OPEN) >= 12
    assert len(LOCKED) >= 10
    # The hash of the first is even, that of the second odd.
    assert not is_locked("CPS1988")
    assert is_locked("SmokeBan")
    listed = " ".join(LISTED.values()).split()
    assert {task.table.rpartition("/")[2] for task in TASKS} <= set(listed)
    for task in LOCKED:
        with pytest.raises(UsageError, match="kept back"):
            split_of(task, 0)
    with pytest.raises(UsageError, match="kept back"):
        run_zoo(["--only", LOCKED[0].name, "--folder", str(tmp_path)])
