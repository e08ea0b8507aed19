"""Printing on the terminal."""

from __future__ import annotations

import unicodedata

from rich.console import Console
from rich.markup import escape


def console(*, stderr: bool = False) -> Console:
    """Names of data and groups stay as they are: to rich, ":OK:" would be an emoji."""
    return Console(stderr=stderr, emoji=False)


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
