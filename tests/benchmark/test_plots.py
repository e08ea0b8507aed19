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
import pytest
import torch

from fairbound.benchmark import config, interactive, plots
from fairbound.benchmark.drawing import drawn, save
from fairbound.benchmark.executor import RunBatch, execute, run_batches
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.figure_specs import Sheet
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.results import Band, Curve, Ending, Gap, curves, endings, gaps
from fairbound.benchmark.store import Store
from fairbound.benchmark.summary import summary
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
def sheets(prepared: PreparedExperiment, planned: list[RunBatch], done: Store) -> dict[str, Sheet]:
    along, bounded, ends = curves(prepared, done, planned), gaps(prepared), endings(prepared, done, planned)
    return {
        "over-steps": plots.over_steps(along, bounded),
        "over-seconds": plots.over_steps(along, bounded, seconds={"SGD": 0.5}),
        "validation": plots.validation(along, bounded, ["SSw"]),
        "scores": plots.scores(ends, prepared.experiment.groups),
        "spiders": plots.spiders(ends),
        "trade-off": plots.trade_off({part: summary(prepared, done, planned, part) for part in ("train", "test")}),
    }


# What is shown --------------------------------------------------------------------------------------------------------


def test_curves_are_means_and_quartiles_over_runs(
    prepared: PreparedExperiment, planned: list[RunBatch], done: Store, cells: Cells
) -> None:
    found = curves(prepared, done, planned)
    assert {name: curve.runs for name, curve in found.items()} == {"SGD": 3, "SSw": 1}
    assert found["SGD"].step.tolist() == [4, 8, 12]
    for part in ("train", "validation", "test"):
        losses = np.stack([cell.tables["records"][part] for cell in cells["SGD"]]).astype(np.float64)
        gap = losses[:, :, 1] - losses[:, :, 2]
        for name, expected in (("loss", losses[:, :, 0]), ("white - non-white", gap)):
            band = found["SGD"].measured[part][name]
            np.testing.assert_allclose(band.mean, expected.mean(0))
            np.testing.assert_allclose(band.low, np.percentile(expected, 25, axis=0))
            np.testing.assert_allclose(band.high, np.percentile(expected, 75, axis=0))


def test_a_gap_and_its_negative_are_one(prepared: PreparedExperiment) -> None:
    (gap,) = gaps(prepared)
    assert (gap.name, gap.limits, gap.contrast.tolist()) == ("white - non-white", (0.005, -0.005), [1.0, -1.0])
    absolute = replace(prepared.experiment, notion="absolute_against_pooled")
    found = gaps(replace(prepared, experiment=absolute))
    assert [one.limits for one in found] == [(0.005,), (0.005,)]
    assert all(one.of(np.array([[0.2, 0.5], [0.5, 0.2]])).min() > 0 for one in found)


def test_endings_are_what_the_counts_say(
    prepared: PreparedExperiment, planned: list[RunBatch], done: Store, cells: Cells
) -> None:
    found = endings(prepared, done, planned)["SGD"]
    ends = [cell.tables["end"] for cell in cells["SGD"]]
    at = ends[0]["part"].tolist().index("test")
    for name, metric in (("Ind", "independence_reported"), ("Sf", "sufficiency_reported"), ("Ina", "inaccuracy")):
        runs = []
        for end in ends:
            (tn_a, fp_a, fn_a, tp_a), (tn_b, fp_b, fn_b, tp_b) = end["counts"][at].reshape(2, 4).tolist()
            counts = Counts.from_cells({"a": (fp_a, tn_a, fn_a, tp_a), "b": (fp_b, tn_b, fn_b, tp_b)})
            runs.append(values(counts)[metric])
        defined = [run for run in runs if run is not None]
        expected = np.mean(defined) if defined else np.nan
        np.testing.assert_allclose(found.metrics["test"][name], expected)
    histograms = np.stack([end["histogram"][at] for end in ends]).astype(float)
    np.testing.assert_allclose(found.scores["test"], (histograms / histograms.sum(-1, keepdims=True)).mean(0))


def test_printed_definitions_where_asked(prepared: PreparedExperiment, planned: list[RunBatch], done: Store) -> None:
    """Of two groups the printed independence is half the reported one."""
    reported = endings(prepared, done, planned)["SGD"].metrics["train"]["Ind"]
    printed = endings(prepared, done, planned, "printed")["SGD"].metrics["train"]["Ind"]
    assert reported > 0
    assert printed == pytest.approx(reported / 2)


def test_a_run_that_diverged_leaves_the_axis_to_the_others() -> None:
    band = Band.of(np.array([[0.5, np.inf], [0.7, np.inf], [0.6, np.nan]]))
    curve = Curve(np.array([1, 2]), 3, {"train": {"loss": band}, "test": {"loss": band}})
    low, high = next(plots.over_steps({"A": curve}, []).panels()).y_range
    assert 0.5 < low < 0.55
    assert 0.65 < high < 0.7
    sheet = plots.over_steps({"A": curve}, [])
    assert sheet.words.endswith("Not finite, and there not drawn: A")
    assert "NaN" not in interactive.drawing(sheet).json


def test_a_method_that_blew_up_leaves_the_shared_axis_and_the_words_say_so() -> None:
    along, bounded, _, _ = made_up(rows=4, groups=2)
    name, curve = list(along.items())[1]
    huge = {"loss": Band.of(np.geomspace(0.5, 1e6, 12).reshape(3, 4))} | {
        gap.name: curve.measured["train"][gap.name] for gap in bounded
    }
    blown = along | {name: Curve(curve.step, 3, {"train": huge, "test": curve.measured["test"]})}
    sheet = plots.over_steps(blown, bounded)
    loss = sheet.rows[0]
    assert {panel.y_range for panel in loss} == {loss[0].y_range}
    assert loss[0].y_range[1] < 1.1
    assert f"Beyond the axis, which the other methods set: {name} (loss from" in sheet.words
    assert max(line.y.max() for line in loss[1].lines) > 1e5  # under the pointer it is what it was
    assert "Beyond" not in plots.over_steps(along, bounded).words


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    band = Band.of(np.random.default_rng(0).random((3, 400)))
    curve = Curve(np.arange(100, 40_001, 100), 3, {"train": {"loss": band}})
    (line,) = next(plots.over_steps({"A": curve}, [], parts=("train",)).panels()).lines
    assert len(line.x) == 120
    assert (line.x[0], line.x[-1], line.y[-1]) == (100, 40_000, band.mean[-1])
    assert np.diff(line.x).max() <= 400


def test_an_empty_store_says_what_to_run(prepared: PreparedExperiment, planned: list[RunBatch], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of the planned runs of income-ok-race; .* fairbound run \S+"):
        curves(prepared, Store(tmp_path), planned)


def test_validation_names_a_row_without_runs(
    prepared: PreparedExperiment, planned: list[RunBatch], done: Store
) -> None:
    with pytest.raises(ValueError, match="no run of 'ALM' is stored; the rows with runs are SGD, SSw"):
        plots.validation(curves(prepared, done, planned), gaps(prepared), ["ALM"])


def test_a_part_that_was_not_measured_is_named() -> None:
    along, bounded, _, _ = made_up(rows=1, groups=2)
    with pytest.raises(ValueError, match="was not measured on 'validation'; its parts are train, test"):
        plots.validation(along, bounded)


def test_one_run_has_no_band(sheets: dict[str, Sheet]) -> None:
    losses = {panel.title: panel.lines for panel in sheets["over-steps"].rows[0]}
    assert list(losses) == ["SGD", "SSw"]
    assert all(line.band is not None for line in losses["SGD"])
    assert all(line.band is None for line in losses["SSw"])


def test_seconds_show_the_rows_that_were_timed(sheets: dict[str, Sheet]) -> None:
    ((panel,), (gap,)) = sheets["over-seconds"].rows
    assert (panel.title, gap.x_label, gap.limits) == ("SGD", "seconds", (0.005, -0.005))
    assert panel.lines[0].x.tolist() == [2.0, 4.0, 6.0]


def test_seconds_of_no_row_are_refused(prepared: PreparedExperiment, planned: list[RunBatch], done: Store) -> None:
    with pytest.raises(ValueError, match="nothing to draw: seconds per step are given for none"):
        plots.over_steps(curves(prepared, done, planned), gaps(prepared), seconds={"Ghost": 1.0})


def test_validation_shows_the_chosen_rows_on_the_choosing_part(sheets: dict[str, Sheet]) -> None:
    panels = list(sheets["validation"].panels())
    assert panels[0].title == "SSw"
    assert {line.label for panel in panels for line in panel.lines} == {"validation"}


def test_a_spoke_ends_at_the_largest_value(sheets: dict[str, Sheet]) -> None:
    drawn_values = np.stack([line.y for panel in sheets["spiders"].panels() for line in panel.lines])
    for spoke in drawn_values.T:
        assert np.isnan(spoke).all() or np.nanmax(spoke) == pytest.approx(1.0)


def test_the_trade_off_is_the_summarys(
    prepared: PreparedExperiment, planned: list[RunBatch], done: Store, sheets: dict[str, Sheet]
) -> None:
    panel = sheets["trade-off"].rows[0][1]
    lines = summary(prepared, done, planned, "test")
    assert [(p.label, p.x, p.y, p.y_error) for p in panel.points] == [
        (line.row, line.violation.mean, line.loss.mean, line.loss.std) for line in lines
    ]


# Files and pages ------------------------------------------------------------------------------------------------------


def png_size(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("name", ["over-steps", "over-seconds", "validation", "scores", "spiders", "trade-off"])
def test_files_of_the_size_asked_for(sheets: dict[str, Sheet], name: str, tmp_path: Path) -> None:
    pdf, png = save(sheets[name], tmp_path / "figures", name, width=7.0, dpi=60)
    assert (pdf.name, png.name) == (f"{name}.pdf", f"{name}.png")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert png_size(png)[0] == 420
    assert png.stat().st_size > 3000


def test_the_same_results_make_the_same_files(sheets: dict[str, Sheet], tmp_path: Path) -> None:
    first, second = (save(sheets["trade-off"], tmp_path / name, "a", dpi=40) for name in ("1", "2"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_pages_get_json_without_tags(sheets: dict[str, Sheet]) -> None:
    for sheet in sheets.values():
        text, height = interactive.drawing(sheet)
        figure = json.loads(text)
        assert "<" not in text
        assert height == figure["wide"]["height"]
        assert all(number == float(f"{number:.4g}") for number in numbers(figure["data"]))
        panels = list(sheet.panels())
        assert len(figure["data"]) >= sum(len(panel.lines) + len(panel.points) for panel in panels)
        listed = [trace["name"] for trace in figure["data"] if trace["showlegend"]]
        assert len(listed) == len(set(listed))
        assert len(figure["wide"]["shapes"]) == sum(len(panel.limits) for panel in panels)
        assert len(interactive.figure(sheet).data) == len(figure["data"])  # plotly refuses what it does not know


def numbers(data: list[dict[str, Any]]) -> list[float]:
    """All that traces have."""
    found = [value for trace in data for key in ("x", "y", "r") for value in trace.get(key, ())]
    assert len(found) > 5
    return [value for value in found if value is not None]


def test_names_of_users_are_no_templates() -> None:
    """plotly replaces %{y} in a template; a group's name only comes in through the name of its trace."""
    _, _, ends, _ = made_up(rows=1, groups=2)
    for trace in json.loads(interactive.drawing(plots.scores(ends, ("%{y} <b>", "b"))).json)["data"]:
        assert "%{y}" not in trace["hovertemplate"]
        assert "%{fullData.name}" in trace["hovertemplate"]


def made_up(rows: int, groups: int) -> tuple[dict[str, Curve], list[Gap], dict[str, Ending], tuple[str, ...]]:
    random = np.random.default_rng(0)
    names = tuple(f"group {g}" for g in range(groups))
    bounded = [Gap(f"{name} - mean", np.eye(groups)[g] - 1 / groups, 0.05, False, True) for g, name in enumerate(names)]
    found, ends = {}, {}
    for i in range(rows):
        name = f"Method {i} <b> & $x_1$, with a name of some length"
        bands = {quantity: Band.of(random.random((3, 4))) for quantity in ("loss", *(gap.name for gap in bounded))}
        found[name] = Curve(np.array([500, 1000, 1500, 2000]), 3, {"train": bands, "test": bands})
        metrics = dict(zip(("Ind", "Sp", "Ina", "Sf", "Wd"), (*random.random(4).tolist(), float("nan")), strict=True))
        shares = random.dirichlet(np.ones(50), groups)
        ends[name] = Ending(3, {"train": shares, "test": shares}, {"train": metrics, "test": metrics})
    return found, bounded, ends, names


def overlaps(figure: Any) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other, and what leaves the page."""
    figure.draw_without_rendering()
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    pairs = [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[i + 1 :] if one.overlaps(other)]
    right, top = figure.bbox.x1, figure.bbox.y1
    return pairs + [(a, "page") for a, box in boxes if min(box.x0, box.y0) < 0 or box.x1 > right or box.y1 > top]


def test_many_methods_stand_in_blocks_and_nothing_overlaps() -> None:
    along, bounded, ends, names = made_up(rows=7, groups=3)
    steps = plots.over_steps(along, bounded)
    assert [len(row) for row in steps.rows] == [4] * 4 + [3] * 4
    for sheet in (steps, plots.scores(ends, names), plots.spiders(ends)):
        assert overlaps(drawn(sheet)) == []


def test_names_are_text_for_both(tmp_path: Path) -> None:
    """Neither tags nor mathematics."""
    along, bounded, _, _ = made_up(rows=1, groups=2)
    sheet = plots.over_steps(along, bounded)
    titles = [note["text"] for note in json.loads(interactive.drawing(sheet).json)["wide"]["annotations"]]
    assert "&lt;b&gt; &amp; $x_1$" in titles[0].replace("<br>", " ")
    save(sheet, tmp_path, "a", dpi=40)


def test_five_groups_from_a_store(tmp_path: Path) -> None:
    whole = config.load("income-va-marital")
    small = replace(whole, rows=whole.rows[:1], hidden=(4,), records=2, seeds=1)
    prepared = PreparedExperiment.of(small, load("synthetic:VA"))
    planned, store = run_batches(prepared, steps=4), Store(tmp_path / "store")
    execute(prepared, store, planned)
    along, ends = curves(prepared, store, planned), endings(prepared, store, planned)
    losses = torch.tensor(store.get(planned[0].keys[0]).tables["records"]["train"][:, 1:]).double()
    expected = losses - losses.mean(1, keepdim=True)
    found = [along["SGD"].measured["train"][gap.name].mean for gap in gaps(prepared)]
    np.testing.assert_allclose(np.array(found).T, expected, atol=1e-12)
    assert len(plots.over_steps(along, gaps(prepared)).rows) == 6
    assert len(plots.scores(ends, small.groups).rows[0][0].lines) == 5
    assert np.isfinite(ends["SGD"].metrics["train"]["Ind"])  # as printed: the reported one is of two groups
    save(plots.spiders(ends), tmp_path, "spiders", dpi=40)


def test_pyplot_stays_unloaded(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import fairbound.benchmark.plots, fairbound.benchmark.interactive\n"
        "from fairbound.benchmark.drawing import save; from fairbound.benchmark.figure_specs import Panel, Sheet\n"
        "early = {'matplotlib', 'plotly'} & set(sys.modules)\n"
        f"save(Sheet(words='', rows=((Panel(title='a'),),), panel_height=1.0), Path({str(tmp_path)!r}), 'a')\n"
        "print(sorted(early), 'matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] True False"
