"""`fairbound status` and `fairbound merge`: what a results folder has, and folders made into
one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fairbound._utils.sentences import counted
from fairbound.cli._options import Out
from fairbound.cli._printing import console

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark._store import Store
    from fairbound.benchmark._stored_study import StoredStudy

Folders = Annotated[list[Path], typer.Argument(help="Folders of results.")]
Tracebacks = Annotated[
    bool, typer.Option("--tracebacks", help="Print the whole traceback of what failed.")
]


def status_command(out: Out = Path("results"), tracebacks: Tracebacks = False) -> None:
    """Show what is done, what older code computed, and what failed."""
    from fairbound.benchmark._store import Store
    from fairbound.benchmark._stored_study import StoredStudy
    from fairbound.benchmark._work_log import WorkLog

    if not out.is_dir():
        raise FileNotFoundError(
            f"there is no folder {out}; name the results folder of a command: --out results"
        )
    screen, store = console(), Store(out)
    screen.print(f"{store.count():,} results in {out}", highlight=False)
    for study in store.studies().values():
        _show_study(StoredStudy.from_json(study), store)
    failures = WorkLog(out).failures()
    if failures:
        screen.print(
            f"[bold]failed ({len(failures)})[/]; computed again when the command is started again"
        )
    for failure in failures:
        words = failure.traceback.strip() if tracebacks else failure.sentence
        screen.print(escape(f"  {failure.task}: {words}"), highlight=False)


def _show_study(study: StoredStudy, store: Store) -> None:
    done = sum(store.is_named(run.key) for run in study.runs)
    form = (
        {"paper": "", "examples": ", equal examples"}[study.budget]
        if study.page == "report"
        else f", {study.rules}"
    )
    stale = study.stale(store)
    older = (
        f"; older code computed {len(stale):,} of them: --recompute refreshes them" if stale else ""
    )
    words = (
        f"{study.name}{form} ({', '.join(study.sources) or 'generated'}): {done:,} of"
        f" {len(study.runs):,} runs{older}"
    )
    console().print(escape(words), highlight=False, soft_wrap=True)


def merge_command(
    folders: Folders,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to copy into.")] = Path(
        "results"
    ),
) -> None:
    """Copy missing results from other folders into one; damaged files are named and skipped."""
    from fairbound.benchmark._store import Store
    from fairbound.benchmark._work_log import WorkLog

    store, copied, present = Store(out), 0, 0
    for folder in folders:
        if not (folder / "runs").is_dir():
            raise FileNotFoundError(
                f"{folder} is not a folder of results: it has no {folder / 'runs'}"
            )
    for other in map(Store, folders):
        for system in other.systems():
            store.note_system(system)
        for name, study in other.studies().items():
            store.note_study(name, study)
        for key in sorted(other.keys()):
            if store.has(key):
                present += 1
                continue
            data = other.file(key)
            if data is not None:
                store.put_files({key: data})
                WorkLog(out).forget([key])
                copied += 1
    console().print(
        f"{counted(copied, 'result')} copied, {present} were there; results in {out}",
        highlight=False,
    )
