"""Every measured figure of a page comes from a stored row of benchmarks/results."""

import json
import shutil

import jinja2
import pytest

from benchmarks.figures import RESULTS, rendered
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
        'gap("4.3", "no such claim")',
        'table("dpem > nothing")',
        "unknown",
    ],
)
def test_what_no_row_has_is_an_error(expression):
    with pytest.raises((KeyError, ValueError, jinja2.UndefinedError)):
        rendered("{{ " + expression + " }}")
