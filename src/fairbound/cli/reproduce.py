"""`fairbound reproduce`: the whole paper, its two experiments, its tables of settings, and what it lacks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from fairbound.cli.options import Folder, Jobs, OtherQueue, Out, Queue, Scheduler, Seeds, Steps, To
from fairbound.cli.printing import console
from fairbound.cli.report import section_of, write_with_progress
from fairbound.cli.time import timed

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark.engines import Done
    from fairbound.benchmark.executor import Job
    from fairbound.benchmark.store import Store

ROUNDS, TURN_STEPS = 3, 30  # rounds of timing, and steps in each: enough for an axis


def reproduce_command(
    folder: Folder = None,
    seeds: Seeds = None,
    steps: Steps = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    slurm: Queue = None,
    queue: OtherQueue = None,
    out: Out = Path("results"),
    to: To = Path("report"),
) -> None:
    """All experiments within both budgets, the seconds of their steps, and one report of everything."""
    from fairbound.benchmark import config
    from fairbound.benchmark.executor import plan, prepare
    from fairbound.benchmark.store import Store
    from fairbound.cli.engine import announce, compute, end_with, engine_of

    start = time.perf_counter()
    engine = engine_of(jobs, scheduler, slurm, queue)
    planned = all_jobs(folder, seeds, steps)
    screen = console()
    screen.print(
        f"{len(config.paper_names())} experiments, {len(planned)} with both budgets; results in {out}", highlight=False
    )
    for name in compared():
        announce(prepare(next(job for job in planned if job.experiment == name)))
    done = compute(planned, out, engine, first=compared())
    computed = time.perf_counter()
    store = Store(out)
    for job in planned:
        if job.budget == "paper" and job.experiment in compared() and not _timed_here(store, job.experiment):
            timed(prepare(job), store, ROUNDS, TURN_STEPS)
    measured = time.perf_counter()
    sections = [section_of(plan(job), store, job.budget) for job in planned]
    page = write_with_progress(sections, to, store)
    for one in sections:
        if one.agreement:
            screen.print(f"{escape(one.name)}: {escape(one.agreement)}", highlight=False)
    _say_where_time_went(done, computed - start, measured - computed, time.perf_counter() - measured)
    screen.print(f"Report: {page}", highlight=False, soft_wrap=True)
    end_with(done.failed, out)


def _timed_here(store: Store, experiment: str) -> bool:
    """Whether the seconds that are kept are of this system and of all rows."""
    from fairbound.benchmark import config
    from fairbound.benchmark.environment import describe

    times, system, now = store.times(experiment), store.timed_on(experiment), describe("")
    same = system is not None and all(system.get(name) == now[name] for name in ("cpu", "torch", "fairbound"))
    return same and times is not None and set(times) == {row.name for row in config.load(experiment).rows}


def compared() -> list[str]:
    """The main experiments, which compare methods on one split: both budgets, and axes of time."""
    from fairbound.benchmark import config

    found = {name: config.load(name) for name in config.paper_names()}
    return [name for name, one in found.items() if one.split.splits == 1 and one.last_states == 1]


def all_jobs(folder: Path | None, seeds: int | None, steps: int | None) -> list[Job]:
    """Every experiment within the paper's budget; those that compare methods also within that of equal examples."""
    from fairbound.benchmark import config
    from fairbound.benchmark.executor import Job

    first = compared()
    names = [*first, *(name for name in config.paper_names() if name not in first)]
    return [
        Job(experiment=name, budget=budget, folder=folder, seeds=seeds, steps=steps)
        for name in names
        for budget in (("paper", "examples") if name in first else ("paper",))
    ]


def _say_where_time_went(done: Done, computing: float, timing: float, reporting: float) -> None:
    spent = done.spent
    whole = sum(spent) or 1.0
    shares = ", ".join(f"{name} {100 * value / whole:.0f} %" for name, value in spent._asdict().items())
    console().print(
        f"{done.runs:,} runs in {computing:.0f} s ({shares}), seconds per step in {timing:.0f} s, report in "
        f"{reporting:.0f} s{_memory()}",
        highlight=False,
    )


def _memory() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    unit = 1 << (30 if sys.platform == "darwin" else 20)  # ru_maxrss is in bytes there, in kilobytes elsewhere
    here, there = (resource.getrusage(who).ru_maxrss / unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"; memory at most {here:.1f} GB here and {there:.1f} GB in each process"
