"""Search of the stack for the user's own code."""

from __future__ import annotations

import sys


def frames_of_ours() -> int:
    """How far up from the caller the user's own line is, so that a warning points at it."""
    level, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fairbound."):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level + 1
