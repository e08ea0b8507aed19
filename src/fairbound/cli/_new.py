"""`fairbound new algorithm`: a file to start a method of your own from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbound._utils.files import check_place, write_text
from fairbound.cli._printing import console, plain

TEMPLATES = Path(__file__).parent / "templates"

File = Annotated[Path, typer.Argument(help="The Python file to write, such as my_file.py.")]
General = Annotated[
    bool,
    typer.Option(
        "--general", help="A method with a step of its own, instead of one with multipliers."
    ),
]


def new_algorithm_command(file: File, general: General = False) -> None:
    """Write a complete method, descent-ascent, with comments, to change into your own.

    It is a multiplier method, which turns the values of the constraints into weights; with
    --general it is one that makes its own step from gradients and Jacobians.
    """
    if file.suffix != ".py":
        raise ValueError(f"a method is a Python file, such as my_file.py; got {str(file)!r}")
    if file.exists():
        raise FileExistsError(f"{file} already exists; choose another name")
    check_place(file)
    template = TEMPLATES / ("general_algorithm.py.txt" if general else "algorithm.py.txt")
    write_text(file, template.read_text(encoding="utf-8").replace("FILE", file.as_posix()))
    screen = console()
    screen.print(
        f"{plain(str(file))} has MyMethod, a complete method; next:",
        highlight=False,
        soft_wrap=True,
    )
    for line in (
        f"python {file}",
        f"fairbound board income-ok-race --short --algorithm {file}:MyMethod",
    ):
        screen.print(f"  {plain(line)}", highlight=False, soft_wrap=True)
