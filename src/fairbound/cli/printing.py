"""Printing on the terminal."""

from __future__ import annotations

import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.markup import escape

EVERY_S = 5.0  # seconds between lines of progress


def console(*, stderr: bool = False) -> Console:
    """Names of data and groups stay as they are: to rich, ":OK:" would be an emoji."""
    return Console(stderr=stderr, emoji=False)


@contextmanager
def working(words: str) -> Iterator[None]:
    """Shows on the standard error what takes long: a spinner on a terminal, else a line every few seconds."""
    screen = console(stderr=True)
    if screen.is_terminal:
        with screen.status(plain(words)):
            yield
        return
    done, start = threading.Event(), monotonic()

    def report() -> None:
        while not done.wait(EVERY_S):
            print(f"{visible(words)} ({monotonic() - start:.0f} s)", file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def plain(text: str) -> str:
    r"""Text of the user's (names of groups, columns and files) for rich: no markup, and control characters written
    out, so that an escape sequence in a file does not reach the terminal, nor does a mark that turns text around.

    >>> print(plain("a\x1b[31mb"), plain("[bold]c"), plain("d\u202ee"), plain("f\n"))
    a\x1b[31mb \[bold]c d\u202ee f\n
    """
    return escape(visible(text))


def visible(text: str) -> str:
    """The same for what is printed without rich."""
    return "".join(_written_out(one) if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") else one for one in text)


def _written_out(one: str) -> str:
    return one if one == "\u200d" else one.encode("unicode_escape").decode()  # a zero-width joiner is part of letters
