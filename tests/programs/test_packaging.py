"""The wheel carries everything it needs and nothing else, and installs into an empty
environment.
"""

import ast
import importlib
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile

import pytest

import dpbo
from dpbo.__main__ import main
from dpbo.extras import EXTRAS
from tests.setups import ROOT


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(kind, folder):
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build("--wheel", folder)
    return next(folder.glob("*.whl"))


@pytest.mark.deep
def test_the_wheel_holds_stubs_and_the_typed_marker_but_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for package in (p.parent.relative_to(ROOT) for p in (ROOT / "dpbo").rglob("__init__.pyi")):
        assert f"{package}/__init__.pyi" in names
    assert "dpbo/py.typed" in names
    assert not [
        name
        for name in names
        if name.split("/")[0] not in ("dpbo", wheel.name.split("-py3")[0] + ".dist-info")
    ]


@pytest.mark.deep
def test_the_wheel_runs_and_names_the_dependencies_that_are_missing(wheel, tmp_path):
    """Without dependencies, so that nothing is downloaded: in an empty environment, and beside this
    environment's libraries.
    """
    venv.create(tmp_path / "empty", with_pip=True)
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    target = tmp_path / "site"
    subprocess.run(
        [tmp_path / "empty" / "bin" / "python", *install], check=True, capture_output=True
    )
    done = subprocess.run(
        [tmp_path / "empty" / "bin" / "python", "-c", "import dpbo"], capture_output=True, text=True
    )
    assert "lazy_loader" in done.stderr
    subprocess.run([sys.executable, *install, "--target", target], check=True)
    code = (
        f"import sys; sys.path.insert(0, r'{target}'); import dpbo; print(dpbo.__file__);"
        " print(dpbo.Budget(3.0, 1e-6), dpbo.Curator)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.startswith(str(target))


@pytest.mark.deep
def test_what_the_index_shows_has_no_link_that_leads_nowhere(wheel):
    page = zipfile.ZipFile(wheel).read(f"{wheel.name.split('-py3')[0]}.dist-info/METADATA").decode()
    assert "# dpbo: differentially private" in page
    assert "how to do each task" in page
    assert not re.search(r"\]\((?!https?:|#)", page)


@pytest.mark.deep
def test_the_source_distribution_has_what_a_distributor_needs(tmp_path):
    build("--sdist", tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    missing = {
        name for name in tracked if not name.startswith((".ci/", ".git", ".pre-commit"))
    } - held
    assert not missing
    assert not [name for name in held if name.endswith((".pyc", ".db", ".so"))]


def test_the_version_stands_in_one_place():
    """Of the files that give it, one is the source, and the citation is held to it."""
    assert "version" in project()["dynamic"]
    assert importlib.metadata.version("dpbo") == dpbo.__version__, (
        "install again: the version was changed"
    )
    assert f"\nversion: {dpbo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    held = [
        path
        for path in (ROOT / "dpbo").rglob("*.py")
        if f'"{dpbo.__version__}"' in path.read_text()
    ]
    assert held == [ROOT / "dpbo" / "_version.py"]


def test_the_console_script_is_the_module():
    name, _, function = project()["scripts"]["dpbo"].partition(":")
    assert getattr(importlib.import_module(name), function) is main


def test_every_library_that_dpbo_imports_is_declared():
    """As a dependency, or as a library of an extra, which the error of `dpbo.extras` then names."""
    renamed = {"ax": "ax-platform", "sklearn": "scikit-learn", "lazy_loader": "lazy-loader"}
    declared = {re.split(r"[>\[;]", each)[0].lower() for each in project()["dependencies"]}
    groups = project()["optional-dependencies"]
    assert set(EXTRAS) == set(groups) - {"docs", "examples", "test"}
    # What runs the application that dpbo makes is the user's own program.
    run_by_users = {"http": {"uvicorn"}}
    for extra, modules in EXTRAS.items():
        imported = {renamed.get(module, module) for module in modules}
        assert imported | run_by_users.get(extra, set()) == {
            re.split(r"[>\[;]", each)[0] for each in groups[extra]
        }
    optional = {module for modules in EXTRAS.values() for module in modules}
    # Imported only where the caller's own table is one of its own.
    optional.add("pandas")
    found = set()
    for path in (ROOT / "dpbo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    foreign = found - set(sys.stdlib_module_names) - {"dpbo"} - optional
    assert len(foreign) > 8
    assert {renamed.get(module, module) for module in foreign} <= declared


def test_dependencies_have_lower_bounds_only_and_constraints_pin_them_all():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [
        re.fullmatch(r"([\w.-]+)==([\w.]+)( ; python_version [<>=]+ \"3\.\d+\")?", line)
        for line in lines
        if line[:1] != "#"
    ]
    # a local version, such as that of a CPU build, would not match
    assert all(pinned)
    pins = {pin[1] for pin in pinned if pin}
    extras = [d for group in project()["optional-dependencies"].values() for d in group]
    for dependency in project()["dependencies"] + extras:
        if not dependency.startswith("dpbo"):
            name, _, bound = dependency.partition(">=")
            assert bound
            assert "," not in bound
            assert name.partition("[")[0].lower().replace("_", "-") in pins, name


def test_an_editable_install_is_a_plain_path_that_type_checkers_follow(tmp_path):
    code = "from importlib.machinery import PathFinder; print(PathFinder.find_spec('dpbo').origin)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert pathlib.Path(done.stdout.strip()) == ROOT / "dpbo" / "__init__.py"
    assert (ROOT / "dpbo" / "py.typed").exists()


@pytest.mark.deep
def test_a_users_script_is_type_checked_strictly_against_the_stubs(tmp_path):
    script = tmp_path / "use.py"
    script.write_text(
        "import dpbo\nfrom dpbo.gibo import DPGIBO\nreveal_type(dpbo.Budget(1.0,"
        " 1e-6))\nreveal_type(DPGIBO.run)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert '"dpbo.privacy.Budget"' in done.stdout
    assert "dpbo.gibo.algorithm.GIBOResult" in done.stdout
