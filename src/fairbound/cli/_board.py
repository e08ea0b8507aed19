"""`fairbound board`: which share of problems methods solve, as one page."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fairbound._utils.sentences import counted
from fairbound.cli import _options as options
from fairbound.cli._printing import console
from fairbound.cli._report import show_and_write

if TYPE_CHECKING:  # a command loads torch when it runs, so that --help is quick
    from fairbound.benchmark._entry import Entry
    from fairbound.benchmark._study import Study


class RuleSet(enum.StrEnum):
    """How settings are found; typer takes no list of a Literal."""

    DEFAULT = "default"
    TUNED = "tuned"


Problems = Annotated[
    list[str] | None,
    typer.Argument(
        help=(
            "Names of problems, or your own files (.toml, .py); by default all. Folders of entries"
            " are read, not run."
        ),
        autocompletion=options.complete_problem,
    ),
]
_Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="Only these entries, by name, beside SGD; may be repeated.",
        autocompletion=options.complete_entry,
    ),
]
EntryFile = Annotated[
    list[Path] | None,
    typer.Option("--entry", help="A TOML file with entries of your own; may be repeated."),
]
_Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm", help="A method of your own beside the others: my_file.py:MyMethod(tau=0.1)."
    ),
]
RulesOption = Annotated[
    list[RuleSet] | None,
    typer.Option(
        "--rules", help="The methods' default settings, or settings tuned on 20 points; or both."
    ),
]
_Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each method on each problem.")]
_Splits = Annotated[
    int | None, typer.Option(min=1, help="Splits on which bounds are tested on held-out data.")
]
_Steps = Annotated[int | None, typer.Option(min=40, help="Limit on steps, for quick trials.")]
Short = Annotated[bool, typer.Option("--short", help="A reduced suite for a quick trial.")]
List = Annotated[bool, typer.Option("--list", help="List problems and entries, and stop.")]


def board_command(
    problems: Problems = None,
    method: _Methods = None,
    entry: EntryFile = None,
    algorithm: _Algorithms = None,
    rules: RulesOption = None,
    seeds: _Seeds = None,
    splits: _Splits = None,
    steps: _Steps = None,
    short: Short = False,
    show_list: List = False,
    recompute: options.Recompute = False,
    jobs: options.Jobs = None,
    scheduler: options.Scheduler = None,
    slurm: options.Queue = None,
    queue: options.OtherQueue = None,
    shard: options.Shard = None,
    out: options.Out = Path("results"),
    to: options.To = Path("board"),
) -> None:
    """Compare methods on a collection of problems; reuses stored results."""
    from fairbound.benchmark._plan import Plan
    from fairbound.benchmark._store import Store
    from fairbound.benchmark._study import load_study as load_study
    from fairbound.benchmark._user_files import check_unique
    from fairbound.benchmark.board._entry_folder import CARD, EntryFolder
    from fairbound.benchmark.problems._catalog import load_problem
    from fairbound.cli._engine import announce_data, computing, engine_of, with_options

    if show_list:
        _list()
        return
    engine = engine_of(jobs, scheduler, slurm, queue, shard)
    folders = [EntryFolder(Path(name)) for name in problems or () if (Path(name) / CARD).is_file()]
    chosen = [_place(name) for name in problems or () if EntryFolder(Path(name)) not in folders]
    if folders and not chosen:
        chosen = list(dict.fromkeys(name for folder in folders for name in folder.problems))
    for name in chosen:
        load_problem(name)  # refuses a name that is unknown
    whole = load_study("board")
    study = load_study("board-short") if short else whole
    study = with_options(
        study, problems=tuple(chosen) or None, seeds=seeds, splits=splits, steps=steps
    )
    study = replace(
        study, short=study.short or study.steps is not None or study.seeds < whole.seeds
    )
    own, sent = (
        _own(entry or (), algorithm or (), study),
        [folder.sent(Store(out)) for folder in folders],
    )
    listed = whole if method else study  # --method names any of the board's entries
    only = dict.fromkeys(["SGD", *method]) if method else ()  # SGD says which instances count
    study = replace(study, entries=listed.with_entries(own, only=tuple(only)).entries)
    alone = bool(folders) and not (method or own)
    plans = [
        Plan(replace(study, rules=rule.value), recompute=recompute)
        for rule in dict.fromkeys(rules or (RuleSet.DEFAULT,))
    ]
    screen, store, cards = console(), Store(out), plans[0].cards
    methods = [entry.name for entry in (() if alone else study.entries)] + [
        one.info.name for one in sent
    ]
    check_unique(methods, "entries")
    check_unique((card.name for card in cards), "problems")
    announce_data(cards)
    size = counted(len(methods), "method")
    size += f" x {counted(len(study.problem_names()), 'problem')}, {counted(study.seeds, 'seed')}"
    words = f"{size}, {' and '.join(f'{one.study.rules} rules' for one in plans)}"
    screen.print(f"{words}; results in {out}", highlight=False)
    if study.short:
        screen.print(
            "[bold yellow]a short run[/]: fewer problems, seeds or steps than the board has",
            highlight=False,
        )
    with computing(out) as progress:
        for plan in () if alone else plans:
            plan.compute(store, engine, progress)
    if engine.shard is not None:
        screen.print(
            f"part {shard} is computed; the page is made by `fairbound board` without --shard"
        )
        return
    stored = [plan.stored(store) for plan in plans]
    if alone:
        stored = [replace(one, entries=(), runs=()) for one in stored]
    show_and_write(stored, store, to, sent)


def _place(name: str) -> str:
    """A file by its whole path: workers have other folders to start from."""
    return (
        str(Path(name).resolve())
        if Path(name).suffix in (".toml", ".py") and Path(name).exists()
        else name
    )


def _own(files: Sequence[Path], algorithms: Sequence[str], study: Study) -> list[Entry]:
    from fairbound.benchmark._custom_algorithm import tried_algorithm
    from fairbound.benchmark._study import load_entries

    found = [one for path in files for one in load_entries(path)]
    return found + [study.custom_entry(tried_algorithm(text)) for text in algorithms]


def _list() -> None:
    from fairbound.benchmark._study import load_study as load_study
    from fairbound.benchmark.problems._catalog import load_problem, problem_names

    screen = console()
    screen.print("[bold]Problems[/]")
    for name in problem_names():
        screen.print(
            f"  {name:<24} {escape(load_problem(name).title)}", highlight=False, soft_wrap=True
        )
    screen.print("[bold]Entries[/]")
    for one in load_study("board").entries:
        screen.print(f"  {one.name:<24} {one.method}", highlight=False)
