"""Every notebook runs from its first cell to its last, at a small size, and its .ipynb shows the
same cells. Each ends with assertions.
"""

import re
import runpy

import jupytext
import nbformat
import pytest

from tests.setups import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


@pytest.mark.usefixtures("seeded_noise", "unknown_records")
@pytest.mark.deep
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook(path, monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    monkeypatch.setenv("DPBO_SMALL", "1")
    assert path.read_text().startswith("# %% [markdown]")
    runpy.run_path(str(path))
    plt.close("all")


def test_each_ipynb_shows_the_cells_of_its_py_run_without_an_error():
    """Nothing is run here: `make notebooks` does that."""
    assert {path.stem for path in NOTEBOOKS} == {
        path.stem for path in NOTEBOOKS[0].parent.glob("*.ipynb")
    }
    for path in NOTEBOOKS:
        source = jupytext.read(path)
        shown = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
        texts, shown_texts = (
            [(cell.cell_type, cell.source) for cell in notebook.cells]
            for notebook in (source, shown)
        )
        assert texts == shown_texts, (
            f"{path.stem}.ipynb is not of its .py: run make notebooks SOME={path.stem}"
        )
        code = [cell for cell in shown.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
            f"{path.stem}: not run from first to last cell"
        )
        outputs = [output for cell in code for output in cell.outputs]
        assert not [output for output in outputs if output.output_type == "error"], path.stem
        assert [output for output in outputs if "image/png" in output.get("data", {})], (
            f"{path.stem} draws no picture"
        )
        printed = "".join(output.get("text", "") for output in outputs)
        assert not re.findall(r"Warning: .*|/home/.*|/tmp/.*|site-packages.*", printed), (
            f"{path.stem} shows a warning or a machine's path"
        )
