"""`fairbound enter` and `fairbound check`: a method sent to a board, and whether it is what it
says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbound.cli._options import Jobs, OtherQueue, Out, Queue, Scheduler, Shard
from fairbound.cli._printing import console, working

# those of `board.limits` and `board.checks`, which load torch
SECONDS, GIGABYTES, _SAMPLE = 600.0, 4.0, 3

_Folder = Annotated[Path, typer.Argument(help="The folder of an entry: entry.toml and method.py.")]
Seconds = Annotated[
    float, typer.Option(help="Limit on the seconds of one problem, all seeds together.")
]
Memory = Annotated[
    float, typer.Option(help="Limit on the memory of a process, in GB, on top of Python and torch.")
]
Salt = Annotated[
    str | None,
    typer.Option(help="Text that decides the sample and its coordinates; random by default."),
]
_Sample = Annotated[int, typer.Option(min=0, help="Number of problems to compute again.")]


def enter_command(
    folder: _Folder,
    seconds: Seconds = SECONDS,
    memory: Memory = GIGABYTES,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    slurm: Queue = None,
    queue: OtherQueue = None,
    shard: Shard = None,
) -> None:
    """Compute the missing results of an entry, and write its manifest; the method runs in separate
    processes."""
    from fairbound.benchmark.board._entry_folder import RESULTS, EntryFolder
    from fairbound.benchmark.board._limits import Limits
    from fairbound.cli._engine import computing, end_with, engine_of

    own, screen = EntryFolder(folder), console()
    card, tasks = own.card, own.tasks()
    screen.print(f"{escape(card.name)}: {card.rules} rules, {len(tasks)} tasks", highlight=False)
    if own.is_partial:
        screen.print(
            f"[yellow]partial[/]: {len(own.problems)} problems of the board, as"
            f" {escape(str(folder))} says"
        )
    engine = engine_of(jobs, scheduler, slurm, queue, shard)
    with computing(own.store.folder) as progress:
        done = own.compute(engine, Limits(seconds=seconds, gigabytes=memory), progress)
    screen.print(f"{len(own.manifest()['results'])} results in {folder / RESULTS}", highlight=False)
    screen.print(
        f"next: fairbound check {folder}, and fairbound board {folder}",
        highlight=False,
        soft_wrap=True,
    )
    end_with(done.failed, own.store.folder)


def check_command(
    folder: _Folder,
    salt: Salt = None,
    sample: _Sample = _SAMPLE,
    seconds: Seconds = SECONDS,
    memory: Memory = GIGABYTES,
    out: Out = Path("results"),
) -> None:
    """Check an entry: card, coverage, checksums, and a sample computed again. It runs its author's
    code."""
    import secrets

    from fairbound.benchmark._store import Store
    from fairbound.benchmark.board._checks import check
    from fairbound.benchmark.board._limits import Limits

    screen, salt = console(), salt or secrets.token_hex(8)
    screen.print(
        "Runs the author's code with your permissions, in separate processes of at most"
        f" {seconds:g} s and {memory:g} GB each; it is not sandboxed.",
        highlight=False,
    )
    with working(f"checking {folder}"):
        found = check(
            folder,
            salt=salt,
            sample=sample,
            limits=Limits(seconds=seconds, gigabytes=memory),
            store=Store(out),
        )
    for warning in found.warnings:
        screen.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False)
    if found.recomputed:
        screen.print(
            f"Computed again: {', '.join(found.recomputed)} (salt {salt})", highlight=False
        )
        screen.print(
            f"`fairbound board {folder} --out {out}` shows these results",
            highlight=False,
            soft_wrap=True,
        )
    for refusal in found.refusals:
        screen.print(f"[bold red]Refused:[/] {escape(refusal)}", highlight=False)
    if not found.accepted:
        raise typer.Exit(1)
    screen.print("[bold green]Accepted[/]", highlight=False)
