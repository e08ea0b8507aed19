"""Printing on the terminal."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fairbound.reports._words import visible

# seconds between lines of progress without a terminal, or a tenth of the time so far if that is
# more
EVERY_S = 10.0
PARAMETERS: ContextVar[Sequence[Any]] = ContextVar("parameters of the command", default=())


def console(*, stderr: bool = False) -> Console:
    """Names of data and groups stay as they are: to rich, ":OK:" would be an emoji."""
    return Console(stderr=stderr, emoji=False)


@contextmanager
def working(words: str) -> Iterator[None]:
    """Shows on the standard error what takes long: a spinner on a terminal, else a line every few
    seconds."""
    screen = console(stderr=True)
    if screen.is_terminal:
        with screen.status(plain(words)):
            yield
        return
    with _lines(lambda seconds: f"{visible(words)} ({duration(seconds)})"):
        yield


@contextmanager
def progress(words: str) -> Iterator[Callable[[int, int], None]]:
    """The same for work whose parts are counted: a bar, or lines, with the time that is left. Call
    it: done, of all."""
    screen = console(stderr=True)
    if screen.is_terminal:
        columns = (
            TextColumn(words),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=screen, transient=True) as bar:
            task, begun = bar.add_task("", total=None, left=""), monotonic()

            def show(done: int, total: int) -> None:
                bar.update(
                    task, completed=done, total=total, left=_left(done, total, monotonic() - begun)
                )

            yield show
        return
    counted = [0, 0]

    def line(seconds: float) -> str:
        done, total = counted
        return (
            f"{words}: {done / max(total, 1):.0%} in"
            f" {duration(seconds)}{_left(done, total, seconds)}"
        )

    def note(done: int, total: int) -> None:
        counted[:] = done, total

    with _lines(line):
        yield note


def _left(done: int, total: int, seconds: float) -> str:
    """Say how long it still takes, from the pace so far.

    >>> _left(25, 100, 60.0), _left(0, 100, 60.0)
    (', about 3 min left', '')
    """
    return f", about {duration(seconds * (total / done - 1))} left" if done and done < total else ""


@contextmanager
def _lines(line: Callable[[float], str]) -> Iterator[None]:
    """A line on the standard error every few seconds, from the seconds that have passed."""
    done, start = threading.Event(), monotonic()

    def report() -> None:
        while not done.wait(max(EVERY_S, (monotonic() - start) / 10)):
            print(line(monotonic() - start), file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def duration(seconds: float) -> str:
    """
    >>> duration(50), duration(4000)
    ('50 s', '1 h 07 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def plain(text: str) -> str:
    r"""Text of the user's (names of groups, columns and files) for rich: no markup, and nothing
    hidden in it.

    >>> print(plain("a\x1b[31mb"), plain("[bold]c"))
    a\x1b[31mb \[bold]c
    """
    return escape(visible(text))


def print_body(body: Iterable[Any], screen: Console) -> None:
    """Print sentences and tables; a table has its title in bold."""
    from fairbound.reports._page import text_parts

    for heading, text in text_parts(body):
        if heading:
            screen.print(f"[bold]{escape(heading)}[/]", highlight=False)
        screen.print(as_options(text), markup=False, highlight=False, soft_wrap=True)


def as_options(text: str) -> str:
    """A sentence of the library, whose parameters in backticks become options of the command that
    runs: `min_size=20` -> --min-size 20."""
    options = {param.name: param for param in PARAMETERS.get()}

    def option(match: re.Match[str]) -> str:
        param = options.get(match[1]) or options.get(match[1].removesuffix("s"))
        if param is None or param.param_type_name != "option":
            return match[0]
        value = "" if getattr(param, "is_flag", False) or not match[2] else f" {match[2]}"
        return f"{max(param.opts, key=len)}{value}"

    return re.sub(r"`(\w+)(?:=([^`\n]*))?`", option, text)
