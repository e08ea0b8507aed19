"""The tables of a benchmark, from its stored results alone, each a function in `TABLES`.

| table | counterpart in the paper | over |
|---|---|---|
| answer | none: one line a method, for a study that shows it (`answer`) | runs |
| loss | none: loss, gap and violation on every part | runs |
| fairness-reported, fairness-printed | Table 4: Ind, Sp, Ina, Sf, Wd of the last state, train and test | runs |
| tuning | Tables 5 to 12: loss and violation on the validation split, last records | runs |
| methods | none: all methods at equal examples, and the front of loss against violation (`front`) | runs |
| splits | none: the gap on training examples and on held-out ones | splits |
| differences | every number that is not the paper's | |

How a table is written, `report_table` says. Runs that the store lacks are missing from the means and named below the
table; a row without any is shown without values. Where ours differs from the paper's by more than two of its standard
deviations, the difference has a `*`.

To add a table, write a function of `Results` that returns a `ReportTable`, and enter it in `TABLES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from fairbound.benchmark.answer import answer_table
from fairbound.benchmark.front import methods_table
from fairbound.benchmark.paper_comparison import HALF_A_DIGIT, PAPERS_CHOICE, TOLERANCE, beside, chosen, comparisons
from fairbound.benchmark.report_table import MARK, PERCENT, WHOLE, ReportTable, frame_of
from fairbound.benchmark.results import (
    QUANTITIES,
    Definition,
    ReportItem,
    Results,
    mean_std,
    paper_metrics,
    student_interval,
)

MARK_NOTE = f"{MARK} more than two of the paper's standard deviations from its mean."
PARTS = ("train", "test")


def _row_columns(results: Results) -> dict[str, pd.Series]:
    """What most tables begin with, by row; a row without runs has no steps to speak of."""
    rows = results.rows()
    return {"row": rows.index.to_series(), "steps": rows["steps"], "runs": rows["runs"]}


def _mark_notes(frame: pd.DataFrame) -> tuple[str, ...]:
    """What the mark says, where there is one."""
    return (MARK_NOTE,) if any((frame[c] == True).any() for c in frame.columns if c[1] == "differs") else ()  # noqa: E712


# Loss -----------------------------------------------------------------------------------------------------------------


def loss_table(results: Results) -> ReportTable:
    """Steps, examples per step, and loss, gap and largest violation on every part; the paper's beside validation's."""
    study = results.study
    with_paper = any(results.paper(row).validation for row in study.entries)
    columns = _row_columns(results)
    sizes = [entry.examples_per_step for entry in study.entries]
    columns["examples per step"] = pd.Series(sizes, index=columns["row"].index)
    for part in [part for part in ("train", "validation", "test") if part in results.measured]:
        summary = results.summary(part).reindex(columns["row"].index)
        for quantity in QUANTITIES:
            if part == "validation" and with_paper and quantity != "gap":  # of which the paper prints none
                printed = [results.paper(row).validation.get(quantity) for row in study.entries]
                columns[f"{part} {quantity}"] = beside(summary[quantity], printed)
            else:
                columns[f"{part} {quantity}"] = summary[quantity]
    frame = frame_of(columns)
    last = "The paper's validation figures: means over the last 20 states of 5 runs; ours: the last state of every run."
    notes = (
        *_mark_notes(frame), *([last] if with_paper else []), f"Gap: {results.gap_in_words()}.",
        f"Violation: the largest excess of a constraint over the bound {results.bound:g}, at least 0.",
        "Examples per step: those that it passes through the model; the expectation where their number is random.",
    )  # fmt: skip
    title = f"{study.name}: loss, gap and largest violation; mean ± standard deviation over runs"
    formats = dict.fromkeys(("steps", "runs", "examples per step"), WHOLE)
    return ReportTable(title, frame, (*notes, *results.notes()), formats=formats)


def summary_table(results: Results, part: str) -> ReportTable:
    """Loss and violation on one part: what `fairbound run` shows at its end."""
    columns = _row_columns(results)
    summary = results.summary(part).reindex(columns["row"].index)
    frame = frame_of(columns | {"loss": summary["loss"], "largest violation": summary["violation"]})
    title = f"{part}: mean ± standard deviation over runs; bound {results.bound:g}"
    return ReportTable(title, frame, formats=dict.fromkeys(("steps", "runs"), WHOLE))


# Fairness -------------------------------------------------------------------------------------------------------------


def fairness_table(results: Results, definition: Definition) -> ReportTable:
    """Ind, Sp, Ina, Sf and Wd of every row on train and test, by the definitions as printed or as reported."""
    study = results.study
    metrics = paper_metrics(definition) | {"Wd of logits": "wd_logits", "W1": "w1"}
    final = results.final.rename(columns={column: figure for figure, column in metrics.items()})
    final = final.reindex(columns=["row", "part", *metrics]).astype(dict.fromkeys(metrics, float))
    by_figure = final.melt(["row", "part"], var_name="figure").groupby(["part", "row", "figure"])[["value"]]
    ours = mean_std(by_figure)["value"]
    lines = [(row, figure) for row in study.entries for figure in metrics]
    index = pd.MultiIndex.from_tuples([(row.name, figure) for row, figure in lines])
    columns: dict[str, Any] = {
        "row": pd.Series(index.get_level_values(0), index=index),
        "runs": results.rows()["runs"].reindex(index.get_level_values(0)).set_axis(index),
        "figure": pd.Series(index.get_level_values(1), index=index),
    }
    for part in PARTS:
        of_part = ours[ours.index.get_level_values("part") == part].droplevel("part").reindex(index)
        printed = [getattr(results.paper(row), part).get(figure.partition(" ")[0]) for row, figure in lines]
        columns[part] = beside(of_part, printed) if any(printed) else of_part
    frame = frame_of(columns)
    counts = {place: (int(group["value"].isna().sum()), len(group)) for place, group in by_figure}
    undefined = [
        f"{row.name}, {figure}, {part}: undefined in {missing} of {runs} runs, skipped in the mean."
        for row, figure in lines
        for part in PARTS
        if 0
        < (missing := counts.get((part, row.name, figure), (0, 0))[0])
        < (runs := counts[part, row.name, figure][1])
    ]
    notes = (*_mark_notes(frame), *_definition_notes(definition, results.groups), *undefined, *results.notes())
    title = f"{study.name}: fairness, definitions as {definition}; mean ± standard deviation over runs"
    return ReportTable(title, frame, notes, formats={"runs": WHOLE})


def _definition_notes(definition: Definition, groups: Sequence[str]) -> Iterator[str]:
    yield "Wd: of probabilities and of logits, since the paper does not say of which; W1: of probabilities."
    if len(groups) > 2:
        yield f"Wd and W1: the largest of the distances between {groups[0]} and another group."
    if definition == "reported" and len(groups) > 2:
        yield "The definitions as reported are for two groups: Ind, Sp and Sf are undefined here."
    if definition == "printed" and len(groups) == 2:
        yield "The paper's figures follow the definitions as reported: 2, 4 and 4 times Ind, Sp and Sf as printed."


# Tuning ---------------------------------------------------------------------------------------------------------------


def tuning_table(results: Results) -> ReportTable:
    """Loss and violation of every row on the validation split, and which row the rule and the paper choose."""
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
        columns[quantity] = beside(summary[quantity], printed) if any(printed) else summary[quantity]
    means = summary.dropna()[[("loss", "mean"), ("violation", "mean")]]
    choices = {"here": chosen(dict(zip(means.index, means.to_numpy().tolist(), strict=True)))}
    choices["paper"] = None if results.short else PAPERS_CHOICE.get(study.name)
    by = {row: ", ".join(who for who, choice in choices.items() if choice == row) or None for row in summary.index}
    columns["chosen"] = pd.Series(by, dtype=object)
    frame = frame_of(columns)
    papers = {row.name: results.paper(row).validation for row in study.entries}
    on_papers = chosen({row: (p["loss"].mean, p["violation"].mean) for row, p in papers.items() if len(p) == 2})
    last = study.last_states
    notes = (
        *_mark_notes(frame),
        "Of a run: its last record." if last == 1 else f"Of a run: the mean over its last {last} records.",
        f"Chosen here: the smallest loss among the rows at most {TOLERANCE:g} above the smallest violation, "
        "a tolerance fitted to the paper's choices.",
        *([] if on_papers is None else [f"On the paper's own figures this chooses: {on_papers}."]),
    )
    title = f"{study.name}: loss and violation on the validation split; mean ± standard deviation over runs"
    return ReportTable(title, frame, (*notes, *results.notes()), formats=dict.fromkeys(("steps", "runs"), WHOLE))


# Splits ---------------------------------------------------------------------------------------------------------------


def split_table(results: Results) -> ReportTable:
    """The gap of every row on training and on held-out examples, over splits, and how often the bound holds there."""
    study = results.study
    rows = results.rows()
    columns: dict[str, Any] = {"row": rows.index.to_series(), "steps": rows["steps"]}
    final = results.final.assign(holds=(results.final["violation"] == 0).astype(float))
    final = final.reindex(columns=["row", "split", "part", *QUANTITIES, "accuracy", "holds"]).astype(
        {"accuracy": float}
    )
    by_split = final.groupby(["part", "row", "split"], sort=False).mean()  # the seeds of a split first
    for part, words in (("train", "train"), ("test", "held-out")):
        of_part = by_split[by_split.index.get_level_values("part") == part].groupby("row", sort=False)
        over_splits = mean_std(of_part).reindex(rows.index)
        if part == "train":
            columns["splits"] = of_part.size().reindex(rows.index, fill_value=0)
        intervals = {row: student_interval(gaps.to_numpy()) for row, gaps in of_part["gap"]}
        ends = pd.DataFrame.from_dict(intervals, "index", columns=["low", "high"], dtype=float).reindex(rows.index)
        columns[f"{words} loss"] = over_splits["loss"]
        if part == "test":
            columns[f"{words} accuracy"] = over_splits["accuracy"]
        columns[f"{words} gap"] = over_splits["gap"].join(ends)
    columns["bound holds"] = over_splits["holds", "mean"]
    notes = (
        f"Gap: {results.gap_in_words()}; bound {results.bound:g} ({results.card.notion}).",
        "Runs of one split are averaged first. 95 %: Student's interval of the mean over splits, which share examples "
        "and so are not quite independent.",
        "Bound holds: the share of splits in which no constraint is violated on held-out examples.",
    )
    title = f"{study.name}: training and held-out examples; mean ± standard deviation over splits"
    formats = {"steps": WHOLE, "splits": WHOLE, "bound holds": PERCENT}
    return ReportTable(title, frame_of(columns), (*notes, *results.notes()), digits=3, formats=formats)


# Differences ----------------------------------------------------------------------------------------------------------


def differences_table(results: Results) -> ReportTable:
    """Every number that does not meet the paper's; its first note says how many do."""
    # The paper's results follow the definitions as reported; its printed ones give other numbers
    shown = [name for name in ("tuning", "loss", "fairness-reported") if TABLES[name].applies(results)]
    found = comparisons(TABLES[name].make(results).frame for name in shown)
    far = found[found["differs"] == True].reset_index(drop=True)  # noqa: E712
    here = far.drop(columns=["row", "figure", "deviations"])
    columns = {"row": far["row"], "figure": far["figure"], "here": here, "in the paper's std": far["deviations"]}
    met = (
        f"{len(found) - len(far)} of {len(found)} comparisons with the paper's figures are within two of its standard "
        "deviations; every variant of a method is compared."
    )
    rounded = f"A standard deviation that the paper prints as 0 counts as {HALF_A_DIGIT:g}, half of its last digit."
    notes = (met, *([rounded] if (far["paper std"] == 0).any() else []))
    title = f"{results.study.name}: where our figures are not the paper's"
    return ReportTable(title, frame_of(columns), notes, formats={"in the paper's std": "{:.1f}"})


def _compared(results: Results) -> bool:
    """Whether the paper prints something for these runs; its numbers are for its own budget."""
    printed = [paper for row in results.study.entries for paper in vars(results.paper(row)).values()]
    return results.budget == "paper" and any(printed)


def _one_split(results: Results) -> bool:
    return not results.tuning and results.splits == 1


def _comparable(results: Results) -> bool:
    """Whether its rows can be compared as methods."""
    return _one_split(results) and results.equal_examples and {"train", "test"} <= set(results.measured)


TABLES: dict[str, ReportItem] = {
    "answer": ReportItem("Every method", lambda r: "answer" in r.study.shows, answer_table),
    "tuning": ReportItem("Settings, chosen on the validation split", lambda r: r.tuning, tuning_table),
    "loss": ReportItem("Loss and violation", lambda r: not r.tuning, loss_table),
    "methods": ReportItem("Methods at equal examples", _comparable, methods_table),
    "splits": ReportItem("Training and held-out examples", lambda r: not r.tuning and r.splits > 1, split_table),
    "fairness-reported": ReportItem(
        "Fairness as reported, by the definitions behind the paper's results",
        _one_split,
        lambda r: fairness_table(r, "reported"),
    ),
    "fairness-printed": ReportItem(
        "Fairness as printed, by the definitions in the paper's text",
        _one_split,
        lambda r: fairness_table(r, "printed"),
    ),
    "differences": ReportItem("Differences, where our figures are not the paper's", _compared, differences_table),
}
