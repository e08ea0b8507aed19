"""Tables on a terminal, and texts of the user's in every output."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from fairbound.reports._page import PageSection, page
from fairbound.reports._table import ReportTable
from fairbound.reports._words import interval

NAMES = [
    "women of a village in the far north-west of the county, 65 and older",
    "women of a village in the far north-west of the county, under 65",
    "x" * 90,
    "\u65e5\u672c\u8a9e" * 12,
]
VALUES = [0.25, 0.5, None, -1.0]
FRAME = {
    ("group", ""): NAMES,
    ("rate", "value"): VALUES,
    ("rate", "low"): [0.2, 0.4, None, -1.5],
    ("rate", "high"): [0.3, 0.6, None, 0.0],
    ("rate", "differs"): [False, True, False, False],
    ("rate", "note"): ["", "", "none with label 0", ""],
    ("why", ""): ["because " * 9, "", "", "y"],
}
TABLE = ReportTable("Rates", FRAME, formats={"rate": "{:.2f}"})


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_are_whole_and_intervals_in_one_line(width: int) -> None:
    lines = TABLE.to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(re.search(r" 0\.50\* \[0\.40, 0\.60\]", line) for line in lines)
    assert "".join(lines).count("x") % 90 == 0  # in every block
    assert "".join(lines).count("\u65e5") % 12 == 0
    assert {"older", "under", "65"} <= set(" ".join(lines).split())


def test_columns_that_do_not_fit_stand_below() -> None:
    wide = {("group", ""): ["a", "b"]} | {(f"column {i}", ""): [i, -i] for i in range(20)}
    text = ReportTable("", wide).to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.split("\n\n")) == 3
    assert "19.0000" in text


def test_records_have_every_figure_in_full() -> None:
    first, *_ = TABLE.records()
    assert first["group"] == NAMES[0]
    assert first["rate"]["value"] == 0.25
    assert (first["rate"]["low"], first["rate"]["high"]) == (0.2, 0.3)


HIDDEN = "a\x1b[31mb\0c\u202ed\u200be"
SHOWN = r"a\x1b[31mb\x00c\u202ed\u200be"


def test_what_is_hidden_in_a_name_is_written_out_everywhere() -> None:
    table = ReportTable(
        HIDDEN, {("group", ""): [HIDDEN, "\uff1d1+1"], ("n", ""): [1, 2]}, (HIDDEN,)
    )
    html = page(
        HIDDEN, [table, HIDDEN, {HIDDEN: HIDDEN}, PageSection(title=HIDDEN, body=[[HIDDEN]])]
    )
    latex = table.to_latex()
    for written in (table.to_text(), table.to_csv(), latex, html):
        assert not set("\x1b\0\u202e\u200b") & set(written)
    assert SHOWN in table.to_text()
    assert SHOWN in table.to_csv()
    assert html.count(SHOWN) >= 10
    assert "'\uff1d1+1" in table.to_csv()


def test_an_interval_is_there_or_not() -> None:
    assert interval(None, None) == interval(float("nan"), float("nan")) == ""


def test_a_table_is_printed_without_pandas() -> None:
    script = (
        "import sys; sys.modules['pandas'] = sys.modules['jinja2'] = None\n"
        "from fairbound.reports._page import as_text\n"
        "from fairbound.reports._table import ReportTable\n"
        "print(as_text([ReportTable('T', {('a', ''): ['x'], ('b', ''): [1]}), 'End.']))\n"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["T", "a      b", "x 1.0000", "End.", "False False"]
