"""Options that commands share, and what a shell completes them with. Nothing heavy is imported:
`--help` is quick."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

_PACKAGE = Path(__file__).parents[1]
BEYOND = "Beyond one machine"
BudgetChoice = Literal["paper", "examples"]  # how long every method runs


# Completion ---------------------------------------------------------------------------------------


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    """Shells take a name with a space for two."""
    return sorted(name for name in names if name.startswith(incomplete) and " " not in name)


def complete_study(incomplete: str) -> list[str]:
    """
    >>> complete_study("paper")
    ['paper-ok-race', 'paper-va-marital']
    """
    return _begun(
        (path.stem for path in (_PACKAGE / "benchmark/studies").glob("*.toml")), incomplete
    )


def complete_problem(incomplete: str) -> list[str]:
    """Every problem of the collection has its reference.

    >>> complete_problem("grid")
    ['grid-world']
    """
    references = _PACKAGE / "benchmark/problems/_collection/references"
    return _begun((path.stem for path in references.glob("*.json")), incomplete)


def complete_entry(incomplete: str) -> list[str]:
    """
    >>> complete_entry("Descent")
    ['Descent-ascent']
    """
    table = tomllib.loads((_PACKAGE / "benchmark/studies/board.toml").read_text(encoding="utf-8"))
    return _begun((one["name"] for one in table["entries"]), incomplete)


def complete_source(incomplete: str) -> list[str]:
    """
    >>> complete_source("syn")
    ['synthetic:OK', 'synthetic:VA']
    """
    states = tomllib.loads((_PACKAGE / "data/synthetic.toml").read_text(encoding="utf-8"))["states"]
    return _begun(
        (f"{kind}:{state}" for kind in ("acs", "synthetic") for state in states), incomplete
    )


# What is run --------------------------------------------------------------------------------------

StudyArgument = Annotated[
    str,
    typer.Argument(
        help="An installed study such as paper-ok-race, or a TOML file.",
        autocompletion=complete_study,
    ),
]
StudiesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Installed studies such as paper-ok-race, or TOML files.",
        autocompletion=complete_study,
    ),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder with census data.")]
Source = Annotated[
    str | None,
    typer.Option(
        help="Data instead of the study's: acs:VA, synthetic:OK, my.csv.",
        autocompletion=complete_source,
    ),
]
Label = Annotated[str | None, typer.Option(help="Column to predict, in a table of your own.")]
GroupOption = Annotated[
    str | None, typer.Option(help="The protected attribute, instead of the study's.")
]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="Runs of each row on each split.")]
SplitsOption = Annotated[
    int | None, typer.Option(min=1, help="Random splits; the paper's is the first.")
]
StepsOption = Annotated[int | None, typer.Option(min=1, help="Limit on steps, for quick trials.")]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm", help="A method of your own beside the others: my_file.py:MyMethod."
    ),
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="Compute again what older code has computed.")
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")]

# Where it is computed and kept --------------------------------------------------------------------

Jobs = Annotated[
    int | None, typer.Option(min=1, help="Processes.", show_default="one per core, at most 4")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Dask scheduler: tcp://host:8786.", rich_help_panel=BEYOND
    ),
]
Queue = Annotated[
    str | None,
    typer.Option(
        help=(
            "Workers as Slurm jobs: partition=gpu,gpus=1,time=2:00,jobs=8 (also account, memory,"
            " cores, interface)."
        ),
        rich_help_panel=BEYOND,
    ),
]
OtherQueue = Annotated[
    str | None,
    typer.Option(
        help="Another queue: pbs:queue=long,time=2:00; lsf:...; sge:...", rich_help_panel=BEYOND
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(help="Compute only this part of the plan: 3/40.", rich_help_panel=BEYOND),
]
Out = Annotated[Path, typer.Option(help="Folder of stored results.")]
To = Annotated[Path, typer.Option("--to", "-o", help="Folder for the page, tables and figures.")]
