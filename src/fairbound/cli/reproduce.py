"""`fairbound reproduce`: the whole paper, its two experiments, its tables of settings, and what it lacks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from fairbound.cli.options import Folder, Jobs, OtherQueue, Out, Queue, Recompute, Scheduler, Seeds, Steps, To
from fairbound.cli.printing import console
from fairbound.cli.report import section_of, write_with_progress

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark.engine import Done
    from fairbound.benchmark.plan import Plan


def reproduce_command(
    folder: Folder = None,
    seeds: Seeds = None,
    steps: Steps = None,
    recompute: Recompute = False,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    slurm: Queue = None,
    queue: OtherQueue = None,
    out: Out = Path("results"),
    to: To = Path("report"),
) -> None:
    """Run all studies of the paper, its two experiments within both budgets, and write one report of everything."""
    from fairbound.benchmark.engine import complete_all
    from fairbound.benchmark.store import Store
    from fairbound.cli.engine import announce, computing, end_with, engine_of

    start = time.perf_counter()
    engine = engine_of(jobs, scheduler, slurm, queue)
    plans, store, screen = all_plans(folder, seeds, steps, recompute), Store(out), console()
    stored = [plan.stored(store) for plan in plans]
    announce([study for study in stored if study.budget == "paper" and study.name.startswith("paper-")])
    screen.print(f"{len(plans)} studies, both budgets of an experiment counted; results in {out}", highlight=False)
    with computing(out) as advanced:
        for plan in plans:
            plan.note(store)
        done = complete_all([task for plan in plans for task in plan.tasks(store)], store, engine, advanced)
    computed = time.perf_counter()
    sections = [section_of(study, store) for study in stored]
    page = write_with_progress(sections, to, store)
    for one in sections:
        if one.agreement:
            screen.print(f"{escape(one.name)}: {escape(one.agreement)}", highlight=False)
    _say_where_time_went(done, computed - start, time.perf_counter() - computed)
    screen.print(f"Report: {page}", highlight=False, soft_wrap=True)
    end_with(done.failed, out)


def all_plans(folder: Path | None, seeds: int | None, steps: int | None, recompute: bool = False) -> list[Plan]:
    """Every study of the paper within its budget; its two experiments also within that of equal examples."""
    from fairbound.benchmark import study
    from fairbound.cli.engine import planned

    options = {"folder": folder, "seeds": seeds, "steps": steps, "recompute": recompute}
    plans = []
    for name in study.paper_names():
        plans.append(planned(name, **options))  # type: ignore[arg-type]
        if name.startswith("paper-"):
            plans.append(planned(name, budget="examples", **options))  # type: ignore[arg-type]
    return plans


def _say_where_time_went(done: Done, computing: float, reporting: float) -> None:
    spent = done.spent
    whole = sum(spent) or 1.0
    shares = ", ".join(f"{name} {100 * value / whole:.0f} %" for name, value in spent._asdict().items())
    console().print(
        f"{done.runs:,} runs in {computing:.0f} s ({shares}), report in {reporting:.0f} s{_memory()}", highlight=False
    )


def _memory() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    unit = 1 << (30 if sys.platform == "darwin" else 20)  # ru_maxrss is in bytes there, in kilobytes elsewhere
    here, there = (resource.getrusage(who).ru_maxrss / unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"; memory at most {here:.1f} GB here and {there:.1f} GB in each process"
