"""Figures of the benchmark: what they show against numpy, and that files and pages come out of them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fairbound.benchmark.executor import RunBatch, execute, run_batches
from fairbound.benchmark.experiment import PreparedExperiment

from fairbound._utils.pages import figure_json
from fairbound.benchmark import config, plots, plots_matplotlib, plots_plotly
from fairbound.benchmark.plots import PLOTS, Facet, FigureSpec, shared_axis
from fairbound.benchmark.report import Section
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.results import BoundedGaps, ReportItem, Results
from fairbound.benchmark.store import Store
from fairbound.data import load
from fairbound.metrics.counts import Counts
from fairbound.metrics.fairness_metrics import values

Cells = dict[str, list[StoredResult]]


@pytest.fixture(scope="module")
def prepared() -> PreparedExperiment:
    whole = config.load("income-ok-race")
    rows = tuple(row for row in whole.rows if row.name in ("SGD", "ALM", "SSw"))
    return PreparedExperiment.of(replace(whole, rows=rows, hidden=(4,), records=3, seeds=3), load("synthetic:OK"))


@pytest.fixture(scope="module")
def planned(prepared: PreparedExperiment) -> list[RunBatch]:
    return run_batches(prepared, steps=12)


@pytest.fixture(scope="module")
def done(prepared: PreparedExperiment, planned: list[RunBatch], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """SSw has only one of its three runs, ALM none."""
    everything, kept = (Store(tmp_path_factory.mktemp(name)) for name in ("all", "kept"))
    execute(prepared, everything, planned)
    for stack in planned:
        for plan, key in zip(stack.plans, stack.keys, strict=True):
            if plan.row.name == "SGD" or (plan.row.name == "SSw" and plan.seed == 1):
                kept.put_many([everything.get(key)])
    return kept


@pytest.fixture(scope="module")
def cells(planned: list[RunBatch], done: Store) -> Cells:
    found: Cells = {}
    for stack in planned:
        for plan, key in zip(stack.plans, stack.keys, strict=True):
            if done.has(key):
                found.setdefault(plan.row.name, []).append(done.get(key))
    return found


@pytest.fixture(scope="module")
def results(prepared: PreparedExperiment, planned: list[RunBatch], done: Store) -> Results:
    return Results.read(prepared, done, planned, seconds={"SGD": 0.5})


@pytest.fixture(scope="module")
def figures(results: Results) -> dict[str, FigureSpec]:
    return {name: item.make(results) for name, item in PLOTS.items()}


# What is shown --------------------------------------------------------------------------------------------------------


def test_curves_are_means_and_quartiles_over_runs(results: Results, cells: Cells) -> None:
    parts = ("train", "validation", "test")
    found = results.curves(parts)
    assert found.groupby("row", sort=False)["runs"].first().to_dict() == {"SGD": 3, "SSw": 1}
    for part in parts:
        losses = np.stack([cell.tables["records"][part] for cell in cells["SGD"]]).astype(np.float64)
        gap = losses[:, :, 1] - losses[:, :, 2]
        for name, expected in (("loss", losses[:, :, 0]), ("white - non-white", gap)):
            curve = found[(found["row"] == "SGD") & (found["part"] == part) & (found["quantity"] == name)]
            assert curve["step"].tolist() == [4, 8, 12]
            np.testing.assert_allclose(curve["mean"], expected.mean(0))
            np.testing.assert_allclose(curve["low"], np.percentile(expected, 25, axis=0))
            np.testing.assert_allclose(curve["high"], np.percentile(expected, 75, axis=0))


def test_a_gap_and_its_negative_are_one(prepared: PreparedExperiment) -> None:
    assert BoundedGaps.of(prepared).limits == {"white - non-white": (0.005, -0.005)}
    absolute = replace(prepared, experiment=replace(prepared.experiment, notion="absolute_against_pooled"))
    found = BoundedGaps.of(absolute)
    assert list(found.limits.values()) == [(0.005,), (0.005,)]
    assert found.values(np.array([[0.2, 0.5], [0.5, 0.2]])).min() > 0


def test_the_last_state_is_what_the_counts_say(results: Results, cells: Cells) -> None:
    ends = [cell.tables["end"] for cell in cells["SGD"]]
    at = ends[0]["part"].tolist().index("test")
    final = results.final.query("row == 'SGD' and part == 'test'")
    for metric in ("independence_reported", "independence_printed", "sufficiency_reported", "inaccuracy"):
        expected = []
        for end in ends:
            (tn_a, fp_a, fn_a, tp_a), (tn_b, fp_b, fn_b, tp_b) = end["counts"][at].reshape(2, 4).tolist()
            counts = Counts.from_cells({"a": (fp_a, tn_a, fn_a, tp_a), "b": (fp_b, tn_b, fn_b, tp_b)})
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
    return pd.DataFrame({"row": row, "part": part, "quantity": quantity, "step": steps, "runs": 3} | bands)


@pytest.fixture
def drawn_from(results: Results, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure of made-up curves on train."""

    def draw(*made: pd.DataFrame) -> FigureSpec:
        monkeypatch.setattr(Results, "curves", lambda self, parts: pd.concat(made, ignore_index=True))
        return plots.curves(results, ("train",))

    return draw


def test_a_run_that_diverged_leaves_the_axis_to_the_others(drawn_from: Any) -> None:
    spec = drawn_from(curve("A", [0.5, 0.7, 0.6]), curve("B", [0.5, np.inf, np.nan]))
    low, high = spec.facets["loss"].y_range
    assert 0.45 < low < 0.5
    assert 0.7 < high < 0.75
    assert spec.caption.endswith("Not finite, and there not drawn: B")
    assert np.isfinite(spec.data["y"]).sum() == 4
    plots_plotly.draw(spec)


def test_a_method_that_blew_up_leaves_the_shared_axis_and_the_caption_says_so(drawn_from: Any) -> None:
    ordinary = [curve(name, [0.5, 0.7, 0.6]) for name in "ABC"]
    spec = drawn_from(*ordinary, curve("huge", np.geomspace(0.5, 1e6, 3)))
    assert spec.facets["loss"].y_range[1] < 1.1
    assert "Beyond the axis, which the other methods set: huge (loss from" in spec.caption
    assert spec.data["y"].max() > 1e5  # under the pointer it is what it was
    assert "Beyond" not in drawn_from(*ordinary).caption


def test_long_curves_are_thinned_and_keep_their_ends(drawn_from: Any) -> None:
    long = curve("A", np.random.default_rng(0).random(400))
    data = drawn_from(long).data
    assert len(data) == 120
    assert (data["x"].iloc[0], data["x"].iloc[-1], data["y"].iloc[-1]) == (100, 40_000, long["mean"].iloc[-1])
    assert data["x"].diff().max() <= 400


def test_an_empty_store_says_what_to_run(prepared: PreparedExperiment, planned: list[RunBatch], tmp_path: Path) -> None:
    empty = Results.read(prepared, Store(tmp_path), planned)
    for item in PLOTS.values():
        with pytest.raises(ValueError, match=r"none of the planned runs of income-ok-race; .* fairbound run \S+"):
            item.make(empty)


def test_a_part_that_was_not_measured_is_named(results: Results) -> None:
    with pytest.raises(ValueError, match="was not measured on 'dual'; its parts are train, validation, test"):
        results.curves(["dual"])


def test_one_run_has_no_band(figures: dict[str, FigureSpec]) -> None:
    data = figures["curves"].data
    assert list(dict.fromkeys(data["panel"])) == ["SGD", "SSw"]
    assert data.groupby("panel")["low"].count()["SSw"] == 0 < data.groupby("panel")["low"].count()["SGD"]


def test_seconds_show_the_rows_that_were_timed(figures: dict[str, FigureSpec]) -> None:
    spec = figures["seconds"]
    loss, gap = spec.panels()
    assert (loss.name, spec.x_label, gap.facet.bounds) == ("SGD", "seconds", (0.005, -0.005))
    assert loss.data.query("series == 'train'")["x"].tolist() == [2.0, 4.0, 6.0]


def test_seconds_of_no_row_are_refused(results: Results) -> None:
    with pytest.raises(ValueError, match="nothing to draw: seconds per step are given for none"):
        plots.curves(results, seconds={"Ghost": 1.0})


def test_validation_shows_the_validation_split(figures: dict[str, FigureSpec]) -> None:
    assert set(figures["validation"].data["series"]) == {"validation"}


def test_an_axis_of_the_radar_ends_at_the_largest_value(figures: dict[str, FigureSpec]) -> None:
    for _, metric in figures["radar"].data.groupby("x"):
        assert metric["y"].isna().all() or metric["y"].max() == pytest.approx(1.0)


def test_the_trade_off_is_the_summarys(results: Results, figures: dict[str, FigureSpec]) -> None:
    shown = figures["trade-off"].data.query("panel == 'test'").set_index("series")
    summary = results.summary("test")
    columns = {
        "x": ("violation", "mean"),
        "y": ("loss", "mean"),
        "x_std": ("violation", "std"),
        "y_std": ("loss", "std"),
    }
    for ours, expected in columns.items():
        assert shown[ours].to_dict() == summary[expected].to_dict()


def test_a_figure_is_added_in_one_place(results: Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It then is in every report, on the page and as files."""

    def accuracy(results: Results) -> FigureSpec:
        final = results.final[results.final["part"] == "test"]
        data = final.assign(panel="test", facet="", series=final["row"], x=final["violation"], y=final["accuracy"])
        data = data.assign(x_std=0.0, y_std=0.0)
        colors = dict.fromkeys(data["series"], plots.BLUE)
        facets = {"": Facet("accuracy")}
        return FigureSpec(caption="Accuracy of each run", mark="point", data=data, facets=facets, colors=colors)

    monkeypatch.setitem(PLOTS, "accuracy", ReportItem("Accuracy", lambda results: True, accuracy))
    spec = Section.of(results).figures["accuracy"]
    assert len(plots_plotly.draw(spec).data) == 2
    assert plots_matplotlib.save(spec, tmp_path, "accuracy", dpi=40)[1].exists()


# Axes that methods share ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "stray", "beyond"), [
    ([(0.0, 0.0), (0.0, 0.0)], (0.0, 0.2), False),  # most are at one point, which counts as 0.1 wide
    ([(0.0, 0.0), (0.0, 0.0)], (0.0, 0.5), True),
    ([(0.4, 0.7)], (0.4, 1.5), False),
    ([(0.4, 0.7)], (0.4, 1.7), True),
    ([(0.4, 0.7)], (-1e9, 0.7), True),
    ([(0.4, 0.7)], (float("nan"), float("inf")), False),
])  # fmt: skip
def test_how_far_is_beyond_the_axis(others: list[tuple[float, float]], stray: Any, beyond: bool) -> None:
    ends = {f"other {i}": extent for i, extent in enumerate(others)} | {"stray": stray}
    axis = shared_axis(pd.DataFrame(ends).melt(var_name="row"), ["value"])
    assert ("stray" in axis.beyond) == beyond
    assert axis.not_finite == ([] if np.isfinite(stray).all() else ["stray"])
    finite = [end for extent in ends.values() for end in extent if np.isfinite(end)]
    assert (axis.range[0] <= min(finite) and max(finite) <= axis.range[1]) != beyond


def test_an_axis_of_nothing_shows_the_bounds() -> None:
    empty = pd.DataFrame({"row": ["A"], "value": [np.nan]})
    assert shared_axis(empty, ["value"], [-0.05, 0.05]).range == pytest.approx((-0.055, 0.055))


# Files and pages ------------------------------------------------------------------------------------------------------


def png_size(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("name", PLOTS)
def test_files_of_the_size_asked_for(figures: dict[str, FigureSpec], name: str, tmp_path: Path) -> None:
    pdf, png = plots_matplotlib.save(figures[name], tmp_path / "figures", name, width=7.0, dpi=60)
    assert (pdf.name, png.name) == (f"{name}.pdf", f"{name}.png")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert png_size(png)[0] == 420
    assert png.stat().st_size > 3000


def test_the_same_results_make_the_same_files(figures: dict[str, FigureSpec], tmp_path: Path) -> None:
    first, second = (plots_matplotlib.save(figures["trade-off"], tmp_path / name, "a", dpi=40) for name in ("1", "2"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_pages_get_json_without_tags(figures: dict[str, FigureSpec]) -> None:
    for spec in figures.values():
        figure = plots_plotly.draw(spec)
        text = figure_json(figure, min_width=500)
        assert "<" not in text
        assert json.loads(text)["minWidth"] == 500
        listed = [trace.name for trace in figure.data if trace.showlegend]
        bounded = [panel for panel in spec.panels() if panel.facet.bounds]
        assert sorted(listed) == sorted([*spec.colors, *(["bound"] if bounded else [])])
        shown = {trace.name for trace in figure.data}
        assert shown == set(listed)
        assert sum(trace.name == "bound" for trace in figure.data) == 2 * len(bounded)


def made_up(rows: int, groups: int) -> list[FigureSpec]:
    """Figures of methods and groups whose names are code."""
    random = np.random.default_rng(0)
    series = [f"%{{y}} <b> {g}" for g in range(groups)]
    lines = []
    for i in range(rows):
        for facet in ("loss", "gap"):
            for one in series:
                place = {"panel": f"Method {i} <b> & $x_1$, with a name of some length", "facet": facet, "series": one}
                y = random.random(6)
                more = {"low": y - 0.1, "high": y + 0.1, "share": y**2, "end": np.arange(6) + 1.0}
                spokes = [f"metric {k}\n0.1" for k in range(6)]
                lines.append(pd.DataFrame(place | {"x": np.arange(6.0), "spoke": spokes, "y": y} | more))
    data = pd.concat(lines, ignore_index=True)
    colors = {one: plots.COLORS[g] for g, one in enumerate(series)}
    facets = {"loss": Facet("loss"), "gap": Facet("group 1 - mean", bounds=(0.5,))}
    common = {"caption": "made up", "colors": colors, "x_label": "steps"}
    ranges = dict.fromkeys(data["panel"], (0.0, 5.0))
    return [
        FigureSpec(mark="line", data=data, facets=facets, x_ranges=ranges, **common),
        FigureSpec(mark="step", data=data, facets=facets, x_ranges=ranges, **common),
        FigureSpec(
            mark="radar", data=data[data["facet"] == "loss"].assign(x=data["spoke"]), facets={"loss": Facet("")},
            max_columns=4, panel_height=2.6, **common,
        ),
    ]  # fmt: skip


def test_names_of_users_are_text(tmp_path: Path) -> None:
    """Neither tags nor mathematics, nor templates: plotly replaces %{y} in a template."""
    for spec in made_up(rows=1, groups=2):
        figure = plots_plotly.draw(spec)
        titles = [note.text.replace("<br>", " ") for note in figure.layout.annotations]
        assert "&lt;b&gt; &amp; $x_1$" in titles[0]
        for trace in figure.data:
            if trace.hovertemplate:
                assert "%{y} &lt;b&gt;" not in trace.hovertemplate
                assert "%{fullData.name}" in trace.hovertemplate
        plots_matplotlib.save(spec, tmp_path, "a", dpi=40)


def overlaps(figure: Any) -> list[tuple[str, str]]:
    """Titles and entries of the legend that cover each other, and what leaves the page."""
    figure.draw_without_rendering()
    texts = [axes.title for axes in figure.axes] + [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    pairs = [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[i + 1 :] if one.overlaps(other)]
    right, top = figure.bbox.x1, figure.bbox.y1
    return pairs + [(a, "page") for a, box in boxes if min(box.x0, box.y0) < 0 or box.x1 > right or box.y1 > top]


def test_many_methods_stand_in_blocks_and_nothing_overlaps() -> None:
    for spec in made_up(rows=7, groups=3):
        across = 4
        assert spec.shape == (2 * len(spec.facets), across)
        places = [(panel.row, panel.column) for panel in spec.panels()]
        assert len(set(places)) == len(places) == 7 * len(spec.facets)
        assert overlaps(plots_matplotlib.draw(spec)) == []


def test_five_groups_from_a_store(tmp_path: Path) -> None:
    whole = config.load("income-va-marital")
    small = replace(whole, rows=whole.rows[:1], hidden=(4,), records=2, seeds=1)
    prepared = PreparedExperiment.of(small, load("synthetic:VA"))
    planned, store = run_batches(prepared, steps=4), Store(tmp_path / "store")
    execute(prepared, store, planned)
    results = Results.read(prepared, store, planned)
    losses = torch.tensor(store.get(planned[0].keys[0]).tables["records"]["train"][:, 1:]).double()
    expected = losses - losses.mean(1, keepdim=True)
    found = results.curves(["train"]).query("quantity != 'loss'").pivot(index="step", columns="quantity", values="mean")
    np.testing.assert_allclose(found[list(results.gaps.limits)], expected, atol=1e-12)
    assert plots.curves(results).shape == (6, 1)
    assert plots.scores(results).data["series"].nunique() == 5
    radar = plots.radar(results)  # as printed: the reported metrics are of two groups
    assert radar.data["y"].notna().any()
    plots_matplotlib.save(radar, tmp_path, "radar", dpi=40)


def test_pyplot_stays_unloaded(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import pandas as pd; from fairbound.benchmark.report import Section\n"
        "from fairbound.benchmark.plots import Facet, FigureSpec\n"
        "from fairbound.benchmark.plots_matplotlib import save\n"
        "early = {'matplotlib', 'plotly', 'jinja2'} & set(sys.modules)\n"
        "data = pd.DataFrame({'panel': ['a'], 'facet': '', 'series': 's', 'x': 0.5, 'y': 0.5, 'share': 0.2})\n"
        "spec = FigureSpec(caption='', mark='step', data=data, facets={'': Facet('y')}, colors={'s': '#000000'})\n"
        f"save(spec, Path({str(tmp_path)!r}), 'a')\n"
        "print(sorted(early), 'matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] True False"
