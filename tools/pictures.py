"""Run the lines of docs/gallery.md, and keep what they draw in docs/pictures: `make pictures`, in
the repository's root. The page of the report is photographed by Chromium, where there is one.
"""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile

import matplotlib
from PIL import Image

from tools.readme import blocks

FOLDER = pathlib.Path("docs/pictures")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


def lines() -> str:
    """What the gallery runs: the lines of the how-to pages, then its own."""
    return "".join(blocks("docs/how-to/index.md") + blocks("docs/gallery.md"))


def main() -> None:
    """Draw, then photograph."""
    matplotlib.use("Agg")
    code = compile(lines(), "gallery.md", "exec")
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            exec(code, {})
        page = pathlib.Path(folder, "report.html")
        browser = shutil.which("chromium")
        if browser is not None:
            picture = page.with_suffix(".png")
            command = [browser, *OPTIONS, "--window-size=960,1400", f"--screenshot={picture}"]
            subprocess.run([*command, f"file://{page}"], check=True)
            # few colours need a third of the bytes
            Image.open(picture).convert("RGB").quantize(32).save(picture, optimize=True)
        for drawn in pathlib.Path(folder).glob("*.png"):
            shutil.copy(drawn, FOLDER)


if __name__ == "__main__":
    main()
