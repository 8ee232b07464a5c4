"""Run what needs a GPU: the tests marked `cuda` or `gpu`, then `python -m benchmarks.gpu`.

    make gpu, or python -m tools.gpu, in the repository's root

Nothing is installed, and dpbo need not be: a Python with a CUDA build of torch runs it from here.
What that Python lacks is named, and may come from a folder of wheels, which `make wheels` fetches
where there is an index; they are unpacked into a temporary folder. Results are versions.txt,
tests.txt, gpu.txt and gpu.json.
"""

import argparse
import contextlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence

FOR_TESTS = ("pytest", "hypothesis", "pytest-timeout")
# Plugins by name, for those of dpbo and of other packages are not found where dpbo is not
# installed.
PLUGINS = (
    "-p",
    "dpbo.testing.plugin",
    "-p",
    "hypothesispytest",
    "-p",
    "timeout",
    "-p",
    "no:cacheprovider",
)
# What versions other than the pinned ones warn of is no error.
PYTEST = (
    "-m",
    "pytest",
    *PLUGINS,
    "-v",
    "-rs",
    "--tb=short",
    "-o",
    "filterwarnings=default",
    "-m",
    "cuda or gpu",
)


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options().parse_args(arguments)
    if not pathlib.Path("dpbo/__init__.py").exists():
        raise SystemExit("Start this in the repository's root, the folder that holds dpbo/.")
    with tempfile.TemporaryDirectory(prefix="dpbo_wheels_") as unpacked:
        if chosen.wheels:
            unpack(chosen.wheels, unpacked)
            sys.path.insert(0, unpacked)
        needed = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"][
            "dependencies"
        ]
        if lacking := missing([*needed, *FOR_TESTS]):
            raise SystemExit(advice(lacking))
        import torch  # not above: it may be what is missing

        has_gpu = torch.cuda.is_available()
        if not has_gpu and not chosen.without_gpu:
            raise SystemExit(
                f"There is no GPU here: torch {torch.__version__} finds no CUDA device."
                " --without-gpu goes on all the same."
            )
        chosen.results.mkdir(parents=True, exist_ok=True)
        for name in ("versions.txt", "tests.txt", "gpu.txt", "gpu.json"):
            # an earlier run's must not pass for this one's
            (chosen.results / name).unlink(missing_ok=True)
        (chosen.results / "versions.txt").write_text(versions())
        failed = run_all(chosen, environment(unpacked), has_gpu=has_gpu)
    sys.stdout.write(f"\nResults are in {chosen.results}\n")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}.")


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = pathlib.Path(os.environ.get("OUT") or "build/gpu")
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=folder,
        metavar="FOLDER",
        help="default: $OUT, else build/gpu",
    )
    parser.add_argument(
        "--wheels", type=pathlib.Path, metavar="FOLDER", help="wheels of what this Python lacks"
    )
    parser.add_argument(
        "--tests",
        type=int,
        default=200,
        metavar="SECONDS",
        help="at most so long; 0: no tests. Default: %(default)s",
    )
    parser.add_argument(
        "--benchmarks",
        type=int,
        default=330,
        metavar="SECONDS",
        help="at most so long; 0: none. Default: %(default)s",
    )
    parser.add_argument(
        "--without-gpu",
        action="store_true",
        help="go on without a GPU, with tiny benchmarks, to see that all starts",
    )
    return parser


def missing(requirements: Iterable[str]) -> list[str]:
    """Those that this Python does not meet: the package is not there, or in a version that is not
    allowed.
    """
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        return ["packaging"]
    found = []
    for requirement in requirements:
        wanted = Requirement(requirement)
        try:
            met = wanted.specifier.contains(
                importlib.metadata.version(wanted.name), prereleases=True
            )
        except importlib.metadata.PackageNotFoundError:
            met = False
        if not met:
            found.append(requirement)
    return found


def advice(lacking: Sequence[str]) -> str:
    return (
        f"{sys.executable} lacks {', '.join(lacking)}.\nInstall them. What is not torch, BoTorch or"
        " scikit-learn may also come as wheels:\n  where pip has an index:  make wheels"
        f" WHEELS=FOLDER FOR={sys.version_info[0]}.{sys.version_info[1]}\n  then here:             "
        "  make gpu WHEELS=FOLDER"
    )


def unpack(wheels: pathlib.Path, folder: str) -> None:
    """All wheels of a folder into another one, where Python finds them."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(
            f"There are no wheels in {wheels}. Where pip has an index, fetch them: make wheels"
            " WHEELS=FOLDER"
        )
    for file in files:
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(folder)


def versions() -> str:
    """Python, every package that can be imported, and what the driver says of the GPU."""
    packages: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        # the first one is imported
        packages.setdefault(found.metadata["Name"].lower(), found.version)
    lines = [
        f"python {sys.version.split()[0]}",
        *(f"{name} {version}" for name, version in sorted(packages.items())),
    ]
    if shutil.which("nvidia-smi"):
        asked = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory"
        lines.append(
            subprocess.run(
                ["nvidia-smi", asked, "--format=csv"], capture_output=True, text=True, check=False
            ).stdout
        )
    return "\n".join(lines) + "\n"


def environment(unpacked: str) -> dict[str, str]:
    """The variables of both programs; the tests set their number of threads to one themselves."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(pathlib.Path.cwd()), unpacked]),
        "PYTHONHASHSEED": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": str(min(8, os.cpu_count() or 1)),
    }


def run_all(
    chosen: argparse.Namespace, variables: Mapping[str, str], *, has_gpu: bool
) -> list[str]:
    """Tests, then benchmarks; the names of those that failed."""
    failed = []
    if chosen.tests:
        # ends between two tests, and then says what failed
        orderly = f"--session-timeout={max(1, chosen.tests - 10)}"
        command = [sys.executable, *PYTEST, orderly, *marked_files()]
        if run(command, chosen.tests, chosen.results / "tests.txt", variables):
            failed.append("tests")
    if chosen.benchmarks:
        size = [] if has_gpu else ["--smoke"]
        command = [
            sys.executable,
            "-u",
            "-m",
            "benchmarks.gpu",
            *size,
            "--json",
            str(chosen.results / "gpu.json"),
        ]
        if run(command, chosen.benchmarks, chosen.results / "gpu.txt", variables):
            failed.append("benchmarks.gpu")
    return failed


def marked_files() -> list[str]:
    """Files with tests for GPUs; to collect all others, too, takes half a minute."""
    files = sorted(pathlib.Path("tests").rglob("test_*.py"))
    return [str(file) for file in files if re.search(r"\bmark\.(cuda|gpu)\b", file.read_text())]


def run(
    command: Sequence[str], seconds: float, file: pathlib.Path, variables: Mapping[str, str]
) -> int:
    """The exit status of a command, whose output goes to a file and to the terminal; after so long
    it is killed with its children.
    """
    with (
        file.open("w") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables,
            start_new_session=True,
        ) as started,
    ):

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)

        limit = threading.Timer(seconds, kill)
        limit.start()
        try:
            for line in started.stdout or ():
                log.write(line)
                log.flush()
                sys.stdout.write(line)
                sys.stdout.flush()
            status = started.wait()
        finally:
            limit.cancel()
            kill()  # children that outlive it, and all of them after Ctrl-C
        if status == -signal.SIGKILL:
            log.write(f"\nKilled after {seconds} seconds.\n")
            sys.stdout.write(f"\nKilled after {seconds} seconds.\n")
        return status


if __name__ == "__main__":
    main()
