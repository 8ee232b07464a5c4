"""The wheel carries everything it needs and nothing else, and installs into an empty environment."""

import pathlib
import re
import subprocess
import sys
import tomllib
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.deep
def test_the_wheel_holds_stubs_and_the_typed_marker_but_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for package in (p.parent.relative_to(ROOT) for p in (ROOT / "dpbo").rglob("__init__.pyi")):
        assert f"{package}/__init__.pyi" in names
    assert "dpbo/py.typed" in names
    assert not [name for name in names if name.split("/")[0] not in ("dpbo", wheel.name.split("-py3")[0] + ".dist-info")]


@pytest.mark.deep
def test_the_wheel_runs_where_its_dependencies_are_and_names_what_is_missing_elsewhere(wheel, tmp_path):
    """Without dependencies, so that nothing is downloaded: in an empty environment, and beside this environment's libraries."""
    venv.create(tmp_path / "empty", with_pip=True)
    install, target = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], tmp_path / "site"
    subprocess.run([tmp_path / "empty" / "bin" / "python", *install], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "empty" / "bin" / "python", "-c", "import dpbo"], capture_output=True, text=True)
    assert "lazy_loader" in done.stderr
    subprocess.run([sys.executable, *install, "--target", target], check=True)
    code = f"import sys; sys.path.insert(0, r'{target}'); import dpbo; print(dpbo.__file__); print(dpbo.Budget(3.0, 1e-6), dpbo.Curator)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith(str(target))


def test_dependencies_have_lower_bounds_only_and_constraints_pin_them_all():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [re.fullmatch(r"([\w.-]+)==([\w.]+)( ; python_version [<>=]+ \"3\.\d+\")?", line) for line in lines if line[:1] != "#"]
    # a local version, such as that of a CPU build, would not match
    assert all(pinned)
    pins = {pin[1] for pin in pinned if pin}
    extras = [d for group in project["optional-dependencies"].values() for d in group]
    for dependency in project["dependencies"] + extras:
        if not dependency.startswith("dpbo"):
            name, _, bound = dependency.partition(">=")
            assert bound
            assert "," not in bound
            assert name.partition("[")[0].lower() in pins, name


def test_an_editable_install_is_a_plain_path_that_type_checkers_follow(tmp_path):
    code = "from importlib.machinery import PathFinder; print(PathFinder.find_spec('dpbo').origin)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert pathlib.Path(done.stdout.strip()) == ROOT / "dpbo" / "__init__.py"
    assert (ROOT / "dpbo" / "py.typed").exists()


@pytest.mark.deep
def test_a_users_script_is_type_checked_strictly_against_the_stubs(tmp_path):
    script = tmp_path / "use.py"
    script.write_text("import dpbo\nfrom dpbo.algorithms import DPGIBO\nreveal_type(dpbo.Budget(1.0, 1e-6))\nreveal_type(DPGIBO.run)\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert '"dpbo.privacy.Budget"' in done.stdout
    assert "dpbo.algorithms.gibo.GIBOResult" in done.stdout
