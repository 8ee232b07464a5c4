"""Every notebook runs from its first cell to its last, at a small size; each ends with assertions of its own."""

import pathlib
import runpy

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.usefixtures("seeded_noise")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    monkeypatch.setenv("DPBO_SMALL", "1")
    assert path.read_text().startswith("# %% [markdown]")
    runpy.run_path(str(path))
    plt.close("all")
