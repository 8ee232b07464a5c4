"""Run notebooks/*.py from first to last cell and write each as .ipynb, with what it printed and
drew: `make notebooks`.

The .py is the source: change it, never the .ipynb. Noise is drawn anew each time, so released
numbers differ from run to run.
"""

import os
import pathlib
import sys
import time

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = pathlib.Path(__file__).parents[1]
# full size, without progress bars
ENVIRONMENT = {"DPBO_SMALL": "", "TQDM_DISABLE": "1", "PYTHONPATH": str(ROOT)}


def run(source: pathlib.Path) -> None:
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # jupytext draws them at random
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(ROOT)}},
        config=Config(KernelManager={"transport": "ipc"}),
    )
    client.execute(env=os.environ | ENVIRONMENT)
    # no versions: they differ between machines
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}}
    )
    nbformat.write(notebook, source.with_suffix(".ipynb"))


if __name__ == "__main__":
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            start = time.monotonic()
            run(path)
            print(f"{path.stem}: {time.monotonic() - start:.0f} s", flush=True)
