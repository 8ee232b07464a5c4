"""Every benchmark runs to its end at a tiny size, and writes its figures and pictures."""

import importlib
import json
import pathlib

import pytest
import torch

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
FILES = [file for file in sorted(FOLDER.rglob("*.py")) if "def main(arguments" in file.read_text()]
NAMES = [".".join(file.relative_to(FOLDER).with_suffix("").parts) for file in FILES]
# They take 1 to 20 s.
DEEP = [
    "__main__",
    "asynchronous",
    "dpsearch",
    "dpsgd_tuning",
    "gibo_step",
    "machines",
    "main_job",
    "paired_search",
    "papers.dpem",
    "papers.dpgibo",
    "papers.kusner",
    "papers.po_gp_ucb",
    "selection",
    "small_data",
    "strategies",
    "zoo.__main__",
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
