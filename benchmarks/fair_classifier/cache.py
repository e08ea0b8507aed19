"""One JSON file per (table, split, contestant, notion): a run that was stopped goes on where it
was."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from contestants import BASES, PEERS
from tables import NOTIONS, TABLES, measure, split

OWN = ("fair_classifier", "fair_postprocessor", "fair_classifier_aware", "fair_postprocessor_aware")
OWN_INPUTS = ("one_hot_pipeline", "raw_codes")
DEFAULT_FIT = "default_fit"  # CPU time on 20,000 examples, on one table
DEFAULT_TABLES, DEFAULT_EXAMPLES = ("NC", "VA"), 20_000


class Task(NamedTuple):
    table: str
    split: int
    contestant: str
    notion: str  # "none" for models without a constraint

    @property
    def ours(self) -> bool:
        return self.contestant in (*OWN, *OWN_INPUTS, DEFAULT_FIT)

    def path(self, folder: Path, version: str) -> Path:
        tail = f"_{version}" if self.ours else ""
        return folder / f"{self.table}_{self.split}_{self.contestant}_{self.notion}{tail}.json"


def tasks(tables: Sequence[str], splits: int, only: Sequence[str]) -> list[Task]:
    """All tasks, the first split of every table first."""
    found = []
    for seed in range(splits):
        for table in tables:
            found += [Task(table, seed, name, "none") for name in BASES]
            if table == "VA5":  # five groups: the loss gap only
                found += [Task(table, seed, name, "loss") for name in OWN[:2]]
                continue
            found += [Task(table, seed, name, notion) for name in PEERS for notion in NOTIONS[1:]]
            for name in OWN:
                found += [Task(table, seed, name, n) for n in NOTIONS[name.endswith("aware") :]]
            if seed == 0:
                found += [Task(table, seed, name, "loss") for name in OWN_INPUTS]
                found += [Task(table, seed, DEFAULT_FIT, "loss")] if table in DEFAULT_TABLES else []
    unknown = set(only) - {task.contestant for task in found}
    if unknown:
        raise SystemExit(
            f"no contestant {', '.join(sorted(unknown))} on {', '.join(tables)}; there are "
            f"{', '.join(sorted({task.contestant for task in found}))}"
        )
    return [task for task in found if not only or task.contestant in only]


def batches(wanted: Sequence[Task]) -> list[list[Task]]:
    """Tasks that one process computes, since they share models: our networks on a split, and our
    trees."""
    by_models: dict[tuple[str, ...], list[Task]] = {}
    for task in wanted:
        shared = (
            task.contestant.removesuffix("_aware") if task.contestant in OWN else "".join(task[2:])
        )
        by_models.setdefault((task.table, str(task.split), shared), []).append(task)
    return list(by_models.values())


def compute_all(batch: Sequence[Task], folder: Path, version: str) -> list[str]:
    return [compute(task, folder, version) for task in batch]


def compute(task: Task, folder: Path, version: str) -> str:
    """Fits, measures and writes one result; a line about it. A failure is told and leaves no
    file."""
    path = task.path(folder, version)
    if path.exists():
        return ""
    if task.table not in TABLES:
        raise SystemExit(f"no table {task.table}; there are {', '.join(TABLES)}")
    try:
        result = fit_and_measure(task)
    except Exception:
        return f"FAILED {' '.join(map(str, task))}\n{traceback.format_exc()}"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(
        json.dumps({**task._asdict(), "version": version if task.ours else None, **result})
    )
    part.replace(path)
    shown = (f"{name} {result[name]:+.3f}" for name in NOTIONS if name in result)
    return (
        f"{' '.join(map(str, task))}: accuracy {result['accuracy']:.4f}, {', '.join(shown)},"
        f" {result['cpu_s']:.0f} s"
    )


def fit_and_measure(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    contestant = (BASES | PEERS).get(task.contestant)
    if contestant is None:
        from ours import OURS  # the others can be computed where our estimators are being rewritten

        contestant = OURS["fair_classifier" if task.contestant == DEFAULT_FIT else task.contestant]
    data = split(
        task.table, task.split, DEFAULT_EXAMPLES if task.contestant == DEFAULT_FIT else None
    )
    start = time.process_time()
    decision, probability, notes = contestant(data, task.notion, task.split)
    seconds = time.process_time() - start
    return {
        "cpu_s": seconds,
        "train": len(data.train.y),
        **measure(data.test, decision, probability),
        **notes,
    }


def read(folder: Path, wanted: Sequence[Task], version: str) -> list[dict[str, Any]]:
    paths = (task.path(folder, version) for task in wanted)
    return [json.loads(path.read_text()) for path in paths if path.exists()]
