"""`fairbound benchopt`: our problems and methods for benchopt's tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbound.cli.printing import console

Folder = Annotated[Path, typer.Argument(help="A new folder.")]


def benchopt_command(folder: Folder) -> None:
    """Write our problems and methods as a benchopt benchmark."""
    from fairbound.benchmark.benchopt_export import export

    files = export(folder)
    screen = console()
    screen.print(f"{len(files)} files in {folder}; next:", highlight=False)
    screen.print(f"benchopt run {folder} -d 'fairbound\\[problem=qcqp]' -s 'fairbound\\[method=SGD]'", highlight=False)
