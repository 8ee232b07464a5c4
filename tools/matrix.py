"""The quick tests with the lowest, the pinned and the newest versions, on each Python: `make
matrix`.

An environment a cell, build/matrix/VERSIONS-PYTHON, made by uv, which keeps one copy of what
several environments hold (a CUDA build of torch takes 6 GB). Results go to
build/matrix/results.json, so that cells can be run in several calls:

    # all cells; a Python that is not found is left out
    python -m tools.matrix
    python -m tools.matrix --python 3.13 --versions newest
    # write the table into CONTRIBUTING.md from the results
    python -m tools.matrix --only-table

The newest versions are what uv chooses on that day. Where they are those of constraints.txt, the
tests are not run twice.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
RESULTS = FOLDER / "results.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
VERSIONS = {"lowest": "constraints-lowest.txt", "pinned": "constraints.txt", "newest": None}
SHOWN = (
    "torch",
    "numpy",
    "scipy",
    "botorch",
    "opacus",
    "scikit-learn",
    "pandas",
    "SQLAlchemy",
    "triton",
)
MARKS = "<!-- matrix: written by python -m tools.matrix -->", "<!-- matrix end -->"


def uv(*arguments: str) -> str:
    """What uv prints."""
    command = [sys.executable, "-m", "uv", "--quiet", "--no-python-downloads", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def commit() -> str:
    """The commit that is tested, with "+" where files differ from it."""
    return subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=8"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


def install(python: str, versions: str) -> pathlib.Path:
    """The cell's environment. torch is named beside dpbo, so that all constraints hold for it at
    once.
    """
    home = FOLDER / f"{versions}-{python}"
    uv("venv", "--clear", "--seed", "--python", python, str(home))
    constraints = VERSIONS[versions]
    chosen = [] if constraints is None else ["--constraints", constraints]
    uv("pip", "install", "--python", str(home), *chosen, "torch", "--editable", ".[test]")
    (home / ".installed").touch()  # for the Makefile, which would install by pip
    return home


def run(python: str, versions: str, known: dict[str, Any]) -> dict[str, Any]:
    """A cell's versions and the last line of its tests."""
    home = install(python, versions)
    frozen = uv("pip", "freeze", "--python", str(home)).splitlines()
    installed = dict(line.split("==") for line in frozen if "==" in line)
    cell: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "installed": installed,
    }
    same = known.get(f"pinned {python}")
    told = ("installed", "date", "commit")
    if versions == "newest" and same is not None and all(same[name] == cell[name] for name in told):
        return cell | {"result": same["result"], "rc": same["rc"]}
    log = FOLDER / f"{home.name}.log"
    # a Python of the cell's own for every process that the tests start
    environment = os.environ | {"PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    with log.open("w") as out:
        command = ["make", "--no-print-directory", "tests", f"VENV={home}"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    counted = re.findall(r"^\d+ (?:passed|failed).* in .*$", log.read_text(), flags=re.MULTILINE)
    return cell | {"result": counted[-1] if counted else "did not start", "rc": done.returncode}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = [
        "| Python, versions | " + " | ".join(SHOWN) + " | tests | date, commit |",
        "|---|" + "---|" * (len(SHOWN) + 2),
    ]
    for name, cell in sorted(
        results.items(),
        key=lambda row: (row[0].split()[1], list(VERSIONS).index(row[0].split()[0])),
    ):
        versions, python = name.split()
        installed = {key.lower(): version for key, version in cell["installed"].items()}
        shown = [installed.get(package.lower(), "-").partition("+")[0] for package in SHOWN]
        counts = cell["result"].partition(" in ")[0]
        rows.append(
            f"| {python} {versions} | {' | '.join(shown)} | {counts} | {cell['date']},"
            f" {cell['commit']} |"
        )
    return "\n".join(rows)


def write(results: dict[str, Any]) -> None:
    """Put the table into CONTRIBUTING.md."""
    page = ROOT / "CONTRIBUTING.md"
    text = page.read_text()
    if any(text.count(mark) != 1 for mark in MARKS):
        raise SystemExit(f"{page.name} must have each of these lines once: {MARKS}")
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    page.write_text(f"{before}{MARKS[0]}\n{table(results)}\n{MARKS[1]}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), choices=list(VERSIONS))
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    if importlib.util.find_spec("uv") is None:
        raise SystemExit(f"{sys.executable} has no uv. It comes with the extra `test`.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    ran = 0
    for python in () if chosen.only_table else chosen.python:
        try:
            uv("python", "find", python)
        except subprocess.CalledProcessError:
            print(f"{python}: not found, left out", flush=True)
            continue
        for versions in chosen.versions:
            name = f"{versions} {python}"
            # what fails to install has no old result
            results.pop(name, None)
            RESULTS.write_text(json.dumps(results, indent=1))
            results[name] = run(python, versions, results)
            print(f"{name}: {results[name]['result']}", flush=True)
            RESULTS.write_text(json.dumps(results, indent=1))
            ran += 1
    if not ran and not chosen.only_table:
        raise SystemExit("No cell was run.")
    write(results)
    return int(any(cell["rc"] for cell in results.values()))


if __name__ == "__main__":
    sys.exit(main())
