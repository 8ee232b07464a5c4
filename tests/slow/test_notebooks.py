"""Every notebook runs from its first cell to its last, at a small size; each ends with assertions of its own."""

import pathlib
import runpy

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "notebooks").glob("*.py"))


@pytest.mark.usefixtures("seeded_noise")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.deep] * (path.stem != "quickstart"), id=path.stem) for path in NOTEBOOKS],
)
def test_notebook(path, monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    monkeypatch.setenv("DPBO_SMALL", "1")
    assert path.read_text().startswith("# %% [markdown]")
    runpy.run_path(str(path))
    plt.close("all")
