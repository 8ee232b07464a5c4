"""Try the dpbo that this Python has installed: `python tools/installed.py VERSION [EXTRA]`, from an
empty folder.

Every module and every public name is there, or is refused by the name of an extra that is not
installed. Without an extra, with the core dependencies alone, the README's blocks and the demo run
as well.
"""

import importlib
import importlib.metadata
import pathlib
import pkgutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable
from typing import Any

import readme

import dpbo
from dpbo.errors import LedgerUnavailable, MissingLibrary
from dpbo.extras import EXTRAS, needs
from dpbo.ledger.storage import Storage
from dpbo.reporting.plots import plot_noise


def main(version: str, extra: str = "") -> None:
    """Raises AssertionError, or what failed."""
    assert pathlib.Path(dpbo.__file__).is_relative_to(sysconfig.get_path("purelib")), dpbo.__file__
    assert dpbo.__version__ == importlib.metadata.version("dpbo") == version
    script = str(pathlib.Path(sysconfig.get_path("scripts")) / "dpbo")
    for command in ([script], [sys.executable, "-m", "dpbo"]):
        assert printed(*command, "--version") == f"dpbo {version}\n"
        assert "ledger" in printed(*command, "--help")
    there = {name for name in EXTRAS if installed(name)}
    assert not extra or extra in there | {"docs"}, f"{extra} does not install what it names"
    refused = {refusal.extra for refusal in refusals()}
    assert not refused & there, f"installed, and yet refused: {refused & there}"
    try_extras(there)
    if not extra:
        for block, _ in readme.examples():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(block, "README.md", "exec"), {})
        assert "DP" in printed(script, "--candidates", "6")
    print(
        f"extras there: {', '.join(sorted(there)) or 'none'}; refused by name:"
        f" {', '.join(sorted(refused)) or 'none'}"
    )


def printed(*command: str) -> str:
    """What a command prints. Raises where it fails."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def installed(extra: str) -> bool:
    """Whether all libraries of the extra can be imported."""
    try:
        with needs(extra):
            for module in EXTRAS[extra]:
                importlib.import_module(module)
    except MissingLibrary:
        return False
    return True


def refusals() -> list[MissingLibrary]:
    """The errors of those modules and public names that need a library which is not there; every
    other one is imported.
    """
    found: list[MissingLibrary] = []
    for module in pkgutil.walk_packages(dpbo.__path__, "dpbo.", onerror=lambda _: None):
        if module.name.endswith("__main__"):
            continue
        try:
            for name in getattr(importlib.import_module(module.name), "__all__", ()):
                getattr(sys.modules[module.name], name)
        except MissingLibrary as error:
            found.append(error)
    return found


def try_extras(there: set[str]) -> None:
    """What is imported only when it is used works where its extra is there, and names it
    elsewhere.
    """
    nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    uses: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
        "plots": (lambda: plot_noise(100), Worked),
        "postgres": (lambda: Storage(nowhere), LedgerUnavailable),
    }
    for extra, (use, raised) in uses.items():
        error = error_of(use)
        expected = raised if extra in there else MissingLibrary
        assert isinstance(error, expected), f"{extra}: {type(error).__name__}: {error}"
        assert extra in there or f'pip install "dpbo[{extra}]"' in str(error), str(error)


class Worked(Exception):
    """What stands for success, so that every use ends with an error."""


def error_of(use: Callable[[], Any]) -> Exception:
    """The error that a use ends with."""
    try:
        use()
    except Exception as error:
        return error
    return Worked()


if __name__ == "__main__":
    main(*sys.argv[1:])
