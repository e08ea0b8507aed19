"""Figures as SVG: small, with text, titles and the page's colors."""

from __future__ import annotations

import re
import sys
import warnings
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import pytest

from fairbound._utils.optional import need
from fairbound.reports._figures import (
    ALERT,
    DOT,
    FAINT,
    INK,
    LINE,
    PAPER,
    SOFT,
    error_bars,
    label_points,
    legend,
    panels,
    style,
    svg,
    titled,
)

NAME = "a \x01 \udce9 <b> & \"c\" $x$ xmlns='y'"


@style()
def drawn(name: str = NAME) -> Any:
    figure, parts = panels(2, 300, 200, columns=2)
    for panel in parts:
        axes = panel.subplots()
        axes.set(xlim=(0, 1), ylim=(0, 1), title="Title")
        error_bars(axes, (0.5, 0.5), (0.4, 0.6), (-9, 9), ALERT)
        titled(axes.plot(0.5, 0.5, "o", color=INK)[0], name)
        axes.add_patch(
            need("matplotlib.patches", "report", "A figure").Circle((0.2, 0.2), 0.1, fill=False)
        )
        titled(axes.plot([0, 0.5, 1], [0, 2, 0.5], color="#009e73")[0], "line")
    figure.set_label("Caption")
    return figure


def parts_of(text: str) -> list[str]:
    """The elements, as XML needs them."""
    whole = text.replace("<svg ", '<svg xmlns:xlink="x" ')
    return [f"{part}</svg>" for part in whole.split("</svg>")[:-1]]


def test_a_panel_is_an_element_and_parses() -> None:
    parts = [ElementTree.fromstring(text) for text in parts_of(svg(drawn()))]
    assert [part.tag for part in parts] == ["svg", "svg"]
    titles = [title.text for title in parts[0].iter("title")]
    assert titles == ["a \\x01 \\udce9 <b> & \"c\" $x$ xmlns='y'", "line"]
    assert "Title" in [text.text for text in parts[0].iter("text")]
    assert not list(parts[0].iter("metadata"))
    assert any("C" in path.get("d", "") for path in parts[0].iter("path"))  # the circle


def test_colors_and_fonts_become_the_pages() -> None:
    """By the style sheet, which knows the colors as matplotlib writes them."""
    css = (files("fairbound.reports") / "templates" / "page.css").read_text()
    for color in (INK, SOFT, FAINT, LINE, PAPER, DOT, ALERT):
        for part in ("fill", "stroke"):
            assert f'[style*="{part}: {color}"]' in css
    text = svg(drawn())
    assert all(f"stroke: {color}" in text for color in (ALERT, LINE, "#009e73"))


def test_letters_that_only_the_browser_has_are_no_warning() -> None:
    with style():
        figure, (panel, words) = panels(2, 100, 100)
        axes = panel.subplots()
        axes.plot([0, 1], label="\u65b9\u6cd5")
        legend(words, [axes])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "\u65b9\u6cd5" in svg(figure)


def test_ids_are_unique_on_a_page_and_a_figure_is_written_the_same_twice() -> None:
    text = svg(drawn(), "f7") + svg(drawn(), "f8")
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 0
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)
    assert svg(drawn(), "f7") == svg(drawn(), "f7")


def test_labels_stay_within_the_axes_and_a_line_leads_to_those_far_away() -> None:
    with style():
        _, (panel,) = panels(1, 300, 200)
        axes = panel.subplots()
        points = [(0.999, 0.5 + 0.001 * i) for i in range(9)]
        label_points(axes, points, [f"name {i}" for i in range(9)], [INK] * 9)
        box = axes.get_window_extent()
        assert all(box.x0 <= text.get_window_extent().x0 + 2 for text in axes.texts)
        assert any(text.arrow_patch is not None for text in axes.texts)
    assert len(axes.texts) == 9


def test_without_matplotlib_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"A figure needs matplotlib.*fairbound\[report\]"):
        drawn()
