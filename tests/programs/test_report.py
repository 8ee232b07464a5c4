"""The report as a reader sees it: a real browser reads the page and prints it."""

import html.parser
import os
import re
import shutil
import subprocess
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.svm import SVC

import dpbo
from dpbo.__main__ import main
from dpbo.accounting import PureFilter
from dpbo.dpsgd.selection import NoisedScore, private_selection
from dpbo.errors import UsageError
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism, PermuteAndFlipMechanism
from dpbo.queries import CandidateScores, ClippedMean
from dpbo.reporting.words import with_noise
from dpbo.run_counts import FixedRuns
from dpbo.search import Choice, NoisedSearch
from dpbo.statement import format_down
from tests.setups import DOUBLE, ROOT, of, owner

HOSTILE = '<script>document.title="owned"</script>"\'&<img src=x onerror=alert(1)>'
SPACE = dpbo.Space(**{"rate<b>": scipy.stats.loguniform(1e-3, 1.0), "kernel": ["rbf", HOSTILE]})


@pytest.fixture(scope="module")
def browser():
    """Chromium's program. Skips where it is not installed, and fails there in CI."""
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if found is None:
        reason = "Chromium is not installed: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def score(x, records):
    return (0.8 - (x[0] - 0.4) ** 2 + 0.1 * (records - 0.5)).clamp(0, 1)


def study(folder, name=HOSTILE):
    records = torch.linspace(0, 1, 400, dtype=DOUBLE)
    curator = owner(records, unit=HOSTILE, dataset=name, ledger=str(folder / "l.db"))
    terms = {"noted": HOSTILE}
    objective = dpbo.PrivateObjective(
        curator, score, score_range=(0.0, 1.0), evaluations=12, name=name, budget=0.6, terms=terms
    )
    return curator, objective


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A ledger with a search, a single score, a choice, a loose release and hostile names: its
    curator and objective.
    """
    folder = tmp_path_factory.mktemp("report")
    curator, objective = study(folder)
    objective(SPACE.sample(9, seed=0))
    single = dpbo.PrivateObjective(
        curator, score, score_range=(0.0, 1.0), evaluations=1, name="final", budget=0.1
    )
    single(objective.history()[0][:1])
    curator.release(
        CandidateScores(score, list(SPACE.sample(4, seed=1)), score_range=(0.0, 1.0)),
        PermuteAndFlipMechanism(20.0),
    )
    curator.release(
        ClippedMean(score, torch.tensor([0.5]), score_range=(0.0, 1.0)), GaussianMechanism(40.0)
    )
    return curator, objective, folder


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.parts = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.parts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.parts).split())

    def named(self, kind):
        return [
            attributes
            for tag, attributes in self.tags
            if attributes.get("class") == kind or tag == kind
        ]


def require_alone(page):
    """No script, no other file, no handler of an event."""
    assert page.isascii()
    seen = Page(page)
    assert not [
        tag
        for tag, _ in seen.tags
        if tag in ("script", "img", "link", "iframe", "object", "a", "image", "base", "form")
    ]
    for tag, attributes in seen.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, attributes)
            # parts of the picture's own
            assert name not in ("src", "href", "action", "xlink:href") or value[0] == "#"
    assert not re.search(r"url\((?!#)|@import", page)
    return seen


def test_a_browser_shows_the_whole_story_and_runs_nothing(ledger, browser, tmp_path):
    curator, objective, _ = ledger
    (tmp_path / "r.html").write_text(dpbo.report(objective, space={HOSTILE: SPACE, "final": SPACE}))
    done = subprocess.run(
        [*browser, "--dump-dom", f"file://{tmp_path}/r.html"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seen = Page(done.stdout)
    assert not seen.named("script")
    assert not seen.named("img")
    assert "<title>owned" not in done.stdout, "no script ran"
    _, Y, Yvar = objective.history()
    left = format_down(curator.remaining_epsilon)
    first = with_noise(float(Y[0]), float(Yvar[0].sqrt()))
    hash = curator.statement().head
    summary = [
        "Privacy report",
        "at most 20.1 times",
        "0.6478-GDP means",
        left,
        "9 of 12",
        "Reserved for later releases",
        "score-per-record",
        hash,
    ]
    for part in (
        *summary,
        "Recommended is evaluation",
        "candidate",
        "of 4 was chosen",
        "plus at most one in 1,000,000",
        "without a reservation",
        "noted",
        first,
        " ".join(HOSTILE.split()),
    ):
        assert part in seen.text, part
    picture = next(
        attributes for tag, attributes in seen.tags if tag == "div" and "role" in attributes
    )
    bars = [seen.named(kind)[0]["style"] for kind in ("used", "reserved", "left")]
    shares = [float(re.findall(r"[0-9.]+", style)[0]) for style in bars]
    assert sum(shares) == pytest.approx(100, abs=0.01)
    assert shares[2] == pytest.approx(100 * curator.statement().remaining, abs=0.02)
    assert len(seen.named("svg")) == 1
    assert picture["aria-label"]


@pytest.mark.deep
def test_it_prints_and_has_a_dark_form(ledger, browser, tmp_path):
    (tmp_path / "r.html").write_text(dpbo.report(ledger[0]))
    printed = [
        *browser,
        f"--print-to-pdf={tmp_path}/r.pdf",
        "--no-pdf-header-footer",
        f"file://{tmp_path}/r.html",
    ]
    subprocess.run(printed, capture_output=True, check=True, timeout=120)
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    shots = []
    # Dark, light.
    for scheme in (0, 1):
        shot = [
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--screenshot={tmp_path}/{scheme}.png",
            "--window-size=60,60",
        ]
        subprocess.run(
            [*browser, *shot, f"file://{tmp_path}/r.html"],
            capture_output=True,
            check=True,
            timeout=120,
        )
        shots.append(brightness(tmp_path / f"{scheme}.png"))
    assert shots[0] < 0.3 < 0.8 < shots[1], "brightness of the page"


def brightness(file):
    """Mean of a picture's pixels, in [0, 1]."""
    return float(matplotlib.pyplot.imread(file)[..., :3].mean())


def test_the_page_stands_alone_whatever_it_is_made_of(ledger, tmp_path):
    curator, objective, folder = ledger
    file = folder / "l.db"
    search = type("Search", (), {"objective": objective, "space": SPACE})()
    spaces = {HOSTILE: SPACE}
    pages = [
        dpbo.report(source, title=HOSTILE)
        for source in (curator, objective, search, str(file), file)
    ]
    for page in (*pages, dpbo.report(curator, space=spaces), dpbo.report(curator, space=SPACE)):
        require_alone(page)
    assert pages[0] == pages[1] == pages[3] == pages[4], "each picture is drawn the same again"
    assert "does not say which parameters they stand for" in pages[0]
    assert "rate&lt;b&gt;" in pages[2], "a search has its space"
    fresh = dpbo.report(owner(torch.zeros(9), unit="x", budget=dpbo.Budget.gdp(1.0)))
    assert "Nothing was released yet." in fresh
    assert 'role="alert">This process only' in fresh
    assert "&#956; &#8804; 1.000" in fresh
    void = dpbo.report(
        dpbo.Curator.rehearsal(
            torch.zeros(9), unit="x", adjacency="replace-one", budget=dpbo.Budget(1.0, 1e-6)
        )
    )
    assert "VOID: rehearsal" in void
    assert "<strong>none</strong><span>void</span>" in void
    assert "&#8804;" not in void, "no epsilon is shown large"


def test_a_fitted_search_reports_what_it_recommends(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = X[:, 0] > 0
    space = {"C": scipy.stats.loguniform(1e-2, 1e2), "kernel": ["rbf", "linear"]}
    for strategy in (NoisedSearch(n_initial=4), Choice()):
        searched = isinstance(strategy, NoisedSearch)
        places: list[Any] = [
            {},
            {"ledger": str(tmp_path / f"{strategy.name}.db"), "dataset": "customers"},
            {"dataset": f"customers {strategy.name}"},
        ]
        for place in places if searched else places[:2]:
            privacy = dpbo.Privacy(unit="customer", allow_repeated=True, **place)
            settings = of(budget=dpbo.Budget(8.0, 1e-6), n_iter=5, privacy=privacy)
            search: Any = dpbo.DPSearch(SVC(random_state=0), space, strategy=strategy, **settings)
            page = dpbo.report(search.fit(X[:100], y[:100], X[100:], y[100:]))
            if place:
                alone = require_alone(dpbo.report(place.get("ledger", place["dataset"]))).text
                parameters = (
                    f"C {search.best_params_['C']:.4g} kernel {search.best_params_['kernel']}"
                )
                tested = searched and not search.recommendation_.kept
                assert (parameters in alone) is tested, "the ledger names what was tested"
                assert ("difference of the scores to a reference model's" in alone) is searched
                named = "'{dataset}'" if "ledger" not in place else f"{strategy.name}.db"
                assert f"ledger verify {named.format(**place)} --expect" in alone
                assert not re.search(
                    r"Filter|ClippedMean|CandidateScores|x0|number \d+ was|dpbo\.testing", alone
                )
                assert ("the 1e-06 that the budget allows is not used" in alone) is not searched
            seen = require_alone(page)
            text = seen.text
            assert (
                f"C {search.best_params_['C']:.4g} kernel {search.best_params_['kernel']}" in text
            )
            assert str(search.recommendation_) in text
            assert bool(seen.named("svg")) is searched
            assert ("5 of 5" in text) is (searched and bool(place))
            assert ("cross-validated score on public records" in text) is not searched
            assert ("Releases so far" in text) is bool(place)
            assert "Protected is each customer" in text


def test_the_winner_of_hidden_runs_is_shown_with_the_noise_of_its_score(on_disk):
    # The ledger sorts names, not these.
    space = dpbo.Space(lr=scipy.stats.loguniform(1e-2, 1.0), clip=scipy.stats.loguniform(1e-1, 1e1))
    curator = owner(
        torch.rand(500, dtype=DOUBLE),
        unit="customer",
        budget=dpbo.Budget(30.0, 0.0),
        accounting=PureFilter(),
        **on_disk,
    )
    noised = NoisedScore(
        lambda output, records: records * output, (0.0, 1.0), LaplaceMechanism(0.5)
    )
    settings = of(space=space, run_count=FixedRuns(3), base=[], score=noised)
    best = private_selection(curator, lambda parameters: parameters["lr"], name="runs", **settings)
    text = require_alone(dpbo.report(on_disk["ledger"])).text
    assert best.parameters is not None
    assert best.score is not None
    assert f"lr {best.parameters['lr']:.4g} clip {best.parameters['clip']:.4g}" in text
    assert f"Its score is {with_noise(best.score, 0.5 * 2**0.5 / 500)}" in text
    assert "was chosen" not in text


def test_the_command_writes_the_page(ledger, tmp_path, capsys):
    curator, _, folder = ledger
    file = folder / "l.db"
    head = curator.statement().head
    assert (
        main(
            [
                "report",
                str(file),
                "--output",
                str(tmp_path / "r.html"),
                "--title",
                "An & other",
                "--expect",
                head,
            ]
        )
        == 0
    )
    page = (tmp_path / "r.html").read_text()
    assert "<h1>An &amp; other</h1>" in page
    assert page == dpbo.report(file, title="An & other")
    for arguments, status, said in (
        ({"--expect": "0" * 64}, 6, "LedgerRolledBack"),
        ({"--output": str(tmp_path)}, 2, "--output"),
        ({"--at-delta": "0.5"}, 2, "--at-delta 0.5 is not allowed"),
    ):
        given = {"--output": str(tmp_path / "s.html"), **arguments}
        assert (
            main(["report", str(file), *(part for pair in given.items() for part in pair)])
            == status
        )
        assert said in capsys.readouterr().err
    assert not (tmp_path / "s.html").exists()


def test_the_how_to_page_runs_as_it_is_printed(ledger, tmp_path, monkeypatch):
    curator, objective, _ = ledger
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/pictures-and-report.md").read_text()
    names = {"dpbo": dpbo, "curator": curator, "objective": objective, "space": SPACE}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "pictures-and-report.md", "exec"), names)
    require_alone((tmp_path / "report.html").read_text())
    matplotlib.pyplot.close("all")


def test_a_search_without_a_fit_has_no_report():
    with pytest.raises(UsageError, match="not fitted"):
        dpbo.report(dpbo.DPSearch(SVC(), {"C": [1.0, 2.0]}))
