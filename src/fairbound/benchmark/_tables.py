"""The tables of a benchmark, from its stored results alone, each a function in `TABLES`.

| table | counterpart in the paper | over |
|---|---|---|
| answer | none: one line a method, for a study that shows it (`answer`) | runs |
| loss | none: loss, gap and violation on every part | runs |
| fairness | Table 4: Ind, Sp, Ina, Sf, Wd of the last state, train and test | runs |
| tuning | Tables 5 to 12: loss and violation on the validation split, last records | runs |
| splits | none: the gap on training examples and on held-out ones | splits |

How a table is written, `report_table` says. Runs that the store lacks are missing from the means
and named below the table; a row without any is shown without values. Ours has a `*` where it
differs from the paper's by more than two of the paper's standard deviations.

To add a table, write a function of `Results` that returns a `ReportTable`, and enter it in
`TABLES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fairbound.benchmark._answer import answer_table
from fairbound.benchmark._front import fronts
from fairbound.benchmark._paper_comparison import HALF_A_DIGIT, PAPERS_CHOICE, beside
from fairbound.benchmark._results import QUANTITIES, ReportItem, Results, mean_std, student_interval
from fairbound.reports._table import MARK, PERCENT, WHOLE, ReportTable, frame_of

MARK_NOTE = (
    f"{MARK} more than two of the paper's standard deviations from its mean; 0 counts as"
    f" {HALF_A_DIGIT:g}."
)
_PARTS = ("train", "test")


def _row_columns(results: Results) -> dict[str, pd.Series]:
    """What most tables begin with, by row; a row without runs has no steps to speak of."""
    rows = results.rows()
    return {"row": rows.index.to_series(), "steps": rows["steps"], "runs": rows["runs"]}


def _mark_notes(frame: pd.DataFrame) -> tuple[str, ...]:
    """What the mark says, where there is one."""
    marks = [frame[c] for c in frame.columns if c[1] == "differs"]
    marked = any((mark == True).any() for mark in marks)  # noqa: E712
    return (MARK_NOTE,) if marked else ()


# Loss ---------------------------------------------------------------------------------------------


def loss_table(results: Results) -> ReportTable:
    """Loss, gap and largest violation on every part, the paper's beside validation's; what runs
    took; the front."""
    study = results.study
    with_paper = any(results.paper(row).validation for row in study.entries)
    columns = _row_columns(results)
    if _comparable(results):
        columns["front"] = fronts(results, _PARTS)
    sizes = [entry.examples_per_step for entry in study.entries]
    columns["examples per step"] = pd.Series(sizes, index=columns["row"].index)
    for part in [
        part for part in ("train", "validation", "test") if part in results.study.measured
    ]:
        summary = results.summary(part).reindex(columns["row"].index)
        for quantity in QUANTITIES:
            # of which the paper prints none
            if part == "validation" and with_paper and quantity != "gap":
                printed = [results.paper(row).validation.get(quantity) for row in study.entries]
                columns[f"{part} {quantity}"] = beside(summary[quantity], printed)
            else:
                columns[f"{part} {quantity}"] = summary[quantity]
    columns["CPU seconds"] = columns["steps"] * pd.Series(results.seconds).reindex(
        columns["row"].index
    )
    lost = (
        results.final[~np.isfinite(results.final["loss"])]
        .groupby("row", sort=False)["seed"]
        .nunique()
    )
    diverged = [f"{row} ({count} of {columns['runs'][row]})" for row, count in lost.items()]
    frame = frame_of(columns)
    last = (
        "The paper's validation figures: means over the last 20 states of 5 runs; ours: the last"
        " state of every run."
    )
    notes = (
        *_mark_notes(frame),
        *([last] if with_paper else []),
        f"Gap: {results.gap_in_words()}.",
        (
            f"Violation: the largest excess of a constraint over the bound {results.bound:g}, at"
            " least 0."
        ),
        (
            "Examples per step: those that it passes through the model; the expectation where their"
            " number is random."
        ),
        (
            "CPU seconds: of one run, its share of steps that were made for several runs at once,"
            " without evaluation."
        ),
        *(
            ["Front: no other row has a mean loss and a mean violation at most as large."]
            if "front" in columns
            else []
        ),
        *([f"Runs that diverged: {', '.join(diverged)}."] if diverged else []),
    )
    title = f"{study.name}: loss, gap and largest violation; mean ± standard deviation over runs"
    formats = dict.fromkeys(("steps", "runs", "examples per step"), WHOLE) | {
        "CPU seconds": "{:.1f}"
    }
    return ReportTable(title, frame, (*notes, *results.notes()), formats=formats)


def summary_table(results: Results, part: str) -> ReportTable:
    """Loss and violation on one part: what `fairbound run` shows at its end."""
    columns = _row_columns(results)
    summary = results.summary(part).reindex(columns["row"].index)
    frame = frame_of(columns | {"loss": summary["loss"], "largest violation": summary["violation"]})
    title = f"{part}: mean ± standard deviation over runs; bound {results.bound:g}"
    return ReportTable(title, frame, formats=dict.fromkeys(("steps", "runs"), WHOLE))


# Fairness -----------------------------------------------------------------------------------------


def fairness_table(results: Results) -> ReportTable:
    """Ind, Sp, Ina, Sf and Wd of every row on train and test, as the paper's Table 4 prints
    them."""
    study = results.study
    metrics = results.metrics
    final = results.final.rename(columns={column: figure for figure, column in metrics.items()})
    final = final.reindex(columns=["row", "part", *metrics]).astype(dict.fromkeys(metrics, float))
    columns: dict[str, Any] = _row_columns(results)
    del columns["steps"]
    undefined = []
    for part in _PARTS:
        by_row = final[final["part"] == part].groupby("row", sort=False)[list(metrics)]
        ours, missing = (
            mean_std(by_row).reindex(columns["row"].index),
            by_row.agg(lambda values: values.isna().sum()),
        )
        for figure in metrics:
            printed = [getattr(results.paper(row), part).get(figure) for row in study.entries]
            columns[f"{part} {figure}"] = (
                beside(ours[figure], printed) if any(printed) else ours[figure]
            )
            undefined += [
                f"{row}, {figure}, {part}: undefined in {count} of {columns['runs'][row]} runs,"
                " skipped in the mean."
                for row, count in missing[figure].items()
                if 0 < count < columns["runs"][row]
            ]
    frame = frame_of(columns)
    notes = (*_mark_notes(frame), *_definition_notes(results), *undefined, *results.notes())
    title = (
        f"{study.name}: fairness, definitions as {results.definition}; mean ± standard deviation"
        " over runs"
    )
    return ReportTable(title, frame, notes, digits=3, formats={"runs": WHOLE})


def _definition_notes(results: Results) -> Iterator[str]:
    yield "Ind, Sp, Ina, Sf: independence, separation, inaccuracy, sufficiency. Small is good."
    if results.definition == "reported":
        yield (
            "Definitions as the paper's results have them: 2, 4 and 4 times Ind, Sp and Sf as its"
            " text prints them."
        )
    else:
        yield f"Wd: the largest of the distances between {results.groups[0]} and another group."


# Tuning -------------------------------------------------------------------------------------------


def tuning_table(results: Results) -> ReportTable:
    """Loss and violation of every row on the validation split, the front, and which row the paper
    picks."""
    study = results.study
    if "validation" not in results.card.parts:
        raise ValueError(
            f"{study.name} has no validation examples (it has {', '.join(results.card.parts)}); "
            "give its split a share of them to choose settings"
        )
    columns: dict[str, Any] = _row_columns(results)
    summary = results.summary("validation").reindex(columns["row"].index)
    for quantity in ("loss", "violation"):
        printed = [results.paper(row).validation.get(quantity) for row in study.entries]
        columns[quantity] = (
            beside(summary[quantity], printed) if any(printed) else summary[quantity]
        )
    front = fronts(results, ["validation"])
    marks = {
        "front": front.index[front.notna()],
        "the paper's": [PAPERS_CHOICE.get(study.name)][: not results.short],
    }
    by = {
        row: ", ".join(mark for mark, rows in marks.items() if row in rows) or None
        for row in summary.index
    }
    columns["choice"] = pd.Series(by, dtype=object)
    frame = frame_of(columns)
    last = study.last_states
    notes = (
        *_mark_notes(frame),
        (
            "Of a run: its last record."
            if last == 1
            else f"Of a run: the mean over its last {last} records."
        ),
        (
            "Choice: front, where no other row has a mean loss and a mean violation at most as"
            " large; the paper's, the row that its appendix picks."
        ),
    )
    title = (
        f"{study.name}: loss and violation on the validation split; mean ± standard deviation over"
        " runs"
    )
    return ReportTable(
        title, frame, (*notes, *results.notes()), formats=dict.fromkeys(("steps", "runs"), WHOLE)
    )


# Splits -------------------------------------------------------------------------------------------


def split_table(results: Results) -> ReportTable:
    """The gap of every row on training and on held-out examples, over splits, and how often the
    bound holds there."""
    study = results.study
    rows = results.rows()
    columns: dict[str, Any] = {"row": rows.index.to_series(), "steps": rows["steps"]}
    final = results.final.assign(holds=(results.final["violation"] == 0).astype(float))
    final = final.reindex(
        columns=["row", "split", "part", *QUANTITIES, "accuracy", "holds"]
    ).astype({"accuracy": float})
    # the seeds of a split first
    by_split = final.groupby(["part", "row", "split"], sort=False).mean()
    for part, words in (("train", "train"), ("test", "held-out")):
        of_part = by_split[by_split.index.get_level_values("part") == part].groupby(
            "row", sort=False
        )
        over_splits = mean_std(of_part).reindex(rows.index)
        if part == "train":
            columns["splits"] = of_part.size().reindex(rows.index, fill_value=0)
        intervals = {row: student_interval(gaps.to_numpy()) for row, gaps in of_part["gap"]}
        ends = pd.DataFrame.from_dict(
            intervals, "index", columns=["low", "high"], dtype=float
        ).reindex(rows.index)
        columns[f"{words} loss"] = over_splits["loss"]
        if part == "test":
            columns[f"{words} accuracy"] = over_splits["accuracy"]
        columns[f"{words} gap"] = over_splits["gap"].join(ends)
    columns["bound holds"] = over_splits["holds", "mean"]
    notes = (
        f"Gap: {results.gap_in_words()}; bound {results.bound:g} ({results.card.notion}).",
        (
            "Runs of one split are averaged first. 95 %: Student's interval of the mean over"
            " splits, which share examples and so are not quite independent."
        ),
        "Bound holds: the share of splits in which no constraint is violated on held-out examples.",
    )
    title = f"{study.name}: training and held-out examples; mean ± standard deviation over splits"
    formats = {"steps": WHOLE, "splits": WHOLE, "bound holds": PERCENT}
    return ReportTable(
        title, frame_of(columns), (*notes, *results.notes()), digits=3, formats=formats
    )


def _one_split(results: Results) -> bool:
    return not results.tuning and results.study.splits == 1


def _comparable(results: Results) -> bool:
    """Whether its rows can be compared as methods."""
    return (
        _one_split(results)
        and results.equal_examples
        and {"train", "test"} <= set(results.study.measured)
    )


TABLES: dict[str, ReportItem] = {
    "answer": ReportItem("Every method", lambda r: "answer" in r.study.shows, answer_table),
    "tuning": ReportItem(
        "Settings, chosen on the validation split", lambda r: r.tuning, tuning_table
    ),
    "loss": ReportItem("Loss and violation", lambda r: not r.tuning, loss_table),
    "splits": ReportItem(
        "Training and held-out examples", lambda r: not r.tuning and r.study.splits > 1, split_table
    ),
    "fairness": ReportItem("Fairness", _one_split, fairness_table),
}
