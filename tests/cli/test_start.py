"""What is quick: help, the version and completion, without anything that computes; and progress
without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from commands import call

from fairbound.benchmark._study import load_study
from fairbound.benchmark.board._checks import PROBLEM_SAMPLE
from fairbound.benchmark.board._limits import Limits
from fairbound.benchmark.problems import _catalog as catalog
from fairbound.cli import _enter as enter
from fairbound.cli import _options as options
from fairbound.cli import _printing as printing

HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "sklearn",
    "dask",
    "distributed",
    "matplotlib",
)
HELP_OF_ALL = """
import contextlib, io, json, sys
from typer.main import get_command
from fairbound.cli._app import app

def called(group, path):
    for name, command in group.commands.items():
        yield [*path, name]
        if hasattr(command, "commands"):
            yield from called(command, [*path, name])

everything = get_command(app)
said = {}
for words in (["--version"], ["--help"], *([*path, "--help"] for path in called(everything, []))):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        everything(words, prog_name="fairbound")
    said[" ".join(words)] = printed.getvalue()
print(json.dumps([sorted({name.partition(".")[0] for name in sys.modules}), said]))
"""


def test_help_of_every_command_loads_nothing_heavy_and_fits_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_ALL],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "80", "TERM": "dumb"},
        check=True,
    )
    loaded, said = json.loads(done.stdout)
    assert "typer" in loaded
    assert sorted({*HEAVY} & {*loaded}) == []
    assert {
        "run --help",
        "board --help",
        "audit --help",
        "data fetch --help",
        "new algorithm --help",
    } <= said.keys()
    for words, text in said.items():
        assert text.startswith("fairbound ") if words == "--version" else "Usage: fairbound" in text
        assert max(map(len, text.splitlines())) <= 80, words
        assert "<bool>" not in text, words
    for command in ("audit", "groups", "report", "board"):
        assert " -o " in said[f"{command} --help"], command
    assert "no command trains a model of yours" in " ".join(said["--help"].split())


def test_what_options_repeat_of_heavy_modules() -> None:
    assert Limits() == Limits(seconds=enter.SECONDS, gigabytes=enter.GIGABYTES)
    assert enter._SAMPLE == PROBLEM_SAMPLE


def test_completion_knows_the_names_that_commands_take() -> None:
    assert options.complete_problem("") == sorted(
        name for name in catalog.problem_names() if catalog.load_problem(name).on_board
    )
    assert options.complete_entry("S") == sorted(
        entry.name
        for entry in load_study("board").entries
        if entry.name.startswith("S") and " " not in entry.name
    )
    asked = {
        "_FAIRBOUND_COMPLETE": "complete_bash",
        "COMP_WORDS": "fairbound run tune-va",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'fairbound'; from fairbound.cli import main; main()",
        ],
        capture_output=True,
        text=True,
        env=os.environ | asked,
        check=False,
    )
    assert done.stdout.split() == [
        "tune-va-ghost",
        "tune-va-penalty",
        "tune-va-sslalm",
        "tune-va-ssw",
    ]


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "EVERY_S", 0.01)
    with printing.progress("computing") as advanced:
        time.sleep(0.05)
        advanced(1, 4)
        time.sleep(0.05)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "computing: 0% in 0 s"
    assert lines[-1] == "computing: 25% in 0 s, about 0 s left"


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    assert "Did you mean 'board'" in call("bord", code=2)
    assert "mean" not in call("xyz", code=2)
