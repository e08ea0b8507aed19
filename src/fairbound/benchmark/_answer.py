"""A study's answer at one glance: one table, three sentences, and what to run next.

    shows = ["answer", "trade-off"]      in a study's file: of its tables and figures these alone

No ranks: runs of a minute do not decide between methods that are near to each other, and the
sentences say so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from fairbound.benchmark._front import BOUND_TOLERANCE, loss_difference, mean_and_std
from fairbound.benchmark._results import Results, decided, mean_std
from fairbound.reports._table import ReportTable, frame_of

NEXT = {  # command, and what it does
    "fairbound board": "every method on every problem; in a checkout: make board",
    "fairbound reproduce": (
        "the whole paper, both experiments and every table; in a checkout: make reproduce"
    ),
    "fairbound run first --source FILE.csv --label COLUMN --group COLUMN --to my-table": (
        "the same on your own table"
    ),
}


def answer_table(results: Results) -> ReportTable:
    """Loss and violation on training examples; violation, verdict, accuracy and fairness on
    held-out ones; seconds."""
    rows = results.rows()
    shown = {"accuracy": "accuracy"} | {name: results.metrics[name] for name in ("Ind", "Sp", "Sf")}
    test = results.final[results.final["part"] == "test"]
    held_out = mean_std(test.groupby("row", sort=False)[["violation", *shown.values()]]).reindex(
        rows.index
    )
    train = results.summary("train").reindex(rows.index)
    columns: dict[str, Any] = {
        "method": rows.index.to_series(),
        "loss": train["loss"],
        "violation": train["violation"],
        "held out": held_out["violation"],
        "verdict": pd.Series(
            {row: decided(count) for row, count in results.decisions.items()},
            index=rows.index,
            dtype=object,
        ),
        **{name: held_out[column, "mean"] for name, column in shown.items()},
        "seconds": rows["steps"] * pd.Series(results.seconds).reindex(rows.index),
    }
    runs = int(rows["runs"].max())
    notes = (
        (
            f"Mean ± standard deviation over {runs} run{'' if runs == 1 else 's'}; loss and"
            " violation: on training examples; held out: the violation on held-out examples; the"
            " other columns: on these, too."
        ),
        (
            f"Violation: by how much the gap ({results.gap_in_words()}) exceeds the bound"
            f" {results.bound:g}, at least 0."
        ),
        (
            "Verdict: runs for which held-out examples show at 95 % confidence that the bound holds"
            " or is violated; undecided: these examples are too few to tell."
        ),
        (
            "Ind, Sp, Sf: independence, separation and sufficiency, as the paper"
            f" {results.definition} them."
        ),
        "Seconds: CPU time of the steps of one run.",
        *results.notes()[1:],
    )
    formats = dict.fromkeys(shown, "{:.3f}") | {"seconds": "{:.1f}"}
    return ReportTable(
        "Every method: loss, violation, verdict, fairness, seconds",
        frame_of(columns),
        notes,
        digits=3,
        formats=formats,
    )


def findings(results: Results) -> str:
    """Three lines: without constraints, who comes near the bound at which loss, and what held-out
    examples show."""
    return "\n".join([_unconstrained(results), _near_the_bound(results), _held_out(results)])


def _unconstrained(results: Results) -> str:
    plain = [
        entry.name
        for entry in results.study.entries
        if entry.method == "SGD" and entry.name in results.stored
    ]
    if not plain:
        return "No method ran without constraints."
    summary, row = results.summary("train"), plain[0]
    kept = _kept(results, row, "train")
    return (
        f"Without constraints, {row}: the training loss ends at"
        f" {mean_and_std(summary, row, 'loss')}, and the bound {results.bound:g} is exceeded by"
        f" {mean_and_std(summary, row, 'violation')}; {kept} keep the bound."
    )


def _near_the_bound(results: Results) -> str:
    summary = results.summary("train")
    means = summary[[("loss", "mean"), ("violation", "mean")]].set_axis(
        ["loss", "violation"], axis=1
    )
    means = means[np.isfinite(means).all(axis=1)]
    near = means[means["violation"] <= BOUND_TOLERANCE].sort_values("loss", kind="stable")

    def named(rows: pd.DataFrame) -> str:
        return ", ".join(
            f"{row} (loss {loss:.3f}, violation {over:.3f})"
            for row, loss, over in rows.itertuples()
        )

    beyond = means[means["violation"] > BOUND_TOLERANCE].nsmallest(1, "violation")
    nearest = (
        f" The nearest{' of the others' if len(near) else ''}: {named(beyond)}."
        if len(beyond)
        else ""
    )
    if near.empty:
        said = (
            f"Every method exceeds the bound {results.bound:g} by more than {BOUND_TOLERANCE:g} on"
            " training examples."
        )
        return said + nearest
    first, *others = near.index
    said = (
        f"{len(near)} of {len(results.runs)} methods exceed the bound {results.bound:g} by at most"
        f" {BOUND_TOLERANCE:g} on training examples: {named(near)}"
    )
    if others:
        said += f"; {loss_difference(results, 'train', first, others[0])}"
    return f"{said}. {_kept(results, first, 'train')} of {first} keep the bound itself.{nearest}"


def _held_out(results: Results) -> str:
    counts = {row: results.decisions[row] for row in results.stored if row in results.decisions}
    if not counts:
        return "Nothing was tested on held-out examples."
    total = sum(counts.values(), Counter[str]())
    size = next(iter(results.stored.values()))[0].tables["parts"]
    examples = int(size["counts"][size["part"].tolist().index("test")].sum())
    holding = [
        f"{row} ({count['holds']} of {count.total()} runs)"
        for row, count in counts.items()
        if count["holds"]
    ]
    said = (
        f"On {examples:,} held-out examples the bound holds at 95 % confidence in {total['holds']}"
        f" of {sum(total.values())} runs, is violated in {total['violated']}, and is undecided in"
        f" {total['undecided']}"
    )
    return (
        f"{said}; it holds for {', '.join(holding)}."
        if holding
        else f"{said}; it is shown to hold for no method."
    )


def _kept(results: Results, row: str, part: str) -> str:
    violations = results.final[(results.final["part"] == part) & (results.final["row"] == row)][
        "violation"
    ]
    return f"{int((violations == 0).sum())} of {len(violations)} runs"
