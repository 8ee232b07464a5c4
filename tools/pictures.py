"""Run the lines of docs/gallery.md, and keep what they draw in docs/pictures: `make pictures`, in
the repository's root. The page of the report is photographed by Chromium, where there is one; the
README's picture is drawn from a stored row.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

import matplotlib
import matplotlib.pyplot as plt
from PIL import Image

from dpbo import Budget
from dpbo.reporting.plots import plot_plan
from tools.readme import blocks

FOLDER = pathlib.Path("docs/pictures")
ROWS = pathlib.Path("benchmarks/results/main_job.json")
# as the stored row names them, and as the picture does
NAMES = {
    "default": "default model",
    "free: cross-validated on the public records": "free choice",
    "tuned privately": "DPSearch, epsilon 1",
    "tuned on the protected records, not private": "tuned without privacy",
}
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


def lines() -> str:
    """What the gallery runs: the lines of the how-to pages, then its own."""
    return "".join(blocks("docs/how-to/index.md") + blocks("docs/gallery.md"))


def draw_main_job() -> None:
    """The mean test accuracies of the main job, with their standard errors."""
    runs = json.loads(ROWS.read_text())["figures"]["runs"]
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    for place, (name, label) in enumerate(reversed(NAMES.items())):
        mean, error = runs[name]["mean"], runs[name]["se"]
        axes.errorbar(mean, label, xerr=error, fmt="o", color="C0", capsize=4)
        axes.annotate(f"{mean:.1f}", (mean, place), (0, 7), textcoords="offset points", ha="center")
    axes.set_ylim(-0.5, len(NAMES) - 0.3)
    axes.set_xlabel("test accuracy, %: mean of ten splits, and its standard error")
    figure.savefig(FOLDER / "main_job.png", dpi=150)


def draw_plan() -> None:
    """What 5,000 units at epsilon 1 can show."""
    axes = plot_plan(5000, Budget(1.0, 1e-6))
    axes.figure.savefig(FOLDER / "plan.png", dpi=150)


def main() -> None:
    """Draw, then photograph."""
    matplotlib.use("Agg")
    draw_main_job()
    draw_plan()
    code = compile(lines(), "gallery.md", "exec")
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            exec(code, {})
        page = pathlib.Path(folder, "report.html")
        browser = shutil.which("chromium")
        if browser is not None:
            # the page begins with the ledger's whole path
            page.write_text(page.read_text().replace(folder, "/home/study"))
            picture = page.with_suffix(".png")
            command = [browser, *OPTIONS, "--window-size=960,1400", f"--screenshot={picture}"]
            subprocess.run([*command, f"file://{page}"], check=True)
            # few colours need a third of the bytes
            Image.open(picture).convert("RGB").quantize(32).save(picture, optimize=True)
        for drawn in pathlib.Path(folder).glob("*.png"):
            shutil.copy(drawn, FOLDER)


if __name__ == "__main__":
    main()
