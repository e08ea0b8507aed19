"""Printing on the terminal."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Names of data and groups stay as they are: to rich, ":OK:" would be an emoji."""
    return Console(stderr=stderr, emoji=False)
