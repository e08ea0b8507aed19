"""The audit's page: read as text, and drawn in a real browser where there is one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from fairbound._utils.pages import figure_json
from fairbound.auditing import page as audit_page
from fairbound.auditing.audits import Audit, audit
from fairbound.auditing.figures import MAX_GROUPS, MAX_OUTLINES, PANELS, label, overview, rates, scores
from fairbound.auditing.page import page, write_page
from fairbound.auditing.text import RATE_WORDS, explained, number, title, why_undefined
from fairbound.metrics.counts import RATES
from fairbound.metrics.intervals import IntervalEstimate

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NASTY = (
    "<script>document.title='x'</script>", 'quote " and </script><b>', "$x^2$ %{y} var(--ink)", "one row, \u65e5\u672c",
    "2018-01-01",
)  # fmt: skip
VOID = {"meta", "br", "img", "link", "input", "hr"}


def synthetic(groups: int, rows: int, *, names: tuple[str, ...] = (), scored: bool = True, **settings: Any) -> Audit:
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
    """40 intersections (copies of five groups: an audit of 40 takes seconds) and both attributes alone."""
    whole = synthetic(5, 3000, attributes=("race", "sex"), source="acs:OK")
    copies = tuple(
        dataclasses.replace(group, name=f"{group.name}, copy {i}") for i in range(8) for group in whole.groups
    )
    parts = tuple(synthetic(n, 600, scored=False, attributes=(name,)) for n, name in ((5, "race"), (2, "sex")))
    return dataclasses.replace(whole, groups=copies, reference=copies[0].name, dropped=17, parts=parts)


@pytest.fixture(scope="module")
def crossed_page(crossed: Audit) -> str:
    return page(crossed)


@pytest.fixture(scope="module")
def nasty() -> Audit:
    """Names that are code, a group of one row, an absent group."""
    random = np.random.default_rng(0)
    g = random.choice(3, 300)
    g[0] = 3
    y = random.integers(0, 2, 300)
    y[0] = 0
    source = "<img src=x onerror=alert(1)>.csv"
    return audit(y, g, scores=random.random(300), names=NASTY, attributes=("<b>",), source=source, draws=500)


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
        found.feed(html.replace(get_plotlyjs(), "plotly"))  # five million characters, looked at by one test
        found.close()
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

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


def both(draw: Any, found: Audit) -> str:
    return figure_json(draw(found, False), draw(found, True))


def figure(draw: Any, found: Audit) -> dict[str, Any]:
    drawn: dict[str, Any] = json.loads(both(draw, found))
    return drawn


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
    assert read.all("src") + read.all("href") + read.all("srcset") == []
    style = "".join(data for element, data in read.text if element == "style")
    assert "@import" not in style
    assert "url(" not in style
    assert "default-src 'none'" in next(c for c in read.all("content") if "src" in c)
    assert crossed_page.count(get_plotlyjs()) == 1
    assert [data for element, data in read.text if element == "script"].count("plotly") == 1
    assert "</script" not in get_plotlyjs().lower()


def test_page_names_every_metric_and_group(crossed: Audit, crossed_page: str) -> None:
    words = Read.of(crossed_page).words
    for name in crossed.metrics:
        assert title(name) in words
        assert all(explained(name)), f"{name} is not explained"
        assert explained(name)[0] in words
    for group in (*crossed.groups, *crossed.parts[0].groups):
        assert group.name in words
    assert "17 examples in no group" in words
    assert "The 30 largest of 40 groups are shown" in words


def test_numbers_of_the_table_are_those_of_the_audit(crossed: Audit, crossed_page: str) -> None:
    text = [data for _, data in Read.of(crossed_page).text if data.strip()]
    found = crossed.metrics["equalized_odds_difference"]
    at = text.index(title("equalized_odds_difference"))
    assert text[at + 1 : at + 3] == [number(found.value), f"[{number(found.low)}, {number(found.high)}]"]


def test_words_of_every_rate() -> None:
    assert set(RATE_WORDS) == set(RATES)
    for rate, (counted, among) in RATES.items():  # "of the examples with label 1, the share that is predicted 1"
        conditional = len(among) == 2
        assert RATE_WORDS[rate].startswith("of the examples") == conditional
        if conditional:
            label_or_prediction = 0 if len({cell[0] for cell in among}) == 1 else 1
            condition, share = RATE_WORDS[rate].split(", ")
            assert condition.endswith(str(among[0][label_or_prediction]))
            assert share.endswith(str(counted[0][1 - label_or_prediction]))


def test_text_of_the_user_stays_text(nasty: Audit) -> None:
    read = Read.of(page(nasty))
    assert [tag for tag, _ in read.tags if tag in ("img", "b")] == []
    figures = sum("figure" in (attrs.get("class") or "") for _, attrs in read.tags)
    assert [tag for tag, _ in read.tags].count("script") == figures + 2  # plotly and our own
    assert ("title", f"Fairness audit: {nasty.source}") in read.text
    for name in NASTY:
        assert name in read.words


def test_figures_escape_what_plotly_would_read_as_tags(nasty: Audit) -> None:
    raw = both(rates, nasty)
    assert "<" not in raw
    shown = " ".join(json.loads(raw)["wide"]["yaxis"]["ticktext"])
    assert "&lt;script&gt;" in shown
    assert re.findall("<[^>]*>", shown) == ["<br>"] * shown.count("<br>")


def test_long_names_keep_both_ends() -> None:
    assert label("American Indian alone, female, 25 to < 45", 30) == "American Indian alone, female,<br>25 to &lt; 45"
    first, second = label("a" * 50 + " and the end", 15).split("<br>")
    assert (first, second) == ("a" * 15, "\u2026aa and the end")


def test_rates_figure_shows_values_intervals_and_overall() -> None:
    found = synthetic(3, 600)
    drawn = figure(rates, found)
    first = drawn["data"][:2]  # positive rate: the other groups, then the reference group
    by_row = {
        row: (x, x - down, x + up)
        for trace in first
        for row, x, down, up in zip(
            trace["y"], trace["x"], trace["error_x"]["arrayminus"], trace["error_x"]["array"], strict=True
        )
    }
    for row, group in enumerate(found.groups):
        assert by_row[row] == pytest.approx(tuple(group.rates["positive_rate"]))
    assert first[1]["y"] == [next(i for i, g in enumerate(found.groups) if g.name == found.reference)]
    overall = sum(g.counts["true_positives"] + g.counts["false_positives"] for g in found.groups) / found.examples
    lines = drawn["wide"]["shapes"]
    assert len(lines) == len(PANELS)
    assert lines[0]["x0"] == pytest.approx(overall)


def test_arrangements_differ_in_layout_only(crossed: Audit) -> None:
    drawn = figure(rates, crossed)
    assert len({tuple(drawn["wide"][f"xaxis{i or ''}"]["domain"]) for i in (0, 2, 3)}) == 3
    assert {tuple(drawn["narrow"][f"xaxis{i or ''}"]["domain"]) for i in (0, 2, 3)} == {(0.0, 1.0)}
    assert len(drawn["wide"]["yaxis"]["ticktext"]) == MAX_GROUPS
    sizes = sorted((group.examples for group in crossed.groups), reverse=True)
    shown = {name.replace("<br>", " ") for name in drawn["wide"]["yaxis"]["ticktext"]}
    assert min(group.examples for group in crossed.groups if group.name in shown) == sizes[MAX_GROUPS - 1]


def test_overview_separates_what_excludes_zero() -> None:
    found = synthetic(2, 2000)
    certain, _, open_, _ = figure(overview, found)["data"]  # each followed by its arrows
    names = ("demographic_parity_difference", "equalized_odds_difference", "accuracy_difference", "largest_loss_gap")
    excluded = [i for i, name in enumerate(names) if found.metrics[name].low > 0]
    assert 0 < len(excluded) < 4, "the example no longer shows both kinds"
    assert certain["y"] == excluded
    assert open_["y"] == [i for i in range(4) if i not in excluded]
    assert certain["marker"]["color"] != open_["marker"]["color"]


def test_endless_intervals_end_in_an_arrow() -> None:
    found = synthetic(2, 300, scored=False)
    gaps = {
        "accuracy_difference": IntervalEstimate(0.2, 0.1, 154.9),
        "equalized_odds_difference": IntervalEstimate(0.3),
    }
    drawn = figure(overview, dataclasses.replace(found, metrics={**found.metrics, **gaps}))
    certain, arrows, open_, _ = drawn["data"]
    assert (arrows["x"], arrows["y"]) == ([1.0], [2])
    assert certain["x"][-1] + certain["error_x"]["array"][-1] == pytest.approx(1.0)
    assert drawn["wide"]["xaxis"]["range"][1] < 1.1
    assert "154.9" in arrows["hovertext"][0]
    assert (open_["y"][0], open_["error_x"]["array"][0]) == (1, 0)  # a value without an interval is a bare dot


def test_outlines_are_few_at_first_and_small_groups_wait(crossed: Audit, nasty: Audit) -> None:
    visible = [trace["visible"] is True for trace in figure(scores, crossed)["data"]]
    assert len(visible) == MAX_GROUPS
    assert sum(visible) == MAX_OUTLINES
    drawn = figure(scores, nasty)
    assert [trace["visible"] for trace in drawn["data"]] == [True, True, True, "legendonly"]  # the absent one: none
    assert drawn["wide"]["shapes"][0]["x0"] == nasty.threshold
    trace = drawn["data"][0]
    assert trace["y"][1:-2] == pytest.approx(nasty.groups[0].histogram)
    assert trace["x"][1:-1] == pytest.approx(nasty.bins)


def test_predictions_alone_have_no_scores() -> None:
    read = Read.of(page(synthetic(3, 300, scored=False)))
    assert "Scores by group" not in read.words
    assert "Largest loss gap" not in read.words
    assert "Rates by group" in read.words


def test_synthetic_examples_are_called_so(crossed_page: str) -> None:
    assert "Synthetic data." not in Read.of(crossed_page).words
    assert "Synthetic data." in Read.of(page(synthetic(2, 100, scored=False, source="synthetic:OK"))).words


def test_weights_are_mentioned_where_counts_are_their_sums(crossed_page: str) -> None:
    assert "sums of the weights" not in crossed_page
    html = page(audit([1, 0, 1, 0], [0, 0, 1, 1], predictions=[1, 0, 0, 0], weights=[0.5, 2.0, 1.0, 1.0], draws=500))
    assert "sums of the weights" in html
    assert ">0.5</td>" in html


UNDEFINED = {
    "independence_reported": ([0, 1, 2, 2], [1, 0, 1, 0], [1, 0, 1, 0], "two groups only, and 3 have examples"),
    "accuracy_difference": ([0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0], "only one has examples"),
    "equal_opportunity_difference": ([0, 0, 0, 1], [0, 0, 0, 1], [1, 0, 1, 0], "only '1' has a true positive rate"),
    "separation_printed": ([0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], "no group has a true positive rate"),
    "average_odds_difference": (
        [0, 0, 0, 1, 2], [0, 0, 0, 1, 1], [1, 0, 1, 0, 1], "reference group '0' has no true positive rate",
    ),
    "disparate_impact": ([0, 0, 0, 1], [1, 0, 1, 1], [0, 0, 0, 1], "reference group '0' is 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_metrics_say_why(name: str) -> None:
    groups, labels, predictions, why = UNDEFINED[name]
    found = audit(labels, groups, predictions=predictions, draws=500)
    assert found.metrics[name].value is None
    assert why in why_undefined(found, name)


def test_undefined_losses_and_distances_say_why_on_the_page() -> None:
    found = audit([1, 0, 1], [0, 0, 1], scores=[0.1, 0.2, 0.9], draws=500)
    assert why_undefined(found, "wd") in Read.of(page(found)).words
    assert found.metrics["wd"].value is None
    assert why_undefined(found, "wd") == "it needs two groups of 30 examples or more"
    assert found.metrics["largest_loss_gap"].value is None
    assert why_undefined(found, "largest_loss_gap") == "it needs two groups of 30 examples or more"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Audit:
    """An audit whose page is its source: what is written does not matter to where and how."""
    monkeypatch.setattr(audit_page, "page", lambda found: found.source)
    return audit([1, 0], [0, 1], predictions=[1, 0], draws=500, source="the page of \u65e5\u672c")


def test_page_is_replaced_in_one_step(quick: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "audit.html"
    assert write_page(quick, target) == target
    assert target.read_text(encoding="utf-8") == quick.source

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    target.write_text("the old page")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=r"audit\.html cannot be written \(Permission denied\); name another file"):
        write_page(quick, target)
    assert target.read_text() == "the old page"
    assert list(tmp_path.iterdir()) == [target]


def test_page_of_a_file_whose_name_is_no_text(quick: Audit, tmp_path: Path) -> None:
    found = dataclasses.replace(quick, source=b"caf\xe9.csv".decode("utf-8", "surrogateescape"))
    assert "caf?.csv" in write_page(found, tmp_path / "a.html").read_text(encoding="utf-8")


def test_places_that_cannot_hold_a_page(quick: Audit, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere for a\.html; make it, or name another"):
        write_page(quick, tmp_path / "nowhere" / "a.html")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        write_page(quick, tmp_path)


def test_without_plotly_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r"The HTML page needs plotly.*fairbound\[report\]"):
        page(synthetic(2, 50))


# What a reader would do, and what is then seen: sort by value twice, unfold everything, wait for the figures.
PROBE = """<script>
const header = document.querySelector(".metrics thead th:nth-child(2) button");
const values = () => [...document.querySelectorAll(".metrics")][0].querySelectorAll("tbody td:nth-child(2)");
const sorted = () => [...values()].map(cell => cell.dataset.value ?? null);
header.click(); const up = sorted(); header.click(); const down = sorted();
const before = [...document.querySelectorAll("details .main-svg")].length;
document.querySelectorAll("details").forEach(part => part.open = true);
setTimeout(() => {
  const plots = [...document.querySelectorAll(".figure > div")];
  const seen = {
    up, down, before, sort: header.parentNode.getAttribute("aria-sort"), title: document.title,
    width: innerWidth, scroll: document.documentElement.scrollWidth,
    dots: plots.map(plot => plot.querySelectorAll(".point").length),
    widths: plots.map(plot => [plot.querySelector(".main-svg")?.clientWidth, plot.parentNode.clientWidth]),
    labels: [...plots[1].querySelectorAll(".ytick text")].map(text => text.textContent),
    foreign: performance.getEntriesByType("resource").map(entry => entry.name),
  };
  document.body.insertAdjacentHTML("beforeend", "<pre id='probe'></pre>");
  document.getElementById("probe").textContent = JSON.stringify(seen);
}, 1000);
</script></body>"""


def browsed(html: str, folder: Path, width: int) -> tuple[dict[str, Any], list[str]]:
    """What the probe saw, and the lines of the console."""
    path = folder / "page.html"
    path.write_bytes(html.replace("</body>", PROBE).encode())
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
        "--virtual-time-budget=3000", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
        "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert probe, done.stderr[-2000:]
    return json.loads(unescape(probe[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome here")


@needs_browser
def test_browser_draws_every_figure_and_sorts(crossed: Audit, crossed_page: str, tmp_path: Path) -> None:
    seen, console = browsed(crossed_page, tmp_path, 1280)
    assert console == []
    assert seen["foreign"] == []
    audits = (crossed, *crossed.parts)
    defined = [
        sum(group.rates[rate].value is not None for group in sorted(a.groups, key=lambda g: -g.examples)[:MAX_GROUPS])
        for a in audits
        for rate in PANELS
    ]
    glances, by_rate = [seen["dots"][i] for i in (0, 5, 7)], [seen["dots"][i] for i in (1, 6, 8)]
    assert len(seen["dots"]) == 5 + 2 + 2  # the parts have no scores
    assert glances == [4, 3, 3]
    assert sum(by_rate) == sum(defined)
    assert seen["before"] == 0  # folded figures are drawn when they are opened
    assert all(drawn == box > 0 for drawn, box in seen["widths"])

    values = [value for value in seen["up"] if value is not None]
    assert values == [str(value) for value in sorted(map(float, values))]
    assert len(values) == sum(measured.value is not None for measured in crossed.metrics.values())
    assert seen["down"] == values[::-1] + [None] * (len(seen["up"]) - len(values))
    assert seen["sort"] == "descending"


@needs_browser
def test_browser_shows_names_as_they_are_on_a_narrow_screen(nasty: Audit, tmp_path: Path) -> None:
    seen, console = browsed(page(nasty), tmp_path, 400)
    assert console == []
    assert seen["title"] == f"Fairness audit: {nasty.source}"
    assert seen["width"] < 640
    assert seen["scroll"] <= seen["width"]
    assert "2018-01-01" in seen["labels"]
    assert any(text.startswith("<script>") for text in seen["labels"])
    assert seen["dots"][1] == sum(g.rates[r].value is not None for g in nasty.groups for r in PANELS)
