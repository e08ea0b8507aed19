"""The commands, and what they share."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from fairbound._utils.files import check_folder
from fairbound.cli._audit import audit_command
from fairbound.cli._board import board_command
from fairbound.cli._data import fetch_command, list_command
from fairbound.cli._enter import check_command, enter_command
from fairbound.cli._groups import groups_command
from fairbound.cli._new import new_algorithm_command
from fairbound.cli._printing import PARAMETERS, as_options, plain
from fairbound.cli._report import report_command
from fairbound.cli._reproduce import reproduce_command
from fairbound.cli._run import run_command
from fairbound.cli._status import merge_command, status_command

# what a wrong input, a file or a missing package raises, in a sentence
EXPECTED = (ValueError, OSError, ImportError)


class _FlagsWithoutType:
    """Mixin of a command: `--help` shows a flag as `--short`, not as `--short <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_FlagsWithoutType, TyperCommand):
    """A command, whose options the library's sentences can then name (`as_options`)."""

    def invoke(self, ctx: Any) -> Any:
        PARAMETERS.set(self.params)
        return super().invoke(ctx)


class CommandGroup(_FlagsWithoutType, TyperGroup): ...


app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False)
data = typer.Typer(cls=CommandGroup, help="List and download census data.", no_args_is_help=True)
new = typer.Typer(cls=CommandGroup, help="Write a file to start from.", no_args_is_help=True)


def errors_as_sentences(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, whose expected errors end it with their sentence and exit status 1."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            _check_outputs(kwargs)
            return command(*args, **kwargs)
        except EXPECTED as error:
            Console(stderr=True, soft_wrap=True, emoji=False).print(
                f"[bold red]Error:[/] {plain(as_options(str(error)))}", highlight=False
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stopped:
            typer.echo(str(stopped) or "stopped", err=True)
            sys.exit(130)

    return guarded


def _check_outputs(arguments: Mapping[str, Any]) -> None:
    """Check before a command computes: its folders of results (out) and of pages (to) replace no
    input."""
    listed = [value if isinstance(value, list) else [value] for value in arguments.values()]
    named = [value for values in listed for value in values if isinstance(value, str | Path)]
    inputs = [re.sub(r"\.py:.*", ".py", str(value)) for value in named]  # my_file.py:MyMethod
    for name, sources in (("out", []), ("to", inputs)):
        if arguments.get(name) is not None:
            check_folder(arguments[name], sources)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"fairbound {version('fairbound')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Audit the predictions of any model, and benchmark training methods under constraints.

    Models are trained in Python (`from fairbound import Constrained`): no command trains a model of
    yours.
    """


_PANELS: dict[str, dict[str, Callable[..., Any]]] = {
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
for panel, commands in _PANELS.items():
    for name, command in commands.items():
        app.command(name, cls=Command, rich_help_panel=panel)(errors_as_sentences(command))
app.add_typer(data, name="data", rich_help_panel="Predictions and data")
app.add_typer(new, name="new", rich_help_panel="A method of your own")
data.command("list", cls=Command)(errors_as_sentences(list_command))
data.command("fetch", cls=Command)(errors_as_sentences(fetch_command))
new.command("algorithm", cls=Command)(errors_as_sentences(new_algorithm_command))
