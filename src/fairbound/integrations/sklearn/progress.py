"""How far a fit has come: a bar where rich is installed and a terminal is there, else a line for every look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairbound.integrations.sklearn.evaluation import Seen


@contextmanager
def progress(verbose: bool, steps: Callable[[str], int]) -> Iterator[Callable[[Seen], None]]:
    """A function to call with every look; `steps` are those of a mode."""
    if not verbose:
        yield lambda one: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _line
        return
    screen = Console()
    if not (screen.is_terminal or screen.is_jupyter):
        yield _line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen) as bar:
        tasks = {}

        def look(one: Seen) -> None:
            if one.mode not in tasks:
                tasks[one.mode] = bar.add_task(one.mode, total=steps(one.mode))
            text = f"{one.mode}: loss {one.loss:.3f}, violation {one.violation:.3f}"
            bar.update(tasks[one.mode], completed=one.step, description=text)

        yield look


def _line(one: Seen) -> None:
    print(f"{one.mode}: step {one.step}, loss {one.loss:.4f}, violation {one.violation:.4f}", flush=True)
