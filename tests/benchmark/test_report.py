"""A page of studies: its sections against numpy, its files, what it prints, and its text, also in a
real browser."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browsing import browsed, needs_browser
from demonstration import demonstration
from made_results import Made, stored_study

from fairbound.benchmark._entry import Paper, Printed
from fairbound.benchmark._page import Exhibit, Page, Section
from fairbound.benchmark._paper_comparison import agreement, beside
from fairbound.benchmark._results import Results
from fairbound.benchmark._sections import study_section
from fairbound.benchmark._stored_study import StoredStudy
from fairbound.benchmark._study import load_study
from fairbound.benchmark.board._section import board_section
from fairbound.benchmark.problems.table import SplitSpec
from fairbound.cli._report import show
from fairbound.reports._table import ReportTable, frame_of

ENTRIES = ("SGD", "SSL-ALM", "SSw")
SHARES = {"train": 0.5, "validation": 0.25, "test": 0.25}
SYSTEM = {
    "date": "2031-05-06T07:08:09+00:00",
    "cpu": "Abacus <9000>",
    "torch": "9.9",
    "device": "cpu",
}
PAPER = Paper(
    {"loss": Printed(0.9, 0.001), "violation": Printed(0.1, 9.0)},
    {name: Printed(0.5, 9.0) for name in ("Ind", "Sp", "Ina", "Sf", "Wd")},
    {name: Printed(-5.0, 0.01) for name in ("Ind", "Sp", "Ina", "Sf", "Wd")},
)


def made_setting(
    *, source: str = "synthetic:OK", whole_seeds: int = 2, **changes: Any
) -> StoredStudy:
    """Experiment 1 with three entries; the paper has figures for the first of them."""
    whole = load_study("paper-ok-race").with_entries((), only=ENTRIES)
    assert whole.problem is not None
    entries = [replace(entry, paper=Paper({}, {}, {}), note="") for entry in whole.entries]
    entries[0] = replace(entries[0], paper=PAPER, note="a <b>note</b> & more")
    spec = replace(whole.problem, split=SplitSpec(seed=0, shares=SHARES))
    options = {"seeds": 2, "records": 5} | changes
    study = replace(whole, entries=tuple(entries), problem=spec, **options)
    return stored_study(study, source=source, whole_seeds=whole_seeds)


def made_section(
    study: StoredStudy, blown: str = ""
) -> tuple[Section, dict[str, list[dict[str, Any]]]]:
    """And the tables that it shows, by entry."""
    made = Made(study, factors={blown: 1e5})
    return study_section(made.read), {
        entry: [tables for _, tables in runs] for entry, runs in made.results.items()
    }


def without_figures(section: Section, **changes: Any) -> Section:
    """Quick to write."""
    exhibits = {
        name: exhibit for name, exhibit in section.exhibits.items() if name in section.tables
    }
    return replace(section, exhibits=exhibits, **changes)


def lines_of(table: ReportTable) -> list[dict[str, Any]]:
    """By the names of a CSV's columns."""
    names = [" ".join(filter(None, column)) for column in table.frame.columns]
    return table.frame.set_axis(names, axis=1).to_dict("records")


# Sections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "tables", "figures"),
    [
        ({}, "loss fairness", "trade-off curves seconds scores radar"),
        ({"last_states": 3, "measured": ("validation",)}, "tuning", "trade-off validation"),
        ({"splits": 2}, "loss splits", "trade-off curves seconds scores radar"),
    ],
)
def test_what_a_section_has(changes: dict[str, Any], tables: str, figures: str) -> None:
    found, _ = made_section(made_setting(**changes))
    assert " ".join(found.tables) == tables
    assert " ".join(found.figures) == figures
    assert found.notes == {"SGD": "a <b>note</b> & more"}
    assert found.synthetic
    if "seconds" in found.figures:
        assert {line.get_label() for line in found.figures["seconds"].axes[0].lines} >= set(ENTRIES)
    shown = {axes.get_title(loc="left") for axes in found.figures["trade-off"].axes}
    assert shown == ({"validation"} if "tuning" in found.tables else {"train", "test"})


def test_losses_and_violations_are_those_of_the_last_record() -> None:
    found, cells = made_section(made_setting())
    for line in lines_of(found.tables["loss"]):
        assert (line["runs"], line["examples per step"]) == (
            2,
            {"SGD": 8, "SSL-ALM": 40, "SSw": 40}[line["row"]],
        )
        for part, name in (("train", "train"), ("validation", "validation"), ("test", "test")):
            ends = np.array(
                [cell["records"][part][-1].astype(float) for cell in cells[line["row"]]]
            )
            # two groups: both signs of their difference are bounded
            over = np.abs(ends[:, 1] - ends[:, 2]) - 0.005
            for column, values in (("loss", ends[:, 0]), ("violation", np.maximum(over, 0))):
                shown = line[f"{name} {column} mean"], line[f"{name} {column} std"]
                assert shown == pytest.approx((values.mean(), values.std(ddof=1)))
    first = lines_of(found.tables["loss"])[0]
    assert (first["validation loss paper mean"], first["validation loss paper std"]) == (0.9, 0.001)
    assert first["validation loss differs"]


def test_the_papers_figures_are_counted_and_shown_below_ours() -> None:
    """Of the paper's twelve figures the train ones are too vague to miss; those of test and one
    loss are far off."""
    section, _ = made_section(made_setting())
    assert section.agreement.startswith(
        "6 of 12 comparisons with the paper's figures are within two"
    )
    html = Page([without_figures(section)]).html()
    assert html.count("<small>paper: ") == 12
    assert "<small>paper: 0.9000 ± 0.0010" in html
    assert html.count('<strong class="far">') == 6 + 1  # and where the mark is explained
    assert section.agreement.replace("'", "&#39;") in html


def test_differences_of_what_is_not_finite_or_rounded_to_nothing() -> None:
    ours = pd.DataFrame(
        {"mean": [math.inf, 0.5, 0.5, math.nan], "std": [math.inf, 0.0, 0.0, math.nan]}
    )
    paper = [Printed(0.5, 0.1), Printed(0.4991, 0.0), Printed(0.4989, 0.0), Printed(0.4, 0.0)]
    table = beside(ours, paper)  # a printed 0.000 is half of its last digit
    assert table["differs"].tolist()[:3] == [True, False, True]
    assert math.isnan(table["differs"][3])
    assert agreement([frame_of({"loss": table})]).startswith("1 of 3 comparisons")
    assert agreement([frame_of({"row": pd.Series(["A"])})]) == ""


# What was found -----------------------------------------------------------------------------------


def losses_of(study: StoredStudy, ends: dict[str, tuple[float, float, float]]) -> Results:
    """Two runs of every entry: the loss, larger by .002 in the second, and the violation on train
    and on test."""
    made = Made(study)
    for entry, runs in made.results.items():
        loss, *violations = ends[entry]
        for run, tables in runs:
            for part, violation in zip(("train", "test"), violations, strict=True):
                gap = 0.005 + violation if violation else 0.0
                tables["records"][part] = np.array(
                    [(loss + 0.002 * run.seed, gap, 0.0)] * study.records
                )
    return made.read


def test_finding_names_the_first_the_second_and_held_out_examples() -> None:
    ends = {"SGD": (0.30, 0.2, 0.2), "SSL-ALM": (0.40, 0.0, 0.05), "SSw": (0.45, 0.005, 0.0)}
    results = losses_of(made_setting(), ends)
    said = study_section(results).finding
    assert "within 0.01 of the bound 0.005, SSL-ALM has the smallest loss (0.401 ± 0.001)" in said
    assert (
        "the difference in loss between the first two, SSL-ALM and SSw, is significant: 0.050"
        " [0.050, 0.050]" in said
    )
    assert said.endswith(
        "its largest violation is 0.050 ± 0.000; every bound is met in 0 of 2 runs."
    )
    far = losses_of(made_setting(), dict.fromkeys(ENTRIES, (0.3, 0.2, 0.2)))
    assert (
        "no method ends within 0.01 of the bound 0.005; the nearest is SGD"
        in study_section(far).finding
    )


def test_short_runs_say_so_and_are_not_compared() -> None:
    study = made_setting(seeds=1, steps=5)
    found, _ = made_section(study)
    steps = max(entry.own_steps for entry in study.entries)
    assert found.short == f"1 of 2 runs of a method, at most 5 of {steps:,} steps"
    assert "not compared with the paper" in found.agreement
    own, _ = made_section(replace(study, reference=""))  # nothing of it is in the paper
    assert own.agreement == ""
    assert own.how == "As many steps as the study gives each method"
    assert "The paper&rsquo;s figure" not in Page([without_figures(own)]).html()
    for table in found.tables.values():
        assert not any("paper" in field for _, field in table.frame.columns)
    html = Page([without_figures(found)]).html()
    assert html.index("A short run.") < html.index('class="finding"')
    whole, _ = made_section(made_setting())
    assert whole.short == ""
    html = Page([without_figures(whole)]).html()
    assert "A short run." not in html
    heading = html.index('<h2 id="paper-ok-race">')
    order = [html.index(f'id="paper-ok-race-{name}"') for name in ("loss", "fairness")]
    assert heading < html.index('class="finding"') < order[0] < order[1]


# The terminal -------------------------------------------------------------------------------------


def test_the_terminals_tables_fit_and_long_ones_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, _ = made_section(made_setting())
    show(Page([found]), Path("there"))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "6 of 12 comparisons with the paper's figures are within" in " ".join(said.split())
    loss = found.tables["loss"]
    for column in loss.columns:
        assert all(text in said for text in column.text)
    many = replace(loss, frame=pd.concat([loss.frame] * 30))
    show(Page([replace(found, exhibits={"loss": Exhibit("Loss", many)})]), Path("there"))
    assert "90 lines, in there/tables/paper-ok-race-loss.csv" in capsys.readouterr().out


# Files --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> list[Section]:
    """One study within both budgets, a method of which blew up, and one that chooses settings."""
    title = "</script><script>alert(1)</script>"
    budgets = [made_setting(title=title, budget=budget) for budget in ("paper", "examples")]
    sections = [made_section(study, blown="SSw")[0] for study in budgets]
    return [*sections, made_section(made_setting(name="tune", last_states=2))[0]]


@pytest.fixture(scope="module")
def written(both: list[Section], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Page(both, [SYSTEM]).write(tmp_path_factory.mktemp("report") / "new")


def test_every_table_and_figure_has_its_files(both: list[Section], written: Path) -> None:
    there = {
        str(path.relative_to(written.parent))
        for path in written.parent.rglob("*")
        if path.is_file()
    }
    expected = {"index.html"}
    for one, stem in zip(
        both, ("paper-ok-race-paper", "paper-ok-race-examples", "tune"), strict=True
    ):
        expected |= {
            f"tables/{stem}-{name}.{ending}" for name in one.tables for ending in ("csv", "tex")
        }
        expected |= {
            f"figures/{stem}-{name}.{ending}" for name in one.figures for ending in ("pdf",)
        }
    # a browser's, if it was first
    assert {name for name in there if not name.startswith("profile")} == expected
    table = list(
        csv.DictReader((written.parent / "tables" / "paper-ok-race-examples-loss.csv").open())
    )
    assert (
        float(table[0]["train loss mean"]) == lines_of(both[1].tables["loss"])[0]["train loss mean"]
    )


def test_progress_reaches_its_end_and_one_budget_needs_no_name(
    both: list[Section], tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    little = replace(
        both[0],
        exhibits={name: both[0].exhibits[name] for name in ("trade-off", "loss", "fairness")},
    )
    Page([little]).write(tmp_path, lambda done, total: told.append((done, total)))
    assert told == [(i, 3) for i in range(1, 4)]
    assert (tmp_path / "tables" / "paper-ok-race-loss.csv").exists()


def test_files_and_addresses_have_no_sign_that_a_link_reads_otherwise(both: list[Section]) -> None:
    page = Page([without_figures(both[2], name="My study #1 & 50%")])
    assert list(page.stems) == ["my-study-1-50"]
    read = Read(page.html())
    assert "tables/my-study-1-50-tuning.csv" in read.attributes["href"]
    assert set(read.attributes["aria-labelledby"]) <= set(read.attributes["id"])


def test_real_and_synthetic_data_have_files_of_their_own(both: list[Section]) -> None:
    synthetic = both[2]
    real = replace(synthetic, cards=[replace(synthetic.cards[0], source="acs:OK")])
    assert list(Page([real, synthetic]).stems) == ["tune-paper", "tune-paper-synthetic"]


def test_pages_that_cannot_be_written_say_why(both: list[Section], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"section.*fairbound run \S+"):
        Page([])
    with pytest.raises(ValueError, match=r"got tune \(paper\), tune \(paper\)"):
        Page([both[2], both[2]])
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file .*another folder"):
        Page(both).write(tmp_path / "file")


# The page -----------------------------------------------------------------------------------------


class Read(HTMLParser):
    """Attributes and words of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.attributes: dict[str, list[str]] = {}
        self.words: list[str] = []
        self.scripts, self.inside = 0, ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.scripts += tag == "script"
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data)


def test_the_page_says_what_it_shows_and_leads_to_the_files(
    both: list[Section], written: Path
) -> None:
    html = written.read_text()
    read, words = Read(html), " ".join(" ".join(Read(html).words).split())
    ids = read.attributes["id"]
    assert len(ids) == len(set(ids))
    for link in read.attributes["href"]:
        assert link[1:] in ids if link.startswith("#") else (written.parent / link).is_file(), link
    assert "src" not in read.attributes
    assert any("default-src 'none'" in said for said in read.attributes["content"])
    assert read.scripts == 1  # none came in with a title or a note
    for said in (
        both[0].title,
        "a <b>note</b> & more",
        "Abacus <9000>",
        "2031-05-06",
        "synthetic:OK",
        "Equal numbers of examples for every method",
        both[0].origin,
        "Beyond the axis",
    ):
        assert said in words
    assert words.count("Synthetic data.") == 1
    assert len(html) < 1e6


def test_studies_and_boards_are_one_page(both: list[Section]) -> None:
    board = board_section(demonstration(methods=3, problems=1, seeds=1))
    html = Page([without_figures(both[0]), board]).html()
    read = Read(html)
    ids = read.attributes["id"]
    assert len(ids) == len(set(ids))
    assert {
        "paper-ok-race",
        "board",
        "board-shares",
        "board-method-ghost",
        "board-problem-income-ok-race",
    } <= {*ids}
    assert {link[1:] for link in read.attributes["href"] if link.startswith("#")} <= {*ids}
    assert (
        html.index("Contents</h2>")
        < html.index('<h2 id="paper-ok-race">')
        < html.index('<h2 id="board">')
    )
    assert "From one run there is no interval." in html


def test_only_synthetic_sections_have_the_banner_where_sources_differ(both: list[Section]) -> None:
    bare = without_figures(both[2])
    real = replace(bare, name="real", cards=[replace(bare.cards[0], source="acs:OK")])
    mixed = Page([real, bare]).html()
    assert mixed.count("Synthetic data.") == 1
    # not for the real section
    assert mixed.index("Synthetic data.") > mixed.index('<h2 id="tune">')
    assert "Synthetic data." not in Page([real]).html()


# What a reader would do: sort the first table by a column of means, look at every figure and at the
# width of the page.
PROBE = """(() => {
const table = [...document.querySelectorAll("table")].find(one => one.tHead.textContent.includes("train loss"));
const at = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent.trim() === "train loss");
const header = table.tHead.rows[0].cells[at].querySelector("button");
const values = () => [...table.tBodies[0].rows].map(row => row.cells[at])
  .map(cell => Number(cell.dataset.value ?? cell.firstChild.textContent));
header.click(); const up = values(); header.click(); const down = values();
const figures = [...document.querySelectorAll(".figure")];
return {
  up, down, all: figures.length, scroll: document.documentElement.scrollWidth,
  points: figures[0].querySelectorAll("use").length, curves: figures[1].querySelectorAll("g > title").length,
  empty: [...document.querySelectorAll(".figure svg")].filter(part => part.clientWidth < 100).length,
  outside: [...document.querySelectorAll(".figure text")].filter(text => {
    const box = text.closest("svg").getBoundingClientRect(), {left, right, top, bottom} = text.getBoundingClientRect();
    return left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1;
  }).map(text => text.textContent),
};
})()"""


@needs_browser
def test_browser_shows_figures_and_sorts(both: list[Section], written: Path) -> None:
    seen, complaints, requests = browsed(written, PROBE, width=1400)
    assert complaints == []
    assert requests == [written.as_uri()]
    assert seen["all"] == sum(len(one.figures) for one in both)
    assert (seen["empty"], seen["outside"]) == (0, [])
    # what was found is drawn first: loss against violation, train and test
    assert seen["points"] >= 3 * 2
    # three methods, loss and gap, train and test
    assert seen["curves"] == 3 * 2 * 2
    means = [line["train loss mean"] for line in lines_of(both[0].tables["loss"])]
    assert seen["up"] == pytest.approx(sorted(means), rel=1e-3)
    assert seen["down"] == pytest.approx(sorted(means, reverse=True), rel=1e-3)


@needs_browser
def test_browser_keeps_a_narrow_page_narrow(written: Path) -> None:
    seen, complaints, _ = browsed(written, PROBE, width=390, dark=True)
    assert complaints == []
    assert seen["scroll"] <= 390
    assert (seen["empty"], seen["outside"]) == (0, [])
