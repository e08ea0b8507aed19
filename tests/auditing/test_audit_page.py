"""The audit's page: read as text, and drawn in a real browser where there is one."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import browsed, needs_browser

from fairbound.auditing import _tables
from fairbound.auditing._audits import Audit, audit
from fairbound.auditing._figures import (
    MAX_DRAWN_GROUPS,
    MAX_OUTLINES,
    PANELS,
    calibration_curves,
    rates,
    roc,
    scores,
)
from fairbound.auditing._findings import RATE_WORDS, explained, title, why_undefined
from fairbound.auditing._tables import audit_page, write_page
from fairbound.metrics._counts import RATES
from fairbound.reports._figures import DOT, INK, TITLE, svg
from fairbound.reports._words import capital, interval, number

NASTY = (
    "<script>document.title='x'</script>",
    'quote " and </script><b>',
    "$x^2$ %{y} var(--ink)",
    "one row, \u65e5\u672c",
    "2018-01-01",
)
VOID = {"meta", "br", "img", "link", "input", "hr"}


def synthetic(
    groups: int, rows: int, *, names: tuple[str, ...] = (), scored: bool = True, **settings: Any
) -> Audit:
    """An audit of made-up rows in groups of falling size and unequal rates."""
    random = np.random.default_rng(groups)
    share = 1 / np.arange(2, groups + 2)
    g = random.choice(groups, rows, p=share / share.sum())
    y = (random.random(rows) < 0.3 + 0.4 * g / groups).astype(int)
    score = np.clip(0.35 + 0.3 * y + 0.1 * (g % 2) + random.normal(0, 0.15, rows), 0, 1)
    made = {"scores": score} if scored else {"predictions": (score > 0.5).astype(int)}
    named = names or tuple(f"group {i}" for i in range(groups))
    return audit(y, g, names=named, draws=500, **made, **settings)


@pytest.fixture(scope="module")
def crossed() -> Audit:
    """40 intersections (copies of five groups: an audit of 40 takes seconds) and both attributes
    alone."""
    whole = synthetic(5, 3000, attributes=("race", "sex"), source="acs:OK")
    copies = tuple(
        dataclasses.replace(group, name=f"{group.name}, copy {i}")
        for i in range(8)
        for group in whole.groups
    )
    parts = tuple(
        synthetic(n, 600, scored=False, attributes=(name,)) for n, name in ((5, "race"), (2, "sex"))
    )
    return dataclasses.replace(
        whole, groups=copies, reference=copies[0].name, dropped=17, parts=parts
    )


@pytest.fixture(scope="module")
def crossed_page(crossed: Audit) -> str:
    return audit_page(crossed)


@pytest.fixture(scope="module")
def nasty() -> Audit:
    """Names that are code, a group of one row, an absent group."""
    random = np.random.default_rng(0)
    g = random.choice(3, 300)
    g[0] = 3
    y = random.integers(0, 2, 300)
    y[0] = 0
    source = "<img src=x onerror=alert(1)>.csv"
    return audit(
        y, g, scores=random.random(300), names=NASTY, attributes=("<b>",), source=source, draws=500
    )


@dataclass
class Read(HTMLParser):
    """What a page holds: elements in the order of their tags, and text by element."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: list[tuple[str, str]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @staticmethod
    def of(html: str) -> Read:
        found = Read()
        found.feed(html)
        found.close()
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.tags if attribute in attrs]

    @property
    def words(self) -> str:
        return " ".join(data for element, data in self.text if element not in ("script", "style"))


def drawn_dots(axes: Any) -> dict[str, Any]:
    """The marks of some axes, by what is shown under the pointer."""
    return {line.get_gid().removeprefix(TITLE): line for line in axes.lines if line.get_gid()}


def test_page_is_well_formed(crossed_page: str) -> None:
    read = Read.of(crossed_page)
    assert read.open == []
    ids = read.all("id")
    assert len(ids) == len(set(ids)) > 10
    assert set(read.all("aria-labelledby")) <= set(ids)
    assert ("html", {"lang": "en"}) in read.tags
    assert ("meta", {"charset": "utf-8"}) in read.tags


def test_page_needs_no_network(crossed_page: str) -> None:
    read = Read.of(crossed_page)
    assert read.all("src") + read.all("srcset") == []
    ids = {f"#{name}" for name in read.all("id")}
    assert set(read.all("href") + read.all("xlink:href")) <= ids
    assert {name[4:-1] for name in read.all("clip-path")} <= ids
    style = "".join(data for element, data in read.text if element == "style")
    assert "@import" not in style
    assert "url(" not in style
    assert "default-src 'none'" in next(c for c in read.all("content") if "src" in c)
    assert len(crossed_page) < 1_500_000


def test_page_names_every_metric_and_group(crossed: Audit, crossed_page: str) -> None:
    words = Read.of(crossed_page).words
    for name in crossed.metrics:
        assert all(explained(name)), f"{name} is not explained"
        assert capital(explained(name)[0]) in words
    for group in (*crossed.groups, *crossed.parts[0].groups):
        assert group.name in words
    assert "In no group 17 examples" in " ".join(words.split())
    assert "The 30 largest of 40 groups are shown" in words


def test_numbers_of_the_table_are_those_of_the_audit(crossed: Audit, crossed_page: str) -> None:
    text = [
        data
        for element, data in Read.of(crossed_page).text
        if data.strip() and element in ("th", "td")
    ]
    found = crossed.metrics["equalized_odds_difference"]
    at = text.index("equalized_odds_difference")
    assert text[at + 1] == number(found.value)
    assert interval(found.low, found.high) in crossed_page


def test_words_of_every_rate() -> None:
    assert set(RATE_WORDS) == set(RATES)
    # "of the examples with label 1, the share that is predicted 1"
    for rate, (counted, among) in RATES.items():
        conditional = len(among) == 2
        assert RATE_WORDS[rate].startswith("of the examples") == conditional
        if conditional:
            label_or_prediction = 0 if len({cell[0] for cell in among}) == 1 else 1
            condition, share = RATE_WORDS[rate].split(", ")
            assert condition.endswith(str(among[0][label_or_prediction]))
            assert share.endswith(str(counted[0][1 - label_or_prediction]))


def test_text_of_the_user_stays_text(nasty: Audit) -> None:
    read = Read.of(audit_page(nasty))
    assert [tag for tag, _ in read.tags if tag in ("img", "b")] == []
    assert [tag for tag, _ in read.tags].count("script") == 1  # our own
    assert ("title", f"Fairness audit: {nasty.source}") in read.text
    for name in NASTY:
        assert name in read.words


def test_rates_figure_shows_values_intervals_and_overall() -> None:
    found = synthetic(3, 600)
    drawn = rates(found)
    assert [part.axes[0].get_title(loc="left") for part in drawn.subfigs] == [
        title(rate) for rate in PANELS
    ]
    axes = drawn.subfigs[0].axes[0]
    wrong, right = (
        sum(g.counts[cell] for g in found.groups) for cell in ("false_positives", "true_negatives")
    )
    overall = wrong / (wrong + right)
    for row, group in enumerate(found.groups):
        measured = group.rates["false_positive_rate"]
        (dot,) = (
            line
            for words, line in drawn_dots(axes).items()
            if words.startswith(f"{group.name}: false")
        )
        assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (pytest.approx(measured.value), row)
        assert dot.get_color() == (INK if group.name == found.reference else DOT)
        bars = [line.get_xdata() for line in axes.lines if list(line.get_ydata()) == [row, row]]
        assert [tuple(bar) for bar in bars] == [pytest.approx((measured.low, measured.high))]
    assert any(list(line.get_xdata()) == pytest.approx([overall] * 2) for line in axes.lines)


def test_the_largest_groups_are_drawn(crossed: Audit) -> None:
    shown = {
        label.get_text().replace("\n", " ")
        for label in rates(crossed).subfigs[0].axes[0].get_yticklabels()
    }
    assert len(shown) == MAX_DRAWN_GROUPS
    sizes = sorted((group.examples for group in crossed.groups), reverse=True)
    assert (
        min(group.examples for group in crossed.groups if group.name in shown)
        == sizes[MAX_DRAWN_GROUPS - 1]
    )


def test_scores_roc_and_calibration_are_of_the_largest_groups(crossed: Audit, nasty: Audit) -> None:
    for draw in (scores, roc, calibration_curves):
        titles = [data for element, data in Read.of(svg(draw(crossed))).text if element == "title"]
        shown = [
            group
            for group in crossed.groups
            if any(words.startswith(group.name) for words in titles)
        ]
        assert len(shown) == MAX_OUTLINES
        assert min(group.examples for group in shown) >= max(
            g.examples for g in crossed.groups if g not in shown
        )
    axes = scores(nasty).subfigs[0].axes[0]
    assert [patch.get_gid() for patch in axes.patches] == [
        f"{TITLE}{group.name} ({group.examples})" for group in nasty.groups if group.examples >= 50
    ]
    assert list(axes.patches[0].get_data().values) == pytest.approx(nasty.groups[0].histogram)
    assert list(axes.patches[0].get_data().edges) == pytest.approx(nasty.bins)
    assert any(list(line.get_xdata()) == [nasty.threshold] * 2 for line in axes.lines)
    assert len(calibration_curves(crossed).subfigs) == MAX_OUTLINES


def test_predictions_alone_have_no_scores() -> None:
    read = Read.of(audit_page(synthetic(3, 300, scored=False)))
    assert "Scores by group" not in read.words
    assert "Largest loss gap" not in read.words
    assert "Rates by group" in read.words


def test_synthetic_examples_are_called_so(crossed_page: str) -> None:
    assert "Synthetic data." not in Read.of(crossed_page).words
    assert (
        "Synthetic data."
        in Read.of(audit_page(synthetic(2, 100, scored=False, source="synthetic:OK"))).words
    )


def test_weights_are_mentioned_where_counts_are_their_sums(crossed_page: str) -> None:
    assert "sums of the weights" not in crossed_page
    html = audit_page(
        audit(
            [1, 0, 1, 0],
            [0, 0, 1, 1],
            predictions=[1, 0, 0, 0],
            weights=[0.5, 2.0, 1.0, 1.0],
            draws=500,
        )
    )
    assert "sums of the weights" in html
    assert ">0.5</td>" in html


UNDEFINED = {
    "independence_reported": (
        [0, 1, 2, 2],
        [1, 0, 1, 0],
        [1, 0, 1, 0],
        "two groups only, and 3 are compared",
    ),
    "accuracy_difference": ([0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0], "only one is compared"),
    "equal_opportunity_difference": (
        [0, 0, 0, 1],
        [0, 0, 0, 1],
        [1, 0, 1, 0],
        "only '1' has a true positive rate",
    ),
    "separation_printed": (
        [0, 0, 1, 1],
        [0, 0, 0, 0],
        [1, 0, 1, 0],
        "no group has a true positive rate",
    ),
    "average_odds_difference": (
        [0, 0, 0, 1, 2],
        [0, 0, 0, 1, 1],
        [1, 0, 1, 0, 1],
        "reference group '0' has no true positive rate",
    ),
    "disparate_impact": ([0, 0, 0, 1], [1, 0, 1, 1], [0, 0, 0, 1], "reference group '0' is 0"),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_metrics_say_why(name: str) -> None:
    groups, labels, predictions, why = UNDEFINED[name]
    found = audit(labels, groups, predictions=predictions, draws=500)
    assert found.metrics[name].value is None
    assert why in why_undefined(found, name)


def test_undefined_losses_and_distances_say_why_on_the_page() -> None:
    found = audit([1, 0, 1], [0, 0, 1], scores=[0.1, 0.2, 0.9], draws=500)
    for name in ("wd", "largest_loss_gap"):
        assert found.metrics[name].value is None
        assert why_undefined(found, name) == "it needs two groups of 30 examples or more"
    assert why_undefined(found, "wd") in Read.of(audit_page(found)).words


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Audit:
    """An audit whose page is its source: what is written does not matter to where and how."""
    monkeypatch.setattr(_tables, "audit_page", lambda found, **_: found.source)
    return audit([1, 0], [0, 1], predictions=[1, 0], draws=500, source="the page of \u65e5\u672c")


def test_page_is_replaced_in_one_step(
    quick: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "audit.html"
    assert write_page(quick, target) == target
    assert target.read_text(encoding="utf-8") == quick.source

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    target.write_text("the old page")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(
        OSError, match=r"audit\.html cannot be written \(Permission denied\); name another file"
    ):
        write_page(quick, target)
    assert target.read_text() == "the old page"
    assert list(tmp_path.iterdir()) == [target]


# What a reader would do, and what is then seen: sort by value twice, unfold everything.
PROBE = """(() => {
const header = document.querySelector("[aria-label=Metrics] thead th:nth-child(2) button");
const values = () => [...document.querySelectorAll("[aria-label=Metrics]")][0].querySelectorAll("tbody td:nth-child(2)");
const sorted = () => [...values()].map(cell => cell.dataset.value ?? cell.firstChild.textContent);
header.click(); const up = sorted(); header.click(); const down = sorted();
document.querySelectorAll("details").forEach(part => part.open = true);
const figures = [...document.querySelectorAll(".figure")];
return {
  up, down, sort: header.parentNode.getAttribute("aria-sort"), title: document.title,
  scroll: document.documentElement.scrollWidth,
  dots: figures.map(figure => figure.querySelectorAll("use").length),
  sizes: [...document.querySelectorAll(".figure svg")].map(part => [part.clientWidth, part.clientHeight]),
  outside: [...document.querySelectorAll(".figure text")].filter(text => {
    const box = text.closest("svg").getBoundingClientRect(), {left, right, top, bottom} = text.getBoundingClientRect();
    return left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1;
  }).map(text => text.textContent),
  ink: getComputedStyle(document.querySelector(".figure text")).fill,
  labels: [...figures[0].querySelectorAll("text")].map(text => text.textContent),
};
})()"""


def seen_in_browser(html: str, folder: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """What the probe saw; nothing is complained of, or asked for elsewhere."""
    path = folder / "page.html"
    path.write_bytes(html.encode())
    seen = browsed(path, PROBE, width=width, dark=dark)
    assert seen.complaints == []
    assert seen.requests == [path.as_uri()]
    found: dict[str, Any] = seen.found
    return found


@needs_browser
def test_browser_shows_every_figure_and_sorts(
    crossed: Audit, crossed_page: str, tmp_path: Path
) -> None:
    seen = seen_in_browser(crossed_page, tmp_path, 1400)
    assert len(seen["dots"]) == 4 + 1 + 1  # the parts have no scores
    assert all(width > 100 and height > 100 for width, height in seen["sizes"])
    assert seen["outside"] == []
    values = [value for value in seen["up"] if value]
    assert list(map(float, values)) == sorted(map(float, values))
    assert len(values) == sum(measured.value is not None for measured in crossed.metrics.values())
    assert seen["down"] == values[::-1] + [""] * (len(seen["up"]) - len(values))
    assert seen["sort"] == "descending"


@needs_browser
def test_browser_shows_names_as_they_are_on_a_narrow_dark_screen(
    nasty: Audit, tmp_path: Path
) -> None:
    seen = seen_in_browser(audit_page(nasty), tmp_path, 390, dark=True)
    assert seen["title"] == f"Fairness audit: {nasty.source}"
    assert seen["scroll"] <= 390
    assert seen["outside"] == []
    assert seen["ink"] == "rgb(232, 234, 237)"
    assert "2018-01-01" in seen["labels"]
    assert any(text.startswith("<script>") for text in seen["labels"])
