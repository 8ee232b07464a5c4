"""Install the wheel of dist/ into empty environments and try it there: `make dist-check`.

For each Python one environment with the core dependencies alone and one for each extra, each made
anew and removed when it was tried. The extra `test` is left out: it is what `make test` installs.
With `--uv`, its cache is shared, so that each environment takes seconds.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).parents[1]


def main() -> int:
    """0 if everything works in every environment."""
    parser = argparse.ArgumentParser(
        prog="python tools/dist_check.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--python",
        action="append",
        help="an interpreter; may be given several times (default: this one)",
    )
    parser.add_argument(
        "--extras", nargs="*", help="these alone; `core` for none (default: core and every extra)"
    )
    parser.add_argument("--uv", help="the uv that installs (default: pip)")
    parser.add_argument(
        "--install",
        nargs=argparse.REMAINDER,
        default=[],
        help="last: more arguments of the install",
    )
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wheel,) = (ROOT / "dist").glob("*.whl")
    extras = options.extras or ["core", *sorted(set(project["optional-dependencies"]) - {"test"})]
    failed = 0
    for python in options.python or [sys.executable]:
        for extra in extras:
            started = time.monotonic()
            done = tried(python, wheel, "" if extra == "core" else extra, options)
            failed += done.returncode != 0
            said = (
                done.stdout.strip().rpartition("\n")[2]
                if done.returncode == 0
                else done.stdout + done.stderr
            )
            verdict = "works" if done.returncode == 0 else "FAILS"
            print(
                f"{verdict}  {python} {extra} ({time.monotonic() - started:.0f} s): {said}",
                flush=True,
            )
    return 1 if failed else 0


def tried(
    python: str, wheel: pathlib.Path, extra: str, options: argparse.Namespace
) -> "subprocess.CompletedProcess[str]":
    """The first step that fails in an environment of its own, or the last one."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dpbo-"))
    inside = str(folder / "env" / "bin" / "python")
    wanted = [f"{wheel}[{extra}]" if extra else str(wheel), *options.install]
    if options.uv:
        made = [options.uv, "venv", "-q", "--python", python, str(folder / "env")]
        install = [options.uv, "pip", "install", "-q", "--python", inside, *wanted]
    else:
        made = [python, "-m", "venv", str(folder / "env")]
        install = [inside, "-m", "pip", "install", "-q", *wanted]
    (folder / "empty").mkdir()
    version = wheel.name.split("-")[1]
    try:
        for command in (
            made,
            install,
            [inside, str(ROOT / "tools" / "installed.py"), version, *([extra] if extra else [])],
        ):
            done = subprocess.run(
                command,
                cwd=folder / "empty",
                capture_output=True,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            if done.returncode:
                break
        return done
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
