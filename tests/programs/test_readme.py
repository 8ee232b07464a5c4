"""What the README and the how-to pages print runs as it is printed; the loop twice: from the start,
and again from its ledger.
"""

import math
import os
import re
import subprocess
import sys
import sysconfig

import matplotlib
import matplotlib.pyplot
import pytest
import scipy.stats
from botorch.acquisition.multi_objective import logei

from dpbo import Budget
from dpbo.accounting import GDPFilter, PureFilter
from tests.setups import ROOT, owner
from tools import pictures, readme
from tools.readme import blocks, form

# Those that train, audit, or search several times: `make pages` runs them.
LONG = ("check", "dp-sgd", "loop", "optuna-ax", "other-releases", "search", "tune-dp-sgd")
PAGES = [
    pytest.param(page, marks=pytest.mark.deep if page.stem in LONG else ())
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    if page.stem not in ("index", "pictures-and-report")
]


@pytest.mark.usefixtures("seeded_noise", "unknown_records")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_whole_loop(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "state"))
    """The page's plain case, which ends at its first heading."""
    plain = blocks("docs/how-to/index.md") + blocks("docs/how-to/loop.md")[:1]
    loop = "".join(plain).replace("evaluations=30", "evaluations=11")
    outputs = []
    for _ in range(2):
        exec(compile(loop, "loop.md", "exec"), {})
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1], "the second run finds everything done"
    assert "(3.000, 1e-06)-DP" in outputs[0]
    accuracy = float(outputs[0].split("} ")[1].split()[0])
    assert 0.7 < accuracy < 1.1


# By other noise the recommended weights are at times the default's, which are printed as None.
SEEDED = """
from dpbo import entropy
from tests.setups import seeded_system

vars(entropy).update(seeded_system())
"""
END = "\nprint('-' * 9)\n"


def test_the_readme_prints_what_it_shows_where_libraries_lie_outside_the_interpreter(tmp_path):
    """As of `pip install --target`: they were taken for the caller's own code, and a search ended
    in an AttributeError, or never.
    """
    libraries = tmp_path / "libraries"
    libraries.symlink_to(sysconfig.get_paths()["purelib"])
    paths = {"PYTHONPATH": os.pathsep.join([str(libraries), str(ROOT)])}
    programs, shown = zip(*readme.examples(), strict=True)
    python: str = sys._base_executable  # type: ignore[attr-defined]
    done = subprocess.run(
        [python, "-W", "ignore", "-c", SEEDED + END.join(programs)],
        env={**os.environ, **paths},
        cwd=tmp_path,
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert list(map(form, done.stdout.split("-" * 9))) == list(map(form, shown))


@pytest.mark.usefixtures("seeded_noise", "unknown_records")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_how_to_page_runs_after_the_lines_of_the_first(page, tmp_path, monkeypatch):
    # BoTorch would compile a kernel of one page's acquisition for most of a minute.
    monkeypatch.setattr(logei, "_load_attempted", True, raising=False)
    # A reader runs each page in a folder of its own.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "state"))
    code = "".join(blocks("docs/how-to/index.md") + blocks(page))
    code = code.replace("evaluations=30", "evaluations=11")
    exec(compile(code, page.name, "exec"), {})


def test_the_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") < 100


def test_the_table_of_what_an_epsilon_means():
    """As the statement prints it, for Gaussian DP and for pure epsilon."""
    lines = (ROOT / "docs/choosing.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| true-positive rate"))
    epsilons, gaussian, pure = (
        line.split("|")[2:8] for line in (lines[start], *lines[start + 2 : start + 4])
    )
    assert "under `PureFilter`" in lines[start + 3]
    for epsilon, told, other in zip(epsilons, gaussian, pure, strict=True):
        mu = math.sqrt(float(GDPFilter().cap(Budget(float(epsilon), 1e-6)).parts[0]))
        assert (
            0 <= float(told) - 100 * scipy.stats.norm.cdf(scipy.stats.norm.ppf(0.01) + mu) < 0.1
        ), "rounded up"
        curator = owner(
            [0, 1], unit="patient", budget=Budget(float(epsilon), 0.0), accounting=PureFilter()
        )
        assert f"at most {other.strip()} %" in str(curator.statement())


GALLERY = re.findall(r"!\[.*\]\((pictures/\w+\.png)\)", (ROOT / "docs/gallery.md").read_text())


@pytest.mark.parametrize("picture", GALLERY)
def test_the_pictures_of_the_gallery_are_small(picture):
    assert (ROOT / "docs" / picture).stat().st_size < 60_000


@pytest.mark.usefixtures("seeded_noise")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.deep
def test_the_gallery_draws_its_pictures(tmp_path, monkeypatch):
    """All but the photograph of the report."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    exec(compile(pictures.lines(), "gallery.md", "exec"), {})
    assert (tmp_path / "report.html").exists()
    drawn = {f"pictures/{path.name}" for path in tmp_path.glob("*.png")}
    assert drawn == {*GALLERY} - {"pictures/report.png"}
    matplotlib.pyplot.close("all")


@pytest.mark.deep
def test_the_documentation_builds_without_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "docs",
        str(tmp_path / "html"),
    ]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "trees")], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "html" / "api" / "dpbo.html").read_text()
    assert 'id="dpbo.Curator.release"' in reference
    assert "mark_probed" not in reference, "only dpbo calls it"
    assert "<img" in (tmp_path / "html" / "tutorials" / "quickstart.html").read_text()
    found = (tmp_path / "html" / "searchindex.js").read_text()
    assert all(
        f'"{page}"' in found
        for page in ("how-to/loop", "errors", "glossary", "tutorials/quickstart")
    )


def test_every_link_of_the_repository_leads_somewhere():
    for page in [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (ROOT / target).exists() or (page.parent / target).exists(), (
                f"{page.name}: {target}"
            )
