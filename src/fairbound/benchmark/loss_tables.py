"""The table of losses: what every row of an experiment loses, and by how much it violates the bound, on every part."""

from __future__ import annotations

from collections.abc import Sequence

from fairbound.benchmark.config import Row
from fairbound.benchmark.executor import RunBatch
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.paper_comparison import beside, compared, mark_note, run_notes
from fairbound.benchmark.store import Store
from fairbound.benchmark.summary import Measure, Run, gap_in_words, line_of, runs_by_row
from fairbound.benchmark.table_writers import Column, Table, Value

QUANTITIES = ("loss", "gap", "violation")
PARTS = {"train": "train", "validation": "validation", "test": "test"}  # with their names in the table


def loss_table(prepared: PreparedExperiment, store: Store, planned: Sequence[RunBatch]) -> Table:
    """Steps, rows a step, and loss, gap and largest violation on every part, the paper's beside those of validation."""
    by_row, measure = runs_by_row(prepared, store, planned), Measure.of(prepared)
    parts = [part for part in PARTS if part in prepared.measured()]
    with_paper = any(row.paper.validation for row in prepared.experiment.rows)
    columns = [Column("row"), Column("steps", "whole"), Column("rows a step", "number", 0), Column("runs", "whole")]
    for part in parts:
        for quantity in QUANTITIES:
            columns += _columns(part, f"{PARTS[part]} {quantity}", with_paper)
    rows = tuple(
        tuple(_values(prepared, row, by_row[row.name], measure, parts, with_paper)) for row in prepared.experiment.rows
    )
    title = f"{prepared.experiment.name}: loss, gap and largest violation; mean ± standard deviation over runs"
    gap = f"Gap: {gap_in_words(prepared.experiment.groups)}."
    bound = f"Violation: the largest excess of a constraint over the bound {prepared.experiment.bound:g}, at least 0."
    reading = "Rows a step: those that it passes through the model; the expectation where their number is random."
    last = "The paper's validation figures: means over the last 20 states of 5 runs; ours: the last state of every run."
    notes = (*mark_note(rows), *([last] if with_paper else []), gap, bound, reading, *run_notes(prepared, by_row))
    return Table(title, tuple(columns), rows, notes)


def _columns(part: str, name: str, with_paper: bool) -> tuple[Column, ...]:
    held = part == "validation" and with_paper and not name.endswith("gap")  # the paper prints none
    return compared(name) if held else (Column(name, "spread"),)


def _values(
    prepared: PreparedExperiment,
    row: Row,
    runs: Sequence[Run],
    measure: Measure,
    parts: Sequence[str],
    with_paper: bool,
) -> list[Value]:
    lines = {part: line_of(prepared, measure, runs, part) for part in parts}
    count = sum(run.cell is not None for run in runs)
    values: list[Value] = [row.name, runs[0].plan.steps, row.examples_per_step(len(prepared.experiment.groups)), count]
    for part, line in lines.items():
        for quantity in QUANTITIES:
            ours = None if line is None else getattr(line, quantity)
            if part == "validation" and with_paper and quantity != "gap":
                values += beside(ours, row.paper.validation.get(quantity))
            else:
                values.append(ours)
    return values
