"""Every benchmark runs to its end at a tiny size, and writes its figures and pictures."""

import importlib
import json
import pathlib

import pytest
import torch

FILES = sorted((pathlib.Path(__file__).parents[2] / "benchmarks").glob("*.py"))
NAMES = [file.stem for file in FILES if "def main(arguments" in file.read_text()]
# They take 4 to 20 s.
DEEP = [
    "asynchronous",
    "dpem",
    "dpgibo",
    "dpsearch",
    "dpsgd_tuning",
    "kusner",
    "machines",
    "main_job",
    "outsourced",
    "small_data",
    "strategies",
]


@pytest.fixture(autouse=True)
def same_threads(monkeypatch):
    """Benchmarks choose their own number of threads. Data sets and other interpreters are for full runs."""
    for variable in ("DPBO_DATA", "PEER_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name in DEEP)) for name in NAMES])
def test_benchmark_smoke(name, tmp_path, capsys):
    importlib.import_module(f"benchmarks.{name}").main(["--smoke", "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path)])
    assert "| --- |" in capsys.readouterr().out
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["smoke"] is True
    assert result["figures"]
