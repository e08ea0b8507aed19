"""docs/reference/algorithms/ has a page for every method that is as new as its file; the table of
all is complete."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairbound.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import make_method_pages as pages  # noqa: E402


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_is_as_new_as_its_method(name: str) -> None:
    page = pages.PAGES / f"{pages.stem(name)}.md"
    remedy = "run python tools/make_method_pages.py --no-plots"
    assert page.read_text() == pages.page(name), remedy
    assert (pages.PAGES / f"{pages.stem(name)}.svg").read_text().count("<path") > 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_has_every_method_with_a_link_to_its_page(name: str) -> None:
    table = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
    assert f"[`{name}`](algorithms/{pages.stem(name)}.md)" in table
