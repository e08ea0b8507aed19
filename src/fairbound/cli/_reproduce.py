"""`fairbound reproduce`: the whole paper, its two experiments, its tables of settings, and what it
lacks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from fairbound.cli import _options as options
from fairbound.cli._printing import console
from fairbound.cli._report import read, write

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark._plan import Plan


def reproduce_command(
    folder: options.DataFolder = None,
    seeds: options.SeedsOption = None,
    steps: options.StepsOption = None,
    recompute: options.Recompute = False,
    jobs: options.Jobs = None,
    scheduler: options.Scheduler = None,
    slurm: options.Queue = None,
    queue: options.OtherQueue = None,
    out: options.Out = Path("results"),
    to: options.To = Path("report"),
) -> None:
    """Run all studies of the paper, its two experiments within both budgets, and write one page of
    everything."""
    from fairbound.benchmark._engine import complete_all
    from fairbound.benchmark._store import Store
    from fairbound.cli._engine import announce, computing, end_with, engine_of

    start = time.perf_counter()
    engine = engine_of(jobs, scheduler, slurm, queue)
    plans, store, screen = all_plans(folder, seeds, steps, recompute), Store(out), console()
    stored = [plan.stored(store) for plan in plans]
    announce(
        [study for study in stored if study.budget == "paper" and study.name.startswith("paper-")]
    )
    screen.print(
        f"{len(plans)} studies, both budgets of an experiment counted; results in {out}",
        highlight=False,
    )
    with computing(out) as advanced:
        for plan in plans:
            plan.note(store)
        done = complete_all(
            [task for plan in plans for task in plan.tasks(store)], store, engine, advanced
        )
    computed = time.perf_counter()
    measured = [study for study in stored if study.has_results(store)]
    if not measured:
        end_with(done.failed, out)
    page = read(measured, store)
    path = escape(str(write(page, to)))
    for section in page.sections:
        words = section.finding if "statements" in section.tables else section.agreement
        if words:
            screen.print(f"{escape(section.name)}: {escape(words)}", highlight=False)
    spent, writing = computed - start, time.perf_counter() - computed
    screen.print(f"{done.runs:,} runs in {spent:.0f} s, page in {writing:.0f} s", highlight=False)
    screen.print(f"Page: {path}", highlight=False, soft_wrap=True)
    end_with(done.failed, out)


def all_plans(
    folder: Path | None, seeds: int | None, steps: int | None, recompute: bool = False
) -> list[Plan]:
    """Every study of the paper within its budget; its two experiments also within that of equal
    examples."""
    from fairbound.benchmark import _study as study
    from fairbound.cli._engine import planned

    asked = {"folder": folder, "seeds": seeds, "steps": steps, "recompute": recompute}
    plans = []
    for name in study.paper_names():
        plans.append(planned(name, **asked))  # type: ignore[arg-type]
        if name.startswith("paper-"):
            plans.append(planned(name, budget="examples", **asked))  # type: ignore[arg-type]
    return plans
