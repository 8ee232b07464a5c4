"""Every figure that the pages quote is in a stored row of benchmarks/results."""

import re

import pytest

from benchmarks import quoted


@pytest.mark.parametrize("page", quoted.PAGES)
def test_the_page_has_the_figures_of_the_rows(page):
    text = (quoted.ROOT / page).read_text()
    remedy = f"{page} differs from the rows: python -m benchmarks.quoted --write"
    assert quoted.written(page, text) == text, remedy
    assert not quoted.untied(page, text), "tie them in benchmarks/quoted_sentences.txt"


@pytest.mark.parametrize("page", quoted.PAGES)
def test_a_figure_that_no_row_has_is_noticed(page):
    """In a sentence, in a table, or new on the page."""
    text = (quoted.ROOT / page).read_text()
    right = next(quoted.filled(s) for s in quoted.sentences()[page] if "{" in s)
    figure = re.findall(r"\d*\.\d+", right)[-1]
    wrong = right[::-1].replace(figure[::-1], "77.7", 1)[::-1]
    assert quoted.written(page, text.replace(right, wrong)) == text
    assert quoted.untied(page, "It was 0.123 better.\n" + text)
    for table in quoted.TABLE.finditer(text):
        assert quoted.written(page, text.replace(table[0], table[1] + "old\n" + table[3])) == text


def test_the_table_of_whole_runs_has_its_rows():
    """Another command writes it, and stores them."""
    assert quoted.rows_at("end_to_end > rows")() in (quoted.ROOT / "docs/measured.md").read_text()


def test_a_place_without_a_row_is_an_error():
    assert quoted.looked_up("dpem > NICV > epsilon=0.1 > non-private") == 0.005308
    for place in ("dpem > NICV > epsilon=7 > non-private", "dpem > nothing"):
        with pytest.raises(KeyError):
            quoted.looked_up(place)
