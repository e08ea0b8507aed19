"""The board's page: its words and tables, and what a reader does with it in a real browser where
there is one."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browsing import browsed, needs_browser
from demonstration import demonstration

from fairbound.benchmark._page import Page
from fairbound.benchmark.board._figures import draw_curves, draw_run_ends, profiles, scatter
from fairbound.benchmark.board._findings import overall, problem_finding
from fairbound.benchmark.board._results import PARTS, Board, Curves, HeldOutScores, InstanceName
from fairbound.benchmark.board._scoring import reached
from fairbound.benchmark.board._section import board_section
from fairbound.benchmark.board._tables import heldout_table
from fairbound.reports._figures import TITLE

FILES = r'href="((?:tables|figures)/[^"]+)"'
WAIT = "await new Promise(done => setTimeout(done, 100));"  # for the address to change


def page_of(*boards: Board) -> Page:
    return Page([board_section(board) for board in boards])


def probe(body: str) -> str:
    return f"(async () => {{ {body} }})()"


@pytest.fixture(scope="module")
def board() -> Board:
    return demonstration(methods=9, problems=6, seeds=3)


@pytest.fixture(scope="module")
def written(board: Board, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(board).write(tmp_path_factory.mktemp("board"))


# Words --------------------------------------------------------------------------------------------


def with_runs(board: Board, second: float) -> Board:
    """Two methods on one problem with three seeds: the first solves it, the second ends at this
    merit."""
    card, curve = board.problems[0], next(iter(board.curves.values()))
    reference, names = card.reference, [method.name for method in board.methods[:2]]

    def ending(merit: float) -> Curves:
        loss = np.full((3, 4), reference.loss + merit * (reference.start - reference.loss))
        none = np.zeros(loss.shape)
        share = np.array([0.1, 0.7, 0.8, 1.0])
        return replace(
            curve, share=share, loss=loss, violation=none, mean_violation=none, distance=None
        )

    ends = HeldOutScores(
        **{
            name: np.zeros(20)
            for name in ("train_loss", "train_violation", "loss", "violation", "accuracy")
        },
        decisions=("holds",) * 12 + ("violated",) * 3 + ("undecided",) * 5,
    )
    curves = {
        (names[0], InstanceName(card.name)): ending(0.05),
        (names[1], InstanceName(card.name)): ending(second),
    }
    return replace(
        board,
        methods=board.methods[:2],
        problems=[card],
        curves=curves,
        failures={},
        heldout={(names[0], card.name): ends},
    )


def test_what_is_said_of_a_problem(board: Board) -> None:
    found = with_runs(board, 0.5)
    said = problem_finding(found, found.problems[0])
    assert (
        said
        == "1 of 2 methods solve it in most runs: SSLALM. On held-out data, at 95 % confidence, the"
        " bound holds in 12 of 20 runs of all methods, is violated in 3, and is undecided in 5."
    )
    assert overall(found)[0].startswith("Of 1 problem as stated, SSLALM solves 1.00")
    tied = with_runs(board, 0.05)
    assert "SSLALM and Ghost cannot be told apart" in overall(tied)[0]


def test_problem_that_nobody_solves(board: Board) -> None:
    one = with_runs(board, 0.5)
    curves = {
        cell: replace(curve, loss=np.full_like(curve.loss, math.nan))
        for cell, curve in one.curves.items()
    }
    failed = replace(one, curves=curves)
    assert problem_finding(failed, failed.problems[0]).startswith(
        "0 of 2 methods solve it in most runs."
    )
    assert "Solved by no run of any method (1): income-ok-race" in page_of(failed).html()


def test_runs_that_diverged_count_in_the_median_violation(board: Board) -> None:
    one = with_runs(board, 0.5)
    ((cell, held),) = one.heldout.items()
    lost = replace(held, violation=np.array([math.nan] * 15 + [0.0] * 5))
    table = heldout_table(replace(one, heldout={cell: lost}))
    assert table is not None
    assert [column.text for column in table.columns if column.heading == "violation, held out"] == [
        ["not finite"]
    ]


def test_default_problem_has_two_groups_and_bound_two_hundredths(board: Board) -> None:
    other = replace(board, problems=board.problems[::-1])
    assert other.default_problem.name == "income-ok-race"


def test_short_run_says_so_first_and_compares_nothing(board: Board, written: Path) -> None:
    def words(html: str) -> str:
        body = html[html.index("<main") :]
        return re.sub(r"<[^>]*>", " ", body[: body.index("<script>")])

    short = words(page_of(replace(with_runs(board, 0.5), short=True)).html())
    assert short.index("A short run.") < short.index("Share of instances solved")
    assert "decides nothing" in " ".join(short.split())
    assert "A short run." not in words(written.read_text(encoding="utf-8"))


def test_page_names_failures_synthetic_data_and_is_escaped(board: Board) -> None:
    method = replace(board.methods[0], name="<b>bold</b> & co", settings="X(a='<i>')")
    swapped = {
        ("<b>bold</b> & co", p) if m == board.methods[0].name else (m, p): c
        for (m, p), c in board.curves.items()
    }
    html = page_of(replace(board, methods=[method, *board.methods[1:]], curves=swapped)).html()
    assert "<b>bold" not in html
    assert "<title>&lt;b&gt;bold&lt;/b&gt; &amp; co: " in html
    assert "<i>" not in html
    assert "takes longer than the limit" in html
    assert "which describe no real persons (1): income-va-marital" in html


def test_boards_with_little_on_them_have_a_page(board: Board, tmp_path: Path) -> None:
    one = with_runs(board, 0.5)
    name, card = board.methods[0].name, board.problems[0]
    cell = (name, InstanceName(card.name))
    never = one.curves[cell]
    few = replace(
        never,
        share=never.share[:2],
        loss=never.loss[:1, :2],
        violation=never.violation[:1, :2],
        mean_violation=never.mean_violation[:1, :2],
    )
    for little in (
        replace(one, methods=one.methods[:1], heldout={}),
        replace(one, curves={cell: few}, heldout={}),
        replace(one, curves={}, heldout={}, failures={cell: "it failed"}),
        replace(one, curves={}),
        replace(one, problems=[replace(card, groups=None, bound=None, summary="")], heldout={}),
    ):
        html = page_of(little).write(tmp_path).read_text(encoding="utf-8")
        assert ("Share of instances solved" in html) == bool(little.shares)
        assert all((tmp_path / link).exists() for link in re.findall(FILES, html))


# Files --------------------------------------------------------------------------------------------


def test_numbers_beside_the_page(board: Board, written: Path) -> None:
    folder = written.parent / "tables"
    shares = pd.read_csv(folder / "board-shares.csv", index_col="method")
    for part, own in board.shares.items():
        np.testing.assert_allclose(shares.loc[board.names, PARTS[part]], own.share)
    solved = pd.read_csv(folder / "board-runs.csv").fillna({"change": ""})
    stated = solved[(solved["change"] == "") & solved["counts"]]
    means = (
        stated.groupby(["method", "problem"])["solved"].mean().unstack().fillna(0.0).mean(axis=1)
    )
    np.testing.assert_allclose(means[board.names], board.shares["stated"].share)
    assert len(pd.read_csv(folder / "board-splits.csv")) == 20 * len(board.heldout)
    recorded = sum(one.loss.size for one in board.curves.values())
    assert len(pd.read_csv(folder / "board-records.csv", usecols=["merit"])) == recorded
    html = written.read_text(encoding="utf-8")
    links = re.findall(FILES, html)
    for link in links:
        assert (written.parent / link).exists(), link
    tables = 4 + len(board.methods) + len(board.problems)
    figures = 2 + 2 * len(board.problems)
    counts = [sum(link.endswith(ending) for link in links) for ending in ("csv", "tex", "pdf")]
    assert counts == [tables + 4, tables, figures]
    assert (
        len(links)
        == len(set(links))
        == len([*folder.iterdir(), *(written.parent / "figures").iterdir()])
    )


def test_the_docs_recompute_the_shares_from_the_records(
    board: Board, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "board.md"
    (tmp_path / "board").symlink_to(written.parent)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(page.read_text().split("```python\n")[2].split("```")[0], names)
    recomputed = names["counted"].xs("", level="change").mean()
    np.testing.assert_allclose(recomputed[board.names], board.shares["stated"].share)
    assert len(names["counted"]) == len(board.counted)
    assert len(names["solved"]) == len(board.instances)


def test_links_lead_somewhere_and_ids_are_unique(written: Path) -> None:
    html = written.read_text(encoding="utf-8")
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="#([^"]+)"', html))
    assert links <= set(ids)
    assert {"board-method-sslalm", "board-problem-income-ok-race"} <= links


def test_names_that_differ_in_other_signs_alone_have_parts_of_their_own(
    board: Board, tmp_path: Path
) -> None:
    one = with_runs(board, 0.5)
    renamed = dict(
        zip([method.name for method in one.methods], ("NuPI (nu .5)", "NuPI (nu 5)"), strict=True)
    )
    methods = [replace(method, name=renamed[method.name]) for method in one.methods]
    problems = [replace(one.problems[0], name=name) for name in ("my-table", "my table", "\u8868")]
    curves = {
        (renamed[name], InstanceName(card.name)): curve
        for (name, _), curve in one.curves.items()
        for card in problems
    }
    page = page_of(
        replace(one, methods=methods, problems=problems, curves=curves, heldout={})
    ).write(tmp_path)
    ids = re.findall(r'\sid="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))
    assert {"board-method-nupi-nu-5", "board-method-nupi-nu-5-2", "board-problem-\u8868"} <= set(
        ids
    )
    assert len(list((tmp_path / "tables").glob("board-method-*.csv"))) == 2
    assert len(list((tmp_path / "tables").glob("board-problem-*.csv"))) == 3
    assert len(list((tmp_path / "figures").glob("board-ends-*.pdf"))) == 3


def test_rule_sets_share_a_page(board: Board, tmp_path: Path) -> None:
    html = page_of(board, replace(board, rules="tuned")).write(tmp_path).read_text(encoding="utf-8")
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {
        "board-default",
        "board-tuned",
        "board-default-method-sslalm",
        "board-tuned-method-sslalm",
    } <= set(ids)
    assert len(list((tmp_path / "tables").glob("board-*-shares.csv"))) == 2


@pytest.mark.slow
def test_a_whole_board_is_small() -> None:
    size = len(page_of(demonstration(methods=16, problems=20, seeds=5)).html().encode())
    assert size < 2_000_000, f"{size:,} bytes"


# In a browser -------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, False), (390, True)])
def test_every_part_fits(board: Board, written: Path, width: int, dark: bool) -> None:
    seen = browsed(
        written,
        probe(f"""
        const wide = [], outside = [];
        for (const hash of ["#", "#board-method-ghost", "#board-problem-income-ok-race", "#reading"]) {{
          location.hash = hash; {WAIT}
          wide.push(document.documentElement.scrollWidth - document.documentElement.clientWidth);
          outside.push(...[...document.querySelectorAll(".figure text")].filter(text => {{
            const box = text.closest("svg").getBoundingClientRect(), {{left, right}} = text.getBoundingClientRect();
            return left < box.left - 1 || right > box.right + 1;
          }}).map(text => text.textContent));
        }}
        location.hash = "#"; {WAIT}
        const ends = document.querySelector("[data-shown-by=board-ends]:not([hidden]) .figure");
        const profile = document.querySelector("[aria-labelledby=board-speed] .figure");
        return {{points: ends.querySelectorAll("use").length, panels: ends.querySelectorAll("svg").length,
          lines: profile.querySelectorAll("g > title").length, wide, outside,
          paper: getComputedStyle(document.body).backgroundColor}};
    """),
        width=width,
        dark=dark,
    )
    assert seen.complaints == []
    assert seen.requests == [written.as_uri()]
    assert seen.found["points"] >= 18
    assert seen.found["panels"] == 2
    assert seen.found["lines"] == 9 * len(board.families)
    assert seen.found["wide"] == [0, 0, 0, 0]
    assert seen.found["outside"] == []
    assert (seen.found["paper"] == "rgb(22, 25, 29)") == dark


@needs_browser
def test_choosing_a_problem_changes_sentence_and_figure(written: Path) -> None:
    seen = browsed(
        written,
        probe("""
        const at = () => [...document.querySelectorAll("[data-shown-by=board-ends]")]
          .filter(one => one.offsetHeight)
          .map(one => [one.querySelector("p").textContent, one.querySelector(".figure").ariaLabel]);
        const before = at(), select = document.querySelector("[data-shows=board-ends]");
        select.value = "problem-income-va-marital"; select.dispatchEvent(new Event("change"));
        return [before, at()];
    """),
        width=1400,
    )
    ((before, first),), ((after, second),) = seen.found
    assert before != after
    assert ("income-ok-race:" in first, "income-va-marital:" in second) == (True, True)
    assert seen.complaints == []


def test_a_profile_ends_at_the_share_that_is_reached(board: Board) -> None:
    for axes, problems in zip(profiles(board).axes, board.families.values(), strict=True):
        line = next(one for one in axes.lines if one.get_label() == "SSLALM")
        hits = [
            reached(
                board.merits("SSLALM", InstanceName(name)),
                board.curves["SSLALM", InstanceName(name)].share,
            )
            for name in problems
        ]
        assert line.get_ydata()[-1] == pytest.approx(
            np.mean([np.isfinite(one).mean() for one in hits])
        )
        assert (np.diff(line.get_ydata()) >= 0).all()


def test_the_scatter_shows_both_shares(board: Board) -> None:
    (axes,) = scatter(board).axes
    dots = {
        (line.get_gid() or "").removeprefix(TITLE).partition(":")[0]: line for line in axes.lines
    }
    for i, name in enumerate(board.names):
        expected = board.shares["stated"].share[i], board.shares["changed"].share[i]
        assert (dots[name].get_xdata()[0], dots[name].get_ydata()[0]) == pytest.approx(expected)


def test_figures_of_a_problem_show_its_runs(board: Board) -> None:
    problem, first = board.problems[0], "SSLALM"
    drawn, held = draw_run_ends(board, problem), board.heldout[first, problem.name]
    (dot,) = (
        line
        for line in drawn.axes[1].lines
        if (line.get_gid() or "").startswith(f"{TITLE}{first}: ")
    )
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == pytest.approx(
        (held.violation.mean(), held.loss.mean())
    )
    assert drawn.axes[0].get_xlim() == drawn.axes[1].get_xlim()
    loss, violation = draw_curves(board, problem).axes
    shown = [line for line in loss.lines if (line.get_gid() or "").startswith(TITLE)]
    measured = [
        method.name
        for method in board.methods
        if (method.name, InstanceName(problem.name)) in board.curves
    ]
    assert [line.get_label() for line in shown] == measured
    assert shown[0].get_ydata()[-1] == pytest.approx(
        np.median(board.curves[measured[0], InstanceName(problem.name)].loss[:, -1])
    )
    assert violation.get_yscale() == "log"


@needs_browser
def test_sorting_by_keyboard(written: Path) -> None:
    header = "[aria-label^='Share of instances'] thead th:nth-child(3)"
    seen = browsed(
        written,
        probe(f"""
        const rows = [...document.querySelectorAll("[aria-label^='Share of instances'] tbody tr")];
        const ring = getComputedStyle(document.querySelector("{header} button")).outlineStyle;
        const value = row => +(row.cells[2].dataset.value ?? row.cells[2].firstChild.textContent);
        return [document.querySelector("{header}").ariaSort, rows.map(value), ring];
    """),
        width=1400,
        focus=f"{header} button",
        keys=["Enter"],
    )
    order, values, ring = seen.found
    assert order == "ascending"
    assert values == sorted(values)
    assert values[0] < values[-1]
    assert ring == "solid"


@needs_browser
def test_address_shows_one_part_and_back_returns(written: Path) -> None:
    seen = browsed(
        written,
        probe(f"""
        const views = [...document.querySelectorAll(".home, .part")];
        const shown = () => views.filter(one => one.offsetHeight)
          .map(one => one.getAttribute("aria-labelledby") ?? "");
        const found = [shown()];
        document.querySelector('a[href="#board-method-ghost"]').click(); {WAIT} found.push(shown());
        document.querySelector(
          '[aria-labelledby=board-method-ghost] a[href="#board-problem-hs71"]').click(); {WAIT}
        found.push(shown());
        history.back(); {WAIT} found.push(shown());
        history.back(); {WAIT} found.push(shown());
        return found;
    """),
        width=1400,
    )
    home, method, problem, back, again = seen.found
    assert (home, method, problem, back, again) == (
        [""],
        ["board-method-ghost"],
        ["board-problem-hs71"],
        ["board-method-ghost"],
        [""],
    )
    assert seen.complaints == []


@needs_browser
def test_screen_readers_find_landmarks_names_and_tables(written: Path) -> None:
    seen = browsed(
        written,
        probe("""
        const named = one => (one.getAttribute("aria-label") || one.labels?.[0]?.textContent || "").trim().length > 5;
        return {main: document.querySelectorAll("main").length, h1: document.querySelectorAll("h1").length,
          figures: [...document.querySelectorAll("[role=img]")].every(named),
          controls: [...document.querySelectorAll("select")].every(named),
          skip: document.querySelector("a").getAttribute("href"),
          headers: [...document.querySelectorAll("table")].every(one => one.querySelector("tbody th[scope=row]"))};
    """),
        width=1400,
    )
    assert seen.found == {
        "main": 1,
        "h1": 1,
        "figures": True,
        "controls": True,
        "skip": "#main",
        "headers": True,
    }
