"""Every measured figure of a page comes from a stored row of benchmarks/results."""

import json
import shutil

import jinja2
import pytest

from benchmarks.figures import RESULTS, rendered
from benchmarks.papers.verdicts import verdict, verdict_of_share
from tests.setups import ROOT

PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "{{" in page.read_text()]


def test_every_expression_of_every_page_has_its_row():
    assert len(PAGES) >= 6
    for page in PAGES:
        text = rendered(page.read_text())
        assert "{{" not in text, page
        assert "nan" not in text.split(), page


def test_a_page_follows_its_row(tmp_path):
    results = shutil.copytree(RESULTS, tmp_path / "results")
    stored = json.loads((results / "dpem.json").read_text())
    stored["figures"]["speed"]["times faster"] = 77.7
    stored["figures"]["factors as coded"][0]["longest row"] = 88.8
    (results / "dpem.json").write_text(json.dumps(stored))
    page = '{{ row("dpem > speed > times faster", ".1f") }} {{ table("dpem > factors as coded") }}'
    assert "77.7" not in rendered(page)
    changed = rendered(page, results)
    assert changed.startswith("77.7 ")
    assert "| 88.8 |" in changed


@pytest.mark.parametrize(
    "expression",
    [
        'row("dpem > nothing", ".2f")',
        'row("dpem > NICV > epsilon=7 > non-private", ".2f")',
        'gap("dpgibo > 4.3", "no such claim")',
        'table("dpem > nothing")',
        'counted("kusner > public design", "difference", epsilon=["7"])',
        'kept("9")',
        "unknown",
    ],
)
def test_what_no_row_has_is_an_error(expression):
    with pytest.raises((KeyError, ValueError, jinja2.UndefinedError)):
        rendered("{{ " + expression + " }}")


@pytest.mark.parametrize(
    ("difference", "error", "printed", "within", "expected"),
    [
        # the half-width of fifty replications is 2.01 standard errors
        (-2.1, 1.0, "below", 0.0, "reproduced"),
        (-1.9, 1.0, "below", 0.0, "not reproduced"),
        (2.1, 1.0, "below", 0.0, "differs"),
        (2.1, 1.0, "above", 0.0, "reproduced"),
        (-2.1, 1.0, "above", 0.0, "differs"),
        (-2.5, 1.0, "below", 1.0, "not reproduced"),
        (0.0, 0.0, "below", 0.0, "not reproduced"),
        (0.1, 0.1, 0.0, 0.4, "reproduced"),
        (0.1, 0.1, 0.0, 0.2, "not reproduced"),
        (1.0, 0.1, 0.0, 0.2, "differs"),
        (1.0, 0.1, 1.1, 0.4, "reproduced"),
    ],
)
def test_a_verdict_follows_from_the_interval(difference, error, printed, within, expected):
    assert verdict(difference, error, printed=printed, within=within) == expected


def test_a_page_takes_its_verdict_from_the_row(tmp_path):
    row = {"mean": -2.1, "se": 1.0, "median": -2.0, "n": 50}
    page = '{{ verdict("made > gap", "below") }}'
    for n, expected in ((50, "reproduced"), (4, "not reproduced")):
        (tmp_path / "made.json").write_text(json.dumps({"figures": {"gap": row | {"n": n}}}))
        assert rendered(page, tmp_path) == expected


@pytest.mark.parametrize(
    ("gaps", "rank", "expected"),
    [
        ([3.0, 3.0, 3.0, 3.0, 3.0], 1, "reproduced"),
        # beyond 2.01 standard errors of one interval, within 2.68 of five
        ([3.0, 3.0, 3.0, 3.0, 2.3], 1, "not reproduced"),
        ([3.0, 3.0, 3.0, 3.0, -2.3], 1, "not reproduced"),
        ([3.0, 3.0, 3.0, 3.0, -3.0], 1, "differs"),
        ([3.0, 3.0, 3.0, 3.0, -3.0], 2, "reproduced"),
        ([3.0, 3.0, 3.0, -3.0, -3.0], 2, "differs"),
        ([3.0, 3.0, 3.0, 3.0, 3.0], 2, "differs"),
    ],
)
def test_the_rank_of_the_star_takes_all_intervals_together(gaps, rank, expected, tmp_path):
    rows = [{"r": "9* if", "above *": 0.0, "its SE": 0.0}]
    rows += [{"r": "3 if", "above *": gap, "its SE": 1.0} for gap in gaps]
    (tmp_path / "po_gp_ucb.json").write_text(json.dumps({"figures": {"by r, t": {"rows": rows}}}))
    page = f'{{{{ largest_is_best("t", rank={rank}) }}}}'
    assert rendered(page, tmp_path) == expected


@pytest.mark.parametrize(
    ("share", "draws", "intervals", "expected"),
    [
        # Clopper and Pearson: 0 of 36 is below .0974, 0 of 35 below .1
        (0.0, 36, 1, "reproduced"),
        (0.0, 35, 1, "not reproduced"),
        (0.0, 36, 2, "not reproduced"),
        (0.2, 40, 1, "not reproduced"),
        (0.2, 500, 1, "differs"),
        (1.0, 4, 1, "differs"),
    ],
)
def test_a_promise_to_fail_seldom_is_judged_by_its_share(share, draws, intervals, expected):
    assert verdict_of_share(share, draws, allowed=0.1, intervals=intervals) == expected


@pytest.mark.parametrize(
    ("means", "together", "counted"),
    [
        ((3.0, 3.0), "reproduced", "below in 0 of 2, above in 2"),
        # beyond 2.01 standard errors of one interval, within 2.31 of two
        ((3.0, 2.2), "not reproduced", "below in 0 of 2, above in 2"),
        ((3.0, -3.0), "differs", "below in 1 of 2, above in 1"),
    ],
)
def test_rows_are_judged_together_or_counted(means, together, counted, tmp_path):
    rows = [{"at": at, "of": {"gap": _row(mean)}} for at, mean in zip("ab", means, strict=True)]
    rows += [{"at": "c", "of": {"gap": _row(-9.0)}}, {"at": "a", "of": {"gap": ""}}]
    (tmp_path / "made.json").write_text(json.dumps({"figures": {"rows": rows}}))
    chosen = '"made > rows", "of > gap"'
    assert rendered(f'{{{{ together({chosen}, "above", at="ab") }}}}', tmp_path) == together
    assert rendered(f'{{{{ counted({chosen}, at="ab") }}}}', tmp_path) == counted


def _row(mean):
    return {"mean": mean, "se": 1.0, "median": mean, "n": 50}
