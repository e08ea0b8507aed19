"""The commands, and what they share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.console import Console

from fairbound.cli.audit import audit_command
from fairbound.cli.data import fetch_command, list_command
from fairbound.cli.groups import groups_command
from fairbound.cli.report import report_command
from fairbound.cli.reproduce import reproduce_command
from fairbound.cli.run import run_command
from fairbound.cli.time import time_command

EXPECTED = (ValueError, OSError, ImportError)  # what a wrong input, a file or a missing package raises, in a sentence

app = typer.Typer(
    help="Train neural networks within bounds, and see whether bounds are kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Census data: what is here, and fetching more.", no_args_is_help=True)
app.add_typer(data, name="data")


def in_a_sentence(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, whose expected errors end it with their sentence and exit status 1."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except EXPECTED as error:
            Console(stderr=True, soft_wrap=True, emoji=False).print(
                f"[bold red]Error:[/] {_escaped(error)}", highlight=False
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            sys.exit(130)

    return guarded


def _escaped(error: Exception) -> str:
    from rich.markup import escape

    return escape(str(error))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fairbound {version('fairbound')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Train neural networks within bounds, and see whether bounds are kept."""


app.command("audit")(in_a_sentence(audit_command))
app.command("groups")(in_a_sentence(groups_command))
app.command("run")(in_a_sentence(run_command))
app.command("reproduce")(in_a_sentence(reproduce_command))
app.command("time")(in_a_sentence(time_command))
app.command("report")(in_a_sentence(report_command))
data.command("list")(in_a_sentence(list_command))
data.command("fetch")(in_a_sentence(fetch_command))
