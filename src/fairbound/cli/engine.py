"""Where commands compute: in this process, in several, or on a cluster; and the bar of progress."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from threadpoolctl import threadpool_limits  # with scikit-learn

from fairbound.benchmark import executor
from fairbound.benchmark.engines import Engine, failures_in_words, parse_shard
from fairbound.benchmark.environment import describe, usable_cpus
from fairbound.benchmark.job_queues import QUEUES, parse_queue
from fairbound.benchmark.store import Store
from fairbound.benchmark.work_log import Failure
from fairbound.cli.printing import console

MAX_DEFAULT_JOBS = 4  # every process holds the data and a copy of torch
BEYOND = "Beyond one machine"

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; as many as there are cores, up to 4, if not given.")]
Scheduler = Annotated[
    str | None, typer.Option(help="A Dask scheduler that is there: tcp://host:8786.", rich_help_panel=BEYOND)
]
Queue = Annotated[
    str | None,
    typer.Option(
        help="Workers as Slurm jobs: partition=gpu,gpus=1,time=2:00,jobs=8 (also account, memory, cores, interface).",
        rich_help_panel=BEYOND,
    ),
]
OtherQueue = Annotated[
    str | None,
    typer.Option(help="Another queue: pbs:queue=long,time=2:00; lsf:...; sge:...", rich_help_panel=BEYOND),
]
Shard = Annotated[str | None, typer.Option(help="A part of the plan alone: 3/40.", rich_help_panel=BEYOND)]
Out = Annotated[Path, typer.Option(help="The folder that keeps the results.")]


def engine_of(
    jobs: int | None,
    scheduler: str | None = None,
    slurm: str | None = None,
    queue: str | None = None,
    shard: str | None = None,
    device: str = "cpu",
) -> Engine:
    """From the options of a command."""
    places = {"--scheduler": scheduler, "--slurm": slurm, "--queue": queue}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} name different places to compute; give one of them")
    if given and jobs is not None:
        raise ValueError(f"--jobs are processes of this machine, and {given[0]} has workers elsewhere; leave one out")
    several = device == "cpu" and find_spec("distributed") is not None
    return Engine(
        processes=jobs or (min(usable_cpus(), MAX_DEFAULT_JOBS) if several else 1),
        scheduler=scheduler,
        queue=parse_queue("slurm", slurm) if slurm is not None else _other_queue(queue),
        shard=None if shard is None else parse_shard(shard),
    )


def _other_queue(text: str | None) -> tuple[str, dict[str, str]] | None:
    if text is None:
        return None
    kind, _, options = text.partition(":")
    if kind not in QUEUES:
        raise ValueError(f"--queue starts with one of {', '.join(QUEUES)}, as in pbs:queue=long; got {text!r}")
    return parse_queue(kind, options)


@contextmanager
def computing(out: Path, device: str = "cpu") -> Iterator[executor.Progress]:
    """A bar of progress while results are computed into a folder, which notes the system."""
    torch.set_num_threads(1)  # small tensors are slower on more; several processes use the cores
    threadpool_limits(1)  # numpy's too: a sum over two threads ends with other bits than that of a worker
    Store(out).note_system(describe(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), device))
    columns = (TextColumn("computing"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=console(), transient=True) as progress:
        task = progress.add_task("run", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def end_with(failed: Sequence[Failure], out: Path) -> None:
    """After everything else is said: an error where tasks failed."""
    if failed:
        raise ValueError(f"{failures_in_words(failed)}; tracebacks: fairbound status --out {out} --tracebacks")
