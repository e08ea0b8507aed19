"""Commands of the command line, run in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fairbound.cli._app import app

RUNNER = CliRunner()


def call(*arguments: str | Path, code: int = 0) -> str:
    """What a command prints, both streams; it must end with that exit status."""
    done = RUNNER.invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "80", "TERM": "dumb"}
    )
    assert done.exit_code == code, done.output
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


# the problem of one's own in the guide to boards
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "board.md"
OWN_PROBLEM = PAGE.read_text().split("```python\n")[1].split("```")[0]
