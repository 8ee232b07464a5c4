"""Every figure that the pages quote is in a stored row of benchmarks/results."""

import pytest

from benchmarks import quoted


@pytest.mark.parametrize("page", quoted.PAGES)
def test_the_page_has_the_figures_of_the_rows(page):
    text = (quoted.ROOT / page).read_text()
    remedy = f"{page} differs from the rows: python -m benchmarks.quoted --write"
    assert quoted.written(page, text) == text, remedy
    assert not quoted.untied(page, text), "tie them in benchmarks/quoted_sentences.txt"


def test_the_table_of_whole_runs_has_its_rows():
    """Another command writes it, and stores them."""
    assert quoted.rows_at("end_to_end > rows")() in (quoted.ROOT / "docs/measured.md").read_text()
