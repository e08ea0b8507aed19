"""Made-up results of a study on a table: what tests of tables, figures and pages read, without a
run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._results import Results, RunResult
from fairbound.benchmark._stored_study import Card, EntryInfo, StoredRun, StoredStudy
from fairbound.benchmark._study import Study
from fairbound.benchmark.problems._catalog import Reference
from fairbound.benchmark.problems.table import named_constraint

Tables = dict[str, dict[str, np.ndarray]]
UNKNOWN = Reference(loss=0.0, start=1.0, scale=1.0, residual=None, exact=False, how="")


def stored_study(
    study: Study, *, source: str = "made up", whole_seeds: int | None = None
) -> StoredStudy:
    """As the store would keep it, on a table of nobody."""
    spec = study.problem
    assert spec is not None
    groups = torch.arange(40 * len(spec.groups)) % len(spec.groups)
    constraint = named_constraint(
        spec.notion, spec.bound, groups, torch.zeros(len(groups)), spec.groups
    )
    gaps = {
        "names": list(constraint.names),
        "contrast": constraint.contrast.matrix().tolist(),
        "bound": constraint.bound.double().tolist(),
        "absolute": constraint.absolute,
    }
    card = Card(
        name=spec.name,
        title=spec.title,
        family="fairness",
        n=9,
        m=constraint.m,
        kinds="",
        convex=False,
        noise="",
        examples=len(groups),
        batch="",
        steps=1,
        origin="",
        license="",
        source=source,
        reference=UNKNOWN,
        groups=len(spec.groups),
        bound=spec.bound,
        data=source,
        group_names=spec.groups,
        notion=spec.notion,
        parts=spec.split.parts,
        gaps=gaps,
    )
    entries = []
    for entry in study.entries:
        examples, own = 8.0 if entry.method == "SGD" else 40.0, entry.steps or 1
        equal = round(400_000 / examples)
        length = own if study.budget == "paper" else equal
        length = length if study.steps is None else min(length, study.steps)
        made = EntryInfo(
            name=entry.name,
            method=entry.method,
            settings="",
            summary="",
            rules="default",
            paper=entry.paper,
            note=entry.note,
            reference=entry.reference,
            steps=length,
            own_steps=own,
            equal_steps=equal,
            examples_per_step=examples,
        )
        entries.append(made)
    runs = [
        StoredRun(
            problem=spec.name,
            entry=entry.name,
            kind="groups",
            seed=seed,
            split=split,
            change="",
            key="0" * 64,
        )
        for entry in study.entries
        for split in range(study.splits)
        for seed in range(study.seeds)
    ]
    return StoredStudy(
        name=study.name,
        title=study.title,
        reference=study.reference,
        page="report",
        budget=study.budget,
        rules="default",
        seeds=study.seeds,
        whole_seeds=whole_seeds or study.seeds,
        splits=study.splits,
        records=study.records,
        last_states=study.last_states,
        short=False,
        entries=entries,
        cards=[card],
        runs=runs,
        measured=tuple(
            part for part in spec.split.parts if not study.measured or part in study.measured
        ),
    )


def made_up(
    study: StoredStudy, rng: np.random.Generator, steps: int = 6, factor: float = 1.0
) -> Tables:
    """Tables of the form that a run stores."""
    parts, groups = study.measured, len(study.cards[0].group_names)
    losses = {part: factor * rng.uniform(0.3, 0.6, (study.records, 1 + groups)) for part in parts}
    pairs = (len(parts), groups - 1)
    end = {
        "part": np.array(parts),
        "counts": rng.integers(1, 30, (len(parts), groups, 2, 2)).astype(np.float64),
        "w1": rng.uniform(size=pairs),
        "wd": rng.uniform(size=pairs),
        "wd_logits": rng.uniform(size=pairs),
        "histogram": rng.integers(0, 9, (len(parts), groups, 50)),
    }
    step = np.linspace(steps / study.records, steps, study.records).round().astype(int)
    records = {"step": step, **{part: values.astype(np.float32) for part, values in losses.items()}}
    return {"records": records, "parts": end}


class Made:
    """Made-up results of a study, by entry; tests may change them before they are read."""

    def __init__(
        self,
        study: StoredStudy,
        *,
        without: tuple[str, ...] = (),
        factors: Mapping[str, float] | None = None,
    ):
        self.study = study
        rng, steps = np.random.default_rng(1), {entry.name: entry.steps for entry in study.entries}
        self.results: dict[str, list[tuple[StoredRun, Tables]]] = {
            entry.name: [] for entry in study.entries
        }
        for run in study.runs:
            if run.entry not in without:
                factor = (factors or {}).get(run.entry, 1.0)
                self.results[run.entry].append((run, made_up(study, rng, steps[run.entry], factor)))

    @property
    def read(self) -> Results:
        made = {"step_seconds": 0.001}
        there = {
            (run.entry, run.seed, run.split): StoredResult({}, tables, made)
            for results in self.results.values()
            for run, tables in results
        }
        runs = {
            entry.name: [
                RunResult(run, there.get((run.entry, run.seed, run.split)))
                for run in self.study.runs
                if run.entry == entry.name
            ]
            for entry in self.study.entries
        }
        return Results(self.study, Path("nowhere"), runs)
