"""The commands, and what they share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from fairbound.cli.audit import audit_command
from fairbound.cli.board import board_command
from fairbound.cli.data import fetch_command, list_command
from fairbound.cli.enter import check_command, enter_command
from fairbound.cli.groups import groups_command
from fairbound.cli.new import new_algorithm_command
from fairbound.cli.printing import plain
from fairbound.cli.report import report_command
from fairbound.cli.reproduce import reproduce_command
from fairbound.cli.run import run_command
from fairbound.cli.status import merge_command, status_command

EXPECTED = (ValueError, OSError, ImportError)  # what a wrong input, a file or a missing package raises, in a sentence

app = typer.Typer(
    help="Train neural networks under constraints, audit predictions, and run the benchmark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="List and download census data.", no_args_is_help=True)
new = typer.Typer(help="Write a file to start from.", no_args_is_help=True)


def errors_as_sentences(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, whose expected errors end it with their sentence and exit status 1."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except EXPECTED as error:
            Console(stderr=True, soft_wrap=True, emoji=False).print(
                f"[bold red]Error:[/] {plain(str(error))}", highlight=False
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stopped:
            typer.echo(str(stopped) or "stopped", err=True)
            sys.exit(130)

    return guarded


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"fairbound {version('fairbound')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train neural networks under constraints, audit predictions, and run the benchmark."""


PANELS: dict[str, dict[str, Callable[..., Any]]] = {
    "Predictions and data": {"audit": audit_command, "groups": groups_command},
    "Benchmark": {
        "run": run_command,
        "report": report_command,
        "reproduce": reproduce_command,
        "board": board_command,
        "status": status_command,
        "merge": merge_command,
    },
    "A method of your own": {"enter": enter_command, "check": check_command},
}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(errors_as_sentences(command))
app.add_typer(data, name="data", rich_help_panel="Predictions and data")
app.add_typer(new, name="new", rich_help_panel="A method of your own")
data.command("list")(errors_as_sentences(list_command))
data.command("fetch")(errors_as_sentences(fetch_command))
new.command("algorithm")(errors_as_sentences(new_algorithm_command))
