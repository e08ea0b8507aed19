"""Figures of the benchmark: what they show against numpy, and that files and pages come out of
them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fairbound.benchmark import _plots as plots
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._plots import PLOTS, End, draw_ends, shared_axis
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._results import BoundedGaps, ReportItem, Results
from fairbound.benchmark._sections import study_section
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import StoredStudy
from fairbound.benchmark._study import Study, load_study
from fairbound.metrics._counts import Counts
from fairbound.metrics.fairness_metrics import values
from fairbound.reports._figures import TITLE, panels, style, svg, write_pdf

Cells = dict[str, list[StoredResult]]


def small(name: str, entries: tuple[str, ...], **changes: Any) -> Study:
    whole = load_study(name).with_entries((), only=entries)
    assert whole.problem is not None
    whole = whole.on(source=f"synthetic:{whole.problem.state}")
    assert whole.problem is not None
    return replace(whole, problem=replace(whole.problem, hidden=(4,)), **changes)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(small("paper-ok-race", ("SGD", "ALM", "SSw"), records=3, seeds=3, steps=12))


@pytest.fixture(scope="module")
def study(plan: Plan) -> StoredStudy:
    return plan.stored(Store("nowhere"))


@pytest.fixture(scope="module")
def done(plan: Plan, study: StoredStudy, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """SSw has only one of its three runs, ALM none."""
    everything, some = (Store(tmp_path_factory.mktemp(name)) for name in ("all", "some"))
    plan.compute(everything, Engine())
    for run, result in study.results(everything):
        if result is not None and (run.entry == "SGD" or (run.entry == "SSw" and run.seed == 1)):
            some.put_many([result])
    return some


@pytest.fixture(scope="module")
def cells(study: StoredStudy, done: Store) -> Cells:
    found: Cells = {}
    for run, result in study.results(done):
        if result is not None:
            found.setdefault(run.entry, []).append(result)
    return found


@pytest.fixture(scope="module")
def results(study: StoredStudy, done: Store) -> Results:
    return Results.read(study, done)


@pytest.fixture(scope="module")
def figures(results: Results) -> dict[str, Any]:
    return {name: item.make(results) for name, item in PLOTS.items()}


def titles(panel: Any) -> list[str]:
    """What stands under the pointer."""
    found = [line.get_gid() for axes in panel.axes for line in (*axes.lines, *axes.patches)]
    return [words.removeprefix(TITLE) for words in found if words]


def line_of(axes: Any, label: str) -> Any:
    return next(line for line in axes.lines if line.get_label() == label)


# What is shown ------------------------------------------------------------------------------------


def test_curves_are_means_and_quartiles_over_runs(results: Results, cells: Cells) -> None:
    parts = ("train", "validation", "test")
    found = results.curves(parts)
    assert found.groupby("row", sort=False)["runs"].first().to_dict() == {"SGD": 3, "SSw": 1}
    for part in parts:
        losses = np.stack([cell.tables["records"][part] for cell in cells["SGD"]]).astype(
            np.float64
        )
        gap = losses[:, :, 1] - losses[:, :, 2]
        for name, expected in (("loss", losses[:, :, 0]), ("white - non-white", gap)):
            curve = found[
                (found["row"] == "SGD") & (found["part"] == part) & (found["quantity"] == name)
            ]
            assert curve["step"].tolist() == [4, 8, 12]
            np.testing.assert_allclose(curve["mean"], expected.mean(0))
            np.testing.assert_allclose(curve["low"], np.percentile(expected, 25, axis=0))
            np.testing.assert_allclose(curve["high"], np.percentile(expected, 75, axis=0))


def test_a_gap_and_its_negative_are_one(plan: Plan, study: StoredStudy) -> None:
    assert BoundedGaps.of(study.cards[0]).limits == {"white - non-white": (0.005, -0.005)}
    assert plan.study.problem is not None
    absolute = replace(
        plan.study, problem=replace(plan.study.problem, notion="absolute_against_pooled")
    )
    found = BoundedGaps.of(Plan(absolute).stored(Store("nowhere")).cards[0])
    assert list(found.limits.values()) == [(0.005,), (0.005,)]
    assert found.values(np.array([[0.2, 0.5], [0.5, 0.2]])).min() > 0
    both = np.array([[1.0, -1.0], [-1.0, 1.0]])
    unequal = BoundedGaps(("A - B", "B - A"), both, np.array([0.1, 0.2]), absolute=False)
    assert unequal.limits == {"A - B": (0.1,), "B - A": (0.2,)}


def test_the_last_state_is_what_the_counts_say(results: Results, cells: Cells) -> None:
    ends = [cell.tables["parts"] for cell in cells["SGD"]]
    at = ends[0]["part"].tolist().index("test")
    final = results.final.query("row == 'SGD' and part == 'test'")
    for metric in (
        "independence_reported",
        "independence_printed",
        "sufficiency_reported",
        "inaccuracy",
    ):
        expected = []
        for end in ends:
            (tn_a, fp_a, fn_a, tp_a), (tn_b, fp_b, fn_b, tp_b) = (
                end["counts"][at].reshape(2, 4).tolist()
            )
            counts = Counts.from_cells(
                {"a": (fp_a, tn_a, fn_a, tp_a), "b": (fp_b, tn_b, fn_b, tp_b)}
            )
            value = values(counts)[metric]
            expected.append(np.nan if value is None else value)
        np.testing.assert_allclose(final[metric], expected)
    histograms = np.stack([end["histogram"][at] for end in ends]).astype(float)
    shares = results.histograms(["test"]).query("row == 'SGD'")["share"].to_numpy().reshape(2, -1)
    np.testing.assert_allclose(shares, (histograms / histograms.sum(-1, keepdims=True)).mean(0))


def curve(row: str, mean: Any, part: str = "train", quantity: str = "loss") -> pd.DataFrame:
    mean = np.asarray(mean, dtype=float)
    steps = np.arange(1, len(mean) + 1) * 100
    bands = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}
    return pd.DataFrame(
        {"row": row, "part": part, "quantity": quantity, "step": steps, "runs": 3} | bands
    )


@pytest.fixture
def drawn_from(results: Results, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure of made-up curves on train."""

    def draw(*made: pd.DataFrame) -> Any:
        monkeypatch.setattr(
            Results, "curves", lambda self, parts: pd.concat(made, ignore_index=True)
        )
        return plots._curves(results, ("train",))

    return draw


def test_a_run_that_diverged_leaves_the_axis_to_the_others(drawn_from: Any) -> None:
    figure = drawn_from(curve("A", [0.5, 0.7, 0.6]), curve("B", [0.5, np.inf, np.nan]))
    panels = figure.subfigs[:2]
    # figures that people compare have the same axes
    assert len({panel.axes[0].get_ylim() for panel in panels}) == 1
    low, high = panels[0].axes[0].get_ylim()
    assert 0.45 < low < 0.5
    assert 0.7 < high < 0.75
    assert figure.get_label().endswith("Not finite, and there not drawn: B")
    assert np.isfinite(line_of(panels[1].axes[0], "train").get_ydata()).tolist() == [
        True,
        False,
        False,
    ]
    assert "nan" not in svg(figure).replace("nan at the end", "")


def test_a_method_that_blew_up_leaves_the_shared_axis_and_the_caption_says_so(
    drawn_from: Any,
) -> None:
    ordinary = [curve(name, [0.5, 0.7, 0.6]) for name in "ABC"]
    figure = drawn_from(*ordinary, curve("huge", np.geomspace(0.5, 1e6, 3)))
    assert figure.subfigs[3].axes[0].get_ylim()[1] < 1.1
    assert "Beyond the axis, which the other methods set: huge (loss from" in figure.get_label()
    assert "huge, train: loss 1e+06 at the end" in titles(figure.subfigs[3])
    assert "Beyond" not in drawn_from(*ordinary).get_label()


def test_long_curves_are_thinned_and_keep_their_ends(drawn_from: Any) -> None:
    long = curve("A", np.random.default_rng(0).random(400))
    line = line_of(drawn_from(long).subfigs[0].axes[0], "train")
    x, y = line.get_xdata(), line.get_ydata()
    assert len(x) == plots._MAX_RECORDS
    assert (x[0], x[-1], y[-1]) == (100, 40_000, long["mean"].iloc[-1])


def test_an_empty_store_says_what_to_run(study: StoredStudy, tmp_path: Path) -> None:
    empty = Results.read(study, Store(tmp_path))
    for item in PLOTS.values():
        with pytest.raises(ValueError, match=r"paper-ok-race.*fairbound run \S+"):
            item.make(empty)


def test_a_part_that_was_not_measured_is_named(results: Results) -> None:
    with pytest.raises(ValueError, match=r"'dual'.*train, validation, test"):
        results.curves(["dual"])


def test_one_run_has_no_band(figures: dict[str, Any]) -> None:
    figure = figures["curves"]
    bands = {
        panel.get_suptitle().strip(): len(panel.axes[0].collections)
        for panel in figure.subfigs[:-1]
    }
    assert bands == {"SGD": 2, "SSw": 0}


def test_curves_show_means_and_bounds(results: Results, figures: dict[str, Any]) -> None:
    loss, gap = figures["curves"].subfigs[0].axes
    data = results.curves(["train"]).query("row == 'SGD'")
    assert (
        list(line_of(loss, "train").get_ydata())
        == data[data["quantity"] == "loss"]["mean"].tolist()
    )
    assert sorted(line.get_ydata()[0] for line in gap.lines if line.get_label() == "bound") == [
        -0.005,
        0.005,
    ]
    assert [text.get_text() for text in figures["curves"].subfigs[-1].legends[0].get_texts()] == [
        "train",
        "test",
        "bound",
    ]
    assert {axes.get_title(loc="left") for axes in (loss, gap)} == {"loss", "white - non-white"}


def test_seconds_are_steps_times_the_seconds_of_a_step(
    results: Results, figures: dict[str, Any]
) -> None:
    loss, gap = figures["seconds"].axes
    assert line_of(loss, "SGD").get_xdata() == pytest.approx(
        results.seconds["SGD"] * np.array([4, 8, 12])
    )
    assert {line.get_label() for line in gap.lines} == {"SGD", "SSw", "bound"}
    assert loss.get_xlabel() == "seconds"


def test_validation_shows_the_validation_split(figures: dict[str, Any]) -> None:
    legend = figures["validation"].subfigs[-1].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["validation", "bound"]


def test_an_axis_of_the_radar_ends_at_the_largest_value(figures: dict[str, Any]) -> None:
    lines = [
        line.get_ydata()[:-1]
        for panel in figures["radar"].subfigs[:-1]
        for line in panel.axes[0].lines
    ]
    largest = np.nanmax(np.array(lines, dtype=float), axis=0)
    assert largest[np.isfinite(largest)] == pytest.approx(1.0)


def test_the_trade_off_is_the_summarys(results: Results, figures: dict[str, Any]) -> None:
    test = figures["trade-off"].subfigs[1]
    summary = results.summary("test")
    for row in summary.index:
        loss, violation = (
            summary.loc[row, ("loss", "mean")],
            summary.loc[row, ("violation", "mean")],
        )
        (words,) = (words for words in titles(test) if words.startswith(f"{row}: "))
        assert (
            f"loss {loss:.4g} ± {summary.loc[row, ('loss', 'std')]:.2g}, violation {violation:.4g}"
            in words
        )
        (dot,) = (line for line in test.axes[0].lines if line.get_gid() == TITLE + words)
        assert (dot.get_xdata()[0], dot.get_ydata()[0]) == pytest.approx((violation, loss))
    assert {text.get_text() for text in test.axes[0].texts} == set(summary.index)


def test_a_figure_is_added_in_one_place(
    results: Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It then is in every report, on the page and as a file."""

    @style()
    def accuracy(results: Results) -> Any:
        final = results.final[results.final["part"] == "test"]
        figure, (panel,) = panels(1, 360, 300)
        panel.subplots().plot(final["violation"], final["accuracy"], "o")
        figure.set_label("Accuracy of each run")
        return figure

    monkeypatch.setitem(PLOTS, "accuracy", ReportItem("Accuracy", lambda results: True, accuracy))
    figure = study_section(results).figures["accuracy"]
    assert svg(figure).count("<use") == 4
    write_pdf(figure, tmp_path / "accuracy.pdf")
    assert (tmp_path / "accuracy.pdf").read_bytes().startswith(b"%PDF")


# Axes that methods share --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "stray", "beyond"),
    [
        # most are at one point, which counts as 0.1 wide
        ([(0.0, 0.0), (0.0, 0.0)], (0.0, 0.2), False),
        ([(0.0, 0.0), (0.0, 0.0)], (0.0, 0.5), True),
        ([(0.4, 0.7)], (0.4, 1.5), False),
        ([(0.4, 0.7)], (0.4, 1.7), True),
        ([(0.4, 0.7)], (-1e9, 0.7), True),
        ([(0.4, 0.7)], (float("nan"), float("inf")), False),
    ],
)
def test_how_far_is_beyond_the_axis(
    others: list[tuple[float, float]], stray: Any, beyond: bool
) -> None:
    ends = {f"other {i}": extent for i, extent in enumerate(others)} | {"stray": stray}
    axis = shared_axis(pd.DataFrame(ends).melt(var_name="row"), ["value"])
    assert ("stray" in axis.beyond) == beyond
    assert axis.not_finite == ([] if np.isfinite(stray).all() else ["stray"])
    finite = [end for extent in ends.values() for end in extent if np.isfinite(end)]
    assert (axis.range[0] <= min(finite) and max(finite) <= axis.range[1]) != beyond


def test_an_axis_of_nothing_shows_the_bounds() -> None:
    empty = pd.DataFrame({"row": ["A"], "value": [np.nan]})
    assert shared_axis(empty, ["value"], [-0.05, 0.05]).range == pytest.approx((-0.055, 0.055))


# Loss against violation ---------------------------------------------------------------------------


def crowd(count: int, name: str = "method {}") -> list[End]:
    random = np.random.default_rng(0)
    return [
        End(name.format(i), *random.uniform(0.4, 0.42, 1), 0.01, *random.uniform(0, 0.01, 1), 0.001)
        for i in range(count)
    ]


def labels_that_overlap(figure: Any) -> list[tuple[str, str]]:
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        boxes = [
            (text.get_text(), text.get_window_extent().shrunk(0.95, 0.8)) for text in axes.texts
        ]
        found += [
            (a, b)
            for i, (a, box) in enumerate(boxes)
            for b, other in boxes[i + 1 :]
            if box.overlaps(other)
        ]
    return found


@pytest.mark.parametrize(
    ("count", "name"), [(14, "method {}"), (19, "alpha 0.05, decay 0.1, rho 0.1, beta {}")]
)
def test_every_point_has_its_label_and_none_overlaps(count: int, name: str) -> None:
    figure = draw_ends({"train": crowd(count, name), "test": crowd(count, name)}, "", "violation")
    for axes in figure.axes:
        assert len(axes.texts) == count
    assert labels_that_overlap(figure) == []
    words = svg(figure)
    assert all(name.format(i) in words for i in range(count))


def test_parts_have_the_same_axes_and_one_far_away_stands_at_their_edge() -> None:
    far = End("far", 1e5, 1.0, 0.0, 0.0)
    figure = draw_ends({"train": [*crowd(5), far], "test": crowd(5)}, "Ends", "violation")
    train, test = figure.axes
    assert (train.get_xlim(), train.get_ylim()) == (test.get_xlim(), test.get_ylim())
    assert train.get_ylim()[1] < 1
    assert "Beyond the axis, which the other methods set: far" in figure.get_label()
    assert any(
        "loss 1e+05 ± 1, violation 0 ± 0, outside of the axes" in words
        for words in titles(figure.subfigs[0])
    )


def test_an_error_bar_that_leaves_the_axes_is_no_line_across_them() -> None:
    wide = End("wide", 0.41, 50.0, 0.005, 0.0)
    figure = draw_ends({"train": [*crowd(8), wide]}, "", "violation")
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert high - low < 1
    bars = [line.get_ydata() for line in axes.lines if line.get_zorder() == 1.9]
    assert max(map(np.ptp, bars)) < 0.6 * (high - low)
    assert [line.get_marker() for line in axes.lines if line.get_marker() in (2, 3)] == [3, 2]


# Files and pages ----------------------------------------------------------------------------------


def test_the_same_results_make_the_same_files(results: Results, tmp_path: Path) -> None:
    for name in ("1", "2"):
        write_pdf(plots.trade_off(results), tmp_path / name)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert svg(plots.trade_off(results)) == svg(plots.trade_off(results))


def test_five_groups_from_a_store(tmp_path: Path) -> None:
    plan = Plan(small("paper-va-marital", ("SGD",), records=2, seeds=1, steps=4))
    store = Store(tmp_path / "store")
    plan.compute(store, Engine())
    results = Results.read(plan.stored(store), store)
    (stored,) = store.results()
    losses = torch.tensor(stored.tables["records"]["train"][:, 1:]).double()
    expected = losses - losses.mean(1, keepdim=True)
    found = (
        results.curves(["train"])
        .query("quantity != 'loss'")
        .pivot(index="step", columns="quantity", values="mean")
    )
    np.testing.assert_allclose(found[list(results.gaps.limits)], expected, atol=1e-12)
    assert len(plots._curves(results).subfigs[0].axes) == 6
    assert len(plots._scores(results).subfigs[-1].legends[0].get_texts()) == 5
    radar = plots.radar(results)  # as printed: the reported metrics are of two groups
    assert np.isfinite(radar.axes[0].lines[0].get_ydata()).any()


def test_pyplot_stays_unloaded() -> None:
    script = (
        "import sys; from fairbound.benchmark._sections import study_section\n"
        "from fairbound.reports._figures import svg\n"
        "from fairbound.benchmark._plots import End, draw_ends\n"
        "early = {'matplotlib', 'jinja2'} & set(sys.modules)\n"
        "svg(draw_ends({'train': [End('a', 0.5, 0.1, 0.2, 0.1)]}, '', 'violation'))\n"
        "print(sorted(early), 'matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "[] True False"
