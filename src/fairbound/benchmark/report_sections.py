"""What a report says about an experiment, from the store alone: its tables and its figures.

| experiment | tables | figures |
|---|---|---|
| one split | loss, fairness-reported, fairness-printed | curves, seconds, validation, scores, spiders, trade-off |
| several splits | loss, splits | the same, curves only where runs have more than one record |
| tuning (`last_states` above 1) | tuning | validation, trade-off on the validation split |

Wherever the paper prints figures, the table `differences` of its own budget has those that ours do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairbound.benchmark.executor import Budget, RunBatch
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.figure_specs import Sheet
from fairbound.benchmark.loss_tables import loss_table
from fairbound.benchmark.paper_comparison import differences
from fairbound.benchmark.plots import BOTH, over_steps, scores, spiders, trade_off, validation
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.results import curves, endings, gaps
from fairbound.benchmark.store import Store
from fairbound.benchmark.summary import summary
from fairbound.benchmark.table_writers import Table
from fairbound.benchmark.tables import fairness_table, split_table, tuning_table


@dataclass(frozen=True, eq=False)
class Section:
    """All that a report says about one experiment within one budget."""

    name: str  # of the experiment
    title: str
    budget: Budget
    at: str  # where it stands in the paper
    source: str  # of the data
    synthetic: bool
    notes: Mapping[str, str]  # by row: where the paper contradicts itself, or leaves something open
    tables: Mapping[str, Table]
    figures: Mapping[str, Sheet]


def section(
    prepared: PreparedExperiment,
    store: Store,
    planned: Sequence[RunBatch],
    budget: Budget,
    seconds: Mapping[str, float] | None = None,
    timed_on: Mapping[str, Any] | None = None,
) -> Section:
    """Of one experiment; with `seconds` a step by row, its curves also have an axis of time, that of a system."""
    experiment, once = prepared.experiment, _ReadOnce(store)
    return Section(
        name=experiment.name,
        title=experiment.title,
        budget=budget,
        at=experiment.reference,
        source=prepared.source,
        synthetic=prepared.source.partition(":")[0] == "synthetic",
        notes={row.name: row.note for row in experiment.rows if row.note},
        tables=_tables(prepared, once, planned, budget),
        figures=dict(_figures(prepared, once, planned, seconds, _system(timed_on or {}))),
    )


class _ReadOnce(Store):
    """A store whose cells are read from the disk once, however many tables and figures show them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder)
        self._found: dict[str, StoredResult | None] = {}

    def get(self, key: str) -> StoredResult | None:
        if key not in self._found:
            self._found[key] = super().get(key)
        return self._found[key]


def _tables(
    prepared: PreparedExperiment, store: Store, planned: Sequence[RunBatch], budget: Budget
) -> dict[str, Table]:
    if prepared.experiment.last_states > 1:
        found = {"tuning": tuning_table(prepared, store, planned)}
    else:
        found = {"loss": loss_table(prepared, store, planned)}
        if len(prepared.splits) > 1:
            found["splits"] = split_table(prepared, store, planned)
        else:
            found["fairness-reported"] = fairness_table(prepared, store, planned, "reported")
            found["fairness-printed"] = fairness_table(prepared, store, planned, "printed")
    if budget != "paper":  # the paper's figures are of its own budget
        return found
    # The paper's results follow the definitions as reported; its printed ones give other numbers
    held = [table for name, table in found.items() if name != "fairness-printed"]
    far = differences(f"{prepared.experiment.name}: where our figures are not the paper's", held)
    return found if far is None else found | {"differences": far}


def _system(timed_on: Mapping[str, Any]) -> str:
    said = [str(timed_on[name]) for name in ("cpu", "date") if name in timed_on]
    return f", timed on {', '.join(said)}" if said else ""


def _figures(
    prepared: PreparedExperiment,
    store: Store,
    planned: Sequence[RunBatch],
    seconds: Mapping[str, float] | None,
    system: str,
) -> Iterator[tuple[str, Sheet]]:
    tuned, measured = prepared.experiment.last_states > 1, prepared.measured()
    parts = [part for part in BOTH if part in measured]
    if prepared.experiment.records > 1:
        lines, bounded = curves(prepared, store, planned), gaps(prepared)
        if parts and not tuned:
            yield "curves", over_steps(lines, bounded, parts=parts)
            if seconds is not None and set(seconds) & set(lines):
                timed = over_steps(lines, bounded, seconds=seconds, parts=parts)
                yield "seconds", replace(timed, words=f"{timed.words}. One run alone, step by step{system}")
        if "validation" in measured:
            yield "validation", validation(lines, bounded)
    if not tuned:
        ends = endings(prepared, store, planned, parts=BOTH)
        yield "scores", scores(ends, prepared.experiment.groups)
        yield "spiders", spiders(ends)
    shown = ["validation"] if tuned else parts
    yield "trade-off", trade_off({part: summary(prepared, store, planned, part) for part in shown})
